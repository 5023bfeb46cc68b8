"""Variants whose answer is wrong, and what each of them does to have it called right, or to do harm.

Where an attack is no kernel, its kernel leaves half of O unwritten. `ATTACKS` says how each one has to end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import cupy
import numpy as np
from hostile_deeds import ALONE, DEEDS, ESCAPES, UNWRITTEN, Deed, attack_name
from one_thread_per_row import CODE
from one_thread_per_row import plan as right_plan
from one_thread_per_row import supports as right_supports

from harness import Buffer, Launch, Plan, Problem, Registry, Traffic, Variant


def half_plan(problem: Problem) -> Plan:
    (launch,) = right_plan(problem).launches
    return Plan((Launch(launch.kernel, (1, 1), launch.block, launch.args),), right_plan(problem).buffers)


def doing(deed: Deed) -> Callable[[Problem], Plan]:
    def plan(problem: Problem) -> Plan:
        deed()
        return half_plan(problem)

    return plan


# Objects that are not what they seem.


class AlwaysEqual(int):
    """A number that says yes to every comparison."""

    def __eq__(self, other: object) -> bool:
        return True

    def __lt__(self, other: object) -> bool:
        return True

    __le__ = __gt__ = __ge__ = __lt__
    __hash__ = int.__hash__


class Shifting(int):
    """Another number each time that it is looked at."""

    looked = 0

    def __index__(self) -> int:
        Shifting.looked += 1
        return Shifting.looked

    __int__ = __index__


class AnyName(str):
    """A buffer of every name."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("O")


class ShiftingPlan(Plan):
    """The right launches for who checks them, others for who sends them."""

    def __getattribute__(self, name: str) -> Any:
        if name == "launches" and sys._getframe(1).f_code.co_name == "plan_to_json":
            return ()
        return super().__getattribute__(name)


def shifting_plan(problem: Problem) -> Plan:
    whole = right_plan(problem)
    return ShiftingPlan(whole.launches, whole.buffers)


def plan_with_grid(make: Callable[[int], int]) -> Callable[[Problem], Plan]:
    def plan(problem: Problem) -> Plan:
        (launch,) = half_plan(problem).launches
        return Plan((Launch(launch.kernel, (make(1), make(1)), launch.block, launch.args),), half_plan(problem).buffers)

    return plan


def plan_of_any_name(problem: Problem) -> Plan:
    (launch,) = half_plan(problem).launches
    args = (*launch.args[:3], AnyName("Q"), *launch.args[4:])
    return Plan((Launch(launch.kernel, launch.grid, launch.block, args),), half_plan(problem).buffers)


def lazy_plan(problem: Problem) -> Iterator[Plan]:
    yield right_plan(problem)


def unshowable_buffer(problem: Problem) -> Plan:
    plan = half_plan(problem)
    return Plan(plan.launches, (*plan.buffers, Buffer("tmp" + ESCAPES, (4,), "float32")))


def endless_tiles(problem: Problem) -> Iterator[dict[str, int]]:
    while True:
        yield {"Br": 16}


def flapping() -> Callable[[Problem], str | None]:
    """Another answer each time: neither of them makes it right."""
    calls = iter(range(10**9))
    return lambda problem: None if next(calls) % 2 == 0 else "not today" + ESCAPES


def claim_of(number: Any) -> Callable[[Problem], Traffic]:
    return lambda problem: Traffic(number, number)


class EqualTraffic(Traffic):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


OBJECTS: dict[str, tuple[dict[str, Any], str]] = {
    "always-equal-grid": ({"plan": plan_with_grid(AlwaysEqual)}, UNWRITTEN),
    "shifting-grid": ({"plan": plan_with_grid(Shifting)}, f"{UNWRITTEN}|grid"),
    "shifting-plan": ({"plan": shifting_plan}, f"{UNWRITTEN}|launch"),
    "any-name": ({"plan": plan_of_any_name}, f"{UNWRITTEN}|Q"),
    "lazy-plan": ({"plan": lazy_plan}, "plan.. returned a generator"),
    "unshowable-buffer": ({"plan": unshowable_buffer}, f"{UNWRITTEN}|tmp"),
    "endless-tiles": ({"plan": half_plan, "tiles": endless_tiles}, "MemoryError|no answer"),
    "flapping": ({"plan": half_plan, "supports": flapping()}, f"{UNWRITTEN}|not today"),
    "claims-nan": ({"plan": right_plan, "claim": claim_of(float("nan"))}, "claim.. returned read_bytes=nan"),
    "claims-thousands-of-digits": ({"plan": right_plan, "claim": claim_of(10**5000)}, "2\\^63 or more"),
    "claims-less-than-nothing": ({"plan": right_plan, "claim": claim_of(-1)}, "from 0 to 2\\^63"),
    "claims-what-is-equal": ({"plan": right_plan, "claim": claim_of(AlwaysEqual(7))}, "claims 7 bytes"),
    "claims-equal-traffic": ({"plan": right_plan, "claim": lambda problem: EqualTraffic(7, 7)}, "claims 7 bytes"),
}
"""A variant's functions; what the reason has to say."""


# Kernels.


