"""`compare --invariance`: what bits depend on, held against what the variant declares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli import main
from harness.text.column_meanings import MEANINGS

PLUGIN = Path(__file__).parents[2] / "plugins" / "one_thread_per_row.py"
SMALL = ("--heads", "2", "--q-len", "3", "--kv-len", "20", "--head-dim", "8", "--device", "emulator")
LSE = "lse[(long long)head * N_q + i] = m + logf(l);"
AFTER_HEAD_2 = LSE.replace("m + logf(l)", "(m + logf(l)) * (gridDim.y > 2 ? 1.0000001f : 1.0f)")
AFTER_ROW_10 = LSE.replace("m + logf(l)", "(m + logf(l)) * (N_q > 10 ? 1.0000001f : 1.0f)")
WITH_TILES = """
def tiled(problem, tile=None):
    made = plan(problem)
    (launch,) = made.launches
    tau = launch.args[-2] * np.float32(1.0 if tile is None or tile["Bc"] == 16 else 1.0000001)
    args = (*launch.args[:-2], tau, launch.args[-1])
    return Plan((Launch(KERNEL, launch.grid, launch.block, args),), made.buffers)
"""
TILES = 'tiles=lambda problem: [{"Bc": 16}, {"Bc": 32}, {"Bc": 8}], '


def compared(
    folder: Path, capsys: pytest.CaptureFixture[str], status: int, *replaced: tuple[str, str], more: str = ""
) -> dict[str, dict[str, object]]:
    """What `compare --invariance` finds for the plugin with some words replaced, by kind."""
    text = PLUGIN.read_text()
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    path = folder / "changed.py"
    path.write_text(text.replace("def register", f"{more}\n\ndef register"))
    words = ("--plugin", str(path), "--variants", "one-thread-per-row", *SMALL)
    assert main(["compare", "--invariance", *words, "--format", "json"]) == status
    (found,) = json.loads(capsys.readouterr().out)["invariance"]
    assert found["holds"] is (status == 0)
    assert main(["compare", "--invariance", *words]) == status
    table = capsys.readouterr().out
    assert ("declares invariant_to 'batch', but" in table) is (status == 1)
    return {kind["kind"]: kind for kind in found["kinds"]}


def declares(*kinds: str) -> tuple[str, str]:
    return 'idea="one thread per query row"', f"invariant_to={kinds!r}"


def test_a_kernel_of_one_order_depends_on_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found = compared(tmp_path, capsys, 0)
    assert {kind: of["ulps"] for kind, of in found.items()} == {"batch": 0.0, "splits": None, "padding": 0.0}
    assert [kind for kind, of in found.items() if of["declared"]] == ["batch"]
    assert found["splits"]["reason"] == "the variant offers no other tile sizes"


@pytest.mark.parametrize("declared", [True, False])
def test_bits_that_depend_on_the_batch_fail_if_declared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], declared: bool
):
    replaced = (LSE, AFTER_HEAD_2), declares(*(("batch",) if declared else ()))
    found = compared(tmp_path, capsys, int(declared), *replaced)
    assert found["batch"]["ulps"] in (1.0, 2.0) and found["padding"]["ulps"] == 0.0
    assert found["batch"]["change"] == "with 3 sequences more"
    assert found["batch"]["differing"].endswith("of 6 elements of lse")


def test_bits_that_depend_on_the_padding(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found = compared(tmp_path, capsys, 0, (LSE, AFTER_ROW_10))
    assert found["padding"]["ulps"] in (1.0, 2.0) and found["batch"]["ulps"] == 0.0
    assert found["padding"]["change"] == "after 63 rows more"


def test_bits_that_depend_on_tiles_of_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    replaced = ("plan=plan,", f"plan=tiled, {TILES}"), declares("batch", "padding")
    found = compared(tmp_path, capsys, 0, *replaced, more=WITH_TILES)
    assert found["splits"]["ulps"] and found["splits"]["change"] in ("Bc=8", "Bc=32")


@pytest.mark.compiles(False)
def test_every_column_has_a_meaning():
    columns = ("batch", "splits", "padding", "own tile / fewest bytes", "own tile / least time")
    assert set(columns) <= set(MEANINGS)
