"""Stamped copies of kernels on the emulator: the same answer, and stamps in the order in which things happen."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
import pytest

from harness.compilers import DevicePointer, compile_kernel
from harness.emulator.abi import layout as at
from harness.emulator.launch.configuration import Geometry, LaunchOptions
from harness.emulator.launch.kernel_launch import launch
from harness.emulator.launch.memory.device_memory import DeviceBuffer
from harness.emulator.native.kernel_cache import native_kernel
from harness.ptx.timestamps import ARRIVES, BEGINS, ENDS, LEAVES, room_bytes, stamped
from harness.support.errors import CompileError
from tests.emulator.cuda_kernel import cuda_source, run

ARRAYS = {"A": np.arange(256, dtype=np.float32), "B": np.zeros(256, dtype=np.float32)}
STAMP = np.dtype([("time", "u8"), ("sm", "u4"), ("kind", "u4")])
TURNS = """__shared__ float s[64]; int t = threadIdx.x + 8 * threadIdx.y, i = t + 64 * blockIdx.x;
for (int n = 0; n < 3; ++n) { s[t] = a[i] + n; __syncthreads(); b[i] += s[63 - t]; __syncthreads(); }"""


def stamped_run(body: str, grid: tuple[int, ...], block: tuple[int, ...], stamps: int = 32) -> tuple[Any, np.ndarray]:
    """B afterwards, and the stamps by block, warp and place."""
    kernel = cupy.RawKernel(cuda_source("const float* a, float* b", body), "k")
    pointers = tuple(
        DevicePointer(at.buffer_address(number), array.shape, "float32") for number, array in enumerate(ARRAYS.values())
    )
    compiled = compile_kernel(kernel, pointers, "sm_90")
    blocks, warps = int(np.prod(grid)), -(-int(np.prod(block)) // 32)
    memory = [DeviceBuffer(name, array.copy().view(np.uint8)) for name, array in ARRAYS.items()]
    memory.append(DeviceBuffer("stamps", np.zeros(room_bytes(blocks, warps, stamps), np.uint8)))
    counts = launch(
        native_kernel(stamped(compiled.ptx, [compiled.entry], stamps), compiled.entry),
        "k",
        Geometry((*grid, 1, 1)[:3], (*block, 1, 1)[:3], 0),
        [*compiled.pack(pointers), np.uint64(at.buffer_address(2)).tobytes()],
        memory,
        LaunchOptions(2_000_000, 1, 0),
    )
    found = memory[2].data.view(STAMP).reshape(blocks, warps, stamps)
    # One lane of each warp writes, and nothing twice.
    written = sum(site.requested_bytes for site in counts.sites if site.buffer == "stamps")
    assert written == STAMP.itemsize * int((found["kind"] > 0).sum())
    return memory[1].data.view(np.float32), found


def test_the_answer_stays_and_every_warp_has_its_stamps() -> None:
    answer, stamps = stamped_run(TURNS, (2, 2), (8, 8))
    expected, _ = run(cuda_source("const float* a, float* b", TURNS), ARRAYS, ("A", "B"), (2, 2, 1), (8, 8, 1))
    assert np.array_equal(answer, expected["B"])
    barriers = [ARRIVES, LEAVES] * 6
    for warp in stamps.reshape(-1, 32):
        assert warp["kind"].tolist() == [BEGINS, *barriers, *[0] * 18, ENDS]
        times = warp["time"][warp["kind"] > 0]
        assert (np.diff(times.astype(np.int64)) >= 0).all() and times[-1] > times[0]


def test_what_finds_no_room_is_not_written_and_the_end_is() -> None:
    answer, stamps = stamped_run(TURNS, (2,), (64,), stamps=5)
    assert stamps["kind"].reshape(-1, 5).tolist() == [[BEGINS, ARRIVES, LEAVES, ARRIVES, ENDS]] * 4
    whole, _ = stamped_run(TURNS, (2,), (64,))
    assert np.array_equal(answer, whole)


def test_warps_that_return_early() -> None:
    body = "int t = threadIdx.x; if (t >= 40) return; b[t] = a[t] + 1;"
    answer, stamps = stamped_run(body, (1,), (96,))
    assert np.array_equal(answer[:40], ARRAYS["A"][:40] + 1) and not answer[40:].any()
    assert stamps["kind"][0, :, [0, -1]].T.tolist() == [[BEGINS, ENDS]] * 3


PREDICATED = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(
.param .u64 k_param_0
)
{
.reg .pred %p<2>;
.reg .b32 %r<3>;
mov.u32 %r1, %tid.x;
setp.gt.u32 %p1, %r1, 31;
@%p1 ret;
bar.warp.sync -1; // no barrier of the block }
barrier.sync 1, 32;
@!%p1 exit;
ret;
}
"""


