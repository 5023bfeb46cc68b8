"""The libraries' rows without a GPU: what they hand on, with stand-ins for PyTorch and cuDNN, comes to the answer."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.execution.judging.spot_check import check_spots, choose_spots
from harness.model.contenders.flash_attention_4 import NAME as FLASH_ATTENTION_4
from harness.model.operation import draw_inputs, operation_named, operation_of
from harness.model.problem import BaseProblem
from harness.operations.attention.libraries import flex_attention, scaled_dot_product
from harness.operations.attention.problem import SCORE_FEATURES
from harness.operations.attention_backward.libraries.autograd import FlexGradients
from harness.operations.softmax.libraries import QuackSoftmax, TorchSoftmax, _contender
from harness.support.errors import ProblemError, UnsupportedProblem
from tests.fakes import fake_cudnn, fake_torch
from tests.fakes.fake_torch import FakeTorch, attention

SDPA = ("torch-math", "torch-efficient", "torch-flash", "torch-cudnn")
SMALL = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 20, "kv_len": 37, "head_dim": 8}
OTHER_MASKS = (
    "window:9,4",
    "causal+window:12",
    "documents:10+8/20+1+5",
    "prefix:6",
    "blocks:6x5,3",
    "blocks:6x5,3,heads+causal",
    "flashmask:2,1",
    "causal+flashmask:2,3",
    "causal+documents:7+20+window:9",
)


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    fake = FakeTorch()
    fake.install(monkeypatch)
    fake_cudnn.install(monkeypatch)
    for operation in ("attention", "attention-backward", "paged-attention"):
        # It has tests of its own.
        monkeypatch.delitem(operation_named(operation).libraries, FLASH_ATTENTION_4, raising=False)  # type: ignore[arg-type]
    return fake


def posed(operation: str, **fields: Any) -> BaseProblem:
    return operation_named(operation).problem(**fields)


def verdicts(problem: BaseProblem, *names: str) -> Mapping[str, str | None]:
    """What is wrong with each row's answers: None, or the reason, or why it does not take the problem."""
    sets = [draw_inputs(problem, "normal", seed) for seed in (0, 1)]
    # bfloat16 lies as its bits in the GPU's memory.
    arrays = [{name: x.view(np.uint16) if x.dtype.kind == "V" else x for name, x in each.items()} for each in sets]
    stage = SimpleNamespace(problem=problem, inputs=arrays, context=SimpleNamespace(stream=SimpleNamespace(ptr=0)))
    told = {}
    for name, contender_on in operation_of(problem).libraries.items():
        if names and name not in names:
            continue
        try:
            contender = contender_on(stage)
        except UnsupportedProblem as refusal:
            told[name] = f"unsupported: {refusal.reason}"
            continue
        answers = [contender.outputs(number) for number in range(len(sets))]
        reasons = [check_spots(choose_spots(problem, x), y).reason for x, y in zip(sets, answers)]
        told[name] = next((reason for reason in reasons if reason is not None), None)
    return told


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mask", OTHER_MASKS)
def test_any_mask_is_handed_on(mask: str, dtype: str) -> None:
    told = verdicts(posed("attention", mask=mask, dtype=dtype, **SMALL))
    assert {name for name, reason in told.items() if reason is None} >= {
        "torch-math", "torch-efficient", "torch-cudnn", "torch-flex",
    }  # fmt: skip
    assert told["torch-flash"] == f"unsupported: it does not support mask {mask_of(mask)}, and takes no tensor"


def mask_of(text: str) -> Any:
    return posed("attention", mask=text, **SMALL).mask  # type: ignore[attr-defined]


@pytest.mark.parametrize("lengths", [(20, 20), (20, 37), (37, 20), (1, 37)], ids=str)
def test_a_causal_mask_is_aligned_bottom_right(lengths: tuple[int, int], torch: FakeTorch) -> None:
    q_len, kv_len = lengths
    fields = {**SMALL, "q_len": q_len, "kv_len": kv_len}
    told = verdicts(posed("attention", mask="causal", dtype="float16", **fields))
    assert [told[name] for name in SDPA] == [None] * 4
    assert told["torch-flex"] == "unsupported: PyTorch's other rows have mask causal"
    handed = {each["backend"]: each for each in torch.handed}
    how = {name: (each["is_causal"], type(each["attn_mask"]).__name__) for name, each in handed.items()}
    if q_len == 1:
        assert set(how.values()) == {(False, "NoneType")}, "the last row sees every key"
    elif q_len == kv_len:
        assert set(how.values()) == {(True, "NoneType")}
    else:
        own, tensor = (False, "str"), (False, "FakeTensor")
        assert how["FLASH_ATTENTION"] == own
        assert how["EFFICIENT_ATTENTION"] == (own if q_len < kv_len else tensor)
        assert [how[name] for name in ("MATH", "CUDNN_ATTENTION")] == [tensor, tensor]
    assert (told["cudnn"] is None) == (q_len != kv_len and q_len > 1)


