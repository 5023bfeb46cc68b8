from __future__ import annotations

from pathlib import Path

import pytest

from harness.compilers.ptxas import find_ptxas
from harness.model.discovery import discover
from harness.operations.attention.problem import Problem
from harness.studies.show.kernel_listing import list_kernels, render_kernels
from harness.support.errors import CompileError, UnsupportedProblem

PLUGINS = Path(__file__).parents[2] / "plugins"
PROBLEM = Problem(q_len=100, kv_len=100, head_dim=8)


def plugin(name: str, variant: str):
    return discover([PLUGINS / name], package="no_such_package_of_variants").registry.get(variant)


def test_a_kernel_shows_what_it_takes():
    (listing,) = list_kernels(plugin("one_thread_per_row.py", "one-thread-per-row"), PROBLEM, "sm_90")
    assert listing.compiled.entry == "one_thread_per_row"
    assert listing.compiled.arch == "sm_90"
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    assert 10 <= listing.resources.registers <= 255
    assert listing.resources.spill_store_bytes == 0
    line = next(x for x in render_kernels([listing], "source").splitlines() if x.startswith("one_thread_per_row"))
    assert line.split()[-4:] == [str(listing.resources.registers), "0", "0", "0"]


def test_local_arrays_are_shown_beside_spills():
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    text = render_kernels(list_kernels(plugin("local_arrays.py", "tiled"), PROBLEM, "sm_90"), "source")
    line = next(x for x in text.splitlines() if x.startswith("tiled"))
    assert line.split()[-4:-1] == ["0", "1,024", "0"]  # two arrays of 128 floats, and nothing spilled
    assert "arrays that are indexed by a variable" in text
    text = render_kernels(
        list_kernels(plugin("one_thread_per_row.py", "one-thread-per-row"), PROBLEM, "sm_90"), "source"
    )
    assert "local" not in text.splitlines()[0] and "indexed by a variable" not in text


def test_no_ptxas_is_said_and_not_taken_for_zero(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("harness.studies.show.kernel_listing.resources", lambda *args: None)
    listings = list_kernels(plugin("one_thread_per_row.py", "one-thread-per-row"), PROBLEM, "sm_90")
    text = render_kernels(listings, "source")
    assert "ptxas is not installed" in text
    line = next(x for x in text.splitlines() if x.startswith("one_thread_per_row"))
    assert line.split()[-4:] == ["-", "-", "-", "0"]


def test_source_and_ptx():
    listings = list_kernels(plugin("one_thread_per_row.py", "one-thread-per-row"), PROBLEM, "sm_90")
    assert "float m_new = fmaxf(m, s)" in render_kernels(listings, "source")
    assert ".target sm_90" in render_kernels(listings, "ptx")


def test_errors_go_through():
    with pytest.raises(CompileError, match='expected a ";"'):
        list_kernels(plugin("broken_kernels.py", "bad-source"), PROBLEM, "sm_90")
    with pytest.raises(UnsupportedProblem):
        list_kernels(plugin("one_thread_per_row.py", "one-thread-per-row"), Problem(dtype="float16"), "sm_90")
