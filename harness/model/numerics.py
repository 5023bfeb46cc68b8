"""Declares where a variant rounds, from which its error budget is derived."""

from __future__ import annotations

from dataclasses import dataclass

from harness.support.errors import PluginError

MOST_ROUNDINGS_OF_Q = 4
"""Maximum of `Numerics.scaled_q`: tau and log2 e as factors, each of them also rounded itself."""


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """Where a variant rounds. Declarations narrow the error budget; only `scaled_q` and `factors` widen it.

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

    factors: str = "problem"
    """Numbers that tensor cores multiply: those of the `problem`'s dtype, or `e4m3`, which widens the budget. For e4m3,
    each head of Q, K and V is divided by its own scale, the least power of two that reduces its largest finite
    magnitude to at most 448, and rounded to nearest even. P is rounded as 2^6 exp(S - m) or more, where m is the
    maximum of the keys so far. Products of 32 pairs are added to a sum at a time, as in Hopper's `wgmma`."""

    def __post_init__(self) -> None:
        choices: dict[str, tuple[str, ...]] = {"scores": ("problem", "float32"), "weights": ("problem", "float32")}
        choices |= {"functions": ("fast", "__expf", "accurate"), "sums": ("truncated", "nearest")}
        choices |= {"factors": ("problem", "e4m3"), "tanh": ("fast", "accurate")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise PluginError(f"numerics have {name}={getattr(self, name)!r}; choose {' or '.join(allowed)}")
        if self.scaled_q not in range(MOST_ROUNDINGS_OF_Q + 1):
            raise PluginError(f"numerics have scaled_q={self.scaled_q!r}; choose 0 to {MOST_ROUNDINGS_OF_Q}")
        if self.factors == "e4m3" and (self.weights, self.sums) != ("problem", "truncated"):
            raise PluginError(
                f"numerics have factors='e4m3' with weights={self.weights!r} and sums={self.sums!r}; P is then a "
                "factor, and tensor cores truncate sums: leave out weights and sums"
            )
