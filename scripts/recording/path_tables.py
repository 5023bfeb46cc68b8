"""Tables of the learning path's pages that show what a GPU measured (see path_record.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from textwrap import fill

from harness import Variant
from harness.execution.planning.variant_calls import claimed_traffic
from harness.model.discovery import discover
from harness.model.lesson import Lesson
from harness.model.problem import BaseProblem
from harness.studies.learn.step_run import problem_before
from harness.studies.learn.steps import cuda_variant, numba_variant
from harness.text.report import Table
from scripts.recording.path_problems import (
    FLASH,
    LIBRARY,
    NAIVE,
    is_too_slow,
    problems_of,
    published,
)
from scripts.recording.path_record import PathRecord

WIDTH = 120
UNKNOWN = "-"
PREDICTED = "predicted time"
"""Beginning of the row of predicted times."""
Case = tuple[Variant, BaseProblem]
T4 = {
    512: ("0.059", "0.239", "0.167", "0.064"),
    1024: ("0.080", "0.441", "0.264", "0.123"),
    2048: ("0.290", "1.410", "1.171", "0.144"),
    4096: ("1.062", "3.929", "2.082", "0.363"),
    8192: ("4.268", "13.604", "9.159", "1.582"),
}
"""Milliseconds that an introduction to FlashAttention prints, by N; in the order of `T4_COLUMNS`."""
T4_COLUMNS = ("naive", "the author's FlashAttention", "the same, causal", "PyTorch's SDPA")


def shown_us(us: float | None) -> str:
    """Microseconds as text, with at least two digits."""
    return UNKNOWN if us is None else f"{us:,.0f}" if us >= 100 else f"{us:.1f}"


def measured_section(
    lesson: Lesson, lessons: Mapping[str, Lesson], record: PathRecord, predicted: Sequence[str]
) -> str:
    """The section of a step's page with what a GPU measured, with a blank line before and after; empty without times.

    `predicted` are the cells of predicted times: of the step before, if there is one, and of this step.
    """
    columns = _columns(lesson, lessons)
    problems = problems_of(lesson)
    own, largest = problems[0], problems[-1]

    def row(name: str, problem: BaseProblem, unit: str, shown: Callable[[Case], str]) -> list[str]:
        cases = [case_of(problem) for case_of in columns.values()]
        return [f"{name}, {_size(problem)}", *(UNKNOWN if case is None else shown(case) for case in cases), unit]

    def counted(level: str) -> Callable[[Case], str]:
        return lambda case: _number(record.bytes_at(level, *case))

    times = [row("measured time", problem, "us", lambda case: shown_us(record.us(*case))) for problem in problems]
    measured = [
        row("bytes measured", own, "bytes", counted("sectors")),
        row("of these in DRAM", own, "bytes", counted("DRAM")),
        row("bytes in DRAM", largest, "bytes", counted("DRAM")),
    ]
    if not any(map(_is_known, times)):
        return ""
    rows = [[f"{PREDICTED}, {_size(own)}", *predicted, "", "us"], *filter(_is_known, times)]
    if any(map(_is_known, measured)):
        rows += [row("bytes counted", own, "bytes", _claimed), *filter(_is_known, measured)]
    table = Table(["figure", *columns, "unit"], rows, (False, *(True for _ in columns), False))
    notes = [
        f"Measured on an {record.where_and_when}: medians of runs that take turns, with empty caches. The predicted "
        "time is that of a model, and the counted bytes are the emulator's, for the same kernels."
    ]
    if any(map(_is_known, measured)):
        notes.append(
            "*DRAM* is the memory itself: what a cache answers does not get there, and what was written may still be "
            "in a cache when the kernel ends."
        )
    if any(is_too_slow(*case) for case_of in columns.values() if (case := case_of(largest)) is not None):
        notes.append(f"Step 6, with its one block, would take seconds for {_size(largest)}, and was not measured.")
    return f"\n## On a GPU\n\n{table.text(markdown=True)}\n\n{fill(' '.join(notes), WIDTH, break_on_hyphens=False)}\n\n"


CaseOf = Callable[[BaseProblem], "Case | None"]
"""What runs in a column on a problem of the step; None if nothing does."""


def _columns(lesson: Lesson, lessons: Mapping[str, Lesson]) -> dict[str, CaseOf]:
    columns: dict[str, CaseOf] = {}
    before = None if lesson.follows is None else lessons[lesson.follows]
    on = None if before is None else problem_before(before, lesson.problem)
    if before is not None and on is not None:
        dtype = "" if on == lesson.problem else f", {on.to_fields()['dtype']}"
        columns[f"step {before.number}{dtype}"] = _runner(before, cuda_variant(before))
    columns[f"step {lesson.number}"] = _runner(lesson, cuda_variant(lesson))
    columns["Numba twin"] = _runner(lesson, numba_variant(lesson))
    return columns


def _runner(lesson: Lesson, variant: Variant) -> CaseOf:
    def case_of(problem: BaseProblem) -> Case | None:
        on = problem_before(lesson, problem)
        return None if on is None else (variant, on)

    return case_of


def _claimed(case: Case) -> str:
    """What the emulator counts: a test holds the claim equal to it."""
    claim = claimed_traffic(*case)
    return _number(None if claim is None else claim.total_bytes)


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _is_known(row: Sequence[str]) -> bool:
    return any(cell != UNKNOWN for cell in row[1:-1])


def _size(problem: BaseProblem) -> str:
    return f"{problem.kv_len:,} keys"


def times_rows(lessons: Mapping[str, Lesson], record: PathRecord | None) -> list[list[str]]:
    """Rows of measured times of the main path's CUDA kernels, a cell for each step; none without a record."""
    if record is None:
        return []
    main = [lesson for lesson in lessons.values() if lesson.number.isdigit()]
    rows = []
    for of_steps in zip(*map(problems_of, main), strict=True):
        times = [shown_us(record.us(cuda_variant(lesson), on)) for lesson, on in zip(main, of_steps, strict=True)]
        rows.append([f"us measured, {_size(of_steps[0])}", *times])
    return [row for row in rows if any(cell != UNKNOWN for cell in row[1:])]


