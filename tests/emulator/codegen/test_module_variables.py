"""`__device__` and `__constant__` variables: how long they live, what they may hold, who counts and watches them."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from harness import PtxKernel
from harness.cli import main
from harness.emulator.executor import EmulatorExecutor
from harness.emulator.instruments import Instruments
from harness.model.operation import draw_inputs
from harness.model.plan import Launch, Plan
from harness.operations.attention.problem import Problem
from harness.support.errors import KernelFault

PROBLEM = Problem(heads=1, q_len=1, kv_len=1, head_dim=64)
INPUTS = draw_inputs(PROBLEM, "normal", 0)
TICKETS = Path(__file__).parents[2] / "plugins" / "tickets.py"
ONE_KEY = ["--q-len", "1", "--kv-len", "1", "--head-dim", "64", "--heads", "2", "--plugin", str(TICKETS)]

HEAD = ".version 7.8\n.target sm_80\n.address_size 64\n"
COUNTING = (
    HEAD
    + """
    .global .u32 counter = 5;
    .visible .entry count(.param .u64 out, .param .u32 place) { DRAW; ret; }
    .visible .entry add(.param .u64 out, .param .u32 place) {
        .reg .b32 a; ld.global.u32 a, [counter]; add.u32 a, a, 100; st.global.u32 [counter], a; ret;
    }
    """
).replace(
    "DRAW",
    """
    .reg .b32 a, b; .reg .b64 p, q;
    atom.global.add.u32 a, [counter], 1;
    ld.param.u64 p, [out]; ld.param.u32 b, [place]; mul.wide.u32 q, b, 4; add.u64 p, p, q; st.global.u32 [p], a""",
)


def launch(text: str, place: int = 0, entry: str = "count") -> Launch:
    return Launch(PtxKernel(text, entry), (1,), (1,), ("O", np.int32(place)))


def words(plan: Plan, executor: EmulatorExecutor) -> list[int]:
    """What the plan's launches stored, a word each."""
    stored = executor.run(PROBLEM, plan, INPUTS).outputs["O"].reshape(-1).view(np.uint32)
    return [int(word) for word in stored[: len([x for x in plan.launches if x.kernel.name == "count"])]]


def test_a_variable_lives_as_long_as_the_plan_and_is_shared_by_all_kernels_of_its_module() -> None:
    executor = EmulatorExecutor()
    plan = Plan((launch(COUNTING, 0), launch(COUNTING, entry="add"), launch(COUNTING, 1)))
    assert words(plan, executor) == [5, 106]
    assert words(plan, executor) == [107, 208]
    assert words(plan, EmulatorExecutor()) == [5, 106]  # whose device it never was on


def test_an_equal_plan_and_another_text_have_variables_of_their_own() -> None:
    executor = EmulatorExecutor()
    other = f"{COUNTING}// another module\n"
    plan = Plan((launch(COUNTING, 0), launch(other, 1), launch(COUNTING, 2)))
    assert words(plan, executor) == [5, 5, 6]
    again = Plan(plan.launches)
    assert again == plan and words(again, executor) == [5, 5, 6]
    assert words(plan, executor) == [7, 6, 8]


def test_modules_go_with_their_plan() -> None:
    executor = EmulatorExecutor()
    for _ in range(3):
        executor.run(PROBLEM, Plan((launch(COUNTING),)), INPUTS)
    gc.collect()
    assert not executor._modules._modules


def test_what_a_run_leaves_otherwise_than_it_found_it_is_told() -> None:
    back = COUNTING.replace("ret; }\n    .visible", "st.global.u32 [counter], 5; ret; }\n    .visible")
    executor = EmulatorExecutor()
    assert executor.run(PROBLEM, Plan((launch(COUNTING),)), INPUTS).altered_variables == ("counter",)
    assert executor.run(PROBLEM, Plan((launch(back),)), INPUTS).altered_variables == ()


@pytest.mark.compiles
def test_a_counter_that_nobody_resets_shows_in_the_second_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--variants", "tickets", *ONE_KEY]) == 0
    capsys.readouterr()
    assert main(["compare", "--variants", "tickets-forgotten", *ONE_KEY]) == 1
    told = "the second run of the plan finds values that the first left in next_tile: 128 of 128 elements of O were"
    assert told in capsys.readouterr().out


