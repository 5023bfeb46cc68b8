"""`harness.run`: one variant on the arrays of a caller in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.execution.outcome import Comparison
from harness.model.operation import DEFAULT_OPERATION, operation_named
from harness.model.variant import Variant
from harness.operations.attention.masks.arrays import CU_SEQLENS_K, CU_SEQLENS_Q
from harness.operations.attention.masks.varlen import Varlen
from harness.options.call import Plugins, call
from harness.options.command import Command
from harness.studies.run.command import ArraysRequest, add_options_of_call
from harness.studies.run.python_arrays import IN_PLACE, as_numpy, given, in_kind_of, layout_of
from harness.studies.run.run import run_arrays
from harness.studies.run.user_arrays import Given, gather_arrays
from harness.support.errors import UsageError
from harness.text.study_result import RunResult

CU_SEQLENS = (CU_SEQLENS_Q, CU_SEQLENS_K)
"""Where the rows, and the keys, of each sequence begin, and their number: (sequences + 1,) whole numbers."""
OF_KEYS = ("K", "V")
"""Arrays with a row per key; others have one per query."""
LSE = "lse"


def sequences_of(starts: Mapping[str, Any]) -> Varlen:
    """Return the sequences that begin at `starts`, the arrays `CU_SEQLENS`; that of K is that of Q if it is missing.

    Raises `UsageError` if one of them is no such array.
    """
    if CU_SEQLENS_Q not in starts:
        raise UsageError(f"give {CU_SEQLENS_Q}, too")
    lengths = {name: _lengths(name, array) for name, array in starts.items()}
    rows = lengths[CU_SEQLENS_Q]
    keys = lengths.get(CU_SEQLENS_K, rows)
    if len(rows) != len(keys):
        raise UsageError(f"{CU_SEQLENS_Q} has {len(rows)} sequences and {CU_SEQLENS_K} has {len(keys)}")
    return Varlen(rows, keys)


def _lengths(name: str, array: Any) -> tuple[int, ...]:
    starts = as_numpy(name, array)
    if starts.ndim != 1 or len(starts) < 2 or starts.dtype.kind not in "iu":
        raise UsageError(
            f"{name} is {starts.dtype}{starts.shape}; it has to be (sequences + 1,) whole numbers, 0 and the running "
            "sum of the lengths"
        )
    lengths = np.diff(starts.astype(np.int64))
    if starts[0] != 0 or (lengths < 0).any():
        raise UsageError(f"{name} begins with {starts[0]} and must begin with 0 and never decrease")
    return tuple(map(int, lengths))


def with_batch(name: str, given: Given, total: int) -> Given:
    """Return (all rows, heads, elements) as (1, heads, all rows, elements), and lse as (1, heads, all rows), views.

    Raises `UsageError` if a shape is another one.
    """
    if name == LSE:
        if given.array.ndim != 2 or given.array.shape[1] != total:
            raise UsageError(f"{name} has shape {given.array.shape}; with cu_seqlens it has to be (heads, {total})")
        return Given(given.place, given.array[None])
    if given.array.ndim != 3 or given.array.shape[0] != total:
        raise UsageError(
            f"{name} has shape {given.array.shape}; with cu_seqlens it has to be ({total}, heads, head_dim)"
        )
    return Given(given.place, given.array.transpose(1, 0, 2)[None])


def without_batch(output: np.ndarray) -> np.ndarray:
    """Return O, or a gradient, as (all rows or keys, heads, elements), and lse as (heads, all rows)."""
    whole: np.ndarray = output[0]
    return np.ascontiguousarray(whole.transpose(1, 0, 2)) if whole.ndim == 3 else whole


def run_call(variant: str | Variant, plugin: Plugins, options: Mapping[str, Any]) -> RunResult[Comparison]:
    """Run a variant on arrays, which `options` has beside the command's options; see `harness.run`."""
    said = dict(options)
    operation = operation_named(str(said.get("operation", DEFAULT_OPERATION)))
    names = [tensor.name for tensor in operation.problem().inputs]
    missing = [name.lower() for name in names if said.get(name.lower()) is None]
    if missing:
        raise UsageError(f"run() needs {', '.join(missing)}: an array for each of {', '.join(names)}")
    arrays = {name: said.pop(name.lower()) for name in names}
    others = {n: said.pop(n.lower()) for n in operation.further_inputs if _is_array(said.get(n.lower()))}
    starts = {name: said.pop(name) for name in CU_SEQLENS if said.get(name) is not None}
    sequences = sequences_of(starts) if starts and "layout" in operation.settings else None
    packed = sequences is not None or CU_SEQLENS_Q in others
    in_place = said.get("layout") == IN_PLACE and "layout" in operation.settings
    if in_place:
        del said["layout"]

    def study(request: ArraysRequest) -> RunResult[Comparison]:
        own = {name: given(name, array) for name, array in arrays.items()}
        if sequences is not None:
            rows, keys = sum(sequences.q_lengths), sum(sequences.kv_lengths)
            own = {name: with_batch(name, array, keys if name in OF_KEYS else rows) for name, array in own.items()}
        elif packed:
            own["Q"] = with_batch("Q", own["Q"], len(own["Q"].array))
        gathered = gather_arrays(
            operation,
            own,
            request.dtype,
            {name: given(name, array) for name, array in others.items()},
        )
        settings = request.problem.fields(operation.settings)
        settings |= {} if sequences is None else {"varlen": sequences}
        if in_place:
            settings = {**settings, "layout": layout_of(gathered.inputs, gathered.axes_left_out)}
        shown, outputs = run_arrays(request, gathered, settings)
        first = arrays[names[0]]
        axes_of = without_batch if packed else gathered.with_their_axes
        found = {name: in_kind_of(first, axes_of(output)) for name, output in outputs.items()}
        return RunResult(shown.result, shown.report, shown.passed, outputs=found)

    command = Command("run", "", add_options_of_call, ArraysRequest, lambda request: 0, study)
    result = call(command, None, variant, plugin, said, selects_by="")
    assert isinstance(result, RunResult)
    return result


def _is_array(value: object) -> bool:
    """Whether an option that may be a flag or an array is an array."""
    return value is not None and not isinstance(value, bool | str)
