"""PTX without line information gets that of its own lines."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from harness import PtxKernel
from harness.compilers import compile_kernel, ptx_text
from harness.compilers.ptxas import find_ptxas, resources

TEXT = r"""
.version 8.0
.target sm_90
.address_size 64
.global .align 4 .b32 table[2] = {
    3, 4
};
/* add.s32 in a
   remark; add */
.visible .entry NAME(
    .param .u64 x
)
.maxntid 64, 1, 1
{
    .reg .b32 %a<3>; // mov;
    .reg .pred %p;
    .reg .b64 %at;
    .shared .align 16 .b8 s[64];
    ld.param.u64 %at, [x]; cvta.to.global.u64 %at, %at;

    ld.global.v2.u32
        {%a0, %a1},
        [%at];
again:
    setp.eq.u32 %p, %a0, %a1;
@%p bra ends; {
        .reg .b32 %own;
        add.u32 %own, %a0,
            1;
        st.global.u32 [%at], %own; }
    st.shared.u32 [s], %a0;
ends: ret;
}
""".replace("NAME", "k")  # so that this file does not hold the text itself
INSTRUCTIONS = (
    "ld.param", "ld.global", "setp", "@%p bra ends", "add.u32", "st.global", "st.shared", "ends: ret",
)  # fmt: skip


def with_own_lines(text: str, name: str) -> str:
    ptx_text._compiled.cache_clear()  # the same text may lie in a file by now
    return compile_kernel(PtxKernel(text, name), (), "sm_90").ptx


def line_of(words: str) -> int:
    return 1 + next(i for i, line in enumerate(TEXT.splitlines()) if words in line)


def test_each_line_with_an_instruction_is_marked_once() -> None:
    marked = with_own_lines(TEXT, "k")
    found = [(int(m[1]), m[2]) for m in re.finditer(r"\.loc 1 (\d+) 1 ([^\n]*)", marked)]
    assert [line for line, _ in found] == [line_of(words) for words in INSTRUCTIONS]
    assert re.sub(r"\.loc \d+ \d+ 1 ", "", marked) == TEXT + '\n.file 1 "k.ptx"\n'
    for line, rest in found:
        assert TEXT.splitlines()[line - 1].endswith(rest)


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
def test_ptxas_takes_it() -> None:
    used = resources(with_own_lines(TEXT, "k"), "sm_90", "k")
    assert used is None or used.shared_bytes == 64


def test_line_information_that_there_is_stays() -> None:
    text = TEXT.replace("    setp", "    .loc 1 7 3\n    setp") + '.file 1 "mine.py"\n'
    assert with_own_lines(text, "k") == text


def test_a_number_of_a_file_is_not_taken_twice() -> None:
    assert with_own_lines(TEXT + '.file 4 "a.cu"\n', "k").endswith('.file 4 "a.cu"\n\n.file 5 "k.ptx"\n')


@pytest.mark.parametrize(
    ("file", "content", "first_line"),
    [("kernel.py", f'KERNEL = 1\n\nTEXT = r"""{TEXT}"""\n', 3), ("kernel.ptx", TEXT, 1)],
)
def test_a_text_that_stands_in_a_file_has_that_files_lines(
    file: str, content: str, first_line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / file).write_text(content)
    module = ModuleType("owner_of_the_text")
    module.__file__ = str(tmp_path / "kernel.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    marked = with_own_lines(TEXT, "k")
    assert marked.endswith(f'.file 1 "{tmp_path / file}"\n')
    assert f".loc 1 {first_line - 1 + line_of('ld.param')} 1 ld.param" in marked
