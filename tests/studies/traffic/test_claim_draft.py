"""`traffic --claim-draft`: a formula that equals the counts."""

from __future__ import annotations

import dataclasses

import pytest

from harness.cli import main
from harness.emulator.executor import EmulatorExecutor
from harness.model.discovery import discover
from harness.model.traffic import Traffic
from harness.operations.attention.problem import Problem
from harness.studies.traffic.claim_draft import PLAIN_SIZES, ClaimDraft, DraftedLine, draft_claim, draft_report
from harness.support.errors import UsageError

PROBLEM = Problem(dtype="float32")


def test_a_draft_equals_the_claim_of_the_variant_itself():
    variant = discover().registry.get("row-wise-cupy")
    draft = draft_claim(variant, PROBLEM, EmulatorExecutor())
    assert draft.is_complete and draft.held_out == 3 and not draft.unlike
    names: dict[str, object] = {"Traffic": Traffic}
    exec(draft_report(draft).paragraphs()[0].lines, names)
    for sizes in (PLAIN_SIZES, {"batch": 2, "heads": 8, "kv_heads": 4, "q_len": 72, "kv_len": 1000, "head_dim": 32}):
        problem = dataclasses.replace(PROBLEM, **sizes)
        assert names["claim"](problem) == variant.claim(problem)
    assert names["claim"](dataclasses.replace(PROBLEM, alibi=True)) is None


def test_a_buffer_without_a_form_is_left_as_a_comment():
    lines = (DraftedLine("Q", False, "p.q_len"), DraftedLine("S", True, None))
    code = draft_report(ClaimDraft("any", lines, 11, 0, (), False)).paragraphs()[0].lines
    assert "        # + ...  S: no product of sizes" in code
    compile(code, "draft", "exec")


def test_what_cannot_be_drafted_is_refused(capsys: pytest.CaptureFixture[str]):
    variant = discover().registry.get("row-wise-cupy")
    with pytest.raises(UsageError, match="without alibi"):
        draft_claim(variant, dataclasses.replace(PROBLEM, alibi=True), EmulatorExecutor())
    with pytest.raises(UsageError, match=r"fa2-mma-cupy does not run on a problem .*: dtype is float32"):
        draft_claim(discover().registry.get("fa2-mma-cupy"), PROBLEM, EmulatorExecutor())
    assert main(["traffic", "--claim-draft"]) == 2
    assert "--claim-draft needs the name of a variant" in capsys.readouterr().err
