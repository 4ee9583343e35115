# SPDX-License-Identifier: Apache-2.0
"""The sums of ``include/presum/reduce.h`` in torch operations, for tensors outside host memory.

Integer arithmetic on the bit patterns throughout, so that the bits are those of the C++ kernels on
any device and whatever its flush modes are. Nothing is read back, no shape depends on data. All
tensors are one-dimensional, contiguous, on one device; fp32, bf16 or fp16; ``CHUNK`` elements are
handled at once. Work is queued on the current stream.

Numbers are held in digits of 24 bits, lowest first, one int64 tensor each. A significand of 24
bits, shifted by at most 23, has 47: 32,767 of them fit into an int64 without a carry.
torch has no unsigned 64-bit arithmetic; no intermediate value here reaches 2^63.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from presum.errors import UserError
from presum.reduce.methods import DIVISOR_MAX, LEAVES_MAX

CHUNK = 1 << 20  # elements handled at once: bounds the temporary memory to about 300 MB
DIGIT = 24
DIGIT_MASK = (1 << DIGIT) - 1
COUNT_BITS = 15  # of the number of leaves
COUNT_MASK = (1 << COUNT_BITS) - 1
SPECIAL = 255  # exponent of fp32, and bin, of what is not finite
BIN = 40  # bits


@dataclass(frozen=True)
class Format:
    """A binary floating-point format."""

    precision: int  # bits of a significand, the hidden one included
    exponents: int  # bits of the exponent field
    lowest: int  # the smallest denormal is 2^lowest
    integer: torch.dtype

    @property
    def hidden(self) -> int:
        return 1 << (self.precision - 1)

    @property
    def special(self) -> int:
        """The exponent field of what is not finite."""
        return (1 << self.exponents) - 1

    @property
    def infinity(self) -> int:
        return self.special << (self.precision - 1)

    @property
    def sign(self) -> int:
        return 1 << (self.precision + self.exponents - 1)

    @property
    def digits(self) -> int:
        """How many hold the sum of 2^15 leaves in units of the smallest denormal, with its sign."""
        return -(-(self.special - 2 + self.precision + COUNT_BITS + 1) // DIGIT)


FORMATS = {
    torch.float32: Format(24, 8, -149, torch.int32),
    torch.bfloat16: Format(8, 8, -133, torch.int16),
    torch.float16: Format(11, 5, -24, torch.int16),
}


State = Sequence[torch.Tensor]
"""Top, high and low of a binned sum."""


def _check(dtype: torch.dtype, divisor: int = 1, leaves: int = 1) -> None:
    """What the C++ library checks by itself."""
    if dtype not in FORMATS:
        wanted = "move fp64 leaves to the CPU" if dtype == torch.float64 else "use fp32, bf16, fp16"
        raise UserError(f"presum.reduce: {dtype} cannot be summed on this device: {wanted}")
    if not 1 <= divisor <= DIVISOR_MAX:
        raise UserError(f"presum.reduce: divisor {divisor} is not between 1 and {DIVISOR_MAX}")
    if not 1 <= leaves <= LEAVES_MAX:
        raise UserError(f"presum.reduce: {leaves} leaves, not between 1 and {LEAVES_MAX}")


def _chunks(count: int) -> Iterator[slice]:
    return (slice(at, min(at + CHUNK, count)) for at in range(0, count, CHUNK))


# ---- taking numbers apart


def _unpack(leaf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Exponent field (0 and 1 have the same scale) and signed significand, as int32."""
    form = FORMATS[leaf.dtype]
    bits = leaf.view(form.integer).to(torch.int32)
    exponent = (bits >> (form.precision - 1)) & form.special
    fraction = bits & (form.hidden - 1)
    significand = torch.where(exponent > 0, fraction | form.hidden, fraction)
    return exponent, torch.where(bits < 0, -significand, significand)


