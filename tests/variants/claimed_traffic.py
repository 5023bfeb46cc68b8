"""What a variant claims to move, and what it is counted to move."""

from __future__ import annotations

from collections import Counter

from attention_runs import EXECUTOR

from harness.execution.protocol import Execution
from harness.model.operation import draw_inputs
from harness.model.traffic import Traffic
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem


def counted(variant: Variant, problem: Problem) -> Execution:
    return EXECUTOR.run(problem, variant.plan(problem), draw_inputs(problem, "normal", 0))


def claimed(variant: Variant, problem: Problem) -> Traffic:
    assert variant.claim is not None
    return variant.claim(problem)


def traffic(execution: Execution) -> Traffic:
    assert execution.read_bytes is not None and execution.write_bytes is not None
    return Traffic(execution.read_bytes, execution.write_bytes)


def bytes_by_buffer(execution: Execution, kind: str) -> Counter[str]:
    total: Counter[str] = Counter()
    for launch in execution.launches:
        assert launch.traffic is not None
        for site in launch.traffic:
            if site.kind == kind:
                total[site.buffer] += 32 * site.sectors
    return total
