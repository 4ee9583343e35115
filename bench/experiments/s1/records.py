# SPDX-License-Identifier: Apache-2.0
"""Instruction records, and a reader for alpaca-format files."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from presum.errors import UserError


class Record(NamedTuple):
    """One example: the instruction, its input (may be empty), and the answer."""

    instruction: str
    input: str
    output: str


def load_records(path: Path) -> list[Record]:
    """The records of a JSON array, or of a ``.jsonl`` file (one object per line, blank lines
    skipped).

    Raises UserError with the place of malformed JSON, and with the number (from 1) of a record that
    lacks ``instruction`` or ``output`` or contains anything but text.
    """
    text = _read(path)
    items = _parse_lines(text, path) if path.suffix == ".jsonl" else _parse_array(text, path)
    if not items:
        raise UserError(f"{path}: no records")
    return [_record(item, path=path, number=n) for n, item in enumerate(items, start=1)]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"--data {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from error


def _parse_array(text: str, path: Path) -> list[Any]:
    try:
        items = json.loads(text)
    except json.JSONDecodeError as error:
        number = _records_before(text, error.pos) + 1
        raise _malformed(error, path=path, line=error.lineno, record=number) from error
    except (RecursionError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as records: {_too_much(error)}") from error
    if not isinstance(items, list):
        raise UserError(f"{path}: expected a JSON array of records, found {_kind(items)}")
    return items


def _parse_lines(text: str, path: Path) -> list[Any]:
    items = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            if line.strip():
                items.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise _malformed(error, path=path, line=number, record=len(items) + 1) from error
        except (RecursionError, ValueError) as error:
            place = f"line {number} (record {len(items) + 1})"
            raise UserError(f"{path}: {place} cannot be read: {_too_much(error)}") from error
    return items


def _too_much(error: Exception) -> str:
    """What Python cannot read in well-formed JSON."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "a number in it is too long"


def _records_before(text: str, end: int) -> int:
    """The number of complete items of a JSON array before a position."""
    decoder, count, at = json.JSONDecoder(), 0, text.find("[") + 1
    while at < end:
        at += len(text[at:end]) - len(text[at:end].lstrip(" \t\r\n,"))
        try:
            _, at = decoder.raw_decode(text, at)
        except (RecursionError, ValueError):
            break
        count += 1
    return count


def _malformed(error: json.JSONDecodeError, *, path: Path, line: int, record: int) -> UserError:
    place = f"line {line}, column {error.colno} (record {record})"
    return UserError(f"{path}: malformed JSON at {place}: {error.msg}")


def _record(item: object, *, path: Path, number: int) -> Record:
    if not isinstance(item, dict):
        raise UserError(f"{path}: record {number} is {_kind(item)}, expected an object")
    place = f"{path}: record {number}"
    return Record(
        instruction=_text(item, "instruction", place=place),
        input="" if item.get("input") is None else _text(item, "input", place=place),
        output=_text(item, "output", place=place),
    )


def _text(item: dict[str, Any], name: str, *, place: str) -> str:
    value = item.get(name)
    if value is None:
        raise UserError(f"{place} has no '{name}'")
    if not isinstance(value, str):
        raise UserError(f"{place}: '{name}' is {_kind(value)}, expected a string")
    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return names.get(type(value), "null" if value is None else "a number")
