"""What can go wrong where K and V are stored in 8 bits: scales, bytes, and the order in which ldmatrix gives them."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

_TILES, _POOLS = "_paged/e4m3_tiles.cuh", "_paged/pools.cuh"
_SPLIT, _LEAN = "paged_attention/paged_split_kv/kernel.cu", "paged_attention/paged_lean/kernel.cu"


def _of(algorithm: str, bug: str, file: str, old: str, new: str, *, sanitize: bool = False) -> Mutant:
    return Mutant(bug, f"{algorithm}-cupy", (Patch(file, old, new),), sanitize)


def _in_splits(bug: str, file: str, old: str, new: str, *, sanitize: bool = False) -> Mutant:
    return _of("paged-split-kv", bug, file, old, new, sanitize=sanitize)


def _in_lean(bug: str, file: str, old: str, new: str) -> Mutant:
    return _of("paged-lean", bug, file, old, new)


_SCALES = (
    _in_splits("K's scale on V", _SPLIT, "scale_O(own, V, kv_head)", "scale_O(own, K, kv_head)"),
    _in_splits("V's scale on K", _SPLIT, "times_scale(tau, K, kv_head)", "times_scale(tau, V, kv_head)"),
    _in_splits("K's scale of the first head", _POOLS, "x * __ldg(pool.scales + kv_head)", "x * __ldg(pool.scales)"),
    _in_lean("V's scale of the first head", _POOLS, "__ldg(V.scales + kv_head)", "__ldg(V.scales)"),
    _in_lean("scales of heads counted through sequences", _LEAN, "scale_O(own, V, kv_head)",
             "scale_O(own, V, segment.kv_head / (gridDim.x + 1))"),
    _in_lean("no scale of V", _LEAN, "        scale_O(own, V, kv_head);\n", ""),
    _in_lean("scale before the maximum but not in lse", _LEAN, "        share_rows(own);\n",
             "        for (float &m : own.m) m *= tau_of_head == 0.0f ? 1.0f : tau / tau_of_head;\n"
             "        share_rows(own);\n"),
    _in_splits("V's scale on the denominator, too", _POOLS, "        for (float &element : tile) element *= scale;\n",
               "        for (float &element : tile) element *= scale;\n    for (float &l : rows.l) l *= scale;\n"),
)  # fmt: skip
_BYTES = (
    _in_splits("bytes of a pair of V swapped", _TILES, "widened(__byte_perm(v[s % 2 * 2], 0, 0x3120))",
               "widened(__byte_perm(v[s % 2 * 2], 0, 0x1302))"),
    _in_splits("bytes of K's pairs swapped", _TILES, "widened(k[s % 2 * 2 + n])",
               "widened(__byte_perm(k[s % 2 * 2 + n], 0, 0x2301))"),
    _in_splits("pairs of V not taken apart", _TILES, "far = widened(__byte_perm(v[s % 2 * 2 + 1], 0, 0x3120))",
               "far = widened(v[s % 2 * 2 + 1])"),
    _in_splits("first 16 bytes of 32 for both", _TILES, "k[s % 2 * 2 + n]", "k[n]"),
    _in_lean("neighbour's column where some rows see less", _TILES, "n % 2 == 0 ? v.low : v.high", "v.low"),
    _in_splits("Q in its own order", _TILES, "i < BR * STEPS;", "i < 0;"),
    _in_splits("no barrier before Q is read in K's order", _TILES, "        }\n        __syncthreads();", "        }",
               sanitize=True),
    _in_lean("columns of O left mixed", _TILES, "O[n + 1][e] = second;", "O[n + 1][e] = O[n + 1][e];"),
    _in_lean("columns of O where those of 16 bits are", _TILES, "n / 2 * 16 + lane % 4 * 4 + n % 2 * 2",
             "8 * n + lane % 4 * 2"),
)  # fmt: skip


def _in_numba(bug: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(bug, "paged-lean-numba", (Patch(file, old, new),))


_NUMBA_TILES, _NUMBA_LEAN = "_paged/numba_e4m3_tiles.py", "paged_attention/paged_lean/numba_kernel.py"
_IN_NUMBA = (
    _in_numba("K's scale on V", _NUMBA_LEAN, "finish_O(O, V, keys.kv_head)", "finish_O(O, K, keys.kv_head)"),
    _in_numba("K's scale of the first head", _NUMBA_TILES, "tau * pool[1][kv_head]", "tau * pool[1][0]"),
    _in_numba("V's scale of the first head", _NUMBA_TILES, "sort_columns(O, pool[1][kv_head])",
              "sort_columns(O, pool[1][0])"),
    _in_numba("scales of heads counted through sequences", _NUMBA_LEAN, "finish_O(O, V, keys.kv_head)",
              "finish_O(O, V, segment[KV_HEAD] // uint32(kv_heads + 1))"),
    _in_numba("no scale of V", _NUMBA_TILES, "sort_columns(O, pool[1][kv_head])", "sort_columns(O, 1.0)"),
    _in_numba("scale before the maximum but not in lse", _NUMBA_LEAN, "        share_rows(shared, O, l, m, t)\n",
              "        m[0] *= tau / tau_of_head\n        m[1] *= tau / tau_of_head\n"
              "        share_rows(shared, O, l, m, t)\n"),
    _in_numba("neighbour's column where some rows see less", _NUMBA_TILES,
              "return both[0] if n % 2 == 0 else both[1]", "return both[0]"),
    _in_numba("columns of O where those of 16 bits are", _NUMBA_TILES,
              "uint32(n // 2 * 16 + n % 2 * 2) + uint32(column) * uint32(2)", "uint32(8 * n) + uint32(column)"),
    _in_numba("columns of O left mixed", _NUMBA_TILES, "O[0, 2 * s + 1, e] = second * scale",
              "O[0, 2 * s + 1, e] *= scale"),
    _in_numba("Q in its own order", _NUMBA_TILES, "int32(BR * STEPS), int32(THREADS)", "int32(0), int32(THREADS)"),
    _in_numba("pairs of V not taken apart", _NUMBA_TILES, "near = widened(exchanged(v[0] if step == 0 else v[2]))",
              "near = widened(v[0] if step == 0 else v[2])"),
)  # fmt: skip

MUTANTS = (*_SCALES, *_BYTES, *_IN_NUMBA)
