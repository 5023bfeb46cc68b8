"""What kernels take is read from the heads of their entries."""

from __future__ import annotations

import pytest

from harness.ptx.parameters import Parameter
from harness.ptx.parsing.declarations import entry_parameters
from harness.ptx.parsing.parser import parse
from harness.support.errors import CompileError

pytestmark = pytest.mark.compiles(False)
HEADER = ".version 8.3\n.target sm_90\n.address_size 64\n"


def test_parameters_are_read_from_any_spelling() -> None:
    text = """
    .visible .entry _Z1fPf(
        .param .u64 .ptr .global .align 16 a,
        .param .align 4 .b8 b[12],
        .param .f32 c
    ) .maxntid 128, 1, 1 { ret; }
    .weak .entry g() { ret; }
    .entry h
    { ret; }
    """
    assert entry_parameters(text) == {
        "_Z1fPf": (Parameter("u64", 8, 8), Parameter("b8", 12, 4, is_array=True), Parameter("f32", 4, 4)),
        "g": (),
        "h": (),
    }


@pytest.mark.parametrize(
    ("declaration", "parameter"),
    [
        (".param .u64 a", Parameter("u64", 8, 8)),
        (".param .u64 .ptr .shared .align 16 a", Parameter("u64", 8, 8)),
        (".param .align 16 .b8 a[2][8] // a, b", Parameter("b8", 16, 16, is_array=True)),
        (".param .v4 .f32 a", Parameter("f32", 16, 16, is_array=True)),
    ],
)
def test_the_parser_finds_the_same_layout(declaration: str, parameter: Parameter) -> None:
    text = f"{HEADER}.entry k({declaration}\n) {{ ret; }}"
    assert entry_parameters(text) == {"k": (parameter,)}
    (variable,) = parse(text).functions["k"].params
    assert (variable.size_bytes, variable.align_bytes) == (parameter.size_bytes, parameter.align_bytes)


@pytest.mark.parametrize(
    "declaration",
    [".param float a", ".reg .b32 a", ".param .pred a", ".param .b8 a[]", ".param .u64 a b", ".param .align 3 .u64 a"],
)
def test_what_ptx_does_not_have_is_refused_with_its_line(declaration: str) -> None:
    with pytest.raises(CompileError, match=r"kernel k, PTX line 4: its PTX declares a parameter as '\.(param|reg) "):
        entry_parameters(f"{HEADER}.entry k(.param .u64 x, {declaration}) {{ ret; }}")
