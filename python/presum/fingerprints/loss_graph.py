# SPDX-License-Identifier: Apache-2.0
"""Describes how a loss is computed from the model's output: the nodes of its graph, and their
settings."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from presum.fingerprints.families import hash_text, log
from presum.torch_events.collectives import InPlaceReduction, reduction_of
from presum.torch_events.saved import is_elsewhere, signed

PASSES = 3  # passes with equal settings: a value that depends on a batch is not a setting
NODES_MAX = 48  # of a graph, starting at the loss
WEIGHTS_MAX = 1 << 16  # elements of a weight that is hashed
WEIGHTS = ("weight", "pos_weight")
LOSSES = ("Loss", "CrossEntropy")  # in the name of a node whose weight is not a parameter
WHOLE = ("reduction", "ignore_index", "dim")  # settings that are integers but not places
LOOKS_MAX = 24  # passes examined before giving up
OUTPUT = "presum_output"  # a node's metadata: the graph of a loss ends there
LEAF = "AccumulateGrad"
REDUCTIONS = ("none", "mean", "sum")
SCALES = ("Mul", "Div")
LINEAR = (
    *("Add", "Sub", "Neg", "Sum", "Mean", "View", "Reshape", "Unsqueeze", "Squeeze", "Clone"),
    *("ToCopy", "Select", "Slice", "Unbind", "Stack", "Cat", "Expand", "Alias"),
)
CURVED = ("Log", "Log1P", "Exp", "Pow", "Sqrt", "Rsqrt", "Reciprocal", "Logsumexp", "LogSoftmax")
UNKNOWN = float("nan")
NEAR = 1e-6  # of a factor


class LossGraph:
    """The graphs of one model's losses."""

    def __init__(self) -> None:
        self._seen: list[dict[str, str]] = []
        self._looks = 0
        self._reduced: dict[str, str] = {}

    @property
    def asks(self) -> bool:
        """Whether to examine further passes."""
        return len(self._seen) < PASSES and self._looks < LOOKS_MAX

    def ends_at(self, output: torch.Tensor, *, is_loss: bool) -> None:
        """Mark an output of the model. A loss that the model computes itself is one more node."""
        node: Any = output.grad_fn
        if node is not None:
            node.metadata[OUTPUT] = self, is_loss

    def look(self, roots: Iterable[Any]) -> dict[str, str]:
        """A backward pass is about to begin at these roots. Returns facts once they are known, and
        none for a pass that does not reach the model's output. What a collective of the program
        changed in place is known at once."""
        self._looks += 1
        try:
            nodes = self._nodes(roots)
            if nodes:
                self._seen.append(_described(nodes))
        except Exception:  # the program freed the graph, or has its own nodes
            self._looks = LOOKS_MAX
            log.debug("presum: no graph of the loss", exc_info=True)
        return self._settled() | self._reduced

    def _settled(self) -> dict[str, str]:
        if len(self._seen) < PASSES:
            return {}
        first, *others = self._seen
        if any(one["loss.functions"] != first["loss.functions"] for one in others):
            return {}
        return {key: text for key, text in first.items() if all(o.get(key) == text for o in others)}

    def _nodes(self, roots: Iterable[Any]) -> list[Any]:
        """The nodes, level by level, down to the model's output."""
        out: list[Any] = []
        found = False
        seen = set()
        reduced: dict[str, str] = {}
        # Each with the factor between it and the loss: NaN if unknown, None if the loss is not
        # linear in it.
        due = deque[tuple[Any, float | None]]((getattr(r, "grad_fn", None), 1.0) for r in roots)
        while due and len(out) < NODES_MAX:
            node, factor = due.popleft()
            if node is None or node in seen:
                continue
            seen.add(node)
            reduction = reduction_of(node)
            if reduction is not None and not reduced:
                reduced = _facts_of(reduction, factor)
            whose, is_loss = node.metadata.get(OUTPUT, (None, True))
            found = found or whose is self
            if not is_loss or node.name().endswith(LEAF):
                continue
            out.append(node)
            due.extend(_with_factors(node, factor))
        if not found:
            return []
        self._reduced |= reduced
        return out


