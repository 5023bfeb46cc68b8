"""Fragments, swizzled tiles, copies on their way and what surrounds products on tensor cores: fa2-mma."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutants.patching import Mutant
from tests.mutants.planting import Replacement, in_cuda_of_mma, in_kernel, in_output, in_plan, in_products, planted

_ALGORITHM = "fa2-mma"
_LAST_LINES_OF_STORES = (
    "\n        store_unit<UNIT>(target + e * UNIT, tile + place<WIDTH>(e));\n    }\n}\n\n// The same by one warp"
)
_OUTPUT, _VISITS = "attention/fa2_mma/output.cuh", "attention/fa2_mma/visits.cuh"
_PRODUCTS = "attention/fa2_mma/products.cuh"


def _here(
    bug: str, cuda: Replacement, numba: Replacement, *more: tuple[Replacement, Replacement], sanitize: bool = False
) -> Iterator[Mutant]:
    return in_kernel(_ALGORITHM, bug, cuda, numba, *more, sanitize=sanitize)


def _in_fragments(bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    return planted(_ALGORITHM, bug, "_mma/mma.cuh", "_mma/numba_mma.py", ((cuda, numba),))


def _in_bands(bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    """Planted in what rows see of a tile, for which Numba has a file of its own."""
    return planted(_ALGORITHM, bug, "attention/fa2_mma/seen.cuh", "_mma/numba_band.py", ((cuda, numba),))


def _where_all_see(bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    """Planted where a warp asks whether its rows see the whole tile, which in Numba is in the kernel."""
    files = ("attention/fa2_mma/seen.cuh", "attention/fa2_mma/numba_kernel.py")
    return planted(_ALGORITHM, bug, *files, ((cuda, numba),))


def _in_tiles(bug: str, cuda: Replacement, numba: Replacement, sanitize: bool = False) -> Iterator[Mutant]:
    return planted(_ALGORITHM, bug, "_mma/tiles.cuh", "_mma/numba_tiles.py", ((cuda, numba),), sanitize)


_FRAGMENTS = (
    *in_output(
        "rows g and g + 8 of C swapped",
        (
            "warps_row + 16 * i + 8 * h + lane / 4;",
            "warps_row + 16 * i + 8 * (1 - h) + lane / 4;",
        ),
        ("uint32(16 * i + 8 * h)", "uint32(16 * i + 8 * (1 - h))"),
    ),
    *in_products(
        "registers of B swapped",
        ("(S[i][j], q[i], key[0], key[1])", "(S[i][j], q[i], key[1], key[0])"),
        ("(S, i, j, q[i], k0, k1)", "(S, i, j, q[i], k1, k0)"),
    ),
    *_in_tiles(
        "K addressed as if it were A",
        ("(lane / 16 * 8 + lane % 8, lane / 8 % 2)", "(lane % 16, lane / 16)"),
        ("uint32((lane >> 4) * 8 + (lane & 7)), uint32((lane >> 3) & 1)", "lane & uint32(15), lane >> uint32(4)"),
    ),
    *in_products(
        "V not transposed",
        ("load_matrices_transposed(v,", "load_matrices(v,"),
        ("= load_matrices_transposed(", "= load_matrices("),
    ),
    *in_products(
        "halves of P swapped",
        ("kept.both(packed(low, high),", "kept.both(packed(high, low),"),
        ("kept_both(packed(low, high),", "kept_both(packed(high, low),"),
    ),
    *in_products(
        "registers of P in the order of C",
        ("P[i][2 * j + h] =", "P[i][2 * h + j] ="),
        ("P[s, i, 2 * j + h] =", "P[s, i, 2 * h + j] ="),
    ),
    *planted(
        _ALGORITHM,
        "a lane's columns taken for its number's",
        "attention/fa2_mma/seen.cuh",
        "attention/fa2_mma/numba_products.py",
        (
            (
                ("column = (int)threadIdx.x % 4 * 2;", "column = (int)threadIdx.x % 4;"),
                ("int32((lane_index() & 3) * 2)", "int32(lane_index() & 3)"),
            ),
        ),
    ),
    *_in_fragments(
        "maximum over two lanes of the four of a row",
        ("return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));", "return x;"),
        ("return max(x, cuda.shfl_xor_sync(ALL_LANES, x, 2))", "return x"),
    ),
    *in_output(
        "l summed in one lane only",
        ("l = quad_sum(own.l[i][h]),", "l = own.l[i][h],"),
        (", quad_sum(l[i, h]), ONE", ", l[i, h], ONE"),
    ),
)
_SWIZZLE = (
    *_in_tiles(
        "written in a swizzle of four rows, read in one of eight",
        (
            "return swizzled<row_bytes(WIDTH)>(e / UNITS, element / CHUNK) +",
            "return e / UNITS * ROW_BYTES + (element / CHUNK ^ e / UNITS % 4) * CHUNK_BYTES +",
        ),
        (
            "uint32(swizzled(ROW_BYTES, row, byte // uint32(CHUNK_BYTES)) +",
            "uint32(row // uint32(4) * uint32(4 * ROW_BYTES) + "
            "swizzled(ROW_BYTES, row & uint32(3), byte // uint32(CHUNK_BYTES)) +",
        ),
    ),
    *_in_fragments(
        "chunks added to a swizzled address",
        ("(address ^ chunks % 8 * CHUNK_BYTES)", "(address + chunks % 8 * CHUNK_BYTES)"),
        ("(address ^ uint32((chunks & 7) * CHUNK_BYTES))", "(address + uint32((chunks & 7) * CHUNK_BYTES))"),
    ),
)
_ZEROS = (
    *_in_tiles(
        "keys beyond the last copied",
        ("source + (valid ? e : 0) * UNIT, valid);", "source + e * UNIT, true);"),
        ("mine + uint64(further * UNIT_BYTES), further < left)", "mine + uint64(further * UNIT_BYTES), True)"),
    ),
    *_in_tiles(
        "one unit beyond the last key copied",
        ("valid = e < rows * UNITS;", "valid = e <= rows * UNITS;"),
        ("further < left)", "further <= left)"),
    ),
    *_in_tiles(
        "rows beyond the last left as they were",
        (
            "            copy_async<UNIT_BYTES>(shared_address(tile) + place<WIDTH>(e), source +",
            "            if (valid) copy_async<UNIT_BYTES>(shared_address(tile) + place<WIDTH>(e), source +",
        ),
        (
            "                copy_unit(tile + at, mine + uint64(further * UNIT_BYTES), further < left)",
            "                if further < left:\n"
            "                    copy_unit(tile + at, mine + uint64(further * UNIT_BYTES), True)",
        ),
        sanitize=True,  # NaN that lies there is looked for, and does no harm
    ),
    *_here(
        "what rows are padded with not zeroed",
        ("if constexpr (D % 16 != 0 || DV % 16 != 0) {", "if constexpr (false) {"),
        ("        if D % 16 != 0 or DV % 16 != 0:", "        if False:"),
    ),
    *_in_tiles(
        "one unit too many stored",
        (
            f"if (e >= rows * UNITS) break;{_LAST_LINES_OF_STORES}",
            f"if (e > rows * UNITS) break;{_LAST_LINES_OF_STORES}",
        ),
        ("if e < units:", "if e <= units:"),
    ),
)
_WAIT_CUDA, _WAIT_NUMBA = "        wait_for_copies<STAGES - 2>();\n", "            wait_for_oldest()\n"
_REFILL_CUDA = "        copy_keys(n + (STAGES - 1) * Visits::NEXT, STAGES - 1);\n"
_REFILL_NUMBA = (
    "            free_tile = uint32(KV_tiles + uint32(stage - 1 if stage > 0 else STAGES - 1) * uint32(KV_BYTES))\n"
    "            ahead = int32(first_key + (STAGES - 1) * BC)\n"
    "            copy_keys(free_tile, K_head, V_head, K_stride, V_stride, ahead, end_key, kv_len)\n"
)
_COPIES = (
    *_here(
        "a copy too few is waited for",
        (_WAIT_CUDA, "        wait_for_copies<STAGES - 1>();\n"),
        ("in (STAGES - 1, STAGES - 2, 0)", "in (STAGES - 1, STAGES - 1, 0)"),
    ),
    *_here(
        "Q not waited for",
        ("    wait_for_copies<STAGES - 1>();\n", ""),
        ("        wait_for_Q()\n", ""),
    ),
    *_here(
        "copies of keys not committed",
        ("        commit_copies();\n    };", "    };"),
        ("V_head + V_first, V_stride, keys)\n        commit_copies()\n", "V_head + V_first, V_stride, keys)\n"),
    ),
    *_here(
        "no group where no tile is left",
        ("        }\n        commit_copies();\n    };", "            commit_copies();\n        }\n    };"),
        (
            "V_head + V_first, V_stride, keys)\n        commit_copies()\n",
            "V_head + V_first, V_stride, keys)\n            commit_copies()\n",
        ),
    ),
    *_here(
        "no barrier after the wait",
        ("        __syncthreads();\n        copy_keys", "        copy_keys"),
        ("            else:\n                cuda.syncthreads()\n            free_tile", "            free_tile"),
        sanitize=True,
    ),
    # Shows from three tiles of keys on: the third is the first to use a stage anew.
    *_here(
        "a stage filled while it is read",
        (_WAIT_CUDA, _REFILL_CUDA + _WAIT_CUDA),
        (_WAIT_NUMBA, _REFILL_NUMBA + _WAIT_NUMBA),
        (
            ("        __syncthreads();\n" + _REFILL_CUDA, "        __syncthreads();\n"),
            ("cuda.syncthreads()\n" + _REFILL_NUMBA, "cuda.syncthreads()\n"),
        ),
        sanitize=True,
    ),
)
_BARRIERS = (
    *_here(
        "no barrier between zeros and copies",
        ("        __syncthreads();\n    }\n\n    // Line 4", "    }\n\n    // Line 4"),
        ("            cuda.syncthreads()\n\n        # Lines 6 and 7", "\n        # Lines 6 and 7"),
        sanitize=True,
    ),
    *_here(
        "no barrier after Q",
        ("    wait_for_copies<STAGES - 1>();\n    __syncthreads();\n", "    wait_for_copies<STAGES - 1>();\n"),
        ("        wait_for_Q()\n        cuda.syncthreads()\n", "        wait_for_Q()\n"),
        sanitize=True,
    ),
    *_here(
        "no barrier after the sign of Q",
        ("        give_sign(Q_tile, sign);\n        __syncthreads();\n", "        give_sign(Q_tile, sign);\n"),
        (
            "            give_sign(Q_tile, sign)\n            cuda.syncthreads()\n",
            "            give_sign(Q_tile, sign)\n",
        ),
        sanitize=True,
    ),
    *in_output(
        "no barrier before O is stored",
        ("        if constexpr (TM == 2) __syncthreads();\n", ""),
        ("        cuda.syncthreads()\n\n        # Lines 14 and 15", "\n        # Lines 14 and 15"),
        sanitize=True,
    ),
    in_cuda_of_mma("lse of a lane's number", "own_row = lane % 4 * 8 + lane / 4;", "own_row = lane;", file=_OUTPUT),
)
_ENDS_AT_ONCE = (
    in_cuda_of_mma(
        "ends of a window visited at once by warps that see both",
        "apart &= seen.run.first(of_warp) >= (first + 1) * BC ||",
        "apart &= true ||",
        file=_VISITS,
    ),
    in_cuda_of_mma(
        "first tile of a window visited by warps that see the last",
        "            n += warps_end_key <= (anew(end) - 1) * BC;\n",
        "            n += 1;\n",
        file=_VISITS,
    ),
    in_cuda_of_mma(
        "ends of a window not waited for",
        "            wait_for_copies<0>();\n            __syncthreads();\n            n +=",
        "            n +=",
        file=_VISITS,
        sanitize=True,
    ),
)
_SOFTMAX = (
    *in_plan(_ALGORITHM, "log2(e) twice", "(p)) * unit if", "(p)) * unit * LOG2_E if"),
    *in_plan(_ALGORITHM, "powers of 2 in the place of e", "(p)) * unit if", "(p)) if"),
    *in_plan(
        _ALGORITHM,
        "maximum before a negative scale",
        "np.float32(abs(features.factor(p)) * unit if p.tau else 1.0), np.int32(np.sign(p.tau))",
        "np.float32(p.tau * LOG2_E), np.int32(1)",
    ),
    *in_products(
        "O rescaled in rows g alone",
        (
            "rows.O[i][j][2 * h] *= correction;\n                rows.O[i][j][2 * h + 1] *= correction;",
            "rows.O[i][j][0] *= correction;\n                rows.O[i][j][1] *= correction;",
        ),
        (
            "O[i, j, 2 * h] *= correction\n                        O[i, j, 2 * h + 1] *= correction",
            "O[i, j, 0] *= correction\n                        O[i, j, 1] *= correction",
        ),
    ),
    *in_products(
        "m left too far behind",
        ("SLACK = 2.0f;", "SLACK = 20.0f;"),
        ("SLACK = np.float32(2)", "SLACK = np.float32(20)"),
    ),
    # The lse tells: O is divided by what its own weights were rounded to.
    *in_products(
        "l summed of P as rounded",
        (
            " l[i][h] += low;\n                l[i][h] += high;\n",
            " const float2 p = unpacked(packed(low, high));\n                l[i][h] += p.x + p.y;\n",
        ),
        (
            "l[i, h] += low\n                    l[i, h] += high\n",
            "p, q = unpacked(packed(low, high))\n                    l[i, h] += p + q\n",
        ),
    ),
    *in_output("lse to base 2", ("own_m * LN_2 +", "own_m +"), ("m_row * LN_2 +", "m_row +")),
)
_MASKS = (
    *_where_all_see(
        "a tile on the diagonal taken for unmasked",
        ("min(place + after + 1, keys) >= BC", "min(place + after + 1, keys) >= 0"),
        ("or int32(first_key + BC) > warp_sees_to", "or first_key > warp_sees_to"),
    ),
    *_where_all_see(
        "a tile that lacks one key taken for unmasked",
        ("min(place + after + 1, keys) >= BC", "min(place + after + 1, keys) >= BC - 1"),
        ("or int32(first_key + BC) > warp_sees_to", "or first_key + BC > warp_sees_to + 1"),
    ),
    *_in_bands(
        "rows g + 8 masked as rows g",
        ("return row_from(place, i, h);", "return row_from(place, i, 0);"),
        ("(16 * i + 8 * h) + int32(lane_index()", "16 * i + int32(lane_index()"),
    ),
    *_in_bands(
        "causal off by one in tiles that are masked",
        ("min(key_of_row(i, h) + after + 1, keys)", "min(key_of_row(i, h) + after, keys)"),
        ("key_of_row(place, i, h) + after + 1)", "key_of_row(place, i, h) + after)"),
    ),
    *_in_bands(
        "window one key too long on the right",
        ("min(key_of_row(i, h) + after + 1, keys)", "min(key_of_row(i, h) + after + 2, keys)"),
        ("key_of_row(place, i, h) + after + 1)", "key_of_row(place, i, h) + after + 2)"),
    ),
    *_in_bands(
        "window one key too short on the left",
        ("return key_of_row(i, h) - before;", "return key_of_row(i, h) - before + 1;"),
        ("key_of_row(place, i, h) - before)", "key_of_row(place, i, h) - before + 1)"),
    ),
    *_here(
        "first tile of a window skipped",
        (
            "block, seen.first_key, seen.end_key, sequence.q_len, sequence.kv_len);",
            "block, (seen.first_key + BC - 1) / BC * BC, seen.end_key, sequence.q_len, sequence.kv_len);",
        ),
        (
            "uint32(first_seen(first_row, q_len, kv_len, before)) //",
            "uint32(first_seen(first_row, q_len, kv_len, before) + BC - 1) //",
        ),
    ),
    *_where_all_see(
        "first tile of a window taken for unmasked",
        ("place + WARP_ROWS - 1 - before <= 0 &&", ""),
        ("masked = first_key < warp_sees_from or int32", "masked = int32"),
    ),
    *_here(
        "tiles that end with a warp's first key skipped",
        ("first_key + BC > warps_first_key)", "first_key > warps_first_key)"),
        ("int32(first_key + BC) > warps_first_key:", "first_key > warps_first_key:"),
    ),
    *_here(
        "V ahead of the window not looked at",
        ("vote<!Forms::one_body>(poisoned)", "vote<!Forms::one_body>(poisoned && seen.first(0, 0) <= 0)"),
        (
            "if first_key < seen_from or (int32(first_key + BC) > seen_to and seen_to < kv_len):",
            "if int32(first_key + BC) > seen_to and seen_to < kv_len:",
        ),
    ),
    *_here(
        "V behind the mask not looked at",
        ("multiply_Q_Kt<MASKED, Forms::sums>(", "multiply_Q_Kt<false, Forms::sums>("),
        ("cuda.syncthreads_or(copied_not_finite(V_tile, BC))", "cuda.syncthreads_or(0)"),
    ),
    *_here(
        "V of the first tile on the diagonal not looked at",
        ("vote<!Forms::one_body>(poisoned)", "vote<!Forms::one_body>(poisoned && seen.end(0, 0) <= 0)"),
        ("(int32(first_key + BC) > seen_to and", "(first_key > seen_to and"),
    ),
    *planted(
        _ALGORITHM,
        "NaN and infinity in V dropped",
        "attention/fa2_mma/kernel.cu",
        "attention/fa2_mma/numba_products.py",
        (
            (
                ("        add_not_finite(rows.O, P, V_tile + key * V_ROW_BYTES, seen_here);\n", ""),
                ("            add_not_finite(O, P[0], V_tile, first_key, keys, place, before, after)\n", ""),
            ),
        ),
    ),
    in_cuda_of_mma(
        "V looked at in the first step of elements alone",
        "if (k < TD / 2) look_at_V(",
        "if (k == 0) look_at_V(",
        file=_PRODUCTS,
    ),
    in_cuda_of_mma(
        "V looked at under the first 16 keys alone",
        "if (k < TD / 2) look_at_V(",
        "if (k < TD / 2 && j == 0) look_at_V(",
        file=_PRODUCTS,
    ),
    in_cuda_of_mma(
        "weights of a tile's first 16 keys for all, beside NaN", "(S, Q, K_tile + key * ROW_BYTES)", "(S, Q, K_tile)"
    ),
    in_cuda_of_mma(
        "what rows see of a tile's first 16 keys for all, beside NaN", "mask(S, seen_here);", "mask(S, seen);"
    ),
    *_here(
        "grouped heads by tiling instead of repetition",
        (
            "kv_head = sequence.number(head_index, head) / group;",
            "kv_head = batch * (heads / group) + head % (heads / group);",
        ),
        (
            "uint64(head_number // uint32(group))",
            "uint64(entry_of_head(heads) * uint32(heads // group) + head_of_entry(heads) % uint32(heads // group))",
        ),
    ),
    *_here(
        "rows of the first of the heads that start side by side for all",
        ("head_index = blockIdx.z * gridDim.x + blockIdx.x;", "head_index = blockIdx.z * gridDim.x;"),
        ("first = uint64(head_number)", "first = uint64(uint32(cuda.blockIdx.z) * uint32(cuda.gridDim.x))"),
    ),
)

MUTANTS = (*_FRAGMENTS, *_SWIZZLE, *_ZEROS, *_COPIES, *_BARRIERS, *_ENDS_AT_ONCE, *_SOFTMAX, *_MASKS)
