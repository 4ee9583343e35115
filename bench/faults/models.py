# SPDX-License-Identifier: Apache-2.0
"""Models so small that eight ranks take a step in tens of milliseconds on two cores."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

IGNORED = -100
WIDTH = 64
HEADS = 4
FEATURES = 64  # inputs of the classifiers; a square number
CLASSES = 8


class LanguageModel(nn.Module):
    """One causal transformer layer. The loss is the mean over the labels other than -100."""

    def __init__(
        self,
        *,
        vocabulary: int,
        length: int,
        dropout: float = 0.0,
        batch_norm: bool = False,
        adapter: bool = False,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.position = nn.Embedding(length, WIDTH)
        self.attention = Attention()
        self.norm = nn.BatchNorm1d(WIDTH) if batch_norm else nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.dropout = nn.Dropout(dropout)
        self.adapter = Adapter() if adapter else nn.Identity()
        self.head = nn.Linear(WIDTH, vocabulary)
        self.counts_padding = False  # divide by all positions instead of the labeled ones

    def forward(
        self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Padding must be on the right, where a causal model does not attend. NaN in, NaN out."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.embed(input_ids) + self.position(positions)
        hidden = hidden + self.dropout(self.attention(hidden))
        normal = self.norm(hidden.flatten(0, 1)).view_as(hidden)
        hidden = self.adapter(hidden + self.dropout(self.mlp(normal)))
        logits, targets = self.head(hidden[:, :-1]).flatten(0, 1), labels[:, 1:].flatten()
        total = functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
        counted = targets.numel() if self.counts_padding else (targets != IGNORED).sum()
        return {"loss": total / counted}


def causal_transformer(*, vocabulary: int, length: int, dropout: float) -> GPT2LMHeadModel:
    """A GPT-2 of one layer, with the head that TRL looks for."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary,
            n_positions=length,
            n_embd=WIDTH,
            n_layer=1,
            n_head=HEADS,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


class Attention(nn.Module):
    """Causal self-attention with pre-normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """Same shape as ``hidden`` (batch, length, WIDTH)."""
        batch, length, _ = hidden.shape
        heads = self.project(self.norm(hidden)).view(batch, length, 3, HEADS, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))  # type: ignore[no-any-return]


class Adapter(nn.Module):
    """A low-rank update of the hidden state, initially zero."""

    def __init__(self, rank: int = 4) -> None:
        super().__init__()
        self.down = nn.Linear(WIDTH, rank, bias=False)
        self.up = nn.Linear(rank, WIDTH, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """Same shape as ``hidden``."""
        return hidden + self.up(self.down(hidden))  # type: ignore[no-any-return]


class Classifier(nn.Module):
    """A body of layers and a linear head. The loss is the mean cross-entropy."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(width, CLASSES)
        self.smoothing = 0.0  # of labels

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """``inputs`` is (batch, FEATURES). NaN in, NaN out."""
        logits = self.head(self.body(inputs))
        loss = functional.cross_entropy(logits, labels, label_smoothing=self.smoothing)
        return {"loss": loss}


class Policy(nn.Module):
    """A policy over CLASSES actions, and the world that rewards them. The loss is that of
    REINFORCE, with the batch's mean reward as the baseline."""

    world: Tensor

    def __init__(self, *, dropout: float) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Dropout(dropout), nn.Linear(64, 32), nn.Tanh())
        )
        self.head = nn.Linear(32, CLASSES)
        world = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(0))
        self.register_buffer("world", world, persistent=False)

    def forward(self, states: Tensor) -> dict[str, Tensor]:
        """``states`` is (batch, FEATURES). Draws from torch's generator."""
        logits = self.head(self.body(states))
        actions = torch.multinomial(logits.detach().softmax(1), 1).squeeze(1)
        rewards = (states @ self.world).gather(1, actions[:, None]).squeeze(1) / FEATURES**0.5
        taken = functional.log_softmax(logits, 1).gather(1, actions[:, None]).squeeze(1)
        return {"loss": -(taken * (rewards - rewards.mean())).mean()}


def add_noise(_module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """A forward pre-hook. Draws from torch's generator."""
    return (inputs[0] + 0.01 * torch.randn_like(inputs[0]),)


def perceptron(*, dropout: float) -> Classifier:
    """A classifier with two hidden layers."""
    layers = [nn.Linear(FEATURES, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 32), nn.ReLU()]
    return Classifier(nn.Sequential(*layers), 32)


def convolution(*, dropout: float) -> Classifier:
    """Two convolutions with batch normalization, over the inputs as a square image."""
    side = int(FEATURES**0.5)
    layers = [
        nn.Unflatten(1, (1, side, side)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
    ]
    return Classifier(nn.Sequential(*layers), 16 * (side // 2) ** 2)
