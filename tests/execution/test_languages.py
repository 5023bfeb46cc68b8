"""A language is one toolchain: PTX text as the third, one that is added here, and what is said of none at all."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from emulators import emulator

from harness import PtxKernel
from harness.cli import main
from harness.compilers import CompiledKernel, c_arguments, compile_kernel, toolchains
from harness.compilers.native_gpu import NativeGpu
from harness.compilers.toolchain import Call, Toolchain
from harness.compilers.toolchains import TOOLCHAINS
from harness.execution.comparison import compare
from harness.execution.outcome import Row
from harness.model.discovery import discover
from harness.model.plan import Launch, Plan
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem
from harness.ptx.parsing.declarations import entry_parameters

pytestmark = pytest.mark.compiles

PLUGINS = Path(__file__).parents[1] / "plugins"
PROBLEM = Problem(heads=2, q_len=20, kv_len=30, head_dim=8, mask="causal")
ONE_KEY = ["--q-len", "1", "--kv-len", "1", "--head-dim", "16", "--heads", "2", "--plugin", str(PLUGINS / "one_key.py")]


@functools.cache
def in_cuda() -> Variant:
    """The plugin for CUDA, whose kernel is translated into other languages here."""
    plugins = [PLUGINS / "one_thread_per_row.py"]
    return discover(plugins, package="no_such_package_of_variants").registry.get("one-thread-per-row")


def translated(backend: str, kernel_of: Any, name: str) -> Variant:
    """The same launches of the kernel that `kernel_of` makes of a PTX text and a name."""

    def plan(problem: Problem) -> Plan:
        original = in_cuda().plan(problem)
        (launch,) = original.launches
        ptx = compile_kernel(launch.kernel, (), "sm_90").ptx
        return replace(original, launches=(replace(launch, kernel=kernel_of(ptx, launch.kernel_name)),))

    return replace(in_cuda(), name=name, backend=backend, plan=plan)


def rows_of(*variants: Variant) -> dict[str, Row]:
    return {row.variant: row for row in compare(variants, PROBLEM, emulator()).rows}


def test_ptx_text_passes_with_the_counts_of_what_it_was_compiled_from() -> None:
    rows = rows_of(in_cuda(), translated("ptx", PtxKernel, "in-ptx"))
    original, ptx = rows["one-thread-per-row"], rows["in-ptx"]
    assert (ptx.verdict, ptx.reason, ptx.backend, ptx.rank) == ("pass", None, "ptx", 1)
    assert (ptx.read_bytes, ptx.write_bytes) == (original.read_bytes, original.write_bytes)
    assert ptx.max_abs_error == original.max_abs_error


def test_ptx_by_hand_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    one_key = [*ONE_KEY, "--device", "emulator", "--format", "json", "--variants"]
    assert main(["compare", *one_key, "one-key"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["verdict"], row["backend"], row["claim_holds"]) == ("pass", "ptx", True)
    assert (row["read_bytes"], row["write_bytes"]) == (128, 128)

    assert main(["compare", *one_key, "one-key-strays"]) == 1
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    line = (PLUGINS / "one_key.py").read_text().partition("ld.global")[0].count("\n") + 1
    assert f"one_key.py:{line} (PTX line " in row["reason"]
    assert "out-of-bounds load of 4 bytes at byte offset 128 of buffer V" in row["reason"]

    assert main(["show", "one-key", *ONE_KEY]) == 0
    shown = capsys.readouterr().out
    assert "Source of copy_row, sm_90\n\n.version 8.0\n.target sm_80" in shown
    assert main(["show", "one-key", *ONE_KEY, "--ptx"]) == 0
    assert f" {line} 1 ld.global.b32 %value, [%from];" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("says", "kernel", "words"),
    [
        ("cupy", print, "kernel print is a builtin_function_or_method; it has to be a cupy.RawKernel, a function"),
        (
            "cupy",
            PtxKernel("?", "mine"),
            "says backend='cupy', but its plan launches kernel mine, which is a harness",
        ),
        ("mojo", PtxKernel("?", "mine"), "variant 'odd' has backend 'mojo'; choose cupy, numba"),
        ("ptx", PtxKernel("?", "mine"), "the PTX defines no kernel, not mine"),
    ],
)
def test_a_kernel_of_another_language_is_an_error_of_its_row_only(says: str, kernel: Any, words: str) -> None:
    odd = Variant(name="odd", backend=says, plan=lambda problem: Plan((Launch(kernel, (1,), (32,), ()),)))
    rows = rows_of(odd, in_cuda())
    assert (rows["odd"].verdict, rows["odd"].total_bytes) == ("error", None)
    assert words in str(rows["odd"].reason)
    assert rows["one-thread-per-row"].verdict == "pass"


def test_a_plugin_for_a_language_that_there_is_not_is_a_wrong_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "later.py"
    plugin.write_text(
        "from harness import Plan, Variant\n"
        "def register(registry):\n"
        "    registry.add(Variant(name='later', backend='mojo', plan=lambda problem: Plan(())))\n"
    )
    assert main(["list", "--plugin", str(plugin)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    main(["compare", "--plugin", str(plugin)])
    assert "variant 'later' has backend 'mojo'; choose cupy, numba" in capsys.readouterr().err


# --- one more language -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToyKernel:
    """A kernel of the language `toy`."""

    program: str
    name: str


class ToyToolchain(Toolchain):
    """Its compiler is quick: programs are PTX with another `.target`."""

    name = "toy"
    kernels = "a ToyKernel"

    def owns(self, kernel: object) -> bool:
        return isinstance(kernel, ToyKernel)

    def compile(self, kernel: Any, args: tuple[Any, ...], arch: str) -> CompiledKernel:
        ptx = kernel.program.replace(".target toy", f".target {arch}")
        parameters = entry_parameters(ptx)[kernel.name]
        return CompiledKernel(ptx, kernel.name, kernel.name, self, arch, parameters)

    def pack(self, compiled: CompiledKernel, args: tuple[Any, ...]) -> tuple[bytes, ...]:
        return c_arguments.pack(compiled.name, compiled.parameters, args)

    def bind(self, launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu) -> Call:
        raise NotImplementedError

    def source(self, kernel: Any) -> str:
        return f"a toy called {kernel.name}"


def test_a_language_more_is_a_toolchain_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = translated("toy", lambda ptx, name: ToyKernel(ptx.replace(".target sm_90", ".target toy"), name), "in-toy")
    assert rows_of(toy)["in-toy"].reason.startswith("variant 'in-toy' has backend 'toy'; choose ")
    monkeypatch.setattr(toolchains, "TOOLCHAINS", (*TOOLCHAINS, ToyToolchain()))
    rows = rows_of(toy, in_cuda(), replace(toy, name="no-cuda", backend="cupy"))
    assert (rows["in-toy"].verdict, rows["in-toy"].backend) == ("pass", "toy")
    assert rows["in-toy"].total_bytes == rows["one-thread-per-row"].total_bytes
    assert "which is a ToyKernel; write backend='toy'" in str(rows["no-cuda"].reason)


def test_an_algorithm_with_the_wrong_language_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchains, "TOOLCHAINS", (*TOOLCHAINS, ToyToolchain()))
    fa2 = discover().registry.get("fa2-numba")
    row = rows_of(replace(fa2, name="fa2-toy", backend="toy"))["fa2-toy"]
    assert row.verdict == "error"
    assert "which is a function under numba.cuda.jit; write backend='numba'" in str(row.reason)
