# SPDX-License-Identifier: Apache-2.0
"""The hook of one parameter: what it tells of, and that nothing comes out of it."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from typing import Any

import pytest
import torch

from observers import make_observer
from presum._core import Observer, ParameterHook, PassFlags


class Listener(PassFlags):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []
        self.raises: BaseException | None = None
        self.captured = False

    def is_captured(self) -> bool:
        return self.captured

    def before_backward(self) -> None:
        self.told.append("begins")
        self.in_backward = True
        if self.raises is not None:
            raise self.raises

    def accumulated(self, index: int) -> None:
        self.told.append(index)

    def read(self, index: int, grad: torch.Tensor, *, reduced: bool) -> None:
        self.told.append((index, grad, reduced))

    def fail(self, error: Exception) -> None:
        self.off = True
        self.told.append(error)


def reading() -> tuple[Listener, Observer]:
    """Within a pass whose sums are read."""
    listener, observer = Listener(), make_observer([("weight", 4, "")])
    listener.in_backward = listener.reads_sums = True
    observer.begin_step(0)
    return listener, observer


def parameter(gradient: torch.Tensor | None) -> torch.nn.Parameter:
    found = torch.nn.Parameter(torch.zeros(4))
    found.grad = gradient
    return found


def test_a_pass_begins_with_the_first_gradient_only() -> None:
    listener = Listener()
    hooks = [ParameterHook(listener, place, None) for place in range(3)]
    for hook in hooks:
        hook(parameter(torch.ones(4)))
    assert listener.told == ["begins"] and listener.arrivals == 3


def test_what_grad_holds_is_read_in_place_and_all_else_by_the_listener() -> None:
    listener, observer = reading()
    hook = ParameterHook(listener, 0, observer)
    hook(parameter(None))
    assert not observer.seen(0)
    hook(parameter(torch.ones(4)))
    assert observer.seen(0) and listener.told == []
    strided = torch.ones(8)[::2]
    hook(parameter(strided))
    (index, grad, reduced) = listener.told.pop()
    assert (index, reduced) == (0, False) and torch.equal(grad, strided)
    ParameterHook(listener, 0, None)(parameter(torch.ones(4)))  # as on a device
    assert len(listener.told) == 1


@pytest.mark.parametrize("left", [0, 15 * 4])
def test_a_gradient_whose_storage_was_freed_or_cut_is_the_listeners(left: int) -> None:
    listener, observer = reading()
    whole = torch.ones(16)
    held = parameter(whole[12:])
    whole.untyped_storage().resize_(left)
    ParameterHook(listener, 0, observer)(held)
    assert len(listener.told) == 1 and not observer.seen(0)


def test_arrivals_are_told_where_they_are_read() -> None:
    listener = Listener()
    listener.in_backward = listener.reads_arrivals = True
    ParameterHook(listener, 7, None)(parameter(torch.ones(4)))
    assert listener.told == [7]


def test_an_error_ends_the_recording_and_goes_no_further() -> None:
    listener = Listener()
    listener.raises = ValueError("ours")
    hook = ParameterHook(listener, 0, None)
    hook(parameter(torch.ones(4)))
    assert listener.told == ["begins", listener.raises]
    hook(parameter(torch.ones(4)))
    assert len(listener.told) == 2  # it is off


def test_an_unknown_parameter_is_such_an_error() -> None:
    listener, observer = reading()
    ParameterHook(listener, 3, observer)(parameter(torch.ones(4)))
    assert "parameter 3" in str(listener.told[0])


def test_what_interrupts_the_program_does_so() -> None:
    listener = Listener()
    listener.raises = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        ParameterHook(listener, 0, None)(parameter(torch.ones(4)))


def test_while_a_graph_is_captured_nothing_is_told() -> None:
    listener = Listener()
    listener.captured = True
    ParameterHook(listener, 0, None)(parameter(torch.ones(4)))
    assert listener.told == []


def test_copies_and_pickles_do_nothing_and_need_no_presum() -> None:
    hook = ParameterHook(Listener(), 0, None)
    for other in (copy.copy(hook), copy.deepcopy(hook), pickle.loads(pickle.dumps(hook))):
        assert not isinstance(other, ParameterHook)
        assert not other(parameter(torch.ones(4)))
    assert b"presum" not in pickle.dumps(hook)
    held = parameter(torch.ones(4))
    held.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    torch.save(held, io.BytesIO())
    ParameterHook()(held)


def test_a_hook_holds_its_listener_and_no_longer_than_it_lives() -> None:
    listener = Listener()
    hook, alive = ParameterHook(listener, 0, None), weakref.ref(listener)
    del listener
    assert alive() is not None
    del hook
    assert alive() is None


def test_a_listener_that_holds_its_hook_is_collected() -> None:
    listener = Listener()
    hook = ParameterHook(listener, 0, None)
    held = parameter(torch.ones(4))
    hook(held)
    listener.told.append(hook)
    assert held.grad is not None
    gone = [weakref.ref(listener), weakref.ref(hook), weakref.ref(held.grad)]
    del listener, hook, held
    gc.collect()
    assert [reference() for reference in gone] == [None, None, None]
