"""What is launched, how often, and with which arguments; the plan is one text for both backends."""

from __future__ import annotations

from tests.mutants.planting import in_plan

MUTANTS = (
    *in_plan(
        "fa1", "final rounding not launched",
        'launches.append(Launch(rounding, row_blocks, BLOCK, (running_O, "O", *lengths[:1])))', "pass",
    ),
    *in_plan(
        "fa1", "initialisation not launched",
        '        Launch(initialise, row_blocks, BLOCK, (running_O, "l", "m", *lengths[:1])),\n', "",
    ),
    *in_plan(
        "three-pass", "softmax not launched",
        "Launch(softmax, grid(p, blocks(p.q_len, SOFTMAX_ROWS)), BLOCK, "
        '("S", "P", *lengths, *see, *sinks, *draw)),', "",
    ),
    *in_plan(
        "fa2", "one block of rows short",
        "blocks(p.q_len, tile.Br))", "max(1, p.q_len // tile.Br))",
    ),
    *in_plan("two-pass", "every key/value head taken for its own", "np.int32(p.group)", "np.int32(1)"),
    *in_plan(
        "three-pass", "mask left out",
        "np.float32(factor(p)), limits(p)",
        "np.float32(factor(p)), limits(p) if has_spans(p) else (np.int32(p.q_len + p.kv_len),) * 2",
    ),
)  # fmt: skip
