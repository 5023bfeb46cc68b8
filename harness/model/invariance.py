"""Defines what the bits of a result may be independent of, and runs with which that is tested.

Served models answer the same request in batches of different sizes. If the bits of its answer change with the batch,
sampling is not reproducible, and logits of training and inference differ: see He 2025, "Defeating nondeterminism in LLM
inference", Thinking Machines Lab.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

BATCH, SPLITS, PADDING = "batch", "splits", "padding"
INVARIANCES: Mapping[str, str] = {
    BATCH: "a sequence gives the same bits whatever else is in its batch",
    SPLITS: "all tile sizes that the variant offers give the same bits, however many splits of the keys that makes",
    PADDING: "a row gives the same bits whatever rows of queries are put before it in its sequence",
}
"""Values of `Variant.invariant_to`, and what each promises."""


@dataclass(frozen=True)
class Change:
    """Another problem, in which some elements of the outputs have to be those of the first."""

    what: str
    """Description, such as `sequence 1 alone`."""
    problem: Any
    inputs: Mapping[str, np.ndarray]
    own: tuple[slice, ...]
    """Where these elements are in each output of the first problem; the leading axes."""
    there: tuple[Any, ...]
    """Where they are in each output of `problem`, slices or arrays of indices."""


def with_rows_before(Q: np.ndarray, rows: int) -> np.ndarray:
    """Q, (batch, heads, q_len, head_dim), behind so many other rows in each sequence."""
    import numpy as np

    before = np.resize(np.roll(Q, 1, axis=-1), (*Q.shape[:2], rows, Q.shape[3])).astype(Q.dtype)
    return np.ascontiguousarray(np.concatenate((before, Q), axis=2))
