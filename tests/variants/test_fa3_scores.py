"""Score terms and sinks in FlashAttention-3, besides what every variant that takes them is tested for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from attention_answers import hold
from emulators import emulator
from kernel_resources import used
from lanes import exhaustive_unless

from harness.compilers import DevicePointer, compile_kernel
from harness.compilers.compiled_kernel import CompiledKernel
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.plan import Launch, map_leaves
from harness.model.variant import Variant
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem
from variants._hopper import packed_heads
from variants.attention import fa3

VARIANT, NUMBA = (discover().registry.get(f"fa3-{backend}") for backend in ("cupy", "numba"))
BACKENDS = pytest.mark.parametrize(
    "variant", exhaustive_unless(lambda variant: variant is VARIANT, [VARIANT, NUMBA]), ids=lambda variant: variant.name
)
EXECUTOR = emulator()
ALL = {"softcap": 3.0, "alibi": True, "sinks": True}
SINGLE = ({"softcap": 3.0}, {"alibi": True}, {"sinks": True})
BUILDS = {"cupy": {"head_dim": 64, "dtype": "bfloat16"}, "numba": {"head_dim": 48, "dtype": "float16"}}
"""That of fa3-numba, whose kernels with all terms take ten seconds each to compile, test_hopper_numba.py has, too."""


def assert_right(problem: Problem, variant: Variant, inputs: dict[str, np.ndarray]) -> None:
    """The answer is right, and the bytes are those that are claimed."""
    reference = attention(problem, inputs)
    execution = EXECUTOR.run(problem, variant.plan(problem), inputs)
    result = hold(execution.outputs, reference, error_budget(problem, inputs, reference, variant.numerics))
    assert result.passed, result.reason
    assert not result.suspicious
    assert variant.claim is not None
    claim = variant.claim(problem)
    assert (execution.read_bytes, execution.write_bytes) == (claim.read_bytes, claim.write_bytes)


# Tiles of keys before all rows, around them, and after them; rows g and g + 8 of one head and of two.
@pytest.mark.thorough
@BACKENDS
@pytest.mark.parametrize(("heads", "kv_heads", "packed"), [(3, 3, 1), (6, 3, 2), (16, 1, 16), (24, 3, 8)])
@pytest.mark.parametrize(
    ("q_len", "kv_len", "mask"),
    [
        (90, 700, "none"),
        (700, 90, "none"),  # most rows lie on keys before the first
        (250, 403, "causal"),
        (260, 250, "window:150,40"),
        (130, 400, "causal+window:148"),
    ],
)
def test_terms_under_masks_and_with_shared_heads(
    q_len: int, kv_len: int, mask: str, heads: int, kv_heads: int, packed: int, variant: Variant
):
    shape = {"batch": 2, "heads": heads, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len}
    problem = Problem(**shape, mask=mask, **BUILDS[variant.backend], **ALL)
    assert packed_heads(problem) == packed
    assert_right(problem, variant, draw_inputs(problem, "normal", 3))


@pytest.mark.thorough
@pytest.mark.parametrize("mask", ["blocks:40x50,3,heads", "documents:0+70+130+50", "prefix:131", "flashmask:2,2"])
def test_terms_where_what_rows_see_is_read(mask: str):
    problem = Problem(heads=4, kv_heads=2, q_len=250, kv_len=250, dtype="bfloat16", mask=mask, **ALL)
    assert_right(problem, VARIANT, draw_inputs(problem, "rising", 1))


# Nothing but distances, of which float16 would lose what is not exact: half a bit per key, and none.
@BACKENDS
@pytest.mark.parametrize("mask", ["none", pytest.param("causal", marks=pytest.mark.thorough)])
def test_distances_alone_decide(mask: str, variant: Variant):
    problem = Problem(heads=8, kv_heads=1, q_len=70, kv_len=520, dtype="float16", mask=mask, alibi=True)
    inputs = draw_inputs(problem, "normal", 1)
    inputs["Q"][:] = 0
    inputs["slopes"][:] = (0.5, 1.0, 0.0, 0.25, 2.0**-10, 0.1, 3.0, 0.5)
    assert_right(problem, variant, inputs)


@pytest.mark.thorough
@BACKENDS
def test_nothing_races_with_terms(variant: Variant, monkeypatch: pytest.MonkeyPatch):
    # Ten tiles for two blocks, of which some see no key.
    monkeypatch.setattr(fa3, "MULTIPROCESSORS", 2)
    problem = Problem(heads=5, q_len=260, kv_len=61, mask="causal", **BUILDS[variant.backend], **ALL)
    plan, inputs = variant.plan(problem), draw_inputs(problem, "normal", 1)
    assert EmulatorSanitizer(shuffled_runs=1).check(variant, problem, plan, inputs) == ()


def launch_of(head_dim: int, mask: str, variant: Variant = VARIANT, **fields: object) -> Launch:
    """Its arguments are such as a kernel can be compiled for."""
    problem = Problem(heads=2, q_len=64, kv_len=64, head_dim=head_dim, dtype="bfloat16", mask=mask, **fields)
    plan = variant.plan(problem)
    launch, buffers = plan.launches[-1], plan.all_buffers(problem)

    def stand_in(argument: object) -> object:
        if not isinstance(argument, str):
            return argument
        return DevicePointer(0, buffers[argument].shape, buffers[argument].dtype)

    return dataclasses.replace(launch, args=tuple(map_leaves(stand_in, argument) for argument in launch.args))


def compiled(launch: Launch) -> CompiledKernel:
    return compile_kernel(launch.kernel, launch.args, "sm_90")


@BACKENDS
@pytest.mark.parametrize(
    ("head_dim", "mask", "fields"),
    exhaustive_unless(
        lambda build: build[:2] in ((128, "causal"), (256, "causal")) and build[2] is ALL,
        [
            (head_dim, mask, fields)
            for head_dim in (64, 96, 128, 192, 256)
            for mask in ("none", "causal", "window:40")
            for fields in (ALL, *SINGLE)
        ],
    ),
    ids=str,
)
def test_nothing_spills_with_terms(head_dim: int, mask: str, fields: dict[str, object], variant: Variant):
    found = used(launch_of(head_dim, mask, variant, **fields))
    assert (found.spill_store_bytes, found.spill_load_bytes, found.stack_bytes) == (0, 0, 0)


def test_terms_that_are_off_leave_nothing_behind():
    off, on = (compiled(launch_of(128, "causal", **fields)) for fields in ({}, ALL))
    assert "tanh" in on.ptx and "tanh" not in off.ptx
    # What the plan chooses is one parameter, the last one, which is empty without terms: one byte.
    sizes = [[parameter.size_bytes for parameter in kernel.parameters] for kernel in (off, on)]
    assert sizes[0][:-1] == sizes[1][:-1]
    assert sizes[0][-1] == 1 and sizes[1][-1] > 1
