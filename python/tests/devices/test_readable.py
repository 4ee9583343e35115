# SPDX-License-Identifier: Apache-2.0
"""Which tensors are looked into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from observers import make_observer
from presum import reduce
from presum._core import read_plain
from presum.devices.readable import KNOWN, readable
from presum.errors import UserError

pytestmark = pytest.mark.usefixtures("one_worker")


class Own(torch.Tensor):
    pass


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)


def distributed(placement: Any) -> torch.Tensor:
    return DTensor.from_local(torch.ones(3), init_device_mesh("cpu", (1,)), [placement])


def on_its_way() -> torch.Tensor:
    found = all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    assert isinstance(found, AsyncCollectiveTensor)
    return found


def settle(tensor: torch.Tensor) -> None:
    if isinstance(tensor, AsyncCollectiveTensor):
        tensor.wait()


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(3)


def freed(view: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    whole = torch.ones(4, 4)
    part = view(whole)
    whole.untyped_storage().resize_(0)
    return part


def cut_short() -> torch.Tensor:
    whole = torch.ones(4, 4)
    whole.untyped_storage().resize_(15 * 4)
    return whole


PLAIN: dict[str, Callable[[], torch.Tensor]] = {
    "tensor": lambda: torch.ones(3),
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "view": lambda: torch.ones(2, 3).t()[1:],
    "empty": lambda: torch.ones(0),
    "complex": lambda: torch.ones(3, dtype=torch.complex64),
    "replicated": lambda: distributed(Replicate()),
    "sharded": lambda: distributed(Shard(0)),
}
OTHERS: dict[str, Callable[[], torch.Tensor]] = {
    "summand": lambda: distributed(Partial()),
    "sparse": lambda: torch.ones(3).to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
    "quantized": quantized,
    "meta": lambda: torch.ones(3, device="meta"),
    "on-its-way": on_its_way,
    "fake": fake,
    "freed": lambda: freed(lambda whole: whole),
    "view-of-freed": lambda: freed(lambda whole: whole[1:]),
    "strided-view-of-freed": lambda: freed(lambda whole: whole.t()[::2]),
    "cut-short": cut_short,
    "own-class": lambda: torch.ones(3).as_subclass(Own),
}


@pytest.mark.parametrize("case", PLAIN)
def test_what_has_memory_is_given_as_a_plain_tensor(case: str) -> None:
    tensor = PLAIN[case]()
    found = readable(tensor)
    assert found is not None and type(found) in (torch.Tensor, torch.nn.Parameter)
    expected = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    assert torch.equal(found, expected)
    assert found.data_ptr() == expected.data_ptr()


def is_read(tensor: torch.Tensor) -> bool:
    """Whether the extension reads it as a gradient without a frame of Python."""
    observer = make_observer([("p", 6, "")])
    observer.begin_step(0)
    return read_plain(observer, 0, tensor, reduced=False)


@pytest.mark.filterwarnings("ignore:.*prototype stage.*")
@pytest.mark.parametrize("case", OTHERS)
def test_nothing_else_is_touched(case: str) -> None:
    tensor = OTHERS[case]()
    assert readable(tensor) is None
    assert not is_read(tensor)
    settle(tensor)


def test_a_tensor_inside_a_functional_transform_is_not_touched() -> None:
    seen: list[torch.Tensor | None] = []
    read: list[bool] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(readable(x))
        read.append(is_read(x))
        return x.sum()

    torch.func.vmap(look)(torch.ones(2, 3))
    torch.func.grad(look)(torch.ones(3))
    assert seen == [None, None] and read == [False, False]


def test_known_classes_that_only_add_attributes_are_read() -> None:
    named = type("Image", (torch.Tensor,), {"__module__": "torchvision.tv_tensors._image"})
    assert "torchvision.tv_tensors._image.Image" in KNOWN
    image = torch.ones(3).as_subclass(named)
    found = readable(image)
    assert found is not None and type(found) is torch.Tensor
    assert found.data_ptr() == image.data_ptr()


def test_a_lazily_negated_view_is_read_with_its_signs() -> None:
    negated = torch.tensor([1 + 2j]).conj().imag
    assert negated.is_neg()
    found = readable(negated)
    assert found is not None and not found.is_neg() and found.tolist() == [-2.0]
    assert not is_read(negated)


@pytest.mark.parametrize("case", ["sharded", "summand", "on-its-way"])
def test_a_sum_of_distributed_tensors_is_refused(case: str) -> None:
    tensor = {**PLAIN, **OTHERS}[case]()
    with pytest.raises(UserError, match="leaf 0 is"):
        reduce.sum([tensor, tensor])
    settle(tensor)
