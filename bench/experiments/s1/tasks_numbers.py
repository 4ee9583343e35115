# SPDX-License-Identifier: Apache-2.0
"""Tasks about numbers and units. Each creates one record from ``rng``, with its correct answer."""

from fractions import Fraction
from random import Random

from experiments.s1.records import Record

_UNITS = (
    ("kilometres", "metres", 1000),
    ("metres", "centimetres", 100),
    ("kilograms", "grams", 1000),
    ("hours", "minutes", 60),
    ("minutes", "seconds", 60),
    ("days", "hours", 24),
    ("weeks", "days", 7),
    ("litres", "millilitres", 1000),
    ("feet", "inches", 12),
    ("dozens of eggs", "eggs", 12),
)
_GOODS = ("pencils", "apples", "notebooks", "tickets", "stamps", "candles", "bricks", "mugs")
_ROMAN = ("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I")
_ROMAN_VALUES = (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1)


def roman(number: int) -> str:
    """The Roman numeral of ``number``, 1 to 3999."""
    assert 1 <= number <= 3999
    letters = ""
    for value, symbol in zip(_ROMAN_VALUES, _ROMAN, strict=True):
        count, number = divmod(number, value)
        letters += symbol * count
    return letters


def factors(number: int) -> list[int]:
    """The prime factors of ``number`` (at least 2), ascending, with repetition."""
    assert number >= 2
    found, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return found + [number] * (number > 1)


def _numbers(rng: Random, count: int, top: int = 99) -> list[int]:
    return [rng.randint(1, top) for _ in range(count)]


def _listed(values: list[int]) -> str:
    return ", ".join(map(str, values))


def arithmetic(rng: Random) -> Record:
    a, b = rng.randint(2, 500), rng.randint(2, 99)
    question, answer = rng.choice(
        [(f"{a} + {b}", a + b), (f"{a} - {b}", a - b), (f"{a} * {b}", a * b)]
    )
    ask = rng.choice(["What is {}?", "Calculate {}.", "Work out {} and give only the number."])
    return Record(ask.format(question), "", str(answer))


def shopping(rng: Random) -> Record:
    goods, count, price = rng.choice(_GOODS), rng.randint(2, 19), rng.randint(2, 19)
    share = rng.randint(2, 30)
    total = count * price
    return Record(
        f"A shop sells {goods} at {price} coins each. Ada buys {count} of them and has a voucher "
        f"worth {share} coins. How much does she pay? Show your steps.",
        "",
        f"The {goods} cost {count} times {price} coins, which is {total} coins. The voucher takes "
        f"off {min(share, total)} coins. Ada pays {max(0, total - share)} coins.",
    )


def long_addition(rng: Random) -> Record:
    a, b = rng.randint(1000, 999_999), rng.randint(1000, 999_999)
    lines, carry = [], 0
    for place in range(len(str(max(a, b)))):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry
        lines.append(
            f"Digit {place + 1}: {x} + {y} + carry {carry} = {total}, "
            f"write {total % 10}, carry {total // 10}."
        )
        carry = total // 10
    answer = "\n".join([*lines, f"The sum is {a + b}."])
    return Record("Add the two numbers digit by digit, from the right.", f"{a}, {b}", answer)


def compare(rng: Random) -> Record:
    a, b = rng.randint(-99, 999), rng.randint(-99, 999)
    answer = "They are equal." if a == b else str(max(a, b))
    return Record("Which number is larger?", f"{a} and {b}", answer)


def convert_units(rng: Random) -> Record:
    large, small, rate = rng.choice(_UNITS)
    count = rng.randint(2, 60)
    answer = f"{count} {large} are {count * rate} {small}."
    return Record(f"Convert {count} {large} to {small}.", "", answer)


def temperature(rng: Random) -> Record:
    """Celsius to Fahrenheit. The Celsius value is a multiple of 5, so the result is exact."""
    celsius = 5 * rng.randint(-8, 40)
    fahrenheit = celsius * 9 // 5 + 32
    return Record(
        "Convert the temperature to degrees Fahrenheit and name the rule.",
        f"{celsius} degrees Celsius",
        f"Multiply by 9, divide by 5 and add 32: {celsius} degrees Celsius are {fahrenheit} "
        "degrees Fahrenheit.",
    )


def to_roman(rng: Random) -> Record:
    number = rng.randint(1, 2100)
    return Record("Write the number as a Roman numeral.", str(number), roman(number))


def from_roman(rng: Random) -> Record:
    number = rng.randint(1, 2100)
    return Record(f"Which number is {roman(number)}?", "", str(number))


def binary(rng: Random) -> Record:
    number = rng.randint(1, 1023)
    name, digits = rng.choice([("binary", f"{number:b}"), ("hexadecimal", f"{number:x}")])
    return Record(f"Write {number} in {name}.", "", digits)


def factorise(rng: Random) -> Record:
    number = rng.randint(4, 400)
    found = factors(number)
    products = f"{number} = {' * '.join(map(str, found))}"
    answer = products if len(found) > 1 else f"{number} is prime."
    return Record(f"Factor {number} into primes.", "", answer)


def parity(rng: Random) -> Record:
    values = _numbers(rng, rng.randint(3, 12))
    even = _listed([v for v in values if v % 2 == 0]) or "none"
    odd = _listed([v for v in values if v % 2]) or "none"
    ask = "Split the numbers into even and odd ones, keeping their order."
    return Record(ask, _listed(values), f"Even: {even}\nOdd: {odd}")


def mean(rng: Random) -> Record:
    values = _numbers(rng, rng.randint(2, 6))
    value = Fraction(sum(values), len(values))
    return Record(
        "Give the mean of the numbers as a whole number or a fraction in lowest terms.",
        _listed(values),
        f"The sum is {sum(values)} and there are {len(values)} numbers, so the mean is {value}.",
    )


def sort_numbers(rng: Random) -> Record:
    values = _numbers(rng, rng.randint(3, 20), 999)
    order = rng.choice(["ascending", "descending"])
    answer = _listed(sorted(values, reverse=order == "descending"))
    return Record(f"Sort the numbers in {order} order.", _listed(values), answer)


def times_table(rng: Random) -> Record:
    factor, rows = rng.randint(2, 25), rng.randint(5, 25)
    lines = [f"{n} x {factor} = {n * factor}" for n in range(1, rows + 1)]
    ask = f"Write the multiplication table of {factor} up to {rows} times."
    return Record(ask, "", "\n".join(lines))


def fizz_buzz(rng: Random) -> Record:
    a, b, top = rng.randint(2, 4), rng.randint(5, 7), rng.randint(10, 60)
    words = [("fizz" * (n % a == 0) + "buzz" * (n % b == 0)) or str(n) for n in range(1, top + 1)]
    return Record(
        f"Count from 1 to {top}. Say fizz for multiples of {a}, buzz for multiples of {b} and "
        "fizzbuzz for multiples of both.",
        "",
        " ".join(words),
    )


def primes(rng: Random) -> Record:
    low = rng.randint(2, 150)
    high = low + rng.randint(20, 120)
    found = [n for n in range(low, high + 1) if len(factors(n)) == 1]
    return Record(f"List all primes from {low} to {high}.", "", _listed(found))
