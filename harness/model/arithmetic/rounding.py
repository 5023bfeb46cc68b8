"""Bounds the float32 rounding errors that a variant's declared numerics imply, for the error budgets of operations.

Sources: IEEE 754 for additions, products and fused multiply-adds. For the largest errors of functions in ulp, the
section on mathematical functions of the CUDA C++ Programming Guide; an ulp is at most 2u of the value, u = 2^-24. These
are expf 2, division 0, __expf 2 + floor(|1.173 x|), __fdividef 2. For ex2.approx and rcp.approx, 2 and 1, the PTX
manual. The guide states that these values are found by testing; proofs take them as given. Fasi, Higham, Mikaitis and
Pranesh 2021, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330: tensor cores align addends to
the largest one and truncate, so an addition has an error of up to 2u. Xie and others, "MMA-Sim" (2025): for e4m3,
Hopper's tensor cores add 32 products to a sum at a time. Each product, and the sum, is truncated 13 bits below the
largest exponent.
"""

from __future__ import annotations

from harness.model.numerics import Numerics

U = 2.0**-24
"""Unit roundoff of float32, in which every kernel accumulates."""
UNIT_ROUNDOFF = {"float32": U, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative error of rounding a normal number to nearest."""
SMALLEST_STEP = {"float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}
"""Largest absolute error of storing a subnormal number. float32 and bfloat16 may be flushed to zero."""
LARGEST = {"float32": float.fromhex("0x1.fffffep127"), "float16": 65504.0, "bfloat16": float.fromhex("0x1.fep127")}
"""Largest finite value."""

E4M3_UNIT_ROUNDOFF = 2.0**-4
E4M3_LARGEST = 448.0
E4M3_SMALLEST_NORMAL = 2.0**-6
E4M3_SMALLEST_STEP = 2.0**-10
"""Largest absolute error of rounding a subnormal number to e4m3."""


EXP = 4 * U
"""Relative error of an exponential for an exact argument."""
ARGUMENT = {"accurate": U, "__expf": (1 + 2 * 1.173) * U, "fast": 6 * U}
"""Relative error of an exponential per unit of its argument. Includes the subtraction; for __expf 1.173 ulp, which
covers its product with log2 e; for `fast` also a separate product and the rounding of log2 e."""
CUBIC = 9e-5
"""Relative error of 2^f by a cubic with p(0) = 1, for 0 <= f < 1. The least possible is 8.56e-5 (Remez), and three
fused multiply-adds add up to 3 U."""
E4M3_DEPTH = 32
"""Number of e4m3 products that are added to a sum at a time."""
E4M3_CUT = 2.0**-13
"""Error of truncating each product, the old sum and the new sum, relative to the largest of them in magnitude. The
significand of a product is at least 1 if its factors are normal numbers."""
E4M3_STEP = (E4M3_DEPTH + 2) * E4M3_CUT
"""Error of such an addition, relative to the largest sum of magnitudes."""
LAMBDA = 4.0
"""Multiple of the root mean square that a sum of random roundings may reach. Roundings are not always +-u: distributed
uniformly, they have a standard deviation of u / sqrt(3), so this is 6.9 standard deviations (Higham and Mary 2019, SIAM
J. Sci. Comput. 41, A2815)."""


def addition(numerics: Numerics) -> float:
    """Relative error of one step of a sum, including the product."""
    return U if numerics.sums == "nearest" else 2 * U


def frame(numerics: Numerics) -> float:
    """Error of an exponential per unit of operand and of maximum, if log2 e is folded into both."""
    return 2 * U if numerics.functions == "fast" else 0.0


def division(numerics: Numerics) -> float:
    """Relative error of a division, computed as a reciprocal and a product."""
    return (5 if numerics.functions == "fast" else 2) * U
