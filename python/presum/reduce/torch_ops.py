# SPDX-License-Identifier: Apache-2.0
"""The sum of ``include/presum/reduce.h`` in torch operations, for tensors outside host memory.

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
from presum.reduce.limits import DIVISOR_MAX, LEAVES_MAX

CHUNK = 1 << 20  # elements handled at once: bounds the temporary memory to about 300 MB
DIGIT = 24
DIGIT_MASK = (1 << DIGIT) - 1
COUNT_BITS = 15  # of the number of leaves
COUNT_MASK = (1 << COUNT_BITS) - 1


@dataclass(frozen=True)
class Format:
    """A binary floating-point format."""

    precision: int  # bits of a significand, the hidden one included
    exponents: int  # bits of the exponent field
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
    torch.float32: Format(24, 8, torch.int32),
    torch.bfloat16: Format(8, 8, torch.int16),
    torch.float16: Format(11, 5, torch.int16),
}


def _check(dtype: torch.dtype, divisor: int, leaves: int) -> None:
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


def _divide(digits: torch.Tensor, divisor: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The quotient's first two digits that hold its highest bit (25 to 48 bits), the place in bits
    of the lower one, and whether anything is left."""
    window = torch.zeros_like(digits[0])
    place, rest, nothing = torch.zeros_like(window), torch.zeros_like(window), window.clone()
    left = torch.zeros_like(window, dtype=torch.bool)
    # The unit is the smallest denormal, so one digit below the point holds the rounding bit.
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


@torch.no_grad()
def exact(leaves: Sequence[torch.Tensor], divisor: int, out: torch.Tensor) -> None:
    """The correctly rounded quotient of the sum. ``out`` may be one of the leaves."""
    _check(out.dtype, divisor, len(leaves))
    for part in _chunks(out.numel()):
        digits = _sum([leaf[part] for leaf in leaves])
        codes = digits[-1]
        digits = digits[:-1]
        negative = _magnitude(digits)
        bits = _round(*_divide(digits, divisor), FORMATS[out.dtype])
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
