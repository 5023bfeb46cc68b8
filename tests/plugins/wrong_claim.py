"""FlashAttention-2 with a claim that forgets that a causal mask lets whole tiles be skipped."""

from __future__ import annotations

import dataclasses
import functools

from harness import Problem, Registry, Traffic, Variant
from variants.attention import fa2


def claim(problem: Problem) -> Traffic:
    return fa2.claim(dataclasses.replace(problem, mask="none"))


def register(registry: Registry) -> None:
    registry.add(
        Variant(name="wrong-claim", plan=functools.partial(fa2.plan, kernels=fa2.LANGUAGES["cupy"]), claim=claim)
    )
