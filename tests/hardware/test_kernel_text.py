"""What makes a record stale: a kernel that does something else, and nothing that only reads differently."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import cupy
import numpy as np
import pytest
from lanes import exhaustive_unless

from harness.compilers.ptx_text import PtxKernel
from harness.model.discovery import discover
from harness.model.plan import Buffer, Launch, Plan
from harness.operations.attention.problem import Problem
from scripts.recording.kernel_text import NotUnderstood, cuda_text, numba_text, python_text
from scripts.recording.plan_hash import plan_hash

pytestmark = pytest.mark.compiles(False)

CUDA = r"""#line 1 "variants/mine/kernel.cu"
#include <cuda_fp16.h>
#define TWICE(x) ((x) + \
                  (x))
// Scales a row.
extern "C" __global__ void scale(float* O, int n)
{
    /* A thread per element. */
    for (int i = threadIdx.x; i < n; i += 32) {
        O[i] = TWICE(O[i]) * 0.5f;  // in place
        asm("mov.b32 %0, %0; // not a comment" : "+f"(O[i]));
    }
}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("// Scales a row.", "// Scales\\\n a column."),
        ("/* A thread per element. */", ""),
        ("#line 1", "#line 77"),
        ("{\n    /*", "{\n\n\n  /*"),
        ("i < n; i += 32", "i<n;   i+=32"),
        ("TWICE(x) ((x) + \\\n                  (x))", "TWICE(x)  ((x) + (x)) /* twice */"),
        ("#include <cuda", "#   include   <cuda"),
    ],
)
def test_cuda_that_only_reads_differently(old: str, new: str):
    assert old in CUDA
    assert cuda_text(CUDA.replace(old, new)) == cuda_text(CUDA)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("i += 32", "i += 64"),
        ("i += 32", "i + = 32"),
        ("0.5f", "0.25f"),
        ("0.5f", "0.5"),
        ("cuda_fp16.h", "cuda_bf16.h"),
        ("((x) + ", "((x) - "),
        ("// not a comment", ""),
        ("%0; //", "%0;  //"),
        ("TWICE(O[i])", "TWICE (O[j])"),
    ],
)
def test_cuda_that_does_something_else(old: str, new: str):
    assert old in CUDA
    assert cuda_text(CUDA.replace(old, new)) != cuda_text(CUDA)


NUMBA = '''"""A module."""

from numba import cuda, float32

from beside import STRIDE, helpers

HALF = 0.5


@cuda.jit(device=True)
def twice(x):
    return x + x


def make(width):
    @cuda.jit
    def scale(O, n):
        """Scales a row."""
        # A thread per element.
        tile = cuda.shared.array(width, float32)
        for i in range(cuda.threadIdx.x, n, STRIDE):
            tile[i] = twice(O[i]) * HALF
            O[i] = helpers.shift(tile[i])

    return scale


def register(registry):
    """Nothing to see."""
'''
BESIDE = """from types import SimpleNamespace

from numba import cuda

STRIDE = 32


@cuda.jit(device=True)
def shift(x):
    return x + 1


@cuda.jit(device=True)
def other(x):
    return x - 1


helpers = SimpleNamespace(shift=shift, other=other)
"""


