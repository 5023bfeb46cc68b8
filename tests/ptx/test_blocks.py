"""The numbering of blocks decides where lanes meet again."""

from __future__ import annotations

from harness.ptx.blocks import EXIT, Graph, build_graph, live_registers
from harness.ptx.parsing.parser import parse


def graph(text: str) -> Graph:
    registers = ".reg .pred %p<9>; .reg .b32 %r<9>;"
    module = parse(f".version 8.0\n.target sm_90\n.address_size 64\n.entry k() {{ {registers} {text} }}")
    return build_graph(module.functions["k"])


def numbers(found: Graph) -> dict[int, int]:
    """The constant that a block moves into %r0 -> the block's number: blocks are named by what they do."""
    named = {}
    for number, block in enumerate(found.blocks):
        for instruction in block.body:
            if instruction.opcode == "mov":
                named[instruction.operands[1].value] = number  # type: ignore[union-attr]
    return named


def mark(name: int) -> str:
    return f"mov.b32 %r0, {name};"


def test_both_sides_of_a_branch_come_before_the_place_where_they_meet() -> None:
    at = numbers(
        graph(f"{mark(1)} @%p1 bra B; {mark(2)} bra C; C: {mark(4)} ret; B: {mark(3)} bra C;")  # text order lies
    )
    assert at[1] < min(at[2], at[3]) < max(at[2], at[3]) < at[4]


def test_what_follows_a_loop_comes_behind_all_of_it() -> None:
    text = f"{mark(1)} H: {mark(2)} @%p1 bra E; bra L; E: {mark(9)} ret; L: {mark(3)} @%p2 bra E; {mark(4)} bra H;"
    at = numbers(graph(text))
    assert at[1] < at[2] < at[3] < at[4] < at[9]


def test_an_inner_loop_stands_together() -> None:
    text = f"A: {mark(1)} B: {mark(2)} @%p1 bra B; {mark(3)} @%p2 bra A; {mark(4)} ret;"
    at = numbers(graph(text))
    assert [at[n] for n in (1, 2, 3, 4)] == sorted(at.values())


def test_several_back_edges_share_one_latch_at_the_end_of_the_loop() -> None:
    text = f"H: {mark(1)} @%p1 bra H; {mark(2)} @%p2 bra H; {mark(3)} @%p3 bra H; {mark(4)} ret;"
    found = graph(text)
    at = numbers(found)
    into_header = [n for n, b in enumerate(found.blocks) if at[1] in b.targets and n >= at[1]]
    assert len(into_header) == 1
    assert at[3] < into_header[0] < at[4]


def test_blocks_that_cannot_be_reached_are_gone_and_returns_lead_out() -> None:
    found = graph(f"{mark(1)} bra C; B: {mark(2)} bra B; C: {mark(3)} ret;")
    assert set(numbers(found)) == {1, 3}
    assert found.blocks[-1].targets == [EXIT]


def test_irreducible_loops_still_have_an_order() -> None:
    text = f"@%p1 bra B; A: {mark(1)} bra B; B: {mark(2)} @%p2 bra A; {mark(3)} ret;"
    at = numbers(graph(text))
    assert at[3] > max(at[1], at[2])


def test_liveness_reaches_around_loops_and_ignores_what_is_dead() -> None:
    found = graph(
        "mov.b32 %r1, 5; mov.b32 %r2, 6; H: add.s32 %r1, %r1, %r3; @%p1 bra H; st.global.b32 [%r4], %r1; ret;"
    )
    live = live_registers(found).behind
    assert live[0] >= {"%r1", "%r3", "%r4", "%p1"}
    assert "%r2" not in live[0]


def test_a_predicated_write_does_not_end_a_life() -> None:
    found = graph("mov.b32 %r1, 5; bra B; B: @%p1 mov.b32 %r1, 6; st.global.b32 [%r2], %r1; ret;")
    assert "%r1" in live_registers(found).behind[0]
