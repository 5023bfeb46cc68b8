#!/usr/bin/env python3
"""Time ring attention, or its gradients, on one GPU and on several: the speedup, and how far launches hide copies.

Run from the repository's root:

    python scripts/time_ring.py [--operation ring-attention-backward] [--variants 'ring-*'] [--devices 1,2]
                                [--seq-len 65536] [--heads 8] [--json FILE]

One device computes the whole sequence as one block. Several have it in zigzag order, under a causal mask. Times are
medians of cold runs, from a common start to the end of the last device. Besides the whole plan, its launches are timed
without its copies, and its copies without its launches. `hidden` is the share of the copies' time that does not add to
that of the launches. `differs by` is the largest difference of some heads' outputs from those of one device. Bandwidths
are of copies of 512 MiB between the first two GPUs. With --check the oracle checks answers at some places, which takes
minutes for long sequences.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from harness.execution.judging.spot_check import check_spots, choose_spots  # noqa: E402
from harness.execution.planning.variant_calls import make_plan  # noqa: E402
from harness.gpu.context import GpuContext  # noqa: E402
from harness.gpu.plan_devices import PlanDevices  # noqa: E402
from harness.gpu.stage import GpuStage  # noqa: E402
from harness.gpu.stopwatch import Stopwatch  # noqa: E402
from harness.model.cases.regime import NUMPY_DTYPES  # noqa: E402
from harness.model.discovery import discover  # noqa: E402
from harness.model.plan import Buffer, Plan  # noqa: E402
from harness.model.variant import Variant  # noqa: E402
from harness.operations.ring_attention.problem import RingProblem  # noqa: E402
from harness.operations.ring_attention_backward.problem import RingBackwardProblem  # noqa: E402
from harness.support.errors import SandboxError  # noqa: E402
from harness.text.tables import table  # noqa: E402
from scripts.hopper import backward_inputs  # noqa: E402

COPIED = Buffer("copied", (1 << 29,), "uint8")
COLUMNS = (
    "devices", "GPUs", "variant", "verdict", "ms", "TFLOP/s", "launches ms", "copies ms", "hidden %", "speedup",
    "differs by",
)  # fmt: skip
COMPARED_HEADS = 2
TIMED = {
    "ring-attention": (RingProblem, "ring-fa3-cupy,ring-mma-cupy"),
    "ring-attention-backward": (RingBackwardProblem, "ring-bwd-fa3-cupy,ring-bwd-mma-cupy"),
}
"""Operations, with the variants that are timed by default."""
FORWARD = "fa2-mma-cupy"
"""Computes O and lse, of which gradients are."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Time ring attention, or its gradients, on one GPU and on several.")
    parser.add_argument("--operation", choices=TIMED, default="ring-attention", help="(default: %(default)s)")
    parser.add_argument("--variants", help="names or shell patterns (default: those for Hopper and with mma)")
    parser.add_argument("--devices", default="1,2", help="numbers of devices (default: %(default)s)")
    parser.add_argument("--seq-len", type=int, default=65536)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--runs", type=int, default=11, help="cold runs of each (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="check answers against the oracle")
    parser.add_argument("--json", type=Path, help="also write what was measured to this file")
    asked = parser.parse_args()
    problem_class, default = TIMED[asked.operation]
    variants = discover().registry.select(asked.variants or default, asked.operation)
    first, rows = GpuContext(), []
    whole = problem_class(
        heads=asked.heads, kv_heads=asked.heads, q_len=asked.seq_len, kv_len=asked.seq_len, head_dim=asked.head_dim,
        dtype=asked.dtype, mask="causal", devices=1,
    )  # fmt: skip
    inputs = drawn(first, whole)
    of_one: dict[str, list[np.ndarray]] = {}
    for count in map(int, asked.devices.split(",")):
        problem = dataclasses.replace(whole, devices=count, row_order="contiguous" if count == 1 else "zigzag")
        for variant in variants:
            row, outputs = timed(first, problem, inputs, variant, asked.runs, asked.check)
            rows.append(row)
            if outputs and variant.name in of_one:
                differences = (np.abs(here - there).max() for here, there in zip(outputs, of_one[variant.name]))
                row["differs by"] = float(max(differences))
            elif outputs and count == 1:
                of_one[variant.name] = outputs
            if row["reason"]:
                print(f"{row['variant']}, {count} devices: {row['reason']}")
    for row in rows:
        alone = [other["ms"] for other in rows if (other["variant"], other["devices"]) == (row["variant"], 1)]
        row["speedup"] = alone[0] / row["ms"] if alone and alone[0] and row["ms"] else None
    links = bandwidths(first, asked.runs)
    print(f"{problem.whole.headline}; {first.device.name}, {first.device.count} of them")
    cells = [[shown(row.get(name)) for name in COLUMNS] for row in rows]
    print(table(list(COLUMNS), cells, [name not in ("variant", "verdict") for name in COLUMNS]))
    for row in rows:
        for name, ms in row.get("kernels", {}).items():
            print(f"{row['variant']}, {row['devices']} devices: launches of {name} alone {ms:.3f} ms")
    for what, rate in links.items():
        print(f"{what}: {rate / 1e9:.0f} GB/s")
    if asked.json is not None:
        asked.json.write_text(
            json.dumps({"problem": problem.whole.to_fields(), "rows": rows, "links": links}, indent=1)
        )
    sys.exit(1 if any(row["verdict"] in ("fail", "error") for row in rows) else 0)