def test_a_back_end_s_reasons_are_what_it_warns_of(monkeypatch: pytest.MonkeyPatch, torch: FakeTorch) -> None:
    problem = posed("attention", **SMALL)

    def refuses(*tensors: Any, **options: Any) -> None:
        warnings.warn("Flash attention has been runtime disabled. (Triggered internally at x.cpp:1.)", stacklevel=1)
        warnings.warn("Expected 16 bits. (Triggered internally at x.cpp:2.)", stacklevel=1)
        raise RuntimeError("out of\n memory" if torch.backend == "MATH" else "No available kernel. Aborting.")

    monkeypatch.setattr(sys.modules["torch.nn.functional"], "scaled_dot_product_attention", refuses)
    told = verdicts(problem, *SDPA)
    assert told.pop("torch-math") == "unsupported: out of memory"
    assert set(told.values()) == {"unsupported: Expected 16 bits."}


@pytest.mark.parametrize("mask", ["window:9,4", "causal+window:12"])
def test_the_front_end_takes_bands(mask: str) -> None:
    assert verdicts(posed("attention", mask=mask, dtype="bfloat16", **SMALL), "cudnn") == {"cudnn": None}
    told = verdicts(posed("attention", mask=mask, dtype="float32", **SMALL), "cudnn")
    assert told == {"cudnn": "unsupported: dtype is float32; it supports float16 and bfloat16"}


@pytest.mark.parametrize(
    "fields",
    [
        {"softcap": 3.0},
        {"alibi": True},
        {"sinks": True, "mask": "causal", "q_len": 45},
        {"softcap": 3.0, "alibi": True, "sinks": True, "mask": "documents:9+20"},
        {"bias": "heads,q_len,kv_len"},
        {"bias": "heads,kv_len", "mask": "causal"},
        {"softcap": 3.0, "alibi": True, "bias": "q_len", "sinks": True},
    ],
    ids=str,
)
def test_flex_attention_takes_what_scores_become(fields: dict[str, Any]) -> None:
    told = verdicts(posed("attention", **{**SMALL, **fields}))
    assert told.pop("torch-flex") is None
    features = " and ".join(name for name in SCORE_FEATURES if name in fields)
    assert set(told.values()) == {f"unsupported: not passed to it: {features}"}


