# SPDX-License-Identifier: Apache-2.0
"""The sum of ``include/presum/reduce.h`` in torch operations, for tensors outside host memory.

It uses integer arithmetic on the bit patterns throughout, so it gives the bits of the C++ kernels
on any device and in any flush mode. Nothing is read back, and no shape depends on data. All tensors
are one-dimensional, contiguous and on one device; fp32, bf16 or fp16. Each iteration handles
``CHUNK`` elements. Work is queued on the current stream.

Numbers are stored as digits of 24 bits, lowest first, one int64 tensor per digit. A significand of
24 bits, shifted by at most 23, has 47 bits: 32,767 of them fit into an int64 without a carry. torch
has no unsigned 64-bit arithmetic; no intermediate value here reaches 2^63.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from presum.errors import UserError
from presum.reduce.limits import DIVISOR_MAX, LEAVES_MAX

CHUNK = 1 << 20  # elements per iteration; limits temporary memory to about 300 MB
DIGIT = 24
DIGIT_MASK = (1 << DIGIT) - 1
COUNT_BITS = 15  # of the number of leaves
COUNT_MASK = (1 << COUNT_BITS) - 1


@dataclass(frozen=True)
class Format:
    """A binary floating-point format."""

    precision: int  # bits of a significand, including the hidden one
    exponents: int  # bits of the exponent field
    integer: torch.dtype

    @property
    def hidden(self) -> int:
        return 1 << (self.precision - 1)

    @property
    def special(self) -> int:
        """The exponent field of infinities and NaN."""
        return (1 << self.exponents) - 1

    @property
    def infinity(self) -> int:
        return self.special << (self.precision - 1)

    @property
    def sign(self) -> int:
        return 1 << (self.precision + self.exponents - 1)

    @property
    def digits(self) -> int:
        """The number of digits for the sum of 2^15 leaves in units of the smallest denormal, with
        its sign."""
        return -(-(self.special - 2 + self.precision + COUNT_BITS + 1) // DIGIT)


FORMATS = {
    torch.float32: Format(24, 8, torch.int32),
    torch.bfloat16: Format(8, 8, torch.int16),
    torch.float16: Format(11, 5, torch.int16),
}


def _check(dtype: torch.dtype, divisor: int, leaves: int) -> None:
    """The checks that the C++ library does for its own kernels."""
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
    """The exponent field (0 and 1 have the same scale) and the signed significand, as int32."""
    form = FORMATS[leaf.dtype]
    bits = leaf.view(form.integer).to(torch.int32)
    exponent = (bits >> (form.precision - 1)) & form.special
    fraction = bits & (form.hidden - 1)
    significand = torch.where(exponent > 0, fraction | form.hidden, fraction)
    return exponent, torch.where(bits < 0, -significand, significand)


def _code(significand: torch.Tensor, hidden: int) -> torch.Tensor:
    """Non-finite values as integers whose sum shows which occurred: +Inf counts 1, -Inf 2^15, NaN
    both."""
    infinity = torch.where(significand < 0, 1 << COUNT_BITS, 1)
    return torch.where(significand.abs() > hidden, (1 << COUNT_BITS) + 1, infinity)


# ---- putting results together


def _carry(digits: torch.Tensor) -> None:
    for low, high in pairwise(digits):
        high += low >> DIGIT
        low &= DIGIT_MASK


def _magnitude(digits: torch.Tensor) -> torch.Tensor:
    """Normalize digits of any size and sign to 24 bits each, in place. Returns where the number is
    negative."""
    _carry(digits)
    negative = digits[-1] < 0
    digits *= torch.where(negative, -1, 1)
    _carry(digits)
    return negative


def _divide(digits: torch.Tensor, divisor: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The first two digits of the quotient that include its highest bit (25 to 48 bits), the
    position in bits of the lower one, and whether a remainder is left."""
    window = torch.zeros_like(digits[0])
    place, rest, nothing = torch.zeros_like(window), torch.zeros_like(window), window.clone()
    left = torch.zeros_like(window, dtype=torch.bool)
    # The unit is the smallest denormal, so one digit below the point contains the rounding bit.
    for row in range(len(digits) - 1, -2, -1):
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
    """The bits of window x 2^place smallest denormals (plus a little if ``left``), rounded to
    nearest, ties to even. ``window`` is below 2^48, and has more bits than the format's precision
    unless the result is denormal or zero."""
    length = (window.double().view(torch.int64) >> 52) - 1022
    ulp = (length + place - form.precision).clamp(min=0)
    dropped = (ulp - place).clamp(1, 62)
    kept = window >> dropped
    rest = window - (kept << dropped)
    half = torch.ones_like(rest) << (dropped - 1)
    up = (rest > half) | ((rest == half) & (left | ((kept & 1) != 0)))
    # A significand without the hidden bit is denormal, and one with an extra bit carries into the
    # exponent: the addition handles both.
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


@torch.no_grad()
def exact(leaves: Sequence[torch.Tensor], divisor: int, out: torch.Tensor) -> None:
    """The sum divided by ``divisor``, correctly rounded. ``out`` can be one of the leaves."""
    _check(out.dtype, divisor, len(leaves))
    for part in _chunks(out.numel()):
        digits = _sum([leaf[part] for leaf in leaves])
        codes = digits[-1]
        digits = digits[:-1]
        negative = _magnitude(digits)
        bits = _round(*_divide(digits, divisor), FORMATS[out.dtype])
        out[part] = _pack(bits, negative, codes, out.dtype)


def _sum(leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    """The digits of the sum in units of the smallest denormal, without carries. The last row has
    the codes of non-finite values."""
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
    """Add the dot products of all pairs of leaves to the float64 matrix ``gram``. The relative
    error is 2^-53 per addition; the device determines the order of additions."""
    step = max(1, CHUNK // len(leaves))
    for at in range(0, leaves[0].numel(), step):
        wide = torch.stack([leaf[at : at + step].double() for leaf in leaves])
        gram += wide @ wide.T
