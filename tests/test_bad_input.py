"""What a hurried or a hostile user gives the command line: one clear line, status 2, and nothing half-written."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from lanes import thorough_unless

from harness.cli import main

ROOT = Path(__file__).resolve().parent.parent
RIGHT = str(ROOT / "tests" / "plugins" / "one_thread_per_row.py")
NAME = "one-thread-per-row"
MINE = ["--plugin", RIGHT, "--device", "emulator"]
COMPARE = ["compare", *MINE, "--variants", NAME, "--seq-len", "4", "--head-dim", "4"]
SWEEP = ["traffic", *MINE, "--variants", NAME, "--count", "never", "--sweep"]
FUZZ = ["fuzz", NAME, *MINE]
LONG, LONGER, TOO_LONG = "9" * 30, "9" * 40, "9" * 5000

pytestmark = pytest.mark.compiles(False)


def refused(capfd: pytest.CaptureFixture[str], *arguments: str, words: str) -> None:
    """The call is refused in one line of reasonable length that has these words."""
    status = main(arguments)
    out, err = capfd.readouterr()
    assert (status, out) == (2, "")
    assert err.startswith("harness: ") and err.count("\n") == 1 and len(err) < 500, err
    assert words in err


@pytest.mark.parametrize("value", [LONG, TOO_LONG, "nan", "inf", "\u0663", "\u00b2", "1_0", "1e3", "", "0x10"])
@pytest.mark.parametrize("option", ["--batch", "--kv-heads", "--head-dim", "--step-limit", "--seed", "--threads"])
def test_what_is_no_whole_number(capfd: pytest.CaptureFixture[str], option: str, value: str) -> None:
    refused(capfd, *COMPARE, f"{option}={value}", words=f"argument {option}: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*COMPARE, "--seq-len", "9999999999"], "q_len is beyond 2147483647"),
        ([*COMPARE, "--scale", TOO_LONG], "is not a number"),
        ([*COMPARE, "--scale", "\u0663"], "is not a number"),
        ([*COMPARE, "--scale", "1e400"], "scale is inf"),
        *(([*COMPARE, f"--softcap={value}"], "it has to be a positive number") for value in ("0", "-1", "nan", "inf")),
        ([*COMPARE, "--softcap", TOO_LONG], "is not a number"),
        ([*COMPARE, "--sinks", "3"], "unrecognized argument '3'"),
        ([*SWEEP, "alibi=3"], "alibi is true or false"),
        ([*COMPARE, "--seed", LONGER], "is not a whole number of at most 18 digits"),
        ([*COMPARE, "--step-limit", LONG], "is not a whole number of at most 18 digits"),
        ([*COMPARE, "--seq-len", "2147483647", "--heads", "2147483647"], "not enough memory for this problem"),
        *(([*COMPARE, "--mask", f"window:{value}"], "numbers of keys") for value in (LONG, "-1", "nan", "\u0663")),
        *(([*COMPARE, "--tile", f"Br={value}"], "is not NAME=N") for value in (LONG, "-1", "\u0663", "")),
        *(([*SWEEP, f"q_len={value}"], "takes whole numbers") for value in (LONG, TOO_LONG, f"1..{LONG}", "\u0663")),
        ([*SWEEP, "q_len=1..9999999999999"], "beyond 2147483647"),
        ([*SWEEP, f"scale={TOO_LONG}"], "takes numbers"),
        (["traffic", NAME, *MINE, "--l2-bytes", "999999999999999999"], "has to be at most"),
        (["traffic", NAME, *MINE, "--l2-bytes", LONG], "argument --l2-bytes"),
        (["tune", "fa2-cupy", "--seconds", "inf"], "--seconds is inf"),
        (["tune", "fa2-cupy", "--noise", "nan"], "--noise is nan"),
        (["tune", "fa2-cupy", "--sustained", "-1"], "--sustained is -1"),
        ([*FUZZ, "--examples", LONG], "argument --examples"),
        ([*FUZZ, "--examples", "-1"], "--examples is -1"),
        ([*FUZZ, "--seconds", "inf"], "--seconds is inf"),
        ([*FUZZ, "--seconds", "nan"], "--seconds is nan"),
        ([*FUZZ, "--seed", "-1"], "seed is -1"),
        ([*FUZZ, "--tiles", "0"], "--tiles is 0"),
        ([*COMPARE, "--format", "x" * 100_000], "invalid choice"),
        ([*COMPARE, "--variants", "x" * 100_000], "no variant"),
        ([*COMPARE, "--mask", "x" * 100_000], "mask "),
        ([*COMPARE, "--output", "x" * 5000], "cannot write"),
        ([*COMPARE, "--plugin", "x" * 5000], "File name too long"),
        ([*COMPARE, "--output", "a\0b"], "cannot write"),
        ([*COMPARE, "--plugin", "a\0b.py"], "null byte"),
        ([*COMPARE, "--variants", "two\nlines"], "no variant"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(word[:20] for word in value[-2:]),
)  # fmt: skip
def test_what_cannot_be(capfd: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    refused(capfd, *arguments, words=words)


@pytest.mark.parametrize(
    "case",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "[]",
        "3",
        "",
        '{"seed": -1}',
        '{"seed": 1.5}',
        '{"seed": true}',
        f'{{"seed": {LONGER}}}',
        f'{{"seed": {TOO_LONG}}}',
        f'{{"q_len": {LONGER}}}',
        '{"q_len": [1]}',
        '{"q_len": true}',
        '{"mask": {"a": 1}}',
        '{"scale": true}',
        '{"scale": 1e999}',
        '{"regime": []}',
        '{"regime": 3}',
        '{"check": []}',
        '{"tile": 3}',
        '{"operation": {}}',
        '{"dtype": []}',
        '{"edits": [["Q", 0.5, 0, 0, 0, 1]]}',
        '{"edits": [["Q", "a", 0, 0, 0, 1]]}',
        '{"edits": [[["Q"], 0, 0, 0, 0, 1]]}',
        '{"edits": {"a": 1}}',
        '{"no_such_field": 1}',
    ],
    ids=lambda case: case[:30],
)
def test_a_replay_of_what_no_campaign_wrote(capfd: pytest.CaptureFixture[str], case: str) -> None:
    refused(capfd, *FUZZ, "--replay", case, words="")


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Q, K and V of a small problem."""
    for name in "qkv":
        np.save(tmp_path / f"{name}.npy", np.ones((1, 2, 4, 4), np.float32))
    return tmp_path


