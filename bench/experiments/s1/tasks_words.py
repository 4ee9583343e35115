# SPDX-License-Identifier: Apache-2.0
"""Tasks about words and structured text. Each creates one record, with its correct answer."""

import json
from random import Random

from experiments.s1.records import Record

CLASSES = {
    "animal": ("otter", "heron", "badger", "salmon", "lizard", "moth", "camel", "falcon"),
    "fruit": ("plum", "mango", "cherry", "apricot", "banana", "grape", "papaya", "quince"),
    "tool": ("hammer", "chisel", "pliers", "spanner", "shovel", "drill", "file", "wrench"),
    "instrument": ("violin", "trumpet", "cello", "oboe", "harp", "drum", "flute", "piano"),
    "colour": ("violet", "scarlet", "turquoise", "beige", "crimson", "indigo", "amber", "teal"),
}
"""Unambiguous words, by class."""

WORDS = tuple(word for words in CLASSES.values() for word in words)
_FIRST = ("Ada", "Bruno", "Chen", "Dalia", "Emil", "Farah", "Goran", "Hana", "Ivo", "Jana")
_LAST = ("Okafor", "Lindqvist", "Marin", "Tanaka", "Weber", "Silva", "Novak", "Haddad", "Reyes")
_CITIES = ("Lisbon", "Osaka", "Quito", "Tartu", "Dakar", "Bergen", "Hobart", "Leeds")


def _words(rng: Random, low: int, high: int) -> list[str]:
    return rng.sample(WORDS, rng.randint(low, high))


def sort_words(rng: Random) -> Record:
    words = _words(rng, 3, 24)
    ask = rng.choice(["Sort the words alphabetically.", "Put these words in alphabetical order."])
    return Record(ask, ", ".join(words), ", ".join(sorted(words)))


def reverse_word(rng: Random) -> Record:
    word = rng.choice(WORDS)
    return Record(f"Write the word '{word}' backwards.", "", word[::-1])


def reverse_list(rng: Random) -> Record:
    words = _words(rng, 3, 16)
    return Record("Reverse the order of the words.", " ".join(words), " ".join(reversed(words)))


def spell(rng: Random) -> Record:
    word = rng.choice(WORDS)
    return Record("Spell the word letter by letter, with dashes.", word, "-".join(word))


def count_letter(rng: Random) -> Record:
    phrase, letter = " ".join(_words(rng, 1, 6)), rng.choice("aeiorlt")
    count = phrase.count(letter)
    times = "time" if count == 1 else "times"
    ask = f"How often does the letter '{letter}' occur in the text?"
    return Record(ask, phrase, f"The letter '{letter}' occurs {count} {times}.")


def count_words(rng: Random) -> Record:
    words = _words(rng, 1, 14)
    return Record(
        "Count the words and the letters of the text.",
        " ".join(words),
        f"Words: {len(words)}. Letters: {sum(map(len, words))}.",
    )


def remove_vowels(rng: Random) -> Record:
    text = " ".join(_words(rng, 2, 10))
    answer = "".join(c for c in text if c not in "aeiou")
    return Record("Remove all vowels from the text.", text, answer)


def classify(rng: Random) -> Record:
    label = rng.choice(sorted(CLASSES))
    word = rng.choice(CLASSES[label])
    return Record(f"Is it an {' or a '.join(sorted(CLASSES))}? Answer in one word.", word, label)


def odd_one_out(rng: Random) -> Record:
    label, other = rng.sample(sorted(CLASSES), 2)
    stranger = rng.choice(CLASSES[other])
    words = [*rng.sample(CLASSES[label], 3), stranger]
    rng.shuffle(words)
    answer = f"{stranger}: the other words name one kind of thing ({label}), this one does not."
    return Record("Which word does not belong, and why?", ", ".join(words), answer)


def longest_word(rng: Random) -> Record:
    words = _words(rng, 2, 8)
    ask = "Which word is the longest? If several are, give the first."
    return Record(ask, ", ".join(words), max(words, key=len))


def surname_first(rng: Random) -> Record:
    people = [(rng.choice(_FIRST), rng.choice(_LAST)) for _ in range(rng.randint(1, 10))]
    return Record(
        "Rewrite each name as surname, comma, first name, one name a line.",
        "; ".join(f"{first} {last}" for first, last in people),
        "\n".join(f"{last}, {first}" for first, last in people),
    )


def change_case(rng: Random) -> Record:
    words = _words(rng, 2, 5)
    style, answer = rng.choice(
        [
            ("snake_case", "_".join(words)),
            ("upper case", " ".join(words).upper()),
            ("title case", " ".join(words).title()),
        ]
    )
    return Record(f"Write the phrase in {style}.", " ".join(words), answer)


def _person(rng: Random) -> dict[str, str | int]:
    return {
        "name": f"{rng.choice(_FIRST)} {rng.choice(_LAST)}",
        "age": rng.randint(18, 90),
        "city": rng.choice(_CITIES),
    }


def read_json(rng: Random) -> Record:
    people = [_person(rng) for _ in range(rng.randint(1, 6))]
    which, field = rng.randrange(len(people)), rng.choice(["name", "age", "city"])
    ask = f"Give the {field} of entry {which + 1}."
    return Record(ask, json.dumps(people), str(people[which][field]))


def write_json(rng: Random) -> Record:
    people = [_person(rng) for _ in range(rng.randint(1, 7))]
    text = " ".join(f"{p['name']} is {p['age']} and lives in {p['city']}." for p in people)
    ask = "Extract name, age and city of each person as a JSON list."
    return Record(ask, text, json.dumps(people))


def column_sum(rng: Random) -> Record:
    rows = [(rng.choice(WORDS), rng.randint(1, 50)) for _ in range(rng.randint(2, 12))]
    table = "\n".join(["item,count", *(f"{item},{count}" for item, count in rows)])
    return Record("Add up the column count.", table, f"The total is {sum(c for _, c in rows)}.")


def deduplicate(rng: Random) -> Record:
    words = [rng.choice(WORDS[:12]) for _ in range(rng.randint(4, 16))]
    ask = "Remove repeated words, keeping the first of each."
    return Record(ask, " ".join(words), " ".join(dict.fromkeys(words)))


def number_lines(rng: Random) -> Record:
    labels = {word: label for label, words in CLASSES.items() for word in words}
    words = _words(rng, 2, 26)
    lines = [f"{n}. {word} ({labels[word]})" for n, word in enumerate(words, start=1)]
    ask = "Number the words, one a line, and put the kind of thing in brackets."
    return Record(ask, ", ".join(words), "\n".join(lines))
