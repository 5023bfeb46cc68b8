"""Declares where a variant rounds, from which its error budget is derived."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.support.errors import PluginError

MOST_ROUNDINGS_OF_Q = 4
"""Maximum of `Numerics.scaled_q`: tau and log2 e as factors, each of them also rounded itself."""

MOST_HEADROOM = 15
"""Maximum of `Numerics.headroom`: larger weights are not finite in float16."""
LARGEST_LOG_WEIGHT = 80
"""Maximum of |a| and b of `Numerics.constant_maximum`: exp(80) and exp(-80) are normal numbers of float32."""


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """Where a variant rounds.

    Declarations narrow the error budget, except `scaled_q`, `factors`, `cubic_exp`, `headroom` and `constant_maximum`,
    which widen it.

    A default allows every choice that a correct kernel can make, in any loop order. All variants must sum in float32,
    whatever the problem's dtype. The budget assumes the declarations, so a variant that violates them fails.

    Raises `PluginError` for other values than those listed, or for contradictory ones.
    """

    scores: str = "problem"
    """Precision of S = tau Q K^T when the softmax reads it: the `problem`'s dtype, or `float32`."""
    weights: str = "problem"
    """Precision of P when it is multiplied by V. The denominator may be summed from P before that rounding."""
    functions: str = "fast"
    """`accurate`: expf of S - m, so that the maximum itself has weight 1, logf and division, as in CUDA or libdevice.
    `__expf`: the same with __expf in place of expf (fast_expf in libdevice). `fast`: any of these, ex2.approx, __logf,
    approximate division, log2 e folded into the scale."""
    tanh: str = "fast"
    """Hyperbolic tangent of a softcap. `accurate`: tanhf, as in CUDA or libdevice. `fast`: that, tanh.approx, or a
    formula of approximate exponentials."""
    sums: str = "truncated"
    """`nearest`: every addition rounds to nearest or is a fused multiply-add. `truncated`: tensor cores truncate."""
    one_score: bool = False
    """Whether the sum over V and the denominator use the same bits of S, computed once, or again by the same code."""
    divides_last: bool = False
    """Whether O or P is divided only by the final denominator, and never by that of the keys so far."""
    scaled_q: int = 0
    """Number of roundings of each element of Q to the problem's dtype when it is scaled before the product. 1 if it is
    multiplied by tau, with or without log2 e folded in; 2 if multiplied by one after the other; one more if a factor is
    rounded to that dtype first. Widens the budget. A kernel that scales S, or Q in float32, has 0."""
    cubic_exp: bool = False
    """Whether some exponentials are 2^n p(f), with n + f the argument in powers of two, 0 <= f < 1, and p a cubic with
    p(0) = 1 and a relative error of at most `CUBIC` (FlashAttention-4, arXiv 2603.05451). The sum over V and
    the denominator use the same exponential. Widens the budget. Requires `functions="fast"`."""
    headroom: int = 0
    """Powers of two by which the maximum of a row may rise before exponentials are computed relative to it, 0 to 15, so
    that weights are up to 2^headroom (FlashAttention-4 has 8). Widens the budget."""
    factors: str = "problem"
    """Numbers that tensor cores multiply: those of the `problem`'s dtype, or `e4m3`, which widens the budget. For e4m3,
    each head of Q, K and V is divided by its own scale, the least power of two that reduces its largest finite
    magnitude to at most 448, and rounded to nearest even. P is rounded as 2^6 exp(S - m) or more, where m is the
    maximum of the keys so far. Products of 32 pairs are added to a sum at a time, as in Hopper's `wgmma`."""
    constant_maximum: tuple[float, float, float] | None = None
    """(phi, a, b) if exp(S - phi) with one constant phi takes the place of exp(S - max S) in each row for which
    log(sum exp(S - phi)) >= a and S - phi <= b. Other rows use their maximum. a <= 0 <= b <= 80. None if every row
    uses its maximum."""

    def __post_init__(self) -> None:
        choices: dict[str, tuple[str, ...]] = {"scores": ("problem", "float32"), "weights": ("problem", "float32")}
        choices |= {"functions": ("fast", "__expf", "accurate"), "sums": ("truncated", "nearest")}
        choices |= {"factors": ("problem", "e4m3"), "tanh": ("fast", "accurate")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise PluginError(f"numerics have {name}={getattr(self, name)!r}; choose {' or '.join(allowed)}")
        if self.scaled_q not in range(MOST_ROUNDINGS_OF_Q + 1):
            raise PluginError(f"numerics have scaled_q={self.scaled_q!r}; choose 0 to {MOST_ROUNDINGS_OF_Q}")
        if self.cubic_exp and self.functions != "fast":
            raise PluginError(
                f"numerics have cubic_exp with functions={self.functions!r}; a cubic is not that accurate"
            )
        if self.headroom not in range(MOST_HEADROOM + 1):
            raise PluginError(f"numerics have headroom={self.headroom!r}; choose 0 to {MOST_HEADROOM}")
        if self.factors == "e4m3" and (self.weights, self.sums) != ("problem", "truncated"):
            raise PluginError(
                f"numerics have factors='e4m3' with weights={self.weights!r} and sums={self.sums!r}; P is then a "
                "factor, and tensor cores truncate sums: leave out weights and sums"
            )
        if self.constant_maximum is not None:
            object.__setattr__(self, "constant_maximum", _checked_constant(self.constant_maximum))


def _checked_constant(given: object) -> tuple[float, float, float]:
    """Return (phi, a, b). Raises `PluginError` if it is something else."""
    most = LARGEST_LOG_WEIGHT
    wrong = f"numerics have constant_maximum={given!r}; it has to be (phi, a, b), with -{most} <= a <= 0 <= b <= {most}"
    if not isinstance(given, tuple | list) or len(given) != 3 or not all(isinstance(x, int | float) for x in given):
        raise PluginError(wrong)
    phi, low, high = (float(x) for x in given)
    if not (math.isfinite(phi) and -most <= low <= 0 <= high <= most):
        raise PluginError(wrong)
    return phi, low, high
