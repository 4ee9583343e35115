# SPDX-License-Identifier: Apache-2.0
"""Reads a request to an OpenTelemetry collector from a file, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest


def plain(attributes: Iterable[Any]) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


request = ExportMetricsServiceRequest.FromString(Path(sys.argv[1]).read_bytes())
(of_resource,) = request.resource_metrics
points = [
    (metric.name, metric.unit, plain(point.attributes), getattr(point, point.WhichOneof("value")))
    for scope in of_resource.scope_metrics
    for metric in scope.metrics
    for point in metric.gauge.data_points
]
print(json.dumps({"resource": plain(of_resource.resource.attributes), "points": points}))
