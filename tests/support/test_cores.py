from __future__ import annotations

import threading
import time

import pytest

from harness.support import cores
from harness.support.cores import on_all_cores, usable_cores


def test_there_is_a_core_at_least():
    assert usable_cores() >= 1


@pytest.mark.parametrize("number", [1, 3])
def test_every_piece_is_worked_on_once(monkeypatch: pytest.MonkeyPatch, number: int):
    monkeypatch.setattr(cores, "usable_cores", lambda: number)
    done: list[int] = []
    threads = set()

    def work(piece: int) -> None:
        threads.add(threading.get_ident())
        time.sleep(0.01)
        done.append(piece)

    on_all_cores(work, range(12))
    assert sorted(done) == list(range(12)) and len(threads) == number
    on_all_cores(work, [])


def test_what_goes_wrong_is_told_and_nothing_else_is_begun(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cores, "usable_cores", lambda: 2)
    begun: list[int] = []

    def work(piece: int) -> None:
        begun.append(piece)
        time.sleep(0.01)
        if piece == 1:
            raise ValueError("piece 1")

    with pytest.raises(ValueError, match="piece 1"):
        on_all_cores(work, range(1000))
    assert len(begun) < 20


def test_blas_has_one_thread_meanwhile_and_its_own_again_afterwards(monkeypatch: pytest.MonkeyPatch):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    monkeypatch.setattr(cores, "usable_cores", lambda: 2)

    def threads_of_blas() -> list[int]:
        return [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]

    before, meanwhile = threads_of_blas(), []
    on_all_cores(lambda _: meanwhile.extend(threads_of_blas()), [0, 1])
    assert before and set(meanwhile) == {1} and threads_of_blas() == before
