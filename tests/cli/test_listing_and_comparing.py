"""Help, what is imported, and what `list` and `compare` print."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_lines import BROKEN, NAME, RIGHT, ROOT, SMALL, WRONG_CLAIM, harness

from harness.cli import build_parser, main
from harness.operations.attention.problem import Problem
from harness.studies.commands import COMMANDS, command_named
from harness.support.version import VERSION

# --- help, and what is imported --------------------------------------------------------------------------------------


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    parser = build_parser()
    yield "", parser
    (commands,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    yield from commands.choices.items()


def test_every_command_and_option_has_help():
    for name, parser in parsers():
        for action in parser._actions:
            if not isinstance(action, argparse._SubParsersAction):
                assert action.help, (name, action.dest)
        assert parser.description
        assert parser.format_help()


def test_the_commands_are_those_of_the_parser():
    assert [command_named(name).name for name in COMMANDS] == [name for name, _ in parsers() if name]
    (commands,) = [a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    assert all(choice.help for choice in commands._choices_actions)
    assert len(commands._choices_actions) == len(COMMANDS)


@pytest.mark.parametrize("arguments", [["--help"], ["compare", "--help"], ["run", "--help"]])
def test_help_is_no_error(arguments: list[str]):
    done = harness(*arguments)
    assert done.returncode == 0
    assert "usage: python -m harness" in done.stdout


def test_nothing_heavy_is_imported_to_list_variants():
    program = (
        "import sys; from harness.cli import main;"
        "assert main(['list']) == 0;"
        "heavy = {'llvmlite', 'numba', 'cupy', 'numpy', 'ml_dtypes', 'harness.studies.compare.command'};"
        "heavy &= set(sys.modules); assert not heavy, heavy;"
        "mine = [m for m in sys.modules if m.startswith(('harness.emulator', 'harness.gpu.',"
        "'harness.operations.attention.oracle',"
        "'harness.compilers.cupy.nvrtc', 'llvmlite'))]; assert not mine, mine"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- list ------------------------------------------------------------------------------------------------------------


def test_list_shows_what_is_registered(call):
    listed = json.loads(call("list", "--plugin", RIGHT, "--format", "json").out)["variants"]
    (mine,) = [variant for variant in listed if variant["name"] == NAME]
    assert mine == {
        "name": NAME,
        "algorithm": "custom",
        "backend": "cupy",
        "idea": "one thread per query row",
        "origin": f"plugin {RIGHT}",
        "operation": "attention",
    }
    table = call("list", "--plugin", RIGHT, "--variants", "one-*").out
    assert table.splitlines()[2].split()[:3] == [NAME, "custom", "cupy"]
    assert len(table.splitlines()) == 3


# --- compare ---------------------------------------------------------------------------------------------------------


def test_compare_counts_and_ranks(call):
    done = call("compare", *SMALL, "--plugin", RIGHT, "--variants", NAME, "--format", "json", "--causal", "--q-len", 30)
    assert (done.status, done.err) == (0, "")
    found = json.loads(done.out)
    wanted = {
        "batch": 1, "heads": 2, "kv_heads": 2, "q_len": 30, "kv_len": 20, "head_dim": 8,
        "dtype": "float32", "causal": True, "mask": "causal", "scale": 1 / math.sqrt(8),
        "softcap": None, "alibi": False, "bias": None, "sinks": False, "dropout": 0.0, "dropout_seed": 0,
        "layout": "bhsd",
    }  # fmt: skip
    assert found["problem"] == {**{term.field: term.off for term in Problem.TERMS}, **wanted}
    assert found["device"]["kind"] == "emulator"
    (row,) = found["rows"]
    assert (row["rank"], row["verdict"], row["reason"]) == (1, "pass", None)
    assert row["total_bytes"] == row["read_bytes"] + row["write_bytes"] > 0
    assert row["allocated_bytes"] == 2 * 30 * 8 * 4 + 2 * 30 * 4
    assert row["time_ms"] is None
    assert row["error_over_budget"] is not None


def test_what_goes_wrong_is_a_row_and_the_right_one_still_comes(call):
    arguments = [*SMALL, "--plugin", RIGHT, "--plugin", BROKEN, "--variants", "one-*,bad-*", "--step-limit", "100000"]
    done = call("compare", *arguments, "--format", "json")
    assert done.status == 1
    rows = {row["variant"]: row for row in json.loads(done.out)["rows"]}
    assert rows[NAME]["verdict"] == "pass"
    wanted = {
        "bad-source": ("error", 'expected a ";"'),
        "bad-address": ("error", "O"),
        "bad-loop": ("error", "--step-limit"),
        "bad-plan": ("error", "RuntimeError: the plan is not ready"),
        "bad-answer": ("fail", "were never written"),
        "bad-arguments": ("error", "zero"),
    }
    for name, (verdict, words) in wanted.items():
        assert rows[name]["verdict"] == verdict, rows[name]
        assert words in rows[name]["reason"], rows[name]
        assert rows[name]["rank"] is None
    assert rows["bad-source"]["total_bytes"] is None
    table = call("compare", *arguments)
    assert "Traceback" not in table.out + table.err
    assert "bad-plan: error: plan() failed: " in table.out


def test_a_claim_that_does_not_hold_fails_every_command_that_counts(call):
    problem = ["--heads", 1, "--q-len", 65, "--kv-len", 1, "--causal", "--device", "emulator"]
    mine = ["--plugin", WRONG_CLAIM, *problem]
    done = call("compare", *mine, "--variants", "wrong-claim,fa2-cupy", "--format", "json")
    assert done.status == 1
    rows = {row["variant"]: row for row in json.loads(done.out)["rows"]}
    assert (rows["fa2-cupy"]["verdict"], rows["fa2-cupy"]["claim_holds"]) == ("pass", True)
    wrong = rows["wrong-claim"]
    assert (wrong["verdict"], wrong["claim_holds"], wrong["rank"]) == ("fail", False, None)
    assert re.fullmatch(r"claims [\d,]+ bytes read and [\d,]+ written; counted: [\d,]+ and [\d,]+", wrong["reason"])
    assert wrong["error_over_budget"] <= 1  # the answer itself is right
    assert "wrong, +" in call("compare", *mine, "--variants", "wrong-claim").out
    assert call("traffic", "wrong-claim", *mine).status == 1
    sweep = ["traffic", "--sweep", "kv_len=1,65", "--variants", "wrong-claim", "--plugin", WRONG_CLAIM]
    done = call(*sweep, "--heads", 1, "--q-len", 65, "--causal", "--device", "emulator")
    assert done.status == 1
    assert "Claim does not hold: wrong-claim at 1, wrong-claim at 65." in done.out


def test_csv_and_markdown(call):
    arguments = ["compare", *SMALL, "--plugin", RIGHT, "--variants", NAME]
    (row,) = csv.DictReader(io.StringIO(call(*arguments, "--format", "csv").out))
    assert row["verdict"] == "pass"
    assert f"| {NAME}" in call(*arguments, "--format", "markdown").out


def test_same_seed_same_result_and_output_goes_to_the_file(call, tmp_path: Path):
    arguments = ["compare", *SMALL, "--plugin", RIGHT, "--variants", NAME, "--format", "json", "--seed", "3"]
    first = call(*arguments, "--threads", 1).out
    done = call(*arguments, "--threads", 2, "--output", tmp_path / "result.json")
    assert (done.status, done.out, done.err) == (0, "", "")
    assert (tmp_path / "result.json").read_text() == first
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_lengths(call):
    def lengths(*arguments: object) -> tuple[int, int]:
        selected = ["--plugin", RIGHT, "--variants", NAME, "--device", "emulator", "--head-dim", 4, "--format", "json"]
        problem = json.loads(call("compare", *selected, *arguments).out)["problem"]
        return problem["q_len"], problem["kv_len"]

    assert lengths("--seq-len", 5) == (5, 5)
    assert lengths("--seq-len", 5, "--q-len", 1) == (1, 5)
    assert lengths("--seq-len", 5, "--kv-len", 3) == (5, 3)
    assert lengths("--q-len", 2, "--kv-len", 3) == (2, 3)


def test_inputs_that_prove_nothing_are_no_pass_unless_that_is_allowed(call):
    words = ("compare", "--plugin", RIGHT, "--variants", NAME, "--device", "emulator", "--regime", "far-negative")
    undecided = call(*words, "--format", "json")
    (row,) = json.loads(undecided.out)["rows"]
    assert (undecided.status, row["verdict"], row["rank"]) == (1, "undecided", None)
    assert row["power"] < 1 and row["nearest_wrong_answer"] in row["reason"] and "--regime normal" in row["reason"]
    allowed = call(*words, "--allow-undecided", "--format", "json")
    assert (allowed.status, json.loads(allowed.out)["rows"]) == (0, [row])


def test_json_names_the_version_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == VERSION
