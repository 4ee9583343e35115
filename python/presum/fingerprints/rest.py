# SPDX-License-Identifier: Apache-2.0
"""Parameters that a program moves for a forward pass, and moves back before the optimizer step."""

from __future__ import annotations

import torch

from presum._core import StateKind
from presum.fingerprints.families import KIND, WORD, LateValues
from presum.fingerprints.states import StateSchedule, queue_on_device


class RestingParameters:
    """Decides whether hashed parameters are those that the optimizer left. If the program has
    written to them since, their earlier hash is reported too: noise of each rank that is removed
    again (SAM, weight noise) leaves them equal on all ranks."""

    def __init__(self, states: StateSchedule, device: torch.device, *, sees_steps: bool) -> None:
        """``sees_steps``: whether steps of the optimizers that move the parameters are seen."""
        self._states = states
        self._sees_steps = sees_steps
        self._device = device
        self._turn = -1
        self._waits = False  # a hash waits for the end of its step
        self._marks: list[object] = []  # at the time of the hash
        self._left: list[object] = []  # by the last optimizer step
        self._moves: bool | None = None  # the program moves them; unknown before its second step
        # after the step, and for which turn
        self._hash: tuple[int, int | torch.Tensor] | None = None

    def stands(self, turn: int) -> bool:
        """A forward pass of the turn begins. Returns whether the earlier hash of this step stays
        valid, because the parameters were moved since."""
        marks = self._states.marks()
        if self._sees_steps and self._waits and self._marks != marks:
            return True
        self._waits = True
        if self._left:
            self._moves = bool(self._moves) or self._left != marks
        self._turn, self._marks = turn, marks
        return False

    def values(self) -> LateValues:
        """The fingerprints of the current turn."""
        moved = bool(self._left) and self._left != self._marks
        if not moved or self._hash is None or self._hash[0] != self._turn:
            return []
        return [(KIND["as_stepped"], self._hash[1])]

    def taken(self) -> None:
        """The step has ended, and its packet has the hash."""
        self._waits = False

    def stepped(self, turn: int, *, recorded: bool) -> None:
        """The optimizer has stepped. This turn is next; ``recorded``: whether it is recorded."""
        self._left = self._states.marks()
        self._waits = False
        asked = recorded and self._moves is not False
        found = self._hash_of(turn) if asked else None
        self._hash = None if found is None else (turn, found)

    def _hash_of(self, turn: int) -> int | torch.Tensor | None:
        """One number over everything that is hashed then. None if ranks hold parts of it."""
        total: int | torch.Tensor = 0
        for late in queue_on_device(self._states.due(StateKind.PARAMETERS, turn), self._device):
            if any(state.shard for state in late.states):
                return None
            values = late.values
            total = total + (values.sum() if isinstance(values, torch.Tensor) else sum(values))
        on_device = isinstance(total, torch.Tensor) and not total.is_cpu
        return total if on_device else int(total) & WORD
