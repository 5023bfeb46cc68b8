"""Problems of attention, and runs of its variants held against the budget, for tests of all variants or of several."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from attention_answers import hold
from emulators import emulator
from hypothesis import strategies as st
from lanes import exhaustive, is_exhaustive, thorough_unless
from twins import of_one_language

from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.judging.accuracy import Accuracy
from harness.execution.planning.variant_calls import refusal_of
from harness.execution.protocol import Execution
from harness.model.discovery import discover
from harness.model.numerics import Numerics
from harness.model.operation import Tolerance, draw_inputs
from harness.model.plan import Plan
from harness.model.reference import Reference
from harness.model.tile_sizes import TileSizes
from harness.model.variant import Variant
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.masks import parse_mask
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem

VARIANTS = tuple(each for each in discover().registry.select(None, "attention") if each.arch is None)
"""Those that the default architecture runs."""
EXECUTOR = emulator()

# dtype and head_dim are compiled into most kernels and a compilation takes a second or two: there are few pairs to draw
# from: rows of whole sectors and odd ones, fewer elements than a warp has lanes, one more than that.
USUAL_KERNELS = (("float32", 64), ("float16", 48))
KERNELS = (*USUAL_KERNELS, *((("float32", 20), ("bfloat16", 33)) if is_exhaustive() else ()))
FEW = ("fa1-numba", "fa2-cupy", "fa2-mma-cupy", "split-kv-cupy")
"""Variants on which the default lane shows what all have in common."""

# Alone and with causal; no key, half a tile, about a tile, more than there are keys.
WINDOWS = tuple(f"window:{left},{right}" for left in (0, 1, 15, 31, 33, 200) for right in (0, 16, 32, 200))
# Documents of one key, beside edges of tiles, longer than tiles, none; all are cut to the keys that there are.
DOCUMENTS = (
    "documents:1+0", "documents:31+2+64", "documents:1+1+1+32+33", "documents:0+16+0+17+96+1", "documents:129+1+1",
    "documents:7+7+7+7+7+7+7+7+7+7+7+7", "documents:63+1+70/5+40",
)  # fmt: skip
PREFIXES = tuple(f"prefix:{keys}" for keys in (0, 1, 31, 33, 64, 200))
OF_TWO = (
    "window:15,3+documents:1+31+70",
    "causal+documents:40+40",
    "window:20,2+prefix:33",
    "prefix:5+documents:30+33",
)
MASKS = (
    ("none", "causal"),
    (*WINDOWS, *(f"causal+{window}" for window in WINDOWS)),
    (*DOCUMENTS, *PREFIXES, *OF_TWO),
)
"""As often as each other: a plain one, a band, what is no band."""
ANY_MASK = st.one_of(*map(st.sampled_from, MASKS))

LENGTHS = st.one_of(st.sampled_from((1, 2, 16, 17, 31, 32, 33, 63, 64, 65, 97, 127, 128, 129)), st.integers(1, 150))


@st.composite
def problems(
    draw: st.DrawFn,
    kernels: tuple[tuple[str, int], ...] = KERNELS,
    masks: st.SearchStrategy[str] = ANY_MASK,
) -> Problem:
    """Problems of a few tiles, with every rule of the game: groups, batches, masks, odd lengths, any scale."""
    dtype, head_dim = draw(st.sampled_from(kernels))
    kv_heads = draw(st.integers(1, 2))
    batch, q_len, kv_len = draw(st.integers(1, 2)), draw(LENGTHS), draw(LENGTHS)
    return Problem(
        batch=batch,
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=head_dim,
        dtype=dtype,
        mask=parse_mask(draw(masks)).clipped_to(batch, q_len, kv_len),
        scale=draw(st.one_of(st.none(), st.sampled_from((1.0, -0.25, 0.0)))),
    )


def run(variant: Variant, problem: Problem, inputs: dict[str, np.ndarray], **tiles: TileSizes) -> Execution:
    plan: Plan = variant.plan(problem, **tiles)
    return EXECUTOR.run(problem, plan, inputs)


# One variant after the other is asked the same, and most of them declare what another one does.
@functools.lru_cache(maxsize=4)
def asked(problem: Problem, regime: str, seed: int) -> tuple[dict[str, np.ndarray], Reference]:
    inputs = draw_inputs(problem, regime, seed)
    return inputs, attention(problem, inputs)


@functools.lru_cache(maxsize=16)
def budget_of(problem: Problem, regime: str, seed: int, numerics: Numerics) -> dict[str, Tolerance]:
    return error_budget(problem, *asked(problem, regime, seed), numerics)


def executed(variant: Variant, problem: Problem, regime: str, seed: int, **tiles: TileSizes) -> Execution:
    return run(variant, problem, asked(problem, regime, seed)[0], **tiles)


def accuracy(variant: Variant, problem: Problem, regime: str, seed: int, execution: Execution) -> Accuracy:
    reference = asked(problem, regime, seed)[1]
    return hold(execution.outputs, reference, budget_of(problem, regime, seed, variant.numerics))


def is_compiled_here(variant: Variant, problem: Problem) -> bool:
    """Masks that are no band are a kernel of their own: in the default lane of some variants, and of one type."""
    return is_exhaustive() or problem.mask.is_band or (variant.name in FEW and problem.dtype == "float16")


def kernels_taken_by(variant: Variant, kernels: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Those pairs of dtype and head_dim that the variant takes."""
    return tuple((t, d) for t, d in kernels if refusal_of(variant, Problem(dtype=t, head_dim=d)) is None)


