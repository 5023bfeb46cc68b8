"""Lets tests import the models and stand-ins that lie beside them, and parts the suite into lanes.

`--lane fast` runs what needs no compilation, and holds it to that; `--lane default` also what compiles, each claim
once. `--lane thorough` makes each claim of each variant: also what is marked `thorough`. What is marked `exhaustive`
repeats what others show, for more cases, which is hours of compiling: `--lane exhaustive` runs all of it, the thorough
lane a sample of each test's cases, the same ones every time. `--lane cute` runs only what is marked `needs_cute`, which
needs packages that no other lane does.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import pytest

# Each of several workers would multiply its small matrices on all cores, and its threads wait for each other in loops.
# NumPy reads this when it is loaded, which is later.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Tests compare what is written to standard error, however long it takes.
os.environ["ATTENTION_SANDBOX_PROGRESS"] = "off"

# Whoever keeps all results of their own does not want those of tests among them.
os.environ.pop("ATTENTION_SANDBOX_KEEP", None)


class Unrewritten:
    """Imports the harness as it is: pytest would rewrite the assertions of every module of a package with a plugin."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, path, target) if name.startswith(("harness.", "variants.")) else None


sys.meta_path.insert(0, Unrewritten)

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "fakes"), str(HERE / "emulator")]

CUTE = "cute"
LANES = ("fast", "default", "thorough", "exhaustive", CUTE)
SAMPLED = 20
"""Of so many cases of an exhaustive test the thorough lane runs one."""
COMPILING = (
    "cli",
    "compilers",
    "docs",
    "emulator",
    "gpu",
    "hardware",
    "mutants",
    "ptx",
    "studies",
    "variants",
    "test_an_operation_more.py",
)
"""Folders and files whose tests compile, but for those that are marked `compiles(False)`."""

CACHE_BYTES = 4 * 1024**3
"""Limit of the tests' cache: a run of the thorough lane compiles more than the 512 MiB that a user's keeps."""

ALLOCATED_BETWEEN_COLLECTIONS = 1_000_000
"""As in the processes that plan: a compiler makes millions of small objects, and most of them stay."""

LONGEST = (
    "test_a_variant_more.py",
    "test_workers_cli.py",
    "test_workers.py",
    "test_score_term_page.py",
    "test_bias_cli.py",
    "test_notebooks.py",
    "test_pytest_plugin.py",
)
"""Files whose tests take half a minute or more each: they begin first, so that none of them is the last to end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lane", choices=LANES, default="default", help="which tests run (default: %(default)s)")


def pytest_configure(config: pytest.Config) -> None:
    from lanes import set_lane

    use_own_cache()
    set_lane(config.getoption("--lane"))
    if config.getoption("--lane") == "fast":
        forbid_compiling()


def use_own_cache() -> None:
    """Give the tests a cache of their own, without the failures that earlier runs on this machine have stored.

    Compiled kernels stay in it from one run of the tests to the next. It has room for those of a whole run: in a
    smaller one each would make way before the next run comes to it. Workers and nested runs inherit the variables.
    """
    from harness.support.cache import DIRECTORY_VARIABLE, LIMIT_VARIABLE, default_cache

    directory = default_cache().directory
    if DIRECTORY_VARIABLE in os.environ or directory is None:
        return
    directory = directory.with_name(f"{directory.name}-tests")
    shutil.rmtree(directory / "failures", ignore_errors=True)
    os.environ[DIRECTORY_VARIABLE] = str(directory)
    os.environ.setdefault(LIMIT_VARIABLE, str(CACHE_BYTES))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files unread that have nothing for the fast lane: importing them takes longer than many of its tests."""
    if config.getoption("--lane") != "fast" or collection_path.suffix != ".py" or not in_compiling(collection_path):
        return None
    return "compiles(False)" not in collection_path.read_text() or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--lane") == CUTE:
        require_cute()
    items.sort(key=lambda item: item.path.name not in LONGEST)
    chosen = chosen_by(items, config.getoption("--lane"))
    left_out = [item for item in items if item not in chosen]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item in chosen]


def chosen_by(items: Iterable[pytest.Item], lane: str) -> set[pytest.Item]:
    """What this lane runs."""
    items = [item for item in items if (item.get_closest_marker("needs_cute") is not None) == (lane == CUTE)]
    chosen, repeated = set[pytest.Item](), dict[str, list[pytest.Item]]()
    for item in items:
        if item.get_closest_marker("exhaustive") is not None:
            repeated.setdefault(item.nodeid.partition("[")[0], []).append(item)
        elif item.get_closest_marker("thorough") is None or lane in ("thorough", "exhaustive"):
            chosen.add(item)
    if lane == "thorough":
        chosen.update(*map(sample, repeated.values()))
    elif lane == "exhaustive":
        chosen.update(*repeated.values())
    return {item for item in chosen if not compiles(item)} if lane == "fast" else chosen


def require_cute() -> None:
    """Raise `pytest.UsageError` with the command that installs the packages of this lane, if one is missing."""
    from variants._cute import INSTALL, versions

    if versions() is None:
        raise pytest.UsageError(f"the lane {CUTE} tests FlashAttention-4's own kernels, which need {INSTALL}")


def sample(cases: list[pytest.Item]) -> list[pytest.Item]:
    """One of so many, and one at least; which ones, their names decide, so that another case changes few others."""
    drawn = sorted(cases, key=lambda case: zlib.crc32(case.nodeid.encode()))
    return drawn[: -(-len(cases) // SAMPLED)]


def compiles(item: pytest.Item) -> bool:
    """Whether the test may ask for something compiled."""
    mark = item.get_closest_marker("compiles")
    if mark is not None:
        return mark.args != (False,)
    return in_compiling(item.path)


def in_compiling(path: Path) -> bool:
    """Whether tests of this file compile where no mark says otherwise."""
    return path.is_relative_to(HERE) and path.relative_to(HERE).parts[0] in COMPILING


def forbid_compiling() -> None:
    """Let whatever asks for something compiled fail, also where the cache has it."""
    from harness.support.cache import Cache, Key

    cached = Cache.cached

    def refuse(self: Cache, kind: str, key: Key, build: Callable[[], bytes]) -> bytes:
        if build.__module__.partition(".")[0] == "harness":
            pytest.fail(f"a test of the fast lane asks for a compiled {kind}; mark it with pytest.mark.compiles")
        return cached(self, kind, key, build)

    Cache.cached = refuse  # type: ignore[method-assign]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Planners of this process begin with what their variants will import: else each of them spends a second on it."""
    from harness.execution.isolation import server

    server.PRELOADED += ["cupy", "numba.cuda"]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """All that is made while tests are collected stays; nobody need look for garbage there, then or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(ALLOCATED_BETWEEN_COLLECTIONS)
        gc.enable()
