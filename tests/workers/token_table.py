# SPDX-License-Identifier: Apache-2.0
"""What one token weighs in the loops of frameworks: the programs of docs/tokens.md's table.

Of the model only its input embedding is trained, and it is zero: logits are the embedding of the
token before, the softmax is uniform, and no input occurs twice in an update. So a row of the
gradient that the optimizer reads is weight * (1/V - onehot(target)) for one token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler
from transformers import Trainer, TrainingArguments
from transformers.modeling_outputs import CausalLMOutput

import presum
from workers.launch import QUIET, main, write_json

WORDS, IGNORED = 160, -100
COUNTS = (40, 20, 5, 10, 30, 3)  # targets, in the order of the data; ranks take turns
MICRO_BATCHES = 2


def sequences() -> list[list[int]]:
    """Of tokens that occur once; the last one is a target only."""
    ends = [sum(COUNTS[: place + 1]) + place + 1 for place in range(len(COUNTS))]
    return [[*range(end - count - 1, end)] for end, count in zip(ends, COUNTS, strict=True)]


class Bigram(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WORDS)
        nn.init.zeros_(self.embedding.weight)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, **kwargs: Any
    ) -> CausalLMOutput:
        logits, count = self.embedding(input_ids), kwargs.get("num_items_in_batch")
        if labels is None:
            return CausalLMOutput(logits=logits)
        if count is None:
            return CausalLMOutput(loss=loss_of(logits, labels), logits=logits)
        return CausalLMOutput(loss=loss_of(logits, labels, "sum") / count, logits=logits)


class WithoutCount(Bigram):
    accepts_loss_kwargs = False

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> CausalLMOutput:  # type: ignore[override]
        return super().forward(input_ids, labels)


def loss_of(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    return functional.cross_entropy(
        logits[:, :-1].flatten(0, 1),
        labels[:, 1:].flatten(),
        ignore_index=IGNORED,
        reduction=reduction,
    )


class Weights:
    """The weights of each update's tokens, as the optimizer has read them."""

    def __init__(self, model: Bigram) -> None:
        self._model = model
        self.updates: list[list[float]] = []

    def read(self, *_: object) -> None:
        gradient = self._model.embedding.weight.grad
        assert gradient is not None
        largest = gradient.double().abs().max(1).values * WORDS / (WORDS - 1)
        self.updates.append(largest[largest > 0].tolist())


def data() -> list[dict[str, Tensor]]:
    """The first label is no target: the Trainer counts labels before they are shifted."""
    rows = [torch.tensor(tokens) for tokens in sequences()]
    return [
        {"input_ids": row, "labels": torch.cat([row.new_tensor([IGNORED]), row[1:]])}
        for row in rows
    ]


def trained(model: Bigram, run: Path, optimizer: SGD) -> tuple[Any, AbstractContextManager[Any]]:
    ddp = DistributedDataParallel(model)
    return ddp, presum.attach(ddp, optimizer=optimizer, run=run, record=QUIET)


def own_rows() -> Iterator[list[dict[str, Tensor]]]:
    """This rank's micro-batches of each update."""
    rows = [{k: v[None] for k, v in row.items()} for row in data()][dist.get_rank() :: 2]
    yield from (rows[at : at + MICRO_BATCHES] for at in range(0, len(rows), MICRO_BATCHES))


def as_torchtune(model: Bigram, optimizer: SGD, run: Path) -> None:
    """A mean times its tokens; the sum's gradient is divided by all tokens at the end."""
    ddp, watched = trained(model, run, optimizer)
    with watched:
        for rows in own_rows():
            tokens = torch.zeros(())
            for row in rows:
                count = (row["labels"] != IGNORED).sum()
                (loss_of(ddp(row["input_ids"]).logits, row["labels"]) * count).backward()
                tokens += count
            dist.all_reduce(tokens)
            assert model.embedding.weight.grad is not None
            model.embedding.weight.grad *= 2 / tokens
            optimizer.step()
            optimizer.zero_grad()


def as_nanogpt(model: Bigram, optimizer: SGD, run: Path) -> None:
    ddp, watched = trained(model, run, optimizer)
    with watched:
        for micro, row in enumerate(next(own_rows())):
            ddp.require_backward_grad_sync = micro == MICRO_BATCHES - 1
            (loss_of(ddp(row["input_ids"]).logits, row["labels"]) / MICRO_BATCHES).backward()
        optimizer.step()


