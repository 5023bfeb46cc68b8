from __future__ import annotations

import argparse
import csv
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from harness.cli import build_parser, main
from harness.gpu.executor import GpuExecutor
from harness.model.operation import draw_inputs
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem
from harness.studies.commands import COMMANDS, command_named
from harness.support.version import VERSION

ROOT = Path(__file__).resolve().parent.parent
RIGHT = str(ROOT / "tests" / "plugins" / "one_thread_per_row.py")
BROKEN = str(ROOT / "tests" / "plugins" / "broken_kernels.py")
WRONG_CLAIM = str(ROOT / "tests" / "plugins" / "wrong_claim.py")
NAME = "one-thread-per-row"
SMALL = ["--seq-len", "20", "--head-dim", "8", "--device", "emulator"]


class Called:
    """What one command left behind."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]):
    """Run a command line in this process."""

    def run(*arguments: object) -> Called:
        status = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Called(status, captured.out, captured.err)

    return run


def harness(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command line in a process of its own."""
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300, **options)


# --- help, and what is imported --------------------------------------------------------------------------------------


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    parser = build_parser()
    yield "", parser
    (commands,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    yield from commands.choices.items()


def test_every_command_and_option_has_help():
    for name, parser in parsers():
        for action in parser._actions:
            if not isinstance(action, argparse._SubParsersAction):
                assert action.help, (name, action.dest)
        assert parser.description
        assert parser.format_help()


def test_the_commands_are_those_of_the_parser():
    assert [command_named(name).name for name in COMMANDS] == [name for name, _ in parsers() if name]
    (commands,) = [a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    assert all(choice.help for choice in commands._choices_actions)
    assert len(commands._choices_actions) == len(COMMANDS)


@pytest.mark.parametrize("arguments", [["--help"], ["compare", "--help"], ["run", "--help"]])
def test_help_is_no_error(arguments: list[str]):
    done = harness(*arguments)
    assert done.returncode == 0
    assert "usage: python -m harness" in done.stdout


def test_nothing_heavy_is_imported_to_list_variants():
    program = (
        "import sys; from harness.cli import main;"
        "assert main(['list']) == 0;"
        "heavy = {'llvmlite', 'numba', 'cupy', 'numpy', 'ml_dtypes', 'harness.studies.compare.command'};"
        "heavy &= set(sys.modules); assert not heavy, heavy;"
        "mine = [m for m in sys.modules if m.startswith(('harness.emulator', 'harness.gpu.',"
        "'harness.operations.attention.oracle',"
        "'harness.compilers.cupy.nvrtc', 'llvmlite'))]; assert not mine, mine"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- list ------------------------------------------------------------------------------------------------------------


def test_list_shows_what_is_registered(call):
    listed = json.loads(call("list", "--plugin", RIGHT, "--format", "json").out)["variants"]
    (mine,) = [variant for variant in listed if variant["name"] == NAME]
    assert mine == {
        "name": NAME,
        "algorithm": "custom",
        "backend": "cupy",
        "idea": "one thread per query row",
        "origin": f"plugin {RIGHT}",
        "operation": "attention",
    }
    table = call("list", "--plugin", RIGHT, "--variants", "one-*").out
    assert table.splitlines()[2].split()[:3] == [NAME, "custom", "cupy"]
    assert len(table.splitlines()) == 3


# --- compare ---------------------------------------------------------------------------------------------------------


def test_compare_counts_and_ranks(call):
    done = call("compare", *SMALL, "--plugin", RIGHT, "--variants", NAME, "--format", "json", "--causal", "--q-len", 30)
    assert (done.status, done.err) == (0, "")
    found = json.loads(done.out)
    wanted = {
        "batch": 1, "heads": 2, "kv_heads": 2, "q_len": 30, "kv_len": 20, "head_dim": 8,
        "dtype": "float32", "causal": True, "mask": "causal", "scale": 1 / math.sqrt(8),
        "softcap": None, "alibi": False, "bias": None, "sinks": False, "dropout": 0.0, "dropout_seed": 0,
    }  # fmt: skip
    assert found["problem"] == {**{term.field: term.off for term in Problem.TERMS}, **wanted}
    assert found["device"]["kind"] == "emulator"
    (row,) = found["rows"]
    assert (row["rank"], row["verdict"], row["reason"]) == (1, "pass", None)
    assert row["total_bytes"] == row["read_bytes"] + row["write_bytes"] > 0
    assert row["allocated_bytes"] == 2 * 30 * 8 * 4 + 2 * 30 * 4
    assert row["time_ms"] is None
    assert row["error_over_budget"] is not None


def test_what_goes_wrong_is_a_row_and_the_right_one_still_comes(call):
    arguments = [*SMALL, "--plugin", RIGHT, "--plugin", BROKEN, "--variants", "one-*,bad-*", "--step-limit", "100000"]
    done = call("compare", *arguments, "--format", "json")
    assert done.status == 1
    rows = {row["variant"]: row for row in json.loads(done.out)["rows"]}
    assert rows[NAME]["verdict"] == "pass"
    wanted = {
        "bad-source": ("error", 'expected a ";"'),
        "bad-address": ("error", "O"),
        "bad-loop": ("error", "--step-limit"),
        "bad-plan": ("error", "RuntimeError: the plan is not ready"),
        "bad-answer": ("fail", "were never written"),
        "bad-arguments": ("error", "zero"),
    }
    for name, (verdict, words) in wanted.items():
        assert rows[name]["verdict"] == verdict, rows[name]
        assert words in rows[name]["reason"], rows[name]
        assert rows[name]["rank"] is None
    assert rows["bad-source"]["total_bytes"] is None
    table = call("compare", *arguments)
    assert "Traceback" not in table.out + table.err
    assert "bad-plan: error: plan() failed: " in table.out


def test_a_claim_that_does_not_hold_fails_every_command_that_counts(call):
    problem = ["--heads", 1, "--q-len", 65, "--kv-len", 1, "--causal", "--device", "emulator"]
    mine = ["--plugin", WRONG_CLAIM, *problem]
    done = call("compare", *mine, "--variants", "wrong-claim,fa2-cupy", "--format", "json")
    assert done.status == 1
    rows = {row["variant"]: row for row in json.loads(done.out)["rows"]}
    assert (rows["fa2-cupy"]["verdict"], rows["fa2-cupy"]["claim_holds"]) == ("pass", True)
    wrong = rows["wrong-claim"]
    assert (wrong["verdict"], wrong["claim_holds"], wrong["rank"]) == ("fail", False, None)
    assert re.fullmatch(r"claims [\d,]+ bytes read and [\d,]+ written; counted: [\d,]+ and [\d,]+", wrong["reason"])
    assert wrong["error_over_budget"] <= 1  # the answer itself is right
    assert "wrong, +" in call("compare", *mine, "--variants", "wrong-claim").out
    assert call("traffic", "wrong-claim", *mine).status == 1
    sweep = ["traffic", "--sweep", "kv_len=1,65", "--variants", "wrong-claim", "--plugin", WRONG_CLAIM]
    done = call(*sweep, "--heads", 1, "--q-len", 65, "--causal", "--device", "emulator")
    assert done.status == 1
    assert "Claim does not hold: wrong-claim at 1, wrong-claim at 65." in done.out


def test_csv_and_markdown(call):
    arguments = ["compare", *SMALL, "--plugin", RIGHT, "--variants", NAME]
    (row,) = csv.DictReader(io.StringIO(call(*arguments, "--format", "csv").out))
    assert row["verdict"] == "pass"
    assert f"| {NAME}" in call(*arguments, "--format", "markdown").out


def test_same_seed_same_result_and_output_goes_to_the_file(call, tmp_path: Path):
    arguments = ["compare", *SMALL, "--plugin", RIGHT, "--variants", NAME, "--format", "json", "--seed", "3"]
    first = call(*arguments, "--threads", 1).out
    done = call(*arguments, "--threads", 2, "--output", tmp_path / "result.json")
    assert (done.status, done.out, done.err) == (0, "", "")
    assert (tmp_path / "result.json").read_text() == first
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_lengths(call):
    def lengths(*arguments: object) -> tuple[int, int]:
        selected = ["--plugin", RIGHT, "--variants", NAME, "--device", "emulator", "--head-dim", 4, "--format", "json"]
        problem = json.loads(call("compare", *selected, *arguments).out)["problem"]
        return problem["q_len"], problem["kv_len"]

    assert lengths("--seq-len", 5) == (5, 5)
    assert lengths("--seq-len", 5, "--q-len", 1) == (1, 5)
    assert lengths("--seq-len", 5, "--kv-len", 3) == (5, 3)
    assert lengths("--q-len", 2, "--kv-len", 3) == (2, 3)


# --- run -------------------------------------------------------------------------------------------------------------


def arrays(folder: Path, problem: Problem, single_head: bool = False) -> dict[str, np.ndarray]:
    inputs = draw_inputs(problem, "normal", 1)
    for name, array in inputs.items():
        np.save(folder / f"{name.lower()}.npy", array[0, 0] if single_head else array)
    return inputs


def run_arguments(folder: Path, **changed: object) -> list[str]:
    paths = {name: folder / f"{name}.npy" for name in ("q", "k", "v", "out")} | changed
    return [
        "run",
        NAME,
        "--plugin",
        RIGHT,
        "--device",
        "emulator",
        *(x for n, p in paths.items() for x in (f"--{n}", str(p))),
    ]


def test_run_on_the_users_own_arrays(call, tmp_path: Path):
    problem = Problem(batch=2, heads=4, kv_heads=2, q_len=9, kv_len=7, head_dim=6, mask="causal", scale=0.3)
    reference = attention(problem, arrays(tmp_path, problem))
    done = call(*run_arguments(tmp_path, lse=tmp_path / "lse.npy"), "--causal", "--scale", "0.3")
    assert done.status == 0, done.err
    assert "the user's arrays" in done.out
    assert np.allclose(np.load(tmp_path / "out.npy"), reference["O"], atol=1e-5)
    assert np.allclose(np.load(tmp_path / "lse.npy"), reference["lse"], atol=1e-5)
    assert np.load(tmp_path / "out.npy").dtype == np.float32


def test_run_on_a_single_head(call, tmp_path: Path):
    problem = Problem(heads=1, q_len=9, kv_len=7, head_dim=6)
    reference = attention(problem, arrays(tmp_path, problem, single_head=True))
    assert call(*run_arguments(tmp_path)).status == 0
    out = np.load(tmp_path / "out.npy")
    assert out.shape == (9, 6)
    assert np.allclose(out, reference["O"][0, 0], atol=1e-5)


def test_run_with_bfloat16_bits(call, tmp_path: Path):
    if "fa2-cupy" not in call("list").out:
        pytest.skip("needs a variant that takes bfloat16")
    problem = Problem(heads=1, q_len=9, kv_len=7, head_dim=8, dtype="bfloat16")
    reference = attention(problem, arrays(tmp_path, problem))
    arguments = run_arguments(tmp_path)
    arguments[1] = "fa2-cupy"
    assert "--dtype bfloat16" in call(*arguments).err
    assert call(*arguments, "--dtype", "bfloat16").status == 0
    out = np.load(tmp_path / "out.npy")
    assert out.dtype == np.uint16
    assert np.allclose(out.view(ml_dtypes.bfloat16).astype(np.float32), reference["O"], atol=0.05)


def test_a_variant_without_lse_is_not_asked_for_one(call, tmp_path: Path):
    arrays(tmp_path, Problem(q_len=4, kv_len=4, head_dim=4))
    arguments = run_arguments(tmp_path, lse=tmp_path / "lse.npy")
    arguments[1] = "bad-answer"
    done = call(*arguments, "--plugin", BROKEN)
    assert done.status == 2
    assert done.err == "harness: bad-answer stores no lse; leave out --lse\n"
    assert not (tmp_path / "out.npy").exists()


def test_a_wrong_answer_is_written_all_the_same_and_the_status_says_so(call, tmp_path: Path):
    arrays(tmp_path, Problem(q_len=4, kv_len=4, head_dim=4))
    arguments = run_arguments(tmp_path)
    arguments[1] = "bad-answer"
    done = call(*arguments, "--plugin", BROKEN)
    assert done.status == 1
    assert "bad-answer: fail: " in done.out
    assert (tmp_path / "out.npy").exists()


def test_a_kernel_that_faults_leaves_the_old_output_alone(call, tmp_path: Path):
    arrays(tmp_path, Problem(q_len=4, kv_len=4, head_dim=4))
    (tmp_path / "out.npy").write_text("precious")
    arguments = run_arguments(tmp_path)
    arguments[1] = "bad-address"
    assert call(*arguments, "--plugin", BROKEN).status == 1
    assert (tmp_path / "out.npy").read_text() == "precious"


# --- show ------------------------------------------------------------------------------------------------------------


def test_show_source_and_resources(call):
    done = call("show", NAME, "--plugin", RIGHT)
    assert (done.status, done.err) == (0, "")
    assert "__global__ void one_thread_per_row(" in done.out
    assert "registers" in done.out
    assert "2^" not in done.out
    line = next(line for line in done.out.splitlines() if line.startswith("one_thread_per_row "))
    assert "4 x 2 = 8 blocks" in line
    assert "64 threads" in line


def test_show_ptx(call):
    out = call("show", NAME, "--plugin", RIGHT, "--ptx").out
    assert ".visible .entry one_thread_per_row(" in out
    assert "__global__" not in out


def test_show_a_numba_kernel(call):
    if "fa2-numba" not in call("list").out:
        pytest.skip("needs a Numba variant")
    out = call("show", "fa2-numba").out
    assert "def " in out
    assert ".entry" in call("show", "fa2-numba", "--ptx").out


def test_show_order(call):
    done = call("show", NAME, "--plugin", RIGHT, "--order", *SMALL, "--variants", NAME)
    assert (done.status, done.err) == (0, "")
    assert f"{NAME}: the order in which it adds; batch 1, 2 heads, 20 x 20, head_dim 8" in done.out
    assert (
        "O = sum of P V over keys: 20 terms, each rounded at most 19 times\n    one after the other: keys 0" in done.out
    )
    assert "__global__" not in done.out


@pytest.mark.exhaustive
def test_show_order_beside_another_variant(call, tmp_path: Path):
    path = tmp_path / "order.json"
    kernel = Path(RIGHT).read_text()
    plugin = tmp_path / "backwards.py"
    plugin.write_text(kernel.replace("for (int j = 0; j < keys; ++j)", "for (int j = keys - 1; j >= 0; --j)")
                      .replace(f'"{NAME}"', '"backwards"'))  # fmt: skip
    options = ["--plugin", RIGHT, "--plugin", plugin, "--variants", "backwards", "--format", "json", "--output", path]
    done = call("show", NAME, "--order", *SMALL, *options)
    assert (done.status, done.out, done.err) == (0, "", "")
    order = json.loads(path.read_text())
    assert [(row["variant"], row["sum"], row["order"]) for row in order["variants"]] == [
        (NAME, "O", "A"), (NAME, "l", "A"), (NAME, "S", "A"),
        ("backwards", "O", "B"), ("backwards", "l", "B"), ("backwards", "S", "A"),
    ]  # fmt: skip
    assert order["sums"][0]["additions"][:2] == [[0, 1], [20, 2]]


# --- bad input -------------------------------------------------------------------------------------------------------

COMPARE = ["compare", "--plugin", RIGHT, "--device", "emulator"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compair"], "no command 'compair'; did you mean 'compare'"),
        ([*COMPARE, "--sequence", "3"], "unrecognized argument '--sequence'"),
        ([*COMPARE, "--seq", "3"], "'--seq'; did you mean '--seq-len'"),
        ([*COMPARE, "--heads", "two"], "--heads: 'two' is not a whole number of at most 18 digits; "
         "see 'python -m harness compare --help'"),
        ([*COMPARE, "--variants", "one-thred-per-row"], f"did you mean '{NAME}'"),
        ([*COMPARE, "--variants", "zzz*"], "no variant 'zzz*'"),
        ([*COMPARE, "--variants", ","], "names no variant"),
        ([*COMPARE, "--dtype", "float8"], "dtype is 'float8'; choose one of float32, float16, bfloat16"),
        ([*COMPARE, "--batch", "0"], "batch is 0"),
        ([*COMPARE, "--heads", "-1"], "heads is -1"),
        ([*COMPARE, "--kv-heads", "0"], "kv_heads is 0"),
        ([*COMPARE, "--seq-len", "0"], "q_len is 0"),
        ([*COMPARE, "--q-len", "-5"], "q_len is -5"),
        ([*COMPARE, "--kv-len", "0"], "kv_len is 0"),
        ([*COMPARE, "--head-dim", "0"], "head_dim is 0"),
        ([*COMPARE, "--heads", "6", "--kv-heads", "4"], "heads (6) is not a multiple of kv_heads (4)"),
        ([*COMPARE, "--scale", "nan"], "scale is nan"),
        ([*COMPARE, "--seq-len", "4", "--q-len", "2", "--kv-len", "3"], "leave out one of them"),
        ([*COMPARE, "--seed", "-1"], "seed is -1"),
        ([*COMPARE, "--regime", "neddle"], "did you mean 'needle'"),
        ([*COMPARE, "--threads", "0"], "--threads is 0"),
        ([*COMPARE, "--step-limit", "-1"], "--step-limit is -1"),
        ([*COMPARE, "--format", "xml"], "--format: invalid choice: 'xml'"),
        ([*COMPARE, "--device", "tpu"], "--device: invalid choice: 'tpu'"),
        ([*COMPARE, "--output", "/no/such/folder/x.txt"], "cannot write /no/such/folder/x.txt: there is no folder"),
        ([*COMPARE, "--output", "/"], "it is a folder"),
        ([*COMPARE, "--seq-len", "2000000000", "--head-dim", "1000000"], "not enough memory"),
        ([*COMPARE, "--plugin", "none.py"], "plugin none.py: there is no such file"),
        ([*COMPARE, "--plugin", RIGHT], f"registers variant '{NAME}', but plugin {RIGHT} has registered"),
        ([*COMPARE, "--plugin", str(ROOT / "pyproject.toml")], "not a .py"),
        (["list", "--plugin", "none.py"], "plugin none.py"),
        (["show", "one", "--plugin", RIGHT], "no variant 'one'"),
        (["show", NAME, "--plugin", RIGHT, "--dtype", "float16"], "take this problem: it is written for float32"),
        (["show", NAME, "--plugin", RIGHT, "--format", "json"], "--format goes with --order"),
        (["show", NAME, "--plugin", RIGHT, "--variants", "fa*"], "--variants goes with --order"),
        (["show", NAME, "--plugin", RIGHT, "--order", "--ptx"], "show different things"),
        (["show", NAME, "--plugin", RIGHT, "--order", "--dtype", "float16"], "leave out --dtype"),
        (["run", NAME, "--plugin", RIGHT], "--q, --k, --v, --out"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_one_line_and_status_2(call, arguments: list[str], words: str):
    done = call(*arguments)
    assert done.status == 2
    assert done.out == ""
    assert done.err.startswith("harness: ")
    assert words in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import no_such_module\n", "plugin.py:1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def register(registry)\n    pass\n", "plugin.py:1: SyntaxError"),
        ("x = 1\n", "has no function register(registry)"),
        ("def register(registry):\n    pass\n", "registers no variant"),
        (f"from harness.model.variant import Plan, Variant\ndef register(registry):\n    "
         f"registry.add(Variant(name={NAME!r}, plan=lambda problem: Plan(())))\n", f"variant '{NAME}', but plugin"),
    ],
)  # fmt: skip
def test_a_bad_plugin_is_one_line(call, tmp_path: Path, text: str, words: str):
    (tmp_path / "plugin.py").write_text(text)
    done = call(*COMPARE, "--plugin", tmp_path / "plugin.py")
    assert (done.status, done.out) == (2, "")
    assert words in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("changed", "options", "words"),
    [
        ({"q": "none.npy"}, [], "No such file"),
        ({"q": "text.npy"}, [], "is not an .npy file"),
        ({"k": "cut.npy"}, [], "broken .npy file"),
        ({"v": "other.npy"}, [], "K has shape"),
        ({"k": "double.npy"}, [], "float64"),
        ({"out": "no/such/out.npy"}, [], "there is no folder"),
        ({"lse": "out.npy"}, [], "two outputs go to one file"),
        ({"lse": "no/such/lse.npy"}, [], "there is no folder"),
        ({}, ["--dtype", "float16"], "nothing is converted silently"),
        ({}, ["--scale", "inf"], "scale is inf"),
    ],
)
def test_bad_arrays_are_one_line_and_nothing_is_written(
    call, tmp_path: Path, changed: dict[str, str], options: list[str], words: str
):
    arrays(tmp_path, Problem(q_len=4, kv_len=4, head_dim=4))
    (tmp_path / "text.npy").write_text("1 2 3")
    (tmp_path / "cut.npy").write_bytes((tmp_path / "k.npy").read_bytes()[:-7])
    np.save(tmp_path / "other.npy", np.zeros((1, 2, 5, 4), np.float32))
    np.save(tmp_path / "double.npy", np.zeros((1, 2, 4, 4)))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    done = call(*run_arguments(tmp_path, **{name: tmp_path / path for name, path in changed.items()}), *options)
    assert (done.status, done.out) == (2, "")
    assert words in done.err
    assert done.err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.skipif(GpuExecutor.available(), reason="there is a GPU")
def test_no_gpu_is_one_line(call):
    done = call("compare", "--device", "gpu")
    assert (done.status, done.out) == (2, "")
    assert "finds no GPU" in done.err
    assert done.err.count("\n") == 1


# --- a process of its own --------------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The harness with an empty variants/ of its own."""
    shutil.copytree(ROOT / "harness", tmp_path / "harness")
    (tmp_path / "variants").mkdir()
    return tmp_path


def test_files_of_the_folder_that_it_is_started_in_hide_no_modules(tmp_path: Path) -> None:
    """Such as `py.py`, which pytest imports, for a plugin of Hypothesis, and `queue.py`, which compiling does."""
    for name in ("py", "queue", "random", "numpy", "cupy", "hypothesis"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name} of the folder')\n")
    plugin = ROOT / "tests" / "plugins" / "one_thread_per_row.py"
    fuzz = ["fuzz", "one-thread-per-row", "--plugin", str(plugin), "--examples", "2", "--seed", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ATTENTION_SANDBOX_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "harness", *fuzz, "--device", "emulator"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "one-thread-per-row  pass" in done.stdout


def in_copy(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False, timeout=300)


def test_a_file_in_variants_is_enough_and_broken_ones_are_skipped(copy: Path):
    shutil.copy(RIGHT, copy / "variants" / "my_idea.py")
    (copy / "variants" / "sad.py").write_text("import no_such_module\n")
    done = in_copy(copy, "compare", *SMALL, "--format", "json")
    assert done.returncode == 1
    rows = json.loads(done.stdout)["rows"]
    assert [(row["variant"], row["verdict"]) for row in rows] == [(NAME, "pass"), ("sad", "error")]
    assert done.stderr.startswith("harness: warning: module variants.sad does not import: ")
    assert done.stderr.count("\n") == 1
    # Who names the variants that he wants does not miss another.
    assert in_copy(copy, "compare", *SMALL, "--variants", "one-*").returncode == 0
    listed = in_copy(copy, "list")
    assert listed.returncode == 0
    assert NAME in listed.stdout
    assert "no_such_module" in listed.stderr


def test_no_variants_at_all_is_said(copy: Path):
    done = in_copy(copy, "compare")
    assert done.returncode == 2
    assert done.stderr == "harness: there are no variants; put one in variants/ or name a file with --plugin\n"


def test_the_process_has_the_status_and_no_traceback():
    done = harness("compare", "--heads", "0")
    assert done.returncode == 2
    assert done.stderr == "harness: heads is 0; it has to be a whole number of at least 1\n"


def test_ctrl_c_ends_quietly():
    command = [
        sys.executable,
        "-m",
        "harness",
        "compare",
        "--plugin",
        BROKEN,
        "--variants",
        "bad-loop",
        "--device",
        "emulator",
    ]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    ) as process:
        deadline = time.monotonic() + 60
        while not any(children_of(child) for child in children_of(process.pid)):  # a planner: all else is loaded
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


def test_ctrl_c_ends_a_cold_compilation_at_once_and_leaves_no_process(tmp_path: Path):
    """To the whole group, as a terminal sends it; a compiler in a thread, and workers, are busy then."""
    command = [sys.executable, "-m", "harness", "compare", "--device", "emulator", "--head-dim", "24"]
    environment = os.environ | {"ATTENTION_SANDBOX_CACHE_DIR": str(tmp_path / "cache")}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    ) as process:
        deadline = time.monotonic() + 60
        while not any((tmp_path / "cache").rglob("*")):  # the first of many compilations is done
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        workers = children_of(process.pid)
        assert workers and process.poll() is None
        interrupted = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    # A second on an idle machine; a compilation takes many.
    assert time.monotonic() - interrupted < 5
    assert (process.returncode, out, err) == (130, b"", b"")
    while any(is_running(worker) for worker in workers):
        assert time.monotonic() - interrupted < 10
        time.sleep(0.05)


def heed_interrupts() -> None:
    """As in a terminal: what a shell starts in the background ignores them, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def is_running(process: int) -> bool:
    """Whether it is there and not only waiting for somebody to ask for its status."""
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return bool(listed.stdout.strip()) and not listed.stdout.strip().startswith("Z")


def children_of(parent: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False)
    return [int(word) for word in listed.stdout.split()]


def test_a_cache_of_cupy_that_is_no_folder_is_one_warning(tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    done = harness("list", env=os.environ | {"CUPY_CACHE_DIR": str(file)})
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        f"harness: warning: CuPy keeps no kernels: {file}: File exists; "
        "set CUPY_CACHE_DIR to a folder that you can write to\n"
    )


def test_a_reader_that_leaves_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "harness", "list", "--plugin", RIGHT]
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_output_without_letters_for_it_is_no_crash(tmp_path: Path):
    (tmp_path / "umlaut.py").write_text(
        Path(RIGHT).read_text().replace("one thread per query row", "für jede Zeile ein Faden")
    )
    done = harness("list", "--plugin", str(tmp_path / "umlaut.py"), env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert NAME in done.stdout


def test_inputs_that_prove_nothing_are_no_pass_unless_that_is_allowed(call):
    words = ("compare", "--plugin", RIGHT, "--variants", NAME, "--device", "emulator", "--regime", "far-negative")
    undecided = call(*words, "--format", "json")
    (row,) = json.loads(undecided.out)["rows"]
    assert (undecided.status, row["verdict"], row["rank"]) == (1, "undecided", None)
    assert row["power"] < 1 and row["nearest_wrong_answer"] in row["reason"] and "--regime normal" in row["reason"]
    allowed = call(*words, "--allow-undecided", "--format", "json")
    assert (allowed.status, json.loads(allowed.out)["rows"]) == (0, [row])


def test_json_names_the_version_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == VERSION
