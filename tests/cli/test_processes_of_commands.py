"""Commands as processes of their own: status, interrupts, streams, folders."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_lines import BROKEN, NAME, RIGHT, ROOT, SMALL, harness


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
    assert done.stderr.startswith("harness: warning: module variants.sad could not be imported: ")
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
    words = f"compare --plugin {BROKEN} --variants bad-loop --device emulator --step-limit {10**12}".split()
    command = [sys.executable, "-m", "harness", *words]
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
