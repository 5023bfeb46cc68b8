"""`--workers` from the command line: the same cases and the same result, whoever is killed on the way."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import ROOT, Processes, processes, start_scheduler, start_worker

from harness.cli import main
from harness.execution.cluster import cluster_client

pytestmark = pytest.mark.compiles(False)

PLUGIN = ROOT / "tests" / "plugins" / "one_thread_per_row.py"
GOES_ON = "resuming an interrupted command"
TOLD_WITHIN_SECONDS = 60.0
LONG = ("--examples", "60")
"""Many seconds of one process: the campaign is cut off when something of it is on the disk, long before it is done."""
SMALL = ("--examples", "150", "--tiles", "4")
"""Twice as soon done, as no example has offsets beyond 32 bits, and still seconds after something is on the disk."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of these tests alone: a failure that others find meanwhile in a variant of the same name would be tried first."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Callable[..., dict[str, Any]]:
    """What a campaign with these options comes to that is alone and that nobody cuts off."""

    @functools.cache
    def run(*words: str) -> dict[str, Any]:
        results = str(tmp_path_factory.mktemp("whole") / "results")
        with processes(ATTENTION_SANDBOX_RESULTS_DIR=results, ATTENTION_SANDBOX_CACHE_DIR=str(cache)) as alone:
            return outcome(fuzz(alone, *words))[0]

    return run


@pytest.fixture
def own(tmp_path: Path, cache: Path) -> Iterator[Processes]:
    results = str(tmp_path / "results")
    with processes(ATTENTION_SANDBOX_RESULTS_DIR=results, ATTENTION_SANDBOX_CACHE_DIR=str(cache)) as started:
        yield started


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """A kernel that leaves a key out, where there are more than 8."""
    path = tmp_path / "client" / "wrong.py"
    path.parent.mkdir()
    path.write_text(PLUGIN.read_text().replace("j < keys", "j < keys - (keys > 8)"))
    return path


def fuzz(own: Processes, *words: str, plugin: Path = PLUGIN, seed: int = 1, **rest: Any) -> subprocess.Popen[str]:
    command = ["-m", "harness", "fuzz", "--plugin", str(plugin), "one-thread-per-row", "--format", "json"]
    return own.start(*command, "--seed", str(seed), *words, **rest)


