"""The device functions of all features, as makers of Numba kernels get them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from variants._features.numba_dropout import numba_dropout
from variants._features.numba_limits import numba_limits
from variants._features.numba_scores import numba_scores, numba_sink
from variants._features.numba_sequences import SequenceFunctions, numba_sequences
from variants._features.numba_tile_order import numba_tile_order


@dataclass(frozen=True, eq=False)
class NumbaFeatures:
    """Device functions of a problem's features, each named as in the module of the feature."""

    limits: SimpleNamespace
    order: SimpleNamespace
    scores: SimpleNamespace
    sink: SimpleNamespace
    dropout: SimpleNamespace
    sequences: SequenceFunctions
    varlen: bool


@functools.cache
def numba_features(
    spans: bool,
    rule: Any,
    terms: tuple[str, ...],
    sinks: bool,
    drops: bool,
    rows: int,
    keys: int,
    threads: int,
    varlen: bool = False,
) -> NumbaFeatures:
    """Return the features of kernels with `threads` threads per block and tiles of `rows` rows and `keys` keys.

    `rule`: the `NumbaRule` of a mask that is no run of keys, or None. The same arguments give the same object, so that
    makers of kernels can cache by it.
    """
    return NumbaFeatures(
        numba_limits(spans, rows),
        numba_tile_order(rule, rows, keys, threads),
        numba_scores(terms),
        numba_sink(sinks),
        numba_dropout(drops, -(-keys // 8)),
        numba_sequences(varlen),
        varlen,
    )
