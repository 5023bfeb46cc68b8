"""FlashAttention-4's rows of `bench`, with a stand-in for its interface."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from harness.model.contenders import flash_attention_4, library_versions
from harness.model.contenders.flash_attention_4 import NAME
from harness.model.operation import operation_named
from harness.operations.attention import libraries as of_attention
from harness.operations.attention.libraries.flash_attention_4 import FlashAttention4
from harness.operations.attention.libraries.varlen_attention import NAME as TORCH_VARLEN
from harness.operations.attention_backward import libraries as of_gradients
from harness.operations.paged_attention import libraries as of_pages
from harness.operations.paged_attention.libraries.flash_attention_4 import FlashAttention4Paged
from tests.fakes import fake_flash_attention_4, fake_varlen
from tests.fakes.fake_torch import FakeTorch
from tests.gpu.test_libraries import SMALL, posed, verdicts

SIZES = {**SMALL, "dtype": "bfloat16"}
PACKAGED = pytest.mark.skipif(
    library_versions.package_version(NAME) is None, reason="the package flash-attn-4 is not installed here"
)


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The rows as they are where the package is installed."""
    FakeTorch().install(monkeypatch)
    fake_flash_attention_4.install(monkeypatch)
    for operation, contender in (
        ("attention", functools.partial(of_attention._contender, FlashAttention4)),
        ("attention-backward", functools.partial(of_gradients._contender, NAME)),
        ("paged-attention", functools.partial(of_pages._contender, FlashAttention4Paged)),
    ):
        monkeypatch.setitem(operation_named(operation).libraries, NAME, contender)  # type: ignore[arg-type]
    yield
    flash_attention_4.interface.cache_clear()


def verdict(operation: str, **fields: Any) -> str | None:
    return verdicts(posed(operation, **{**SIZES, **fields}), NAME)[NAME]


@pytest.mark.parametrize("lengths", [(20, 37), (37, 20)], ids=str)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"mask": "causal"},
        {"mask": "window:9,4"},
        {"mask": "causal+window:5", "sinks": True},
        {"softcap": 3.0, "scale": 0.7},
        {"mask": "documents:10+8"},
        {"mask": "causal+documents:10+1/7+9", "sinks": True},
        {"mask": "documents:3+5+11+window:4,2"},
    ],
    ids=str,
)
def test_the_forward_row_is_right(fields: dict[str, Any], lengths: tuple[int, int]) -> None:
    assert verdict("attention", q_len=lengths[0], kv_len=lengths[1], **fields) is None


ONE_BATCH_ENTRY = {name: size for name, size in SIZES.items() if name not in ("batch", "q_len", "kv_len")}
UNPADDED = (
    {"varlen": "5+0+12/7+2+14"},
    {"varlen": "5+0+12/7+2+0", "mask": "causal"},
    {"varlen": "5+7", "mask": "causal+window:3", "layout": "qkv", "kv_heads": 4},
    {"mask": "causal+varlen:1+1+9/20+4+9", "q_len": 11, "kv_len": 33},
)


@pytest.mark.parametrize("fields", [*UNPADDED, {**UNPADDED[0], "softcap": 3.0, "sinks": True}], ids=str)
def test_the_forward_row_is_right_on_unpadded_sequences(fields: dict[str, Any]) -> None:
    assert verdicts(posed("attention", **{**ONE_BATCH_ENTRY, **fields}), NAME) == {NAME: None}


@pytest.mark.parametrize(
    "fields", [*UNPADDED, {"mask": "causal+documents:10+1/7+9", "batch": 2, "q_len": 20, "kv_len": 37}], ids=str
)
def test_the_row_of_varlen_attn_is_right(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fake_varlen.install(monkeypatch)
    problem = posed("attention", **{**ONE_BATCH_ENTRY, **fields})
    assert verdicts(problem, TORCH_VARLEN) == {TORCH_VARLEN: None}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "sequences have one length: see PyTorch's other rows"),
        (
            {"mask": "prefix:3+documents:4+9"},
            "mask prefix:3 within sequences is not passed to it; causal and window are",
        ),
        ({"mask": "documents:4+9", "sinks": True}, "not passed to it: sinks"),
    ],
    ids=str,
)
def test_what_varlen_attn_does_not_take_is_refused(fields: dict[str, Any], reason: str) -> None:
    problem = posed("attention", **{**SIZES, **fields})
    assert verdicts(problem, TORCH_VARLEN) == {TORCH_VARLEN: f"unsupported: {reason}"}


@pytest.mark.parametrize("lengths", [(20, 37), (37, 20)], ids=str)
@pytest.mark.parametrize(
    "fields",
    [
        {"mask": "causal"},
        {"mask": "window:9,4", "kv_heads": 4},
        {"mask": "causal", "sinks": True},
        {"mask": "causal+documents:10+1/7+9"},
    ],
    ids=str,
)
def test_the_backward_row_is_right(fields: dict[str, Any], lengths: tuple[int, int]) -> None:
    assert verdict("attention-backward", q_len=lengths[0], kv_len=lengths[1], **fields) is None


@pytest.mark.parametrize("fields", [{}, {"q_len": 4}, {"lengths": "0+3+70", "q_len": 2}, {"table_len": 300}], ids=str)
def test_the_row_of_pages_is_right(fields: dict[str, Any]) -> None:
    problem = posed("paged-attention", **{"head_dim": 8, "lengths": "17+30+96", **fields})
    assert verdicts(problem, NAME) == {NAME: None}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dtype": "float32"}, "dtype is float32; it supports float16 and bfloat16"),
        ({"head_dim": 12}, "head_dim is 12; it supports multiples of 8 up to 256"),
        ({"scale": -1.0}, "scale is -1; it finds the largest score before it scales: above 0"),
        ({"mask": "prefix:6"}, "mask prefix:6 is not passed to it; causal, window, documents and varlen are"),
        ({"alibi": True}, "not passed to it: alibi"),
    ],
    ids=str,
)
def test_what_it_does_not_take_is_refused(fields: dict[str, Any], reason: str) -> None:
    assert verdict("attention", **fields) == f"unsupported: {reason}"


def test_without_its_package_there_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {NAME: 1, "torch-cudnn": 2}
    monkeypatch.setattr(library_versions, "package_version", {"nvidia-cutlass-dsl": "4.8"}.get)
    assert library_versions.where_installed(found, flash_attention_4.NEEDED) == {"torch-cudnn": 2}
    monkeypatch.setattr(library_versions, "package_version", {"nvidia-cutlass-dsl": "4.8", NAME: "4.0"}.get)
    assert library_versions.where_installed(found, flash_attention_4.NEEDED) == found


def test_versions_are_those_of_packages_and_of_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch, "__version__", "2.11.0", raising=False)
    monkeypatch.setattr(
        torch, "backends", type("B", (), {"cudnn": type("C", (), {"version": lambda: 91_904})}), raising=False
    )
    monkeypatch.setattr(library_versions, "package_version", {"quack-kernels": "0.6.5"}.get)
    assert library_versions.library_versions() == {"PyTorch": "2.11.0", "cuDNN": "9.19.4", "QuACK": "0.6.5"}


@PACKAGED
def test_the_package_takes_the_arguments_that_the_stand_in_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    real = flash_attention_4.interface()
    for stand_in, name in (
        (fake_flash_attention_4.forward, "flash_attn_func"),
        (fake_flash_attention_4.flash_attn_varlen_func, "flash_attn_varlen_func"),
        (fake_flash_attention_4.backward, "_flash_attn_bwd"),
    ):
        assert set(inspect.signature(stand_in).parameters) <= set(inspect.signature(getattr(real, name)).parameters)
