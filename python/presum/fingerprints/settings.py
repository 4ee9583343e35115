# SPDX-License-Identifier: Apache-2.0
"""Settings that ranks must share: optimizer, modes and dropout, dtypes, determinism."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer

from presum._core import hash_bytes
from presum.devices.readable import is_distributed
from presum.fingerprints.families import KIND, WORD, LateValues, Values, hash_text, real_bits

REFRESHED_EVERY = 25  # steps between updates of the list of modules and parameters
MODES_EVERY = 5
GROUPS_AT_ONCE = 64
ITEMS_MAX = 16  # of a list in the settings
PLAIN = (float, bool, int, str, type(None))
GROUPS_NAMED = 8  # in the first packet
RATES = ("p", "drop_prob", "dropout", "attention_dropout", "dropout_p", "attn_pdrop")


class OptimizerSettings:
    """Classes and hyperparameters of a model's optimizers. Of many parameter groups it examines 64
    per step, the next 64 each time, the same on all ranks."""

    def __init__(
        self, optimizers: Sequence[Optimizer], parameters: Sequence[weakref.ref[nn.Parameter]]
    ) -> None:
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._watched = {id(p) for held in parameters if (p := held()) is not None}
        # per group: its parameters, and recorded ones among them
        self._held: list[tuple[int, int]] = []
        kinds = map(type, optimizers)
        self._class = hash_text(" ".join(f"{k.__module__}.{k.__qualname__}" for k in kinds))
        self._seen: list[tuple[Any, ...]] = []  # last seen settings per group
        self._hashes: list[int] = []  # of the settings
        self._sum = 0  # of the hashes

    def __call__(self, turn: int) -> Values:
        """``turn`` counts the recorded steps."""
        alive = [optimizer for one in self._optimizers if (optimizer := one()) is not None]
        groups = alive[0].param_groups if len(alive) == 1 else _together(alive)
        if len(groups) != len(self._hashes):
            self._seen, self._hashes, self._sum = [()] * len(groups), [0] * len(groups), 0
            self._held = [(0, 0)] * len(groups)
        for index in _due(turn, len(groups)):
            self._look_at(index, groups[index])
        values = [
            (KIND["optimizer_class"], self._class),
            (KIND["optimizer_settings"], (self._sum + len(groups)) & WORD),
        ]
        for kind, name in (("learning_rate", "lr"), ("weight_decay", "weight_decay")):
            value = _plain(groups[0].get(name)) if groups else None
            if isinstance(value, (int, float)):
                values.append((KIND[kind], real_bits(value)))
        return values

    def _look_at(self, index: int, group: dict[str, Any]) -> None:
        settings = (
            ("parameters held", self._watched_of(index, group["params"])),
            *_settings(group),
        )
        if settings != self._seen[index]:
            self._seen[index] = settings
            self._sum -= self._hashes[index]
            self._hashes[index] = hash_text(f"{index} {sorted(settings)!r}")
            self._sum += self._hashes[index]

    def _watched_of(self, index: int, parameters: list[nn.Parameter]) -> int:
        """How many of the model's parameters a group holds: it may also hold a rank's own experts
        or tables."""
        count, watched = self._held[index]
        if count != len(parameters):
            watched = sum(id(one) in self._watched for one in parameters)
            self._held[index] = len(parameters), watched
        return watched


class FrozenLayers:
    """Layers that the optimizers do not move, as facts: with a learning rate of 0, in no parameter
    group, with one element (which may be at a bound), or without a gradient when the optimizer
    steps."""

    def __init__(
        self,
        parameters: Sequence[weakref.ref[nn.Parameter]],
        optimizers: Sequence[Optimizer],
        layer_of: Callable[[int], str],
    ) -> None:
        self._parameters = parameters
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._layer_of = layer_of
        # By optimizer: its steps, and the parameters without gradients in the last two checks.
        self._steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._gone: weakref.WeakKeyDictionary[Optimizer, deque[set[int]]] = (
            weakref.WeakKeyDictionary()
        )

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        """Check in two of every REFRESHED_EVERY steps which gradients are missing. If all are, it
        is hardly intended."""
        steps = self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        if steps % REFRESHED_EVERY not in (2, 3):
            return
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        own = {i: p for i, of in enumerate(self._parameters) if (p := of()) is not None}
        own = {i: p for i, p in own.items() if id(p) in held}
        gone = {i for i, p in own.items() if p.grad is None}
        seen = self._gone.setdefault(optimizer, deque(maxlen=2))
        seen.append(gone if len(gone) < len(own) else set())

    def _taken(self) -> set[int]:
        """The parameters whose gradient was missing each time."""
        return {i for seen in self._gone.values() if len(seen) == 2 for i in seen[0] & seen[1]}

    def __call__(self) -> dict[str, str]:
        alive = [optimizer for one in self._optimizers if (optimizer := one()) is not None]
        moves = {
            id(p): not isinstance(rate := group.get("lr"), (int, float)) or rate != 0
            for group in _together(alive)
            for p in group["params"]
        }
        taken = self._taken()
        layers: dict[str, list[tuple[bool | None, int, bool]]] = {}
        for index, held in enumerate(self._parameters):
            if (parameter := held()) is not None:
                known = (moves.get(id(parameter)), parameter.numel(), index in taken)
                layers.setdefault(self._layer_of(index), []).append(known)
        return {
            "layers_at_rest": _layers_where_all(layers, lambda moves, *_: moves is False),
            "layers_of_no_optimizer": _layers_where_all(layers, lambda moves, *_: moves is None),
            "layers_of_one_element": _layers_where_all(layers, lambda _, count, __: count == 1),
            "layers_without_gradient": _layers_where_all(layers, lambda *known: known[2]),
        }


def _layers_where_all(
    layers: dict[str, list[tuple[bool | None, int, bool]]],
    holds: Callable[[bool | None, int, bool], bool],
) -> str:
    """Names of the layers for all of whose parameters ``holds`` is true."""
    return ", ".join(name for name, of in layers.items() if all(holds(*one) for one in of))


def _together(optimizers: Sequence[Optimizer]) -> list[dict[str, Any]]:
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def _due(turn: int, groups: int) -> Iterator[int]:
    if groups <= GROUPS_AT_ONCE:
        return iter(range(groups))
    first = turn * GROUPS_AT_ONCE
    return (at % groups for at in range(first, first + GROUPS_AT_ONCE))


def _settings(group: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """In the group's order. Parameter names are excluded: the model is already compared by name."""
    for name, value in group.items():
        if name not in ("params", "param_names"):
            yield name, value if type(value) in PLAIN else _plain(value)