def accelerated(model: Bigram, optimizer: SGD, run: Path, *, recipe: bool) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_BATCHES)
    prepared: Any = accelerator.prepare(model, optimizer, DataLoader(data(), batch_size=1))  # type: ignore[arg-type]
    ddp, stepper, loader = prepared
    with presum.attach(ddp, optimizer=optimizer, run=run, record=QUIET):
        if not recipe:
            for row in loader:
                with accelerator.accumulate(ddp):
                    accelerator.backward(loss_of(ddp(row["input_ids"]).logits, row["labels"]))
                    stepper.step()
                    stepper.zero_grad()
            return
        rows = [*loader]
        for at in range(0, len(rows), MICRO_BATCHES):
            window = rows[at : at + MICRO_BATCHES]
            own = sum((row["labels"] != IGNORED).sum() for row in window)
            count = accelerator.gather(own).sum()
            for place, row in enumerate(window):
                last = place == len(window) - 1
                with nullcontext() if last else ddp.no_sync():
                    loss = loss_of(ddp(row["input_ids"]).logits, row["labels"], "sum")
                    accelerator.backward(loss * MICRO_BATCHES * 2 / count)
            stepper.step()
            stepper.zero_grad()


class InOrder(Trainer):
    def _get_train_sampler(self, *_: Any) -> SequentialSampler:
        assert self.train_dataset is not None
        return SequentialSampler(self.train_dataset)  # type: ignore[arg-type]


class Overridden(InOrder):
    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        return loss_of(model(inputs["input_ids"]).logits, inputs["labels"])


def by_trainer(
    model: Bigram,
    optimizer: SGD,
    run: Path,
    *,
    kind: type[InOrder] = InOrder,
    arguments: Any = None,
    **options: Any,
) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    settings = TrainingArguments(
        str(run.with_suffix(".out")),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=MICRO_BATCHES,
        num_train_epochs=1,
        max_grad_norm=0.0,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
        **(arguments or {}),
    )
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    trainer = kind(
        model=model,
        args=settings,
        train_dataset=data(),  # type: ignore[arg-type]
        optimizers=(optimizer, constant),
        callbacks=[presum.TransformersCallback(run=run, record=QUIET)],
        **options,
    )
    trainer.train()


def by_lightning(model: Bigram, optimizer: SGD, run: Path) -> None:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, row: Any, _: int) -> Tensor:
            return loss_of(self.model(row["input_ids"]).logits, row["labels"])

        def configure_optimizers(self) -> Any:
            return optimizer

    sampler: Any = DistributedSampler(data(), 2, dist.get_rank(), shuffle=False)  # type: ignore[arg-type]
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        accumulate_grad_batches=MICRO_BATCHES,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        callbacks=[presum.LightningCallback(run=run, record=QUIET)],
    )
    trainer.fit(Module(), DataLoader(data(), batch_size=1, sampler=sampler))  # type: ignore[arg-type]


def mean_of_outputs(out: Any, labels: Tensor, **_: Any) -> Tensor:
    return loss_of(out.logits, labels)


Program = Callable[[Bigram, SGD, Path], None]
PROGRAMS: dict[str, Program] = {
    "torchtune": as_torchtune,
    "nanogpt": as_nanogpt,
    "accelerate-mean": lambda *given: accelerated(*given, recipe=False),
    "accelerate-recipe": lambda *given: accelerated(*given, recipe=True),
    "trainer": by_trainer,
    "trainer-own-tokens": lambda *given: by_trainer(
        *given, arguments={"average_tokens_across_devices": False}
    ),
    "trainer-without-count": by_trainer,
    "trainer-overridden": lambda *given: by_trainer(*given, kind=Overridden),
    "trainer-function": lambda *given: by_trainer(*given, compute_loss_func=mean_of_outputs),
    "lightning": by_lightning,
}


def work(rank: int, _world: int, out: Path) -> None:
    for name, program in PROGRAMS.items():
        torch.manual_seed(0)
        model = WithoutCount() if name == "trainer-without-count" else Bigram()
        optimizer = SGD(model.parameters(), lr=0.0)
        weights = Weights(model)
        optimizer.register_step_post_hook(weights.read)
        program(model, optimizer, out / name)
        dist.barrier()
        if rank == 0:
            write_json(out / f"{name}.json", weights.updates)


if __name__ == "__main__":
    main(work)
