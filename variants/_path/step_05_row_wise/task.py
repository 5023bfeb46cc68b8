"""The task of step 5: the body of the only loop is missing."""

from __future__ import annotations

from harness import Edit, Figure, Mistake, Task, TaskCase, TaskLimit
from variants._path import small

FACTORS = "float correction = expf(m - m_new), p = expf(s - m_new);"
SUM = "l = l * correction + p;"
OUTPUT = "o = o * correction + p * V[j * D + lane];"
BODY = f"        {FACTORS}\n        {SUM}\n        {OUTPUT}\n"

TASK = Task(
    text="""Step 5: correct O as you correct l.

The loop sees each key once. So far, it keeps m, the maximum. Let it also keep l, the sum of exp(s - m), and o, the sum
of exp(s - m) V, both relative to the current m: when m grows to m_new, what was summed before is too large by the same
factor in both. Divide by l once, after the loop. K and V may be read once per row, not more.""",
    start=(
        Edit(old=BODY, new="        // Your code: update l and o.\n"),
        Edit(old="O[row * D + lane] = o / l;", new="O[row * D + lane] = 0.0f;  // Your code."),
    ),
    cases=(
        TaskCase(about="one key: O is its row of V", problem=small(2, 1)),
        TaskCase(about="two keys", problem=small(4, 2)),
        TaskCase(
            about="scores that rise from key to key, so that every key corrects", problem=small(2, 40), regime="rising"
        ),
        TaskCase(about="scores so large that exp overflows", problem=small(2, 40), regime="hot"),
        TaskCase(about="races and reads of unwritten memory, 40 keys", problem=small(2, 40), sanitize=True),
    ),
    limits=(
        TaskLimit(
            figure=Figure(name="bytes read", kind="read_bytes", unit="bytes"),
            at_most=256 * (128 + 2 * 256 * 128),
            advice="One pass is enough: read V[j] in the same turn as K[j].",
        ),
    ),
    hints=(
        ("one key", "Before the first key, m is minus infinity: exp(m - m_new) is 0, and o has nothing to keep."),
        ("every key corrects", "Is o multiplied by the same factor as l, before the new key is added?"),
        ("two keys", "Work it out by hand for scores 2, 3 and values 10, 20: l = 1.368, o = 23.68, O = 17.31."),
    ),
    mistakes=(
        Mistake(
            name="output_not_corrected",
            edits=(Edit(old=OUTPUT, new="o = o + p * V[j * D + lane];"),),
            answer="two keys",
        ),
        Mistake(name="sum_not_corrected", edits=(Edit(old=SUM, new="l = l + p;"),), answer="two keys"),
        Mistake(
            name="corrects_the_new_key_too",
            edits=(Edit(old=OUTPUT, new="o = (o + p * V[j * D + lane]) * correction;"),),
            answer="one key",
        ),
        Mistake(
            name="divides_at_every_key",
            edits=(Edit(old=OUTPUT, new="o = (o * correction + p * V[j * D + lane]) / l;"),),
            answer="two keys",
        ),
        Mistake(name="never_divides", edits=(Edit(old="= o / l;", new="= o;"),), answer="two keys"),
        Mistake(
            name="correction_after_m",
            edits=(
                Edit(old=FACTORS, new="m = m_new;\n        float correction = expf(m - m_new), p = expf(s - m_new);"),
            ),
            answer="two keys",
        ),
        Mistake(
            name="two_passes",
            edits=(
                Edit(old=OUTPUT, new=""),
                Edit(
                    old="    O[row * D + lane] = o / l;",
                    new="    for (int j = 0; j < n; ++j) {\n"
                    "        o += expf(tau * warp_sum(q * K[j * D + lane]) - m) * V[j * D + lane];\n    }\n"
                    "    O[row * D + lane] = o / l;",
                ),
            ),
            answer="bytes read",
        ),
    ),
)
