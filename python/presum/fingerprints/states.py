# SPDX-License-Identifier: Apache-2.0
"""Hashes of parameters, buffers and optimizer state before a forward pass."""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from presum._core import EndedStep, Observer, StateKind, hash_memory, hash_plain
from presum.devices.blocks import block_of, dense, memory_of
from presum.devices.hashes import fingerprints
from presum.devices.readable import is_distributed, own_part, readable
from presum.devices.torch_pass import fingerprint
from presum.fingerprints.families import WORD, hash_text

SLICES = 25
OPTIMIZER_SLICES = 50
COUNT = (1 << 32) - 1  # the number under which a watched state reports how many tensors it has
SHARDS_MAX = (1 << 24) - 1
SHARDED_STATE = frozenset(["ZeroRedundancyOptimizer"])
SENTINELS = 2
SENTINEL_VALUES = 64


class NamedState(NamedTuple):
    """A tensor by its place in a module, because buffers are often replaced."""

    name: str
    owner: weakref.ref[nn.Module]
    where: str  # the owner's attribute
    key: str

    def tensor(self) -> torch.Tensor | None:
        owner = self.owner()
        found = None if owner is None else getattr(owner, self.where).get(self.key)
        return found if isinstance(found, torch.Tensor) else None


def named_states(
    module: nn.Module,
    watched: Collection[str],
    ignored: Collection[str],
    local: Sequence[str],
    families: Collection[str],
) -> list[NamedState]:
    """The state to hash besides the recorded parameters: frozen parameters and buffers, as
    requested.

    It excludes what the wrapper was told to ignore, and buffers whose name matches a pattern of
    ``local``.
    """
    found: list[NamedState] = []
    if "parameters" in families:
        own = _held(module, "_parameters", dict(module.named_parameters()))
        found += [held for held in own if held.name not in watched]
    if "buffers" in families:
        own = _held(module, "_buffers", dict(module.named_buffers()))
        found += [h for h in own if not any(re.search(pattern, h.name) for pattern in local)]
    return [held for held in found if held.name not in ignored]


def _held(module: nn.Module, where: str, wanted: dict[str, torch.Tensor]) -> list[NamedState]:
    found = []
    for prefix, part in module.named_modules():
        for key in getattr(part, where):
            name = f"{prefix}.{key}" if prefix else key
            if name in wanted:
                found.append(NamedState(name, weakref.ref(part), where, key))
    return found


class DueTensor(NamedTuple):
    """A tensor to hash, and its number among those of its kind."""

    of: StateKind
    number: int
    tensor: torch.Tensor
    name: str = ""  # of a watched or outside tensor


class HashedState(NamedTuple):
    """Identifies a hashed tensor."""

    of: StateKind
    number: int
    shard: int  # the part, from 1; 0: the whole
    name: str

    def tell(self, value: int, to: EndedStep | Observer) -> None:
        if self.name:
            to.watched(self.name, self.number, value, self.of, self.shard)
        else:
            to.state_sum(self.of, self.number, value, self.shard)


class LateStates(NamedTuple):
    """Tensors and their hashes, which may be on a device."""

    states: Sequence[HashedState]
    values: torch.Tensor | Sequence[int]

    def tell(self, to: EndedStep | Observer) -> None:
        """Report the hashes, once they are numbers."""
        for state, value in zip(self.states, self.values, strict=True):
            state.tell(int(value), to)


