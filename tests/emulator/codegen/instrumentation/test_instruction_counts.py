"""Instructions by kind and line, by cluster, and waits for loads, on PTX whose executions were counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from harness import PtxKernel
from harness.compilers import DevicePointer, compile_kernel
from harness.emulator.abi import layout as at
from harness.emulator.codegen.kernel import generate
from harness.emulator.instruments import PLAIN, Instruments
from harness.emulator.launch.configuration import Geometry, LaunchOptions
from harness.emulator.launch.instruction_kinds import KINDS, kind_of, product_flops
from harness.emulator.launch.instruction_report import instruction_report
from harness.emulator.launch.kernel_launch import LaunchCounts, launch
from harness.emulator.launch.memory.aligned_memory import aligned_zeros
from harness.emulator.launch.memory.device_memory import DeviceBuffer
from harness.emulator.native.kernel_cache import native_kernel
from harness.emulator.native.tier import Tier
from harness.execution.traffic import instruction_counts
from harness.execution.traffic.instruction_counts import InstructionReport
from harness.ptx.instructions import Instruction
from harness.ptx.opcodes import OPCODES
from harness.ptx.parsing.parser import parse

COUNTING = Instruments(instructions=True)
HEAD = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 x)
{
    .reg .pred %p<4>;
    .reg .b32 %r<10>;
    .reg .f32 %f<10>;
    .reg .b64 %rd<6>;
    .shared .align 16 .b8 tile[2048];
    .loc 1 1 1
    ld.param.u64 %rd1, [x];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd2, %rd3;
"""
TAIL = """
    ret;
}
.file 1 "/kernel.cu"
"""


def ran(
    body: str, blocks: int = 1, threads: int = 64, tier: Tier = Tier.OPTIMIZED, cores: int = 1
) -> tuple[LaunchCounts, InstructionReport]:
    """Launch it over a buffer of 4 KiB."""
    data = aligned_zeros(4096)[:4096]
    pointer = DevicePointer(at.buffer_address(0), (1024,), "float32")
    compiled = compile_kernel(PtxKernel(HEAD + body + TAIL, "k"), (pointer,), "sm_90")
    kernel = native_kernel(compiled.ptx, compiled.entry, instruments=COUNTING, tier=tier)
    geometry = Geometry((blocks, 1, 1), (threads, 1, 1), 0)
    options = LaunchOptions(100_000, cores, 0)
    counts = launch(kernel, "k", geometry, compiled.pack((pointer,)), [DeviceBuffer("x", data)], options)
    assert counts.executed is not None
    return counts, instruction_report(compiled.ptx, compiled.entry, counts.executed)


def by_form(report: InstructionReport) -> dict[str, tuple[int, int, int]]:
    """Form -> (instructions in the text, warps, lanes)."""
    found: dict[str, tuple[int, int, int]] = {}
    for row in report.counts:
        before = found.get(row.form, (0, 0, 0))
        found[row.form] = (before[0] + row.instructions, before[1] + row.warps, before[2] + row.lanes)
    return found


LOOP = """
    .loc 1 2 1
    mov.u32 %r3, 0;
    mov.f32 %f1, 0f00000000;
again:
    .loc 1 3 1
    fma.rn.f32 %f1, %f1, %f1, %f1;
    add.s32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, 5;
    @%p1 bra again;
"""


@pytest.mark.parametrize("tier", list(Tier))
def test_a_loop_of_five_turns(tier: Tier) -> None:
    counts, report = ran(LOOP, blocks=3, threads=64, tier=tier)
    warps = 3 * 2
    forms = by_form(report)
    assert forms["fma.rn.f32"] == (1, 5 * warps, 5 * 32 * warps)
    assert forms["setp.lt.u32"] == (1, 5 * warps, 5 * 32 * warps)
    assert forms["bra"] == (1, 5 * warps, 5 * 32 * warps)
    assert forms["mul.wide.u32"] == (1, warps, 32 * warps)
    assert sum(row.warps for row in report.counts) == counts.warp_instructions
    assert sum(row.lanes for row in report.counts) == counts.lane_instructions
    (row,) = (row for row in report.counts if row.form == "fma.rn.f32")
    assert (row.kind, row.file, row.line, row.flops) == (instruction_counts.FP32, "/kernel.cu", 3, 0)
    # 6 instructions at the top, 2 moves, 5 turns of 4, the return; two warps in each block.
    assert report.clusters == (2 * (6 + 2 + 5 * 4 + 1),) * 3


