"""Registers that nobody wrote: found where their bits reach memory or a branch, and nowhere else."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sanitized_kernel import SANITIZER, find
from single_opcode import HEADER

from harness.emulator.abi import layout as at
from harness.emulator.launch.configuration import Geometry, LaunchOptions
from harness.emulator.launch.kernel_launch import launch
from harness.emulator.launch.memory.device_memory import DeviceBuffer
from harness.emulator.native.kernel_cache import native_kernel
from harness.emulator.native.tier import Tier
from harness.model.finding import Finding
from harness.support.errors import KernelFault

REGISTERS = ".reg .b32 r<9>, tid; .reg .b64 q<9>, out; .reg .pred p<5>; .shared .b32 s[64]; .local .b32 l[2];"


def findings(body: str, tier: Tier = Tier.BASELINE) -> tuple[Finding, ...]:
    """Of one warp. `out` is 128 words of global memory, `q1` this thread's first, and p1 is true in even lanes."""
    text = f"""{HEADER}.visible .entry kernel(.param .u64 o) {{ {REGISTERS}
    ld.param.u64 out, [o]; mov.u32 tid, %tid.x; mul.wide.u32 q1, tid, 4; add.u64 q1, q1, out;
    and.b32 r1, tid, 1; setp.eq.u32 p1, r1, 0;
    {body}
    ret; }}"""
    native = native_kernel(text, "kernel", instruments=SANITIZER, tier=tier)
    memory = [DeviceBuffer("out", np.zeros(512, np.uint8), np.zeros(512, np.uint8))]
    pointer = at.buffer_address(0).to_bytes(8, "little")
    geometry = Geometry((1, 1, 1), (32, 1, 1), 0)
    try:
        found = launch(native, "kernel", geometry, (pointer,), memory, LaunchOptions(1_000_000, 1, 0)).findings
    except KernelFault as fault:  # an undefined address leads anywhere
        found = fault.findings
    assert found is not None
    return found


FOUND = {
    "stored": ("st.global.u32 [q1], r2;", "st.global.u32", "a value", 32),
    "stored after arithmetic": ("add.u32 r3, r2, 1; st.global.u32 [q1], r3;", "st.global.u32", "a value", 32),
    "stored to shared memory": ("st.shared.u32 [s], r2;", "st.shared.u32", "a value", 32),
    "half written": ("@p1 mov.u32 r2, 1; st.global.u32 [q1], r2;", "st.global.u32", "a value", 16),
    "an address": ("ld.shared.u32 r3, [r2]; ", "ld.shared.u32", "an address", 32),
    "a branch": ("@p2 bra END; st.global.u32 [q1], 1; END:", "bra", "a condition", 32),
    "a comparison": ("setp.lt.u32 p2, r2, 5; @p2 bra END; st.global.u32 [q1], 1; END:", "bra", "a condition", 32),
    "a guard": ("@!p2 st.global.u32 [q1], 1;", "st.global.u32", "a condition", 32),
    "an atomic": ("red.global.add.u32 [out], r2;", "red.global.add.u32", "a value", 32),
    "the carry": ("addc.u32 r3, r1, 0; st.global.u32 [q1], r3;", "st.global.u32", "a value", 32),
    "the carry of half": (
        "@p1 add.cc.u32 r3, r1, 0; addc.u32 r3, 0, 0; st.global.u32 [q1], r3;", "st.global.u32", "a value", 16,
    ),
    "selected": ("selp.u32 r3, r2, 7, p1; st.global.u32 [q1], r3;", "st.global.u32", "a value", 16),
    "a loop's first turn": (
        "mov.u32 r4, 0; NEXT: st.global.u32 [q1], r2; mov.u32 r2, 1; add.u32 r4, r4, 1; "
        "setp.lt.u32 p3, r4, 3; @p3 bra NEXT;", "st.global.u32", "a value", 32,
    ),
    "a guard of a move": ("mov.u32 r2, 1; @p2 mov.u32 r2, 3; st.global.u32 [q1], r2;", "st.global.u32", "a value", 32),
}  # fmt: skip
CLEAN = {
    "read and dropped": "add.u32 r3, r2, 1;",
    "written in two halves": "@p1 mov.u32 r2, 1; @!p1 mov.u32 r2, 2; st.global.u32 [q1], r2;",
    "only where it was written": "@p1 mov.u32 r2, 1; @p1 st.global.u32 [q1], r2;",
    "the other side of a select": "@p1 mov.u32 r2, 1; selp.u32 r3, r2, 7, p1; st.global.u32 [q1], r3;",
    "written behind the first turn": (
        "mov.u32 r4, 0; NEXT: setp.eq.u32 p3, r4, 0; @p3 bra SKIP; st.global.u32 [q1], r2; SKIP: "
        "add.u32 r2, r4, 1; add.u32 r4, r4, 1; setp.lt.u32 p3, r4, 3; @p3 bra NEXT;"
    ),
    "with itself": "xor.b32 r2, r2, r2; sub.u32 r3, r4, r4; add.u32 r2, r2, r3; st.global.u32 [q1], r2;",
    "masked": "and.b32 r3, r2, 0; st.global.u32 [q1], r3;",
    "spilled": "st.local.u32 [l], r2;",
    "part of a vector": "shl.b32 r3, tid, 3; add.u32 r3, r3, 0; mov.u32 r4, s; add.u32 r3, r3, r4; "
    "st.shared.v2.u32 [r3], {tid, r2};",
    "overwritten": "mov.u32 r3, r2; mov.u32 r3, 5; st.global.u32 [q1], r3;",
    "the carry written in a branch": (
        "@p1 bra ODD; add.cc.u32 r3, r1, 0; bra END; ODD: sub.cc.u32 r3, r1, 0; END: addc.u32 r3, 0, 0; "
        "st.global.u32 [q1], r3;"
    ),
}


@pytest.mark.parametrize("tier", list(Tier))
def test_undefined_bits_that_reach_memory_or_a_branch_are_found(tier: Tier):
    for name, (body, form, role, count) in FOUND.items():
        found = [f for f in findings(body, tier) if f.kind == "undefined register"]
        assert len(found) == 1, (name, found)
        assert re.search(f"'{re.escape(form)}' has {role} from a register that was never written", found[0].message), (
            name
        )
        assert found[0].count == count, (name, found[0].count)


@pytest.mark.parametrize("tier", list(Tier))
def test_undefined_bits_that_reach_nothing_are_not(tier: Tier):
    for name, body in CLEAN.items():
        assert "undefined register" not in {f.kind for f in findings(body, tier)}, name


def test_the_users_line_is_named():
    """A local variable that only some threads assign. What compilers make of it is undefined, too."""
    source = """
    extern "C" __global__ void k(int* out) {
        int value;
        asm volatile("{ .reg .u32 t; mov.u32 %0, t; }" : "=r"(value));
        out[threadIdx.x] = value;
    }"""
    (finding,) = find(source, {"out": np.zeros(32, np.int32)}, ("out",))
    assert finding.kind == "undefined register"
    assert finding.place is not None and finding.place.line == 4


def test_a_parameter_to_which_nothing_is_stored_is_found_where_it_is_loaded():
    loaded = "{ .param .b32 x; STORE ld.param.u32 r3, [x]; }"
    (finding,) = findings(loaded.replace("STORE", ""))
    assert finding.kind == "undefined register"
    assert "'mov.b32' has a parameter of a call that was never written" in finding.message
    assert findings(loaded.replace("STORE", "@p1 st.param.u32 [x], tid;")) == ()
