"""How the emulator is held against the recorded opcodes; tests/emulator/conftest.py does it for each of their tests."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from single_opcode import case, run_body, run_cases

from harness.emulator.codegen.emitters import supported_opcodes
from scripts import record_opcodes
from scripts.record_opcodes import STOPPED, Recorder
from scripts.recording.approximations import PROMISES, approximation
from scripts.recording.opcode_kernel import LISTENERS, CaseModule, Launched
from scripts.recording.opcode_record import (
    DIGEST_BYTES,
    SAMPLE_BYTES,
    Answer,
    OpcodeRecord,
    agrees,
    answer_to,
    differences,
    hold_against,
    is_recorded,
    load,
    opcodes_of,
    save,
)

pytestmark = pytest.mark.compiles(False)

RECORD = load(Path(__file__).parent / "opcodes_h200.zip")
WITHOUT_AN_ANSWER = {
    *("applypriority", "discard", "prefetch", "prefetchu"),  # hints to caches
    *("brkpt", "pmevent", "trap"),  # for debuggers and profilers; the end
    "griddepcontrol",  # waits for another kernel
    *("fence", "membar"),  # orders, of which one thread sees nothing
}
"""Opcodes that leave nothing behind that could be recorded."""


def test_every_opcode_is_in_the_record():
    missing = {name.partition(".")[0] for name in supported_opcodes()} - WITHOUT_AN_ANSWER - set(RECORD.opcodes)
    if missing:
        pytest.skip(f"not recorded yet: {', '.join(sorted(missing))}; scripts/record_opcodes.py does it, on a GPU")


def test_the_record_is_no_stub():
    kernels = [answer for answers in RECORD.answers.values() for answer in answers]
    assert len(kernels) > 200
    assert sum(len(data) for answer in kernels for data in answer.after.values()) > 5_000_000
    assert all(is_recorded(key) for key in RECORD.answers)


def test_opcodes_are_found_in_ptx():
    text = ".reg .b32 r1; LOOP: @!p1 bra LOOP; add.rn.f32 d, a, b;\n{ mov.u32 %r2, %tid.x; }\nmembar.gl; bar.sync 0;"
    assert opcodes_of(text) == {"bra", "add", "mov", "membar", "bar"}


def bits(*values: float, dtype: type = np.float32) -> np.ndarray:
    return np.array(values, dtype).view({2: np.uint16, 4: np.uint32, 8: np.uint64}[np.dtype(dtype).itemsize])


ONE = bits(1.0)


@pytest.mark.parametrize(
    ("text", "ours", "theirs", "fine"),
    [
        ("add.rn.f32 d, a, b;", 0x3F800000, 0x3F800000, True),
        ("add.rn.f32 d, a, b;", 0x3F800000, 0x3F800001, False),
        ("add.rn.f32 d, a, b;", 0x00000000, 0x80000000, False),
        ("add.rn.f32 d, a, b;", 0x7FC00000, 0x7FFFFFFF, True),  # NaN is NaN
        ("add.u32 d, a, b;", 0x7FC00000, 0x7FFFFFFF, False),
        ("min.NaN.f32 d, a, b;", 0x7FC00000, 0x7FFFFFFF, False),  # which has one pattern
        ("mul.rn.ftz.f32 d, a, b;", 0x80800000, 0x80000000, True),  # flushed early
        ("mul.rn.ftz.f32 d, a, b;", 0x80800000, 0x00000000, False),
        ("mul.rn.ftz.f32 d, a, b;", 0x00800001, 0x00000000, False),
        ("mul.rn.f32 d, a, b;", 0x00800000, 0x00000000, False),
        ("ex2.approx.f32 d, a;", 0x3F800000, 0x3F800002, True),  # two ulps
        ("ex2.approx.f32 d, a;", 0x3F800000, 0x3F800003, False),
        ("ex2.approx.ftz.f32 d, a;", 0x00800000, 0x00000000, True),
        ("ex2.approx.f32 d, a;", 0x00800000, 0x00000000, False),
        ("ex2.approx.f32 d, a;", 0x7F800000, 0x7F7FFFFF, True),  # just before it overflows
        ("ex2.approx.f32 d, a;", 0x7F800000, 0x7F7FFF00, False),
        ("ex2.approx.f32 d, a;", 0x7F800000, 0x7FFFFFFF, False),
        ("rcp.approx.f32 d, a;", 0x3F800000, 0x3F800001, True),
        ("rcp.approx.f32 d, a;", 0x3F800000, 0x3F800002, False),
        ("div.full.f32 d, a, b;", 0x3F800000, 0x3F800002, True),
        ("lg2.approx.f32 d, a;", 0x00000000, 0x34000000, True),  # 2**-23 where the exact result is 0
        ("lg2.approx.f32 d, a;", 0x00000000, 0x35000000, False),
        ("tanh.approx.f32 d, a;", 0x3F000000, 0x3F000FFF, True),
        ("tanh.approx.f32 d, a;", 0x3F000000, 0x3F002000, False),
        ("sin.approx.f32 d, a;", 0x3F000000, 0x3F000100, True),
        ("sin.approx.f32 d, a;", 0x3F000000, 0x3F010000, False),
        ("ex2.approx.f16x2 d, a;", 0x3C003C00, 0x3C013C00, True),
        ("ex2.approx.f16x2 d, a;", 0x3C003C00, 0x3C033C00, False),
        ("ex2.approx.ftz.bf16x2 d, a;", 0x3F803F80, 0x3F803F81, True),
        ("ex2.approx.ftz.bf16x2 d, a;", 0x3F803F80, 0x3F803F84, False),
        ("mul.rn.ftz.f16x2 d, a, b;", 0x04003C00, 0x00003C00, True),
        ("mul.rn.ftz.f16x2 d, a, b;", 0x04003C00, 0x00003C01, False),
    ],
)
def test_what_may_differ(text: str, ours: int, theirs: int, fine: bool):
    single = case(text, "b32", ONE, ONE)
    found = agrees(single, np.array([ours], np.uint32), np.array([theirs], np.uint32))
    assert found.tolist() == [fine]


@pytest.mark.parametrize(
    ("text", "operand", "theirs", "fine"),
    [
        ("sin.approx.f32 d, a;", bits(1000.0), bits(-0.9), True),  # beyond what is promised, but no nonsense
        ("sin.approx.f32 d, a;", bits(1000.0), bits(1.5), False),
        ("rcp.approx.ftz.f64 d, a;", bits(1.0, dtype=np.float64), bits(1.0 + 2**-20, dtype=np.float64), True),
        ("rcp.approx.ftz.f64 d, a;", bits(1.0, dtype=np.float64), bits(1.0 + 2**-18, dtype=np.float64), False),
    ],
)
def test_what_may_differ_by_operand_and_width(text: str, operand: np.ndarray, theirs: np.ndarray, fine: bool):
    single = case(text, f"b{8 * operand.dtype.itemsize}", operand)
    ours = bits(1.0, dtype=operand.view(f"f{operand.dtype.itemsize}").dtype.type)
    assert agrees(single, ours if "rcp" in text else bits(0.5), theirs).tolist() == [fine]


def test_every_promise_belongs_to_a_form():
    for name in PROMISES:
        opcode, way, kind = name.split(".")
        assert approximation(f"{opcode}.{way}.ftz.{kind} d, a;") is PROMISES[name]
    assert approximation("add.rn.f32 d, a, b;") is None


def launched_by(*cases: object) -> Launched:
    seen: list[Launched] = []
    LISTENERS.append(seen.append)
    try:
        run_cases(cases)  # type: ignore[arg-type]
    finally:
        LISTENERS.remove(seen.append)
    (one,) = seen
    return one


def answer_of(launched: Launched, **changes: bytes) -> Answer:
    return Answer(launched.digest, {name: data.tobytes() for name, data in launched.after.items()} | changes)


@pytest.mark.compiles
def test_a_wrong_bit_names_the_case_and_its_operands():
    a, b = np.array([3, 7], np.uint32), np.array([4, 8], np.uint32)
    launched = launched_by(case("add.u32 d, a, b;", "b32", a, b), case("sub.u32 d, a, b;", "b32", a, b))
    assert list(differences("key", launched, answer_of(launched))) == []
    results = launched.after["results"].copy()
    place = launched.module._places[1][0] + 4  # type: ignore[union-attr]
    results[place] ^= 4
    answer = answer_of(launched, results=results.tobytes())
    (line,) = differences("key", launched, answer)
    assert line.startswith(
        "sub.u32 d, a, b; with 0x7, 0x8 gives 0xffffffff as result 0 where the GPU has 0xfffffffb; 1 of"
    )
    assert list(differences("key", launched, dataclasses.replace(answer, refused=(1,)))) == []
    assert len(list(differences("key", launched, dataclasses.replace(answer, refused=(0,))))) == 1


ENVIRONMENT = {"gpu": "a GPU", "date": "2026-01-01"}


@pytest.mark.compiles
def test_what_is_recorded_has_to_agree_and_what_is_not_is_skipped():
    a = np.array([3], np.uint32)
    first, second = (launched_by(case(f"{opcode}.u32 d, a, a;", "b32", a)) for opcode in ("add", "mul.lo"))
    right, wrong = answer_of(first), answer_of(first, results=bytes(first.after["results"].size))
    held_to = {"right": [right, answer_of(second)], "half": [right], "wrong": [wrong], "other": [answer_of(second)]}
    record = OpcodeRecord(ENVIRONMENT, held_to, [])
    hold_against(record, "right", [first, second])
    for key in ("half", "nothing"):
        with pytest.raises(pytest.skip.Exception, match=rf"kernels of {key} are not in .*scripts/record_opcodes\.py"):
            hold_against(record, key, [first, second])
    for launched in ([first], [first, second]):  # the kernel that is not recorded hides nothing
        with pytest.raises(AssertionError, match=r"add\.u32 d, a, a; with 0x3 gives 0x6"):
            hold_against(record, "wrong", launched)
    with pytest.raises(pytest.skip.Exception, match="1 of the 1 kernels"):
        hold_against(record, "other", [first])


@pytest.mark.compiles
def test_kernels_are_compared_byte_by_byte_unless_their_order_is_free():
    seen: list[Launched] = []
    LISTENERS.append(seen.append)
    try:
        run_body("st.global.u32 [out], 7;", {"out": np.zeros(2, np.uint32)})
    finally:
        LISTENERS.remove(seen.append)
    answer = answer_of(seen[0], out=np.array([7, 1], np.uint32).tobytes())
    assert list(differences("key", seen[0], answer)) == [
        "buffer out: 1 of 8 bytes differ, the first at 4: 0x0 where the GPU has 0x1"
    ]
    assert not list(
        differences("test_opcodes_memory.py::test_a_global_variable_is_one_for_all_blocks", seen[0], answer)
    )
    # A buffer that the GPU left alone is not in the record.
    assert list(differences("key", seen[0], Answer("", {}))) != []


@pytest.mark.compiles
def test_of_a_large_buffer_a_sample_and_digests_are_kept():
    seen: list[Launched] = []
    LISTENERS.append(seen.append)
    store = "mul.wide.u32 q0, tid, 4; add.u64 q0, q0, out; st.global.u32 [q0+40960], tid;"
    try:
        run_body(store, {"out": np.zeros(12_000, np.uint32), "small": np.zeros(2, np.uint32)})
    finally:
        LISTENERS.remove(seen.append)
    (launched,) = seen
    answer = answer_to(launched, launched.after)
    assert list(answer.after) == [] and list(answer.abridged) == ["out"]
    assert len(answer.abridged["out"]) == SAMPLE_BYTES + 12 * DIGEST_BYTES
    assert list(differences("key", launched, answer)) == []
    for place, told in (
        (8, ["beginning of buffer out: 1 of 1024 bytes differ, the first at 8: 0x0 where the GPU has 0x9",
             "buffer out: 1 of 12 pieces of 4096 bytes differ, the first at 0"]),
        (46_000, ["buffer out: 1 of 12 pieces of 4096 bytes differ, the first at 45056"]),
    ):  # fmt: skip
        theirs = launched.after["out"].copy()
        theirs[place] = 9
        other = answer_to(launched, {**launched.after, "out": theirs})
        assert list(differences("key", launched, other)) == told


def test_shares_of_the_recorder_are_all_tests_once():
    items = [SimpleNamespace(nodeid=f"test_opcodes_x.py::test_{i}") for i in range(50)]
    found = []
    for share in range(3):
        mine: list[Any] = list(items)
        Recorder(share, 3, [items[4].nodeid]).pytest_collection_modifyitems(mine)
        found += mine
    assert sorted(item.nodeid for item in found) == sorted(item.nodeid for item in items if item is not items[4])


@pytest.mark.compiles
def test_where_the_gpu_stops_the_rest_is_left_to_another_process(monkeypatch: pytest.MonkeyPatch):
    import cupy

    def stops(launched: Launched) -> dict[str, Any]:
        raise cupy.cuda.runtime.CUDARuntimeError(715)

    monkeypatch.setattr(record_opcodes, "loads", lambda text: True)
    monkeypatch.setattr(record_opcodes, "run_on_gpu", stops)
    recorder = Recorder(0, 1, [])
    recorder.pytest_runtest_setup(SimpleNamespace(nodeid="tests/emulator/test_opcodes_x.py::test_y"))  # type: ignore[arg-type]
    launched = launched_by(case("add.u32 d, a, a;", "b32", np.array([3], np.uint32)))
    with pytest.raises(pytest.exit.Exception) as caught:
        recorder.launched(launched)
    assert caught.value.returncode == STOPPED
    assert recorder.differences == [
        "test_opcodes_x.py::test_y: the GPU stops (cudaErrorIllegalInstruction: an illegal instruction was encountered)"
    ]
    assert recorder.done == ["tests/emulator/test_opcodes_x.py::test_y"] and not recorder.answers


@pytest.mark.compiles
def test_other_operands_are_another_kernel():
    a, b = np.array([3], np.uint32), np.array([4], np.uint32)
    first, again, other = (launched_by(case("add.u32 d, a, a;", "b32", x)) for x in (a, a, b))
    assert first.digest == again.digest != other.digest
    assert CaseModule([case("sub.u32 d, a, a;", "b32", a)]).text != first.text


def test_a_record_comes_back_as_it_went(tmp_path: Path):
    answers = {
        "one": [Answer("ab", {"x": b"123", "y": b""}, (2,)), Answer("cd", {})],
        "two": [Answer("ef", {"z": b"4"}, abridged={"w": b"56"})],
    }
    record = OpcodeRecord({"gpu": "none"}, answers, ["add"])
    (tmp_path / "record.zip").write_bytes(save(record))
    assert load(tmp_path / "record.zip") == record
    assert save(record) == save(record)
