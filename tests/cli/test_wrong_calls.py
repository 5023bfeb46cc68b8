"""Wrong calls: one line that says how to mend it, and status 2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_lines import NAME, RIGHT, ROOT, arrays, run_arguments

from harness.gpu.executor import GpuExecutor
from harness.operations.attention.problem import Problem

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
        (["show", NAME, "--plugin", RIGHT, "--dtype", "float16"], "support this problem: it is written for float32"),
        (["show", NAME, "--plugin", RIGHT, "--format", "json"], "--format needs --order"),
        (["show", NAME, "--plugin", RIGHT, "--variants", "fa*"], "--variants needs --order"),
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
