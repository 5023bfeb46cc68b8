"""The figures that the pages of the path print beside published ones are computed again."""

from __future__ import annotations

import re

import numpy as np
import pytest
from path_steps import LESSONS

from harness import Problem
from harness.execution.planning.variant_calls import claimed_traffic, make_plan
from harness.model.discovery import discover
from scripts.shown_outputs import ROOT

MIB = 2**20
LENGTHS = (512, 1024, 2048, 4096, 8192)


def rows(number: str, first: str) -> list[list[str]]:
    """Cells of the rows of a step's page whose first cell matches."""
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in LESSONS[number].page.splitlines())
    return [line for line in cells if re.fullmatch(first, line[0])]


def half(n: int) -> Problem:
    return Problem(heads=1, q_len=n, kv_len=n, head_dim=64, dtype="float16")


def numbers(values: np.ndarray) -> str:
    return ", ".join(f"{value:.4f}" for value in values)


def test_memory_of_standard_attention() -> None:
    three_pass = discover().registry.get("three-pass-cupy")
    for n, (shown, _, computed, allocated) in zip(LENGTHS, rows("1", r"\d+"), strict=True):
        assert int(shown) == n
        assert float(computed) == (2 * n * n + n * 64) * 2 / MIB
        assert float(allocated) == make_plan(three_pass, half(n)).allocated_bytes(half(n)) / MIB


def test_memory_without_S() -> None:
    printed = {512: 18, 1024: 34, 2048: 65, 4096: 129, 8192: 257}
    for n, line in zip(LENGTHS, rows("5", r"\d+"), strict=True):
        output, standard = n * 64 * 2 / MIB, (2 * n * n + n * 64) * 2 / MIB
        assert [float(line[2]), float(line[3])] == [output, standard]
        assert [float(line[4]), float(line[5])] == [standard / output, printed[n]]
        assert standard / output == 2 * n / 64 + 1


def test_traffic_of_standard_attention() -> None:
    S, row = 2048 * 2048 * 2, 2048 * 64 * 2
    page = LESSONS["1"].page
    assert f"{3 * row:,} bytes" in page and f"{4 * S:,} bytes" in page
    assert f"{3 * row + 4 * S:,} bytes = {(3 * row + 4 * S) / MIB:.2f} MiB" in page
    assert f"{4 * row + 4 * S:,} bytes = {(4 * row + 4 * S) / MIB:.2f} MiB" in page
    claim = claimed_traffic(discover().registry.get("three-pass-cupy"), half(2048))
    assert claim is not None
    counted = (claim.read_bytes + claim.write_bytes) / MIB
    assert counted == 32 + 16 + 0.5 and f"counts {counted:.2f} MiB" in page


@pytest.mark.compiles(False)
def test_where_exponentials_end() -> None:
    page = " ".join(LESSONS["2"].page.split())
    assert f"is {np.log(float(np.finfo(np.float32).max)):.4f}" in page
    assert f"{np.exp(100):.4g}".replace("e+43", " x 10^43") in page
    assert f"exp({np.log(np.finfo(np.float64).max):.2f})" in page
    assert f"from {np.ceil(100 * np.log(65504)) / 100:.2f} on" in page or f"from {np.log(65504):.2f} on" in page
    weights = np.exp(np.array([1, 2, 3, 5, 4]) - 5.0)
    assert numbers(weights / weights.sum()) in page


@pytest.mark.compiles(False)
def test_worked_rows() -> None:
    page = LESSONS["3"].page
    piece, correction = np.exp(-1) + 1, np.exp(2 - 4)
    assert f"{piece:.4f} x {correction:.4f} + {piece:.4f} = {piece * correction + piece:.4f}" in page
    total = np.exp(np.array([3, 1, 2, 4]) - 4.0).sum()
    assert f"| {total:.4f} |" in page and f"| {total * np.exp(-1):.4f} |" in page
    weights = np.exp(np.array([1, 2, 3, 4]) - 4.0)
    assert numbers(weights / weights.sum()) in page

    scores, values = np.array([2, 3, 5, 4.0]), np.array([10, 20, 30, 40.0])
    m, l, o = -np.inf, 0.0, 0.0
    for at, shown in ((0, "2, 3"), (2, "5, 4")):
        s, v = scores[at : at + 2], values[at : at + 2]
        m_new = max(m, s.max())
        l = l * np.exp(m - m_new) + np.exp(s - m_new).sum()
        o = o * np.exp(m - m_new) + np.exp(s - m_new) @ v
        m = m_new
        assert rows("5", shown)[0][1:4] == [f"{m:.0f}", f"{l:.4f}", f"{o:.4f}"]
    assert rows("5", "o / l")[0][3] == f"{o / l:.4f}"


@pytest.mark.compiles(False)
def test_the_worked_example_of_two_tiles() -> None:
    K, V = (
        np.array([re.findall(r"\d", row) for row in re.findall(r"\[[\d,]+\]", text)], float)
        for text in re.findall(r"With K = (.*) and V = (.*?)\. The", LESSONS["6"].page, re.DOTALL)[0]
    )
    scores = K @ np.array([1, 0, 2, 1.0])
    for name, end in (("first tile", 4), ("second tile", 8)):
        m = scores[:end].max()
        p = np.exp(scores[:end] - m)
        (line,) = rows("6", name)
        assert line[1] == ", ".join(f"{s:.0f}" for s in scores[end - 4 : end])
        assert line[2:5] == [f"{m:.0f}", f"{p.sum():.4f}", numbers(p @ V[:end])]
    assert rows("6", "O")[0][4] == numbers(p @ V / p.sum())


@pytest.mark.compiles(False)
def test_run_times() -> None:
    page = (ROOT / "docs" / "path.md").read_text()
    line = next(line for line in page.splitlines() if line.startswith("| 8192 |"))
    naive, flash = (float(cell) for cell in line.split("|")[2:4])
    flops = 4 * 8192**2 * 64
    assert f"{flops / 1e9:.1f} GFLOP" in page
    assert f"{flops / flash / 1e9:.2f} TFLOP/s" in page and f"reaches {flops / naive / 1e9:.2f}" in page
