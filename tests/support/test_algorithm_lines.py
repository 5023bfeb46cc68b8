from __future__ import annotations

from pathlib import Path

import pytest

from harness.support.algorithm_lines import (
    algorithm_steps,
    cited_algorithm,
    enclosing_function,
    steps_that_call,
)

VARIANTS = Path(__file__).resolve().parents[2] / "variants" / "attention"
CUDA = """\
// A kernel: Somebody 2023, arXiv 2307.08691, algorithm 1. Line numbers are the paper's.

// K_j of the tile.
__device__ __forceinline__ void copy_keys(float *tile,
                                          int first)
{
    copy(tile, first);
}

// Line 2: O = 0, in a kernel
// of its own.
extern "C" __global__ void start(float *O)
{
    O[0] = 0;
}

extern "C" __global__ void attend(float *O)
{
    int before_any = 1;
    // Line 6: for all K_j.
    for (int j = 0; j < 4; ++j) {
        // Line 7: load K_j.
        copy_keys(tile, j);
        // No line of its own.
#pragma unroll
        wait();

        // Line 9, first half: m = max(m, rowmax(S)). Line 10: O_i = O_i + P V_j.
        for (int i = 0; i < 2; ++i) {
            add(i);
        }
    }
    // What comes behind the loop.
    other();

    // Lines 13 and 15: write.
    O[1] = 1;
}
""".splitlines()
PYTHON = '''\
"""A kernel. Line numbers are the paper's."""


def make():
    # Line 8: S = Q_i K_j^T for the warp's rows.
    @cuda.jit(
        device=True
    )
    def scores(S):
        S[0] = 1

    # Helps.
    @cuda.jit
    def other():
        pass

    return scores
'''.splitlines()


def text_of(step, lines):
    return [lines[n - 1].strip() for n in step.lines]


def test_where_a_step_ends():
    steps = {step.label: step for step in algorithm_steps(CUDA)}
    assert [*steps] == ["2", "6", "7", "9, first half; 10", "13 and 15"]
    assert text_of(steps["2"], CUDA)[-2:] == ["O[0] = 0;", "}"]
    assert text_of(steps["6"], CUDA) == ["// Line 6: for all K_j.", "for (int j = 0; j < 4; ++j) {", "}"]
    assert text_of(steps["7"], CUDA)[1:] == [
        "copy_keys(tile, j);",
        "// No line of its own.",
        "#pragma unroll",
        "wait();",
    ]
    assert text_of(steps["9, first half; 10"], CUDA)[1:] == ["for (int i = 0; i < 2; ++i) {", "add(i);", "}"]
    assert text_of(steps["13 and 15"], CUDA)[1:] == ["O[1] = 1;"]


def test_labels_numbers_and_ideas_are_the_comments():
    steps = {step.label: step for step in algorithm_steps(CUDA)}
    assert steps["13 and 15"].numbers == (13, 15)
    assert steps["9, first half; 10"].numbers == (9, 10)
    assert steps["2"].idea == "Line 2: O = 0, in a kernel of its own."
    assert CUDA[steps["6"].comment_line - 1].strip() == "// Line 6: for all K_j."


def test_no_source_line_belongs_to_two_steps():
    taken = [line for step in algorithm_steps(CUDA) for line in step.lines]
    assert len(taken) == len(set(taken))


def test_a_python_function_with_decorators_over_several_lines_is_one_step():
    (step,) = algorithm_steps(PYTHON)
    assert text_of(step, PYTHON)[1:] == ["@cuda.jit(", "device=True", ")", "def scores(S):", "S[0] = 1"]


def test_a_function_outside_of_all_steps_is_known_by_who_calls_it():
    inside = CUDA.index("    copy(tile, first);") + 1
    assert enclosing_function(CUDA, inside) == "copy_keys"
    assert [step.label for step in steps_that_call(CUDA, algorithm_steps(CUDA), "copy_keys")] == ["7"]
    assert enclosing_function(CUDA, 1) is None
    assert enclosing_function(PYTHON, PYTHON.index("        S[0] = 1") + 1) == "scores"


def test_the_paper_is_the_one_that_is_named_first():
    assert cited_algorithm(CUDA) == "arXiv 2307.08691, algorithm 1"
    assert cited_algorithm(["nothing"]) is None


@pytest.mark.parametrize(("name", "lines"), [("fa1", [2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 16]), ("fa2", [*range(3, 16)])])
def test_both_twins_of_an_algorithm_name_the_same_lines(name, lines):
    def named(file):
        steps = algorithm_steps((VARIANTS / name / file).read_text().splitlines())
        return [step.label for step in steps], {n for step in steps for n in step.numbers}

    cuda, numba = named("kernel.cu"), named("numba_kernel.py")
    assert cuda == numba
    assert {*lines} - {11} <= cuda[1]
