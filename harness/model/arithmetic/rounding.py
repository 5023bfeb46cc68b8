"""How large a single rounding in float32 is, from what a variant declares: what operations derive budgets from.

Sources: IEEE 754 for additions, products and fused multiply-adds. The CUDA C++ Programming Guide, section on
mathematical functions, for the largest errors of functions in ulp, one of which is at most 2u of the value, u = 2^-24:
expf 2, division 0, __expf 2 + floor(|1.173 x|), __fdividef 2; for ex2.approx and rcp.approx, 2 and 1, the PTX manual.
These are found by testing, as the guide says: what is proved, is proved given them. Fasi, Higham, Mikaitis and Pranesh
2021, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330: tensor cores align what they add to
the largest and truncate, so an addition is off by up to 2u. Xie and others, "MMA-Sim" (2025): of e4m3, Hopper's add 32
products to a sum at a time, each cut off 13 bits below the largest exponent, and cut the sum off to 13 bits.
"""

from __future__ import annotations

from harness.model.arithmetic.floating_formats import U
from harness.model.numerics import Numerics

EXP = 4 * U
"""Error of an exponential, whatever its argument."""
ARGUMENT = {"accurate": U, "__expf": (1 + 2 * 1.173) * U, "fast": 6 * U}
"""Error of an exponential, per unit of its argument. Subtraction; 1.173 ulp of __expf, which has its product with
log2 e in it; where anything goes, that product and log2 e's own rounding besides."""
E4M3_DEPTH = 32
"""Products of e4m3 that are added to a sum at a time."""
E4M3_CUT = 2.0**-13
"""What is cut off of each of them and of the sum, and of the new sum, relative to the largest of them in magnitude: the
significand of a product is at least 1, as long as its factors are normal numbers."""
E4M3_STEP = (E4M3_DEPTH + 2) * E4M3_CUT
"""Error of such an addition, relative to the largest sum of magnitudes."""
LAMBDA = 4.0
"""How many root mean squares a sum of random roundings is given. Roundings do not sit at +-u: spread evenly they have a
standard deviation of u / sqrt(3), so this is 6.9 standard deviations (Higham and Mary 2019, SIAM J. Sci. Comput. 41,
A2815)."""


def addition(numerics: Numerics) -> float:
    """Error of one step of a sum, product included."""
    return U if numerics.sums == "nearest" else 2 * U


def frame(numerics: Numerics) -> float:
    """Error of an exponential, per unit of operand and of maximum: log2 e is folded into both."""
    return 2 * U if numerics.functions == "fast" else 0.0


def division(numerics: Numerics) -> float:
    """Reciprocal and product."""
    return (5 if numerics.functions == "fast" else 2) * U
