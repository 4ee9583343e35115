# SPDX-License-Identifier: Apache-2.0
"""Records: generated ones are right, read ones are checked."""

import calendar
import hashlib
import json
import re
from collections import Counter
from datetime import date
from pathlib import Path
from random import Random

import pytest

from experiments.s1 import tasks_dates, tasks_numbers, tasks_words
from experiments.s1.builtin_data import COUNT, generate
from experiments.s1.records import Record, load_records
from presum.errors import UserError

DRAWS = [Random(n) for n in range(50)]


def test_generated_records_are_different_and_the_same_everywhere() -> None:
    records = generate()
    assert len(set(records)) == len(records) == COUNT
    assert all(r.instruction and r.output for r in records)
    digest = hashlib.sha256(repr([tuple(record) for record in records]).encode()).hexdigest()
    assert digest.startswith("7f88780158223fbf")


def test_arithmetic_is_right() -> None:
    for rng in DRAWS:
        record = tasks_numbers.arithmetic(rng)
        found = re.search(r"(\d+) ([-+*]) (\d+)", record.instruction)
        assert found
        a, operation, b = int(found[1]), found[2], int(found[3])
        assert int(record.output) == {"+": a + b, "-": a - b, "*": a * b}[operation]


def test_long_addition_ends_in_the_sum() -> None:
    for rng in DRAWS:
        record = tasks_numbers.long_addition(rng)
        assert record.output.endswith(f"The sum is {sum(map(int, record.input.split(', ')))}.")


def test_numerals_and_factors() -> None:
    numerals = {1: "I", 4: "IV", 1994: "MCMXCIV", 3999: "MMMCMXCIX"}
    assert {number: tasks_numbers.roman(number) for number in numerals} == numerals
    assert tasks_numbers.factors(360) == [2, 2, 2, 3, 3, 5]
    assert tasks_numbers.factors(97) == [97]


def test_word_tasks_are_right() -> None:
    for rng in DRAWS:
        record = tasks_words.sort_words(rng)
        assert record.output.split(", ") == sorted(record.input.split(", "))
        record = tasks_words.number_lines(rng)
        assert record.output.count("\n") == record.input.count(",")
        record = tasks_words.deduplicate(rng)
        assert Counter(record.output.split()) == dict.fromkeys(record.input.split(), 1)


def test_json_tasks_are_right() -> None:
    for rng in DRAWS:
        record = tasks_words.read_json(rng)
        field, entry = re.findall(r"the (\w+) of entry (\d+)", record.instruction)[0]
        assert record.output == str(json.loads(record.input)[int(entry) - 1][field])
        record = tasks_words.write_json(rng)
        assert all(p["name"] in record.input for p in json.loads(record.output))


def test_weekdays_are_right() -> None:
    for rng in DRAWS:
        record = tasks_dates.weekday(rng)
        day, month, year = re.findall(r"is (\d+) (\w+) (\d+)", record.instruction)[0]
        when = date(int(year), [*calendar.month_name].index(month), int(day))
        assert record.output == f"It is a {calendar.day_name[when.weekday()]}."


def test_json_array_and_lines_give_the_same_records(tmp_path: Path) -> None:
    items = [
        {"instruction": "a", "input": "", "output": "b"},
        {"instruction": "c", "output": "d", "more": 1},
        {"instruction": "e", "input": None, "output": "f\u2028g"},
    ]
    array, lines = tmp_path / "x.json", tmp_path / "x.jsonl"
    array.write_text(json.dumps(items, ensure_ascii=False), encoding="utf-8-sig")
    lines.write_text("\n".join(json.dumps(i, ensure_ascii=False) for i in items) + "\n\n", "utf-8")
    expected = [Record("a", "", "b"), Record("c", "", "d"), Record("e", "", "f\u2028g")]
    assert load_records(array) == load_records(lines) == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.json", '[\n {"instruction": }]', "malformed JSON at line 2, column 18 (record 1)"),
        ("x.json", '[{"a": [1, 2]},\n {"b": "}"} , {"c" 1}]', "column 20 (record 3)"),
        ("x.jsonl", '{"instruction":"a","output":"b"}\n{"a" 1}', "at line 2, column 6"),
        ("x.json", '{"instruction": "a"}', "expected a JSON array of records, found an object"),
        ("x.json", "[]", "no records"),
        ("x.jsonl", "\n\n", "no records"),
        ("x.json", '[{"instruction":"a","output":"b"}, {"instruction":"a"}]', "record 2 has no"),
        ("x.json", '[{"instruction":"a","output":null}]', "record 1 has no 'output'"),
        ("x.json", '[{"output":"a"}]', "record 1 has no 'instruction'"),
        ("x.json", '[{"instruction":"a","output":3}]', "record 1: 'output' is a number"),
        ("x.json", '[{"instruction":"a","input":[],"output":"b"}]', "'input' is an array"),
        ("x.json", "[true]", "record 1 is a boolean, expected an object"),
    ],
)
def test_bad_data_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        load_records(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["deep.json", "deep.jsonl", "long.json", "long.jsonl"])
def test_data_that_is_more_than_python_takes_is_one_line(tmp_path: Path, name: str) -> None:
    deep = '{"instruction": ' + "[" * 100_000 + "]" * 100_000 + "}"
    record = deep if name.startswith("deep") else '{"instruction": ' + "7" * 5000 + "}"
    path = tmp_path / name
    path.write_text(record if name.endswith("l") else f"[{record}]")
    with pytest.raises(UserError) as caught:
        load_records(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert "nested too deeply" in str(caught.value) or "too long" in str(caught.value)


def test_unreadable_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        load_records(tmp_path / "absent.json")
    (tmp_path / "x.json").write_bytes(b'["\xff"]')
    with pytest.raises(UserError, match="not UTF-8 text \\(byte 2\\)"):
        load_records(tmp_path / "x.json")
