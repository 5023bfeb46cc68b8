"""`setmaxnreg`: a block whose warps want more registers than it was launched with would hang on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator.codegen.kernel_facts import entry_registers
from harness.ptx.parsing.parser import parse
from harness.support.errors import KernelFault
from tests.emulator.cuda_kernel import run

THREADS = 384
SOURCE = """#line 1 "roles.cu"
extern "C" __global__ __launch_bounds__(THREADS, 1) void k(float* x) {
    if (threadIdx.x < 128) {
        RELEASE
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 TAKEN;");
    }
    x[threadIdx.x] = 1.f;
}
"""
RELEASE = 'asm volatile("setmaxnreg.dec.sync.aligned.u32 RELEASED;");'


def launch(released: int | None, taken: int, grid: int = 1, cluster: tuple[int, int, int] | None = None) -> None:
    """Run a block of a warpgroup that keeps `released` registers per thread, or all, and two that take `taken`."""
    import cupy

    source = SOURCE.replace("RELEASE", "" if released is None else RELEASE.replace("RELEASED", str(released)))
    source = source.replace("TAKEN", str(taken)).replace("THREADS", str(THREADS))
    kernel = cupy.RawKernel(source, "k", options=("-arch=sm_90a",))
    x = np.zeros(THREADS, np.float32)
    after, _ = run(kernel, {"x": x}, ("x",), grid=(grid, 1, 1), block=(THREADS, 1, 1), cluster=cluster)
    assert after["x"].all()


def test_warpgroups_may_share_all_registers_of_the_launch() -> None:
    # 24 + 240 + 240 are three times the 168 that 65,536 registers leave for each of 384 threads.
    launch(released=24, taken=240)


@pytest.mark.parametrize(
    ("released", "taken", "registers"), [(32, 240, 128 * 512), (24, 248, 128 * 520), (None, 176, 128 * 520)]
)
def test_more_registers_than_at_launch_name_the_line(released: int | None, taken: int, registers: int) -> None:
    with pytest.raises(KernelFault) as caught:
        launch(released, taken)
    assert caught.value.kind == "register deadlock"
    words = ("kernel k", "roles.cu:5", "block (0, 0, 0)", "thread (128, 0, 0)")
    words += (f"have {registers:,} registers", "168 for each of 384 threads provides 64,512")
    for word in words:
        assert word in str(caught.value), caught.value


def test_a_block_of_a_cluster_is_named() -> None:
    with pytest.raises(KernelFault, match=r"block \(0, 0, 0\).* 66,560 registers"):
        launch(24, 248, grid=2, cluster=(2, 1, 1))


@pytest.mark.parametrize(
    ("directives", "registers"),
    [
        (".maxntid 384 .minnctapersm 1", 168),
        (".reqntid 384, 1, 1 .minnctapersm 1", 168),
        (".maxntid 384 .minnctapersm 2", 80),
        (".maxntid 416 .minnctapersm 1", 128),  # four warps at a time
        (".maxntid 128 .minnctapersm 1", 256),
        (".maxntid 384 .minnctapersm 1 .maxnreg 161", 168),
        (".maxntid 384 .minnctapersm 1 .maxnreg 160", 160),
        (".maxnreg 128", 128),
        (".maxntid 384", None),  # ptxas ignores setmaxnreg
        ("", None),
    ],
)
def test_registers_at_launch(directives: str, registers: int | None) -> None:
    def kernel(body: str) -> int | None:
        text = f".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k() {directives} {{ {body} ret; }}"
        function = parse(text).functions["k"]
        return entry_registers(function, function)

    assert kernel("setmaxnreg.dec.sync.aligned.u32 24;") == registers
    assert kernel("") is None