@pytest.mark.parametrize("mask", ["window:20+causal", "documents:50+20/10+30+30", "blocks:16x8,3,heads"])
@pytest.mark.parametrize("lengths", [(70, 70), (70, 83)], ids=str)
def test_flex_attention_skips_hidden_tiles_and_masks_only_mixed_ones(
    mask: str, lengths: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[fake_torch.BlockMask] = []
    seen_in = fake_torch.BlockMask.seen
    monkeypatch.setattr(flex_attention, "TILE", 8)
    monkeypatch.setattr(fake_torch.BlockMask, "seen", lambda *args: made.append(args[0]) or seen_in(*args))
    q_len, kv_len = lengths
    problem = posed("attention", **{**SMALL, "q_len": q_len, "kv_len": kv_len}, mask=mask)
    assert verdicts(problem, "torch-flex") == {"torch-flex": None}
    rows, keys = -(-q_len // 8), -(-kv_len // 8)
    seen = np.zeros((problem.batch, problem.heads, rows * 8, keys * 8), bool)
    for entry, head in np.ndindex(*seen.shape[:2]):
        own = problem.mask.of_sequence(entry).of_head(head)
        visible = own.visible(np.arange(q_len)[:, None], np.arange(kv_len)[None], q_len, kv_len)
        seen[entry, head, :q_len, :kv_len] = visible
    tiles = seen.reshape(*seen.shape[:2], rows, 8, keys, 8)
    whole, some = tiles.all(axis=(3, 5)), tiles.any(axis=(3, 5))
    assert (made[0].whole == whole).all() and (made[0].mixed == some & ~whole).all()
    assert whole.any() and not some.all()


@pytest.mark.parametrize("operation", ["attention", "attention-backward"])
def test_what_could_not_be_checked_is_refused(operation: str) -> None:
    told = verdicts(posed(operation, dropout=0.1, **SMALL))
    reason = "it drops weights by its own random numbers, so its result could not be checked"
    assert set(told.values()) == {f"unsupported: {reason}"}


def test_a_mask_that_would_be_too_large_a_tensor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaled_dot_product, "MOST_BYTES", 2 * 20 * 48 * 4 - 1)
    told = verdicts(posed("attention", mask="documents:10+8/20+1", **SMALL))
    assert told["torch-math"].startswith("unsupported: mask documents:10+8/20+1 would be a tensor of")
    assert told["torch-flex"] is None
    monkeypatch.setattr(scaled_dot_product, "MOST_BYTES", 2 * 20 * 48 * 4)
    assert verdicts(posed("attention", mask="documents:10+8/20+1", **SMALL), "torch-math") == {"torch-math": None}


@pytest.mark.parametrize("mask", ["none", "causal", "causal+window:12", "documents:10+8/20+1+5", "flashmask:2,1"])
@pytest.mark.parametrize("lengths", [(20, 20), (20, 37), (37, 20)], ids=str)
def test_gradients(mask: str, lengths: tuple[int, int]) -> None:
    q_len, kv_len = lengths
    fields = {**SMALL, "kv_heads": 4, "q_len": q_len, "kv_len": kv_len, "dtype": "bfloat16"}
    problem = posed("attention-backward", **fields, mask="none")
    if mask != "none":
        problem = posed("attention-backward", **fields, mask=mask_of(mask).clipped_to(2, q_len, kv_len))
    told = verdicts(problem)
    assert "cudnn" not in told
    refused = {name for name, reason in told.items() if reason is not None}
    # What `math` makes of 16 bits is its own affair.
    assert refused - {"torch-math"} == ({"torch-flex"} if mask in ("none", "causal") else {"torch-flash"})


def test_gradients_of_heads_that_share_keys() -> None:
    told = verdicts(posed("attention-backward", mask="causal", dtype="float32", **SMALL))
    assert told == {
        "torch-math": None,
        "torch-efficient": "unsupported: it supports only as many heads of K and V as of Q",
        "torch-flash": None,
        "torch-cudnn": None,
        "torch-flex": "unsupported: PyTorch's other rows have mask causal",
    }


def test_gradients_are_of_the_problem_s_own_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rows see a few keys, dP and dO.O all but cancel, and what an O of one's own is off by is as large."""
    problem = posed("attention-backward", mask="causal+window:1", dtype="bfloat16", **{**SMALL, "q_len": 37})
    assert verdicts(problem, "torch-flex") == {"torch-flex": None}

    def without_the_difference(self: Any, results: Any, given: Any) -> Any:
        return (given["dO"],)

    monkeypatch.setattr("tests.fakes.fake_torch.attention", rounded_twice)
    assert verdicts(problem, "torch-flex") == {"torch-flex": None}
    monkeypatch.setattr(FlexGradients, "_cotangents", without_the_difference)
    assert "off by more than their budget" in (verdicts(problem, "torch-flex")["torch-flex"] or "")


def rounded_twice(*arguments: Any, **named: Any) -> Any:
    """An O that is off by some roundings, and gradients that are of it."""
    O, lse = attention(*arguments, **named)
    Q, K, V, scale, seen = arguments
    other = fake_torch.as_tensor((O.astype(np.float32) * (1 + 3 * 2.0**-8)).astype(O.dtype))
    other.gradients = lambda dO, dlse=0.0: fake_torch.gradients(dO, Q, K, V, other, lse, scale, seen, 0.0, dlse)
    return other, lse


def test_gradients_of_blocks_of_each_head_are_no_problem_yet() -> None:
    with pytest.raises(ProblemError, match="the same for all heads"):
        posed("attention-backward", mask="blocks:6x5,3,heads", **SMALL)


@pytest.mark.parametrize("fields", [{}, {"q_len": 4}, {"lengths": "0+3+70", "q_len": 2}, {"table_len": 300}], ids=str)
def test_pages(fields: dict[str, Any]) -> None:
    assert verdicts(posed("paged-attention", head_dim=8, **{"lengths": "17+30+96", **fields})) == {"cudnn": None}


def test_pages_without_the_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cudnn", None)
    told = verdicts(posed("paged-attention", lengths="17"))
    assert told == {"cudnn": "unsupported: needs the package nvidia-cudnn-frontend, which is not installed"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_softmax_of_rows(dtype: str, monkeypatch: pytest.MonkeyPatch, torch: FakeTorch) -> None:
    quack = fake_torch.module(softmax_fwd=lambda X: torch.softmax(X, dim=1))
    monkeypatch.setitem(sys.modules, "quack", fake_torch.module())
    monkeypatch.setitem(sys.modules, "quack.softmax", quack)
    rows = operation_named("softmax").libraries
    for name, make in (("torch-softmax", TorchSoftmax), ("quack", QuackSoftmax)):
        monkeypatch.setitem(rows, name, functools.partial(_contender, name, make))  # type: ignore[arg-type]
    told = verdicts(posed("softmax", rows=5, columns=37, dtype=dtype))
    assert told == {"torch-softmax": None, "quack": None}
