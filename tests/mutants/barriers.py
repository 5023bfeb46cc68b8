"""Barriers left out, or met by some threads only. The answer may well be right: the sanitizer looks on."""

from __future__ import annotations

from tests.mutants.planting import in_kernel

_K_CUDA = "load_tile<BC>(KV_tile, K_head + (size_t)first_key * D, keys);\n"
_V_CUDA = "load_tile<BC>(KV_tile, V_head + (size_t)first_key * D, keys);\n"
_K_NUMBA = "load_tile(KV_tile, BC, K_head, first_key, keys)\n"
_V_NUMBA = "load_tile(KV_tile, BC, V_head, first_key, keys)\n"
_CUDA, _NUMBA = "        __syncthreads();\n", "            cuda.syncthreads()\n"
"""A barrier in the loop over tiles of keys."""

MUTANTS = (
    *(
        mutant
        for algorithm in ("fa2", "two-pass")
        for bug, cuda, numba in (
            ("no barrier after the load of K", _K_CUDA, _K_NUMBA),
            ("no barrier after the load of V", _V_CUDA, _V_NUMBA),
        )
        for mutant in in_kernel(
            algorithm, bug, (cuda + _CUDA, cuda), (numba + _NUMBA, numba), sanitize=True
        )
    ),
    *(
        mutant
        for algorithm in ("fa2", "two-pass")
        for bug, cuda, numba in (
            ("no barrier before the load of K", _K_CUDA, _K_NUMBA),
            ("no barrier before the load of V", _V_CUDA, _V_NUMBA),
        )
        for mutant in in_kernel(
            algorithm, bug, (_CUDA + "        " + cuda, "        " + cuda),
            (_NUMBA + "            " + numba, "            " + numba), sanitize=True
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
