# SPDX-License-Identifier: Apache-2.0
"""The dataset that presum generates: instructions with correct answers."""

import itertools
from collections.abc import Callable
from random import Random

from experiments.s1 import tasks_dates as dates
from experiments.s1 import tasks_numbers as numbers
from experiments.s1 import tasks_words as words
from experiments.s1.records import Record

COUNT = 1000
"""Records of the built-in dataset."""

_SEED = 20260214

TASKS: tuple[Callable[[Random], Record], ...] = (
    numbers.arithmetic,
    words.sort_words,
    dates.weekday,
    numbers.shopping,
    words.reverse_word,
    numbers.times_table,
    words.classify,
    words.read_json,
    dates.days_between,
    numbers.convert_units,
    words.reverse_list,
    numbers.long_addition,
    words.spell,
    dates.leap_year,
    numbers.compare,
    words.count_letter,
    words.write_json,
    numbers.temperature,
    dates.iso_date,
    words.count_words,
    numbers.to_roman,
    words.remove_vowels,
    numbers.fizz_buzz,
    words.odd_one_out,
    numbers.from_roman,
    dates.month_of_days,
    words.longest_word,
    numbers.binary,
    words.surname_first,
    numbers.factorise,
    words.change_case,
    numbers.parity,
    words.column_sum,
    dates.clock,
    numbers.mean,
    words.deduplicate,
    numbers.sort_numbers,
    words.number_lines,
    numbers.primes,
)
"""All kinds of tasks, in their order of use."""


def generate(*, count: int = COUNT) -> list[Record]:
    """``count`` different records, the same on every machine and in every process."""
    rng = Random(_SEED)
    records: dict[Record, None] = {}
    for task in itertools.cycle(TASKS):
        if len(records) == count:
            break
        records[task(rng)] = None
    return list(records)
