"""Barriers left out, or met by some threads only. The answer may well be right: the sanitizer looks on."""

from __future__ import annotations

from tests.mutants.planting import in_kernel

_CUDA, _NUMBA = "        __syncthreads();\n", "            cuda.syncthreads()\n"
"""A barrier in the loop over tiles of keys."""
_K_CUDA = "        load_tile<BC>(KV_tile, K_head + (size_t)first_key * D, keys);\n"
_V_CUDA = "        load_tile<BC>(KV_tile, V_head + (size_t)first_key * D, keys);\n"
_K_NUMBA = "            load_tile(KV_tile, BC, K_head, first_key, keys)\n"
_V_NUMBA = "            load_tile(KV_tile, BC, V_head, first_key, keys)\n"
_BEFORE_K = ("first_key);\n\n", "first_key)\n\n")
"""What stands before the barrier before the load of K in sweep two of two-pass, in CUDA and in Numba."""
_WAIT_CUDA, _WAIT_NUMBA = "        wait_for_copies();\n", "            wait_for_copies()\n"
_COPIES = {
    "K": ("        copy_keys(V_tile", "            copy_keys(V_tile"),
    "V": ("        if (next.exists())", "            if exists(next):"),
}
"""What fa2 copies once K_j, or V_j, is there."""


def _without_barrier(bug: str, before: tuple[str, str], loads: tuple[str, str], after: bool):
    """The barrier before, or `after`, the load of a tile is left out."""
    replacements = [
        (text + barrier + load + barrier, text + (barrier + load if after else load + barrier))
        for text, load, barrier in zip(before, loads, (_CUDA, _NUMBA), strict=True)
    ]
    return in_kernel("two-pass", bug, *replacements, sanitize=True)


MUTANTS = (
    *(
        mutant
        for tile, before, loads in (("K", _BEFORE_K, (_K_CUDA, _K_NUMBA)), ("V", ("", ""), (_V_CUDA, _V_NUMBA)))
        for place in ("after", "before")
        for mutant in _without_barrier(f"no barrier {place} the load of {tile}", before, loads, place == "after")
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
