"""Which problems the table has, in groups, and who runs each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from harness import BackwardProblem, PagedProblem, Problem, SoftmaxProblem
from harness.model.problem import BaseProblem

DTYPE = "bfloat16"
TOKENS = 16384
"""Rows of Q of all sequences together, as in FlashAttention's benchmarks: shorter sequences come in larger batches."""
HEADS = 16
EQUAL = {"none": "none", "causal": "causal"}
DOCUMENTS = "3000+500+1200+4000+64+2300+800+1700+420+2400"
"""Lengths of sequences that have TOKENS rows together."""
PAST = ("torch-math", "torch-efficient")
"""PyTorch's rows that are no match on a Hopper GPU in any of these problems."""


@dataclass(frozen=True)
class Group:
    """Problems that share a table of the page."""

    name: str
    """For `--only`."""
    title: str
    problems: tuple[BaseProblem, ...]
    variants: tuple[str, ...]
    left_out: tuple[str, ...]
    """Libraries' rows of `bench` that are not run."""
    further: dict[str, Callable[[Any], bool]] = field(default_factory=dict)
    """Variants of some of the problems: those for which the function holds. Their compilers take long."""

    def variants_of(self, problem: BaseProblem) -> tuple[str, ...]:
        """Names of the variants that run this problem."""
        return (*self.variants, *(name for name, holds in self.further.items() if holds(problem)))


def _batch(seq_len: int, tokens: int = TOKENS) -> int:
    return max(1, tokens // seq_len)


def _equal(kind: type[Problem], seq_len: int, head_dim: int, mask: str, **fields: Any) -> Problem:
    given = {"batch": _batch(seq_len), "heads": HEADS, **fields}
    return kind(q_len=seq_len, kv_len=seq_len, head_dim=head_dim, mask=mask, dtype=DTYPE, **given)


def _forward() -> Iterator[Problem]:
    for head_dim, lengths in (
        (64, (512, 1024, 2048, 4096, 8192, 16384)),
        (96, (1024, 4096, 16384)),
        (128, (512, 1024, 2048, 4096, 8192, 16384)),
        (192, (1024, 4096, 16384)),
        (256, (1024, 4096, 16384)),
    ):
        for seq_len in lengths:
            for mask in EQUAL:
                yield _equal(Problem, seq_len, head_dim, mask)
    shared = {"heads": 32, "kv_heads": 8}
    for seq_len in (1024, 4096, 16384):
        yield _equal(Problem, seq_len, 128, "causal", batch=_batch(seq_len, TOKENS // 2), **shared)
    yield _equal(Problem, 4096, 64, "causal", batch=2, **shared)


def _masks() -> Iterator[Problem]:
    documents = f"documents:{DOCUMENTS}"
    yield _equal(Problem, 16384, 64, "causal+window:1024")
    yield _equal(Problem, 16384, 128, "causal+window:1024")
    yield _equal(Problem, 16384, 128, "window:512,512")
    yield _equal(Problem, 16384, 128, documents)
    yield _equal(Problem, 16384, 128, f"causal+{documents}")
    yield _equal(Problem, 8192, 128, "causal", softcap=50.0)
    yield _equal(Problem, 8192, 256, "causal", softcap=50.0, heads=8, kv_heads=4)
    yield _equal(Problem, 8192, 64, "causal+window:127", sinks=True, batch=1, heads=64, kv_heads=8)


def _varlen() -> Iterator[Problem]:
    """Sequences of one length as a dense batch, with rows outside heads and unpadded; and of different lengths."""
    seq_len = 4096
    for head_dim in (64, 128):
        for mask in EQUAL:
            for layout in ("bhsd", "bshd"):
                yield _equal(Problem, seq_len, head_dim, mask, layout=layout)
            for lengths in ("+".join([f"{seq_len}"] * _batch(seq_len)), DOCUMENTS):
                yield Problem(heads=HEADS, head_dim=head_dim, mask=mask, varlen=lengths, dtype=DTYPE)


def _backward() -> Iterator[Problem]:
    for head_dim in (64, 96, 128):
        for seq_len in (2048, 8192):
            for mask in EQUAL:
                yield _equal(BackwardProblem, seq_len, head_dim, mask)
    for seq_len in (2048, 8192):
        batch = _batch(seq_len, TOKENS // 2)
        yield _equal(BackwardProblem, seq_len, 128, "causal", batch=batch, heads=32, kv_heads=8)


def _decode() -> Iterator[Problem]:
    for batch, keys, heads, kv_heads, head_dim in (
        (1, 131072, 32, 8, 128),
        (1, 131072, 16, 1, 128),
        (4, 65536, 8, 8, 128),
        (8, 32768, 32, 4, 128),
        (16, 8192, 32, 8, 64),
        (32, 8192, 64, 8, 128),
        (64, 4096, 32, 8, 128),
        (128, 2048, 64, 8, 128),
    ):
        yield Problem(batch=batch, heads=heads, kv_heads=kv_heads, q_len=1, kv_len=keys, head_dim=head_dim, dtype=DTYPE)


def _pages() -> Iterator[PagedProblem]:
    for batch, keys, heads, kv_heads, page_size in (
        (4, 16384, 32, 8, 128),
        (8, 8192, 64, 8, 64),
        (32, 2048, 32, 8, 16),
        (64, 2048, 16, 4, 16),
    ):
        lengths = (keys,) * batch
        yield PagedProblem(
            heads=heads, kv_heads=kv_heads, lengths=lengths, head_dim=128, page_size=page_size, dtype=DTYPE
        )
    ragged = (32768, 9000, 5000, 3000, *range(300, 3600, 300))
    yield PagedProblem(heads=32, kv_heads=8, lengths=ragged, head_dim=128, page_size=16, dtype=DTYPE)


def _softmax() -> Iterator[SoftmaxProblem]:
    for columns in (512, 2048, 8192, 32768, 131072, 262144):
        yield SoftmaxProblem(rows=2**27 // columns, columns=columns, dtype=DTYPE)


def _in_numba(problem: Problem) -> bool:
    return problem.head_dim in (64, 128) and problem.q_len == 4096 and problem.group == 1


GROUPS: tuple[Group, ...] = (
    Group(
        "forward", "Forward", tuple(_forward()), ("fa3-cupy", "fa2-mma-cupy"), (*PAST, "torch-flex", "cudnn"),
        {"fa3-numba": _in_numba},
    ),
    Group(
        "backward", "Backward", tuple(_backward()), ("bwd-fa3-cupy", "bwd-mma-cupy"), (*PAST, "torch-flex"),
    ),
    Group(
        "masks", "Masks, caps and sinks", tuple(_masks()), ("fa3-cupy", "fa2-mma-cupy"),
        (*PAST, "torch-flash", "torch-cudnn"),
    ),
    Group(
        "varlen", "Unpadded sequences", tuple(_varlen()), ("fa3-cupy", "fa3-numba"),
        (*PAST, "torch-flex", "cudnn"),
    ),
    Group(
        "decode", "Decoding: one query row per sequence", tuple(_decode()), ("split-kv-cupy", "lean-cupy"),
        (*PAST, "torch-flex", "cudnn"),
    ),
    Group("pages", "Decoding from pages", tuple(_pages()), ("paged-split-kv-cupy", "paged-lean-cupy"), ()),
    Group(
        "softmax", "Softmax of rows", tuple(_softmax()),
        ("softmax-pipelined-cupy", "softmax-on-chip-cupy", "softmax-online-cupy", "softmax-safe-cupy"), (),
    ),
)  # fmt: skip
"""In the order of the page."""