def test_lanes_that_go_another_way_and_warps_that_are_not_full() -> None:
    branch = """
    setp.ge.u32 %p1, %r1, 10;
    @%p1 bra out;
    mul.f32 %f1, %f1, %f1;
out:
    """
    _, report = ran(branch, threads=40)
    forms = by_form(report)
    assert forms["setp.ge.u32"] == (1, 2, 40)
    assert forms["mul.f32"] == (1, 1, 10)  # of the first warp; the second one jumps whole


def test_blocks_that_do_not_do_the_same() -> None:
    """Block b turns b + 1 times; on any number of cores, with the blocks in order."""
    body = LOOP.replace("%r3, 5;", "%r3, %r4;").replace("mov.u32 %r3, 0;", "mov.u32 %r3, 0; add.u32 %r4, %r2, 1;")
    expected = tuple(6 + 3 + 4 * (block + 1) + 1 for block in range(70))
    for cores in (1, 2):
        assert ran(body, blocks=70, threads=32, cores=cores)[1].clusters == expected


def test_how_far_ahead_loads_are_issued() -> None:
    body = """
    .loc 1 2 1
    ld.global.f32 %f1, [%rd4];
    ld.global.f32 %f2, [%rd4+4];
    mov.u32 %r3, 1;
    add.s32 %r3, %r3, %r3;
    .loc 1 3 1
    add.f32 %f3, %f1, %f2;
    mul.f32 %f3, %f1, %f2;
    """
    _, report = ran(body)
    # From the second load, for both; the product has nothing to wait for.
    assert [(w.is_copy, w.line, w.wait_line, w.distance, w.waits) for w in report.waits] == [(False, 2, 3, 3, 2)]
    assert report.followed_warps == 2


def test_chains_of_dependent_instructions() -> None:
    _, report = ran(LOOP, blocks=3, threads=64)
    # mul.wide -> add.s64, then five times add -> setp -> bra beside the fma, then ret: 4 cycles each.
    assert report.dependent_cycles == 3 * 2 * (8 + 5 * 12 + 4)


def test_loads_of_one_block_are_awaited_together_wherever_they_stand() -> None:
    body = """
    .loc 1 2 1
    ld.global.f32 %f1, [%rd4];
    add.f32 %f3, %f1, %f1;
    ld.global.f32 %f2, [%rd4+4];
    add.f32 %f3, %f2, %f2;
    """
    _, report = ran(body, threads=32)
    assert [(w.distance, w.waits) for w in report.waits] == [(1, 1)]
    # Two blocks have a wait each.
    _, report = ran(body.replace("ld.global.f32 %f2", "bar.sync 0; ld.global.f32 %f2"), threads=32)
    assert [(w.distance, w.waits) for w in report.waits] == [(1, 2)]


GUARDED = """
    setp.lt.u32 %p1, %r1, 64;
    @!%p1 bra A{0};
    ld.global.f32 %f1, [%rd4+{0}];
    {1}
    add.f32 %f3, %f1, %f1;
A{0}:
    add.f32 %f4, %f3, %f3;
"""


def test_short_guarded_loads_are_awaited_with_the_code_around_them() -> None:
    _, report = ran(GUARDED.format(4, "") + GUARDED.format(8, ""), threads=32)
    assert [(w.distance, w.waits) for w in report.waits] == [(1, 1)]
    # ptxas branches around long blocks, and around barriers.
    for between in ("add.f32 %f5, %f5, %f5;" * 19, "bar.sync 0;"):
        _, report = ran(GUARDED.format(4, between) + GUARDED.format(8, between), threads=32)
        assert sum(w.waits for w in report.waits) == 2


def test_both_sides_of_a_short_branch_are_predicated() -> None:
    body = """
    setp.lt.u32 %p1, %r1, 64;
    @%p1 bra L{0};
    bra.uni Z{0};
L{0}:
    ld.global.f32 %f1, [%rd4+{0}];
    bra.uni E{0};
Z{0}:
    mov.f32 %f1, 0f00000000;
E{0}:
    add.f32 %f3, %f1, %f1;
"""
    _, report = ran(body.format(4) + body.format(8), threads=32)
    assert sum(w.waits for w in report.waits) == 1


