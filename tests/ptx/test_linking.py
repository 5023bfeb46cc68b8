"""What becomes of the symbols of several modules that are linked."""

from __future__ import annotations

import re

import pytest

from harness.ptx.linking import LinkError, linked
from harness.ptx.parsing.parser import parse

HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"
CALLS = HEADER + (
    ".extern .func (.param .b32 result) one\n(\n)\n;\n"
    ".visible .entry main()\n{\n.param .b32 value;\ncall.uni (value), one, ();\nret;\n}\n"
)


def defining(name: str, linkage: str, value: int) -> str:
    body = f"{{\n.reg .b32 %r<2>;\nmov.u32 %r1, {value};\nst.param.b32 [result], %r1;\nret;\n}}\n"
    return f"{HEADER}{linkage}.func (.param .b32 result) {name}()\n{body}"


def values(text: str, name: str) -> list[str]:
    """What the definitions of a function return."""
    return re.findall(rf"\) {re.escape(name)}\(\)\n{{\n.reg .b32 %r<2>;\nmov.u32 %r1, (\d+);", text)


def test_a_single_module_stays_as_it_is():
    assert linked([CALLS]) == CALLS


def test_a_declaration_goes_where_another_module_has_the_definition():
    text = linked([CALLS, defining("one", ".visible ", 1)])
    assert text.count(".version") == 1 and ".extern" not in text
    assert {function.name for function in parse(text).functions.values()} >= {"one", "main"}


def test_a_declaration_without_definition_stays():
    assert ".extern .func" in linked([CALLS, defining("two", ".visible ", 2)])


def test_lines_keep_their_numbers_within_a_module():
    assert linked([CALLS, HEADER]).splitlines()[-9:] == CALLS.splitlines()[-9:]
    dropped = linked([CALLS, defining("one", ".visible ", 1)])
    assert dropped.splitlines()[-6:] == CALLS.splitlines()[-6:]
    assert dropped.splitlines()[-10:-6] == [""] * 4


def test_the_first_of_weak_definitions_stays():
    text = linked([CALLS, defining("one", ".weak ", 1), defining("one", ".weak ", 2)])
    assert values(text, "one") == ["1"]
    parse(text)


def test_a_definition_that_is_not_weak_replaces_weak_ones():
    texts = [CALLS, defining("one", ".weak ", 1), defining("one", ".visible ", 2), defining("one", ".weak ", 3)]
    assert values(linked(texts), "one") == ["2"]


def test_two_strong_definitions_are_an_error():
    with pytest.raises(LinkError, match="define one"):
        linked([CALLS, defining("one", ".visible ", 1), defining("one", ".visible ", 2)])


def test_weak_variables_are_one():
    variable = f"{HEADER}.weak .global .align 1 .u8 value;\n.weak .const .align 4 .b8 table[4] = {{1, 2, 3, 4}};\n"
    text = linked([variable, variable])
    assert text.count("value;") == 1 and text.count("table[4]") == 1
    parse(text)


def test_symbols_of_a_module_alone_do_not_meet():
    def module(entry: str, value: int) -> str:
        entry_text = f".visible .entry {entry}()\n{{\n.param .b32 v;\ncall.uni (v), helper, ();\nret;\n}}\n"
        return defining("helper", "", value) + f".global .u32 state = {value};\n" + entry_text

    text = linked([module("first", 1), module("second", 2)])
    assert values(text, "helper$module0") == ["1"] and values(text, "helper$module1") == ["2"]
    assert "call.uni (v), helper$module0, ();" in text and "state$module1 = 2;" in text
    parse(text)


def test_a_name_in_a_body_is_no_definition():
    body = HEADER + ".visible .entry other()\n{\n.shared .align 4 .b8 one[4];\nret;\n}\n"
    assert values(linked([CALLS, body, defining("one", ".visible ", 1)]), "one") == ["1"]