def published_table(record: PathRecord | None) -> str:
    """The published times on a T4 in milliseconds; beside them, what the record has on the same problems."""
    if record is None:
        return _text(["N", *T4_COLUMNS], [[str(n), *times] for n, times in T4.items()])
    registry = discover().registry
    naive, flash = (registry.get(name) for name in (NAIVE, FLASH))
    gpu = record.gpu.removeprefix("NVIDIA ")
    ours = {
        "`three-pass`": (naive, False, "`three-pass` stores S and P as the naive version does"),
        "`fa2-mma`": (flash, False, "`fa2-mma` is this project's FlashAttention-2 on tensor cores"),
        "`fa2-mma`, causal": (flash, True, ""),
        "PyTorch's SDPA": (LIBRARY, False, "PyTorch's SDPA runs with its flash backend"),
    }
    times = {name: [record.us(who, published(n, causal=causal)) for n in T4] for name, (who, causal, _) in ours.items()}
    known = [name for name, found in times.items() if any(us is not None for us in found)]
    headers = ["N", *(f"T4: {name}" for name in T4_COLUMNS), *(f"{gpu}: {name}" for name in known)]
    rows = [
        [str(n), *of_t4, *(UNKNOWN if (us := times[name][at]) is None else f"{us / 1000:.3f}" for name in known)]
        for at, (n, of_t4) in enumerate(T4.items())
    ]
    explained = "; ".join(words for name in known if (words := ours[name][2]))
    note = (
        f"The columns of the {gpu} were measured by `bench` ({record.where_and_when}, PyTorch {record.torch}): medians "
        f"of runs with empty caches, on the same problems. {explained}. Kernels that have changed since are left out."
    )
    return f"{_text(headers, rows)}\n\n{fill(note, WIDTH, break_on_hyphens=False)}"


def _text(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return Table(headers, rows, [True for _ in headers]).text(markdown=True)
