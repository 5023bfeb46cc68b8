"""Plans of several devices: no device uses another's memory, receives more than it may, or holds more."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from harness.model.peer_copy import PeerCopy
from harness.model.plan import Buffer, Launch, Plan
from harness.operations.attention.problem import Problem
from harness.operations.ring_attention.problem import RingProblem
from harness.support.errors import PlanError

RING = RingProblem(heads=1, q_len=64, kv_len=64, head_dim=8, devices=4)
BLOCK_BYTES = 16 * 8 * 4
KERNEL = SimpleNamespace(name="attends")


def launch(device: int, *names: str) -> Launch:
    return Launch(KERNEL, (1,), (32,), names, device=device)


def slot(name: str, device: int, rows: int = 16) -> Buffer:
    return Buffer(name, (1, 1, rows, 8), "float32", device)


def gathering(devices: int) -> Plan:
    """Device 0 collects the K and V of so many others before it begins."""
    slots = [slot(f"{name} of {device}", 0) for device in range(1, devices + 1) for name in "KV"]
    copies = [PeerCopy(f"{each.name[0]}@{each.name[-1]}", each.name, BLOCK_BYTES, 0, 1) for each in slots]
    return Plan(
        (launch(1, "Q@1"), launch(0, "Q@0", *(each.name for each in slots))), tuple(slots), copies=tuple(copies)
    )


def test_a_device_that_gathers_all_keys_is_refused():
    assert gathering(2).device_bytes(RING)[0] > gathering(1).device_bytes(RING)[0]
    with pytest.raises(PlanError, match=r"device 0 has 3,072 bytes of buffers that other devices copy into .*2,048"):
        gathering(3).all_buffers(RING)


def test_a_device_holds_no_more_than_its_share_two_blocks_and_a_sum():
    most = RING.most_device_bytes(2)
    assert most is not None
    held = Plan(()).device_bytes(RING)[2]
    room = (most - held) // 4
    assert Plan((), (Buffer("scratch", (room,), "float32", 2),)).device_bytes(RING)[2] == held + 4 * room
    with pytest.raises(PlanError, match=rf"device 2 holds {held + 4 * room + 4:,} bytes; at most {most:,} are allowed"):
        Plan((), (Buffer("scratch", (room + 1,), "float32", 2),)).all_buffers(RING)


def test_a_kernel_is_given_buffers_of_its_own_device_alone():
    Plan((launch(1, "Q@1", "K@1"),)).all_buffers(RING)
    with pytest.raises(PlanError, match="attends runs on device 1 and is given buffer 'K@2', which is on device 2"):
        Plan((launch(1, "Q@1", "K@2"),)).all_buffers(RING)
    nested = Launch(KERNEL, (1,), (32,), ("Q@0", (("K@3",),)))
    with pytest.raises(PlanError, match="given buffer 'K@3', which is on device 3"):
        Plan((nested,)).all_buffers(RING)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan((launch(4),)), "kernel attends is on device 4; the problem has 4"),
        (Plan((), (slot("x", -1),)), "buffer 'x' is on device -1"),
        (Plan((), (slot("x", True),)), "buffer 'x' is on device True"),
        (Plan((launch(0),), copies=(PeerCopy("K@0", "K@9", 4, 0, 1),)), "the plan has no buffer 'K@9'"),
        (Plan((launch(0),), copies=(PeerCopy("K@0", "Q@0", 4, 0, 1),)), "both are on device 0"),
        (Plan((launch(0),), copies=(PeerCopy("K@0", "K@1", 4, 0, 1),)), "K@1 is an input, which may only be read"),
        (Plan((launch(0),), (slot("x", 1),), copies=(PeerCopy("K@0", "x", 4, 0, 2),)), "the plan has 1 launches"),
        (
            Plan((launch(0),), (slot("x", 1, 2),), copies=(PeerCopy("K@0", "x", 512, 0, 1),)),
            "it has 512 bytes, and buffer 'x' 64",
        ),
    ],
)
def test_what_no_device_can_do_is_refused(plan: Plan, words: str):
    with pytest.raises(PlanError, match=words):
        plan.all_buffers(RING)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ((1, "x", 4, 0, 1), "source is 1"),
        (("K@0", "x", -4, 0, 1), "size_bytes is -4"),
        (("K@0", "x", 4, 0.0, 1), "start is 0.0"),
        (("K@0", "x", 4, 1, 1), "waited for before launch 1, and starts before launch 1"),
    ],
)
def test_a_copy_of_the_wrong_kind_is_refused(fields: tuple, words: str):
    with pytest.raises(PlanError, match=words):
        PeerCopy(*fields)


def test_a_problem_of_one_device_has_neither_copies_nor_other_devices():
    problem = Problem(heads=1, q_len=4, kv_len=4, head_dim=8)
    for plan in (
        Plan((launch(1, "Q"),)),
        Plan((), (slot("x", 1),)),
        Plan((launch(0, "Q"),), copies=(PeerCopy("Q", "K", 4, 0, 1),)),
    ):
        with pytest.raises(PlanError, match="device"):
            plan.all_buffers(problem)


def test_an_optional_output_lies_where_its_rows_are():
    lse = Buffer("lse@1", (1, 1, 16), "float32", 1)
    assert Plan((), (lse,)).output_names(RING) == ("O",)
    everywhere = tuple(dataclasses.replace(lse, name=f"lse@{device}", device=device) for device in range(4))
    assert Plan((), everywhere).output_names(RING) == ("O", "lse")
    with pytest.raises(PlanError, match=r"lse@1.* on device 0; it has to be .* on device 1"):
        Plan((), (dataclasses.replace(lse, device=0),)).all_buffers(RING)