def optimizer_facts(
    optimizers: Sequence[Optimizer], watched: Collection[torch.Tensor] = ()
) -> dict[str, str]:
    """Hyperparameters of the first parameter groups as text, for the first packet, and the number
    of recorded parameters in all groups."""
    known = set(map(id, watched))
    groups = _together(optimizers)
    facts = {"parameters held": sum(id(p) in known for group in groups for p in group["params"])}
    for where, group in islice(_named_groups(optimizers), GROUPS_NAMED):
        facts |= {f"{name}{where}": v for name, v in _settings(group) if v is not None}
    return {f"optimizer.{name}": str(value) for name, value in facts.items()}


def _named_groups(optimizers: Sequence[Optimizer]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each parameter group after the words that tell it from the first one."""
    names = [type(optimizer).__name__ for optimizer in optimizers]
    for number, optimizer in enumerate(optimizers):
        name = names[number] if names.count(names[number]) == 1 else f"{names[number]} {number + 1}"
        for place, group in enumerate(optimizer.param_groups):
            words = [name] if len(optimizers) > 1 else []
            words += [f"param_groups[{place}]"] if place > 0 else []
            yield f" of {'.'.join(words)}" if words else "", group


def _plain(value: Any) -> Any:
    """A number or text unchanged, or a number in host memory; None for values without a short
    text."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, (tuple, list)):
        return [*map(_plain, value[:ITEMS_MAX]), *([len(value)] if len(value) > ITEMS_MAX else [])]
    if isinstance(value, torch.Tensor) and value.is_cpu and value.numel() == 1:
        return value.item()
    return None


class Modes:
    """Which modules train, and the dropout rates: the largest active rate at every step, modes and
    rates of all modules at every fifth. ``turn`` counts the recorded steps, equally on all ranks;
    the result depends only on it and the model."""

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)
        self._modules: list[weakref.ref[nn.Module]] = []
        self._dropouts: list[tuple[weakref.ref[nn.Module], str]] = []
        self._age = 0

    def __call__(self, turn: int) -> Values:
        module = self._module()
        if module is None:
            return []
        if self._age % REFRESHED_EVERY == 0:
            inside = [(weakref.ref(part), _rates(part)) for part in module.modules()]
            self._modules = [part for part, _ in inside]
            self._dropouts = [(part, name) for part, names in inside for name in names]
        self._age += 1
        dropouts = [(part, name) for held, name in self._dropouts if (part := held()) is not None]
        rates = [float(getattr(part, name, 0.0)) for part, name in dropouts]
        active = [rate for rate, (part, _) in zip(rates, dropouts, strict=True) if part.training]
        values = [
            (KIND["mode"], int(module.training)),
            (KIND["dropout"], real_bits(max(active, default=0.0))),
        ]
        if turn % MODES_EVERY == 0:
            trains = [part.training for held in self._modules if (part := held()) is not None]
            values.append((KIND["modes"], hash_bytes(bytes(trains))))
            values.append((KIND["dropouts"], hash_text(repr(rates))))
        return values


