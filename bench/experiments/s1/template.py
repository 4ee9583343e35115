# SPDX-License-Identifier: Apache-2.0
"""The Instruction-Input-Response template: encodes records as token ids, with labels only for the
response."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.s1.records import Record

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
"""The label of a position that does not count in the loss."""

_HEAD = "Carry out the instruction and write the response."
_HEAD_WITH_INPUT = "Carry out the instruction on the input and write the response."


class Example(NamedTuple):
    """Token ids of one record, and labels of the same length (IGNORED outside the response)."""

    input_ids: list[int]
    labels: list[int]


def prompt(record: Record) -> str:
    """Everything before the response."""
    if record.input:
        head = f"{_HEAD_WITH_INPUT}\n\n### Instruction:\n{record.instruction}"
        return f"{head}\n\n### Input:\n{record.input}\n\n### Response:\n"
    return f"{_HEAD}\n\n### Instruction:\n{record.instruction}\n\n### Response:\n"


def encode(record: Record, *, tokenizer: Any, max_length: int) -> Example | None:
    """An example of at most ``max_length`` tokens; the response ends in EOS unless it is cut.

    None if the prompt alone has ``max_length`` tokens, which leaves no response token.
    """
    head = list(tokenizer(prompt(record)).input_ids)
    if head and head[-1] == tokenizer.eos_token_id:
        head.pop()
    if len(head) >= max_length:
        return None
    body = [*tokenizer(record.output, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    body = body[: max_length - len(head)]
    return Example(input_ids=head + body, labels=[IGNORED] * len(head) + body)


def encode_all(records: Iterable[Record], *, tokenizer: Any, max_length: int) -> list[Example]:
    """The examples of all records that leave room for a response, in order."""
    encoded = (encode(r, tokenizer=tokenizer, max_length=max_length) for r in records)
    return [example for example in encoded if example is not None]


def collate(examples: Sequence[Example], *, pad_id: int) -> dict[str, "Tensor"]:
    """One batch, right-padded to its longest example; padding is masked in all tensors."""
    import torch

    width = max(len(e.input_ids) for e in examples)

    def padded(rows: Iterable[list[int]], filler: int) -> "Tensor":
        return torch.tensor([row + [filler] * (width - len(row)) for row in rows])

    return {
        "input_ids": padded((e.input_ids for e in examples), pad_id),
        "attention_mask": padded(([1] * len(e.input_ids) for e in examples), 0),
        "labels": padded((e.labels for e in examples), IGNORED),
    }
