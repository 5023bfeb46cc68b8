"""Where the rows of Q, K, V, O and lse lie: strides taken for others, or forgotten."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch
from tests.mutants.planting import CUDA, in_kernel, planted

_TYPES, _TILES = "_features/layout.cuh", ("_tiles/strided_tiles.cuh", "_tiles/numba_strided_tiles.py")
_MMA_TILES = ("_mma/strided_tiles.cuh", "_mma/numba_strided_tiles.py")
_PLACE = "{tensor + sequence * strides.sequence + head * strides.head + row * strides.row, strides.row}"
_OF_K = "return rows<D>(tensor, K, sequence, head, row);"
_STORED = (
    "narrow(tile[place<WIDTH>(e)], target.at(e));",
    "target[first_row + e // D, e % D] = narrow(tile.flat[place(e)])",
)


def _in_types(bug: str, old: str, new: str) -> Mutant:
    """Planted in the types of CUDA, for which Numba has strides of arrays."""
    return Mutant(bug, f"fa2-{CUDA}", (Patch(_TYPES, old, new),))


IN_TYPES = (
    _in_types("strides of Q used for K", _OF_K, _OF_K.replace("K,", "Q,")),
    _in_types("offset of a sequence in 32 bits", _PLACE,
              _PLACE.replace("sequence * strides.sequence", "(int)(sequence * strides.sequence)")),
    _in_types("strides of rows used for heads of Q", "return rows<D>(tensor, Q, sequence, head, row);",
              "return rows<D>(tensor, Strides{Q.sequence, Q.row, Q.row}, sequence, head, row);"),
)  # fmt: skip
IN_MMA = (
    *planted(
        "fa2-mma", "stride of sequences left out", _TYPES, _MMA_TILES[1],
        (
            (
                (_PLACE, _PLACE.replace("sequence * strides.sequence + ", "")),
                ("before = uint64(0 if varlen else entry) * uint64(array.strides[0]) + uint64(head)",
                 "before = uint64(head)"),
            ),
        ),
    ),
    *planted(
        "fa2-mma", "strides of rows used for heads", _TYPES, _MMA_TILES[1],
        (
            (
                (_PLACE, _PLACE.replace("head * strides.head", "head * strides.row")),
                ("+ uint64(head) * uint64(array.strides[1])", "+ uint64(head) * uint64(array.strides[2])"),
            ),
        ),
    ),
    *planted(
        "fa2-mma", "rows of O written as one run", *_MMA_TILES,
        (
            (
                ("Units::row(e) * target.stride", "Units::row(e) * D"),
                ("offset = uint64(uint32(e) // uint32(UNITS)) * stride",
                 "offset = uint64(uint32(e) // uint32(UNITS)) * uint64(UNITS * UNIT_BYTES)"),
            ),
        ),
    ),
)  # fmt: skip
_HOPPER = ("_hopper/layout.cuh", "_hopper/numba_layout.py")
_AT = ("return {tile.rows.head, (int)tile.own.batch};", "return int32(head), int32(sequence)")
IN_HOPPER = (
    *planted(
        "fa3", "head and sequence exchanged", *_HOPPER,
        (((_AT[0], "return {(int)tile.own.batch, tile.rows.head};"), (_AT[1], "return int32(sequence), int32(head)")),),
    ),
    *planted(
        "fa3", "sequence left out", *_HOPPER,
        (((_AT[0], "return {tile.rows.head, 0};"), (_AT[1], "return int32(head), int32(0)")),),
    ),
    *planted(
        "fa3", "heads of K and V counted as query heads",
        "_hopper/layout.cuh", "attention/fa3/numba_producer.py",
        (
            (
                ("tile.rows.head / packs.per_kv_head", "tile.rows.head"),
                ("int32(uint32(rows.head) // sharing)", "rows.head"),
            ),
        ),
    ),
)  # fmt: skip
MUTANTS = (
    *IN_TYPES,
    *IN_MMA,
    *IN_HOPPER,
    *planted(
        "fa2", "strides of heads and rows exchanged in K", _TYPES, "attention/fa2/numba_kernel.py",
        (
            (
                (_OF_K, "return rows<D>(tensor, Strides{K.sequence, K.row, K.head}, sequence, head, row);"),
                ("K[batch, kv_head]", "K[batch, :, kv_head]"),
            ),
        ),
    ),
    *planted(
        "fa2", "stride of sequences left out", _TYPES, "attention/fa2/numba_kernel.py",
        (
            (
                (_PLACE, _PLACE.replace("sequence * strides.sequence + ", "")),
                ("Q_head, K_head, V_head = Q[batch, head],", "Q_head, K_head, V_head = Q[0, head],"),
            ),
        ),
    ),
    *planted(
        "fa2", "rows of O written as one run", *_TILES,
        (
            (
                (_STORED[0], "narrow(tile[place<WIDTH>(e)], target.first + e);"),
                (_STORED[1], "target[first_row, e] = narrow(tile.flat[place(e)])"),
            ),
        ),
    ),
    *planted(
        "fa2", "an element written behind every row", *_TILES,
        (
            (
                (_STORED[0], "for (int n = 0; n <= (e % WIDTH == WIDTH - 1); ++n) "
                             "narrow(tile[place<WIDTH>(e)], target.at(e) + n);"),
                (_STORED[1], f"{_STORED[1]}\n                if e % D == D - 1:\n"
                             "                    target[first_row + e // D, D] = narrow(tile.flat[place(e)])"),
            ),
        ),
    ),
    *in_kernel(
        "fa2", "lse by rows and then heads",
        ("lse[first_global_row + t]", "lse[((size_t)batch * q_len + own.row(first_row) + t) * gridDim.x + head]"),
        ("lse[batch, head, row_in_Q(own, first_row) + t]",
         "lse.flat[(batch * q_len + row_in_Q(own, first_row) + t) * lse.shape[1] + head]"),
    ),
)  # fmt: skip
