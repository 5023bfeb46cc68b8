"""`pytest --attention`: right variants pass, wrong ones fail with the right reason, and nobody else pays for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import harness

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = ROOT / "tests" / "plugins"
pytestmark = pytest.mark.compiles

KERNELS = '''
import cupy, numpy as np
from harness import Launch, Plan, Variant

# The second warp reads what the first one stores: without a barrier the answer is right as long as that one is first.
SOURCE = r"""
extern "C" __global__ void racy(const float* X, float* Y, int columns) {
    __shared__ float seen[64];
    const float* x = X + (size_t)blockIdx.x * columns;
    float m = __int_as_float(0xff800000), l = 0.0f;
    for (int c = 0; c < columns; ++c) m = fmaxf(m, x[c]);
    for (int c = 0; c < columns; ++c) l += expf(x[c] - m);
    seen[threadIdx.x] = l;
    BARRIER
    float sum = seen[threadIdx.x % 32];
    for (int c = threadIdx.x; c < columns; c += 64) Y[(size_t)blockIdx.x * columns + c] = expf(x[c] - m) / sum;
}
"""

def variant(name, barrier, operator="-"):
    source = SOURCE.replace("BARRIER", barrier).replace("x[c] - m", f"x[c] {operator} m")
    kernel = cupy.RawKernel(source, "racy")
    def plan(p):
        return Plan((Launch(kernel, (p.rows,), (64,), ("X", "Y", np.int32(p.columns))),))
    return Variant(name=name, operation="softmax", plan=plan, takes=(), supports=only_float32)

def only_float32(p):
    return None if p.dtype == "float32" else "these kernels know only float32"

def register(registry):
    registry.add(variant("good", "__syncthreads();"))
    registry.add(variant("racy", ""))
    registry.add(variant("wrong", "__syncthreads();", "- 0.5f *"))
    registry.add(variant("both", "", "- 0.5f *"))
    registry.add(Variant(name="nowhere", operation="softmax", plan=None, supports=lambda p: "never"))
'''


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "harness.pytest_plugin", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, env=environment(folder))


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "PYTEST_ADDOPTS": ""}


def outcomes(text: str) -> dict[str, str]:
    """`variant::demand` -> PASSED, FAILED or SKIPPED."""
    return {m[1]: m[2] for m in re.finditer(r"::([\w-]+::\w+) (PASSED|FAILED|SKIPPED)", text)}


def reason_of(text: str, what: str) -> str:
    """What stands under the heading of a failure."""
    found = re.search(rf"^_+ {what} _+\n(.*?)^(?:_|=)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, text
    return found[1]


def test_right_variants_pass_and_wrong_ones_fail_with_their_reason(tmp_path: Path) -> None:
    """One run for four variants: what it takes is compiled once."""
    package = tmp_path / "somebody"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "kernels.py").write_text(KERNELS)
    (tmp_path / "test_own.py").write_text("def test_own(): pass\n")
    chosen = "good or racy::answer or racy::sanitizer or wrong::answer or wrong::determinism or nowhere or test_own"
    done = run(tmp_path, "--attention", "somebody.kernels", "--attention-examples", "10", "-v", "-k", chosen)
    text = done.stdout
    assert done.returncode == 1, text + done.stderr
    assert " good: " not in text, text  # a heading, and below it the reason
    assert outcomes(text) == {
        "good::takes": "PASSED",
        "good::answer": "PASSED",
        "good::properties": "PASSED",
        "good::determinism": "PASSED",
        "good::sanitizer": "PASSED",
        "good::inputs": "PASSED",
        "good::claim": "SKIPPED",
        "racy::answer": "PASSED",  # in the order in which warps happen to run
        "racy::sanitizer": "FAILED",
        "wrong::answer": "FAILED",
        "wrong::determinism": "SKIPPED",  # one mistake is told once
        "nowhere::takes": "FAILED",
        "nowhere::answer": "FAILED",
        "nowhere::properties": "SKIPPED",
        "nowhere::determinism": "SKIPPED",
        "nowhere::sanitizer": "SKIPPED",
        "nowhere::inputs": "SKIPPED",
        "nowhere::claim": "SKIPPED",
    }
    assert "test_own.py::test_own PASSED" in text  # the user's own tests run, too
    race = reason_of(text, "racy: sanitizer")
    assert race.startswith("racy: RAW race: ") and "kernels.py:15 " in race
    assert re.search(r"^repeat: python -m harness fuzz racy --plugin \S+kernels.py --replay '\{", race, re.MULTILINE)
    wrong = reason_of(text, "wrong: answer")
    assert wrong.startswith("wrong: wrong answer: ")
    assert re.search(r"^on: softmax, 1 row x \d+ columns?, float32; inputs", wrong, re.MULTILINE)
    assert "supports none of the" in reason_of(text, "nowhere: takes")
    assert "Traceback" not in text and "conformance.py" not in text


def test_a_race_is_found_in_a_kernel_that_is_wrong_anyway(tmp_path: Path) -> None:
    """The sanitizer looks at every case, and wrong values do not end its search."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    chosen = "both::answer or both::determinism or both::sanitizer or wrong::sanitizer"
    words = ("--attention", "kernels.py", "--attention-examples", "10", "-v")
    done = run(tmp_path, *words, "-k", chosen)
    assert done.returncode == 1, done.stdout + done.stderr
    assert outcomes(done.stdout) == {
        "both::answer": "FAILED",
        "both::determinism": "SKIPPED",
        "both::sanitizer": "FAILED",
        "wrong::sanitizer": "PASSED",
    }
    race = reason_of(done.stdout, "both: sanitizer")
    assert race.startswith("both: RAW race: ") and "kernels.py:15 " in race
    assert "wrong answer" in reason_of(done.stdout, "both: answer")
    # A test selected without that of the answer must not be green either.
    alone = run(tmp_path, *words, "-k", "both::sanitizer or wrong::determinism")
    assert alone.returncode == 1, alone.stdout + alone.stderr
    assert outcomes(alone.stdout) == {"wrong::determinism": "FAILED", "both::sanitizer": "FAILED"}
    assert reason_of(alone.stdout, "both: sanitizer") == race
    assert reason_of(alone.stdout, "wrong: determinism").startswith("wrong: wrong answer: ")


