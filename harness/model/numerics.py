"""Where a variant rounds: what its budget of error is derived from."""

from __future__ import annotations

from dataclasses import dataclass

from harness.support.errors import PluginError

MOST_ROUNDINGS_OF_Q = 4
"""By tau and by log2 e, each of them rounded itself."""


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """Where a variant rounds, as far as it says so: each fact but two narrows the error that it is allowed.

    `scaled_q` and `factors` widen it.
    What is left at its default may be done in any way in which a correct kernel does it, in any loop order. All
    variants have to sum in float32, whatever the problem's dtype. What is declared is believed: a variant that does not
    keep to it fails.
    """

    scores: str = "problem"
    """How S = tau Q K^T is stored before the softmax reads it: in the `problem`'s dtype, or `float32` throughout."""
    weights: str = "problem"
    """How P is stored before V is multiplied by it. The denominator may be summed from P before that rounding."""
    functions: str = "fast"
    """`accurate`: expf of S - m, so that the maximum itself gets weight 1, logf and division, as CUDA or libdevice has
    them. `__expf`: the same with that in place of expf (fast_expf in libdevice). `fast`: any of these, ex2.approx,
    __logf, approximate division, log2 e folded into the scale."""
    tanh: str = "fast"
    """What a softcap's tangent is. `accurate`: tanhf, as CUDA or libdevice has it. `fast`: that, or tanh.approx, or one
    made of approximate exponentials."""
    sums: str = "truncated"
    """`nearest`: every addition rounds to nearest, or is a fused multiply-add. `truncated`: tensor cores cut off."""
    one_score: bool = False
    """The sum over V and the denominator see the same bits of S: it is computed once, or again by the same code."""
    divides_last: bool = False
    """O is divided, or P is, by the finished denominator only, and never by that of the keys so far."""
    scaled_q: int = 0
    """How often an element of Q is rounded to the problem's dtype by being scaled before the product: 1 where it is
    multiplied by tau, log2 e folded in or not, 2 where by one after the other, one more where a factor is rounded to
    that dtype first. This one widens: a kernel that scales S, or Q in float32, rounds nothing there."""

    factors: str = "problem"
    """What tensor cores multiply: numbers of the `problem`'s dtype, or `e4m3`, which widens: each head of Q, K and V is
    divided by a scale of its own, the least power of two that brings its largest finite magnitude to at most 448, and
    rounded to nearest even; P is rounded as 2^6 exp(S - m) or more, m the maximum of the keys so far. Products of 32
    pairs are added to a sum at a time, as Hopper's `wgmma` does it."""

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
                f"numerics have factors='e4m3' with weights={self.weights!r} and sums={self.sums!r}; P is a factor and "
                "tensor cores cut off: leave out weights and sums"
            )
