"""The task of step 4: the second pass is missing."""

from __future__ import annotations

from harness import Edit, Figure, Mistake, Task, TaskCase, TaskLimit
from variants._path import small

SCORE = "float s = tau * warp_sum(q * K[j * D + lane]);  // once more"
WEIGHT = "float p = expf(s - m) / l;"
ADD = "o += p * V[j * D + lane];"
SECOND = f"""    for (int j = 0; j < n; ++j) {{
        {SCORE}
        {WEIGHT}
        {ADD}
    }}
"""

TASK = Task(
    text="""Step 4: write the second pass.

The first pass has found m and l of the row; S is not in memory. Go over the keys once more: compute the score of each
key as the first pass does, make a weight of it, and add the weighted row of V. Lane c has column c of Q, K, V and O.
The kernel may read K twice and V once per row, not more.""",
    start=(Edit(old=SECOND, new="    // Your code: the second pass.\n"),),
    cases=(
        TaskCase(about="one key: its weight is 1, so O is its row of V", problem=small(2, 1)),
        TaskCase(about="two keys", problem=small(2, 2)),
        TaskCase(about="40 keys", problem=small(3, 40)),
        TaskCase(about="scores so large that exp overflows", problem=small(2, 40), regime="hot"),
        TaskCase(about="races and reads of unwritten memory, 40 keys", problem=small(2, 40), sanitize=True),
    ),
    limits=(
        TaskLimit(
            figure=Figure(name="bytes read", kind="read_bytes", unit="bytes"),
            at_most=256 * (128 + 3 * 256 * 128),
            advice="m and l are known after the first pass. The second pass needs K and V once, and nothing else.",
        ),
    ),
    hints=(
        (
            "one key",
            "With one key, m is its score, so exp(s - m) / l must be 1. If it is not, s is not the score of the first "
            "pass: is `warp_sum` there, and `tau`? Is m subtracted? If it is 1, look at the row and column of V.",
        ),
        ("two keys", "Compare the score of the second pass with that of the first, and divide by l once."),
    ),
    mistakes=(
        Mistake(
            name="tau_forgotten",
            edits=(Edit(old=SCORE, new=SCORE.replace("tau * ", "")),),
            answer="is `warp_sum` there, and `tau`?",
        ),
        Mistake(name="not_divided", edits=(Edit(old=WEIGHT, new="float p = expf(s - m);"),), answer="two keys"),
        Mistake(
            name="maximum_forgotten",
            edits=(Edit(old=WEIGHT, new="float p = expf(s) / l;"),),
            answer="Is m subtracted?",
        ),
        Mistake(name="row_of_q_in_v", edits=(Edit(old=ADD, new="o += p * V[row % n * D + lane];"),), answer="two keys"),
        Mistake(
            name="lanes_not_summed",
            edits=(Edit(old=SCORE, new="float s = tau * q * K[j * D + lane];"),),
            answer="is `warp_sum` there, and `tau`?",
        ),
        Mistake(
            name="a_third_pass",
            edits=(
                Edit(
                    old="    float o = 0.0f;\n",
                    new="    l = 0.0f;\n"
                    "    for (int j = 0; j < n; ++j) l += expf(tau * warp_sum(q * K[j * D + lane]) - m);\n"
                    "    float o = 0.0f;\n",
                ),
            ),
            answer="bytes read",
        ),
        Mistake(
            name="first_key_missed", edits=(Edit(old=SECOND, new=SECOND.replace("j = 0", "j = 1")),), answer="one key"
        ),
    ),
)
