# SPDX-License-Identifier: Apache-2.0
"""Parameters that two optimizers update."""

from __future__ import annotations

import weakref

from torch.optim import Optimizer

from presum.fingerprints.ties import listed
from presum.steps.setup import RecorderSetup
from presum.text import printable
from presum.torch_events.hooks import in_optimizer_step
from presum.torch_events.optimizers import parameters_of


class TwoOptimizers:
    """Parameters that two optimizers update in turn, by the steps of each that have a gradient.

    A step inside another optimizer's step, as in SAM, belongs to the outer optimizer. An optimizer
    that replaces another is not found: the first one does not step again.
    """

    def __init__(self, setup: RecorderSetup) -> None:
        self._setup = setup
        self._told = 0  # parameters
        self._places: dict[int, int] = {}  # by id
        self._steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._movers: dict[int, list[weakref.ref[Optimizer]]] = {}  # by place, the last one last
        self._in_two: dict[int, str] = {}
        self._depth = 0

    def begins(self, optimizer: Optimizer, *_: object) -> None:
        """A step of any optimizer of this process begins. Steps 1, 2, 4, 8, ... of each are
        examined."""
        self._depth += 1
        if self._depth > 1:
            return
        steps = self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        if steps & (steps - 1) == 0:
            self._look(optimizer)

    def ends(self, *_: object) -> None:
        """The step has ended."""
        self._depth -= 1

    def _look(self, optimizer: Optimizer) -> None:
        if not self._places:
            self._places = {id(parameter): place for place, parameter in self._setup.alive()}
        for parameter in parameters_of(optimizer):
            place = self._places.get(id(parameter))
            own = None if place is None else self._setup.parameters[place]()
            if place is not None and own is parameter and parameter.grad is not None:
                self._moves(optimizer, place)

    def _moves(self, optimizer: Optimizer, place: int) -> None:
        movers = [one for held in self._movers.get(place, ()) if (one := held()) is not None]
        if optimizer in movers and movers[-1] is not optimizer:
            two = sorted(type(one).__name__ for one in (movers[-1], optimizer))
            self._in_two.setdefault(place, " and ".join(two))
        movers = [*(one for one in movers if one is not optimizer), optimizer]
        self._movers[place] = [weakref.ref(one) for one in movers]

    def tell(self) -> None:
        """A forward pass begins: report the parameters of the first two such optimizers."""
        if self._depth and not in_optimizer_step():
            self._depth = 0  # a step has raised
        if len(self._in_two) == self._told:
            return
        self._told = len(self._in_two)
        first = next(iter(self._in_two.values()))
        names = [self._setup.names[place] for place, two in self._in_two.items() if two == first]
        self._setup.observer.fact("in_two_optimizers", printable(listed(names)))
        self._setup.observer.fact("two_optimizers", printable(first))
        self._setup.hello()
