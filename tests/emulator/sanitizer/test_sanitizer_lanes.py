"""What the PTX ISA leaves undefined between the lanes of a warp: masks that lie, and shuffles that read nobody."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sanitized_kernel import find, numbered

from harness.emulator.executor import EmulatorExecutor
from harness.execution.attempt import attempt
from harness.model.finding import Finding
from harness.model.operation import draw_inputs
from harness.model.plan import Launch, Plan
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem
from harness.support.errors import KernelFault

ALL = "0xffffffffu"
EXIT = 'asm volatile("exit;");'
OUTSIDE = (
    "v += __shfl_down_sync(0xffffu, v, 8);",
    "v += __ballot_sync(0xfffffffeu, v > 3);",
    "v += __any_sync(1u << (t ^ 1), v > 3);",
    "v += __match_any_sync(t < 30 ? 0x3fffffffu : 0x40000000u, (int)v);",
    "v += __reduce_add_sync(0x7fffffffu, t);",
    "__syncwarp(0xffffu);",
    "if (t & 1) v += __shfl_xor_sync(0x55555555u & __activemask(), v, 2);",
)
"""Executed by a lane that the mask does not name."""
OUTSIDE_LANES = ("16-31", "0", "0-31", "31", "31", "16-31", "1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31")
UNDEFINED = {
    "if (t < 16) v += __shfl_sync(0xffffu, v, t + 8);": (8, 8, "reads lane 16, which the mask does not name"),
    f"if (t < 20) {EXIT} v += __shfl_sync({ALL}, v, 31 - t);": (12, 20, "reads lane 11, which has returned"),
    "v += __shfl_up_sync(t < 16 ? 0xffffu : 0xffff0000u, v, 1);": (1, 16, "reads lane 15, which the mask does not"),
    "v += __shfl_xor_sync(3u << (t & 30), v, 2);": (
        32,
        0,
        "with mask 0x00000003 reads lane 2, which the mask does not",
    ),
}
"""Body -> how many lanes read nobody, the first of them, and what is said."""
DEFINED = (
    f"v += __shfl_down_sync({ALL}, v, 16);",
    "if (t < 16) v += __shfl_down_sync(0xffffu, v, 8, 16);",
    f"for (int d = 1; d < 32; d *= 2) v += __shfl_xor_sync({ALL}, v, d);",
    "v += __shfl_up_sync(t < 16 ? 0xffffu : 0xffff0000u, v, 1, 16);",
    "v += __shfl_xor_sync(3u << (t & 30), v, 1) + __ballot_sync(3u << (t & 30), v > 3);",
    f"if (t < 20) {EXIT} v += __shfl_sync({ALL}, v, 20) + __reduce_add_sync({ALL}, t);",
    "if (t % 3) v += __shfl_sync(__activemask(), v, 1) + __match_any_sync(__activemask(), t);",
    "__syncwarp(); if (t < 8) __syncwarp(0xffu);",
)
DIFFER = {
    "v += __ballot_sync(t == 3 ? 0x10ffffu : t < 16 ? 0xffffu : 0xffff0000u, 1);": (16, "0x0010ffff in lane 3"),
    "v += __shfl_xor_sync(t < 2 ? 3u : 0xffffffffu, v, 1);": (30, "has mask 0xffffffff here, and 0x00000003 in lane 0"),
    "__syncwarp(t < 2 ? 3u : 0xffffffffu);": (30, "'bar.warp.sync' has mask 0xffffffff here"),
}
BODIES = [*OUTSIDE, *UNDEFINED, *DEFINED, *DIFFER]
SOURCE = (
    '\nextern "C" __global__ void k(const float* x, float* y, int which) {\n'
    "int t = threadIdx.x;\nfloat v = x[t];\nswitch (which) {\n"
    + "".join(f"case {number}: {{ {body} break; }}\n" for number, body in enumerate(BODIES))
    + "}\ny[t] = v;\n}\n"
)
"""All of them in one kernel: each compilation costs more than many launches."""
FIRST_LINE = 1 + SOURCE.removeprefix("\n")[: SOURCE.index("case 0") - 1].count("\n")
X = np.arange(64, dtype=np.float32)


def found(body: str, threads: int = 32) -> tuple[Finding, ...]:
    arrays = {"x": X, "y": np.zeros_like(X)}
    return find(SOURCE, arrays, ("x", "y", np.int32(BODIES.index(body))), block=(threads, 1, 1))


@pytest.mark.parametrize(("body", "lanes"), list(zip(OUTSIDE, OUTSIDE_LANES)))
def test_a_lane_outside_of_its_mask_is_a_fault(body: str, lanes: str) -> None:
    words = rf"planted.cu:{FIRST_LINE + BODIES.index(body)} .* is executed by lanes {lanes} of warp 0, which are not in"
    with pytest.raises(KernelFault, match=words) as caught:
        found(body)
    assert caught.value.kind == "lane outside of its mask"


@pytest.mark.parametrize("body", UNDEFINED)
def test_a_shuffle_that_reads_a_lane_that_takes_no_part(body: str) -> None:
    count, thread, words = UNDEFINED[body]
    (finding,) = found(body)
    assert (finding.kind, finding.count) == ("undefined shuffle", count)
    assert finding.place is not None
    assert (finding.place.line, finding.place.thread) == (FIRST_LINE + BODIES.index(body), (thread, 0, 0))
    assert words in finding.message and finding.message.endswith("; what comes is undefined")


def test_the_last_warp_of_a_block_may_have_nobody_to_read() -> None:
    # Lanes 16 to 31 of the second warp are not there. Those of the first all are.
    (finding,) = found(DEFINED[0], threads=48)
    assert (finding.kind, finding.count) == ("undefined shuffle", 16)
    assert finding.place is not None and finding.place.thread == (32, 0, 0)
    assert "reads lane 16, which has returned or is none of the block's" in finding.message


@pytest.mark.parametrize("body", DIFFER)
def test_lanes_that_name_each_other_with_other_masks(body: str) -> None:
    count, words = DIFFER[body]
    (finding,) = found(body)
    assert (finding.kind, finding.count) == ("masks differ", count)
    assert words in finding.message


@pytest.mark.parametrize("body", DEFINED)
def test_what_is_defined_is_not_found(body: str) -> None:
    assert found(body) == ()


def test_without_the_sanitizer_a_lane_outside_of_its_mask_is_a_fault_all_the_same() -> None:
    from cuda_kernel import run

    arrays = {"x": X, "y": np.zeros_like(X)}
    with pytest.raises(KernelFault, match=re.escape("are not in its mask 0x0000ffff; the result is undefined")):
        run(SOURCE, arrays, ("x", "y", np.int32(0)))


@pytest.mark.parametrize("body", [*UNDEFINED, *DEFINED])
def test_without_the_sanitizer_a_lane_that_is_not_there_is_a_note(body: str) -> None:
    """Of lanes that the mask does not name, those that are there are read, as by a GPU."""
    from cuda_kernel import run

    arrays = {"x": X, "y": np.zeros_like(X)}
    _, counts = run(numbered(SOURCE), arrays, ("x", "y", np.int32(BODIES.index(body))), threads=2)
    if body in DEFINED or not body.startswith("if"):
        assert counts.notes == ()
    else:
        (note,) = counts.notes
        line = FIRST_LINE + BODIES.index(body)
        assert f"planted.cu:{line} (PTX line " in note and "gives 0 here as on an H100" in note


def test_notes_stand_beside_a_result() -> None:
    """Each once, however many launches there are."""
    import cupy

    source = 'extern "C" __global__ void k(float* y) { y[threadIdx.x] = __shfl_down_sync(0xffffffffu, 1.f, 8); }'
    launch = Launch(cupy.RawKernel(source, "k"), (1,), (16,), ("O",))
    variant = Variant(name="half-a-warp", plan=lambda problem: Plan((launch, launch)), backend="cupy")
    problem = Problem(heads=1, q_len=1, kv_len=1, head_dim=16, dtype="float32")
    done = attempt(variant, problem, EmulatorExecutor(), draw_inputs(problem))
    assert done.error is None and done.execution is not None
    np.testing.assert_array_equal(done.execution.outputs["O"].reshape(-1), [1.0] * 8 + [0.0] * 8)
    assert done.note is not None and done.note.count("'shfl.sync.down.b32' reads lanes that have returned") == 1