@functools.cache
def problems_taken_by(variant: Variant, kernels: tuple[tuple[str, int], ...] = KERNELS) -> st.SearchStrategy[Problem]:
    """Problems of the variant's kernels with masks that it takes and that this lane compiles."""

    def masks_of(dtype: str, head_dim: int) -> st.SearchStrategy[str]:
        def is_taken(mask: str) -> bool:
            problem = Problem(dtype=dtype, head_dim=head_dim)
            problem = dataclasses.replace(
                problem, mask=parse_mask(mask).clipped_to(problem.batch, problem.q_len, problem.kv_len)
            )
            return refusal_of(variant, problem) is None and is_compiled_here(variant, problem)

        taken = (tuple(filter(is_taken, masks)) for masks in MASKS)
        return st.one_of(*(st.sampled_from(masks) for masks in taken if masks))

    return st.one_of([problems((kernel,), masks_of(*kernel)) for kernel in kernels_taken_by(variant, kernels)])


SANITIZER = EmulatorSanitizer(shuffled_runs=1)


@functools.cache
def by_algorithm(algorithm: str) -> tuple[Variant, ...]:
    return tuple(v for v in VARIANTS if v.algorithm == algorithm)


def parametrize_few():
    """A few, in the thorough lane one of each algorithm."""
    few = of_one_language(lambda variant: variant.name in FEW, VARIANTS)
    return pytest.mark.parametrize("variant", few, ids=lambda variant: variant.name)


def parametrize_sampled(at_once: Callable[[Variant], bool] = lambda variant: True):
    """A few, in the exhaustive lane all: what takes further compilations. Those not `at_once` in the thorough lane."""
    few = thorough_unless(at_once, [variant for variant in VARIANTS if variant.name in FEW])
    others = exhaustive(variant for variant in VARIANTS if variant.name not in FEW)
    return pytest.mark.parametrize("variant", [*few, *others], ids=lambda variant: variant.name)


def compiles_soon(variant: Variant) -> bool:
    """Whether its compiler is not Numba, which takes several times as long as the others."""
    return variant.backend != "numba"


def skip_unsupported(variant: Variant, problem: Problem) -> None:
    reason = refusal_of(variant, problem)
    if reason is not None:
        pytest.skip(reason)
