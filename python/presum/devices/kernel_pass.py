# SPDX-License-Identifier: Apache-2.0
"""The gradient pass by CUDA kernels: one launch for many gradients, and one more at the end of a
step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from presum import _core
from presum.devices.blocks import DTYPES
from presum.devices.queue import on_device, pinned, stream_of, upload

WORDS = 5  # results per gradient: two doubles, three integers


@cache
def why_not(device: torch.device) -> str | None:
    """Why the kernels cannot run on a device; None if they can. Cached per device."""
    if device.type != "cuda" or torch.version.hip is not None:
        return "no CUDA device"
    with torch.cuda.device(device):
        torch.empty(1, device=device)  # creates the context
        return _core.cuda_lacks()


@dataclass
class _Rows:
    """Sketches to which the blocks of launches on one stream add."""

    values: torch.Tensor
    in_use: int = 0


class KernelPass:
    """The kernels of one step on one device. They run on the current stream; memory allocated there
    is kept until the step is dropped. For the training thread."""

    def __init__(self, device: torch.device, sketch_size: int) -> None:
        self._device, self._sketch_size = device, sketch_size
        self._sums = _core.DeviceSums(sketch_size)
        self._rows: dict[int, _Rows] = {}
        self._kept: list[torch.Tensor] = []
        self.bytes = 0  # of device memory, allocated for the step

    def read(self, gradients: Sequence[tuple[torch.Tensor, int]], *, sketched: bool) -> None:
        """Launch once for flat gradients of one dtype, each with the seed of its sketch."""
        size = self._sketch_size if sketched else 0
        batch = _core.GradientBatch.create(DTYPES[gradients[0][0].dtype], size)
        for flat, seed in gradients:
            batch.add(flat.data_ptr() if flat.numel() else 0, flat.numel(), seed)
        with on_device(self._device):
            stream = stream_of(self._device)
            rows = self._rows_of(stream) if size else None
            uploaded = self._upload(batch.list_bytes, batch.write_list)
            partials = self._new(batch.partials_bytes)
            self._sums.read(
                batch=batch,
                list=uploaded.data_ptr(),
                partials=partials.data_ptr(),
                rows=rows.values.data_ptr() if rows else 0,
                rows_in_use=rows.in_use if rows else 0,
                stream=stream,
            )
        if rows:
            rows.in_use = max(rows.in_use, batch.blocks)
        self._kept += [uploaded, partials]

    def finish(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The results for each gradient, in the order of read(): a row with the bits of two
        doubles, and three integers; and the sum of all sketches. The current stream must be ordered
        after all reads."""
        for rows in self._rows.values():
            self._sums.add_sketches(rows.values.data_ptr(), rows.in_use)
        gradients = self._sums.gradients
        with on_device(self._device):
            found = torch.empty((gradients, WORDS), dtype=torch.int64, device=self._device)
            sketch = torch.empty(self._sketch_size, device=self._device)
            uploaded = self._upload(self._sums.list_bytes, self._sums.write_list)
            self._sums.finish(
                list=uploaded.data_ptr(),
                found=found.data_ptr(),
                sketch=sketch.data_ptr(),
                stream=stream_of(self._device),
            )
        self._kept.append(uploaded)
        return found, sketch

    def tensors(self) -> list[torch.Tensor]:
        """Memory of earlier launches, which another stream must keep."""
        return [*self._kept, *(rows.values for rows in self._rows.values())]

    def _rows_of(self, stream: int) -> _Rows:
        if stream not in self._rows:
            blocks = _core.GradientBatch.most_blocks(self._sketch_size)
            self._rows[stream] = _Rows(self._new(4 * blocks * self._sketch_size))
        return self._rows[stream]

    def _new(self, count: int) -> torch.Tensor:
        self.bytes += count
        return torch.empty(count, dtype=torch.uint8, device=self._device)

    def _upload(self, count: int, write: Callable[[int], None]) -> torch.Tensor:
        room = pinned(count, self._device)
        write(room.data_ptr())
        self.bytes += count
        return upload(room, self._device)