def test_the_tests_of_this_project_are_not_run_beside_a_variant() -> None:
    done = run(ROOT, "--attention", str(PLUGINS / "one_thread_per_row.py"), "--collect-only", "-q")
    collected = [line for line in done.stdout.splitlines() if "::" in line]
    assert collected and all("one_thread_per_row" in line for line in collected), done.stdout


def test_a_claim_that_is_not_what_is_counted_fails(tmp_path: Path) -> None:
    words = ("--attention", str(PLUGINS / "wrong_claim.py"), "--attention", str(PLUGINS / "spoilt_inputs.py"))
    done = run(tmp_path, *words, "--attention-examples", "16", "-v", "-k", "wrong-claim::claim or scales-q::inputs")
    assert outcomes(done.stdout) == {"wrong-claim::claim": "FAILED", "scales-q::inputs": "FAILED"}
    reason = reason_of(done.stdout, "wrong-claim: claim")
    assert re.search(r"claims [\d,]+ bytes read and [\d,]+ written; counted: ", reason)
    call = re.search(r"^repeat: (harness\.compare\(.*\))$", reason, re.MULTILINE)
    assert call is not None
    again = eval(call[1], {"harness": harness})
    assert [row.verdict for row in again.result.rows] == ["fail"] and "claims" in again.result.rows[0].reason
    assert "store into Q, which is an input" in reason_of(done.stdout, "scales-q: inputs")


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("no.such.module", "module no.such.module could not be imported"),
        ("missing.py", "plugin missing.py: there is no such file"),
        ("json", "module json has no function register"),
    ],
)
def test_what_does_not_load_is_one_line(tmp_path: Path, target: str, complaint: str) -> None:
    done = run(tmp_path, "--attention", target)
    assert done.returncode == 2
    assert f"--attention {target}: {complaint}" in done.stdout and "Traceback" not in done.stdout


def test_a_summary_that_cannot_be_written_is_told_before_any_work(tmp_path: Path) -> None:
    done = run(tmp_path, "--attention", "missing.py", "--attention-summary", str(tmp_path / "no" / "summary.md"))
    assert done.returncode == 4 and "--attention-summary: cannot write" in done.stderr
    assert "there is no folder" in done.stderr and "Traceback" not in done.stderr


def test_runs_that_do_not_ask_import_nothing_of_the_harness(tmp_path: Path) -> None:
    (tmp_path / "test_modules.py").write_text(
        "import sys\n"
        "def test_modules():\n"
        "    found = {name for name in sys.modules if name.startswith('harness')}\n"
        "    assert found == {'harness', 'harness.pytest_plugin'}\n"
        "    assert 'numpy' not in sys.modules and 'cupy' not in sys.modules\n"
    )
    done = run(tmp_path, "-q", "-p", "no:hypothesispytest", "-p", "no:xdist")
    assert done.returncode == 0, done.stdout


def test_emulated_tests_need_no_warning_because_the_harness_is_imported_already(tmp_path: Path):
    (tmp_path / "test_right.py").write_text("def test_right() -> None:\n    pass\n")
    installed = tmp_path / "installed-0.1.dist-info"  # lists files, as an installation does that is not editable
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 0.1\n")
    (installed / "entry_points.txt").write_text("[pytest11]\nharness.pytest_plugin = harness.pytest_plugin\n")
    (installed / "RECORD").write_text("harness/__init__.py,,\nharness/pytest_plugin.py,,\n")
    command = [sys.executable, "-m", "harness", "emulate", "-m", "pytest", "-pno:cacheprovider", "-Werror", "-q"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, env=environment(tmp_path))
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