class StateSchedule:
    """Decides which tensors are hashed when: all at the first step, then one slice after another,
    and always the smallest parameter, buffer and outside parameter. Of an optimizer's state, one
    slice from the second step on."""

    def __init__(
        self,
        parameters: Sequence[weakref.ref[nn.Parameter]],
        buffers: Sequence[NamedState],
        optimizers: Sequence[weakref.ref[Optimizer]] = (),
        *,
        every: int,
    ) -> None:
        self._optimizers = [held for held in optimizers if not shards_state(held())]
        self._watched: dict[str, Callable[[], list[torch.Tensor]]] = {}
        self._outside: dict[str, weakref.ref[nn.Parameter]] = {}
        self._smallest_outside: int | None = None
        self._parameters = parameters
        self._buffers = buffers
        self._every = every
        spacing = max(1, len(parameters) // SENTINELS)
        self._sentinels = parameters[::spacing]
        self._smallest = _smallest(parameters)
        self._smallest_buffer = _smallest(
            [held.tensor if held.where == "_buffers" else _none for held in buffers]
        )
        self._as_stepped: list[tuple[int, int, int]] | None = None
        self._values: list[torch.Tensor | int | None] = []
        self._places: list[tuple[int, int]] = []  # addresses and elements
        self._spans: list[int] = []  # bytes hashed there; 0 outside host memory

    def watch(self, name: str, tensors: Callable[[], list[torch.Tensor]]) -> None:
        """Add other state that must be equal on all ranks."""
        self._watched[name] = tensors

    def due(self, of: StateKind, step: int) -> Iterator[DueTensor]:
        """The tensors of one kind to hash at a step; frozen parameters come with the buffers."""
        number = step // self._every
        if of is StateKind.OPTIMIZER:
            yield from self._optimizer_due(number)
            return
        if of is StateKind.WATCHED:
            yield from self._watched_due(step)
            return
        if of is StateKind.OUTSIDE:
            yield from self._outside_due(step, number)
            return
        count = len(self._parameters if of is StateKind.PARAMETERS else self._buffers)
        smallest = self._smallest if of is StateKind.PARAMETERS else self._smallest_buffer
        for index in _with(_slice(step, number, count), smallest):
            held = (
                self._parameters[index]
                if of is StateKind.PARAMETERS
                else self._buffers[index].tensor
            )()
            kind = of
            if of is StateKind.BUFFERS and self._buffers[index].where == "_parameters":
                kind = StateKind.FROZEN
            if held is not None:
                yield DueTensor(kind, index, held)

    def _optimizer_due(self, number: int) -> Iterator[DueTensor]:
        if number == 0:
            return
        optimizers = [optimizer for held in self._optimizers if (optimizer := held()) is not None]
        for index in range(number % OPTIMIZER_SLICES, len(self._parameters), OPTIMIZER_SLICES):
            parameter = self._parameters[index]()
            if parameter is not None:
                for state in states_of(parameter, optimizers):
                    yield DueTensor(StateKind.OPTIMIZER, index, state)

    def outside(self, parameters: dict[str, weakref.ref[nn.Parameter]]) -> bool:
        """Set the trained parameters that no recorded reduction takes, by name. Returns whether
        there are new names."""
        new = not parameters.keys() <= self._outside.keys()
        self._outside = dict(sorted(parameters.items()))
        self._smallest_outside = _smallest([*self._outside.values()])
        return new

    def _outside_due(self, step: int, number: int) -> Iterator[DueTensor]:
        names = [*self._outside]
        for index in _with(_slice(step, number, len(names)), self._smallest_outside):
            held = self._outside[names[index]]()
            if held is not None:
                yield DueTensor(StateKind.OUTSIDE, 0, held, names[index])

    def _watched_due(self, step: int) -> Iterator[DueTensor]:
        for name, held in self._watched.items():
            tensors = held()
            if not any(map(is_distributed, tensors)):
                yield DueTensor(StateKind.WATCHED, COUNT, torch.tensor([len(tensors)]), name)
            for index in _slice(step, step // self._every, len(tensors)):
                yield DueTensor(StateKind.WATCHED, index, tensors[index], name)

    def stepped(self) -> None:
        """Remember the parameters after the optimizer step."""
        self._as_stepped = self._versions()
        places = [(place, count) for place, count, _ in self._as_stepped]
        if places == self._places and all(self._spans):
            addresses = (place for place, _ in places)
            self._values = [*map(hash_memory, addresses, self._spans)]
            return
        self._values = [_first_values(parameter) for parameter in self._alive()]
        self._places = places
        self._spans = [
            _span(parameter) if isinstance(value, int) else 0
            for parameter, value in zip(self._alive(), self._values, strict=True)
        ]

    def marks(self) -> list[object]:
        """Marks that are equal as long as the parameters are not written to, as far as visible
        without synchronizing with their device."""
        found: list[object] = [*self._versions()]
        if self._spans and all(self._spans):
            plain = (p for p in self._alive() if p.is_cpu and p.is_contiguous())
            found += [hash_memory(p.data_ptr(), _span(p)) for p in plain]
        return found

    def as_stepped(self) -> bool:
        """Whether the parameters are unchanged since the last optimizer step. Synchronizes with
        their device: writes through ``.data`` leave no trace except the values."""
        if self._as_stepped is None or self._as_stepped != self._versions():
            return False
        now = [_first_values(parameter) for parameter in self._alive()]
        return len(now) == len(self._values) and all(map(_same, self._values, now))

    def _versions(self) -> list[tuple[int, int, int]]:
        return [(p.data_ptr(), p.numel(), p._version) for p in self._alive()]

    def _alive(self) -> Iterator[nn.Parameter]:
        return (p for held in self._sentinels if (p := held()) is not None)


def states_of(parameter: nn.Parameter, optimizers: Sequence[Optimizer]) -> Iterator[torch.Tensor]:
    """The optimizers' state of a parameter, in the same order on all ranks."""
    for optimizer in optimizers:
        state = optimizer.state.get(parameter, {})
        for key in sorted(state, key=str):
            if isinstance(state[key], torch.Tensor):
                yield state[key]


def shards_state(optimizer: Optimizer | None) -> bool:
    """Whether each rank keeps a part of the state of whole parameters."""
    return not SHARDED_STATE.isdisjoint(base.__name__ for base in type(optimizer).__mro__)


def _first_values(tensor: torch.Tensor) -> torch.Tensor | int | None:
    """A copy of the first values, if they can be read without a collective; for contiguous host
    memory their hash."""
    plain = None if is_distributed(tensor) else readable(tensor)
    if plain is None:
        return None
    if plain.is_cpu and plain.is_contiguous():
        return hash_memory(plain.data_ptr(), _span(plain))
    return dense(plain.detach()).reshape(-1)[:SENTINEL_VALUES].clone()


def _span(tensor: torch.Tensor) -> int:
    """The bytes of its first values."""
    return min(tensor.numel(), SENTINEL_VALUES) * tensor.element_size()


def _same(a: torch.Tensor | int | None, b: torch.Tensor | int | None) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    return a == b if isinstance(a, int) or isinstance(b, int) else a is b


def elements(tensor: torch.Tensor) -> torch.Tensor | None:
    """Its values as one block of elements of 2, 4 or 8 bytes. None if there is no such block, and
    for a DTensor, because it is unknown which ranks should hold the same part."""
    return None if is_distributed(tensor) else _block(tensor)


def _block(tensor: torch.Tensor) -> torch.Tensor | None:
    block = block_of(tensor)
    if block is not None and block.element_size() == 1:
        return block.view(torch.uint8).to(torch.int16)
    return block


def _none() -> None:
    """Takes the place of a tensor that is not meant."""


def _smallest(tensors: Sequence[Callable[[], torch.Tensor | None]]) -> int | None:
    """The index of the tensor with the fewest elements, the first of several; None if there is
    none. Counters (for example of batches) are excluded."""
    sizes = [
        (x.numel(), index)
        for index, held in enumerate(tensors)
        if (x := held()) is not None and x.is_floating_point()
    ]
    return min(sizes)[1] if sizes else None


def _slice(step: int, number: int, count: int) -> range:
    first, stride = (0, 1) if step == 0 else (number % SLICES, SLICES)
    return range(first, count, stride)


def _with(indices: range, smallest: int | None) -> list[int]:
    return sorted({*indices} if smallest is None else {*indices, smallest})


def _part(due: DueTensor) -> tuple[HashedState, torch.Tensor] | None:
    """This rank's part of a tensor, if it can be read."""
    shard = shard_of(due.tensor)
    block = None if shard is None else _block(own_part(due.tensor))
    if shard is None or block is None or (shard and not block.numel()):
        return None  # an empty shard never changes
    return HashedState(due.of, due.number, shard, due.name), block


def shard_of(tensor: Any) -> int | None:
    """The part of a DTensor that this rank holds, as a number from 1 that is equal on ranks with
    the same part. 0 for the whole tensor, None for a partial sum or nothing."""
    if not is_distributed(tensor):
        return 0
    return _shard(tensor.device_mesh, tuple(tensor.placements))


@functools.lru_cache(maxsize=1024)
def _shard(mesh: Any, placements: tuple[Any, ...]) -> int | None:
    """A number for the mesh, the cut and the part: tensors of one layer can be on several
    meshes."""
    coordinates = mesh.get_coordinate()
    if coordinates is None or any(placement.is_partial() for placement in placements):
        return None
    cut = [dim for dim, placement in enumerate(placements) if not placement.is_replicate()]
    if all(mesh.size(dim) == 1 for dim in cut):
        return 0
    place = [coordinates[dim] for dim in cut]
    text = f"{mesh.mesh.tolist()} {placements} {place}"
    return 1 + hash_text(text) % SHARDS_MAX


def tensors_of(watched: object) -> Callable[[], list[torch.Tensor]]:
    """The tensors that a program watches: those of a module (parameters and buffers), or given
    ones.

    Raises:
        ValueError: neither.
    """
    if isinstance(watched, nn.Module):
        module = weakref.ref(watched)
        if not [*watched.parameters(), *watched.buffers()]:
            raise ValueError(f"presum: watch: {type(watched).__name__} holds no tensors")
        return lambda: [] if (m := module()) is None else [*m.parameters(), *m.buffers()]
    given = watched.values() if isinstance(watched, Mapping) else watched
    listed = list(given) if isinstance(given, Iterable) else []
    wrong = next((x for x in listed if not isinstance(x, torch.Tensor)), None)
    if isinstance(watched, (str, torch.Tensor)) or not listed or wrong is not None:
        what = type(watched if wrong is None else wrong).__name__
        raise ValueError(f"presum: watch needs a module or at least one tensor, not {what}")
    return lambda: listed


def report_on_host(observer: Observer, due: Iterable[DueTensor]) -> None:
    for one in due:
        named = bool(one.name)  # it may be in any memory
        if not named and hash_plain(observer, one.of, one.number, one.tensor):
            continue
        found = _part(one)
        if found is None:
            continue
        state, block = found
        if named:
            state.tell(int(fingerprint(block)) & WORD, observer)
        else:
            memory = memory_of(block)
            observer.state(one.of, one.number, *memory, block.element_size(), state.shard)


def queue_on_device(due: Iterable[DueTensor], device: torch.device) -> list[LateStates]:
    """Queue the hashes on the tensors' devices. The hash of a tensor in host memory, in a model on
    a device, is a number at once: sending it to the device and back would synchronize."""
    blocks: dict[tuple[torch.device, int], list[torch.Tensor]] = {}
    states: dict[tuple[torch.device, int], list[HashedState]] = {}
    for state, block in filter(None, map(_part, due)):
        kind = block.device, block.element_size()
        blocks.setdefault(kind, []).append(block)
        states.setdefault(kind, []).append(state)
    return [LateStates(states[kind], _hashes(blocks[kind], device)) for kind in blocks]


def _hashes(blocks: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor | list[int]:
    found = fingerprints(blocks)
    if found.is_cpu and device.type != "cpu":
        return [value & WORD for value in found.tolist()]
    return found