def loaded(folder: Path, numba: str, beside: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    folder.mkdir()
    (folder / "beside.py").write_text(beside)
    (folder / "mine.py").write_text(numba)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    spec = importlib.util.spec_from_file_location("mine", folder / "mine.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def text_of(folder: Path, numba: str, beside: str, monkeypatch: pytest.MonkeyPatch, width: int = 32) -> str:
    return numba_text(loaded(folder, numba, beside, monkeypatch).make(width))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# A thread per element.", "# A thread\n\n        # per element."),
        ('"""Scales a row."""', '"""Scales\n\n        a column."""'),
        ('"""Scales a row."""\n', "\n"),
        ('"""Nothing to see."""', "registry.add(1)"),
        ('"""A module."""', '"""The module."""'),
        ("range(cuda.threadIdx.x, n, STRIDE)", "range(\n            cuda.threadIdx.x, n,\n STRIDE)"),
        ("return x - 1", "return x - 2"),
        ("STRIDE = 32\n", "STRIDE = 32\nUNUSED = 7\n"),
    ],
)
def test_numba_that_only_reads_differently(old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert old in NUMBA + BESIDE
    before = text_of(tmp_path / "before", NUMBA, BESIDE, monkeypatch)
    after = text_of(tmp_path / "after", NUMBA.replace(old, new), BESIDE.replace(old, new), monkeypatch)
    assert after == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("range(cuda.threadIdx.x, n, STRIDE)", "range(cuda.threadIdx.x, n + 1, STRIDE)"),
        ("            O[i] = helpers", "        O[i] = helpers"),
        ("HALF = 0.5", "HALF = 0.25"),
        ("return x + x", "return x * x"),
        ("STRIDE = 32", "STRIDE = 64"),
        ("return x + 1", "return x + 2"),
        ("@cuda.jit\n    def", "@cuda.jit(fastmath=True)\n    def"),
    ],
)
def test_numba_that_does_something_else(old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert old in NUMBA + BESIDE
    before = text_of(tmp_path / "before", NUMBA, BESIDE, monkeypatch)
    after = text_of(tmp_path / "after", NUMBA.replace(old, new), BESIDE.replace(old, new), monkeypatch)
    assert after != before


def test_what_a_closure_holds_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    module = loaded(tmp_path / "one", NUMBA, BESIDE, monkeypatch)
    assert numba_text(module.make(32)) == numba_text(module.make(32))
    assert numba_text(module.make(32)) != numba_text(module.make(64))


def test_an_option_whose_value_stands_elsewhere_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = NUMBA.replace("@cuda.jit\n    def", "@cuda.jit(fastmath=width > 32)\n    def")
    module = loaded(tmp_path / "one", source.replace("array(width,", "array(32,"), BESIDE, monkeypatch)
    assert numba_text(module.make(32)) != numba_text(module.make(64))


def test_a_cached_function_counts_by_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cached = "import functools\n\n@functools.cache\ndef STRIDE():\n    return 32\n"
    before = text_of(tmp_path / "before", NUMBA, BESIDE.replace("STRIDE = 32\n", cached), monkeypatch)
    other = cached.replace("return 32", "return 64")
    assert text_of(tmp_path / "after", NUMBA, BESIDE.replace("STRIDE = 32\n", other), monkeypatch) != before


def test_types_of_the_standard_library_may_annotate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    beside = BESIDE.replace("STRIDE = 32", "from collections.abc import Callable as STRIDE")
    assert "collections.abc.Callable" in text_of(tmp_path / "one", NUMBA, beside, monkeypatch)


def test_what_cannot_be_told_is_no_guess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    beside = BESIDE.replace("STRIDE = 32", "STRIDE = object()")
    with pytest.raises(NotUnderstood, match="object"):
        text_of(tmp_path / "one", NUMBA, beside, monkeypatch)


def test_formatted_strings_are_one_token_in_every_python():
    source = 'x = f"{a}  {f\'{b} #\'} # no comment" "c"  # a comment\n'
    assert python_text(source) == 'x\n=\nf"{a}  {f\'{b} #\'} # no comment"\n"c"\nNEWLINE'


PROBLEM = Problem(heads=1, q_len=4, kv_len=4, head_dim=4)


def plan(source: str = CUDA, options: tuple[str, ...] = ("-DN=1",), **fields: object) -> Plan:
    kernel = cupy.RawKernel(source, "scale", options=options)
    launch = {"grid": (1,), "block": (32,), "args": ("O", np.int32(16)), "shared_bytes": 0} | fields
    return Plan((Launch(kernel, **launch),), (Buffer("scratch", (8,), "float32"),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        plan(CUDA.replace("i += 32", "i += 64")),
        plan(options=("-DN=2",)),
        plan(grid=(2,)),
        plan(block=(64,)),
        plan(shared_bytes=16),
        plan(args=("O", np.int32(15))),
        plan(args=("O", np.int64(16))),
        plan(args=("Q", np.int32(16))),
        Plan(plan().launches, (Buffer("scratch", (9,), "float32"),)),
        Plan(plan().launches * 2, plan().buffers),
    ],
)
def test_all_that_a_plan_launches_counts(other: Plan):
    assert plan_hash(other, PROBLEM) != plan_hash(plan(), PROBLEM)


def test_a_plan_is_known_again():
    assert plan_hash(plan(CUDA.replace("// Scales a row.", "")), PROBLEM) == plan_hash(plan(), PROBLEM)
    assert plan_hash(plan(grid=(np.int64(1),)), PROBLEM) == plan_hash(plan(), PROBLEM)


@pytest.mark.parametrize("names", exhaustive_unless(lambda names: names != "*", ["fa2-*", "*"]))
def test_another_process_comes_to_the_same_hash(names: str):
    program = (
        "from harness.model.discovery import discover; from harness import Problem;"
        "from scripts.recording.plan_hash import plan_hash; problem = Problem(mask='causal', dtype='float16');"
        f"variants = discover().registry.select('{names}', 'attention');"
        "print(*(plan_hash(v.plan(problem), problem) for v in variants))"
    )
    root = Path(__file__).resolve().parents[2]
    there = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    problem = Problem(mask="causal", dtype="float16")
    here = [plan_hash(variant.plan(problem), problem) for variant in discover().registry.select(names, "attention")]
    assert there.stdout.split() == here and len(set(here)) == len(here) > 1


def test_ptx_is_its_own_text():
    def hashed(text: str) -> str:
        return plan_hash(Plan((Launch(PtxKernel(text, "mine"), (1,), (32,), ("O",)),)), Problem())

    text = ".version 8.4\n.target sm_90\n.address_size 64\n.visible .entry mine() { ret; }"
    assert hashed(text) == hashed(text) != hashed(text.replace("ret;", "trap;"))
