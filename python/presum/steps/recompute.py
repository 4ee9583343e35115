# SPDX-License-Identifier: Apache-2.0
"""Recomputes one micro-batch of a step and compares the gradients.

The program's loss is neither known nor needed: presum keeps the gradient that arrived at each
output of the model, and propagates it back from the recomputed outputs. Nothing of the program
changes: parameters are accessed through aliases, buffers and arguments are copied, and generators
are restored. If the forward pass writes to an attribute, or to an object inside one, nothing is
recomputed.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from presum.devices.readable import is_distributed, readable
from presum.devices.torch_pass import INTEGERS, fingerprint
from presum.fingerprints.families import WORD
from presum.fingerprints.states import elements
from presum.steps.arrivals import Arrivals
from presum.steps.held_state import PLAIN, Held, held_state, written
from presum.steps.setup import RecorderSetup
from presum.text import printable
from presum.torch_events.hooks import Hook

EQUAL, NOT_DETERMINISTIC, CORRUPTED, CHANGED, TRANSIENT = range(5)
ALIGNMENT = 64  # bytes: kernels choose the order of additions by alignment and strides
ROOM = 8  # a view that spans more than this many times its elements is not copied
COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional", "_dtensor")
HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    "_forward_hooks_with_kwargs",
)


class RefusedError(Exception):
    """Why a micro-batch cannot be recomputed."""


@dataclass
class Verdict:
    """The result of a recomputation."""

    answer: int
    different: list[str] = field(default_factory=list)  # parameters whose gradients differ

    def text(self, of: int) -> str:
        """The result as text for people."""
        names = ", ".join(self.different[:4]) + (", ..." if len(self.different) > 4 else "")
        return f"{len(self.different)} of {of}: {names}"


class Content(NamedTuple):
    """The contents of a tensor."""

    version: int
    hash: int
    sum: int  # of its elements as integers, mod 2^64

    def flipped(self, now: Content) -> bool:
        """Whether a single bit flipped while torch saw no write. Writes by the program that bypass
        torch change more."""
        distance = abs(now.sum - self.sum)
        distance = min(distance, (1 << 64) - distance)
        changed = now.version == self.version and now.hash != self.hash
        return changed and distance & (distance - 1) == 0


@dataclass
class KeptForward:
    """Everything that a forward pass depends on, in the state before it."""

    args: Any
    kwargs: Any
    given: list[tuple[torch.Tensor, Content]]  # the program's own tensors
    generators: list[tuple[Callable[[Any], object], Any]]
    state: list[Held]  # the modules' state besides parameters and buffers
    buffers: dict[str, torch.Tensor]
    autocast: list[tuple[str, bool, torch.dtype]]
    parameters: dict[str, Content]
    output_grads: dict[int, torch.Tensor] = field(default_factory=dict)  # by the output's place
    arrived: dict[int, torch.Tensor] = field(default_factory=dict)  # by the parameter's place
    handles: list[Any] = field(default_factory=list)


class Recomputation:
    """Keeps one micro-batch of one model, and recomputes it on request."""

    def __init__(self, setup: RecorderSetup) -> None:
        self._setup = setup
        self._arrivals = Arrivals(self._arrives)
        self._kept: KeptForward | None = None
        self._passes = 0
        self._forwards = 0
        self._refused = False

    def drop(self) -> None:
        """Drop the kept micro-batch, if there is one."""
        self._ignore()
        self._kept = None
        self._passes = self._forwards = 0

    def _ignore(self) -> None:
        """Stop recording gradients of the kept micro-batch."""
        kept = self._kept  # another thread may drop it
        for handle in kept.handles if kept else ():
            handle.remove()
        self._arrivals.remove()

    def _refuse(self, reason: object) -> None:
        self._setup.fingerprints.note_once(f"no micro-batch is recomputed: {reason}")
        self._say_refused(str(reason))
        self.drop()

    def _say_refused(self, reason: str) -> None:
        if not self._refused:
            self._refused = True
            self._setup.observer.fact("recompute_refused", printable(reason))
            self._setup.hello()

    # ---- the first computation

    def keep(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A training forward of the module is about to begin."""
        if self._kept is not None and self._passes == 0 and self._forwards > 0:
            self._forwards += 1  # both may go into one backward pass
            return
        self.drop()
        try:
            reason = _refusal(module)
            if reason:
                raise RefusedError(reason)
            self._kept = _keep(module, args, kwargs)
        except Exception as error:
            self._refuse(error)

    def gave(self, output: Any) -> None:
        """The kept forward has ended."""
        if self._kept is None or self._passes > 0:
            return
        self._forwards += 1
        if self._forwards > 1:
            return
        where = written(self._kept.state)
        if where:
            self._refuse(f"the forward pass writes to {where}")
            return
        leaves = tree_leaves(output)
        if _has_reentrant_checkpoint(leaves):
            self._refuse("it contains a reentrant checkpoint")
            return
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                hook = partial(self._comes, place)
                self._kept.handles.append(leaf.register_hook(hook))  # type: ignore[no-untyped-call]
        self._arrivals.listen(self._setup.alive())

    def _arrives(self, place: int, gradient: torch.Tensor) -> None:
        try:
            kept = self._kept  # another thread may drop it
            if kept is not None and place in kept.arrived:
                raise RefusedError("a parameter got two gradients in one backward pass")
            if kept is not None:
                kept.arrived[place] = gradient.detach().clone()
        except Exception as error:
            self._refuse(error)

    def _comes(self, place: int, gradient: torch.Tensor) -> None:
        """A gradient arrives at one of the outputs."""
        try:
            kept = self._kept
            if kept is not None:
                own = gradient if gradient.requires_grad else _as_it_lies(gradient)
                kept.output_grads[place] = own
        except Exception as error:
            self._refuse(error)

    def pass_ended(self) -> None:
        """A backward pass of the model has ended. The first one is that of the kept forward."""
        if self._kept is not None and self._passes == 0:
            self._passes = 1
            self._ignore()

    # ---- the second

    def verdict(self, module: nn.Module) -> Verdict | None:
        """Recompute the kept micro-batch. Call it outside the engine, before parameters change.
        None if that is impossible or nothing was kept."""
        kept = self._kept
        if kept is None or self._passes == 0:
            return None
        try:
            return self._judge(module, kept)
        except RefusedError as refused:
            self._refuse(refused)
        except Exception as error:
            self._refuse(f"it failed ({type(error).__name__}: {error})")
        finally:
            self.drop()
        return None

    def _judge(self, module: nn.Module, kept: KeptForward) -> Verdict:
        if self._forwards > 1:
            raise RefusedError("several forward passes go into one backward pass")
        if not kept.output_grads or any(
            gradient.requires_grad for gradient in kept.output_grads.values()
        ):
            raise RefusedError("the model's output got no gradient, or one with a graph of its own")
        now = _parameters(module)
        changed = [name for name in now if now[name] != kept.parameters[name]]
        if not all(kept.parameters[name].flipped(now[name]) for name in changed):
            raise RefusedError("the program changed parameters before the optimizer's step")
        inputs = [(before, _content(t)) for t, before in kept.given if before.version == t._version]
        inputs = [(before, after) for before, after in inputs if before != after]
        if not all(before.flipped(after) for before, after in inputs):
            raise RefusedError("the program wrote to an input before the optimizer's step")
        if changed or inputs:
            return Verdict(CHANGED, changed)
        first = self._again(module, kept)
        different = self._different(kept.arrived, first)
        if not different:
            return Verdict(EQUAL)
        second = self._again(module, kept)
        if not self._different(first, second):
            return Verdict(CORRUPTED, different)
        once = not self._different(kept.arrived, second)
        return Verdict(TRANSIENT if once else NOT_DETERMINISTIC, different)

    def _different(
        self, before: dict[int, torch.Tensor], now: dict[int, torch.Tensor]
    ) -> list[str]:
        places = sorted(before.keys() | now.keys())
        return [self._setup.names[p] for p in places if not _same(before.get(p), now.get(p))]

    def _again(self, module: nn.Module, kept: KeptForward) -> dict[int, torch.Tensor]:
        """Recompute the gradients of all parameters that get one."""
        named = dict(module.named_parameters())
        aliases = {n: p.detach().requires_grad_(p.requires_grad) for n, p in named.items()}
        places = {id(parameter): place for place, parameter in self._setup.alive()}
        wanted = [(places[id(p)], aliases[n]) for n, p in named.items() if id(p) in places]
        with _as_it_was(module, kept):
            state = {**aliases, **{name: _as_it_lies(b) for name, b in kept.buffers.items()}}
            args, kwargs = _copied(kept.args), _copied(kept.kwargs)
            leaves = tree_leaves(functional_call(module, state, args, kwargs))
            gradients = torch.autograd.grad(
                [leaves[place] for place in kept.output_grads],
                [alias for _, alias in wanted],
                list(kept.output_grads.values()),
                allow_unused=True,
            )
        pairs = zip(wanted, gradients, strict=True)
        return {place: gradient for (place, _), gradient in pairs if gradient is not None}


