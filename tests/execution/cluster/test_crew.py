"""Who does the work, and what it costs when one of them is lost."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pieces_of_work
import pytest

from harness.execution.cluster import crew as crew_module
from harness.execution.cluster.crew import Crew
from harness.execution.cluster.job import WorkerLost
from harness.support.errors import UsageError

pytestmark = pytest.mark.compiles(False)

said: list[str] = []


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(2, said.append) as own:
        yield own


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    said.clear()


def results(crew: Crew, function: object, arguments: list[object]) -> list[object]:
    found = dict(crew.spread(function, arguments))
    return [found[place] for place in range(len(arguments))]


def test_each_argument_has_its_own_result_and_all_workers_work(crew: Crew):
    assert results(crew, pieces_of_work.squared, list(range(40))) == [n * n for n in range(40)]
    shares = Counter(results(crew, pieces_of_work.process, [None] * 40))
    assert len(shares) == crew.size == 2 and not said


def test_the_scheduler_imports_nothing_of_the_work(crew: Crew):
    """Every campaign would wait for that, and no worker's import could begin before."""
    assert results(crew, pieces_of_work.imported, ["pieces_of_work"]) == [True]
    # A function of this file would be imported there itself.
    assert crew._client.run_on_scheduler(eval, "'pieces_of_work' in __import__('sys').modules") is False


def test_what_is_raised_is_raised_here(crew: Crew):
    with pytest.raises(ValueError, match="a mistake of ours"):
        results(crew, pieces_of_work.wrong, [None])


def test_what_is_forgotten_ends_where_it_is(crew: Crew):
    began = time.monotonic()
    for _ in range(2):
        crew.begin(pieces_of_work.until_abandoned, 20.0)
    crew.attend(0.3)
    crew.forget()
    assert crew.wait(crew.begin(pieces_of_work.squared, 7)) == 49
    assert time.monotonic() - began < 5


def test_what_is_forgotten_is_not_begun(crew: Crew, tmp_path: Path):
    begun = tmp_path / "begun"
    for _ in range(40):
        crew.begin(pieces_of_work.slowly, str(begun))
    crew.forget()
    assert crew.wait(crew.begin(pieces_of_work.squared, 7)) == 49
    assert not begun.exists() or begun.stat().st_size <= crew_module.IN_HAND * crew.size


def test_a_killed_worker_costs_one_try_and_another_takes_its_place(crew: Crew, tmp_path: Path):
    first = crew.begin(pieces_of_work.deadly_once, str(tmp_path / "was here"))
    others = [crew.begin(pieces_of_work.squared, n) for n in range(10)]
    assert crew.wait(first) == "done"
    assert [crew.wait(job) for job in others] == [n * n for n in range(10)]
    assert any("died" in line and "another takes its place" in line for line in said)
    until = time.monotonic() + 20
    while crew.size < 2 and time.monotonic() < until:
        crew.attend(0.1)
    assert crew.size == 2


def test_work_that_kills_every_worker_is_one_error_and_the_rest_is_done(crew: Crew):
    found = results(crew, pieces_of_work.deadly, list(range(8)))
    lost = found.pop(3)
    assert found == [0, 1, 2, 4, 5, 6, 7]
    assert isinstance(lost, WorkerLost) and "so was the one that tried it before" in str(lost)


def test_what_a_worker_did_before_it_was_killed_is_not_blamed():
    """It cannot always be told what the worker was at: it has done the first, and its report is lost with it."""
    with Crew(1, said.append) as crew:
        done, lost = results(crew, pieces_of_work.deadly_or_unreported, [1, 3])
    assert done == 1 and isinstance(lost, WorkerLost)


def test_who_is_unfit_passes_it_on_once(crew: Crew, tmp_path: Path):
    while crew.size < 2:
        crew.attend(0.1)
    path = tmp_path / "was here"
    assert str(crew.wait(crew.begin(pieces_of_work.unfit_once, str(path)))) != path.read_text()
    with pytest.raises(WorkerLost, match="it has lost its GPU"):
        crew.wait(crew.begin(pieces_of_work.never_fit, None))


@pytest.mark.thorough
def test_a_silent_worker_is_taken_for_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(crew_module, "SILENT_SECONDS", 3.0)
    path = tmp_path / "was here"
    with Crew(2, said.append) as crew:
        assert crew.wait(crew.begin(pieces_of_work.stops, str(path))) == "done"
        assert [crew.wait(crew.begin(pieces_of_work.squared, n)) for n in range(4)] == [0, 1, 4, 9]
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), signal.SIGCONT)


@pytest.mark.thorough
def test_each_worker_has_a_gpu_of_its_own():
    with Crew(3, said.append, ["4", "7"], pieces_of_work.visible_gpu) as crew:
        assert crew.size == 2
        assert set(results(crew, pieces_of_work.visible_to, [None] * 12)) == {"4", "7"}
    (line,) = said
    assert "is left out" in line and "has the same GPU" in line


def test_a_scheduler_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(crew_module, "CONNECT_SECONDS", 0.5)
    with pytest.raises(UsageError, match="no scheduler answers there"):
        Crew("tcp://127.0.0.1:9", said.append)
