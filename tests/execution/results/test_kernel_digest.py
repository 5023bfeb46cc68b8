"""A digest changes with what a plan's launches do, and not with where their source lies or what is said in comments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import Launch, Plan, Problem, PtxKernel
from harness.execution.results.rows import plan_digest
from harness.model.plan import kernel_name

pytestmark = pytest.mark.compiles

PROBLEM = Problem(heads=1, q_len=32, kv_len=32, head_dim=16)


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
    from harness.execution.planning.variant_calls import make_plan
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