class _NoCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses collectives, since the other ranks recompute nothing."""

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in COLLECTIVES:
            raise RefusedError(f"the forward pass calls a collective ({func})")
        return func(*args, **(kwargs or {}))


def _refusal(module: nn.Module) -> str:
    """Why a module's forward cannot be recomputed; "" if it can, as far as known beforehand."""
    everywhere = vars(torch.nn.modules.module)
    if _has_hooks_of_others(everywhere.get(f"_global{kind}", {}) for kind in HOOKS):
        return "hooks are registered for all modules, and their effect is unknown"
    for name, part in module.named_modules():
        where = name or "the model"
        if any(_draws(value) for value in vars(part).values()):
            return f"{where} draws from its own generator"
        if isinstance(part, FSDPModule):
            return "FSDP2 gathers parameters in every forward pass"
        if getattr(part, "_compiled_call_impl", None) is not None or hasattr(part, "_orig_mod"):
            return f"{where} is compiled"
        if _has_hooks_of_others(getattr(part, kind, {}) for kind in HOOKS):
            return f"{where} has hooks, and their effect is unknown"
    for name, parameter in module.named_parameters():
        if is_distributed(parameter):
            return f"{name} is a DTensor"
        if parameter._backward_hooks:
            return f"{name} has a hook on its gradient"
    return ""


