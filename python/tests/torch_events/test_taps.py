# SPDX-License-Identifier: Apache-2.0
"""Functions that others are told of do what they did, and leave no frame."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import threading
import traceback
import types
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.autograd import backward

from presum._core import Tap
from presum.torch_events.taps import TAPS, TappedFunction, Taps


class Owner:
    def method(self, x: int, *, factor: int = 2) -> int:
        """What it does."""
        if x < 0:
            raise ValueError("negative")
        warnings.warn("from inside", stacklevel=2)
        return x * factor

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


@pytest.fixture
def told() -> list[Any]:
    return []


@pytest.fixture
def tapped(told: list[Any]) -> Iterator[TappedFunction]:
    tap = TappedFunction(
        Owner,
        "method",
        before=lambda *args, **kwargs: told.append(("before", args[1:], kwargs)),
        after=lambda result, *args, **kwargs: told.append(("after", result, args[1:], kwargs)),
        always=lambda: told.append("always"),
    )
    tap.apply()
    yield tap
    tap.undo()


@pytest.mark.filterwarnings("ignore:from inside")
def test_who_listens_is_told_and_the_result_is_the_function_s(
    tapped: TappedFunction, told: list[Any]
) -> None:
    assert Owner().method(3, factor=5) == 15
    assert told == [
        ("before", (3,), {"factor": 5}),
        ("after", 15, (3,), {"factor": 5}),
        "always",
    ]


def test_an_exception_passes_through_without_a_frame(
    tapped: TappedFunction, told: list[Any]
) -> None:
    with pytest.raises(ValueError, match="negative") as caught:
        Owner().method(-1)
    names = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert names == [test_an_exception_passes_through_without_a_frame.__name__, "method"]
    assert told == [("before", (-1,), {}), "always"]


def test_a_warning_points_at_the_caller_s_line(tapped: TappedFunction) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Owner().method(1)
        line = sys._getframe().f_lineno - 1
    assert [(w.filename, w.lineno) for w in caught] == [(__file__, line)]


def test_it_looks_like_the_function(tapped: TappedFunction) -> None:
    assert inspect.signature(Owner.method) == inspect.signature(vars(Owner)["method"].__wrapped__)
    assert "What it does." in (Owner.method.__doc__ or "") and Owner.method.__name__ == "method"
    assert "negative" in inspect.getsource(Owner.method)
    assert isinstance(Owner().method, types.MethodType)


@pytest.mark.filterwarnings("ignore:from inside")
def test_undone_it_is_the_function_itself(told: list[Any]) -> None:
    original = vars(Owner)["method"]
    tap = TappedFunction(Owner, "method", always=lambda: told.append("always"))
    tap.apply()
    kept = Owner.method
    tap.undo()
    assert vars(Owner)["method"] is original
    assert kept(Owner(), 2) == 4 and told == []  # who has taken it keeps the function
    tap.apply()
    tap.apply()
    assert Owner().method(2) == 4 and told == ["always"]
    tap.undo()


@pytest.mark.filterwarnings("ignore:from inside")
def test_arguments_may_be_changed() -> None:
    tap = Tap(Owner.method, before=lambda owner, x: ((owner, x + 1), {"factor": 10}))
    assert tap(Owner(), 2) == 30


def test_special_methods_are_found_by_python() -> None:
    seen: list[Any] = []
    tap = TappedFunction(Owner, "__iter__", after=lambda result, owner: seen.append(owner))
    tap.apply()
    owner = Owner()
    assert list(owner) == [1, 2] and seen == [owner]
    tap.undo()


@pytest.fixture
def listening() -> Iterator[None]:
    TAPS.add()
    yield
    TAPS.remove()


def root_loss() -> Any:
    """Of the run of the engine under way."""
    run = TAPS.run()
    return None if run is None else run.root_loss()


@pytest.mark.usefixtures("listening")
def test_runs_within_one_another_are_one_with_the_outer_root() -> None:
    losses: list[Any] = []
    ended: list[bool] = []

    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            losses.append(root_loss())
            with torch.enable_grad():
                leaf = torch.full((1,), 7.0, requires_grad=True)
                leaf.register_hook(lambda _: losses.append(root_loss()))
                leaf.register_hook(lambda _: TAPS.in_outermost(lambda: ended.append(True)))
                leaf.sum().backward()
                assert ended == [True] and not TAPS.is_nested
            losses.append(root_loss())
            return gradient

    outer = Inner.apply(torch.ones(1, requires_grad=True)).sum()
    outer.backward()
    assert losses == [1.0, 1.0, 1.0] and root_loss() is None
    with pytest.raises(RuntimeError):
        torch.ones(1).sum().backward()
    assert root_loss() is None


def root_loss_of(tensors: Any, gradients: Any = None) -> Any:
    """While torch goes back from these, by a name that was imported before; the first is made of
    ``LEAF``."""
    seen: list[Any] = []
    handle = LEAF.register_hook(lambda _: seen.append(root_loss()))
    backward(tensors, gradients)
    handle.remove()
    (value,) = seen
    return value


LEAF = torch.tensor([2.0, 3.0], requires_grad=True)


@pytest.mark.usefixtures("listening")
def test_several_roots_are_one_loss() -> None:
    assert root_loss_of(LEAF.sum()) == 5
    assert root_loss_of([LEAF.sum(), (2 * LEAF).sum().view(1)]) == 15
    assert root_loss_of((LEAF.sum(), (2 * LEAF).sum()), [torch.tensor(0.5), None]) == 12.5
    assert root_loss_of(LEAF.sum(), torch.tensor(2.0)) == 10
    assert root_loss_of(LEAF * 1, torch.ones(2)) is None  # no number
    assert root_loss_of([LEAF.sum(), LEAF * 1], [None, torch.ones(2)]) is None


def test_scalers_that_scale_in_a_way_of_their_own_are_seen() -> None:
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    class Mine(GradScaler):
        def scale(self, outputs: Any) -> Any:
            return outputs * 4.0

    taps = Taps()  # of its own: a model of another test may listen to those of all for good
    taps.add()
    for scaler in (GradScaler("cpu"), ShardedGradScaler("cpu"), Mine("cpu")):
        seen: list[Any] = []
        weight = nn.Parameter(torch.ones(1))
        weight.register_hook(lambda _, seen=seen: seen.append(taps.run().scaler))  # type: ignore[misc, union-attr]
        scaler.scale(weight.sum()).backward()
        assert seen == [scaler]
    taps.remove()
    assert not isinstance(vars(Mine)["scale"], Tap)


def test_a_tapped_function_is_copied_and_pickled_by_its_name(tapped: TappedFunction) -> None:
    function = vars(Owner)["method"]
    assert isinstance(function, Tap)
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.copy(function) is function and copy.deepcopy(function) is function
    assert weakref.ref(function)() is function


def test_always_is_called_also_where_who_listens_fails() -> None:
    told: list[str] = []

    def fails(*_: Any) -> None:
        raise KeyError("planted")

    tap = Tap(len, after=fails, always=lambda: told.append("always"))
    with pytest.raises(KeyError):
        tap([])
    assert told == ["always"]


@pytest.mark.usefixtures("listening")
def test_a_tensor_that_has_no_number_of_elements_is_no_root() -> None:
    class Odd(torch.Tensor):
        asked = 0

        def numel(self) -> int:
            if torch._C._current_graph_task_id() != -1:  # by presum; torch asks before
                Odd.asked += 1
                raise NotImplementedError
            return 1

    assert root_loss_of(LEAF.sum().as_subclass(Odd)) is None
    assert Odd.asked >= 1 and root_loss() is None


@pytest.mark.usefixtures("listening")
def test_each_pass_has_the_scaler_that_its_root_is_made_with() -> None:
    scaler, seen = GradScaler("cpu"), []
    weight = nn.Parameter(torch.ones(1))
    weight.register_hook(lambda _: seen.append(TAPS.run().scaler))  # type: ignore[no-untyped-call, union-attr]
    apart = [scaler.scale(weight.sum()), scaler.scale((2 * weight).sum())]
    together = (scaler.scale(weight.sum()) + scaler.scale((2 * weight).sum())) / 2
    losses = [*apart, together, *scaler.scale([weight.sum(), (2 * weight).sum()])]
    for loss in losses:
        loss.backward()
    assert seen == [scaler] * len(losses)
    torch.autograd.grad(scaler.scale(weight.sum()), weight)
    (3 * weight).sum().backward()
    assert seen[-1] is None


@pytest.mark.usefixtures("listening")
def test_a_pass_in_another_thread_has_its_own_root() -> None:
    seen: dict[float, Any] = {}

    def train(value: float, other: threading.Barrier) -> None:
        weight = torch.full((1,), value, requires_grad=True)

        def look(_: torch.Tensor) -> None:
            other.wait()
            seen[value] = root_loss()

        weight.register_hook(look)  # type: ignore[no-untyped-call]
        weight.sum().backward()

    both = threading.Barrier(2)
    threads = [threading.Thread(target=train, args=(value, both)) for value in (3.0, 4.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == {3.0: 3.0, 4.0: 4.0}


@pytest.mark.usefixtures("listening")
def test_a_run_begins_only_when_another_thread_has_looked() -> None:
    """Gradients are written without the interpreter's lock, and read before a pass."""
    looking, went_on = threading.Event(), threading.Event()
    order: list[str] = []
    weight = torch.ones(1, requires_grad=True)

    class Listener:
        def look(self) -> None:
            if threading.current_thread() is not threading.main_thread():
                return
            looking.set()
            went_on.wait(0.3)
            order.append("looked")

    def train() -> None:
        other = torch.ones(1, requires_grad=True)
        other.register_hook(lambda _: order.append("ran"))  # type: ignore[no-untyped-call]
        looking.wait(30)
        other.sum().backward()
        went_on.set()

    listener = Listener()
    handle = TAPS.at_beginnings(listener.look)
    thread = threading.Thread(target=train)
    thread.start()
    weight.sum().backward()
    thread.join(30)
    handle.remove()
    assert order == ["looked", "ran"]


@pytest.mark.usefixtures("listening")
def test_it_knows_of_runs_in_other_threads() -> None:
    inside, done = threading.Event(), threading.Event()
    others: list[bool] = []

    def wait(_: torch.Tensor) -> None:
        others.append(TAPS.others_run)
        inside.set()
        done.wait(30)

    def train() -> None:
        weight = torch.ones(1, requires_grad=True)
        weight.register_hook(wait)  # type: ignore[no-untyped-call]
        weight.sum().backward()

    thread = threading.Thread(target=train)
    thread.start()
    inside.wait(30)
    others.append(TAPS.others_run)
    done.set()
    thread.join(30)
    others.append(TAPS.others_run)
    assert others == [False, True, False]
