"""Where the pages of K and V lie: strides taken for dense, for the other pool's or for each other, and in 32 bits."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch
from tests.mutants.planting import CUDA, NUMBA, planted

_TYPES, _LEAN, _PLAN = "_paged/strided_pools.cuh", "paged_attention/paged_lean/numba_kernel.py", "_paged/__init__.py"
_ROWS = "{head.first + page * head.page + row * head.row, head.row}"
_ROW_OF_LEAN = "uint64(uint32(key) % uint32(PAGE)) * strides[2], strides[2]"
_PAGE_OF_LEAN = "uint64(page_of_key(keys, key)) * strides[0]"
_STRIDES = 'tuple(map(np.int64, problem.tensor(name).strides[:-1])) for name in "KV"'
_OF_PLAN = (
    ("page stride of a dense pool", _STRIDES,
     "(np.int64(problem.kv_heads * problem.page_size * problem.head_dim), "
     '*map(np.int64, problem.tensor(name).strides[1:-1])) for name in "KV"'),
    ("strides of K used for V", _STRIDES, _STRIDES.replace('"KV"', '"KK"')),
    ("strides of heads and rows exchanged", _STRIDES,
     'tuple(np.int64(problem.tensor(name).strides[axis]) for axis in (0, 2, 1)) for name in "KV"'),
)  # fmt: skip
_OF_KERNELS = (
    ("offset of a page in 32 bits", (_ROWS, _ROWS.replace("page * head.page", "(int)(page * head.page)")),
     (_PAGE_OF_LEAN, "uint64(uint32(uint32(page_of_key(keys, key)) * uint32(strides[0])))")),
    ("row stride counted in whole rows", (_ROWS, _ROWS.replace("row * head.row", "row * (head.row / D * D)")),
     (_ROW_OF_LEAN, "uint64(uint32(key) % uint32(PAGE)) * (strides[2] // uint64(row_bytes) * uint64(row_bytes)), "
                    "strides[2]")),
    ("rows of a tile copied as one run", (_ROWS, _ROWS.replace("head.row}", "D}")),
     (_ROW_OF_LEAN, _ROW_OF_LEAN.replace(", strides[2]", ", uint64(row_bytes)"))),
)  # fmt: skip
IN_ONE_LANGUAGE = (
    *(Mutant(bug, f"paged-{CUDA}", (Patch(_PLAN, old, new),)) for bug, old, new in _OF_PLAN),
    *(Mutant(bug, f"paged-{CUDA}", (Patch(_TYPES, *cuda),)) for bug, cuda, _ in _OF_KERNELS),
)
"""In `paged`, whose Numba kernel gets arrays that know their strides."""
MUTANTS = (
    *IN_ONE_LANGUAGE,
    *(Mutant(bug, f"paged-split-kv-{CUDA}", (Patch(_PLAN, old, new),)) for bug, old, new in _OF_PLAN),
    *(Mutant(bug, f"paged-split-kv-{CUDA}", (Patch(_TYPES, *cuda),)) for bug, cuda, _ in _OF_KERNELS),
    *(
        Mutant(bug, f"paged-lean-{language}", (Patch(_PLAN, old, new),))
        for bug, old, new in _OF_PLAN
        for language in (CUDA, NUMBA)
    ),
    *(
        mutant
        for bug, cuda, numba in _OF_KERNELS
        for mutant in planted("paged-lean", bug, _TYPES, _LEAN, ((cuda, numba),))
    ),
)
