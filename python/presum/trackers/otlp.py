# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry: gauges of the last step, to a collector."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from presum._core import __version__
from presum.findings import Finding
from presum.trackers.tracker import Found, Identity, Row, Series, identity_of

MILLISECONDS = 10_000  # for one export, and for the end
METRICS = {"own_seconds": ("presum.own_time", "s"), "findings": ("presum.findings", "{finding}")}
Kind = tuple[str, str]  # check and severity


class Otlp:
    """Exports over HTTP to where the environment says (``OTEL_EXPORTER_OTLP_ENDPOINT``), else to a
    collector on this machine. A gauge has no history: of steps that come together, only the last
    is exported."""

    @staticmethod
    def find() -> Found:
        return {}

    def open(self, run: Path, found: Found) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.resources import Resource

        self._exporter = OTLPMetricExporter()
        self._reader = InMemoryMetricReader()
        resource = Resource.create({"service.name": "presum", "presum.run": run.name})
        self._meter = MeterProvider([self._reader], resource).get_meter("presum", __version__)
        self._gauges: dict[str, Any] = {}
        self._findings: dict[Identity, Kind] = {}

    def log(self, rows: Sequence[Row]) -> None:
        for row in rows:
            for series, value in row.series.items():
                self._gauge(series.name).set(value, _attributes(series))
            for place in {(series.model_index, series.dp_group) for series in row.series}:
                self._gauge("step").set(row.step, _attributes(Series("step", *place)))
        self._export()

    def tell(self, finding: Finding) -> None:
        before = dict.fromkeys(self._findings.values(), 0)
        self._findings[identity_of(finding)] = finding.check, finding.severity
        for (check, severity), number in {**before, **Counter(self._findings.values())}.items():
            kind = {"presum.check": check, "presum.severity": severity}
            self._gauge("findings").set(number, kind)
        self._export()

    def close(self, verdict: str, report: Path) -> None:
        self._exporter.shutdown(MILLISECONDS)

    def _gauge(self, name: str) -> Any:
        if name not in self._gauges:
            metric, unit = METRICS.get(name, (f"presum.{name}", "1"))
            self._gauges[name] = self._meter.create_gauge(metric, unit)
        return self._gauges[name]

    def _export(self) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        data = self._reader.get_metrics_data()
        if data is None:  # OTEL_SDK_DISABLED, or nothing is known yet
            return
        result = self._exporter.export(data, MILLISECONDS)
        if result is not MetricExportResult.SUCCESS:
            raise ConnectionError("the collector did not take the metrics")


def _attributes(series: Series) -> dict[str, int | str]:
    out: dict[str, int | str] = {
        "presum.model": series.model_index,
        "presum.group": series.dp_group,
    }
    kind, _, rank = series.of.partition("_")
    if rank:
        return out | {"presum.rank": int(rank)}
    return out | {"presum.over_ranks": kind} if kind else out
