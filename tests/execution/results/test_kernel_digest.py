"""A digest changes with what a plan's launches do, and not with where their source lies or what is said in comments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import Launch, Plan, Problem, PtxKernel
from harness.execution.results.kernel_digest import kernel_text, plan_digest
from harness.model.plan import kernel_name

pytestmark = pytest.mark.compiles

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
PROBLEM = Problem(heads=1, q_len=32, kv_len=32, head_dim=16)


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
    assert kernel_text(PTX.replace(what, instead)) == kernel_text(PTX)


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
    assert kernel_text(PTX.replace(what, instead)) != kernel_text(PTX)


def test_names_that_compilers_make_up_stay_apart() -> None:
    two = ".b8 _cudapy_smem_1[8];\n.b8 _cudapy_smem_2[8];\nmov.u64 %rd1, _cudapy_smem_{};"
    assert kernel_text(two.replace("{}", "1")) != kernel_text(two.replace("{}", "2"))


PLAIN = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry nothing(.param .u64 nothing_param_0, .param .u32 nothing_param_1)
{
    ret;
}
"""


def a_plan(ptx: str = PLAIN, **changed: Any) -> Plan:
    launch = {"grid": (2,), "block": (32,), "args": ("O", np.int32(7))}
    return Plan((Launch(PtxKernel(ptx, "nothing"), **(launch | changed)),))


def digest(plan: Plan) -> str:
    return plan_digest(plan, PROBLEM, "sm_90")


def test_a_digest_says_how_kernels_are_launched() -> None:
    assert kernel_name(a_plan().launches[0].kernel) == "nothing"
    plans = [
        a_plan(),
        a_plan(grid=(3,)),
        a_plan(block=(64,)),
        a_plan(shared_bytes=16),
        a_plan(args=("O", np.int32(8))),
        a_plan(args=("Q", np.int32(7))),
        a_plan(cluster=(2,)),
        a_plan(PLAIN.replace("ret;", "bar.sync 0; ret;")),
        Plan(a_plan().launches * 2),
    ]
    assert len({digest(plan) for plan in plans}) == len(plans)
    assert digest(a_plan(PLAIN.replace("ret;", ".loc 1 1 1 ret;"))) == digest(a_plan())
    assert digest(a_plan()) == digest(a_plan()) and len(digest(a_plan())) == 16
    assert digest(a_plan(PLAIN.replace("{\n", "{ // a remark\n"))) == digest(a_plan())


PLUGIN = Path(__file__).parents[2] / "plugins" / "one_thread_per_row.py"


@pytest.mark.parametrize("edit", ["none", "comment", "code"])
def test_a_plugin_elsewhere_has_the_same_digest_until_its_code_changes(tmp_path: Path, edit: str) -> None:
    from harness.execution.isolation.variants import variants_of
    from harness.execution.planning import make_plan
    from harness.model.discovery import PLUGIN as FILE
    from harness.model.discovery import Origin

    text = PLUGIN.read_text()
    changed = {
        "none": text,
        "comment": "# moved down\n\n" + text.replace("float s = 0.0f;", "float s = 0.0f;  // a sum"),
        "code": text.replace("float s = 0.0f;", "float s = 1.0f;"),
    }[edit]
    (tmp_path / "elsewhere.py").write_text(changed)
    digests = set()
    for path in (PLUGIN, tmp_path / "elsewhere.py"):
        (variant,) = variants_of(Origin(FILE, str(path)))
        digests.add(plan_digest(make_plan(variant, PROBLEM), PROBLEM, "sm_90"))
    assert len(digests) == (2 if edit == "code" else 1)
