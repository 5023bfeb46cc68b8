"""Rows of V and O of another length than those of Q and K: one taken for the other."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch
from tests.mutants.planting import CUDA, in_kernel, in_output, in_plan, in_split_kv, in_tiles, planted

_TYPES = "_features/layout.cuh"
_OF_MMA = "attention/fa2_mma"


def _in_types(bug: str, old: str, new: str) -> Mutant:
    """Planted in the types of CUDA, for which Numba has arrays that know their shape."""
    return Mutant(bug, f"fa2-{CUDA}", (Patch(_TYPES, old, new),))


IN_TYPES = (
    _in_types("heads of V as far apart as those of K", "return V + number * DV;", "return V + number * D;"),
    _in_types("heads of O as far apart as those of Q", "return O + number * DV;", "return O + number * D;"),
)
IN_MMA = (
    *in_kernel(
        "fa2-mma", "rows of V copied as rows of K",
        ("copy_tile<BC, Again::copies, DV>(K_tile + K_BYTES,", "copy_tile<BC, Again::copies, D>(K_tile + K_BYTES,"),
        ("copy_V_tile, store_O_tile = tiles_of_V.copy_tile,", "copy_V_tile, store_O_tile = tiles.copy_tile,"),
    ),
    *in_output(
        "O stored with the length of rows of Q",
        ("store_tile<BR, DV <= 64 ? 8 : 4, DV>(", "store_tile<BR, DV <= 64 ? 8 : 4, D>("),
        ("tiles_of_V.copy_tile, tiles_of_V.store_tile", "tiles_of_V.copy_tile, tiles.store_tile"),
        (("store_rows_of_warp<WARP_ROWS, 4, DV>(", "store_rows_of_warp<WARP_ROWS, 4, D>("), None),
    ),
    *in_output(
        "rows of O gathered as far apart as those of Q",
        ("tile + swizzled<V_ROW_BYTES>(row, j)", "tile + swizzled<ROW_BYTES>(row, j)"),
        ("Q_tile + swizzled(V_ROW_BYTES, row, j)", "Q_tile + swizzled(ROW_BYTES, row, j)"),
    ),
    *in_kernel(
        "fa2-mma", "V looked for behind as many bytes as V has",
        ("*const V_tile = K_tile + K_BYTES;", "*const V_tile = K_tile + V_BYTES;"),
        ("V_tile = uint32(K_tile + K_BYTES)", "V_tile = uint32(K_tile + V_BYTES)"),
    ),
    *planted(
        "fa2-mma", "as many elements of O as of Q in a thread", f"{_OF_MMA}/registers.cuh",
        f"{_OF_MMA}/numba_products.py",
        (
            (
                ("constexpr int TD = 2 * ((DV + 15) / 16);", "constexpr int TD = 2 * ((D + 15) / 16);"),
                ("TD = 2 * -(-DV // 16)", "TD = 2 * -(-D // 16)"),
            ),
        ),
    ),
    *planted(
        "fa2-mma", "rows of V read as far apart as those of K", f"{_OF_MMA}/kernel.cu", f"{_OF_MMA}/numba_products.py",
        (
            (
                ("lane_in_A<DV>() + s * 16 * V_ROW_BYTES", "lane_in_A<DV>() + s * 16 * ROW_BYTES"),
                ("V_lane + s * 16 * V_ROW_BYTES", "V_lane + s * 16 * ROW_BYTES"),
            ),
        ),
    ),
    *in_plan(
        "fa2-mma", "scale from the length of rows of V",
        "np.float32(abs(features.factor(p)) * unit if", "np.float32((p.head_dim / p.v_width) ** 0.5 * "
        "abs(features.factor(p)) * unit if",
    ),
)  # fmt: skip
IN_SPLITS = (
    in_split_kv(
        "rows of V copied as rows of K", ("copy_tile<32, DV>(to,", "copy_tile<32, D>(to,"),
        file="_mma/split_attention.cuh",
    ),
    in_split_kv(
        "rows of V read as far apart as those of K",
        ("V_by_row = shared_address(shared) + swizzled<V_ROW", "V_by_row = shared_address(shared) + swizzled<ROW"),
        file="_mma/split_attention.cuh",
    ),
    in_split_kv(
        "elements of O counted as those of Q", ("*O_element(w, e / DV, e % DV)", "*O_element(w, e / D, e % D)"),
        file="_mma/split_attention.cuh",
    ),
    in_split_kv(
        "as many elements of O as of Q in a thread", ("int TD = 2 * V_STEPS;", "int TD = 2 * STEPS;"),
        file="_mma/splits.cuh",
    ),
    in_split_kv(
        "keys of V as far apart as those of K",
        ("V_head + (size_t)key * DV;", "V_head + (size_t)key * D;", "attention/split_kv/rows.cuh"),
        ("V_stride = layout.V.row;", "V_stride = layout.K.row;", "attention/split_kv/rows.cuh"),
    ),
    in_split_kv(
        "heads of V as far apart as those of K",
        ("kv_len * DV},", "kv_len * D},"),
        ("layout.V_rows(V, 0, own", "layout.K_rows(V, 0, own", "attention/split_kv/rows.cuh"),
    ),
    in_split_kv(
        "rows of O as far apart as those of Q",
        ("layout.O_rows(O, row.number", "layout.Q_rows(O, row.number"),
    ),
    in_split_kv(
        "scale from the length of rows of V",
        ("np.float32(features.factor(p))", "np.float32(features.factor(p) * (p.head_dim / p.v_width) ** 0.5)"),
        file="attention/split_kv/__init__.py",
    ),
)  # fmt: skip
MUTANTS = (
    *IN_TYPES,
    *IN_MMA,
    *IN_SPLITS,
    *in_kernel(
        "fa2", "rows of V copied as rows of K",
        ("copy_keys<DV>(V_tile,", "copy_keys<D>(V_tile,"),
        ("copy_V = layout_copy_tile(DV,", "copy_V = layout_copy_tile(D,"),
    ),
    *in_kernel(
        "fa2", "O stored with the length of rows of Q",
        ("store_tile<DV>(layout.O_rows", "store_tile<D>(layout.O_rows"),
        ("store_tile = layout_copies(DV,", "store_tile = layout_copies(D,"),
    ),
    *in_kernel(
        "fa2", "P put where rows of V would end if they were those of K",
        ("P_tile = V_tile + BC * LDV;", "P_tile = V_tile + BC * LD;"),
        ("P_first = V_first + BC * LDV", "P_first = V_first + BC * LD"),
    ),
    *in_kernel(
        "fa2", "rows of O gathered as far apart as those of Q",
        ("O_tile[row_of(i) * LDV + element_of(j)]", "O_tile[row_of(i) * LD + element_of(j)]"),
        ("shared_tile(0, BR, LDV)", "shared_tile(0, BR, LD)"),
    ),
    *in_tiles(
        "fa2", "as many elements of O as of Q in a thread",
        ("constexpr int TD = (DV + TX - 1) / TX;", "constexpr int TD = (D + TX - 1) / TX;"),
        ("TD = -(-DV // TX)", "TD = -(-D // TX)"),
    ),
    *planted(
        "fa2", "rows of V on chip as far apart as those of K", "_tiles/tiles.cuh", "attention/fa2/numba_kernel.py",
        (
            (
                ("const float v = V_tile[(k + e) * LDV +", "const float v = V_tile[(k + e) * LD +"),
                ("shared_tile(V_first, BC, LDV)", "shared_tile(V_first, BC, LD)"),
            ),
        ),
    ),
    *in_plan(
        "fa2", "scale from the length of rows of V",
        "np.float32(features.factor(p)))", "np.float32(features.factor(p) * (p.head_dim / p.v_width) ** 0.5))",
    ),
)  # fmt: skip
