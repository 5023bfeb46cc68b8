"""The kernels of the learning path's steps and the problems on which a GPU measures them.

A plugin: it registers the CUDA and the Numba variant of each step, which are not registered otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from harness import Problem, Registry, Variant
from harness.execution.planning.variant_calls import make_plan
from harness.model.lesson import Lesson
from harness.model.problem import BaseProblem
from harness.studies.learn.step_run import problem_before
from harness.studies.learn.steps import cuda_variant, find_lessons, numba_variant

LENGTHS = (2_048, 16_384)
"""Keys of the further problems. At 16,384, each kernel of the main path but step 6's has at least 256 blocks, for the
132 multiprocessors of an H200."""
SLOWEST_BLOCK_FLOPS = 1e10
"""Work of one block, beyond which a run takes seconds: step 6 has one block."""


def register(registry: Registry) -> None:
    """Add the variants of all steps."""
    for lesson in find_lessons().values():
        for variant in (cuda_variant(lesson), numba_variant(lesson)):
            registry.add(variant)


def problems_of(lesson: Lesson) -> list[BaseProblem]:
    """The problem on which the step runs in the course, and the same with more keys."""
    own = lesson.problem
    fields = own.to_fields()
    found = [own]
    for n in LENGTHS:
        rows = n if own.q_len == own.kv_len else own.q_len
        problem = type(own).from_fields(fields | {"q_len": rows, "kv_len": n})
        found += [problem] if problem not in found else []
    return found


def own_and_largest(lessons: Mapping[str, Lesson]) -> tuple[list[BaseProblem], list[BaseProblem]]:
    """The problems on which bytes are counted: those of the course, and the same with the most keys."""
    found = [problems_of(lesson) for lesson in lessons.values()]
    return list(dict.fromkeys(first for first, *_ in found)), list(dict.fromkeys(last for *_, last in found))


def runs(lessons: Mapping[str, Lesson]) -> dict[BaseProblem, list[Variant]]:
    """The variants to measure on each problem: those of its steps, and CUDA's of the steps that these follow."""
    found: dict[BaseProblem, dict[str, Variant]] = {}
    for lesson in lessons.values():
        before = None if lesson.follows is None else lessons[lesson.follows]
        for problem in problems_of(lesson):
            wanted: list[tuple[BaseProblem | None, Variant]] = [(problem, cuda_variant(lesson))]
            wanted.append((problem, numba_variant(lesson)))
            if before is not None:
                wanted.append((problem_before(before, problem), cuda_variant(before)))
            for on, variant in wanted:
                if on is not None and not is_too_slow(variant, on):
                    found.setdefault(on, {}).setdefault(variant.name, variant)
    return {problem: list(variants.values()) for problem, variants in found.items()}


def is_too_slow(variant: Variant, problem: BaseProblem) -> bool:
    """Whether one block has too much to do."""
    blocks = max(math.prod(launch.grid) for launch in make_plan(variant, problem).launches)
    return problem.flops > SLOWEST_BLOCK_FLOPS * blocks


PUBLISHED_LENGTHS = (512, 1_024, 2_048, 4_096, 8_192)
"""Numbers of queries and keys of the published table of times in docs/path.md."""
NAIVE, FLASH, LIBRARY = "three-pass-cupy", "fa2-mma-cupy", "torch-flash"
"""What is measured on its problems: as the published naive attention, its FlashAttention, and PyTorch's."""


def published(n: int, causal: bool = False) -> Problem:
    """The problem of a row of the published table."""
    sizes = {"heads": 1, "q_len": n, "kv_len": n, "head_dim": 64}
    return Problem.from_fields({**sizes, "dtype": "float16", "causal": causal})
