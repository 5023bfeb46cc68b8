"""The learner's progress: a JSON file beside the store of results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.execution.results.place import store_path
from harness.support.errors import UsageError
from harness.support.file_replacement import replace_files

FILE = "path.json"


@dataclass(frozen=True)
class StepProgress:
    """What the learner has done in one step."""

    ran: bool = False
    predicted: float | None = None
    """The first prediction; None if there was none."""
    prediction_right: bool | None = None
    """Whether the first prediction was right; None if there was none."""
    prediction_near: bool = False
    """Whether the first prediction was wrong, but nearly right."""
    checks: int = 0
    """How often a solution was checked."""
    solved: bool = False


@dataclass(frozen=True)
class Progress:
    """Progress by number of the step."""

    path: Path
    steps: Mapping[str, StepProgress]

    def of(self, number: str) -> StepProgress:
        """Progress in one step."""
        return self.steps.get(number, StepProgress())

    def after_run(self, number: str, predicted: float | None, right: bool | None, near: bool = False) -> Progress:
        """Return the progress after a run. Only the first prediction counts."""
        step = replace(self.of(number), ran=True)
        if step.predicted is None and predicted is not None:
            step = replace(step, predicted=predicted, prediction_right=right, prediction_near=near)
        return replace(self, steps={**self.steps, number: step})

    def after_check(self, number: str, solved: bool) -> Progress:
        """Return the progress after a check. A solved task stays solved."""
        step = self.of(number)
        step = replace(step, checks=step.checks + 1, solved=step.solved or solved)
        return replace(self, steps={**self.steps, number: step})

    def save(self) -> None:
        """Write the file atomically. Raises `UsageError`."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the folder {self.path.parent}: {error.strerror}") from error
        content = {"steps": {number: asdict(step) for number, step in self.steps.items()}}
        replace_files({self.path: (json.dumps(content, indent=1) + "\n").encode()})


def default_progress_file() -> Path:
    """Return the path of the file, in the folder of the store of results. Raises `UsageError` without a home."""
    return store_path().parent / FILE


def load_progress(path: Path | None) -> Progress:
    """Read the file; no file is no progress. Raises `UsageError` if it is damaged."""
    path = default_progress_file() if path is None else path
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        steps = {str(number): _step(fields) for number, fields in content["steps"].items()}
    except FileNotFoundError:
        steps = {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is no file of progress ({error}); remove it, or name another one with --progress"
        ) from error
    return Progress(path, steps)


def _step(fields: Mapping[str, Any]) -> StepProgress:
    return StepProgress(**fields)
