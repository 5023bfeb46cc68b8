"""The task of side path a: the kernel that combines parts is missing."""

from __future__ import annotations

from harness import Edit, Mistake, Task, TaskCase
from variants._path import small

MAXIMUM = "        float m_part = m_of[part], m_new = fmaxf(m, m_part);\n"
WEIGHTS = "        float correction = expf(m - m_new), weight = expf(m_part - m_new);\n"
L = "        l = l * correction + l_of[part] * weight;\n"
O = "        o = o * correction + O_of[part * D + lane] * weight;\n"
M = "        m = m_new;\n    }\n    O[row"
LOOP = "for (int part = row; part < splits * rows; part += rows) {"

TASK = Task(
    text="""Side path a: combine the parts of a row.

Each of `splits` blocks has left, for each row, its maximum m_of[part], its sum l_of[part] of exp(S - m_of[part]), and
its row of O, which is not divided by l: O_of[part * D + lane] for lane = 0 to 31. Part `split * rows + row` is that
of block `split`. A block that had no keys has left m = -infinity, l = 0 and O = 0. Write the row of O of all keys.
What a block has left is relative to its own maximum. Before it is added, it has to be relative to that of all.""",
    start=(
        Edit(
            old=MAXIMUM + WEIGHTS + L + O, new="        // Your code: m_new, then l and o.\n        float m_new = m;\n"
        ),
    ),
    cases=(
        TaskCase(about="32 keys: only the first block has some", problem=small(1, 32)),
        TaskCase(about="256 keys: a tile for each block", problem=small(1, 256)),
        TaskCase(about="3 rows, 256 keys", problem=small(3, 256)),
        TaskCase(about="large scores, 256 keys", problem=small(2, 256), regime="hot"),
        TaskCase(
            about="100 keys: blocks with a tile, with a part of one, and with none",
            problem=small(2, 100),
            sanitize=True,
        ),
    ),
    hints=(
        ("NaN", "exp(m - m_new) is NaN if both are -infinity: keep the maximum of the parts so far in m."),
        ("out-of-bounds", "The parts of a row are row, rows + row, ..., (splits - 1) * rows + row."),
        (
            "3 rows",
            "The parts of a row are row, rows + row, 2 * rows + row, ...: the rows of one block are neighbours.",
        ),
        (
            "instead of",
            "Weight each part with exp(m of the part - m of all), both its l and its O, and correct what has been "
            "added so far by exp(m before - m now).",
        ),
    ),
    mistakes=(
        Mistake(
            name="not_weighted",
            edits=(Edit(old=WEIGHTS, new="        float correction = 1, weight = 1;\n"),),
            answer="256 keys: a tile for each block",
        ),
        Mistake(
            name="l_not_weighted",
            edits=(Edit(old=L, new="        l += l_of[part];\n"),),
            answer="Weight each part",
        ),
        Mistake(
            name="mean_of_the_parts",
            edits=(
                Edit(old=L, new="        l += 1;\n"),
                Edit(old=O, new="        o += O_of[part * D + lane] / l_of[part];\n"),
            ),
            answer="32 keys: only the first block has some",
        ),
        Mistake(
            name="not_corrected",
            edits=(Edit(old=WEIGHTS, new="        float correction = 1, weight = expf(m_part - m_new);\n"),),
            answer="256 keys: a tile for each block",
        ),
        Mistake(
            name="maximum_not_kept",
            edits=(Edit(old=M, new=M.replace("m = m_new;", "")),),
            answer="keep the maximum",
        ),
        Mistake(
            name="parts_side_by_side",
            edits=(Edit(old=LOOP, new="for (int part = row * splits; part < (row + 1) * splits; ++part) {"),),
            answer="the rows of one block are neighbours",
        ),
        Mistake(
            name="one_part_too_many",
            edits=(Edit(old=LOOP, new="for (int part = row; part <= splits * rows; part += rows) {"),),
            answer="out-of-bounds",
        ),
    ),
)
