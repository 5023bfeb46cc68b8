"""Lets tests import the models and stand-ins that lie beside them, and parts the suite into lanes.

`--lane fast` runs what needs no compilation, and holds it to that; `--lane default` also what compiles; `--lane
thorough` everything: also what is marked `thorough`, tests that repeat for more cases what others showed.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Each of several workers would multiply its small matrices on all cores, and its threads wait for each other in loops.
# NumPy reads this when it is loaded, which is later.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "emulator")]

LANES = ("fast", "default", "thorough")
COMPILING = (
    "compilers",
    "docs",
    "emulator",
    "gpu",
    "hardware",
    "mutants",
    "studies",
    "variants",
    "test_an_operation_more.py",
    "test_backward_cli.py",
    "test_cli.py",
    "test_paged_cli.py",
    "test_softmax_cli.py",
)
"""Folders and files whose tests compile, but for those that are marked `compiles(False)`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lane", choices=LANES, default="default", help="which tests run (default: %(default)s)")


def pytest_configure(config: pytest.Config) -> None:
    from lanes import set_lane

    set_lane(config.getoption("--lane"))
    if config.getoption("--lane") == "fast":
        forbid_compiling()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lane = config.getoption("--lane")
    left_out = [item for item in items if not belongs(item, lane)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if belongs(item, lane)]


def belongs(item: pytest.Item, lane: str) -> bool:
    """Whether this lane runs the test."""
    if lane == "thorough":
        return True
    if item.get_closest_marker("thorough") is not None:
        return False
    return lane == "default" or not compiles(item)


def compiles(item: pytest.Item) -> bool:
    """Whether the test may ask for something compiled."""
    mark = item.get_closest_marker("compiles")
    if mark is not None:
        return mark.args != (False,)
    return item.path.is_relative_to(HERE) and item.path.relative_to(HERE).parts[0] in COMPILING


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


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of tests stay; whoever collects garbage later need not go through them every time."""
    gc.collect()
    gc.freeze()