def _with_factors(node: Any, factor: float | None) -> Iterator[tuple[Any, float | None]]:
    """The nodes that follow, each with the factor between it and the loss."""
    following = [one for one, _ in node.next_functions]
    name = node.name().partition("Backward")[0]
    several = sum(one is not None for one in following) > 1
    for place, one in enumerate(following):
        if factor is None or name in CURVED or (name == "Div" and place == 1):
            yield one, None
        elif name in SCALES and not several:
            other = _number(getattr(node, "_raw_saved_other", None))
            yield one, factor * other if name == "Mul" else factor / (other or UNKNOWN)
        else:
            yield one, factor if name in LINEAR else UNKNOWN


def _facts_of(reduction: InPlaceReduction, factor: float | None) -> dict[str, str]:
    """What follows the reduction. Its gradient is that of the value before it."""
    how = "unknown"
    if factor is None:
        how = "function"
    elif reduction.sums and abs(factor * reduction.ranks - 1) < NEAR:
        how = "divided"
    return {"loss_reduced_at": f"all_reduce at {reduction.where}", "loss_reduced_how": how}


def _described(nodes: list[Any]) -> dict[str, str]:
    names = [node.name().partition("Backward")[0] for node in nodes]
    out = {"loss.functions": ", ".join(names)}
    for at, (node, name) in enumerate(zip(nodes, names, strict=True)):
        number = names[:at].count(name)
        for setting, text in _settings(node):
            out[f"loss.{name}{number + 1 if number else ''}.{setting}"] = text
    return out


def _settings(node: Any) -> Iterator[tuple[str, str]]:
    weighs = any(word in node.name() for word in LOSSES)
    for name in dir(node):
        setting = name.removeprefix("_saved_")
        if setting == name:
            continue
        if setting in WEIGHTS and not weighs:
            continue
        raw = getattr(node, f"_raw{name}", None)
        text = _plain(setting, getattr(node, name)) if raw is None else _of_tensor(setting, raw)
        if text:
            yield setting, text


def _plain(setting: str, value: object) -> str:
    if not isinstance(value, float) and not (isinstance(value, int) and setting in WHOLE):
        return ""
    if setting == "reduction" and value in (0, 1, 2):
        return REDUCTIONS[int(value)]
    return repr(signed(value) if isinstance(value, int) else value)


def _of_tensor(setting: str, raw: Any) -> str:
    """A loss's weight, or a factor that is a Python number, which torch stores in 64 bits: one of
    another dtype may be a count of the batch. Empty if the saved value is stored elsewhere, because
    reading it would fetch or compute it."""
    if is_elsewhere(raw):
        return ""
    tensor = raw.data
    if setting in WEIGHTS:
        return _weight(tensor)
    known = isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float64
    return repr(tensor.item()) if known and tensor.is_cpu and tensor.numel() == 1 else ""


def _number(raw: Any) -> float:
    """A saved real number; NaN if it is stored elsewhere or is not one."""
    if raw is None or is_elsewhere(raw):
        return UNKNOWN
    tensor = raw.data
    known = type(tensor) is torch.Tensor and tensor.is_cpu and tensor.numel() == 1
    return float(tensor) if known and not tensor.is_complex() else UNKNOWN


def _weight(tensor: object) -> str:
    if not isinstance(tensor, torch.Tensor):
        return "none"
    if not tensor.is_cpu or tensor.numel() > WEIGHTS_MAX or tensor.dim() != 1:
        return "some"
    values = tensor.detach().flatten().tolist()
    shown = ", ".join(f"{value:.4g}" for value in values[:4])
    return f"{shown}{', ...' if len(values) > 4 else ''} ({hash_text(repr(values)):016x})"