def _has_hooks_of_others(kinds: Iterable[dict[int, object]]) -> bool:
    return any(not isinstance(hook, (Hook, bool)) for hooks in kinds for hook in hooks.values())


def _draws(value: object) -> bool:
    if isinstance(value, (torch.Generator, random.Random)):
        return True
    return type(value).__module__.startswith("numpy.random")


def _has_reentrant_checkpoint(outputs: Sequence[Any]) -> bool:
    """The backward pass of a reentrant checkpoint would add to the program's own gradients."""
    nodes = [getattr(output, "grad_fn", None) for output in outputs]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        if node.name() == "CheckpointFunctionBackward":
            return True
        following = {one for one, _ in node.next_functions} - seen
        seen |= following
        nodes += following
    return False


def _keep(module: nn.Module, args: Any, kwargs: Any) -> KeptForward:
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    unknown = [leaf for leaf in leaves if not isinstance(leaf, (torch.Tensor, *PLAIN))]
    if unknown:
        raise RefusedError(f"an argument is a {type(unknown[0]).__name__}")
    if any(readable(tensor) is None for tensor in tensors):
        raise RefusedError("an argument is a tensor without memory of its own")
    return KeptForward(
        args=_copied(args),
        kwargs=_copied(kwargs),
        given=[(tensor, _content(tensor)) for tensor in tensors],
        generators=_generators(next(module.parameters()).device),
        state=held_state(module),
        buffers={name: _as_it_lies(buffer) for name, buffer in module.named_buffers()},
        autocast=[
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in {"cpu", next(module.parameters()).device.type}
        ],
        parameters=_parameters(module),
    )


def _copied(values: Any) -> Any:
    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return _as_it_lies(leaf).requires_grad_(leaf.requires_grad)

    return tree_map(copy, values)


def _as_it_lies(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides and alignment: with others, kernels may add in another order."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return tensor.clone()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in steps)
    if span > ROOM * tensor.numel():
        raise RefusedError("a tensor is a view of a much larger tensor")
    bytes_ = tensor.element_size()
    room = tensor.new_empty(span + ALIGNMENT // bytes_)
    first = (tensor.data_ptr() - room.data_ptr()) % ALIGNMENT // bytes_
    there = tensor.as_strided((span,), (1,))
    room[first : first + span].copy_(there)
    return room.as_strided(tensor.shape, tensor.stride(), first)


def _parameters(module: nn.Module) -> dict[str, Content]:
    return {name: _content(parameter) for name, parameter in module.named_parameters()}


def _content(tensor: torch.Tensor) -> Content:
    block = elements(tensor)
    if block is None or block.numel() == 0:
        return Content(tensor._version, 0, 0)
    total = int(block.view(INTEGERS[block.element_size()]).sum(dtype=torch.int64)) & WORD
    return Content(tensor._version, int(fingerprint(block)) & WORD, total)


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Whether they are equal bit for bit."""
    if a is None or b is None:
        return a is b
    if a.is_sparse or b.is_sparse:
        raise RefusedError("a gradient is sparse")
    a, b = a.detach().contiguous(), b.detach().contiguous()
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    word = INTEGERS[a.element_size()]
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.view(word), b.view(word))


def _generators(device: torch.device) -> list[tuple[Callable[[Any], object], Any]]:
    """Functions and states that restore each generator to its current state."""
    found: list[tuple[Callable[[Any], object], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (random.setstate, random.getstate()),
    ]
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        found.append((numpy.set_state, numpy.get_state()))
    if device.type == "cuda":
        state = torch.cuda.get_rng_state(device)
        found.append((lambda s: torch.cuda.set_rng_state(s, device), state))
    return found


@contextlib.contextmanager
def _as_it_was(module: nn.Module, kept: KeptForward) -> Iterator[None]:
    """Restores the kept generators and autocast; afterwards restores the generators' present
    state."""
    device = next(module.parameters()).device
    now = _generators(device)
    with contextlib.ExitStack() as stack:
        for kind, enabled, dtype in kept.autocast:
            stack.enter_context(
                torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False)
            )
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_NoCollectives())  # type: ignore[no-untyped-call]
        try:
            for restore, state in kept.generators:
                restore(state)
            yield
        finally:
            for restore, state in now:
                restore(state)
