"""Where rows of tensors and gradients lie in the backward pass, and how long they are: one taken for another."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch
from tests.mutants.planting import CUDA, in_backward, in_kernel, planted

_FEATURES = "_features/__init__.py"
_STRIDES = '_strides(problem, "dQ", "dK", "dV", "dO")'


def _in_strides(bug: str, strides: str) -> Mutant:
    """Planted in the argument of CUDA, for which Numba has arrays that know their strides."""
    return Mutant(bug, f"bwd-fa2-{CUDA}", (Patch(_FEATURES, _STRIDES, strides),))


IN_STRIDES = (
    _in_strides("strides of O used for dO", _STRIDES.replace('"dO"', '"O"')),
    _in_strides("strides of K used for dK", _STRIDES.replace('"dK"', '"K"')),
)
LAYOUTS = (
    *IN_STRIDES,
    *in_kernel(
        "bwd-fa2", "D from a dO that is one run",
        ("row_dots_in_memory(delta + first_stat, gradients.O_rows(dO, first_stat, blockIdx.z, blockIdx.y, first_row),",
         "row_dots_in_memory(delta + first_stat, dO + first_stat * DV,"),
        ("dO[batch, head], O[batch, head], first_row, rows)",
         "dO[0, 0], O[batch, head], (batch * dO.shape[1] + head) * q_len + first_row, rows)"),
    ),
    *in_kernel(
        "bwd-fa2", "dK of the first sequence for all",
        ("gradients.K_rows(dK, first_kv, own.batch,", "gradients.K_rows(dK, first_kv, 0,"),
        ("dK[batch, kv_head]", "dK[0, kv_head]"),
    ),
    *planted(
        "bwd-fa2", "dQ rounded into one run", "_tiles/strided_tiles.cuh", "_tiles/numba_backward.py",
        (
            (
                ("narrow(X[e], rounded.at(e));", "narrow(X[e], rounded.first + e);"),
                ("rounded[first_row + e // D, e % D] =", "rounded[first_row, e] ="),
            ),
        ),
    ),
    *in_kernel(
        "bwd-fa2-ordered", "dO of the head where rows of O lie",
        ("gradients.O_rows(dO, first_q + first_row, own.batch, head, row)",
         "layout.O_rows(dO, first_q + first_row, own.batch, head, row)"),
        ("Q_head, dO_head = Q[batch, head], dO[batch, head]", "Q_head, dO_head = Q[batch, head], dO[batch, kv_head]"),
    ),
)  # fmt: skip
_KEYS, _ENDS = ("_mma_backward/keys.cu", "_mma_backward/numba_keys.py"), "_mma_backward/numba_ends.py"
ON_TENSOR_CORES = (
    *planted(
        "bwd-mma", "dO where rows of Q lie", *_KEYS,
        (
            (
                ("gradients.O_rows(dO, first,", "layout.Q_rows(dO, first,"),
                ("copy_tile_anew(uint32(Q_i + ROWS_BYTES), dO_rows, stride_of(rows_of.dO), rows)",
                 "copy_tile_anew(uint32(Q_i + ROWS_BYTES), dO_rows, stride_of(rows_of.Q), rows)"),
            ),
        ),
    ),
    *planted(
        "bwd-mma", "rows of the group's first head", *_KEYS,
        (
            (
                ("head = blockIdx.x * block.group + turn.head;\n        copy",
                 "head = blockIdx.x * block.group;\n        copy"),
                ("uint32(cuda.blockIdx.x * block.group + turn.head)\n        Q_rows",
                 "uint32(cuda.blockIdx.x * block.group)\n        Q_rows"),
            ),
        ),
    ),
    *planted(
        "bwd-mma", "dV where V lies", *_KEYS,
        (
            (
                ("gradients.V_rows(dV,", "layout.V_rows(dV,"),
                ("end_kv, own_key), stride_of(dV)", "end_kv, own_key), stride_of(V)"),
            ),
        ),
    ),
    *planted(
        "bwd-mma", "D from an O that is one run", "_mma_backward/prepare.cu", _ENDS,
        (
            (
                ("layout.O_rows(O, first, own.batch, blockIdx.y, own.row(first_row))", "O + first * D"),
                ("first_of(O, first, row), stride_of(O)", "first_of(O, first, row), uint64(D * STORED_BYTES)"),
            ),
        ),
    ),
    *planted(
        "bwd-mma", "dQ rounded into one run", "_mma_backward/round.cu", _ENDS,
        (
            (
                ("gradients.Q_rows(dQ, first, own.batch, blockIdx.y, own.row(first_row))", "dQ + first * D"),
                ("first_of(dQ, first, row), stride_of(dQ)", "first_of(dQ, first, row), uint64(D * STORED_BYTES)"),
            ),
        ),
    ),
)  # fmt: skip
WIDTHS = (
    *in_backward(
        "bwd-fa2", "dP over as many elements as Q has",
        ("multiply_Q_Kt<DV>(dP, V_tile, dO_tile)", "multiply_Q_Kt(dP, V_tile, dO_tile)"),
        ("multiply_dO_Vt(dP, V_tile, dO_tile)", "multiply_Q_Kt(dP, V_tile, dO_tile)"),
    ),
    *in_backward(
        "bwd-fa2", "D over as many elements as Q has",
        ("if (e < DV) sum +=", "if (e < D) sum +="),
        ("if e < DV:", "if e < min(D, DV):"),
    ),
    *in_backward(
        "bwd-fa2", "dV stored with the length of rows of K",
        ("store_tile<DV>(dV, V_tile, keys)", "store_tile(dV, V_tile, keys)"),
        ("store_V_tile(dV, first_key, V_tile, keys)", "store_tile(dV, first_key, V_tile, keys)"),
    ),
)  # fmt: skip
MUTANTS = (*LAYOUTS, *ON_TENSOR_CORES, *WIDTHS)
