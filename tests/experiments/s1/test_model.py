# SPDX-License-Identifier: Apache-2.0
"""Template, tokenizer, models, checkpoints."""

import argparse
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from experiments.s1 import command
from experiments.s1.builtin_data import generate
from experiments.s1.model import (
    SHAPES,
    VOCABULARY,
    ModelSource,
    build_model,
    check_length,
    load_tokenizer,
    train_tokenizer,
)
from experiments.s1.prepare import make_plan
from experiments.s1.records import Record
from experiments.s1.settings import S1Run
from experiments.s1.template import IGNORED, Example, collate, encode, encode_all, prompt
from presum.errors import UserError

RECORD = Record("Add the numbers.", "2, 3", "The sum is 5.")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer([prompt(r) + r.output for r in generate(count=300)])


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> ModelSource:
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    monkeypatch.setitem(SHAPES, "builtin", SHAPES["builtin"] | small)
    return ModelSource()


def test_only_the_response_is_a_label(tokenizer: Any) -> None:
    example = encode(RECORD, tokenizer=tokenizer, max_length=1024)
    assert example is not None
    start = sum(label == IGNORED for label in example.labels)
    assert example.labels == [IGNORED] * start + example.input_ids[start:]
    assert tokenizer.decode(example.input_ids[1:start]) == prompt(RECORD)
    assert tokenizer.decode(example.input_ids[start:-1]) == RECORD.output
    assert example.input_ids[0] == tokenizer.bos_token_id
    assert example.input_ids[-1] == tokenizer.eos_token_id


def test_template_has_an_input_part_only_with_input() -> None:
    assert "### Input:\n2, 3\n" in prompt(RECORD)
    assert "Input" not in prompt(RECORD._replace(input=""))


def test_long_response_is_cut_and_long_prompt_dropped(tokenizer: Any) -> None:
    whole = encode(RECORD, tokenizer=tokenizer, max_length=1024)
    assert whole is not None
    start = whole.labels.count(IGNORED)
    cut = encode(RECORD, tokenizer=tokenizer, max_length=start + 1)
    assert cut == Example(whole.input_ids[: start + 1], whole.labels[: start + 1])
    assert encode_all([RECORD], tokenizer=tokenizer, max_length=start) == []


def test_padding_is_masked() -> None:
    batch = collate([Example([5, 6, 7], [IGNORED, 6, 7]), Example([8], [8])], pad_id=0)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[IGNORED, 6, 7], [8, IGNORED, IGNORED]]


def test_tokenizer_is_deterministic_and_loses_nothing(tokenizer: Any) -> None:
    records = generate(count=300)
    again = train_tokenizer([prompt(r) + r.output for r in records])
    assert again.get_vocab() == tokenizer.get_vocab()
    assert len(tokenizer) <= VOCABULARY
    text = "Prüfung 試験 \n\t!"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_builtin_model_is_small_and_depends_on_the_seed_alone(tokenizer: Any) -> None:
    def weights(seed: int) -> Any:
        model = build_model(ModelSource(), tokenizer=tokenizer, max_length=1024, seed=seed)
        assert model.training
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    first = weights(1)
    assert 1_000_000 <= first.numel() <= 1_500_000
    assert torch.equal(first, weights(1))
    assert not torch.equal(first, weights(2))


def test_checkpoint_folder_round_trip(tiny: ModelSource, tokenizer: Any, tmp_path: Path) -> None:
    model = build_model(tiny, tokenizer=tokenizer, max_length=64, seed=1)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    source = ModelSource(path=tmp_path)
    same = build_model(source, tokenizer=tokenizer, max_length=64, seed=2)
    pairs = zip(model.state_dict().values(), same.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert load_tokenizer(source, texts=[]).get_vocab() == tokenizer.get_vocab()
    assert same.training
    check_length(source, max_length=64)
    with pytest.raises(UserError, match="has 64 positions"):
        check_length(source, max_length=65)


def test_tokenizer_without_padding_pads_with_eos(tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    fast: Any = type(tokenizer)
    fast(tokenizer_object=tokenizer.backend_tokenizer, eos_token="<eos>").save_pretrained(tmp_path)
    loaded = load_tokenizer(ModelSource(path=tmp_path), texts=[])
    assert loaded.pad_token_id == loaded.eos_token_id == tokenizer.eos_token_id


@pytest.mark.parametrize("config", [None, "{}", '{"model_type": "no-such-model"}', "not json"])
def test_unusable_model_folder_is_one_line(tmp_path: Path, config: str | None) -> None:
    if config:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(UserError, match=r"--model .*: ") as caught:
        check_length(ModelSource(path=tmp_path), max_length=8)
    assert "\n" not in str(caught.value)


def _options(*words: str) -> argparse.Namespace:
    return command.options_parser().parse_args(words)


def test_plan_counts_what_it_drops() -> None:
    runs = (S1Run("sharded", "S1-1"),)
    plan, dropped = make_plan(_options("--max-length", "64"), runs=runs, workers=8)
    assert dropped > 0
    assert len(plan.examples) + dropped == 1000
    assert max(len(e.input_ids) for e in plan.examples) <= 64


def test_plan_needs_a_record_for_each_worker() -> None:
    with pytest.raises(UserError, match=r"0 records with room for a response .* fewer than 8"):
        make_plan(_options("--max-length", "4"), runs=(), workers=8)
