# SPDX-License-Identifier: Apache-2.0
"""A run in a notebook: verdict, findings, the last values and the losses, as HTML."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

FINDINGS = 10
MODELS = 4
KEYS = ("segment", "model_index", "dp_group")
VALUES = ("loss_mean", "loss_std", "grad_norm_cv", "cosine_mean", "effective_workers")


def page_of(
    name: str, verdict: str, findings: Sequence[Mapping[str, Any]], steps: Any, figure: bytes
) -> str:
    """The page. ``steps`` is the frame, ``figure`` is a PNG or empty."""
    head = f"<p><b>{escape(name)}</b>: {escape(verdict)}</p>"
    parts = (head, _list(findings), _table(steps), _figure(figure))
    return "\n".join(part for part in parts if part)


def _figure(png: bytes) -> str:
    data = b64encode(png).decode("ascii")
    return f'<img alt="losses of the ranks" src="data:image/png;base64,{data}"/>' if png else ""


def _list(findings: Sequence[Mapping[str, Any]]) -> str:
    items = [f"{f['severity']}: {f['sentence']} [{f['check']}]" for f in findings[:FINDINGS]]
    if len(findings) > FINDINGS:
        items.append(f"and {len(findings) - FINDINGS} more")
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>" if items else ""


def _table(steps: Any) -> str:
    """The metrics of the last step of each model."""
    ends = np.flatnonzero(_ends([np.asarray(steps[key]) for key in KEYS]))[-MODELS:]
    if not len(ends):
        return ""
    head = "".join(f"<th>{name}</th>" for name in ("step", *VALUES))
    columns = [np.asarray(steps[name])[ends] for name in VALUES]
    numbers = [f"<td>{step}</td>" for step in np.asarray(steps["step"])[ends]]
    for column in columns:
        numbers = [f"{row}<td>{value:.4g}</td>" for row, value in zip(numbers, column, strict=True)]
    rows = "".join(f"<tr>{row}</tr>" for row in numbers)
    return f"<table><tr>{head}</tr>{rows}</table>"


def _ends(keys: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
    """Whether a row is the last with its keys. Rows with equal keys are neighbors."""
    changes = [key[1:] != key[:-1] for key in keys]
    return np.append(np.logical_or.reduce(changes), np.full(min(len(keys[0]), 1), True))
