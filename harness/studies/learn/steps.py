"""Finds the steps of the path, and makes variants of their kernels."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.model.discovery import REPOSITORY_ROOT, load_module
from harness.model.lesson import Lesson
from harness.model.plan import Plan
from harness.model.problem import BaseProblem
from harness.model.traffic import Traffic
from harness.model.variant import Variant
from harness.support.errors import PluginError, UsageError
from harness.support.exception_place import raise_interrupt, where_and_what
from harness.support.suggestion import did_you_mean

PACKAGE = "variants._path"
PREFIXES = ("step_", "side_")
"""Beginnings of the names of a step's folder."""


def find_lessons(folder: Path | None = None) -> dict[str, Lesson]:
    """Return all steps by number: the main path in order, then the side paths by letter.

    `folder` contains further steps. Raises `PluginError` if a step does not import, or for a number that is taken.
    """
    found: dict[str, Lesson] = {}
    for name, module in _modules(folder):
        lesson = getattr(module, "LESSON", None)
        if not isinstance(lesson, Lesson):
            raise PluginError(f"step {name} has no LESSON = Lesson(...) in its __init__.py")
        if lesson.number in found:
            raise PluginError(f"steps {found[lesson.number].folder.name} and {name} both have number {lesson.number!r}")
        found[lesson.number] = lesson
    return dict(sorted(found.items(), key=lambda item: (not item[0].isdigit(), len(item[0]), item[0])))


def lesson_numbered(number: str, lessons: dict[str, Lesson]) -> Lesson:
    """Return the step of this number or name. Raises `UsageError` if there is none."""
    for lesson in lessons.values():
        if number in (lesson.number, lesson.name):
            return lesson
    names = [lesson.name for lesson in lessons.values()]
    hint = did_you_mean(number, names) if not number.isdigit() else "."
    raise UsageError(f"there is no step {number!r}{hint.rstrip('.')}; steps: {', '.join(lessons)}")


def variant_of(lesson: Lesson, backend: str, kernels: tuple[Any, ...], claimed: bool = True) -> Variant:
    """Return these kernels, in the order of the step's plan, as a variant."""

    def plan(problem: BaseProblem) -> Plan:
        return lesson.plan(problem, kernels)

    def claim(problem: BaseProblem) -> Traffic | None:
        return lesson.claim(problem)

    return Variant(
        name=f"path-{lesson.name}-{backend}",
        plan=plan,
        operation=lesson.operation,
        algorithm=f"path-{lesson.name}",
        backend=backend,
        idea=lesson.idea,
        supports=lesson.supports,
        claim=claim if claimed else None,
        takes=(),
        numerics=lesson.numerics,
        fails_in=lesson.fails_in,
    )


def cuda_variant(lesson: Lesson) -> Variant:
    """Return the step's CUDA kernels as a variant."""
    return variant_of(lesson, "cupy", lesson.cuda(lesson.kernel))


def numba_variant(lesson: Lesson) -> Variant:
    """Return the step's Numba kernels as a variant."""
    return variant_of(lesson, "numba", lesson.numba())


def _modules(folder: Path | None) -> Iterator[tuple[str, ModuleType]]:
    root = str(REPOSITORY_ROOT)
    if root not in sys.path:
        sys.path.append(root)
    spec = importlib.util.find_spec(PACKAGE)
    places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    for place in places:
        for name in _step_folders(place):
            yield name, _imported(name, lambda name=name: importlib.import_module(f"{PACKAGE}.{name}"))
    if folder is not None:
        if not folder.is_dir():
            raise UsageError(f"--steps {folder}: there is no such folder")
        for name in _step_folders(folder):
            yield (
                name,
                _imported(
                    name, lambda name=name: load_module(f"attention_sandbox_{name}", folder / name / "__init__.py")
                ),
            )


def _step_folders(folder: Path) -> list[str]:
    return sorted(
        each.name for each in folder.iterdir() if each.name.startswith(PREFIXES) and (each / "__init__.py").is_file()
    )


def _imported(name: str, load: Any) -> ModuleType:
    try:
        module: ModuleType = load()
        return module
    except BaseException as error:
        raise_interrupt(error)
        raise PluginError(f"step {name} could not be imported: {where_and_what(error)}") from error
