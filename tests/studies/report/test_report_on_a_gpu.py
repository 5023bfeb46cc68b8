"""`report` where a GPU runs the variants: it times and does not count, and an emulator counts beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.cli import main
from harness.emulator.executor import EmulatorExecutor
from harness.execution.protocol import Device
from harness.execution.run_settings import Effort
from harness.execution.timings import BenchResult, BenchRow, Ceilings
from harness.studies.report import command
from harness.support.intervals import Interval


class StandIn:
    """Answers as a GPU does: right outputs, a time, no bytes."""

    device = Device("gpu", "NVIDIA H200", "sm_90")

    def run(self, problem, plan, inputs):
        ran = EmulatorExecutor().run(problem, plan, inputs)
        launches = tuple(replace(launch, traffic=None, warp_instructions=None, ptx=None) for launch in ran.launches)
        return replace(ran, launches=launches, time_ms=Interval(0.9, 1.0, 1.1))


@pytest.fixture
def page_of(monkeypatch, tmp_path):
    """The page's text; `words` are more of the command line."""
    monkeypatch.setattr(command, "executor_of", lambda settings, progress: StandIn())
    path = tmp_path / "page.html"
    problem = ["--seq-len", "20", "--head-dim", "8", "--variants", "fa2-cupy"]

    def run(*words: str) -> str:
        assert main(["report", "--output", str(path), *problem, *words]) == 0
        return path.read_text()

    return run


def test_times_come_from_the_gpu_and_bytes_from_the_emulator(page_of):
    page = page_of()
    assert "1.0000" in page and "Ranked by the time" in page and 'class="ring"' in page
    assert "Counted on: emulated GPU" in page and 'id="replay-data"' in page
    assert 'id="times"' not in page and "variants/attention/fa2/kernel.cu" in page


def test_without_counts_the_page_says_so_and_shows_the_source_as_it_is(page_of):
    page = page_of("--count", "never")
    assert "Bytes were not counted" in page and "lines not counted" in page
    assert "Line 8: S = tau Q_i K_j^T" in page and 'class="ring"' not in page


def test_bench_is_a_section_where_it_is_asked_for(page_of, monkeypatch):
    row = BenchRow(
        variant="fa2-cupy", kind="variant", verdict="pass", rank=1, time_ms=0.1234, time_low_ms=0.12,
        time_high_ms=0.13, samples=9,
    )  # fmt: skip

    def bench_on_gpu(variants, problem, settings, *, libraries, step):
        step("all in turns")
        ceilings = Ceilings(4e12, 7e14, "float16")
        return BenchResult(
            problem=problem, regime=settings.regime, seed=settings.seed, device=StandIn.device, rows=(row,),
            ceilings=ceilings, effort=Effort(), floor_ms=0.0, driver="1", torch=None,
        )  # fmt: skip

    monkeypatch.setattr("harness.gpu.contenders.bench_on_gpu", bench_on_gpu)
    page = page_of("--bench")
    assert "0.1234" in page and "copy 4.00 TB/s" in page and "Times on the GPU" in page