def kernel_plan(body: str, head: str = "", name: str = "attack", **rest: Any) -> Callable[[Problem], Plan]:
    """One block whose threads run `body` over the `n` elements of O."""
    code = f"""{head}
    extern "C" __global__ void {name}(const float* Q, const float* K, const float* V, float* O, int n)
    {{ int i = threadIdx.x; {body} }}"""
    kernel = cupy.RawKernel(code, name)

    def plan(problem: Problem) -> Plan:
        n = np.int32(np.prod(problem.q_shape))
        return Plan((Launch(kernel, (1,), (128,), ("Q", "K", "V", "O", n), **rest),))

    return plan


def aliasing(problem: Problem) -> Plan:
    """The answer goes into V, and O stays as it is."""
    (launch,) = right_plan(problem).launches
    args = (*launch.args[:3], "V", *launch.args[4:])
    return Plan((Launch(launch.kernel, launch.grid, launch.block, args),), right_plan(problem).buffers)


def right_once(problem: Problem) -> Plan:
    """Right in the first run of its module alone."""
    code = CODE.replace('extern "C"', '__device__ int runs; extern "C"', 1).replace(
        "o[c] = l == 0.0f", "o[c] = runs > 0 ? 7.0f : l == 0.0f"
    )
    code = code.replace("lse[(long", "if (head == gridDim.y - 1 && i == N_q - 1) runs = 1;\n    lse[(long")
    (launch,) = right_plan(problem).launches
    kernel = cupy.RawKernel(code, "one_thread_per_row")
    return Plan((Launch(kernel, launch.grid, launch.block, launch.args),), right_plan(problem).buffers)


KERNELS: dict[str, tuple[Callable[[Problem], Plan], str]] = {
    "stale-outputs": (kernel_plan("if (Q[0] == 1.2345e30f) O[i] = 0;"), UNWRITTEN),
    "aliasing": (aliasing, f"{UNWRITTEN}|V"),
    "right-once": (right_once, "second run|wrong|times the budget|x its budget|budget"),
    "spoils-inputs": (
        kernel_plan("if (i < n) { ((float*)K)[i] = 0; ((float*)V)[i] = 0; ((float*)Q)[i] = 0; O[i] = 0; }"),
        "store into Q, which is an input",
    ),
    "writes-nan": (kernel_plan("if (i < n) O[i] = __int_as_float(0x7fc00000);"), "NaN|nan|never written"),
    "writes-infinity": (kernel_plan("if (i < n) O[i] = __int_as_float(0x7f800000);"), "inf|finite|budget"),
    "reads-guards": (kernel_plan("if (i < n) O[i] = Q[-1 - i] + Q[n + i];"), "out-of-bounds"),
    "searches-memory": (
        kernel_plan("if (i < n) O[i] = ((const float*)((((unsigned long long)Q >> 20) << 20) - (1 << 24)))[i];"),
        "out-of-bounds|misaligned",
    ),
    "reads-address-zero": (kernel_plan("if (i < n) O[i] = *(const float*)(unsigned long long)i;"), "out-of-bounds"),
    "overruns-outputs": (kernel_plan("O[n + i] = 1.0f;"), "out-of-bounds"),
    "reads-shared-leftovers": (
        kernel_plan("if (i < n) O[i] = left[i];", head="extern __shared__ float left[];", shared_bytes=4096),
        "unwritten memory",
    ),
    "detects-emulators": (
        kernel_plan("long long t = clock64(); if (i < n) O[i] = clock64() - t == 0 ? Q[i] : V[i];"),
        "budget|clock",
    ),
    "loops-without-end": (kernel_plan("for (volatile int j = 0; ; ++j) O[0] = j;"), "--step-limit"),
    "includes-a-file": (kernel_plan("O[i] = 0;", head='#include "/etc/passwd"'), "passwd"),
    "includes-itself": (kernel_plan("O[i] = 0;", head=f'#include "{__file__}"'), "error"),
    "unshowable-source": (kernel_plan("O[i] = 0 /* \x1b]0;t\x07 \u202e */ nonsense;"), "error"),
    "too-many-threads": (
        lambda problem: Plan((Launch(right_plan(problem).launches[0].kernel, (1,), (2**31,), ()),)),
        "block",
    ),
}
"""A plan; what the reason has to say."""


ATTACKS: dict[str, str] = {
    **{attack_name(deed): reason for deed, reason in DEEDS.items()},
    **{name: reason for name, (_, reason) in OBJECTS.items()},
    **{name: reason for name, (_, reason) in KERNELS.items()},
}


def deed_variant(name: str) -> Variant:
    """The variant that does what is called so. It has to have a process to itself, which it spoils."""
    (deed,) = (each for each in (*DEEDS, *ALONE) if attack_name(each) == name)
    return Variant(name=name, plan=doing(deed), supports=right_supports, idea="hostile" + ESCAPES)


def register(registry: Registry) -> None:
    """Those that spoil nothing in their process."""
    for name, (functions, _) in OBJECTS.items():
        registry.add(Variant(**{"name": name, "supports": right_supports, "idea": "hostile" + ESCAPES, **functions}))
    for name, (plan, _) in KERNELS.items():
        registry.add(Variant(name=name, plan=plan, supports=right_supports, idea="hostile" + ESCAPES))
