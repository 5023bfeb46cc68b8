"""Variants that do to their process, or to the judge, what no variant should: each has to become its own error."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import sys
import time
from collections.abc import Callable

import cupy
import numpy as np
from one_thread_per_row import plan as right_plan
from one_thread_per_row import supports as right_supports

from harness import Launch, Plan, Problem, Registry, Traffic, Variant


def ends() -> None:
    os._exit(0)


def crashes() -> None:
    ctypes.string_at(0)


def loops() -> None:
    while True:
        pass


def sleeps() -> None:
    time.sleep(3600)


def interrupts() -> None:
    raise KeyboardInterrupt


def exits() -> None:
    raise SystemExit(0)


def exits_a_generator() -> None:
    raise GeneratorExit


def writes_into_every_pipe() -> None:
    """A print, and rubbish to standard output itself."""
    print('{"answer": null}')
    os.write(1, b"\x00\x00\x00\x04null")


def replaces_the_oracle() -> None:
    """Whatever is stored is right, where the judge is in reach."""
    import harness.execution.judging.accuracy as accuracy
    import harness.operations.attention.budget.error_budget as error_budget
    import harness.operations.attention.oracle as oracle

    for module in (accuracy, error_budget, oracle):
        for name, thing in list(vars(module).items()):
            if callable(thing) and getattr(thing, "__module__", "") == module.__name__:
                setattr(module, name, lambda *args, **rest: None)


DEEDS = (ends, crashes, loops, sleeps, interrupts, exits, exits_a_generator)
PLACES = ("plan", "supports", "claim", "tiles")


def doing(deed: Callable[[], None], place: str) -> Variant:
    """A variant that does it in one of its functions."""

    def supports(problem: Problem) -> str | None:
        return deed() if place == "supports" else right_supports(problem)

    def claim(problem: Problem, tile: object = None) -> Traffic:
        deed()
        return Traffic(1, 1)

    def tiles(problem: Problem) -> list[dict[str, int]]:
        deed()
        return [{"Br": 64}]

    def plan(problem: Problem, tile: object = None) -> Plan:
        if place == "plan":
            deed()
        return right_plan(problem)

    return Variant(
        name=f"{deed.__name__.replace('_', '-')}-in-{place}",
        plan=plan,
        supports=supports,
        claim=claim if place == "claim" else None,
        tiles=tiles if place == "tiles" else None,
    )


def half_of_it(problem: Problem) -> Plan:
    """Wrong: only the first rows of O are written."""
    (launch,) = right_plan(problem).launches
    return Plan((Launch(launch.kernel, (1, 1), launch.block, launch.args),), right_plan(problem).buffers)


def meddling(problem: Problem) -> Plan:
    replaces_the_oracle()
    return half_of_it(problem)


def negative_shared_memory(problem: Problem) -> Plan:
    (launch,) = right_plan(problem).launches
    return Plan((Launch(launch.kernel, launch.grid, launch.block, launch.args, shared_bytes=-1),))


def counts_in_reach() -> Traffic | None:
    """What the judge has counted, from its stack or anywhere in its memory."""
    frame = sys._getframe()
    while frame is not None:
        for value in frame.f_locals.values():
            if type(value).__name__ == "Execution":
                return Traffic(value.read_bytes, value.write_bytes)
        frame = frame.f_back
    for thing in gc.get_objects():
        if type(thing).__name__ in ("Execution", "LaunchReport", "Attempt"):
            return Traffic(1, 1)
    return None


def copied_claim(problem: Problem) -> Traffic:
    seen = counts_in_reach()
    if seen is not None:
        raise RuntimeError("the counts are in reach of a claim")
    return Traffic(7, 7)


def memorised(problem: Problem) -> Plan:
    """The answer for the seed that everybody names, as a constant; all inputs are read, and none is used."""
    from harness.model.operation import draw_inputs
    from harness.operations.attention.oracle import attention

    answer = attention(problem, draw_inputs(problem, "normal", 0))["O"].astype(np.float32).reshape(-1)
    numbers = ", ".join(f"{value!r}f" for value in map(float, answer))
    code = f"""
    __device__ const float answer[] = {{{numbers}}};
    extern "C" __global__ void memorised(const float* Q, const float* K, const float* V, float* O, int n, int keys)
    {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        float read = i < n ? Q[i] : 0.0f;
        for (int j = i; j < keys; j += blockDim.x * gridDim.x) read += K[j] + V[j];
        if (i < n) O[i] = answer[i] + (read == 1.234567e30f ? 1.0f : 0.0f);
    }}
    """
    kernel = cupy.RawKernel(code, "memorised")
    sizes = (math.prod(problem.q_shape), math.prod(problem.kv_shape))
    return Plan((Launch(kernel, (-(-sizes[0] // 1024),), (1024,), ("Q", "K", "V", "O", *map(np.int32, sizes))),))


def unread(problem: Problem) -> Plan:
    """The same answer, and no input is read."""
    (launch,) = memorised(problem).launches
    none = (*launch.args[:4], np.int32(math.prod(problem.q_shape)), np.int32(0))
    code = launch.kernel.code.replace("i < n ? Q[i] : 0.0f", "0.0f")
    return Plan((Launch(cupy.RawKernel(code, "memorised"), launch.grid, launch.block, none),))


def register(registry: Registry) -> None:
    for deed in DEEDS:
        for place in PLACES:
            registry.add(doing(deed, place))
    registry.add(doing(writes_into_every_pipe, "plan"))
    registry.add(Variant(name="copies-counts", plan=right_plan, supports=right_supports, claim=copied_claim))
    plans = (meddling, negative_shared_memory, memorised, unread)
    for plan in plans:
        registry.add(Variant(name=plan.__name__.replace("_", "-"), plan=plan, supports=right_supports))
