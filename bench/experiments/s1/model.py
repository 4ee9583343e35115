# SPDX-License-Identifier: Apache-2.0
"""The model to fine-tune and its tokenizer: built-in, a preset shape, or a checkpoint folder."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from presum.errors import UserError

VOCABULARY = 2048
"""Tokens of the built-in byte-level BPE, including the three special ones."""

SHAPES: dict[str, dict[str, Any]] = {
    "builtin": {
        "vocab_size": VOCABULARY,
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "openpangu-1b": {
        "vocab_size": 153376,
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "num_hidden_layers": 26,
        "num_attention_heads": 12,
        "num_key_value_heads": 6,
        "tie_word_embeddings": True,
    },
}
"""Llama configurations that are initialized from scratch, by name."""


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Where the model comes from: a name in SHAPES, or a checkpoint folder."""

    shape: str = "builtin"
    path: Path | None = None
    trust_remote_code: bool = False

    @property
    def name(self) -> str:
        """The short name for tables and cards, without the parent folder."""
        return self.path.resolve().name if self.path else self.shape


def load_tokenizer(source: ModelSource, *, texts: Iterable[str]) -> Any:
    """A tokenizer with a padding token; for a built-in shape, one trained on ``texts``.

    Raises UserError for a folder without a usable tokenizer.
    """
    if source.path is None:
        return train_tokenizer(texts)
    from transformers import AutoTokenizer

    tokenizer = _from_folder(AutoTokenizer, source)
    if tokenizer.eos_token_id is None:
        raise UserError(f"--model {source.path}: its tokenizer has no end-of-text token")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def train_tokenizer(texts: Iterable[str]) -> Any:
    """A byte-level BPE of at most VOCABULARY tokens. The same texts give the same tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", bpe.token_to_id("<bos>"))]
    )
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=bpe, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")


def check_length(source: ModelSource, *, max_length: int) -> None:
    """Raises UserError if the checkpoint has fewer positions than ``max_length``."""
    if source.path is None:
        return
    from transformers import AutoConfig

    positions = getattr(_from_folder(AutoConfig, source), "max_position_embeddings", None)
    if positions is not None and max_length > positions:
        raise UserError(f"--max-length {max_length}: {source.name} has {positions} positions")


def build_model(source: ModelSource, *, tokenizer: Any, max_length: int, seed: int) -> Any:
    """The model in fp32 and training mode; a built-in shape is initialized from ``seed`` alone.

    Raises UserError for a folder without a usable causal language model.
    """
    import torch

    torch.manual_seed(seed)
    if source.path is None:
        model = _from_shape(SHAPES[source.shape], tokenizer=tokenizer, max_length=max_length)
    else:
        from transformers import AutoModelForCausalLM

        model = _from_folder(AutoModelForCausalLM, source, dtype=torch.float32)
    model.config.use_cache = False
    return model.train()


def _from_shape(shape: dict[str, Any], *, tokenizer: Any, max_length: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            **shape,
            max_position_embeddings=max_length,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def _from_folder(loader: Any, source: ModelSource, **options: Any) -> Any:
    assert source.path is not None
    if not (source.path / "config.json").is_file():
        raise UserError(
            f"--model {source.path}: not a Hugging Face checkpoint folder (no config.json there)"
        )
    options |= {"local_files_only": True, "trust_remote_code": source.trust_remote_code}
    try:
        return loader.from_pretrained(source.path, **options)
    except (OSError, ValueError, ImportError, KeyError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"--model {source.path}: {reason[0]}") from error