def shown(value: Any) -> str:
    return "-" if value is None else f"{value:,.3f}" if isinstance(value, float) else str(value)


def drawn(first: GpuContext, problem: RingProblem) -> dict[str, np.ndarray]:
    """Inputs from N(0, 1), drawn on the GPU; O and lse of gradients follow from them."""
    found: dict[str, np.ndarray] = {}
    if isinstance(problem, RingBackwardProblem):
        found, _ = backward_inputs.draw(problem.whole, discover().registry.get(FORWARD), seed=0, context=first)
        return found
    with first.memory():
        random = first.cupy.random.default_rng(0)
        for tensor in problem.inputs:
            numbers = random.standard_normal(tensor.shape, dtype="float32").get()
            found[tensor.name] = numbers.astype(NUMPY_DTYPES[tensor.dtype])
    return found


def timed(
    first: GpuContext, problem: RingProblem, inputs: Any, variant: Variant, runs: int, checks: bool
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The variant's row, and its outputs of some heads: none if it failed."""
    devices = PlanDevices(first, problem.devices)
    row: dict[str, Any] = {"devices": problem.devices, "variant": variant.name, "GPUs": len(devices.contexts)}
    try:
        with devices.memory():
            stopwatch = Stopwatch(first, devices.contexts[1:])
            plan = make_plan(variant, problem, first.device.arch)
            stage = GpuStage(first, problem, [inputs], [plan], devices)
            contender = stage.bind(plan)
            outputs = contender.outputs(0)
            checked = check_spots(choose_spots(problem, inputs), outputs, variant.numerics) if checks else None
            row["reason"] = None if checked is None else checked.reason
            row["verdict"] = "unchecked" if checked is None else "fail" if checked.reason else "pass"
            ms = median_ms(stopwatch, runs, lambda: contender.enqueue(0))
            row |= {"ms": ms, "TFLOP/s": problem.flops / ms / 1e9}
            if plan.copies:
                launches = median_ms(stopwatch, runs, lambda: contender.enqueue(0, copies=False))
                copies = median_ms(stopwatch, runs, lambda: contender.enqueue(0, launches=False))
                row |= {"launches ms": launches, "copies ms": copies}
                row["hidden %"] = 100 * (launches + copies - ms) / copies
                row["kernels"] = {name: kernel_ms(stopwatch, runs, stage, plan, name) for name in kernels_of(plan)}
            names = plan.output_names(problem)
            return row, [outputs[name][0, :COMPARED_HEADS].astype(np.float32) for name in names]
    except SandboxError as error:
        return row | {"verdict": "error", "reason": str(error), "ms": None}, []


def kernels_of(plan: Plan) -> list[str]:
    """Names of the plan's kernels."""
    return list(dict.fromkeys(launch.kernel_name for launch in plan.launches))


def kernel_ms(stopwatch: Stopwatch, runs: int, stage: GpuStage, plan: Plan, name: str) -> float:
    """Time of the launches of one kernel, without others and without copies."""
    chosen = tuple(launch for launch in plan.launches if launch.kernel_name == name)
    contender = stage.bind(dataclasses.replace(plan, launches=chosen, copies=()))
    return median_ms(stopwatch, runs, lambda: contender.enqueue(0))


def bandwidths(first: GpuContext, runs: int) -> dict[str, float]:
    """Bytes per second from the first GPU to the second, and of both directions at once together."""
    devices = PlanDevices(first, 2)
    if len(devices.contexts) < 2:
        return {}
    one, other = devices.contexts
    with devices.memory():
        stopwatch, began, ended = Stopwatch(one, [other]), one.event(), other.event()
        arrays = {(context, n): context.allocate(COPIED) for context in devices.contexts for n in range(2)}

        def there() -> None:
            one.copy_to(other, arrays[one, 0], arrays[other, 0], COPIED.size_bytes, one.stream)

        def both() -> None:
            began.record(one.stream)
            other.stream.wait_event(began)
            there()
            other.copy_to(one, arrays[other, 1], arrays[one, 1], COPIED.size_bytes, other.stream)
            ended.record(other.stream)
            one.stream.wait_event(ended)

        found = {
            "copy to the other GPU": 1000 * COPIED.size_bytes / median_ms(stopwatch, runs, there),
            "copies in both directions at once": 2000 * COPIED.size_bytes / median_ms(stopwatch, runs, both),
        }
    return found


def median_ms(stopwatch: Stopwatch, runs: int, enqueue: Callable[[], None]) -> float:
    stopwatch.cold_ms(enqueue)
    return statistics.median(stopwatch.cold_ms(enqueue) for _ in range(runs))


if __name__ == "__main__":
    main()
