"""What is launched, how often, and with which arguments; the plan is one text for both backends."""

from __future__ import annotations

from tests.mutants.planting import in_plan

MUTANTS = (
    *in_plan(
        "fa1", "final rounding not launched",
        'launches.append(Launch(rounding, row_blocks, BLOCK, (running_O, "O", q_len)))', "pass",
    ),
    *in_plan(
        "fa1", "initialisation not launched",
        '        Launch(initialise, row_blocks, BLOCK, (running_O, "l", "m", q_len)),\n', "",
    ),
    *in_plan(
        "three-pass", "softmax not launched",
        'Launch(softmax, rows, BLOCK, ("S", "P", *lengths, *of_softmax)),', "",
    ),
    *in_plan(
        "fa2", "one block of rows short",
        "blocks(sequence_extents(p)[1], tile.Br))", "max(1, sequence_extents(p)[1] // tile.Br))",
    ),
    *in_plan("two-pass", "every key/value head taken for its own", "np.int32(p.group)", "np.int32(1)"),
    *in_plan(
        "three-pass", "mask left out",
        "features.limits(problem), features.dropout(problem)\n",
        "features.limits(problem), features.dropout(problem)\n    if not has_spans(problem):\n"
        '        limits = Feature("Limits", "Band", (np.int32(problem.q_len + problem.kv_len),) * 2, limits.files)\n',
    ),
)  # fmt: skip