def test_traffic_goes_by_the_name_of_the_variable() -> None:
    text = COUNTING.replace(".global .u32 counter = 5;", ".global .u32 unused[4]; .global .u32 counter = 5;")
    first, second = EmulatorExecutor().run(PROBLEM, Plan((launch(text), launch(text, entry="add"))), INPUTS).launches
    assert first.traffic is not None and second.traffic is not None
    assert {(s.buffer, s.kind): (s.requests, s.sectors) for s in first.traffic} == {
        ("O", "store"): (1, 1),
        ("variable counter", "atomic"): (1, 1),
    }
    assert {(s.buffer, s.kind) for s in second.traffic} == {("variable counter", k) for k in ("load", "store")}


def test_constants_are_no_global_traffic() -> None:
    """Whichever instruction reads them."""
    text = COUNTING.replace(".global .u32 counter", ".const .u32 counter")
    text = text.replace("atom.global.add.u32 a, [counter], 1;", "ld.const.u32 a, [counter];")
    (report,) = EmulatorExecutor().run(PROBLEM, Plan((launch(text),)), INPUTS).launches
    assert report.traffic is not None and {s.buffer for s in report.traffic} == {"O"}


def test_the_sanitizer_sees_races_within_a_launch_and_none_between_launches() -> None:
    executor = EmulatorExecutor(instruments=Instruments(sanitizer=True))

    def found(*launches: Launch) -> list[str]:
        execution = executor.run(PROBLEM, Plan(launches), INPUTS)
        assert execution.findings is not None
        return [f"{f.kind} {f.target}" for f in execution.findings if f.kind != "output not written"]

    add = launch(COUNTING, entry="add")
    assert found(add, add, launch(COUNTING)) == []
    two_blocks = Launch(add.kernel, (2,), (1,), add.args)
    assert "RAW race variable counter" in found(two_blocks)


def run_reading(declarations: str, address: str, entry: str = "") -> int:
    """What a kernel loads from there."""
    text = f"""{HEAD}{declarations}
    .visible .entry count(.param .u64 out, .param .u32 place) {{
        .reg .b32 a; .reg .b64 p, q;
        {address} ld.u32 a, [q]; ld.param.u64 p, [out]; st.global.u32 [p], a; ret;
    }}{entry}"""
    (word,) = words(Plan((launch(text),)), EmulatorExecutor())
    return word


FUNCTION = ".func f() { ret; }\n"


@pytest.mark.parametrize(
    ("initial", "address", "word"),
    [
        (".u64 here = numbers;", "ld.global.u64 q, [here];", 10),
        (".u64 here = numbers+8;", "ld.global.u64 q, [here];", 12),
        (".u64 here[2] = {0, generic(numbers)+4};", "ld.global.u64 q, [here+8];", 11),
        (".u64 here[2] = {generic(numbers+12), 3};", "ld.global.u64 q, [here];", 13),
        (
            f".b8 here[8] = {{{', '.join(f'{0xFF << 8 * i:#x}(numbers)' for i in range(8))}}};",
            "ld.global.u64 q, [here]; add.u64 q, q, 8;",
            12,
        ),
        (".u64 here = there; .global .u64 there = numbers+4;", "ld.global.u64 q, [here]; ld.u64 q, [q];", 11),
    ],
)
def test_variables_that_hold_addresses_of_variables(initial: str, address: str, word: int) -> None:
    assert run_reading(f".global .u32 numbers[4] = {{10, 11, 12, 13}};\n.global {initial}", address) == word


def test_an_address_of_a_function_is_a_number_at_which_there_is_no_memory() -> None:
    table = f"{FUNCTION}.global .u32 n = 7;\n.global .u64 table[2] = {{f, f}};\n.global .u64 via = table;\n"
    assert run_reading(table, "mov.u64 q, n;") == 7
    address = run_reading(table, "mov.u64 q, table;")
    assert address and address == run_reading(table, "ld.global.u64 q, [via]; add.u64 q, q, 8;")
    for pointer in ("ld.global.u64 q, [table+8];", "mov.u64 q, f;"):
        with pytest.raises(KernelFault, match="there is no buffer at this address"):
            run_reading(table, pointer)
    entry = ".visible .entry other() { .reg .b64 q; ld.global.u64 q, [table]; ret; }"
    assert run_reading(table, "mov.u64 q, n;", entry) == 7
