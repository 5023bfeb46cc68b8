"""Which keys a row sees: a file for each kind of mask, and what they have in common.

`--mask causal+window:256` is parsed here, and `Problem.mask` holds what came of it. A kind of mask is one module of
this package that defines a `Mask` under the name `KIND`; nothing lists them.
"""

from harness.operations.attention.masks.arrays import BLOCKS, CU_SEQLENS_Q, END_ROWS, FIRST_ROWS, runs_of_keys
from harness.operations.attention.masks.mask import (
    NO_MASK,
    Band,
    Integers,
    Intersection,
    Mask,
    Visibility,
    band_limits,
)
from harness.operations.attention.masks.parsing import mask_help, mask_kinds, parse_mask
from harness.operations.attention.masks.rule_of_arrays import Rule, rule_of_arrays

__all__ = [
    "BLOCKS", "CU_SEQLENS_Q", "END_ROWS", "FIRST_ROWS", "NO_MASK", "Band", "Integers", "Intersection", "Mask", "Rule",
    "Visibility", "band_limits", "mask_help", "mask_kinds", "parse_mask", "rule_of_arrays", "runs_of_keys",
]  # fmt: skip
