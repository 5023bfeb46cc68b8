"""On a GPU: clusters are launched as a plan says, and do what the emulator makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
import pytest

from harness.compilers.ptx_text import PtxKernel
from harness.gpu.context import GpuContext, gpu_available
from harness.model.plan import Launch
from harness.support.errors import PlanError
from scripts.record_opcodes import run_on_gpu
from scripts.recording.opcode_kernel import LISTENERS, Launched
from tests.emulator.cluster_kernels import MATRIX, PRODUCT, REDUCTION, TILE, product_arguments
from tests.emulator.codegen.instructions import test_opcodes_clusters as opcodes
from tests.emulator.hopper_kernel import HEAD

pytestmark = pytest.mark.skipif(not gpu_available(), reason="needs a GPU")


def native(kernel: Any, arrays: dict[str, np.ndarray], args: tuple[Any, ...], **launch: Any) -> dict[str, np.ndarray]:
    """The arrays after a native launch."""
    context = GpuContext()
    on_gpu = {name: cupy.asarray(array) for name, array in arrays.items()}
    cupy.cuda.Device().synchronize()
    context.bind(Launch(kernel, args=args, **launch), on_gpu)()
    cupy.cuda.Device().synchronize()
    return {name: array.get() for name, array in on_gpu.items()}


def cuda(source: str) -> Any:
    return cupy.RawKernel(HEAD + source, "k", options=("-arch=sm_90a",))


@pytest.mark.parametrize("blocks", [2, 8])
def test_a_reduction_over_a_cluster(blocks: int) -> None:
    x = np.random.default_rng(0).integers(-1000, 1000, (3, blocks, 512)).astype(np.int32)
    arrays = {"X": x.reshape(-1), "Y": np.zeros(3, np.int32)}
    shape = {"grid": (blocks, 3), "block": (128,), "cluster": (blocks,)}
    assert np.array_equal(native(cuda(REDUCTION), arrays, ("X", "Y"), **shape)["Y"], x.sum(axis=(1, 2)))


@pytest.mark.parametrize("cluster", [(2, 1), (1, 2), (2, 2), (4, 2)])
def test_tiles_are_sent_to_all_that_need_them(cluster: tuple[int, int]) -> None:
    arrays, maps, expected = product_arguments()
    shape = {"grid": (MATRIX // TILE,) * 2, "block": (TILE * TILE,), "cluster": cluster}
    assert np.array_equal(native(cuda(PRODUCT), arrays, (*maps, "C"), **shape)["C"], expected)


def test_a_numba_kernel_in_clusters() -> None:
    """Numba's own launch has no place for them."""
    numba_cuda = pytest.importorskip("numba.cuda")

    @numba_cuda.jit
    def kernel(x, y, n):
        i = numba_cuda.grid(1)
        if i < n:
            y[i] = 2 * x[i]

    arrays = {"X": np.arange(256, dtype=np.int32), "Y": np.zeros(256, np.int32)}
    after = native(kernel, arrays, ("X", "Y", np.int32(200)), grid=(4,), block=(64,), cluster=(4,))
    assert np.array_equal(after["Y"], np.where(np.arange(256) < 200, 2 * np.arange(256), 0))


WHERE = """.version 8.1
.target sm_90
.address_size 64
.visible .entry k(.param .u64 y) DIRECTIVE { .reg .b32 r<4>; .reg .b64 q<3>; ld.param.u64 q1, [y]; .shared .b32 s;
  mov.u32 r1, %ctaid.x; mov.u32 r2, %cluster_ctarank; mov.u32 r3, %cluster_nctarank; mad.lo.u32 r2, r3, 100, r2;
  mad.wide.u32 q2, r1, 4, q1; st.global.u32 [q2], r2; ret; }"""


@pytest.mark.parametrize(
    ("directive", "cluster", "found"),
    [("", None, [100] * 4), ("", (2,), [200, 201] * 2), (".reqnctapercluster 4", None, [400, 401, 402, 403]),
     (".reqnctapercluster 2", (2, 1, 1), [200, 201] * 2)],
)  # fmt: skip
def test_the_launch_or_the_kernel_says_how_large_a_cluster_is(directive: str, cluster: Any, found: list[int]) -> None:
    kernel = PtxKernel(WHERE.replace("DIRECTIVE", directive), "k")
    after = native(kernel, {"Y": np.zeros(4, np.int32)}, ("Y",), grid=(4,), block=(1,), cluster=cluster)
    assert after["Y"].tolist() == found


def test_addresses_have_the_rank_of_their_block_from_bit_24_on() -> None:
    """A block's own addresses, too: what the emulator gives out, see `abi/layout.py`."""
    text = WHERE.replace("DIRECTIVE", "").replace("mad.lo.u32 r2, r3, 100, r2;", "mov.u32 r2, s;")
    after = native(PtxKernel(text, "k"), {"Y": np.zeros(4, np.uint32)}, ("Y",), grid=(4,), block=(1,), cluster=(4,))
    assert (after["Y"] >> 24).tolist() == [0, 1, 2, 3] and len(set((after["Y"] & 0xFFFFFF).tolist())) == 1


def test_what_does_not_fit_the_kernel_is_refused() -> None:
    kernel = PtxKernel(WHERE.replace("DIRECTIVE", ".reqnctapercluster 4"), "k")
    with pytest.raises(PlanError, match=r"does not launch it in clusters of \(2,\)"):
        native(kernel, {"Y": np.zeros(4, np.int32)}, ("Y",), grid=(4,), block=(1,), cluster=(2,))


def emulated(test: Callable[..., None], *args: Any) -> list[Launched]:
    """What a test of the emulator launches, and what came of it there."""
    found: list[Launched] = []
    LISTENERS.append(found.append)
    try:
        test(*args)
    finally:
        LISTENERS.remove(found.append)
    return found


def arrivals() -> list[tuple[int, str]]:
    (mark,) = [m for m in opcodes.test_arrivals_at_another_blocks_mbarrier.pytestmark if m.name == "parametrize"]
    return list(mark.args[1])


CASES: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
    (opcodes.test_special_registers, ()),
    (opcodes.test_addresses_name_their_block, ()),
    (opcodes.test_loads_stores_and_atomics_reach_the_next_block, ()),
    *((opcodes.test_arrivals_at_another_blocks_mbarrier, case) for case in arrivals()),
    *((opcodes.test_what_goes_to_another_block_on_its_own, (form,)) for form in opcodes.FORMS),
]


@pytest.mark.parametrize(("test", "args"), CASES, ids=lambda value: getattr(value, "__name__", str(value)[:80]))
def test_every_opcode_as_on_the_emulator(test: Callable[..., None], args: tuple[Any, ...]) -> None:
    for launched in emulated(test, *args):
        after = run_on_gpu(launched)
        assert all(np.array_equal(after[name], launched.after[name]) for name in after), launched.text