def test_returns_under_a_predicate_and_barriers_of_warps() -> None:
    text = stamped(PREDICATED, ["k"], 8)
    lines = text.splitlines()
    assert [line for line in lines if line.endswith("ret;") or line.endswith("exit;")] == ["ret;", "exit;", "ret;"]
    jumps = [line for line in lines if " bra $stamp_stays_" in line]
    assert [jump.split()[0] for jump in jumps] == ["@!%p1", "@%p1"]
    assert sum(line.startswith("$stamp_stays_") for line in lines) == 2
    assert text.count(f"mov.u32 %stamp_left, {ARRIVES};") == 1
    native_kernel(text, "k")  # the emulator takes it


def test_statements_that_share_a_line() -> None:
    body = """{ .reg .b32 %r<2>; /* ret; */ mov.u32 %r1, 0; $L: bar.sync 0; { .reg .b32 q; again: bar.sync 1; }
    .loc 1 2 3 @%p1 ret; .loc 1 2 3, function_name $name+4, inlined_at 1 7 8
    st.global.v2.u32 [%rd1], {%r1, %r1}; exit; // bar.sync 0; }
    }"""
    head = ".version 8.0\n.target sm_90\n.address_size 64\n"
    lines = stamped(f"{head}.visible .entry k() {body}\n", ["k"], 8).splitlines()
    assert lines[3] == ".visible .entry k(.param .u64 k_attention_sandbox_stamps) {"
    assert sum(line == f"mov.u32 %stamp_left, {ARRIVES};" for line in lines) == 2
    assert sum(line == f"mov.u32 %stamp_left, {ENDS};" for line in lines) == 2
    first = lines.index(".reg .pred %stamp_first, %stamp_room;")
    assert lines[first - 1] == ".reg .b32 %r<2>;" and "mov.u32 %r1, 0;" in lines[first:]
    assert "st.global.v2.u32 [%rd1], {%r1, %r1};" in lines and "$L:" in lines and "again:" in lines
    assert lines.count("{") == lines.count("}") - 1 == 1


@pytest.mark.parametrize(
    ("head", "stamped_head"),
    [
        ("k(.param .u64 a, // one )\n.param .u64 b // two\n)", ".param .u64 b,.param .u64 k_attention_sandbox_stamps)"),
        ("k", "k(.param .u64 k_attention_sandbox_stamps)"),
    ],
)
def test_the_parameter_comes_last_however_the_others_are_written(head: str, stamped_head: str) -> None:
    text = stamped(PREDICATED.replace("k(\n.param .u64 k_param_0\n)", head), ["k"], 8)
    assert stamped_head in text.partition("{")[0].replace("\n", "")
    native_kernel(text, "k")


def test_what_is_not_there_cannot_be_stamped() -> None:
    with pytest.raises(CompileError, match="no kernel other"):
        stamped(PREDICATED, ["other"], 8)
    with pytest.raises(CompileError, match="ends within"):
        stamped(PREDICATED.rstrip().rstrip("}"), ["k"], 8)
