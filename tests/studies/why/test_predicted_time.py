"""The parts of a predicted time, on profiles small enough to work out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.compilers.ptxas import Resources
from harness.execution.traffic.counts import CacheReport, CacheTraffic, SharedTraffic, SiteTraffic
from harness.execution.traffic.instruction_counts import InstructionCount, InstructionReport, LoadWait
from harness.operations.attention.problem import Problem
from harness.operations.softmax.problem import SoftmaxProblem
from harness.studies.why import causes
from harness.studies.why.attribution import Attributed, attribute
from harness.studies.why.figures import figure
from harness.studies.why.predicted_time import PredictedTime, predict, roofline, unevenness
from harness.studies.why.profile import LaunchProfile, Profile, residents
from harness.studies.why.report import heads_that_fill
from harness.studies.why.result import explain, is_unrolled
from harness.studies.why.shares import DRAM, ISSUE, L2, PLACELESS, RESOURCES, SHARED_PATH, TENSOR_CORES, totals
from harness.studies.why.stalls import Stalls
from harness.support.gpu_data_sheets import GPUS, HOPPER
from harness.support.pipe_rates import LAUNCH_SECONDS, RATES, clock_hz

pytestmark = pytest.mark.compiles(False)

H200 = GPUS["h200"]
SMS = 132
PROBLEM = Problem(heads=1, q_len=64, kv_len=64, head_dim=64)
USED = Resources(64, 0, 0, 0, 0, 0)
EVEN = (10,) * SMS
"""A block to each multiprocessor."""


def instructions(kind: str, warps: int, lanes: int | None = None, form: str = "x", flops: int = 0) -> InstructionCount:
    return InstructionCount(kind, form, "k.cu", 7, 1, warps, 32 * warps if lanes is None else lanes, flops)


def launched(*counts: InstructionCount, **others: Any) -> LaunchProfile:
    waits = others.pop("waits", ())
    report = InstructionReport(counts, others.pop("clusters", EVEN), waits, others.pop("followed", 1), False)
    fields: dict[str, Any] = {
        "kernel": "k", "blocks": SMS, "threads": 256, "resident_blocks": 1, "limited_by": None, "used": USED,
        "dynamic_shared_bytes": 0, "traffic": (), "shared": (), "caches": None,
    }  # fmt: skip
    return LaunchProfile(**{**fields, **others}, instructions=report)


def profile(*launches: LaunchProfile) -> Profile:
    return Profile("v", PROBLEM, launches)


def cycles(*counts: InstructionCount, **others: Any) -> dict[str, float]:
    """Of each resource that is busy at all."""
    time = predict(profile(launched(*counts, **others)), H200)
    return {name: total for name, total in totals(time.shares).items() if total}


def by_cause(time: PredictedTime) -> dict[str, float]:
    found: dict[str, float] = {}
    for share in time.shares:
        found[share.cause.name] = found.get(share.cause.name, 0.0) + share.cycles
    return {name: total for name, total in found.items() if total}


def test_four_instructions_a_cycle_and_two_of_integers() -> None:
    assert cycles(instructions("fp32", 4000 * SMS)) == pytest.approx({ISSUE: 1000})
    assert cycles(instructions("integer", 4000 * SMS)) == pytest.approx({ISSUE: 1000, "integer pipe": 2000})
    assert cycles(instructions("special", 400 * SMS)) == pytest.approx({ISSUE: 100, "special pipe": 800})
    assert cycles(instructions("fp64", 400 * SMS)) == pytest.approx({ISSUE: 100, "fp64 pipe": 200})
    assert cycles(instructions("fp64", 400 * SMS, form="cvt.f64.f32")) == pytest.approx({ISSUE: 100, "fp64 pipe": 800})
    assert cycles(instructions("move", 4000 * SMS)) == {}


def test_fp64_is_worth_what_the_chip_has_of_it() -> None:
    ada = GPUS["rtx4090"]
    time = predict(profile(launched(instructions("fp64", 400 * ada.multiprocessors), blocks=128)), ada)
    assert totals(time.shares)["fp64 pipe"] == pytest.approx(400 * 32 / 2)


def test_resources_overlap_in_part() -> None:
    time = predict(profile(launched(instructions("integer", 4000 * SMS))), H200)
    assert time.busy_cycles == pytest.approx(math.hypot(1000, 2000))
    assert time.seconds == pytest.approx(LAUNCH_SECONDS + math.hypot(1000, 2000) / clock_hz(H200))


def test_products_on_tensor_cores() -> None:
    per_cycle = H200.tensor_flops["bfloat16"] / clock_hz(H200)
    form = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
    found = cycles(instructions("tensor", 4 * SMS, form=form, flops=round(500 * per_cycle)))
    assert found == pytest.approx({ISSUE: 1, TENSOR_CORES: 500}, rel=1e-6)
    half = cycles(instructions("tensor", 4 * SMS, form=form.replace("bf16", "e4m3"), flops=round(500 * per_cycle)))
    assert half[TENSOR_CORES] == pytest.approx(250, rel=1e-6)


def test_idle_lanes_have_their_part() -> None:
    time = predict(profile(launched(instructions("fp32", 4000 * SMS, 4000 * SMS * 8))), H200)
    assert by_cause(time) == pytest.approx({"arithmetic": 250, "idle lanes": 750})
    alone = predict(profile(launched(instructions("barrier", 4000 * SMS, 4000 * SMS))), H200)
    assert by_cause(alone) == pytest.approx({"barriers and waits": 1000})


def test_wavefronts_and_sectors_share_a_path() -> None:
    shared = SharedTraffic("load", "k.cu", 7, 100 * SMS, 12800 * SMS, 300 * SMS, 100 * SMS)
    site = SiteTraffic("K", "load", "k.cu", 8, 50 * SMS, 6400 * SMS, 1000 * SMS, 200 * SMS)
    time = predict(profile(launched(instructions("fp32", 4), shared=(shared,), traffic=(site,))), H200)
    found = by_cause(time)
    assert totals(time.shares)[SHARED_PATH] == pytest.approx(300 + 200 / 4 + 800)
    assert found["shared memory"] == pytest.approx(100)
    assert found["bank conflicts"] == pytest.approx(200)
    # Without a model of caches L2 sees all sectors.
    l2 = 32 * SMS / RATES["sm_90"].l2_bytes
    assert totals(time.shares)[L2] == pytest.approx(1000 * l2)
    assert found["uncoalesced accesses"] == pytest.approx(800 + 800 * l2)
    assert found["bytes moved"] == pytest.approx(50 + 200 * l2)


def test_wavefronts_that_come_for_half_a_warp() -> None:
    shared = SharedTraffic("load", "k.cu", 7, 100 * SMS, 6400 * SMS, 100 * SMS, 100 * SMS)
    half = instructions("shared", 4 * SMS, 64 * SMS)
    found = by_cause(predict(profile(launched(half, shared=(shared,))), H200))
    assert (found["shared memory"], found["idle lanes"]) == pytest.approx((50, 50.5))
    # A broadcast to a whole warp brings as few bytes, and idles nobody.
    full = by_cause(predict(profile(launched(instructions("shared", 4 * SMS), shared=(shared,))), H200))
    assert full["shared memory"] == pytest.approx(100)
    assert "idle lanes" not in full


def test_what_caches_leave() -> None:
    site = SiteTraffic("K", "load", "k.cu", 8, 50, 6400, 1000, 200)
    caches = CacheReport((CacheTraffic("K", 6400, 0, 3200, 0),), 0)
    time = predict(profile(launched(instructions("fp32", 4), traffic=(site,), caches=caches)), H200)
    found = totals(time.shares)
    assert found[L2] == pytest.approx(6400 / RATES["sm_90"].l2_bytes)
    assert found[DRAM] == pytest.approx(3200 / H200.memory_bytes_per_s * clock_hz(H200))


def test_local_memory_and_what_ptxas_spilled() -> None:
    local = SiteTraffic("local", "store", "k.cu", 8, 4 * SMS, 512 * SMS, 16 * SMS, 16 * SMS)
    found = by_cause(predict(profile(launched(instructions("fp32", 4), traffic=(local,))), H200))
    assert found["local memory"] == pytest.approx(16 / 4)
    # Three loads and a store of 4 bytes in a text of two instructions: executed twice as often as those together.
    spilling = replace(USED, spill_store_bytes=4, spill_load_bytes=12)
    counts = (instructions("fp32", 200 * SMS), instructions("integer", 200 * SMS))
    time = predict(profile(launched(*counts, used=spilling)), H200)
    times = 4 / 2 * 400
    assert sum(s.cycles for s in time.shares if s.cause is causes.SPILLS and s.resource == SHARED_PATH) == times
    assert figure(causes.SPILLS, profile(launched(used=spilling)), time) == 16


def test_long_chains_leave_slots_empty_too() -> None:
    """Two warps to each scheduler, and chains of 4 cycles per instruction."""
    launch = launched(instructions("fp32", 4000 * SMS))
    report = replace(launch.instructions, dependent_cycles=4 * 4000 * SMS)
    slow = profile(replace(launch, instructions=report))
    time = predict(slow, H200)
    assert by_cause(time) == pytest.approx({"arithmetic": 1000, "dependent steps": 1000})
    assert figure(causes.DEPENDENT, slow, time) == 4
    assert set(costs(slow, profile(launch))) == {"dependent steps"}


def test_a_small_grid_fills_fewer_slots() -> None:
    """A warp per scheduler where two would fit: half of the slots. No multiprocessor is idle."""
    fitting = launched(instructions("fp32", 4000 * SMS), threads=128, resident_blocks=2)
    time = predict(profile(fitting), H200)
    assert time.busy_cycles == pytest.approx(1000)
    assert (time.weighted("tail"), time.weighted("vacancy")) == pytest.approx((0, 1))
    full = profile(launched(instructions("fp32", 4000 * SMS), threads=256, resident_blocks=1))
    assert costs(profile(fitting), full) == pytest.approx({"few warps": 1000 / clock_hz(H200)})
    assert [figure(causes.FEW_WARPS, each, time) for each in (profile(fitting), full)] == [4, 8]


def test_what_to_do_about_few_warps_depends_on_what_limits_them() -> None:
    def advice(resident_blocks: int) -> str:
        launch = launched(instructions("fp32", 4000 * SMS), threads=128, resident_blocks=resident_blocks)
        found = explain(profile(launch), None, H200, "normal", 0)
        return found.advice(Attributed(causes.FEW_WARPS, 1.0, PLACELESS))

    assert "less shared memory or fewer registers" in advice(1)
    assert "split the keys" in advice(2)


def test_fusing_launches_is_advised_only_where_there_are_several() -> None:
    def advice(launches: int) -> str:
        launch = launched(instructions("fp32", 4000 * SMS))
        found = explain(profile(*[launch] * launches), None, H200, "normal", 0)
        return found.advice(Attributed(causes.BYTES, 1.0, PLACELESS))

    assert advice(1) == causes.BYTES.advice and "launches" not in advice(1)
    assert advice(2) == f"{causes.BYTES.advice}; fuse the launches"


def test_too_few_warps_leave_slots_empty() -> None:
    for threads, filled in ((256, 1), (128, 2), (32, 8)):
        assert cycles(instructions("fp32", 4000 * SMS), threads=threads) == pytest.approx({ISSUE: 1000 * filled})


def test_a_turing_moves_half_as_much_of_shared_memory_in_a_cycle() -> None:
    t4 = GPUS["t4"]
    shared = SharedTraffic("load", "k.cu", 7, 100, 12800, 300 * t4.multiprocessors, 100 * t4.multiprocessors)
    found = by_cause(predict(profile(launched(instructions("fp32", 4), shared=(shared,))), t4))
    assert (found["shared memory"], found["bank conflicts"]) == pytest.approx((200, 400))


# Unevenness ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "tail", "imbalance"),
    [
        ([5] * 4, 0, 0),
        ([5] * 8, 0, 0),
        ([5] * 2, 1, 0),  # half of the places idle
        ([5] * 5, 2 * 4 / 5 - 1, 0),
        ([1, 1, 1, 1, 8], 2 * 4 / 5 - 1, 9 * 4 / 12 - 1.6),  # the heaviest last
        ([8, 1, 1, 1, 1], 2 * 4 / 5 - 1, 8 * 4 / 12 - 1.6),
        ([], 0, 0),
    ],
)
def test_unevenness_of_four_places(work: list[int], tail: float, imbalance: float) -> None:
    assert unevenness(work, 4) == pytest.approx((tail, imbalance))


def test_blocks_that_share_out_their_work_are_taken_to_be_even() -> None:
    launch = launched(instructions("fp32", 4), clusters=(1000, *(1,) * (SMS - 1)))
    assert predict(profile(launch), H200).weighted("imbalance") > 100
    connected = replace(launch, instructions=replace(launch.instructions, are_connected=True))
    assert predict(profile(connected), H200).weighted("imbalance") == pytest.approx(0)


# Stalls --------------------------------------------------------------------------------------------------------------


def test_a_stall_that_nobody_hides() -> None:
    stalls = Stalls(waits=10, stall_cycles=300, busy_cycles=100, together=1, rounds=3)
    assert stalls.cycles() == pytest.approx(3 * 10 * 300)


def test_others_hide_it() -> None:
    stalls = Stalls(waits=10, stall_cycles=300, busy_cycles=100, together=1, rounds=3)
    two = stalls.cycles(2) / (3 * 10)
    # Two customers: a response of 100 x (1 + 100 / 400), two of them in 125 + 300 cycles.
    assert two == pytest.approx((125 + 300) / 2 - 100)
    assert stalls.cycles(50) == pytest.approx(0, abs=0.01)


def test_a_load_that_is_issued_early_enough_stalls_nobody() -> None:
    def exposed(distance: int) -> float:
        wait = LoadWait(False, "k.cu", 3, 4, distance, 8)
        counts = (instructions("fp32", 8 * 1000 * SMS), instructions("barrier", 8 * SMS, form="bar.sync"))
        time = predict(profile(launched(*counts, waits=(wait,), followed=8)), H200)
        return time.kernels[0].stalls.cycles()

    # A thousand instructions of each of 8 warps take 2000 cycles, so that 100 of them take 200 of the 270 of L2.
    assert exposed(0) == pytest.approx(270, rel=0.01)
    assert exposed(100) == pytest.approx(70, rel=0.02)
    assert exposed(200) == 0


# Attribution ---------------------------------------------------------------------------------------------------------


def costs(slow: Profile, fast: Profile) -> dict[str, float]:
    times = predict(slow, H200), predict(fast, H200)
    found = attribute(slow, fast, *times)
    assert sum(each.seconds for each in found) == pytest.approx(times[0].seconds - times[1].seconds)
    return {each.cause.name: each.seconds for each in found if abs(each.seconds) > 1e-12}


def test_what_is_the_same_costs_nothing() -> None:
    common = (instructions("fp32", 4000 * SMS), instructions("special", 100 * SMS))
    fast = profile(launched(*common))
    slow = profile(launched(*common, instructions("conversion", 400 * SMS)))
    assert set(costs(slow, fast)) == {"conversions"}
    assert costs(fast, fast) == {}


def test_an_idle_half_of_the_gpu_is_told_from_more_work() -> None:
    fast = profile(launched(instructions("fp32", 4000 * SMS)))
    slow = profile(launched(instructions("fp32", 4000 * SMS), blocks=SMS // 2, clusters=(10,) * (SMS // 2)))
    assert costs(slow, fast) == pytest.approx({"tail and idle SMs": 1000 / clock_hz(H200)})


def test_latency_that_others_would_hide_is_for_few_warps() -> None:
    """As many waits in both, of which the one with more blocks to a multiprocessor hides more."""
    wait = LoadWait(False, "k.cu", 3, 4, 0, 8)
    counts = (instructions("fp32", 64 * SMS), instructions("barrier", 8 * SMS, form="bar.sync"))
    common = {"blocks": 4 * SMS, "clusters": (10,) * (4 * SMS), "waits": (wait,), "followed": 8}
    few = profile(launched(*counts, **common, resident_blocks=1))
    many = profile(launched(*counts, **common, resident_blocks=4))
    found = costs(few, many)
    assert set(found) == {"few warps"} and found["few warps"] > 0
    assert costs(many, few)["few warps"] == pytest.approx(-found["few warps"])
    early = replace(wait, distance=10**6)
    found = costs(many, profile(launched(*counts, **{**common, "waits": (early,)}, resident_blocks=4)))
    assert set(found) == {"latency of loads"}


@pytest.mark.parametrize("swap", [False, True])
def test_a_cause_costs_no_more_than_its_part_of_the_time(swap: bool) -> None:
    """Many more cycles on all multiprocessors, compared with few cycles on one of them, and the other way round."""
    wide = profile(launched(instructions("fp32", 40000 * SMS), instructions("special", 8000 * SMS)))
    narrow = profile(launched(instructions("fp32", 400), instructions("integer", 400), blocks=1, clusters=(10,)))
    slow, fast = (narrow, wide) if swap else (wide, narrow)
    times = [predict(each, H200).seconds for each in (slow, fast)]
    found = costs(slow, fast)
    gains = [seconds for seconds in found.values() if seconds > 0]
    assert sum(gains) <= times[0] * (1 + 1e-9)
    assert -sum(seconds for seconds in found.values() if seconds < 0) <= times[1] * (1 + 1e-9)
    tail = 131 * predict(narrow, H200).busy_cycles / clock_hz(H200)
    assert abs(found["tail and idle SMs"]) == pytest.approx(tail, rel=0.3)


def test_how_many_heads_fill_the_gpu() -> None:
    assert heads_that_fill(replace(PROBLEM, heads=2), 8, H200) == 66
    assert heads_that_fill(replace(PROBLEM, heads=10, kv_heads=5), 10, H200) == 265
    assert heads_that_fill(SoftmaxProblem(rows=8), 8, H200) is None


def reading(blocks: int, waits: int, wavefronts: int, sectors: int, steps: int) -> Profile:
    """A tiled kernel that reads K, with a barrier a step."""
    counts = (instructions("fp32", 64 * SMS), instructions("barrier", steps * blocks * 8, form="bar.sync"))
    sites = (SiteTraffic("K", "load", "k.cu", 8, sectors, 32 * sectors, sectors, sectors),)
    shared = (SharedTraffic("load", "k.cu", 7, wavefronts, 128 * wavefronts, wavefronts, wavefronts),)
    wait = LoadWait(False, "k.cu", 8, 9, 0, waits)
    return profile(launched(*counts, blocks=blocks, waits=(wait,), traffic=sites, shared=shared))


def test_a_tile_size_is_a_cause_only_if_keys_are_read_more_often() -> None:
    fast = reading(2 * SMS, waits=8, wavefronts=10**5, sectors=10**5, steps=8)
    same_reads = reading(2 * SMS, waits=64, wavefronts=10**6, sectors=10**5, steps=13)
    found = costs(same_reads, fast)
    assert not {"tile size", "small steps"} & set(found)
    assert found["latency of loads"] > 0 and found["shared memory"] > 0
    # Twice the reads explain twice the wavefronts; eight more times of them are something else.
    tiny = costs(reading(4 * SMS, waits=8, wavefronts=10**6, sectors=2 * 10**5, steps=8), fast)
    assert 0 < tiny["tile size"] < tiny["shared memory"]
    small = costs(reading(2 * SMS, waits=16, wavefronts=10**5, sectors=10**5, steps=16), fast)
    assert small["small steps"] > 0 and "latency of loads" not in small


def test_one_launch_of_a_kernel_instead_of_two() -> None:
    half = launched(instructions("fp32", 2000 * SMS))
    fast = profile(launched(instructions("fp32", 4000 * SMS)))
    assert costs(profile(half, half), fast) == pytest.approx({"launches": LAUNCH_SECONDS})
    # Two launches that each fill half of the GPU.
    few = launched(instructions("fp32", 2000 * SMS), blocks=SMS // 2, clusters=(10,) * (SMS // 2))
    more = costs(profile(few, few), fast)
    assert more == pytest.approx({"launches": LAUNCH_SECONDS + 1000 / clock_hz(H200)})


def test_kernels_one_after_the_other_add_up() -> None:
    one = launched(instructions("fp32", 4000 * SMS))
    two = replace(launched(instructions("integer", 4000 * SMS)), kernel="other")
    both = predict(profile(one, two), H200)
    assert both.busy_cycles == pytest.approx(1000 + math.hypot(1000, 2000))
    assert math.hypot(*totals(both.shares).values()) == pytest.approx(both.busy_cycles)
    assert set(totals(both.shares)) == set(RESOURCES)


def test_the_roofline_has_compulsory_bytes_and_products_alone() -> None:
    time = roofline(profile(), H200)
    found = totals(time.shares)
    assert found[DRAM] == pytest.approx(PROBLEM.compulsory_bytes / H200.memory_bytes_per_s * clock_hz(H200))
    assert found[ISSUE] == pytest.approx(PROBLEM.flops / H200.float32_flops * clock_hz(H200))
    sixteen = Profile("v", replace(PROBLEM, dtype="bfloat16"), ())
    assert totals(roofline(sixteen, H200).shares)[ISSUE] == 0


# What fits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "used", "dynamic", "expected"),
    [
        (128, replace(USED, registers=128), 0, (4, "registers")),
        (128, replace(USED, registers=32), 100 * 1024, (2, "shared memory")),
        (1024, replace(USED, registers=32), 0, (2, "threads")),
        (32, replace(USED, registers=32), 0, (32, "blocks")),
        (128, replace(USED, registers=168), 72 * 1024, (3, "registers and shared memory")),
    ],
)
def test_what_limits_the_blocks(threads: int, used: Resources, dynamic: int, expected: tuple[int, str]) -> None:
    assert residents(HOPPER, threads, used, dynamic) == expected


def test_without_ptxas_nobody_knows() -> None:
    assert residents(HOPPER, 128, None, 0) == (16, None)


def test_every_cause_has_a_figure() -> None:
    launch = launched(instructions("fp32", 4))
    time = predict(profile(launch), H200)
    for cause in (each for each in vars(causes).values() if isinstance(each, causes.Cause)):
        value = figure(cause, profile(launch), time)
        assert value is None or value >= 0


def test_an_unrolled_loop_is_not_advised_to_be_unrolled(tmp_path: Path) -> None:
    source = tmp_path / "k.cu"
    source.write_text(
        "#pragma unroll\nfor (;;)\n  x += 1;\ny = x;\n#pragma unroll 1\nfor (;;) x += 1;\nfor (;;) ++x;\n"
    )
    assert [line for line in range(8) if is_unrolled(str(source), line)] == [2, 3]