def _rates(module: nn.Module) -> list[str]:
    """The attributes of a module that are dropout rates."""
    called = type(module).__name__.lower()
    drops = isinstance(module, _DropoutNd) or "drop" in called or "stochasticdepth" in called
    names = RATES if drops else RATES[2:]
    return [name for name in names if type(vars(module).get(name)) in (int, float)]


class NormBatches:
    """The number of batches that the model's first BatchNorm has seen. On a device, a copy that is
    read later, without synchronization."""

    def __init__(self, module: nn.Module) -> None:
        self._held: weakref.ref[nn.Module] | None = None
        for part in module.modules():
            if isinstance(getattr(part, "num_batches_tracked", None), torch.Tensor):
                self._held = weakref.ref(part)
                break

    def __call__(self) -> LateValues:
        part = self._held() if self._held is not None else None
        count = getattr(part, "num_batches_tracked", None)
        if not isinstance(count, torch.Tensor) or is_distributed(count) or count.numel() != 1:
            return []
        if count.is_cpu:
            return [(KIND["norm_batches"], int(count))]
        return [(KIND["norm_batches"], count.detach().reshape(1).to(torch.int64, copy=True))]


class Dtypes:
    """Dtypes of the parameters, and of autocast if the forward pass uses it."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._module = weakref.ref(module)
        self._device = device.type
        self._parameters = ""
        self._age = 0

    def __call__(self) -> Values:
        module = self._module()
        if self._age % REFRESHED_EVERY == 0 and module is not None:
            self._parameters = ",".join(str(p.dtype) for p in module.parameters())
        self._age += 1
        autocast = ""
        if torch.is_autocast_enabled(self._device):
            autocast = str(torch.get_autocast_dtype(self._device))
        return [(KIND["dtype"], hash_text(f"{self._parameters} {autocast}"))]


def determinism() -> Values:
    """Flags that determine whether and how exactly a computation repeats."""
    return [(KIND["determinism"], hash_text(repr([_answer(flag) for flag in _FLAGS])))]


_FLAGS: tuple[Callable[[], object], ...] = (
    torch.are_deterministic_algorithms_enabled,
    torch.get_float32_matmul_precision,
    lambda: torch.backends.cudnn.deterministic,
    lambda: torch.backends.cudnn.benchmark,
    torch._C._get_cublas_allow_tf32,
    torch._C._get_cudnn_allow_tf32,
)


def _answer(flag: Callable[[], object]) -> object:
    try:
        return flag()
    except Exception:  # torch refuses if old and new names of a flag were mixed
        return None
