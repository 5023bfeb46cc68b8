"""The command line with --operation paged-attention, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness.cli import main

pytestmark = pytest.mark.compiles

PAGED = ("--operation", "paged-attention")
SMALL = (*PAGED, "--lengths", "0+5+70", "--heads", "2", "--kv-heads", "1", "--head-dim", "24", "--page-size", "32")


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(words)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.thorough
def test_compare_shows_the_problem_and_its_fields(capsys: pytest.CaptureFixture[str]):
    status, out, _ = call(capsys, "compare", *SMALL, "--variants", "paged-*", "--format", "json")
    told = json.loads(out)
    assert status == 0 and told["problem"]["lengths"] == [0, 5, 70]
    assert (told["problem"]["pages"], told["problem"]["table_len"], told["problem"]["batch"]) == (5, 3, 3)
    for row in told["rows"]:
        assert row["verdict"] == "pass" and row["claimed_bytes"] == row["total_bytes"]
    status, out, _ = call(capsys, "compare", *SMALL, "--variants", "paged-split-kv-cupy", "--prefix", "40")
    assert status == 0
    assert out.startswith("paged attention, 3 sequences of 0+5+70 keys, the first 40 shared, 4 of 5 pages of 32, ")


def test_a_variant_of_16_bits_refuses_float32(capsys: pytest.CaptureFixture[str]):
    words = ("--dtype", "float32", "--variants", "paged-split-kv-cupy")
    status, out, _ = call(capsys, "compare", *PAGED, *words)
    assert status == 2 and "choose float16 or bfloat16" in out


def test_traffic_speaks_of_the_table_and_sweeps_over_lengths(capsys: pytest.CaptureFixture[str]):
    status, out, _ = call(capsys, "traffic", "paged-split-kv-cupy", *SMALL)
    assert status == 0 and "Claim: exact." in out and "\ntable " in out and "\nlengths " in out
    words = ("--sweep", "lengths=5,5+70", "--variants", "paged-cupy", "--format", "csv")
    sizes = ("--heads", "2", "--kv-heads", "1", "--head-dim", "24", "--page-size", "32")
    status, out, _ = call(capsys, "traffic", *PAGED, *sizes, *words)
    assert status == 0 and "\n5+70,paged-cupy," in out


def test_fuzz_replays_a_case(capsys: pytest.CaptureFixture[str]):
    case = {
        "operation": "paged-attention",
        "lengths": [5, 0],
        "head_dim": 24,
        "page_size": 32,
        "regime": "hot",
        "seed": 3,
    }
    status, out, _ = call(capsys, "fuzz", "paged-cupy", "--replay", json.dumps(case))
    assert status == 0 and "2 sequences of 5+0 keys" in out
    status, out, _ = call(capsys, "fuzz", "paged-cupy", "--replay", json.dumps({**case, "q_lengths": [3, 1]}))
    assert status == 0 and ", 3+1 rows, " in out


def test_a_variant_without_packed_rows_refuses_them(capsys: pytest.CaptureFixture[str]):
    words = ("--q-lengths", "3+0+1", "--lengths", "5", "--batch", "3", "--variants", "paged-lean-cupy")
    status, out, _ = call(capsys, "compare", *PAGED, *words)
    assert status == 2 and "it does not support q_lengths (not listed in Variant.takes)" in out


def saved(folder: Path, **others: np.ndarray) -> tuple[str, ...]:
    """Three sequences in a pool of 10 pages, each array in a file, as `run` takes them."""
    generator = np.random.default_rng(1)
    pool = generator.standard_normal((2, 10, 1, 32, 24)).astype(np.float16)
    arrays = {
        "q": generator.standard_normal((3, 2, 2, 24)).astype(np.float16), "k": pool[0], "v": pool[1],
        "table": np.array([[3, 7, 0], [3, 2, -1], [9, 9, 99]], np.int32), "lengths": np.array([70, 33, 0], np.int32),
    } | others  # fmt: skip
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    files = [word for name in arrays for word in (f"--{name}", str(folder / f"{name}.npy"))]
    return ("run", "paged-split-kv-cupy", *PAGED, *files, "--out", str(folder / "O.npy"))


def test_run_takes_a_pool_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    status, out, _ = call(capsys, *saved(tmp_path), "--format", "json")
    told = json.loads(out)
    assert status == 0 and told["problem"]["lengths"] == [70, 33, 0] and told["problem"]["pages"] == 10
    assert told["problem"]["prefix"] == 32
    # Page 3 is shared, all of it; pages 7 and 0 are the first sequence's, 2 the second's.
    keys, row_bytes = 32 + 32 + 6 + 1, 24 * 2
    assert told["rows"][0]["compulsory_bytes"] == 2 * keys * row_bytes + 4 * (3 + 2 + 3) + 2 * 3 * 2 * 2 * row_bytes
    O = np.load(tmp_path / "O.npy")
    assert O.shape == (3, 2, 2, 24) and (O[2] == 0).all() and (O[:2] != 0).all()


TABLE, LENGTHS = np.array([[3, 7, 0], [3, 2, -1], [9, 9, 9]], np.int32), np.array([70, 33, 0], np.int32)


@pytest.mark.compiles(False)
@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"table": np.where(TABLE == 7, 77, TABLE)}, "sequence 0 has page 77 at position 1 of the table; the pool has"),
        ({"table": np.where(TABLE == 2, -5, TABLE)}, "sequence 1 has page -5 at position 1 of the table"),
        ({"lengths": LENGTHS + 64}, "length 134; its row of the table has 3 places for pages of 32 rows, which is 96"),
        ({"lengths": LENGTHS - 1}, "sequence 2 has length -1; it has to be at least 0"),
        ({"lengths": LENGTHS[:2]}, "Q has 3 sequences, the table 3 and lengths 2"),
        ({"lengths": LENGTHS[:, None]}, "they have to be Q (sequence, head, row, column), K (page, head, row, column)"),
        ({"table": TABLE.astype(np.int64)}, "holds int64; it has to be int32. Convert it with .astype(numpy.int32)"),
        ({"v": np.zeros((10, 1, 32, 25), np.float16)}, "K has shape (10, 1, 32, 24) and V (10, 1, 32, 25)"),
        ({"q": np.zeros((3, 2, 2, 23), np.float16)}, "the rows of Q have 23 elements and those of K and V 24"),
        ({n: np.zeros((10, 1, 20, 24), np.float16) for n in "kv"}, "page_size is 20; it has to be a multiple of 16"),
        ({"q": np.zeros((3, 2, 2, 24), np.float32)}, "all must have the same dtype"),
    ],
)  # fmt: skip
def test_a_table_that_leads_astray_is_one_line(
    others: dict[str, np.ndarray], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    others = {name: array.astype(np.int32) if name == "table" and array.dtype != np.int64 else array
              for name, array in others.items()}  # fmt: skip
    status, out, error = call(capsys, *saved(tmp_path, **others))
    assert status == 2 and not out and said in error and len(error.splitlines()) == 1
    assert not (tmp_path / "O.npy").exists()


@pytest.mark.compiles(False)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--lengths", "17+x"), "'x' is not a whole number"),
        (("--lengths", "5+6", "--batch", "3"), "batch is 3, and lengths has 2; leave out batch"),
        (("--pages", "3"), "pages is 3; the sequences are in 277 pages of 16"),
        (("--page-size", "20"), "page_size is 20; it has to be a multiple of 16 from 16 to 256"),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]):
    status, out, error = call(capsys, "compare", *PAGED, *words)
    assert status == 2 and not out and said in error and len(error.splitlines()) == 1
