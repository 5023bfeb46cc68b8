"""Unpadded sequences: rows and keys of a neighbour taken for a sequence's own."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutants.patching import Mutant, Patch
from tests.mutants.planting import CUDA, NUMBA, Replacement, in_kernel, in_plan, in_split_kv, planted

_TYPES = ("_features/sequences.cuh", "_features/numba_sequences.py")
_KEYS_BEHIND = ("__ldg(cu_seqlens_k + sequence + 1) - k_first, true}", "cu_seqlens_k[sequence + 1] - k_first")
_ROWS_BEHIND = ("__ldg(cu_seqlens_q + sequence + 1) - q_first;", "cu_seqlens_q[sequence + 1] - q_first)")


def in_types(algorithm: str) -> tuple[Mutant, ...]:
    """Planted where kernels read where a sequence begins."""
    return (
        *planted(
            algorithm, "lengths of K read from cu_seqlens_q", *_TYPES,
            (
                (
                    (_KEYS_BEHIND[0], "__ldg(cu_seqlens_q + sequence + 1) - q_first, true}"),
                    (_KEYS_BEHIND[1], "cu_seqlens_q[sequence + 1] - q_first"),
                ),
            ),
        ),
        *planted(
            algorithm, "keys begin where rows do", *_TYPES,
            (
                (
                    ("k_first = __ldg(cu_seqlens_k + sequence);", "k_first = __ldg(cu_seqlens_q + sequence);"),
                    ("k_first = cu_seqlens_k[sequence]", "k_first = cu_seqlens_q[sequence]"),
                ),
            ),
        ),
        *planted(
            algorithm, "one key of the next sequence", *_TYPES,
            (
                (
                    (_KEYS_BEHIND[0], "__ldg(cu_seqlens_k + sequence + 1) - k_first + 1, true}"),
                    (_KEYS_BEHIND[1], "cu_seqlens_k[sequence + 1] - k_first + 1"),
                ),
            ),
        ),
        *planted(
            algorithm, "sequences begin one row late", *_TYPES,
            (
                (
                    ("{ return q_first + of_sequence; }",
                     "{ return q_first + of_sequence + (q_first > 0 && of_sequence == 0); }"),
                    ("return own.q_first + of_sequence", "return own.q_first + of_sequence + (own.q_first > 0)"),
                ),
            ),
        ),
        *planted(
            algorithm, "lengths of the sequence before", *_TYPES,
            (
                (
                    (_ROWS_BEHIND[0],
                     "__ldg(cu_seqlens_q + max(sequence, 1u)) - __ldg(cu_seqlens_q + max(sequence, 1u) - 1);"),
                    (_ROWS_BEHIND[1], "cu_seqlens_q[max(sequence, 1)] - cu_seqlens_q[max(sequence, 1) - 1])"),
                ),
            ),
        ),
    )  # fmt: skip


def _in_hopper(
    bug: str, files: tuple[str, str], cuda: Replacement, numba: Replacement, sanitize: bool = False
) -> Iterator[Mutant]:
    """Planted in `fa3`, in a file of CUDA's and in one of Numba's."""
    yield from planted("fa3", bug, *files, ((cuda, numba),), sanitize)


_OF_SPLITS, _ROWS_OF_SPLITS = "attention/split_kv/sequences.cuh", "attention/split_kv/rows.cuh"
_OWN = "const Own own = at(blockIdx.z, row / heads, q_len, kv_len);"
_BEFORE = "cu_seqlens_k + max(blockIdx.z, 1u)"
IN_SPLIT_KV = (
    # Dao-AILab/flash-attention issue 2842: the early exit of sequences without keys.
    in_split_kv(
        "lse of a sequence without keys where a padded one has it",
        ("lse + row.number, O_split",
         "lse + (own.kv_len > 0 ? row.number\n"
         ": ((size_t)blockIdx.z * heads + row.head) * sequences.longest(q_len) + row.query), O_split"),
    ),
    # pytorch/pytorch issue 194167: the stride of sequences of O is 0 where they are packed.
    in_split_kv("splits of all sequences put together in the first one's O",
                 ("row.head, own.row(row.query))", "row.head, row.query)")),
    in_split_kv(
        "lse padded to the longest sequence",
        ("number = (size_t)head * q_len + own.row(query),",
         "number = ((size_t)blockIdx.z * heads + head) * most_rows + query,", _OF_SPLITS),
    ),
    # Dao-AILab/flash-attention pull requests 1192 and 1455: the length of another sequence, or of all.
    in_split_kv("as many splits as the sequence before has",
                 (_OWN, f"Own own = {_OWN.partition('= ')[2]}\n"
                        f"if (own.is_there) own.kv_len = __ldg({_BEFORE}) - __ldg({_BEFORE} - 1);", _OF_SPLITS)),
    in_split_kv("a sequence's splits end with all keys",
                 ("rows, own_len, own.kv_len);\n", "rows, own_len, kv_len);\n"),
                 ("min(split_first + SPLIT, high_end), low_end",
                  "min(split_first + SPLIT, min(high_end, own.kv_len)), low_end")),
    in_split_kv("rows of the first head alone between two sequences' results",
                 (" + (size_t)own.row(0) * (kv_heads * group);", " + (size_t)own.row(0);")),
    in_split_kv("results of a sequence looked for behind one head of those before",
                 ("stat = (size_t)own.row(0) * heads + row;", "stat = (size_t)own.row(0) + row;", _OF_SPLITS)),
    in_split_kv("splits as far apart as the longest sequence has rows",
                 ("kv_heads * (group * q_len)) + first_stat",
                  "kv_heads * (group * sequences.longest(q_len))) + first_stat")),
    in_split_kv("queries counted through heads of the longest sequence",
                 ("{own_rows[0] % own_len, own_rows[1] % own_len}",
         "{own_rows[0] % sequences.longest(q_len), own_rows[1] % sequences.longest(q_len)}")),
    in_split_kv("rows of Q counted through a dense group",
                 ("row / q_len * head_stride + row % q_len * row_stride", "row * row_stride", _ROWS_OF_SPLITS)),
    in_split_kv("V of the sequence's first row",
                 ("layout.V_rows(V, 0, own.batch, head, own.key(0))",
                  "layout.V_rows(V, 0, own.batch, head, own.row(0))",
                  _ROWS_OF_SPLITS)),
    in_split_kv(
        "lse of a row that sees no key is 0",
        ("if (lane == 0) *lse = m + logf(l);",
         "if (lane == 0) *lse = l == 0.0f ? 0.0f : m + logf(l);", "_mma/combine.cuh"),
        ("if (t == 0) *lse = m + logf(l);", "if (t == 0) *lse = l == 0.0f ? 0.0f : m + logf(l);", "_mma/combine.cuh"),
    ),
    Mutant(
        "blocks for the mean length", f"split-kv-{CUDA}",
        (Patch("attention/split_kv/__init__.py", "blocks(p.group * longest, BR), _most",
               "blocks(p.group * -(-p.q_len // sequences), BR), _most"),),
    ),
)  # fmt: skip

_PLACES = "_mma_backward/scoring.cuh", "_mma_backward/numba_rows_of_sequence.py"
_GRADIENTS = ("_mma_backward/keys.cu", "_mma_backward/numba_keys.py")
GRADIENTS_ON_TENSOR_CORES = (
    *in_types("bwd-mma"),
    *planted(
        "bwd-mma", "no fragment of dQ more for each sequence", "_mma_backward/dq.cuh", _PLACES[1],
        (
            (
                ("(first_row / 16 + blockIdx.z)", "first_row / 16"),
                ("uint32(uint32(uint32(first_row) >> uint32(4)) + uint32(cuda.blockIdx.z))",
                 "uint32(uint32(first_row) >> uint32(4))"),
            ),
        ),
    ),
    *planted(
        "bwd-mma", "rows of Q from the first sequence's on", *_PLACES,
        (
            (
                ("{ return first() + of_sequence; }", "{ return of_sequence; }"),
                ("    def first_row(noted):\n        return int32(load_word(noted))",
                 "    def first_row(noted):\n        return int32(load_word(noted)) * int32(0)"),
            ),
        ),
    ),
    *planted(
        "bwd-mma", "a head of K counted through the sequences", *_GRADIENTS,
        (
            (
                ("kv_head = sequence.number((size_t)blockIdx.z * gridDim.x + blockIdx.x, blockIdx.x)",
                 "kv_head = (size_t)blockIdx.z * gridDim.x + blockIdx.x"),
                ("first = uint64(kv_head_across()) *",
                 "first = uint64(cuda.blockIdx.z * cuda.gridDim.x + cuda.blockIdx.x) *"),
            ),
        ),
    ),
    *planted(
        "bwd-mma", "causal mask aligned by all rows and keys", *_GRADIENTS,
        (
            (
                ("limits.of_block<BC>(own_keys, kv_len, q_len)",
                 "limits.of_block<BC>(own_keys, kv_len, kv_len - all_keys + all_rows)"),
                ("of_block(limits, cuda.blockIdx.z, first_key, keys, kv_len, q_len)",
                 "of_block(limits, cuda.blockIdx.z, first_key, keys, kv_len, int32(kv_len - all_keys + all_rows))"),
            ),
        ),
    ),
    *planted(
        "bwd-mma", "first keys of the next sequence of dK overwritten", *_GRADIENTS,
        (
            (
                ("blockIdx.x, key), chip.K_tile, keys);", "blockIdx.x, key), chip.K_tile, min(BC, all_keys - key));"),
                ("stride_of(dK), K_tile, stored)",
                 "stride_of(dK), K_tile, int32(min(int32(BC), int32(all_keys - own_key))))"),
            ),
        ),
        sanitize=True,  # on the emulator the block that owns these keys writes them later
    ),
    *(
        Mutant(
            "blocks of rows for the mean length", f"bwd-mma-{language}",
            (Patch("_mma_backward/__init__.py", "return blocks(rows, END_ROWS),",
                   "return blocks(-(-problem.q_len // sequences), END_ROWS),"),),
        )
        for language in (CUDA, NUMBA)
    ),
)  # fmt: skip

MUTANTS = (
    *in_types("fa2"),
    *in_kernel(
        "fa2", "causal mask aligned by all rows and keys",
        ("limits.of_block<BR>(block, own.q_len, own.kv_len)",
         "limits.of_block<BR>(block, own.kv_len - kv_len + q_len, own.kv_len)"),
        ("limits_of_block(limits, block, own.q_len, own.kv_len)",
         "limits_of_block(limits, block, own.kv_len - kv_len + q_len, own.kv_len)"),
    ),
    *in_kernel(
        "fa2", "keys of the next sequence in the last tile",
        ("keys = min(BC, own.kv_len - first_key);\n\n        // Line 7",
         "keys = min(BC, kv_len - own.key(0) - first_key);\n\n        // Line 7"),
        ("tile.first_key, min(BC, own.kv_len - tile.first_key)",
         "tile.first_key, min(BC, kv_len - key_in_K(own, tile.first_key))"),
        (("limits.of_block<BR>(block, own.q_len, own.kv_len)",
          "limits.of_block<BR>(block, own.q_len, min((own.kv_len + BC - 1) / BC * BC, kv_len - (int)own.key(0)))"),
         ("limits_of_block(limits, block, own.q_len, own.kv_len)",
          "limits_of_block(limits, block, own.q_len, min(own.kv_len + BC - 1, kv_len - key_in_K(own, 0)))")),
    ),
    *in_kernel(
        "fa2", "first rows of the next sequence of O overwritten",
        ("O_tile, rows);\n\n    // Lines 13", "O_tile, min(BR, q_len - own.row(first_row)));\n\n    // Lines 13"),
        ("row_in_Q(own, first_row), O_tile, rows)",
         "row_in_Q(own, first_row), O_tile, min(BR, q_len - row_in_Q(own, first_row)))"),
        sanitize=True,  # on the emulator the block that owns these rows writes them later
    ),
    *in_kernel(
        "fa2", "lse of the first sequence for all",
        ("if (t < rows) lse[first_global_row + t]", "if (t < rows) lse[first_global_row - own.row(0) + t]"),
        ("lse[batch, head, row_in_Q(own, first_row) + t]", "lse[batch, head, first_row + t]"),
    ),
    *in_plan("fa2", "blocks for the mean length", "blocks(sequence_extents(p)[1], tile.Br))",
             "blocks(-(-p.q_len // sequence_extents(p)[0]), tile.Br))"),
    *in_types("fa2-mma"),
    *in_kernel(
        "fa2-mma", "causal mask aligned by all rows and keys",
        ("limits.of_block<BR>(block, sequence.q_len, sequence.kv_len)",
         "limits.of_block<BR>(block, sequence.kv_len - kv_len + q_len, sequence.kv_len)"),
        ("        q_len, kv_len = own.q_len, own.kv_len\n",
         "        q_len, kv_len = int32(own.kv_len - kv_len + q_len), own.kv_len\n"),
    ),
    *in_kernel(
        "fa2-mma", "first rows of the next sequence of O overwritten",
        ("lse, first, min(BR, sequence.q_len - anew(first_row))",
         "lse, first, min(BR, q_len - sequence.row(anew(first_row)))"),
        ("        rows = int32(min(BR, own.q_len - first_row))\n",
         "        rows = int32(min(BR, q_len - row_in_Q(own, first_row)))\n"),
        sanitize=True,  # on the emulator the block that owns these rows writes them later
    ),
    *in_kernel(
        "fa2-mma", "a head of K counted through the sequences",
        ("kv_head = sequence.number(head_index, head) / group;", "kv_head = head_index / group;"),
        ("uint64(head_number // uint32(group))", "uint64(head_index_across() // uint32(group))"),
    ),
    *_in_hopper(
        "keys of the sequence before its own", ("_hopper/pipeline.cuh", "attention/fa3/numba_producer.py"),
        ("load_K(K.tile(step), rows, rows.own.key(tile.first_key())", "load_K(K.tile(step), rows, tile.first_key()"),
        ("load_keys(K_tiles, barriers, K_FULL, K, first_key_of(rows, j)",
         "load_keys(K_tiles, barriers, K_FULL, K, int32(j * BC)"),
    ),
    *_in_hopper(
        "a box of O over the next sequence", ("attention/fa3/kernel.cu", "attention/fa3/numba_kernel.py"),
        ("if (first_row + (1 << p.packs.head_shift) > tile.own.q_len)", "if (false)"),
        ("if VARLEN and int32(first_row + (int32(1) << p.packs.head_shift)) > tile.own.q_len:",
         "if VARLEN and tile.own.q_len < 0:"),
        sanitize=True,
    ),
    *_in_hopper(
        "a sequence that is passed over counted with one tile of rows too few",
        ("_hopper/row_tiles.cuh", "attention/fa3/numba_row_tiles.py"),
        ("before += row_tiles * packs;", "before += row_tiles * packs - 1;"),
        ("before = int32(before + tiles * packs)", "before = int32(before + tiles * packs - 1)"),
    ),
    *_in_hopper(
        "ALiBi's distances by all rows and keys", ("attention/fa3/scoring.cuh", "attention/fa3/numba_kernel.py"),
        ("const int diagonal = tile.own.kv_len - tile.own.q_len;", "const int diagonal = p.kv_len - p.q_len;"),
        ("start_scoring(scoring, choices, row, mine, tile, s)", "start_scoring(scoring, choices, row, mine, tile, p)"),
    ),
    *_in_hopper(
        "rows of the last tile where the packed heads' are not",
        ("_hopper/sequences.cuh", "_hopper/numba_sequences.py"),
        ("(head + (mine >> shift)) * head_stride", "head * head_stride"),
        ("uint64(head + (mine >> uint32(shift))) * of_head", "uint64(head) * of_head"),
    ),
    *(mutant for mutant in in_types("split-kv") if mutant.variant.endswith(CUDA)),
    *IN_SPLIT_KV,
    *GRADIENTS_ON_TENSOR_CORES,
)  # fmt: skip
