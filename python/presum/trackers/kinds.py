# SPDX-License-Identifier: Apache-2.0
"""The trackers by name."""

from __future__ import annotations

from presum.trackers.mlflow import Mlflow
from presum.trackers.otlp import Otlp
from presum.trackers.tensorboard import TensorBoard
from presum.trackers.tracker import Tracker
from presum.trackers.trackio import Trackio
from presum.trackers.wandb import Wandb
from presum.trackers.webhook import Webhook

KINDS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": Mlflow,
    "trackio": Trackio,
    "otlp": Otlp,
}
WEBHOOK = "webhook"
ALL: dict[str, type[Tracker]] = {**KINDS, WEBHOOK: Webhook}
