"""Barriers left out, or met by some threads only. The answer may well be right: the sanitizer looks on."""

from __future__ import annotations

from tests.mutants.planting import in_kernel, in_sweep

_CUDA, _NUMBA = "        __syncthreads();\n", "            cuda.syncthreads()\n"
"""A barrier in the loop over tiles of keys."""
_V_CUDA = "        load_tile<BC>(KV_tile, V + first_kv + (size_t)first_key * D, keys);\n"
_V_NUMBA = "            load_tile(KV_tile, BC, V_head, first_key, keys)\n"
_WAIT_CUDA, _WAIT_NUMBA = "        wait_for_copies();\n", "            wait_for_copies()\n"
_COPIES = {
    "K": ("        copy_keys<DV>(V_tile", "            copy_V(V_tile"),
    "V": ("        if (next.exists())", "            if exists(next):"),
}
"""What fa2 copies once K_j, or V_j, is there."""


MUTANTS = (
    *in_sweep(
        "two-pass", "no barrier after the load of K",
        ("        __syncthreads();\n        float S[TM][TN];\n", "        float S[TM][TN];\n"),
        ("        cuda.syncthreads()\n        multiply_Q_Kt(", "        multiply_Q_Kt("),
        sanitize=True,
    ),
    *in_sweep(
        "two-pass", "no barrier before the load of K",
        ("        __syncthreads();\n        load_tile<BC>(", "        load_tile<BC>("),
        ("        cuda.syncthreads()\n        load_tile(", "        load_tile("),
        sanitize=True,
    ),
    *in_kernel(
        "two-pass", "no barrier after the load of V",
        (_V_CUDA + _CUDA, _V_CUDA), (_V_NUMBA + _NUMBA, _V_NUMBA),
        sanitize=True,
    ),
    *in_kernel(
        "two-pass", "no barrier before the load of V",
        (_CUDA + _V_CUDA, _V_CUDA), (_NUMBA + _V_NUMBA, _V_NUMBA),
        sanitize=True,
    ),
    *(
        mutant
        for tile, (cuda, numba) in _COPIES.items()
        for bug, left_cuda, left_numba in (
            (f"no barrier once {tile} has come", _WAIT_CUDA, _WAIT_NUMBA),
            (f"copies of {tile} not waited for", _CUDA, _NUMBA),
        )
        for mutant in in_kernel(
            "fa2", bug,
            (_WAIT_CUDA + _CUDA + cuda, left_cuda + cuda),
            (_WAIT_NUMBA + _NUMBA + numba, left_numba + numba),
            sanitize=True,
        )
    ),
    *in_kernel(
        "fa1", "no barrier after the loads",
        ("            __syncthreads();\n\n            // Line 9", "\n            // Line 9"),
        ("                cuda.syncthreads()\n\n                # Line 9", "\n                # Line 9"),
        sanitize=True,
    ),
    *in_kernel(
        "fa1", "no barrier between P and P V",
        ("            __syncthreads();\n\n            // Line 12: O_i", "\n            // Line 12: O_i"),
        ("                cuda.syncthreads()\n\n                # Line 12: O_i", "\n                # Line 12: O_i"),
        sanitize=True,
    ),
    *in_kernel(
        "fa1", "no barrier before O is stored",
        ("            __syncthreads();\n\n            // Lines 12 and 13", "\n            // Lines 12 and 13"),
        ("                cuda.syncthreads()\n\n                # Lines 12 and", "\n                # Lines 12 and"),
        sanitize=True,
    ),
    *in_kernel(
        "three-pass", "no barrier between S and its store",
        ("        // A warp writes a row at a time: 32 consecutive elements.\n        __syncthreads();\n", ""),
        ("            # A warp writes a row at a time: 32 consecutive elements.\n            cuda.syncthreads()\n", ""),
        sanitize=True,
    ),
    *in_kernel(
        "fa2", "barrier met by the rows of the problem only",
        ("    __syncthreads();\n\n    // Line 14", "    if (threadIdx.y < rows) __syncthreads();\n\n    // Line 14"),
        ("        cuda.syncthreads()\n\n        # Line 14",
         "        if cuda.threadIdx.y < rows:\n            cuda.syncthreads()\n\n        # Line 14"),
        sanitize=True,
    ),
)  # fmt: skip
