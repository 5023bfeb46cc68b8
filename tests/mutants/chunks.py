"""Different numbers of query rows: rows of a neighbour, of a padded layout, or aligned with other keys."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutants.patching import Mutant
from tests.mutants.planting import Replacement, in_kernel, in_plan, planted

_MOST = (
    "int most = 0;\n    for (unsigned n = 0; n < gridDim.z; ++n) most = max(most, chunks.cu_seqlens_q[n + 1] - "
    "chunks.cu_seqlens_q[n]);\n    ",
    "most = int32(0)\n        for n in range(cuda.gridDim.z):\n            most = max(most, int32(chunks[0][n + 1] - "
    "chunks[0][n]))\n        ",
)
"""The rows of the longest chunk, as `most`."""
_OWN = ("return {__ldg(", "return RaggedChunk(int32(")
_FIRST = ("- q_first, q_first, chunks.tokens};", "- q_first), q_first, chunks[1])")


def _in_types(bug: str, *pairs: tuple[Replacement | None, Replacement | None]) -> Iterator[Mutant]:
    """Planted where kernels read which rows a sequence has, and where they lie."""
    return planted("paged", bug, "_paged/chunks.cuh", "_paged/numba_chunks.py", pairs)


MUTANTS = (
    *_in_types(
        "rows begin where they would in padded Q",
        ((_OWN[0], _MOST[0] + _OWN[0]), (_OWN[1], _MOST[1] + _OWN[1])),
        (
            (_FIRST[0], "- q_first, sequence * most, chunks.tokens};"),
            (_FIRST[1], "- q_first), int32(sequence * most), chunks[1])"),
        ),
    ),
    *_in_types(
        "one row of the next sequence",
        (
            ("sequence + 1) - q_first, q_first,", "sequence + 1) - q_first + (sequence + 1u < gridDim.z), q_first,"),
            ("sequence + 1] - q_first), q", "sequence + 1] - q_first + (sequence + 1 < cuda.gridDim.z)), q"),
        ),
    ),
    *_in_types(
        "rows as many as the longest chunk has",
        ((_OWN[0], _MOST[0] + _OWN[0]), (_OWN[1], _MOST[1] + _OWN[1])),
        (
            ("{__ldg(chunks.cu_seqlens_q + sequence + 1) - q_first, q_first", "{most, q_first"),
            ("RaggedChunk(int32(chunks[0][sequence + 1] - q_first), q_first", "RaggedChunk(int32(most), q_first"),
        ),
    ),
    *_in_types(
        "lse at its padded place",
        (
            (
                "(size_t)(first_head + row / q_len) * tokens + q_first + row % q_len",
                "((size_t)blockIdx.z * heads + first_head + row / q_len) * (tokens / gridDim.z) + row % q_len",
            ),
            (
                "return head * own.tokens + token",
                "return (cuda.blockIdx.z * cuda.gridDim.y + head) * (own.tokens // cuda.gridDim.z) + token",
            ),
        ),
    ),
    *_in_types(
        "first head of a group for all rows",
        (
            ("* heads + row / q_len) * D", "* heads) * D"),
            ("(own.first_head + r // q_len) & MASK", "own.first_head & MASK"),
        ),
    ),
    *_in_types(
        "row and head exchanged",
        (
            ("(row % q_len) * heads + row / q_len)", "(row / q_len) * heads + row % q_len)"),
            (
                "(own.first_head + r // q_len) & MASK, (own.q_first + r % q_len) & MASK",
                "(own.first_head + r % q_len) & MASK, (own.q_first + r // q_len) & MASK",
            ),
        ),
    ),
    *in_kernel(
        "paged", "last tile of a chunk stored whole",
        ("store_tile(own.of(O), Q_tile, rows)", "store_tile(own.of(O), Q_tile, BR)"),
        ("store_rows(O, own, Q_tile, rows)", "store_rows(O, own, Q_tile, BR)"),
    ),
    *in_kernel(
        "paged", "causal from the first key on",
        ("limits.of_sequence(sequence, q_len, kv_len)", "limits.of_sequence(sequence, kv_len, kv_len)"),
        ("of_sequence(limits, sequence, q_len, kv_len)", "of_sequence(limits, sequence, kv_len, kv_len)"),
    ),
    *in_kernel(
        "paged", "keys of the sequence before",
        ("kv_len = lengths[sequence];", "kv_len = lengths[max(sequence - 1, 0)];"),
        ("kv_len = lengths[sequence]\n", "kv_len = lengths[max(sequence - 1, 0)]\n"),
    ),
    *in_plan(
        "paged", "blocks for the rows of the last sequence",
        "(row_tiles(p, sizes.Br), p.kv_heads, p.sequences)",
        "(max(1, -(-p.group * p.rows[-1] // sizes.Br)), p.kv_heads, p.sequences)",
    ),
)  # fmt: skip
