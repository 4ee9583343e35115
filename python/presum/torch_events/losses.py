# SPDX-License-Identifier: Apache-2.0
"""Finds a micro-batch's loss and target tokens in a module's arguments and output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from typing import Any

import torch

from presum._core import count_plain_targets, plain_number
from presum.devices.readable import readable

IGNORED_LABEL = -100
Scalar = float | int | torch.Tensor


def kept_value(value: Scalar) -> Scalar | None:
    """A number, or a copy on its device, because the user may change the tensor in place. None for
    a tensor that cannot be read."""
    if not isinstance(value, torch.Tensor):
        return float(value)
    number = plain_number(value)
    if number is not None:
        return number
    plain = readable(value)
    if plain is None:
        return None
    return float(plain.detach()) if plain.is_cpu else plain.detach().clone()


def find_loss(output: Any) -> torch.Tensor | None:
    """The loss in a module's output, if it takes part in training (requires grad), else None.

    It is ``output["loss"]``, ``output.loss``, the first item of a tuple, or the output itself, and
    must have one element.
    """
    if isinstance(output, Mapping):
        loss = output.get("loss")
    elif isinstance(output, tuple) and output:
        loss = output[0]
    else:
        loss = getattr(output, "loss", output)
    if not isinstance(loss, torch.Tensor) or not _trains(loss) or loss.numel() != 1:
        return None
    return loss if readable(loss) is not None else None


def first_tensor(output: Any, *, but: torch.Tensor | None = None) -> torch.Tensor | None:
    """The first tensor in a module's output that takes part in training, except ``but``."""
    if isinstance(output, torch.Tensor):
        return output if _trains(output) and output is not but else None
    found = (first_tensor(value, but=but) for value in _items(output))
    return next((tensor for tensor in found if tensor is not None), None)


def _trains(tensor: torch.Tensor) -> bool:
    """Whether a tensor was computed from trained parameters; a parameter itself was not."""
    return tensor.requires_grad and not tensor.is_leaf


def _items(output: Any) -> Iterable[Any]:
    """The items of a container or the attributes of a dataclass; empty for anything else."""
    if isinstance(output, (tuple, list)):
        return output
    if isinstance(output, Mapping):
        return output.values()
    return vars(output).values() if is_dataclass(output) else ()


def count_tokens(
    args: tuple[Any, ...], kwargs: dict[str, Any], *, on_host: bool, shifted: bool
) -> Scalar:
    """The target tokens of a micro-batch: labels other than -100; 0 if no labels are found.

    Labels are the argument with that name, or else, in host memory, the integer tensor that
    contains -100 (searching on a device would synchronize). ``shifted``: the model ignores the
    first label of each row, as causal language models of transformers do.
    """
    labels = kwargs.get("shift_labels")
    if labels is None:
        labels = kwargs.get("labels")
    else:
        shifted = False
    if labels is None and on_host:
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
        whole = (torch.int64, torch.int32)
        integers = [t for t in map(readable, tensors) if t is not None and t.dtype in whole]
        labels = next((t for t in integers if bool((t == IGNORED_LABEL).any())), None)
    labels = readable(labels) if isinstance(labels, torch.Tensor) else None
    if labels is None:
        return 0
    if shifted and labels.dim() > 1:
        labels = labels[..., 1:].contiguous()
    return count_targets(labels, IGNORED_LABEL)


def count_targets(labels: torch.Tensor, ignored: int) -> Scalar:
    """How many readable labels take part in the loss: those that are not ``ignored``."""
    found = count_plain_targets(labels, ignored)
    if found is not None:
        return found
    count = (labels != ignored).sum()
    return int(count) if labels.is_cpu else count


def shifts_labels(module: torch.nn.Module) -> bool:
    """Whether a model of transformers ignores the first label of each row."""
    config = vars(module).get("config")
    return vars(module).get("loss_type") == "ForCausalLM" and not getattr(
        config, "is_encoder_decoder", False
    )


def share_of_tokens(kwargs: dict[str, Any], tokens: Scalar, items: Scalar | None) -> Scalar | None:
    """A micro-batch's share of the tokens that its loss is divided by, if these are not its own:
    ``num_items_in_batch`` of transformers counts the tokens of all ranks and micro-batches."""
    given = kwargs.get("num_items_in_batch")
    items = items if given is None else kept_value(given)
    if items is None or (not isinstance(tokens, torch.Tensor) and tokens == 0):
        return None
    return tokens / items
