"""A canonical text changes with the code, and not with where the source lies or what its comments say."""

from __future__ import annotations

import pytest

from harness.ptx.statements import canonical_text

pytestmark = pytest.mark.compiles(False)

PTX = """
.version 8.8
.target sm_90
.address_size 64
\t// .globl\t_ZN8variants3fa2Ev
.common .global .align 8 .u64 _ZN08NumbaEnv8variants3fa2E;
.visible .shared .align 16 .b8 _cudapy_smem_18[64];
.visible .entry _ZN8variants3fa2Ev(
\t.param .u64 _ZN8variants3fa2Ev_param_0
)
{
\t.reg .b64 \t%rd<4>;
$L__func_begin0:
\t.loc\t1 45 0
\tld.param.u64 \t%rd1, [_ZN8variants3fa2Ev_param_0]; // the first
\tmov.u64 \t%rd2, _cudapy_smem_18;
$L__tmp3:
\tret;
}
\t.file\t1 "/home/one/variants/fa2.py"
\t.section\t.debug_str
\t{
.b8 95,90,53
\t}
"""


@pytest.mark.parametrize(
    ("what", "instead"),
    [
        ("\t.loc\t1 45 0", "\t.loc\t1 46 9"),
        ("/home/one/", "/tmp/two/"),
        ("8variants3fa2", "4past3fa2"),
        ("_cudapy_smem_18", "_cudapy_smem_2"),
        ("// the first", "// the second"),
        ("$L__tmp3:\n", ""),
        (".b8 95,90,53", ".b8 95,91,53"),
        (".common .global .align 8 .u64 _ZN08NumbaEnv8variants3fa2E;\n", ""),
    ],
)
def test_what_only_says_where_the_source_lies_is_no_part_of_a_kernels_text(what: str, instead: str) -> None:
    assert what in PTX
    assert canonical_text(PTX.replace(what, instead)) == canonical_text(PTX)


@pytest.mark.parametrize(
    ("what", "instead"),
    [
        ("%rd2, _cudapy_smem_18", "%rd3, _cudapy_smem_18"),
        ("[64]", "[128]"),
        ("sm_90", "sm_80"),
        ("\tret;", "\tbar.sync 0;\n\tret;"),
        ("$L__tmp3:", "$L__BB0_1:"),
    ],
)
def test_what_the_gpu_is_told_is_part_of_it(what: str, instead: str) -> None:
    assert what in PTX
    assert canonical_text(PTX.replace(what, instead)) != canonical_text(PTX)


def test_names_that_compilers_make_up_stay_apart() -> None:
    two = ".b8 _cudapy_smem_1[8];\n.b8 _cudapy_smem_2[8];\nmov.u64 %rd1, _cudapy_smem_{};"
    assert canonical_text(two.replace("{}", "1")) != canonical_text(two.replace("{}", "2"))
