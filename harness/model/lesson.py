"""Defines a step of the learning path: its kernels, what the learner predicts, and the task, as plain data.

A step is a folder in `variants/_path/` whose module has a `LESSON`. The command `learn` discovers and runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.model.numerics import Numerics
from harness.model.plan import Plan
from harness.model.traffic import Traffic
from harness.support.errors import PluginError


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number that is counted when a step runs, such as the bytes of S at the `requested` level."""

    name: str
    """Name in tables, such as `bytes of S`."""
    kind: str
    """A key of `FIGURES` in `harness/studies/learn/figures.py`, such as `bytes`, `sectors` or `conflicts`."""
    unit: str = ""
    """Unit after the number: `bytes`, `sectors / request`, ..."""
    buffer: str | None = None
    """Count only accesses to this buffer of the plan; None for all."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the learner predicts before the step runs."""

    question: str
    figure: Figure
    """The counted figure that answers the question."""
    because: str
    """Why this is the answer, shown after the prediction, right or wrong."""
    tolerance: float = 0.05
    """Largest relative difference from the counted figure that is accepted; 0 for exact answers."""
    slips: tuple[tuple[float, str], ...] = ()
    """Typical wrong answers, each with what it overlooks."""


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A replacement in a text. `old` has to occur exactly once."""

    old: str
    new: str

    def apply(self, text: str) -> str:
        """Return the text with the replacement. Raises `PluginError` if `old` does not occur exactly once."""
        if text.count(self.old) != 1:
            raise PluginError(f"an edit of a step replaces {self.old!r}, which occurs {text.count(self.old)} times")
        return text.replace(self.old, self.new)


def edited(text: str, edits: tuple[Edit, ...]) -> str:
    """Return the text after all edits, in order. Raises `PluginError` if one does not fit."""
    for edit in edits:
        text = edit.apply(text)
    return text


@dataclass(frozen=True, kw_only=True)
class TaskCase:
    """A problem on which a solution has to be right."""

    about: str
    """The case in words, such as `33 keys, one more than a tile`."""
    problem: Any
    regime: str = "normal"
    """Name of the operation's regime from which inputs are drawn."""
    seed: int = 0
    """Seeds other than 0 also permute the turns of a block's warps."""
    sanitize: bool = False
    """Whether to look for races and reads of unwritten memory."""


@dataclass(frozen=True, kw_only=True)
class TaskLimit:
    """A bound on a figure, which is counted on the problem of the step."""

    figure: Figure
    at_most: float
    advice: str
    """What to change if the solution exceeds the bound."""


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A wrong solution, which is kept as a test: `check` has to reject it with these words."""

    name: str
    edits: tuple[Edit, ...]
    """Changes to the solution."""
    answer: str
    """Words that the answer of `check` contains."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A kernel with a hole or a planted mistake, which the learner completes or repairs."""

    text: str
    """What to do; it becomes the comment at the top of the file."""
    start: tuple[Edit, ...]
    """Changes to the solution that make the file which the learner gets."""
    cases: tuple[TaskCase, ...]
    """In the order in which they are tried; the first that fails is the answer."""
    solution: tuple[Edit, ...] = ()
    """Changes to the kernel of the step that make the solution; empty if the kernel itself is the solution."""
    limits: tuple[TaskLimit, ...] = ()
    hints: tuple[tuple[str, str], ...] = ()
    """Words in the description of a failure or, if the answer is wrong, in the name of the case; and the hint that is
    added for them. The first that matches is used."""
    mistakes: tuple[Mistake, ...] = ()
    """At least five."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A step of the learning path. Raises `PluginError` if its number is not usable."""

    number: str
    """`1` to `12` on the main path; a letter for a side path."""
    name: str
    """Short name, such as `native`; its variants are `path-native-cupy` and `path-native-numba`."""
    title: str
    idea: str
    """What changes against the step before, in one line."""
    folder: Path
    """The folder with `README.md` and `kernel.cu`."""
    problem: Any
    """The problem on which the step runs."""
    cuda: Callable[[str], tuple[Any, ...]]
    """Kernel objects of a CUDA text, in the order in which `plan` takes them."""
    numba: Callable[[], tuple[Any, ...]]
    """The Numba kernels, in the same order."""
    plan: Callable[[Any, tuple[Any, ...]], Plan]
    """The plan for a problem and these kernels."""
    claim: Callable[[Any], Traffic]
    """Bytes that the kernels move at the `sectors` level."""
    supports: Callable[[Any], str | None]
    """Returns None if a problem is supported, or else what is supported."""
    prediction: Prediction
    task: Task
    follows: str | None = None
    """Number of the step that this one is compared with; None for the first."""
    figures: tuple[Figure, ...] = ()
    """Rows of the table that compares the two steps, besides the prediction's figure."""
    picture: str = "schedule"
    """`schedule`: rows of each buffer against bytes moved; `timeline`: what each warp waits for; `banks`: wavefronts
    of shared memory by source line."""
    explains_time: bool = True
    """Whether a run shows the causes of the difference in predicted time, as `why` does, besides the two times. Steps
    before the page that introduces multiprocessors, requests and wavefronts do not."""
    regime: str = "normal"
    arch: str = "sm_90"
    """Architecture that the kernels are compiled for."""
    numerics: Numerics = field(default_factory=Numerics)
    fails_in: tuple[str, ...] = ()
    """Regimes in which the kernel is expected to fail, as `Variant.fails_in`."""
    operation: str = "attention"

    def __post_init__(self) -> None:
        if not (self.number.isdigit() or (len(self.number) == 1 and self.number.islower())):
            raise PluginError(f"a step has number {self.number!r}; it has to be a whole number or a lower-case letter")

    @property
    def page(self) -> str:
        """Text of the step's page."""
        return (self.folder / "README.md").read_text(encoding="utf-8")

    @property
    def kernel(self) -> str:
        """Text of the CUDA kernels."""
        return (self.folder / "kernel.cu").read_text(encoding="utf-8")

    @property
    def solution(self) -> str:
        """Text that `check` accepts."""
        return edited(self.kernel, self.task.solution)

    @property
    def task_file(self) -> str:
        """Text of the file that the learner gets."""
        comment = "\n".join(f"// {line}".rstrip() for line in self.task.text.splitlines())
        return f"{comment}\n\n{edited(self.solution, self.task.start)}"


LANGUAGES: Mapping[str, str] = {"cupy": "CUDA", "numba": "Numba"}
"""Names of the languages of a step's kernels, by backend."""
