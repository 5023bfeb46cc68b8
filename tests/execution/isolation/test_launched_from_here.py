"""Kernels of a planner on this process's GPU, as `bench` launches them: machine code and bytes, no code of theirs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_driver import FakeDriver

from harness.compilers import compile_kernel
from harness.compilers.compiled_kernel import CompiledKernel, DevicePointer
from harness.compilers.native_gpu import NativeGpu
from harness.compilers.ptxas import section_bytes
from harness.compilers.toolchains import toolchain_of
from harness.execution.isolation.process import PlannerProcess
from harness.execution.isolation.variants import discover_isolated
from harness.model.discovery import discover
from harness.model.plan import Launch
from harness.model.problem import BaseProblem
from harness.model.variant import Registry
from harness.operations.attention.problem import Problem

pytestmark = pytest.mark.compiles

PLUGIN = Path(__file__).parents[2] / "plugins" / "limited_registers.py"
ARCH = "sm_90"


@pytest.fixture(scope="module")
def isolated() -> Registry:
    return discover_isolated([PLUGIN]).registry


@pytest.fixture(scope="module")
def imported() -> Registry:
    return discover([PLUGIN]).registry


def arrays_of(problem: BaseProblem) -> dict[str, SimpleNamespace]:
    """What a kernel's `bind` is given, with addresses that name the buffer."""
    return {
        tensor.name: SimpleNamespace(
            data=SimpleNamespace(ptr=0x1000 * number), shape=tensor.shape, dtype=np.dtype(tensor.dtype)
        )
        for number, tensor in enumerate(problem.tensors, start=1)
    }


def launched(launch: Launch, problem: BaseProblem) -> tuple[bytes, str, bytes]:
    """The module that was loaded, the kernel's name in it, and the bytes of all that it was given."""
    driver = FakeDriver()
    toolchain_of(launch.kernel).bind(launch, arrays_of(problem), NativeGpu(driver, None, "a GPU", ARCH))()
    (_, image), *_, (entry, grid, block, args, _) = driver.calls
    assert (grid, block) == (launch.grid, launch.block)
    return image, entry, b"".join(argument.tobytes() for argument in args)


@pytest.mark.parametrize(("name", "asks"), [("fa2-cupy", 1), ("fa1-numba", 2)])
def test_a_launch_is_compiled_once(isolated: Registry, monkeypatch: pytest.MonkeyPatch, name: str, asks: int):
    """However often it is planned; with other arguments once more where the kernel does not say their types."""
    asked: list[str] = []
    ask = PlannerProcess.ask
    monkeypatch.setattr(
        PlannerProcess, "ask", lambda self, *said, **more: (asked.append(said[0]), ask(self, *said, **more))[1]
    )
    variant, problem = isolated.get(name), Problem(heads=1, q_len=8, kv_len=8, head_dim=16)

    def compiled(keys: int) -> CompiledKernel:
        step = variant.plan(dataclasses.replace(problem, kv_len=keys)).launches[0]
        pointers = {b: DevicePointer(4096, (1, 1, keys, 16), "float32") for b in step.args if isinstance(b, str)}
        args = tuple(pointers[a] if isinstance(a, str) else a for a in step.args)
        found = compile_kernel(step.kernel, args, ARCH)
        assert found.pack(args) == toolchain_of(step.kernel).pack(found, args)
        return found

    first, again, longer = compiled(8), compiled(8), compiled(9)
    assert asked.count("compile") == asks and asked.count("plan") == 3
    assert first.ptx == again.ptx == longer.ptx


@pytest.mark.parametrize("name", ["fa2-cupy", "fa2-numba"])
def test_it_is_given_what_it_is_given_where_it_was_planned(isolated: Registry, imported: Registry, name: str):
    problem = Problem(heads=2, q_len=8, kv_len=8, head_dim=32, mask="causal")
    (remote,), (here,) = (registry.get(name).plan(problem).launches for registry in (isolated, imported))
    image, entry, given = launched(remote, problem)
    arrays = arrays_of(problem)
    args = tuple(
        DevicePointer(arrays[a].data.ptr, arrays[a].shape, "float32") if isinstance(a, str) else a for a in here.args
    )
    compiled = compile_kernel(here.kernel, args, ARCH)
    assert (entry, given) == (compiled.entry, b"".join(compiled.pack(args)))
    if name == "fa2-cupy":
        assert section_bytes(image, f".text.{entry}")
    else:
        assert image == compiled.ptx.encode()


@pytest.mark.parametrize("name", ["limited-cupy", "limited-numba"])
def test_a_limit_of_registers_goes_with_it(isolated: Registry, name: str):
    problem = Problem(heads=1, q_len=4, kv_len=4, head_dim=4)
    (launch,) = isolated.get(name).plan(problem).launches
    image, entry, _ = launched(launch, problem)
    if image.startswith(b"\x7fELF"):
        free = dataclasses.replace(launch, kernel=isolated.get("free-cupy").plan(problem).launches[0].kernel)
        assert launched(free, problem)[0] != image
    else:
        head, body = image.decode().split("\n.maxnreg 32\n")
        assert entry in head and body.lstrip().startswith("{")
