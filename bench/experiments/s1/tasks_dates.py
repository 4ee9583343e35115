# SPDX-License-Identifier: Apache-2.0
"""Tasks about dates and clocks. Each creates one record, with its answer from the calendar."""

import calendar
from datetime import date, timedelta
from random import Random

from experiments.s1.records import Record

# English in every locale.
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _day(rng: Random) -> date:
    return date(1900, 1, 1) + timedelta(days=rng.randrange(55_000))


def _month(day: date) -> str:
    return f"{MONTHS[day.month - 1]} {day.year}"


def _spoken(day: date) -> str:
    return f"{day.day} {_month(day)}"


def weekday(rng: Random) -> Record:
    day = _day(rng)
    ask = f"Which day of the week is {_spoken(day)} in the Gregorian calendar?"
    return Record(ask, "", f"It is a {WEEKDAYS[day.weekday()]}.")


def days_between(rng: Random) -> Record:
    start = _day(rng)
    days = rng.randint(1, 400)
    end = start + timedelta(days=days)
    ask = "How many days is it from the first date to the second?"
    return Record(ask, f"{start.isoformat()}, {end.isoformat()}", f"{days} days")


def leap_year(rng: Random) -> Record:
    year = rng.choice([rng.randint(1800, 2400), 100 * rng.randint(18, 24)])
    if year % 400 == 0:
        answer = f"Yes, {year} is a leap year: it is divisible by 400."
    elif year % 100 == 0:
        answer = f"No, {year} is not a leap year: it is divisible by 100 but not by 400."
    elif year % 4 == 0:
        answer = f"Yes, {year} is a leap year: it is divisible by 4 but not by 100."
    else:
        answer = f"No, {year} is not a leap year: it is not divisible by 4."
    return Record(f"Is {year} a leap year? Give the reason.", "", answer)


def iso_date(rng: Random) -> Record:
    days = [_day(rng) for _ in range(rng.randint(1, 8))]
    ask = "Write each date as year-month-day, one a line."
    return Record(ask, "; ".join(map(_spoken, days)), "\n".join(d.isoformat() for d in days))


def month_of_days(rng: Random) -> Record:
    """Every day of a part of a month with its weekday, for long answers."""
    first = _day(rng).replace(day=1)
    length = calendar.monthrange(first.year, first.month)[1]
    count = rng.randint(5, length)
    days = [first + timedelta(days=n) for n in range(count)]
    ask = f"List the first {count} days of {_month(first)} with weekdays."
    return Record(ask, "", "\n".join(f"{d.day}: {WEEKDAYS[d.weekday()]}" for d in days))


def clock(rng: Random) -> Record:
    start, minutes = rng.randrange(24 * 60), rng.randint(5, 600)
    end = (start + minutes) % (24 * 60)
    ask = f"It is {start // 60:02}:{start % 60:02}. What time is it {minutes} minutes later?"
    return Record(ask, "", f"{end // 60:02}:{end % 60:02}")