def run_on(folder: Path, **changed: object) -> list[str]:
    paths = {name: folder / f"{name}.npy" for name in ("q", "k", "v", "out")} | changed
    return ["run", NAME, *MINE, *(word for name, path in paths.items() for word in (f"--{name}", str(path)))]


def npy(shape: str, descr: str = "'<f4'", data: bytes = b"\0" * 128, version: bytes = b"\x01\x00") -> bytes:
    """A file with this header."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header + data


def objects() -> bytes:
    content = io.BytesIO()
    np.save(content, np.array([[None, 1], [2, 3]], dtype=object), allow_pickle=True)
    return content.getvalue()


BROKEN_FILES = {
    "10^40 elements": (npy("(1, 2, 4, 10000000000000000000000000000000000000000)"), "asks for more than 2^63 bytes"),
    "a terabyte": (npy("(1, 2, 1000000, 131072)"), "its header asks for 1,048,576,000,000 bytes of data"),
    "negative extents": (npy("(1, 2, -4, -4)"), "broken .npy file"),
    "an extent that is no number": (npy("(1, 2, 'x', 4)"), "broken .npy file"),
    "cut in the data": (npy("(1, 2, 4, 4)", data=b"\0" * 127), "and 127 are there"),
    "cut in the header": (npy("(1, 2, 4, 4)")[:30], "broken .npy file"),
    "the first word only": (b"\x93NUMPY", "broken .npy file"),
    "nested": (npy("(" * 5000 + "1" + ")" * 5000), "broken .npy file"),
    "objects": (objects(), "holds Python objects"),
    "another version": (npy("(1, 2, 4, 4)", version=b"\x09\x00"), "broken .npy file"),
    "a pickle": (b"\x80\x04K\x01.", "is not an .npy file"),
    "a structure": (npy("(1, 2, 4, 4)", descr="[('a', '<f4')]"), "holds [('a', '<f4')]"),
    "nothing": (b"", "is not an .npy file"),
}


@pytest.mark.parametrize("name", BROKEN_FILES)
def test_arrays_that_are_none(capfd: pytest.CaptureFixture[str], folder: Path, name: str) -> None:
    content, words = BROKEN_FILES[name]
    (folder / "q.npy").write_bytes(content)
    refused(capfd, *run_on(folder), words=words)
    assert not (folder / "out.npy").exists()


def test_a_pipe_or_a_folder_is_no_array(capfd: pytest.CaptureFixture[str], folder: Path) -> None:
    os.mkfifo(folder / "pipe.npy")
    refused(capfd, *run_on(folder, q=folder / "pipe.npy"), words="it is not a regular file")
    refused(capfd, *run_on(folder, q=folder), words="cannot read")
    refused(capfd, *run_on(folder, q="/dev/zero"), words="it is not a regular file")


@pytest.mark.parametrize("option", ["out", "lse", "output"])
def test_no_output_takes_the_place_of_an_input(capfd: pytest.CaptureFixture[str], folder: Path, option: str) -> None:
    before = (folder / "k.npy").read_bytes()
    (folder / "linked.npy").symlink_to(folder / "k.npy")
    for name in ("k.npy", "linked.npy"):
        refused(capfd, *run_on(folder, **{option: folder / name}), words="is an input")
    assert (folder / "k.npy").read_bytes() == before


def test_outputs_that_cannot_be_written(capfd: pytest.CaptureFixture[str], folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    for option in ("out", "output"):
        refused(capfd, *run_on(folder, **{option: folder / "pipe"}), words="it is a named pipe")
        refused(capfd, *run_on(folder, **{option: folder}), words="it is a folder")
        refused(capfd, *run_on(folder, **{option: "/proc/x.npy"}), words="cannot write /proc/x.npy")
    assert sorted(path.name for path in folder.iterdir()) == ["k.npy", "pipe", "q.npy", "v.npy"]


def test_a_plugin_that_is_a_pipe(capfd: pytest.CaptureFixture[str], folder: Path) -> None:
    os.mkfifo(folder / "pipe.py")
    refused(capfd, "list", "--plugin", str(folder / "pipe.py"), words="it is not a regular file")


def test_a_folder_that_cannot_be_made(capfd: pytest.CaptureFixture[str]) -> None:
    refused(capfd, "new", "my-idea", "--folder", "/dev/null", words="cannot make the folder /dev/null: ")


# --- the environment, and standard streams ---------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["x", "-1", "1_0", "\u0663", TOO_LONG, "1e9"])
def test_a_cache_of_no_size(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ATTENTION_SANDBOX_CACHE_BYTES", value)
    refused(capfd, *COMPARE, words="ATTENTION_SANDBOX_CACHE_BYTES is ")


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """A line of bash; `H` is the command line."""
    command = f'H() {{ {sys.executable} -m harness "$@"; }}\n{line}'
    return subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("line", "status", "err"),
    [
        ("H list > /dev/full", 2, "harness: cannot write to standard output: No space left on device\n"),
        ("H list >&-", 2, "harness: standard output is closed; open it, or write to a file with --output FILE\n"),
        ("H list --output /dev/null >&-", 0, ""),
        ("H list --variants zzz 2>&-", 2, ""),
        ("H list <&- >&- 2>&-", 2, ""),
        ("H compare --help | head -n 1 >/dev/null; exit ${PIPESTATUS[0]}", None, ""),
        ("H list --output /dev/full", 2, "harness: cannot write /dev/full: No space left on device\n"),
        *thorough_unless(
            lambda case: False,
            [
                ("H --help > /dev/full", 2, "harness: cannot write to standard output: No space left on device\n"),
                ("H list --variants zzz 2>/dev/full", 2, ""),
            ],
        ),
    ],
)
def test_streams_that_a_shell_has_closed_or_filled(line: str, status: int | None, err: str) -> None:
    done = shell(line)
    assert done.stderr == err
    assert done.returncode == status if status is not None else done.returncode in (0, 141)


# --- nothing ran -----------------------------------------------------------------------------------------------------

NOTHING_RAN = (
    "harness: nothing ran: no variant supports this problem; the report states the reasons. "
    "Change the problem or --variants\n"
)


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "--device", "emulator", "--head-dim", "100000", "--seq-len", "1"],
        ["compare", *MINE, "--variants", NAME, "--dtype", "float16", "--seq-len", "1", "--head-dim", "1"],
        [*SWEEP, "head_dim=1,2", "--dtype", "float16"],
        ["compare", "--device", "emulator", "--operation", "softmax", "--variants", "softmax-one-row-cupy"],
    ],
    ids=" ".join,
)
def test_nothing_that_ran_is_no_pass(capfd: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str]) -> None:
    if "softmax-one-row-cupy" in arguments:
        arguments = [*arguments[:-1], *softmax_that_takes_nothing(tmp_path)]
    status = main(arguments)
    out, err = capfd.readouterr()
    assert (status, err) == (2, NOTHING_RAN)
    assert "unsupported: " in out or "float32" in out
    assert main([*arguments, "--format", "json"]) == 2
    assert json.loads(capfd.readouterr().out)


def softmax_that_takes_nothing(folder: Path) -> list[str]:
    (folder / "nothing.py").write_text(
        "from harness import Plan, Variant\n"
        "def register(registry):\n"
        "    registry.add(Variant(name='takes-nothing', operation='softmax', plan=lambda p: Plan(()),\n"
        "                         supports=lambda p: 'it takes nothing'))\n"
    )
    return ["takes-nothing", "--plugin", str(folder / "nothing.py")]