def outcome(ended: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    """The result of the one campaign, apart from what its speed decides, and what is on standard error.

    Lengths around a failure, and the larger failure that is found there, are tried for a limited time.
    """
    out, err = ended.communicate(timeout=300)
    try:
        (campaign,) = json.loads(out)["campaigns"]
    except ValueError as error:
        raise AssertionError(out + err) from error
    for name in ("seconds", "shrink_seconds", "replay"):
        del campaign[name]
    for name in ("lengths", "larger_case", "larger"):
        if campaign["failure"]:
            del campaign["failure"][name]
    return campaign, err


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Both values of each key in which two results differ."""
    return {key: (one.get(key), other.get(key)) for key in {*one, *other} if one.get(key) != other.get(key)}


def until(condition: Callable[[], object], seconds: float = TOLD_WITHIN_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


def kept(own: Processes) -> bool:
    """Whether something of a campaign is on the disk: it is put there every two seconds or so."""
    path = Path(own.environment["ATTENTION_SANDBOX_RESULTS_DIR"], "results.sqlite")
    if not path.exists():
        return False
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
        try:
            return bool(store.execute("SELECT count(*) FROM finished_units WHERE length(payload) > 200").fetchone()[0])
        except sqlite3.Error:
            return False  # it is being made


def cluster_workers(own: Processes) -> list[int]:
    """Those of a local cluster, whose processes alone are spawned, the scheduler first."""
    return sorted(own.left("spawn_main"))[1:]


def test_nothing_of_dask_is_loaded_without_workers():
    program = (
        "import sys; from harness.cli import main;"
        "main(['fuzz', 'softmax-online-cupy', '--operation', 'softmax', '--examples', '1', '--seed', '1']);"
        "print([name for name in ('dask', 'distributed', 'tornado') if name in sys.modules])"
    )
    with processes() as own:
        out, err = own.start("-c", program).communicate(timeout=120)
    assert out.splitlines()[-1] == "[]", out + err


def test_workers_that_are_none_are_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster_client, "CONNECT_SECONDS", 0.5)
    for words, said in (
        (["--workers", "many"], "is neither a number of processes nor the address"),
        (["--workers", "0"], "--workers is 0; it has to be from 1"),
        (["--workers", "tcp://127.0.0.1:9"], "no scheduler answers there"),
    ):
        status = main(["fuzz", "--plugin", str(PLUGIN), "one-thread-per-row", *words])
        out, err = capsys.readouterr()
        assert status == 2 and not out and err.count("\n") == 1 and said in err, err


@pytest.mark.thorough
def test_two_workers_and_none_come_to_the_same(own: Processes, wrong: Path, tmp_path: Path):
    """With a kernel that fails; that this is so with a right one is shown where workers are killed."""
    env = {"ATTENTION_SANDBOX_CACHE_DIR": str(tmp_path / "cache")}
    words = ("--examples", "60")
    alone, _ = outcome(fuzz(own, *words, plugin=wrong, seed=3, env=env))
    shutil.rmtree(tmp_path / "cache" / "failures")  # they would be tried first
    together, said = outcome(fuzz(own, *words, "--workers", "2", plugin=wrong, seed=3, env=env))
    assert differences(together, alone) == {} and said == ""
    assert alone["verdict"] == "fail" and alone["failure"]["shrinking"] > 3


@pytest.mark.thorough
def test_ctrl_c_ends_all_processes_soon(own: Processes):
    started = fuzz(own, "--seconds", "200", "--workers", "2")
    # Each worker has a server of processes, one that examines cases, and its planner.
    until(lambda: len(cluster_workers(own)) == 2 and len(own.left("forkserver")) >= 6)
    time.sleep(3)
    assert len(own.left()) >= 6
    began = time.monotonic()
    os.killpg(started.pid, signal.SIGINT)
    out, err = started.communicate(timeout=30)
    took = time.monotonic() - began
    assert started.returncode == 130 and out == "" and err == ""
    assert own.all_gone_within(2.0) and took < 2.5


@pytest.mark.thorough
@pytest.mark.parametrize("words", [(), ("--workers", "2")], ids=["alone", "two workers"])
def test_after_a_killed_client_the_same_command_resumes(
    own: Processes, whole: Callable[..., dict[str, Any]], words: tuple[str, ...], tmp_path: Path
):
    command = (*SMALL, *words)
    folders = tmp_path / "folders"
    folders.mkdir()
    started = fuzz(own, *command, env={"TMPDIR": str(folders)})
    until(lambda: kept(own))
    started.kill()
    assert started.communicate()[0] == "", "it was done by then"
    assert own.all_gone_within(10.0)
    assert not list(folders.glob("attention-sandbox-*"))
    again, said = outcome(fuzz(own, *command))
    assert GOES_ON in said and said.count("\n") == 1
    assert differences(again, whole(*SMALL)) == {}
    _, said = outcome(fuzz(own, "--examples", "20", *words))
    assert said == "", "another command is another one"


@pytest.mark.thorough
def test_a_seed_that_nobody_named_is_kept_with_what_it_drew(own: Processes, tmp_path: Path):
    command = ["-m", "harness", "fuzz", "--plugin", str(PLUGIN), "one-thread-per-row", *SMALL, "--format"]
    started = own.start(*command, "json")
    until(lambda: kept(own))
    started.kill()
    first, said = outcome(own.start(*command, "json"))
    assert GOES_ON in said
    second, said = outcome(own.start(*command, "json"))
    assert said == "" and first["seed"] != second["seed"]


@pytest.mark.thorough
def test_killed_workers_cost_a_line_each_and_change_no_result(own: Processes, whole: Callable[..., dict[str, Any]]):
    started = fuzz(own, *LONG, "--workers", "2")
    for _ in range(2):
        until(lambda: len(cluster_workers(own)) == 2)
        time.sleep(2.0)
        os.kill(cluster_workers(own)[0], signal.SIGKILL)
    result, said = outcome(started)
    assert differences(result, whole(*LONG)) == {}
    assert 1 <= said.count("another takes its place") == said.count("\n") <= 2, said


@pytest.mark.thorough
def test_after_a_killed_scheduler_the_same_command_resumes(
    own: Processes, whole: Callable[..., dict[str, Any]], tmp_path: Path
):
    address, scheduler = start_scheduler(own)
    start_worker(own, address, tmp_path / "one", "one", "--no-nanny")
    started = fuzz(own, *SMALL, "--workers", address)
    until(lambda: kept(own))
    scheduler.kill()
    out, err = started.communicate(timeout=60)
    assert started.returncode == 1 and out == ""
    assert err.count("\n") == 1 and "the scheduler at" in err and "to resume" in err
    again, said = outcome(fuzz(own, *SMALL, "--workers", "2"))
    assert GOES_ON in said and differences(again, whole(*SMALL)) == {}


@pytest.mark.thorough
def test_workers_of_another_version_are_left_out_and_named(own: Processes, tmp_path: Path):
    other = tmp_path / "other"
    for name in ("harness", "variants"):
        shutil.copytree(ROOT / name, other / name)  # with its bytecode: no process need make it anew
    (other / "harness" / "support" / "numbers.py").open("a").write("# another version\n")
    address, _ = start_scheduler(own)
    start_worker(own, address, tmp_path / "theirs", "theirs", "--no-nanny", env={"PYTHONPATH": str(other)})
    words = ["--examples", "12", "--workers", address]
    out, err = fuzz(own, *words).communicate(timeout=60)
    assert "worker theirs is left out: it has another version of the sandbox: harness/ " in err
    assert "none of its workers has this version" in err.splitlines()[-1] and out == ""
    start_worker(own, address, tmp_path / "ours", "ours")
    time.sleep(5)
    result, said = outcome(fuzz(own, *words))
    assert "worker theirs is left out" in said and result["examples"] == 12
    (tmp_path / "none" / "harness").mkdir(parents=True)
    (tmp_path / "none" / "harness" / "__init__.py").write_text("raise ImportError('there is none')\n")
    env = {"PYTHONPATH": str(tmp_path / "none")}
    start_worker(own, address, tmp_path / "without", "without", "--no-nanny", env=env)
    time.sleep(5)
    _, said = outcome(fuzz(own, *words))
    assert "worker without is left out: it cannot load the sandbox" in said


@pytest.mark.thorough
def test_a_full_disk_is_a_line_and_costs_no_result(own: Processes, whole: Callable[..., dict[str, Any]]):
    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    # Examples of offsets beyond 32 bits, from the 25th on, have a larger file in memory.
    examples = ("--examples", "24")
    result, said = outcome(fuzz(own, *examples, preexec_fn=little_room))
    assert differences(result, whole(*examples)) == {}
    assert said.count("\n") == 1 and "progress cannot be stored" in said and "results.sqlite" in said


def namespaces_can_be_made() -> bool:
    return os.geteuid() == 0 and shutil.which("ip") is not None and subprocess.call(
        ["ip", "netns", "add", "sandbox-probe"], stderr=subprocess.DEVNULL
    ) == 0 and subprocess.call(["ip", "netns", "del", "sandbox-probe"]) == 0  # fmt: skip


@pytest.fixture
def machines(own: Processes, tmp_path: Path) -> Iterator[tuple[str, list[list[str]]]]:
    """A scheduler's address, and what two machines' commands begin with.

    Network namespaces joined by a cable, where they can be made; else this machine twice. Each has a name of its own.
    """
    if not namespaces_can_be_made():
        yield "127.0.0.1", [[], []]
        return
    names = [f"sandbox-{own.mark[:6]}-{place}" for place in range(2)]
    run = lambda *words: subprocess.run(["ip", *words], check=True)  # noqa: E731
    for name in names:
        run("netns", "add", name)
    try:
        cables = [f"sb{own.mark[:6]}{place}" for place in range(2)]
        run("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        for place, (name, cable) in enumerate(zip(names, cables)):
            run("link", "set", cable, "netns", name)
            run("-n", name, "addr", "add", f"10.97.0.{place + 1}/24", "dev", cable)
            run("-n", name, "link", "set", cable, "up")
            run("-n", name, "link", "set", "lo", "up")
        own_name = "unshare --uts sh -c 'hostname $0; exec \"$@\"'"
        prefixes = [["ip", "netns", "exec", name, "sh", "-c", f'{own_name} {name} "$@"', "sh"] for name in names]
        yield "10.97.0.1", prefixes
    finally:
        own.end()
        for name in names:
            run("netns", "del", name)


@pytest.mark.thorough
def test_two_machines_draw_the_same_cases_and_come_to_the_same(
    own: Processes, machines: tuple[str, list[list[str]]], wrong: Path, tmp_path: Path
):
    """Each has its own folder, cache and host name, and the second has not the plugin's file."""
    host, (first, second) = machines
    examples = ["--examples", "60"]
    env = {"ATTENTION_SANDBOX_CACHE_DIR": str(tmp_path / "cache alone")}
    alone, _ = outcome(fuzz(own, *examples, plugin=wrong, seed=3, env=env))
    address, _ = start_scheduler(own, host, first)
    for name, prefix in (("one", first), ("two", second)):
        env = {"ATTENTION_SANDBOX_CACHE_DIR": str(tmp_path / f"cache {name}")}
        start_worker(own, address, tmp_path / name, name, prefix=prefix, env=env)
    time.sleep(5)
    plugin = wrong.parent / "relative.py"
    wrong.rename(plugin)
    command = [
        "-m",
        "harness",
        "fuzz",
        "--plugin",
        "relative.py",
        "one-thread-per-row",
        "--format",
        "json",
        "--seed",
        "3",
    ]
    env = {"ATTENTION_SANDBOX_CACHE_DIR": str(tmp_path / "cache client")}
    words = [*first, shutil.which("python3", path=str(Path(sys.executable).parent)) or sys.executable, *command]
    together, said = outcome(own.run([*words, *examples, "--workers", address], env=env, cwd=plugin.parent))
    assert said == "" and differences(together, alone) == {} and together["verdict"] == "fail"
    assert {path.name for path in tmp_path.glob("cache *")} == {"cache alone", "cache client", "cache one", "cache two"}


@pytest.mark.thorough
def test_a_sweep_that_was_cut_off_goes_on(own: Processes):
    command = [
        "-m",
        "harness",
        "traffic",
        "--plugin",
        str(PLUGIN),
        "--variants",
        "one-thread-per-row",
        "--kv-len",
        "512",
    ]
    words = [*command, "--head-dim", "64", "--sweep", "q_len=64..8192", "--count", "always", "--format", "json"]
    whole, _ = own.start(*words).communicate(timeout=300)
    started = own.start(*words)
    until(lambda: kept(own))
    started.kill()
    started.communicate()
    again, said = own.start(*words, "--workers", "2").communicate(timeout=300)
    assert json.loads(again) == json.loads(whole)
    assert GOES_ON in said and "of 8 points are done" in said, said
    _, said = own.start(*words, "--workers", "2").communicate(timeout=300)
    assert said == "", "what is done is done once more"
