"""mbarriers: phases, counts and bytes, waits that let others run, and what cannot go on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.support.errors import KernelFault
from tests.emulator.hopper_kernel import run_hopper


def results(body: str, threads: int = 64, **launch: Any) -> np.ndarray:
    """What a kernel over `y`, with an mbarrier `bar` and `t` the thread, leaves there."""
    source = f'extern "C" __global__ void k(int* y) {{ __shared__ u64 bar[2]; int t = threadIdx.x;\n{body}\n}}'
    after, _ = run_hopper(source, {"Y": np.zeros(64, np.int32)}, ("Y",), block=(threads, 1, 1), **launch)
    return after["Y"]


PIPELINE = """
__shared__ volatile int box;
if (t == 0) { init(bar, COUNT); init(bar + 1, 32); } __syncthreads();
for (int i = 0; i < 3; ++i) {
  if (t >= 32) { wait(bar, i & 1); y[32 * (i & 1) + t - 32] = box; arrive(bar + 1); }
  else if (t == 0) { if (i) wait(bar + 1, (i - 1) & 1); box = i + 1; arrive(bar); }
}"""


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_two_warps_hand_over(seed: int) -> None:
    """Each waits for the other; whoever spins lets the other run, whichever comes first."""
    found = results(PIPELINE.replace("COUNT", "1"), seed=seed)
    assert (found[:32] == 3).all() and (found[32:] == 2).all()


@pytest.mark.parametrize("shuffle", [False, True])
def test_who_waits_for_one_arrival_too_many_is_named(shuffle: bool) -> None:
    """All that are left wait, and the message says for what; also where turns end anywhere in the loops that wait."""
    told = (
        r"block \(0, 0, 0\): barrier deadlock: warp 0 waits at the mbarrier at byte offset \d+ of shared memory "
        r"for its phase of parity 0, .*planted.cu:\d+ .*where 32 arrivals and 0 bytes are missing; "
        r"warp 1 waits at the mbarrier"
    )
    with pytest.raises(KernelFault, match=told) as caught:
        results(PIPELINE.replace("COUNT", "2"), shuffle=shuffle)
    assert caught.value.kind == "barrier deadlock"


def test_who_has_looked_in_vain_and_goes_on_with_something_else_does_not_wait() -> None:
    """For millions of instructions, while the other warp does wait."""
    found = results(
        """if (t == 0) init(bar, 1); __syncthreads();
        if (t < 32) wait(bar, 0);
        else {
          u32 x = look(bar, 0);
          #pragma unroll 1
          for (int i = 0; i < 1000000; ++i) x = x * 1664525u + (x >> 16);
          y[t] = x; if (t == 32) arrive(bar);
        }
        y[t] = t;""",
        shuffle=True,
        step_limit=20_000_000,
    )
    assert found.tolist() == list(range(64))


@pytest.mark.parametrize(
    ("bytes_", "told"),
    [
        (64, r"where 0 arrivals and 32 bytes are missing of those that .*planted.cu:4 \(PTX line \d+\) expects"),
        (16, r"1 arrivals are missing and 16 bytes more have arrived than .*planted.cu:4 \(PTX line \d+\) expects"),
    ],
)
def test_who_expects_other_bytes_than_come_is_named(bytes_: int, told: str) -> None:
    """Too many: those go to the next phase, which then waits for others."""
    body = f"""__shared__ __align__(16) int s[8]; if (t == 0) init(bar, 1); __syncthreads();
      if (t == 0) {{ load_bytes(s, y, 16, bar); load_bytes(s + 4, y, 16, bar);
        expect(bar, {bytes_});
        wait(bar, 0); wait(bar, 1); }}"""
    with pytest.raises(KernelFault, match=told) as caught:
        results(body, threads=32)
    assert caught.value.kind == "barrier deadlock"


def test_what_comes_beyond_the_bytes_of_a_phase_comes_later() -> None:
    """The first copy ends the phase, and the second is still under way."""
    found = results(
        """__shared__ __align__(16) int s[8]; if (t == 0) init(bar, 1); __syncthreads();
        if (t == 0) { load_bytes(s, y + 8, 16, bar); load_bytes(s + 4, y + 8, 16, bar); expect(bar, 16); wait(bar, 0);
          y[0] = s[0]; y[1] = s[4]; expect(bar, 16); wait(bar, 1); y[2] = s[4]; }""",
        threads=32,
    )
    assert found[:3].tolist() == [0, -1, 0]


COPIED = """__shared__ __align__(16) int s[32];
if (t == 0) init(bar, INIT); __syncthreads();
if (t < 32) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"::"r"(place_of(s + t)), "l"(y + 32 + t) : "memory");
  asm volatile("cp.async.mbarrier.arriveFORM.shared::cta.b64 [%0];"::"r"(place_of(bar)) : "memory");
  MORE
} else { wait(bar, 0); y[t - 32] = s[t - 32] + 5; }"""


@pytest.mark.parametrize(
    ("form", "count", "more"),
    [(".noinc", "32", ""), ("", "32", "arrive(bar);"), ("", "1", "if (t == 31) arrive(bar);")],
)
def test_copies_arrive(form: str, count: str, more: str) -> None:
    """Counted among the arrivals that the phase waits for, or besides them."""
    found = results(COPIED.replace("FORM", form).replace("INIT", count).replace("MORE", more))
    assert (found[:32] == 5).all()
    with pytest.raises(KernelFault, match=r"where 1 arrivals and 0 bytes are missing"):
        results(COPIED.replace("FORM", form).replace("INIT", str(int(count) + 1)).replace("MORE", more))


@pytest.mark.parametrize(
    ("body", "kind", "told"),
    [
        ("arrive(bar);", "no mbarrier", "there is no mbarrier at byte offset 0 of shared memory"),
        ("if (t == 0) init(bar, 0);", "mbarrier count", "cannot wait for 0 arrivals"),
        ("if (t == 0) { init(bar, 2); expect(bar, 64); arrive(bar); arrive(bar); }", "mbarrier count", "waits for 0"),
        ("if (t == 0) { init(bar, 1); expect(bar, 1 << 20); }", "mbarrier bytes", "at most 1048575 bytes"),
        ("init((u64*)((char*)bar + 4), 1);", "misaligned", "byte offset 4 of shared memory"),
    ],
)
def test_misuse_is_a_fault_on_its_line(body: str, kind: str, told: str) -> None:
    with pytest.raises(KernelFault, match=told) as caught:
        results(body, threads=32)
    assert caught.value.kind == kind
