"""The task of step 3: the correction comes too late."""

from __future__ import annotations

from harness import Edit, Mistake, Task, TaskCase
from variants._path import small

UPDATE = "l = l * expf(m - m_new) + expf(s - m_new);"
ORDER = """        l = l * expf(m - m_new) + expf(s - m_new);  // what l has is relative to the old m
        m = m_new;
"""
JOIN = "l = warp_sum(l * expf(m - m_row));"

TASK = Task(
    text="""Step 3: repair the online softmax.

Somebody wrote this kernel, and its answers look plausible, but they are wrong. The loop keeps the maximum m of the
scores so far, and l, the sum of exp(s - m) over them. When m grows to m_new, l is still relative to the old m. After
the loop, each of the 32 lanes has an m and an l of its own keys, which have to be joined. Two places are wrong.""",
    start=(
        Edit(
            old=ORDER,
            new="""        m = m_new;
        l = l * expf(m - m_new) + expf(s - m_new);
""",
        ),
        Edit(old=JOIN, new="l = warp_sum(l);"),
    ),
    cases=(
        TaskCase(about="32 keys, one for each lane: only the joining of lanes matters", problem=small(2, 32)),
        TaskCase(about="128 keys: m grows within the lanes", problem=small(2, 128)),
        TaskCase(about="scores so large that exp overflows", problem=small(2, 128), regime="hot"),
        TaskCase(about="scores that are all far below zero", problem=small(2, 64), regime="far-negative"),
        TaskCase(about="5 keys: most lanes have none, so their m is minus infinity", problem=small(2, 5)),
        TaskCase(about="races and reads of unwritten memory, 40 keys", problem=small(2, 40), sanitize=True),
    ),
    hints=(
        (
            "only the joining",
            "A lane's l is relative to its own m. Multiply it by exp(m - m_row) before you add. If you do so: with one "
            "key for each lane, l has to be exp(0) = 1 after the loop.",
        ),
        ("within the lanes", "Work out l by hand for the scores 1, 3: what does exp(m - m_new) have to be, and when?"),
        ("NaN", "exp(m - m_row) is 0 for a lane without keys, but infinity - infinity is not a number."),
    ),
    mistakes=(
        Mistake(
            name="corrected_after_m",
            edits=(Edit(old=ORDER, new="        m = m_new;\n        l = l * expf(m - m_new) + expf(s - m_new);\n"),),
            answer="128 keys",
        ),
        Mistake(name="no_correction", edits=(Edit(old=UPDATE, new="l = l + expf(s - m_new);"),), answer="128 keys"),
        Mistake(
            name="inverse_correction",
            edits=(Edit(old="l * expf(m - m_new) + ", new="l / expf(m - m_new) + "),),
            answer="exp(0) = 1 after the loop",
        ),
        Mistake(
            name="lanes_added_as_they_are", edits=(Edit(old=JOIN, new="l = warp_sum(l);"),), answer="only the joining"
        ),
        Mistake(
            name="joined_the_wrong_way_round",
            edits=(Edit(old=JOIN, new="l = warp_sum(l * expf(m_row - m));"),),
            answer="only the joining",
        ),
        Mistake(
            name="new_key_relative_to_old_maximum",
            edits=(Edit(old="+ expf(s - m_new);", new="+ expf(s - m);"),),
            answer="exp(0) = 1 after the loop",
        ),
        Mistake(
            name="starts_at_zero",
            edits=(Edit(old="float m = -INFINITY, l", new="float m = 0.0f, l"),),
            answer="far below zero",
        ),
    ),
)
