# SPDX-License-Identifier: Apache-2.0
"""Measures what one target token of a micro-batch weighs in the loss that is differentiated: the
gradient that arrives at the loss function, by the number of its targets."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch._compile import _disable_dynamo
from torch.autograd.function import BackwardCFunction

from presum._core import count_targets
from presum.devices.readable import readable
from presum.torch_events.losses import Scalar
from presum.torch_events.saved import is_elsewhere, signed

NODES_MAX = 128  # of a graph, starting at the loss
ELEMENTS_MAX = 1 << 18  # of a gradient that is read
LINEAR = (
    *("Add", "Sub", "Rsub", "Neg", "Sum", "Mean", "Where", "MaskedFill", "NanToNum", "ToCopy"),
    *("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Expand", "Permute"),
    *("Transpose", "T", "Alias", "Clone", "Select", "Slice", "Split", "SplitWithSizes", "Unbind"),
    *("Index", "MaskedSelect", "Stack", "Cat", "_DDPSink"),
)  # nodes that scale, add, reshape or pick
NLL = ("NllLoss", "NllLoss2D")
SOFTMAX_FIRST = (*NLL, "Sum", "Index")  # if a log-softmax follows, they are not walked through
LOSSES = (
    *("MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "SoftMarginLoss"),
    *("BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"),
)  # each element is a target
NONE, MEAN = 0, 1  # of torch's reductions; else a sum
LEAF = "AccumulateGrad"
ELEMENTWISE = (
    *("Gather", "Minimum", "Maximum", "LogSigmoid", "Softplus", "ClampMin", "Clamp", "Relu"),
    *("Abs", "Pow", "Index", "IndexSelect"),
)  # each element that gets a gradient is a target; of other functions, an element may be a class
FIRST = (*NLL, *LOSSES)  # the loss function that is read, if there are several


class Weighed(NamedTuple):
    """What arrived at a loss function."""

    targets: Scalar | None  # None: as many as the micro-batch has
    sum: Scalar  # of the targets' weights, without their signs


Reader = Callable[[torch.Tensor], Weighed | None]


class _Term:
    """A node at which the walk from the loss ends. It is told what arrives there, and holds no
    node."""

    def __init__(self, name: str, read: Reader) -> None:
        self.name = name
        self.found: Weighed | None = None
        self.is_mean = False
        self._read: Reader | None = read

    def forget(self) -> None:
        """Let go of what it reads, if nothing arrived."""
        self._read = None

    @_disable_dynamo
    def __call__(self, grads: tuple[torch.Tensor | None, ...]) -> None:
        read, self._read = self._read, None
        try:
            grad = readable(grads[0]) if read is not None and grads[0] is not None else None
            if read is not None and grad is not None:
                self.found = read(grad.detach())
        except Exception:  # of an unusual tensor class
            self.found = None


class TokenWeights:
    """Of one run of the engine: create it before, read it once the run has passed the loss."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self.unread = ""  # the node that hides the loss function
        self._cut = False  # the walk has met its bound
        self._terms: list[_Term] = []
        self._handles: list[Any] = []
        try:
            self._walk(roots)
        except Exception:  # the program freed the graph, or changed what it saved
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the hooks: a graph can be differentiated again."""
        for handle in self._handles:
            handle.remove()
        for term in self._terms:
            term.forget()

    def result(self) -> Weighed | None:
        """The targets of one kind of loss function and what they weigh together. None if a term of
        that kind cannot be read."""
        found = [term.found for term in self._terms if term.name == self._kind]
        if self._cut or not found:
            return None
        return found[0] if len(found) == 1 else _added(found)

    @property
    def has_other_terms(self) -> bool:
        """Whether the loss has terms of other kinds, or several means."""
        if len(self._terms) == 1:
            return False
        means = sum(term.is_mean for term in self._terms if term.name == self._kind)
        return means > 1 or any(term.name != self._kind for term in self._terms)

    @cached_property
    def _kind(self) -> str:
        """Once the run has passed the loss: the name of the terms that are read."""
        names = {term.name for term in self._terms}
        known = next((name for name in FIRST if name in names), None)
        if known is None and not self.unread:
            known = next((term.name for term in self._terms), None)
        return known or ""

    def _walk(self, roots: Iterable[Any]) -> None:
        due = deque(getattr(root, "grad_fn", None) for root in roots)
        seen: set[Any] = set()
        by_softmax: dict[Any, list[_Term]] = {}
        while due:
            node: Any = due.popleft()
            if node is None or node in seen:
                continue
            if len(seen) == NODES_MAX:
                self.unread, self._cut = f"more than {NODES_MAX} nodes", True
                break
            seen.add(node)
            following = [one for one, _ in node.next_functions if one is not None]
            name = _name(node)
            before_softmax = name in SOFTMAX_FIRST and _name(following[0]) == "LogSoftmax"
            if before_softmax or not (name in LINEAR or _scales(node, name)):
                term = self._term(node, name)
                if term is not None and before_softmax:
                    by_softmax.setdefault(following[0], []).append(term)
            else:
                due.extend(following)
        for terms in by_softmax.values():
            _put_together(terms)

    def _term(self, node: Any, name: str) -> _Term | None:
        if name == LEAF:
            return None
        if name in NLL:
            term = _Term(name, _read_nll(node))
        elif name in LOSSES:
            term = _Term(name, _read_elements(node))
        elif name == "Sum":
            term = _Term(name, _read_smoothing(node))
        else:
            term = _Term(name, lambda grad: self._read_other(name, grad))
        term.is_mean = name in FIRST and int(node._saved_reduction) == MEAN
        self._handles.append(node.register_prehook(term))
        self._terms.append(term)
        return term

    def _read_other(self, name: str, grad: torch.Tensor) -> Weighed | None:
        if name in ELEMENTWISE and grad.dim() and grad.numel() <= ELEMENTS_MAX:
            return _weighed(grad)
        self.unread = self.unread or name
        return None


def _put_together(terms: list[_Term]) -> None:
    """Label smoothing adds a sum over classes to a loss function of the same log-softmax."""
    loss = next((term for term in terms if term.name in NLL), None)
    for term in terms:
        if loss is not None:
            term.name = loss.name


def _read_nll(node: Any) -> Reader:
    reduction, target = int(node._saved_reduction), _saved(node, "target")
    ignored = signed(node._saved_ignore_index)
    weights = total = None  # of the classes
    if reduction != MEAN:
        weights, total = _saved(node, "weight"), _saved(node, "total_weight")

    def read(grad: torch.Tensor) -> Weighed | None:
        if reduction == NONE:
            if target is None or weights is not None:
                return None
            return _weighed(torch.where(target != ignored, grad, 0))
        targets = None if target is None else _count(target, ignored)
        size = _size(grad)
        if reduction == MEAN:
            return Weighed(targets, size)
        each = targets if weights is None or total is None else _number(total)
        return None if each is None else Weighed(targets, size * each)

    return read


def _read_smoothing(node: Any) -> Reader:
    """The part of a cross entropy that is spread over the classes."""
    dims = [signed(dim) for dim in getattr(node, "_saved_dim", ())]
    classes = math.prod(node._saved_self_sym_sizes[dim] for dim in dims)

    def read(grad: torch.Tensor) -> Weighed:
        return Weighed(0, _number(grad.sum(dtype=torch.float64).abs() * classes))

    return read


def _read_elements(node: Any) -> Reader:
    reduction, inputs = int(node._saved_reduction), _saved(node, "self")
    elements = None if inputs is None else inputs.numel()

    def read(grad: torch.Tensor) -> Weighed | None:
        if reduction == NONE:
            return _weighed(grad)
        if elements is None:
            return None
        size = _size(grad)
        return Weighed(elements, size if reduction == MEAN else size * elements)

    return read


def _weighed(grad: torch.Tensor) -> Weighed | None:
    """Of targets that are not reduced: those that have a weight."""
    if grad.numel() > ELEMENTS_MAX:
        return None
    return Weighed(_number(torch.count_nonzero(grad)), _number(grad.abs().sum(dtype=torch.float64)))


def _count(target: torch.Tensor, ignored: int) -> Scalar:
    if target.is_cpu and target.dtype == torch.int64 and target.is_contiguous():
        return count_targets(target, ignored)
    return _number((target != ignored).sum())


def _added(parts: list[Weighed | None]) -> Weighed | None:
    targets: Scalar | None = 0
    total: Scalar = 0.0
    for part in parts:
        if part is None:
            return None
        targets = None if targets is None or part.targets is None else targets + part.targets
        total = total + part.sum
    return Weighed(targets, total)


def _size(value: torch.Tensor) -> Scalar:
    """Of one element, without its sign."""
    return abs(value.item()) if value.is_cpu else value.abs().double().reshape(())


def _number(value: torch.Tensor) -> Scalar:
    """A number, or a copy on its device."""
    return value.item() if value.is_cpu else value.clone().reshape(())


def _saved(node: Any, name: str) -> torch.Tensor | None:
    """A saved tensor; None if it is stored elsewhere, or of an unusual class."""
    if is_elsewhere(getattr(node, f"_raw_saved_{name}")):
        return None
    found = getattr(node, f"_saved_{name}")
    return readable(found) if isinstance(found, torch.Tensor) else None


def _scales(node: Any, name: str) -> bool:
    """Whether it multiplies or divides by something without a gradient."""
    first, *others = (one for one, _ in node.next_functions)
    if name == "Div":
        return first is not None and all(one is None for one in others)
    return name == "Mul" and (first is None) + sum(one is None for one in others) == len(others)


def _name(node: Any) -> str:
    """The name of torch's function; of a Function in Python, which may have such a name, with what
    torch appends."""
    whole = type(node).__name__
    if whole == "CppFunction":
        whole = node.name().rpartition("::")[2]
    name = whole.partition("Backward")[0]
    return whole if isinstance(node, BackwardCFunction) and name != "_DDPSink" else name