def _unpack_as_fp32(leaf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # fp16's numbers are normal in fp32; bf16's are fp32's with zeros below. Both are exact, and
    # no number that a processor could flush is computed with.
    if leaf.dtype == torch.bfloat16:
        exponent, significand = _unpack(leaf)
        return exponent, significand << 16
    return _unpack(leaf.float())


def _code(significand: torch.Tensor, hidden: int) -> torch.Tensor:
    """What is not finite, as an integer whose sum still says what was there: +Inf counts 1,
    -Inf 2^15, NaN both."""
    infinity = torch.where(significand < 0, 1 << COUNT_BITS, 1)
    return torch.where(significand.abs() > hidden, (1 << COUNT_BITS) + 1, infinity)


# ---- putting results together


def _carry(digits: torch.Tensor) -> None:
    for low, high in pairwise(digits):
        high += low >> DIGIT
        low &= DIGIT_MASK


def _magnitude(digits: torch.Tensor) -> torch.Tensor:
    """Brings digits of any size or sign to 24 bits each, in place; tells where it is negative."""
    _carry(digits)
    negative = digits[-1] < 0
    digits *= torch.where(negative, -1, 1)
    _carry(digits)
    return negative


def _divide(
    digits: torch.Tensor, divisor: int, below: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The quotient's first two digits that hold its highest bit (25 to 48 bits), the place in bits
    of the lower one, and whether anything is left. ``below``: digits after the point."""
    window = torch.zeros_like(digits[0])
    place, rest, nothing = torch.zeros_like(window), torch.zeros_like(window), window.clone()
    left = torch.zeros_like(window, dtype=torch.bool)
    for row in range(len(digits) - 1, -below - 1, -1):
        digit = digits[row] if row >= 0 else nothing
        if divisor > 1:
            dividend = (rest << DIGIT) + digit
            digit = torch.div(dividend, divisor, rounding_mode="trunc")
            rest = dividend - digit * divisor
        taken = window <= DIGIT_MASK
        left |= ~taken & (digit != 0)
        place = torch.where(taken, row * DIGIT, place)
        window = torch.where(taken, (window << DIGIT) + digit, window)
    return window, place, left | (rest != 0)


def _round(
    window: torch.Tensor, place: torch.Tensor, left: torch.Tensor, form: Format
) -> torch.Tensor:
    """The bits of window x 2^place smallest denormals (and a little more where ``left``), to
    nearest, ties to even. ``window`` is below 2^48 and has more bits than the format's precision,
    unless the result is denormal or zero."""
    length = (window.double().view(torch.int64) >> 52) - 1022
    ulp = (length + place - form.precision).clamp(min=0)
    dropped = (ulp - place).clamp(1, 62)
    kept = window >> dropped
    rest = window - (kept << dropped)
    half = torch.ones_like(rest) << (dropped - 1)
    up = (rest > half) | ((rest == half) & (left | ((kept & 1) != 0)))
    # A significand that lacks the hidden bit is denormal, and one that is a bit too long carries
    # into the exponent: addition does both.
    return ((ulp << (form.precision - 1)) + kept + up).clamp(max=form.infinity)


def _pack(
    bits: torch.Tensor, negative: torch.Tensor, codes: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    form = FORMATS[dtype]
    bits = torch.where(negative, bits - form.sign, bits)
    plus, minus = codes & COUNT_MASK, codes >> COUNT_BITS
    infinity = torch.where(minus != 0, form.infinity - form.sign, form.infinity)
    quiet = form.infinity | (form.hidden >> 1)
    special = torch.where((plus != 0) & (minus != 0), quiet, infinity)
    return torch.where(codes != 0, special, bits).to(form.integer).view(dtype)


# ---- exact


@torch.no_grad()
def exact(leaves: Sequence[torch.Tensor], divisor: int, out: torch.Tensor) -> None:
    """The correctly rounded quotient of the sum. ``out`` may be one of the leaves."""
    _check(out.dtype, divisor, len(leaves))
    for part in _chunks(out.numel()):
        digits = _sum([leaf[part] for leaf in leaves])
        codes = digits[-1]
        digits = digits[:-1]
        negative = _magnitude(digits)
        # The unit is the smallest denormal, so one digit below the point holds the rounding bit.
        bits = _round(*_divide(digits, divisor, below=1), FORMATS[out.dtype])
        out[part] = _pack(bits, negative, codes, out.dtype)


def _sum(leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    """Digits of the sum in smallest denormals, without carries; the last row has the codes of what
    is not finite."""
    form = FORMATS[leaves[0].dtype]
    size = (form.digits + 1, leaves[0].numel())
    digits = torch.zeros(size, dtype=torch.int64, device=leaves[0].device)
    for leaf in leaves:
        exponent, significand = _unpack(leaf)
        finite = exponent < form.special
        shift = (exponent - 1).clamp(min=0)
        row = torch.div(shift, DIGIT, rounding_mode="trunc")
        value = significand.to(torch.int64) << (shift - row * DIGIT)
        value = torch.where(finite, value, _code(significand, form.hidden))
        row = torch.where(finite, row, form.digits).to(torch.int64)
        digits.scatter_add_(0, row[None], value[None])
    return digits


@torch.no_grad()
def add_gram(leaves: Sequence[torch.Tensor], gram: torch.Tensor) -> None:
    """Adds the dot products of all pairs of leaves to the float64 matrix ``gram``. Relative error
    2^-53 per addition: the order of additions is the device's."""
    step = max(1, CHUNK // len(leaves))
    for at in range(0, leaves[0].numel(), step):
        wide = torch.stack([leaf[at : at + step].double() for leaf in leaves])
        gram += wide @ wide.T


# ---- fixed


def fixed_bits(total_leaves: int, bits: int) -> int:
    """F: the magnitude of each leaf's integer stays below 2^F, so that the sum of all fits."""
    return bits - 1 - (total_leaves - 1).bit_length()


@torch.no_grad()
def exponents(leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    """The largest biased exponent of each element as fp32 has it, uint8."""
    _check(leaves[0].dtype, leaves=len(leaves))
    found = torch.zeros(leaves[0].numel(), dtype=torch.uint8, device=leaves[0].device)
    for part in _chunks(found.numel()):
        for leaf in leaves:
            exponent = _unpack_as_fp32(leaf[part])[0].to(torch.uint8)
            found[part] = torch.maximum(found[part], exponent)
    return found


@torch.no_grad()
def encode(
    leaves: Sequence[torch.Tensor], exponents: torch.Tensor, total_leaves: int, bits: int
) -> torch.Tensor:
    """The sum of the leaves as integers of the scale of ``exponents``, int32 or int64."""
    _check(leaves[0].dtype, leaves=max(total_leaves, len(leaves)))
    integer = torch.int32 if bits == 32 else torch.int64
    sums = torch.zeros(exponents.numel(), dtype=integer, device=exponents.device)
    for part in _chunks(sums.numel()):
        for leaf in leaves:
            found = _quantise(leaf[part], exponents[part], fixed_bits(total_leaves, bits))
            sums[part] += found.to(integer)
    return sums


def fixed(leaves: Sequence[torch.Tensor], divisor: int, bits: int, out: torch.Tensor) -> None:
    """These three in one."""
    largest = exponents(leaves)
    sums = encode(leaves, largest, len(leaves), bits)
    decode(sums, largest, len(leaves), divisor, bits, out)


def _quantise(leaf: torch.Tensor, largest: torch.Tensor, size: int) -> torch.Tensor:
    """rint(leaf x 2^(size - 1 + 127 - max(largest, 1))), at most 2^size - 1 in magnitude."""
    exponent, significand = _unpack_as_fp32(leaf)
    shift = exponent.clamp(min=1) - largest.clamp(min=1).to(torch.int32) + (size - 24)
    magnitude = significand.abs().to(torch.int64)
    up = magnitude << shift.clamp(0, size - 24 if size > 24 else 0)
    down = _half_even(magnitude, (-shift).clamp(1, 32))
    scaled = torch.where(shift >= 0, up, down).clamp(max=(1 << size) - 1)
    finite = torch.where(significand < 0, -scaled, scaled)
    code = torch.where(exponent == SPECIAL, _code(significand, 1 << 23), 0)
    return torch.where(largest == SPECIAL, code, finite)


def _half_even(magnitude: torch.Tensor, dropped: torch.Tensor) -> torch.Tensor:
    kept = magnitude >> dropped
    half_less = (torch.ones_like(magnitude) << (dropped - 1)) - 1
    return (magnitude + half_less + (kept & 1)) >> dropped


@torch.no_grad()
def decode(
    sums: torch.Tensor,
    exponents: torch.Tensor,
    total_leaves: int,
    divisor: int,
    bits: int,
    out: torch.Tensor,
) -> None:
    """Rounds the quotient of the integer sums of ``encode`` to ``out``."""
    _check(out.dtype, divisor, total_leaves)
    form = FORMATS[out.dtype]
    unit = -126 - fixed_bits(total_leaves, bits) - form.lowest
    for part in _chunks(out.numel()):
        special = exponents[part] == SPECIAL
        wide = sums[part].to(torch.int64)
        digits = torch.zeros((3, len(wide)), dtype=torch.int64, device=wide.device)
        digits[0] = torch.where(special, 0, wide)
        negative = _magnitude(digits)
        # A quotient that is not zero is at least 2^-31: the second digit after the point.
        window, place, left = _divide(digits, divisor, below=3)
        place = place + exponents[part].clamp(min=1).to(torch.int64) + unit
        found = _round(window, place, left, form)
        out[part] = _pack(found, negative, torch.where(special, wide, 0), out.dtype)


# ---- binned
#
# Bin b > 0 has the bits 40 (b - 1) to 40 b - 1 of a number in units of 2^-149, the smallest fp32
# denormal. In bin SPECIAL ``high`` counts positive infinities and ``low`` negative ones; a NaN is
# both.


@torch.no_grad()
def binned_add(state: State, leaf: torch.Tensor) -> None:
    """Adds one leaf to the sum."""
    _check(leaf.dtype)
    top, high, low = state
    for part in _chunks(leaf.numel()):
        exponent, significand = _unpack_as_fp32(leaf[part])
        own = _bin(exponent, significand)
        _raise(top[part], high[part], low[part], own)
        more, rest = _bin_digits(exponent, significand, top[part])
        high[part] += more
        low[part] += rest


def _bin(exponent: torch.Tensor, significand: torch.Tensor) -> torch.Tensor:
    """The bin of an fp32 number's highest bit, uint8; 0 for zero."""
    length = (significand.abs().double().view(torch.int64) >> 52) - 1022
    length += (exponent - 1).clamp(min=0)
    found = torch.div(length + (BIN - 1), BIN, rounding_mode="trunc")
    found = torch.where(significand == 0, 0, found)
    return torch.where(exponent == SPECIAL, SPECIAL, found).to(torch.uint8)


def _bin_digits(
    exponent: torch.Tensor, significand: torch.Tensor, top: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """An fp32 number's digits in bin ``top`` and the one below, cut off after that."""
    size = significand.abs().to(torch.int64)
    shift = (exponent - 1).clamp(min=0) - BIN * (top.to(torch.int32) - 1)
    high = torch.where(shift >= 0, size << shift.clamp(0, BIN), size >> (-shift).clamp(0, 31))
    below = shift + BIN
    low = torch.where(below >= 0, size << below.clamp(0, BIN - 1), size >> (-below).clamp(0, 31))
    # Where shift >= 0 the number has no bit in the lower bin.
    low = torch.where(shift >= 0, 0, low & ((1 << BIN) - 1))
    negative = significand < 0
    high, low = torch.where(negative, -high, high), torch.where(negative, -low, low)
    code = torch.where(exponent == SPECIAL, _code(significand, 1 << 23), 0)
    plus, minus = code & COUNT_MASK, code >> COUNT_BITS
    special = top == SPECIAL
    return torch.where(special, plus, high), torch.where(special, minus, low)


@torch.no_grad()
def binned_raise(state: State, to: torch.Tensor) -> None:
    """Brings each element to the bin ``to`` where that is higher."""
    top, high, low = state
    for part in _chunks(to.numel()):
        _raise(top[part], high[part], low[part], to[part])


def _raise(top: torch.Tensor, high: torch.Tensor, low: torch.Tensor, to: torch.Tensor) -> None:
    target = torch.maximum(top, to)
    rise = target - top
    low.copy_(torch.where(rise == 0, low, torch.where(rise == 1, high, 0)))
    high.copy_(torch.where(rise == 0, high, 0))
    top.copy_(target)


@torch.no_grad()
def binned_merge(into: State, other: State) -> None:
    """Adds one sum to another."""
    for part in _chunks(into[0].numel()):
        top, high, low = (x[part] for x in into)
        other_top, other_high, other_low = (x[part].clone() for x in other)
        _raise(top, high, low, other_top)
        _raise(other_top, other_high, other_low, top)
        high += other_high
        low += other_low


@torch.no_grad()
def binned_decode(state: State, divisor: int, out: torch.Tensor) -> None:
    """Rounds the quotient of the sum to ``out``."""
    _check(out.dtype, divisor)
    top, high, low = state
    form = FORMATS[out.dtype]
    for part in _chunks(out.numel()):
        special = top[part] == SPECIAL
        codes = torch.where(special, high[part] + (low[part] << COUNT_BITS), 0)
        digits = _bin_sum(high[part], low[part])
        negative = _magnitude(digits)
        window, place, left = _divide(digits, divisor, below=3)
        place = place + BIN * (top[part].to(torch.int64) - 2) + (-149 - form.lowest)
        found = _round(window, place, left, form)
        out[part] = _pack(found, negative, codes, out.dtype)


def _bin_sum(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """high x 2^40 + low in digits: 2^40 is a digit and 16 bits."""
    digits = torch.zeros((5, len(high)), dtype=torch.int64, device=high.device)
    spare = 2 * DIGIT - BIN
    digits[0] = low
    digits[1] = (high & ((1 << spare) - 1)) << (DIGIT - spare)
    digits[2] = high >> spare
    return digits
