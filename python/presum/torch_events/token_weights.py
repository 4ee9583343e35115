# SPDX-License-Identifier: Apache-2.0
"""Measures what one target token of a micro-batch weighs in the loss that is differentiated: the
gradient that arrives at the loss function, by the number of its targets."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch._compile import _disable_dynamo
from torch.autograd.function import BackwardCFunction

from presum._core import count_plain_targets
from presum.devices.readable import readable
from presum.torch_events.losses import Scalar, kept_value
from presum.torch_events.saved import is_elsewhere, signed

NODES_MAX = 128  # of a graph, starting at the loss
ELEMENTS_MAX = 1 << 18  # of a gradient that is read
LINEAR = frozenset(
    (
        *("Add", "Sub", "Rsub", "Neg", "Sum", "Mean", "Where", "MaskedFill", "NanToNum", "ToCopy"),
        *("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Expand", "Permute"),
        *("Transpose", "T", "Alias", "Clone", "Select", "Slice", "Split", "SplitWithSizes"),
        *("Unbind", "Index", "MaskedSelect", "Stack", "Cat", "_DDPSink"),
    )
)  # nodes that scale, add, reshape or pick
NLL = ("NllLoss", "NllLoss2D")
SOFTMAX_FIRST = (*NLL, "Sum", "Index")  # if a log-softmax follows, they are not walked through
LOSSES = (
    *("MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "SoftMarginLoss"),
    *("BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"),
)  # each element is a target
NONE, MEAN = 0, 1  # of torch's reductions; else a sum
LEAF = "AccumulateGrad"
PENALTIES = ("Pow", "Abs", "Mul", "Norm", "LinalgVectorNorm")  # if they take parameters alone
ELEMENTWISE = (
    *("Gather", "Minimum", "Maximum", "LogSigmoid", "Softplus", "ClampMin", "Clamp", "Relu"),
    *("Abs", "Pow", "Index", "IndexSelect"),
)  # each element that gets a gradient is a target; of other functions, an element may be a class
NAMES: dict[type, str] = {}  # of torch's classes of nodes
FIRST = (*NLL, *LOSSES)  # the loss function that is read, if there are several


class Weighed(NamedTuple):
    """What arrived at a loss function."""

    targets: Scalar | None  # None: as many as the micro-batch has
    sum: Scalar  # of the targets' weights, without their signs


class _Term:
    """A node at which the walk from the loss ends. It is told what arrives there, and holds no
    node."""

    is_mean = False

    def __init__(self, name: str) -> None:
        self.name = name

    def hook(self) -> Callable[[Any], None]:
        raise NotImplementedError

    def found(self) -> Weighed | None:
        """What has arrived; None if nothing, or nothing that can be read."""
        raise NotImplementedError

    def forget(self) -> None:
        """Let go of what it would read."""
        raise NotImplementedError


class _Reduced(_Term):
    """What arrives is a number. It is kept, without code of Python, and read later."""

    def __init__(self, name: str, read: Callable[[Scalar], Weighed | None]) -> None:
        super().__init__(name)
        self._read: Callable[[Scalar], Weighed | None] | None = read
        self._arrived: deque[tuple[Any, ...]] = deque(maxlen=1)
        self._found: Weighed | None = None

    def hook(self) -> Callable[[Any], None]:
        return self._arrived.append

    def found(self) -> Weighed | None:
        if self._arrived and self._read is not None:
            try:
                size = _size(self._arrived.pop()[0])
                self._found = None if size is None else self._read(size)
            except Exception:  # of an unusual tensor class
                self._found = None
        return self._found

    def forget(self) -> None:
        self.found()
        self._read = None


class _Each(_Term):
    """What arrives is the gradient of each target, or of other elements."""

    def __init__(self, name: str, read: Callable[[torch.Tensor], Weighed | None]) -> None:
        super().__init__(name)
        self._read: Callable[[torch.Tensor], Weighed | None] | None = read
        self._found: Weighed | None = None

    def hook(self) -> Callable[[Any], None]:
        return self._arrives

    def found(self) -> Weighed | None:
        return self._found

    def forget(self) -> None:
        self._read = None

    @_disable_dynamo
    def _arrives(self, grads: tuple[torch.Tensor | None, ...]) -> None:
        read, self._read = self._read, None
        try:
            grad = readable(grads[0]) if read is not None and grads[0] is not None else None
            if read is not None and grad is not None:
                self._found = read(grad.detach())
        except Exception:  # of an unusual tensor class
            self._found = None


class TokenWeights:
    """Of one run of the engine: create it before, read it once the run has passed the loss."""

    def __init__(self, roots: Iterable[Any], *, kept: bool = True) -> None:
        """``kept``: the graph can be differentiated again, so the hooks must be removed."""
        self.unread = ""  # the node that hides the loss function
        self.has_penalty = False  # a term of parameters alone
        self._kept = kept
        self._cut = False  # the walk has met its bound
        self._terms: list[_Term] = []
        self._handles: list[Any] = []
        try:
            self._walk(roots)
        except Exception:  # the program freed the graph, or changed what it saved
            self.remove()
            raise

    def remove(self) -> None:
        """The run is over: let go of what the hooks hold, and remove them unless what their nodes
        have saved is gone."""
        again = self._kept or any(term.name not in FIRST for term in self._terms)
        for handle in self._handles if again else ():
            handle.remove()
        for term in self._terms:
            term.forget()

    def result(self) -> Weighed | None:
        """The targets of one kind of loss function and what they weigh together. None if a term of
        that kind cannot be read."""
        found = [term.found() for term in self._terms_of_one_kind()]
        if self._cut or not found:
            return None
        return found[0] if len(found) == 1 else _added(found)

    @property
    def has_terms(self) -> bool:
        """Whether the walk met a node that is read, or its bound."""
        return bool(self._terms) or self._cut

    @property
    def has_other_terms(self) -> bool:
        """Whether the loss has terms of other kinds, or several means."""
        read = self._terms_of_one_kind()
        return len(read) < len(self._terms) or sum(term.is_mean for term in read) > 1

    def _terms_of_one_kind(self) -> list[_Term]:
        """Once the run has passed the loss: the terms that are read."""
        if len(self._terms) < 2:
            return self._terms
        names = {term.name for term in self._terms}
        known = next((name for name in FIRST if name in names), None)
        if known is None and not self.unread:
            known = self._terms[0].name
        return [term for term in self._terms if term.name == known]

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
            following = [one for one, _ in node.next_functions]
            name = _name(node)
            before_softmax = name in SOFTMAX_FIRST and _name(following[0]) == "LogSoftmax"
            if before_softmax or not (name in LINEAR or _scales(following, name)):
                term = self._term(node, name, following)
                if term is not None and before_softmax:
                    by_softmax.setdefault(following[0], []).append(term)
            else:
                due.extend(following)
        if len(self._terms) > 1:
            for terms in by_softmax.values():
                _put_together(terms)

    def _term(self, node: Any, name: str, following: list[Any]) -> _Term | None:
        if name in PENALTIES and _are_leaves(following):
            self.has_penalty = True
            return None
        if name == LEAF:
            return None
        reduction = int(node._saved_reduction) if name in FIRST else NONE
        term: _Term
        if name in NLL:
            term = _nll(node, name, reduction)
        elif name in LOSSES:
            term = _elements(node, name, reduction)
        elif name == "Sum":
            term = _Each(name, _read_smoothing(node))
        else:
            term = _Each(name, partial(self._read_other, name))
        term.is_mean = reduction == MEAN
        self._handles.append(node.register_prehook(term.hook()))
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


def _nll(node: Any, name: str, reduction: int) -> _Term:
    target, ignored = _saved(node, "target"), signed(node._saved_ignore_index)
    count = partial(_count, target, ignored, None if target is None else target._version)
    if reduction == MEAN:
        return _Reduced(name, lambda size: Weighed(count(), size))
    weights = _saved(node, "weight")  # of the classes
    total = _saved(node, "total_weight") if weights is not None and reduction != NONE else None

    def read_sum(size: Scalar) -> Weighed | None:
        targets = count()
        plain = None if total is None else readable(total)
        each = targets if plain is None else _number(plain)
        return None if each is None else Weighed(targets, size * each)

    def read_each(grad: torch.Tensor) -> Weighed | None:
        labels = None if target is None else readable(target)
        if labels is None or weights is not None:
            return None
        return _weighed(torch.where(labels != ignored, grad, 0))

    return _Each(name, read_each) if reduction == NONE else _Reduced(name, read_sum)


def _read_smoothing(node: Any) -> Callable[[torch.Tensor], Weighed]:
    """The part of a cross entropy that is spread over the classes."""
    dims = [signed(dim) for dim in getattr(node, "_saved_dim", ())]
    classes = math.prod(node._saved_self_sym_sizes[dim] for dim in dims)

    def read(grad: torch.Tensor) -> Weighed:
        return Weighed(0, _number(grad.sum(dtype=torch.float64).abs() * classes))

    return read


def _elements(node: Any, name: str, reduction: int) -> _Term:
    if reduction == NONE:
        return _Each(name, _weighed)
    inputs = _saved(node, "self")
    own = None if inputs is None else readable(inputs)
    elements = None if own is None else own.numel()

    def read(size: Scalar) -> Weighed | None:
        if elements is None:
            return None
        return Weighed(elements, size if reduction == MEAN else size * elements)

    return _Reduced(name, read)


def _weighed(grad: torch.Tensor) -> Weighed | None:
    """Of targets that are not reduced: those that have a weight."""
    if grad.numel() > ELEMENTS_MAX:
        return None
    return Weighed(_number(torch.count_nonzero(grad)), _number(grad.abs().sum(dtype=torch.float64)))


def _count(target: torch.Tensor | None, ignored: int, version: int | None) -> Scalar | None:
    if target is None or target._version != version:
        return None
    count = count_plain_targets(target, ignored)
    if count is not None:
        return count
    labels = readable(target)
    return None if labels is None else _number((labels != ignored).sum())


def _added(parts: list[Weighed | None]) -> Weighed | None:
    targets: Scalar | None = 0
    total: Scalar = 0.0
    for part in parts:
        if part is None:
            return None
        targets = None if targets is None or part.targets is None else targets + part.targets
        total = total + part.sum
    return Weighed(targets, total)


def _size(value: torch.Tensor | None) -> Scalar | None:
    """Of one element, without its sign."""
    kept = None if value is None else kept_value(value)
    if isinstance(kept, torch.Tensor):
        return kept.double().reshape(()).abs()
    return None if kept is None else abs(kept)


def _number(value: torch.Tensor) -> Scalar:
    """A number, or a copy on its device."""
    return value.item() if value.is_cpu else value.clone().reshape(())


def _saved(node: Any, name: str) -> torch.Tensor | None:
    """A saved tensor; None if it is stored elsewhere."""
    if is_elsewhere(getattr(node, f"_raw_saved_{name}")):
        return None
    found = getattr(node, f"_saved_{name}")
    return found if isinstance(found, torch.Tensor) else None


def _scales(following: list[Any], name: str) -> bool:
    """Whether a node with these inputs multiplies or divides by something without a gradient."""
    if name == "Div":
        return following[0] is not None and not any(following[1:])
    return name == "Mul" and following.count(None) == len(following) - 1


def _are_leaves(following: list[Any]) -> bool:
    return all(one is not None and _name(one) == LEAF for one in following)


def _name(node: Any) -> str:
    """The name of torch's function; of a Function in Python, which may have such a name, with what
    torch appends."""
    kind = type(node)
    known = NAMES.get(kind)
    if known is not None:
        return known
    name = kind.__name__
    if isinstance(node, BackwardCFunction):
        return "_DDPSink" if name == "_DDPSinkBackward" else name
    if name == "CppFunction":  # the class of several functions
        return str(node.name()).rpartition("::")[2].partition("Backward")[0]
    return NAMES.setdefault(kind, name.partition("Backward")[0])
