"""The scripts prepare their environment once, whole or not at all. A stand-in for Python notes what it is asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("bash", "dirname", "basename", "cmp", "cp", "rm", "mkdir", "cat", "flock", "env", "kill", "sleep")

STAND_IN = r"""#!/usr/bin/env bash
echo "$*" >>"$NOTES"
case "$*" in
    *'not (3, 10)'* | *'< (3, 10)'*) exit "${TOO_OLD:-0}" ;;
    '-c import ensurepip'*) exit "${NO_VENV:-0}" ;;
    --version) echo "Python 3.99" ;;
    '-m venv '*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    '-m pip --version') exit "${NO_PIP:-0}" ;;
    '-m pip install'*)
        if [ "${PIP:-}" = fails ]; then exit 1; fi
        if [ "${PIP:-}" = interrupted ]; then kill -9 "$PPID"; exit 1; fi ;;
    *runpy*) printf '<%s>' "${@:2}"; pwd ;;
    '-m pytest'*) printf '<%s>' "$@"; pwd ;;
esac
"""


class Checkout:
    """A copy of the scripts in a folder with a blank in its name, and a PATH with nothing but the stand-in."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a checkout"
        self.bin = folder / "bin"
        self.notes = folder / "notes"
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        (self.root / "requirements.txt").write_text("one\n")
        self.bin.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None, tool
            (self.bin / tool).symlink_to(found)
        self.python = self.bin / "python3"
        self.python.write_text(STAND_IN)
        self.python.chmod(0o755)
        self.elsewhere = folder / "elsewhere"
        self.elsewhere.mkdir()

    def run(self, script: str, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
        self.notes.write_text("")
        return subprocess.run(
            [str(self.root / "scripts" / script), *args],
            env={"PATH": str(self.bin), "NOTES": str(self.notes), **environment},
            cwd=self.elsewhere,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def installed(self) -> int:
        """How often pip installed during the last run."""
        return self.notes.read_text().count("-m pip install")

    @property
    def created(self) -> int:
        return self.notes.read_text().count("-m venv")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_first_use_prepares_and_later_ones_are_quiet(checkout: Checkout) -> None:
    first = checkout.run("compare", "--seq-len", "a b")
    assert first.returncode == 0, first.stderr
    assert first.stderr.splitlines() == ["preparing .venv with Python 3.99, once; this takes a minute or so"]
    assert (checkout.created, checkout.installed) == (1, 1)
    second = checkout.run("compare", "--seq-len", "a b")
    assert (checkout.created, checkout.installed) == (0, 0)
    assert second.stderr == ""
    assert second.stdout == first.stdout


def test_arguments_and_working_directory_are_the_callers(checkout: Checkout) -> None:
    output = checkout.run("compare", "--output", "a b.csv", "*").stdout
    assert "<harness><compare><--output><a b.csv><*>" in output
    assert output.strip().endswith(str(checkout.elsewhere))


def test_test_runs_pytest_in_the_repository(checkout: Checkout) -> None:
    output = checkout.run("test", "-k", "a or b").stdout
    assert "<-m><pytest>" in output
    assert "<-k><a or b>" in output
    assert output.strip().endswith(str(checkout.root))


@pytest.mark.parametrize("lane", ["default", "fast", "thorough", "exhaustive"])
def test_test_has_lanes(checkout: Checkout, lane: str) -> None:
    option = () if lane == "default" else (f"--{lane}",)
    output = checkout.run("test", *option, "-n0").stdout
    assert f"<--lane><{lane}><-n0>" in output
    assert f"--{lane}" not in output


def test_test_says_what_it_can_do(checkout: Checkout) -> None:
    output = checkout.run("test", "--help").stdout
    assert output.startswith("usage: scripts/test [--fast | --thorough | --exhaustive | --cute]")
    assert checkout.created == 0


def test_changed_requirements_are_installed(checkout: Checkout) -> None:
    checkout.run("compare")
    (checkout.root / "requirements.txt").write_text("one\ntwo\n")
    assert checkout.run("compare").returncode == 0
    assert (checkout.created, checkout.installed) == (0, 1)
    checkout.run("compare")
    assert checkout.installed == 0


def test_what_an_interruption_leaves_is_built_again(checkout: Checkout) -> None:
    assert checkout.run("compare", PIP="interrupted").returncode != 0
    assert (checkout.root / ".venv" / "bin" / "python").exists()
    assert checkout.run("compare").returncode == 0
    assert (checkout.created, checkout.installed) == (1, 1)


def test_an_interrupted_upgrade_is_built_again(checkout: Checkout) -> None:
    checkout.run("compare")
    (checkout.root / "requirements.txt").write_text("two\n")
    checkout.run("compare", PIP="interrupted")
    (checkout.root / "requirements.txt").write_text("one\n")
    assert checkout.run("compare").returncode == 0
    assert (checkout.created, checkout.installed) == (1, 1)


def test_a_failing_pip_is_one_line_and_leaves_nothing(checkout: Checkout) -> None:
    done = checkout.run("compare", PIP="fails")
    assert done.returncode == 2
    assert "compare: pip could not install requirements.txt" in done.stderr.splitlines()[-1]
    assert "SANDBOX_PYTHON" in done.stderr
    assert not (checkout.root / ".venv").exists()


def test_a_failing_upgrade_is_tried_again(checkout: Checkout) -> None:
    checkout.run("compare")
    (checkout.root / "requirements.txt").write_text("two\n")
    assert checkout.run("compare", PIP="fails").returncode == 2
    assert checkout.run("compare").returncode == 0
    assert checkout.installed == 1


def test_an_environment_whose_python_is_gone_is_built_again(checkout: Checkout) -> None:
    checkout.run("compare")
    (checkout.root / ".venv" / "bin" / "python").unlink()
    assert checkout.run("compare").returncode == 0
    assert (checkout.created, checkout.installed) == (1, 1)


def test_cuda_13_leaves_out_the_packages_for_cuda_12(checkout: Checkout) -> None:
    (checkout.root / "requirements.txt").write_text("-e .\ncupy-cuda12x>=14.0\nnumba-cuda[cu12]\nnumpy\n")
    requested = checkout.root / ".venv" / "requested-requirements.txt"
    checkout.run("compare")
    assert requested.read_text() == (checkout.root / "requirements.txt").read_text()
    assert checkout.run("compare", SANDBOX_CUDA="13").returncode == 0
    assert (checkout.created, checkout.installed) == (1, 1)
    assert requested.read_text() == "-e .\nnumpy\n"
    checkout.run("compare")
    assert (checkout.created, checkout.installed) == (0, 0)
    checkout.run("compare", SANDBOX_CUDA="12")
    assert (checkout.created, checkout.installed) == (1, 1)


def test_an_unknown_cuda_version_is_one_line(checkout: Checkout) -> None:
    done = checkout.run("compare", SANDBOX_CUDA="11")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "compare: SANDBOX_CUDA is '11'; set it to 12, 12.6 or 13, or unset it\n"
    assert not (checkout.root / ".venv").exists()


def test_somebody_elses_environment_is_not_removed(checkout: Checkout) -> None:
    (checkout.root / ".venv").mkdir()
    (checkout.root / ".venv" / "precious").write_text("")
    done = checkout.run("compare", NO_PIP="1")
    assert done.returncode == 2
    assert "remove it, or set SANDBOX_PYTHON" in done.stderr
    assert (checkout.root / ".venv" / "precious").exists()


def test_no_suitable_python_is_one_line(checkout: Checkout) -> None:
    done = checkout.run("compare", TOO_OLD="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "compare: there is no Python 3.10 to 3.13 on the PATH; install one, "
        "or set SANDBOX_PYTHON to a Python with requirements.txt"
    ]
    assert not (checkout.root / ".venv").exists()
    done = checkout.run("compare", NO_VENV="1")
    assert done.returncode == 2
    assert "apt install python3-venv" in done.stderr
    checkout.python.unlink()
    assert "there is no Python 3.10" in checkout.run("compare").stderr


def test_a_given_python_is_used_as_it_is(checkout: Checkout) -> None:
    done = checkout.run("compare", "x", SANDBOX_PYTHON=str(checkout.python))
    assert done.returncode == 0
    assert "<compare><x>" in done.stdout
    assert not (checkout.root / ".venv").exists()
    assert checkout.installed == 0
    for python in ("/nowhere/python", "false"):
        done = checkout.run("compare", SANDBOX_PYTHON=python)
        assert done.returncode == 2
        assert done.stderr.startswith(f"compare: SANDBOX_PYTHON is '{python}'")
        assert len(done.stderr.splitlines()) == 1


def test_two_at_once_build_once(checkout: Checkout) -> None:
    environment = {"PATH": str(checkout.bin), "NOTES": str(checkout.notes)}
    slow = STAND_IN.replace("    '-m pip install'*)\n", "    '-m pip install'*)\n        sleep 0.5\n")
    checkout.python.write_text(slow)
    running = [
        subprocess.Popen([checkout.root / "scripts" / "compare"], env=environment, stdout=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [process.wait(timeout=60) for process in running] == [0, 0]
    assert (checkout.created, checkout.installed) == (1, 1)


def test_scripts_can_be_run() -> None:
    for script in (*(ROOT / "scripts" / name for name in ("compare", "test", "check")), ROOT / ".ci" / "run"):
        assert os.access(script, os.X_OK), script
        assert script.read_text().startswith("#!/usr/bin/env bash\n")
