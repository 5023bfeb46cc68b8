"""Which worker runs a task, and what it costs when a worker is lost."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pieces_of_work
import pytest
from distributed import Client
from distributed.comm import CommClosedError

from harness.execution.cluster import cluster_client as client_module
from harness.execution.cluster.cluster_client import ClusterClient, WorkerLost
from harness.support.errors import SandboxError, UsageError

pytestmark = pytest.mark.compiles(False)

said: list[str] = []


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterClient]:
    with ClusterClient(2, said.append) as own:
        yield own


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    said.clear()


def results(cluster: ClusterClient, function: object, arguments: list[object]) -> list[object]:
    found = dict(cluster.map_unordered(function, dict(enumerate(arguments))))
    return [found[place] for place in range(len(arguments))]


def test_each_argument_has_its_own_result_and_all_workers_work(cluster: ClusterClient):
    assert results(cluster, pieces_of_work.squared, list(range(40))) == [n * n for n in range(40)]
    shares = Counter(results(cluster, pieces_of_work.process, [None] * 40))
    assert len(shares) == cluster.size == 2 and not said


def test_the_scheduler_imports_nothing_of_the_work(cluster: ClusterClient):
    """Every campaign would wait for that, and no worker's import could begin before."""
    assert results(cluster, pieces_of_work.imported, ["pieces_of_work"]) == [True]
    # A function of this file would be imported there itself.
    assert cluster._client.run_on_scheduler(eval, "'pieces_of_work' in __import__('sys').modules") is False


def test_what_is_raised_is_raised_here(cluster: ClusterClient):
    with pytest.raises(ValueError, match="a mistake of ours"):
        results(cluster, pieces_of_work.wrong, [None])


def test_what_cannot_cross_is_one_error_and_is_not_waited_for(cluster: ClusterClient):
    with pytest.raises(SandboxError, match=r"sent a result of returns\(\) that cannot be unpickled: ValueError.*$"):
        results(cluster, pieces_of_work.returns, ["unreadable"])
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        results(cluster, pieces_of_work.returns, ["lock"])
    with pytest.raises(Exception, match="unreadable error"):
        results(cluster, pieces_of_work.raises_unreadable, [None])
    assert results(cluster, pieces_of_work.squared, [3]) == [9] and not said


def test_a_worker_whose_connection_fails_when_it_joins_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    run, failed = Client.run, []

    def fails_once(self: Client, function: object, *arguments: object, workers: list[str], **rest: object) -> object:
        if not failed:
            failed.extend(workers)
            return {address: CommClosedError("Stream is closed") for address in workers}
        return run(self, function, *arguments, workers=workers, **rest)

    monkeypatch.setattr(Client, "run", fails_once)
    with ClusterClient(1, said.append) as cluster:
        assert results(cluster, pieces_of_work.squared, [3]) == [9]
    assert failed and not said


def test_cancelled_tasks_that_run_end_early(cluster: ClusterClient):
    began = time.monotonic()
    for _ in range(2):
        cluster.submit(pieces_of_work.until_cancelled, 20.0)
    cluster.poll(0.3)
    cluster.cancel_all()
    assert cluster.result(cluster.submit(pieces_of_work.squared, 7)) == 49
    assert time.monotonic() - began < 5


def test_cancelled_tasks_that_wait_are_not_begun(cluster: ClusterClient, tmp_path: Path):
    begun = tmp_path / "begun"
    for _ in range(40):
        cluster.submit(pieces_of_work.slowly, str(begun))
    cluster.cancel_all()
    assert cluster.result(cluster.submit(pieces_of_work.squared, 7)) == 49
    assert not begun.exists() or begun.stat().st_size <= client_module.IN_HAND * cluster.size


def test_a_killed_worker_costs_one_try_and_another_takes_its_place(cluster: ClusterClient, tmp_path: Path):
    first = cluster.submit(pieces_of_work.deadly_once, str(tmp_path / "was here"))
    others = [cluster.submit(pieces_of_work.squared, n) for n in range(10)]
    assert cluster.result(first) == "done"
    assert [cluster.result(task) for task in others] == [n * n for n in range(10)]
    assert any("died" in line and "another takes its place" in line for line in said)
    until = time.monotonic() + 20
    while cluster.size < 2 and time.monotonic() < until:
        cluster.poll(0.1)
    assert cluster.size == 2


def test_work_that_kills_every_worker_is_one_error_and_the_rest_is_done(cluster: ClusterClient):
    found = results(cluster, pieces_of_work.deadly, list(range(8)))
    lost = found.pop(3)
    assert found == [0, 1, 2, 4, 5, 6, 7]
    assert isinstance(lost, WorkerLost) and "so was the one that tried it before" in str(lost)


@pytest.mark.thorough
def test_what_a_worker_did_before_it_was_killed_is_not_blamed():
    """It cannot always be told what the worker was at: it has done the first, and its report is lost with it."""
    with ClusterClient(1, said.append) as cluster:
        done, lost = results(cluster, pieces_of_work.deadly_or_unreported, [1, 3])
    assert done == 1 and isinstance(lost, WorkerLost)


def test_who_is_unfit_passes_it_on_once(cluster: ClusterClient, tmp_path: Path):
    while cluster.size < 2:
        cluster.poll(0.1)
    path = tmp_path / "was here"
    assert str(cluster.result(cluster.submit(pieces_of_work.unfit_once, str(path)))) != path.read_text()
    with pytest.raises(WorkerLost, match="it has lost its GPU"):
        cluster.result(cluster.submit(pieces_of_work.never_fit, None))


@pytest.mark.thorough
def test_a_silent_worker_is_taken_for_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(client_module, "SILENT_SECONDS", 3.0)
    path = tmp_path / "was here"
    with ClusterClient(2, said.append) as cluster:
        assert cluster.result(cluster.submit(pieces_of_work.stops, str(path))) == "done"
        assert [cluster.result(cluster.submit(pieces_of_work.squared, n)) for n in range(4)] == [0, 1, 4, 9]
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), signal.SIGCONT)


@pytest.mark.thorough
def test_each_worker_has_a_gpu_of_its_own():
    with ClusterClient(3, said.append, ["4", "7"], pieces_of_work.visible_gpu) as cluster:
        assert cluster.size == 2
        assert set(results(cluster, pieces_of_work.visible_to, [None] * 12)) == {"4", "7"}
    (line,) = said
    assert "is left out" in line and "has the same GPU" in line


def test_a_scheduler_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client_module, "CONNECT_SECONDS", 0.5)
    with pytest.raises(UsageError, match="no scheduler answers there"):
        ClusterClient("tcp://127.0.0.1:9", said.append)
