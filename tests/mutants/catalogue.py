"""All mutants. A bug that makes sense for several variants is planted in several, always in both backends.

The words follow what has gone wrong in published kernels. `fa2` has most of them: it has every part that the others have.
"""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

CUDA, NUMBA = "cupy", "numba"
_FILES = {CUDA: "kernel.cu", NUMBA: "numba_kernel.py"}
_TILES = {CUDA: "_tiles/tiles.cuh", NUMBA: "_tiles/numba_tiles.py"}

Replacement = tuple[str, str]


def _mutants(algorithm: str, bug: str, file: dict[str, str] | None, cuda: list[Replacement], numba: list[Replacement]):
    folder = algorithm.replace("-", "_")
    for backend, replacements in ((CUDA, cuda), (NUMBA, numba)):
        path = f"{folder}/{_FILES[backend]}" if file is None else file[backend]
        yield Mutant(bug, f"{algorithm}-{backend}", tuple(Patch(path, old, new) for old, new in replacements))


def _kernel(algorithm: str, bug: str, cuda: Replacement, numba: Replacement, *more: tuple[Replacement, Replacement]):
    """Planted in the algorithm's own kernel; `more` are further replacements, CUDA's and Numba's."""
    return _mutants(algorithm, bug, None, [cuda, *(c for c, _ in more)], [numba, *(n for _, n in more)])


def _tiles(algorithm: str, bug: str, cuda: Replacement, numba: Replacement):
    """Planted in what all algorithms do with tiles, seen through one of them."""
    return _mutants(algorithm, bug, _TILES, [cuda], [numba])


RUNNING_MAXIMUM = (
    *_kernel(
        "fa2", "m overwritten before the correction",
        ("const float correction = exp_below(m[i], m_new);\n            m[i] = m_new;",
         "m[i] = m_new;\n            const float correction = exp_below(m[i], m_new);"),
        ("correction = exp_below(m[i], m_new)\n                m[i] = m_new",
         "m[i] = m_new\n                correction = exp_below(m[i], m_new)"),
    ),
    *_kernel(
        "fa2", "m not carried across tiles",
        ("const float m_new = fmaxf(m[i], row_max(S[i]));", "const float m_new = row_max(S[i]);"),
        ("m_new = max(m[i], row_max(S, i))", "m_new = row_max(S, i)"),
    ),
    *_kernel(
        "fa2", "P relative to the old maximum",
        ("const float p = exp_below(S[i][j], m_new);", "const float p = exp_below(S[i][j], m_old);"),
        ("p = exp_below(S[i, j], m_new)", "p = exp_below(S[i, j], m_old)"),
        (("const float correction = exp_below(m[i], m_new);",
          "const float m_old = m[i] == MINUS_INFINITY ? m_new : m[i];\n"
          "            const float correction = exp_below(m[i], m_new);"),
         ("correction = exp_below(m[i], m_new)",
          "m_old = m_new if m[i] == MINUS_INFINITY else m[i]\n                correction = exp_below(m[i], m_new)")),
    ),
    *_kernel(
        "fa2", "sign of the correction inverted",
        ("const float correction = exp_below(m[i], m_new);",
         "const float correction = m[i] == MINUS_INFINITY ? 0.0f : exp_below(m_new, m[i]);"),
        ("correction = exp_below(m[i], m_new)",
         "correction = ZERO if m[i] == MINUS_INFINITY else exp_below(m_new, m[i])"),
    ),
    *_kernel(
        "two-pass", "m not carried across tiles",
        ("const float m_new = fmaxf(m[i], row_max(S[i]));", "const float m_new = row_max(S[i]);"),
        ("m_new = max(m[i], row_max(S, i))", "m_new = row_max(S, i)"),
    ),
    *_kernel(
        "fa1", "m of the tile stored in place of the new one",
        ("m_new[i] = fmaxf(m_old, m_here);", "m_new[i] = fmaxf(m_old, m_here); const float m_kept = m_here;"),
        ("m_new[i] = max(m_old, m_here)", "m_new[i] = max(m_old, m_here)"),
    ) if False else (),
    *_kernel(
        "three-pass", "maximum misses the last step of a row",
        ("for (int c = 0; c < KEYS_AT_ONCE; ++c) m = fmaxf(m, widen(s[c]));",
         "for (int c = 0; c < KEYS_AT_ONCE - 1; ++c) m = fmaxf(m, widen(s[c]));"),
        ("for c in range(KEYS_AT_ONCE):\n                m = max(m, widen(s[c]))",
         "for c in range(KEYS_AT_ONCE - 1):\n                m = max(m, widen(s[c]))"),
    ),
    *_tiles(
        "fa2", "maximum over one thread's keys only",
        ("return lanes_max<TX>(largest);", "return largest;"),
        ("return lanes_max(largest, TX)", "return largest"),
    ),
)  # fmt: skip
