"""Which language a kernel is written in, and what is said where it is none or another than its variant says."""

from __future__ import annotations

from typing import Any

import pytest
from sample_kernels import axpy, staged

from harness import CuteFunction
from harness.compilers import toolchains
from harness.compilers.cute.kernel import CuteKernel
from harness.compilers.ptx_text import PtxKernel
from harness.compilers.toolchain import type_names
from harness.compilers.toolchains import TOOLCHAINS, check_backend, check_kernels, toolchain_named, toolchain_of
from harness.model.plan import Plan
from harness.model.variant import Variant
from harness.support.errors import PlanError, PluginError
from tests.compilers.triton.triton_samples import scaled

pytestmark = pytest.mark.compiles(False)

PTX = ".visible .entry k() { ret; }"
KERNELS: dict[str, Any] = {
    "cupy": axpy(),
    "numba": staged,
    "ptx": PtxKernel(PTX, "k"),
    "triton": scaled,
    "cute": CuteKernel(CuteFunction("k", b"", PTX), (), 0, "k", "k"),
}


def variant(backend: str) -> Variant:
    return Variant(name="mine", plan=lambda problem: Plan(()), backend=backend)


@pytest.mark.parametrize("name", KERNELS)
def test_each_kernel_has_one_owner(name: str) -> None:
    assert [toolchain.name for toolchain in TOOLCHAINS if toolchain.owns(KERNELS[name])] == [name]
    assert toolchain_of(KERNELS[name]) is toolchain_named(name)
    check_kernels(variant(name), [KERNELS[name]])


def test_every_language_is_tried_here() -> None:
    own = {each.name for each in TOOLCHAINS if type(each).__module__.startswith("harness.")}  # tests may add others
    assert set(KERNELS) == own
    assert len({toolchain.name for toolchain in TOOLCHAINS}) == len(TOOLCHAINS)


@pytest.mark.parametrize("kernel", [print, "axpy", staged.py_func, object()])
def test_a_kernel_that_nobody_owns_is_named(kernel: object) -> None:
    with pytest.raises(PlanError) as caught:
        toolchain_of(kernel)
    message = str(caught.value)
    assert message.startswith(f"kernel {getattr(kernel, '__name__', type(kernel).__name__)} is a ")
    assert "cupy.RawKernel, a function under numba.cuda.jit" in message and "harness.PtxKernel" in message


def test_a_kernel_that_two_own_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchains, "TOOLCHAINS", (*TOOLCHAINS, type(TOOLCHAINS[0])()))
    with pytest.raises(PlanError, match="kernel axpy is a RawKernel, which several toolchains own: cupy and cupy"):
        toolchain_of(axpy())


def test_a_backend_that_there_is_not() -> None:
    assert toolchain_named("mojo") is None
    with pytest.raises(PluginError, match=r"variant 'mine' has backend 'mojo'; choose cupy, numba.* or "):
        check_backend(variant("mojo"))
    check_backend(variant("ptx"))


@pytest.mark.parametrize(("says", "name"), [(a, b) for a in KERNELS for b in KERNELS if a != b])
def test_a_kernel_of_another_language_than_the_variant_says(says: str, name: str) -> None:
    with pytest.raises(PlanError) as caught:
        check_kernels(variant(says), [KERNELS[says], KERNELS[name]])
    for words in (f"backend={says!r}", f"write backend={name!r}", toolchain_of(KERNELS[name]).kernels):
        assert words in str(caught.value)


def test_numbas_simulator_is_switched_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = type("FakeCUDAKernel", (), {"__module__": "numba.cuda.simulator.kernel"})()
    assert "numba.FakeCUDAKernel" in type_names(kernel)
    with pytest.raises(PlanError, match="unset NUMBA_ENABLE_CUDASIM"):
        toolchain_of(kernel).compile(kernel, (), "sm_90")
