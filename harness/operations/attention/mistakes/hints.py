"""Numbers that wrong answers of attention are known to differ by from right ones."""

from __future__ import annotations

import math

from harness.model.operation import Hints


def forward_hints(tau: float, output: str, kept: float | None = None) -> Hints:
    """What wrong values of `output`, O or lse, of softmax(tau Q K^T) V are known to look like.

    `kept`: the share of weights that dropout leaves; None where there is no dropout.
    """
    factors = {
        1 / math.log(2): "1 / ln 2: a logarithm to base 2",
        math.log(2): "ln 2: a base of 2 where it should be e, or the other way round",
        -1.0: "the sign is wrong",
    }
    if output != "lse":
        if kept is not None:
            factors[kept] = "1 - P: what dropout leaves is not multiplied by 1 / (1 - P)"
        return Hints(factors)
    if tau not in (0.0, 1.0):
        factors |= {1 / tau: "the scale is missing", tau: "the scale is applied twice"}
    return Hints(factors, {math.log(2): "ln 2: counted twice, or half"})