def test_a_load_that_is_awaited_behind_a_loop() -> None:
    load, use = "\n.loc 1 8 1\nld.global.f32 %f2, [%rd4];\n", "\n.loc 1 9 1\nadd.f32 %f3, %f2, %f2;\n"
    _, report = ran(load + LOOP + use, threads=32)
    # The load itself, 2 moves, 5 turns of 4.
    assert [(w.line, w.wait_line, w.distance, w.waits) for w in report.waits] == [(8, 9, 1 + 2 + 5 * 4, 1)]


COPY = """
    .loc 1 {line} 1
    cp.async.ca.shared.global [%r5], [%rd4], 4;
    cp.async.commit_group;
"""


def test_groups_of_copies_are_awaited_in_order() -> None:
    wait = "\n.loc 1 9 1\ncp.async.wait_group {};\n"
    body = "mov.u32 %r5, tile;" + COPY.format(line=2) + COPY.format(line=3) + wait.format(1) + wait.format(0)
    _, report = ran(body, threads=32)
    assert [(w.is_copy, w.line, w.wait_line, w.distance, w.waits) for w in report.waits] == [
        (True, 2, 9, 4, 1),
        (True, 3, 9, 3, 1),
    ]


def test_a_group_that_may_stay_under_way_is_awaited_by_nobody() -> None:
    _, report = ran("mov.u32 %r5, tile;" + COPY.format(line=2) + "cp.async.wait_group 1;", threads=32)
    assert report.waits == ()


def test_off_it_leaves_no_trace() -> None:
    module = parse(HEAD + LOOP + TAIL)
    for outlined in (False, True):
        plain = generate(module, "k", PLAIN, outlined).body
        counting = generate(module, "k", COUNTING, outlined).body
        assert "BLOCK_COUNTERS" in counting and "PATH_NEXT" in counting
        assert "BLOCK_COUNTERS" not in plain and "PATH_NEXT" not in plain


def test_a_kernel_that_does_not_count_says_nothing() -> None:
    pointer = DevicePointer(at.buffer_address(0), (1024,), "float32")
    compiled = compile_kernel(PtxKernel(HEAD + LOOP + TAIL, "k"), (pointer,), "sm_90")
    kernel = native_kernel(compiled.ptx, compiled.entry)
    memory = [DeviceBuffer("x", np.zeros(4096, np.uint8))]
    geometry, options = Geometry((1, 1, 1), (32, 1, 1), 0), LaunchOptions(100_000, 1, 0)
    assert launch(kernel, "k", geometry, compiled.pack((pointer,)), memory, options).executed is None


# Kinds ---------------------------------------------------------------------------------------------------------------


def of(form: str) -> Instruction:
    opcode, *modifiers = form.split(".")
    return Instruction(opcode, tuple(modifiers), (), None, False, 1, None)


@pytest.mark.compiles(False)
def test_every_opcode_has_a_kind_and_every_kind_is_known() -> None:
    assert set(KINDS) == set(OPCODES)
    assert set(KINDS.values()) <= set(instruction_counts.KINDS)


@pytest.mark.compiles(False)
@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("fma.rn.f32", "fp32"),
        ("fma.rn.f64", "fp64"),
        ("cvt.f64.f32", "fp64"),
        ("setp.gt.f64", "fp64"),
        ("ld.global.f64", "memory"),
        ("mov.f64", "move"),
        ("fma.rn.f16x2", "fp16"),
        ("ex2.approx.ftz.f32", "special"),
        ("mad.lo.s32", "integer"),
        ("max.f32", "integer"),
        ("ld.shared.v4.f32", "shared"),
        ("st.shared.f32", "shared"),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "shared"),
        ("ld.param.u64", "move"),
        ("ld.const.f32", "move"),
        ("ld.local.f32", "memory"),
        ("cp.async.cg.shared.global", "memory"),
        ("cp.async.wait_group", "barrier"),
        ("bar.sync", "barrier"),
        ("bar.warp.sync", "shuffle"),
        ("shfl.sync.bfly.b32", "shuffle"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "tensor"),
        ("bra", "control"),
    ],
)
def test_kinds(form: str, kind: str) -> None:
    assert kind_of(of(form)) == kind


@pytest.mark.compiles(False)
@pytest.mark.parametrize(
    ("form", "flops"),
    [
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 2 * 16 * 8 * 16),
        ("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16", 2 * 64 * 128 * 16 // 4),
        ("fma.rn.f32", 0),
    ],
)
def test_products_of_one_warp(form: str, flops: int) -> None:
    assert product_flops(of(form)) == flops
