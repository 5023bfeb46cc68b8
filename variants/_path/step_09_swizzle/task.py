"""The task of step 9: the swizzle is missing."""

from __future__ import annotations

from harness import Edit, Figure, Mistake, Task, TaskCase, TaskLimit
from variants._path import small

PLACE = "return 4 * (chunk ^ row % 8);"
READ_V = "V_tile[j][place(j, lane / 4) + lane % 4]"
TO = "to = place(key, lane % 8);"


def _place(expression: str) -> tuple[Edit, ...]:
    return (Edit(old=PLACE, new=f"return {expression};"),)


TASK = Task(
    text="""Step 9: find a swizzle.

place(row, chunk) is the column of a tile's row at which the chunk of four floats `chunk` (0 to 7) is stored and found
again. A row has 128 bytes, which is as much as the 32 banks of shared memory deliver at once: the bank of a float is
its column. S = Q K^T reads chunk c / 4 of eight rows at a time. Choose places so that these are in different banks. A
row must keep its eight chunks apart, and within its 32 columns.""",
    start=_place("4 * chunk"),
    cases=(
        TaskCase(about="32 keys: one tile", problem=small(32, 32)),
        TaskCase(about="64 keys: two tiles", problem=small(32, 64)),
        TaskCase(about="45 keys: a tile and a part of one", problem=small(32, 45)),
        TaskCase(about="races and reads of unwritten memory, 45 keys", problem=small(32, 45), sanitize=True),
    ),
    limits=(
        TaskLimit(
            figure=Figure(name="bank conflicts", kind="conflicts"),
            at_most=0,
            advice="Rows 0 to 7 need eight different places for the same chunk, and so do rows 8 to 15. Write down "
            "place(row, 0) for rows 0 to 7: a place that occurs twice is a conflict.",
        ),
    ),
    hints=(
        (
            "registers per thread",
            "A block of 1024 threads leaves 64 registers to each. Does place() give columns from 0 to 28 only? A place "
            "within the row takes few instructions: chunk and the last bits of row, combined by one operator.",
        ),
        ("misaligned", "A chunk begins at a multiple of four floats."),
        ("out-of-bounds", "The columns of a row are 0 to 31, so a chunk begins at 28 at most."),
        ("race", "Two chunks of one row have the same place, so that one overwrites the other."),
        (
            "instead of",
            "What is stored at place(row, chunk) has to be read from there, and no two chunks of a row may "
            "share a place.",
        ),
    ),
    mistakes=(
        Mistake(name="no_swizzle", edits=_place("4 * chunk"), answer="a place that occurs twice is a conflict"),
        Mistake(name="four_places_only", edits=_place("4 * (chunk ^ row % 4)"), answer="bank conflicts"),
        Mistake(
            name="same_for_eight_rows",
            edits=_place("4 * (chunk ^ row / 8)"),
            answer="bank conflicts",
        ),
        Mistake(
            name="chunks_share_a_place",
            edits=_place("4 * (row % 8)"),
            answer="no two chunks of a row may share a place",
        ),
        Mistake(name="beyond_the_row", edits=_place("4 * (chunk ^ row)"), answer="columns from 0 to 28 only"),
        Mistake(name="floats_not_chunks", edits=_place("4 * chunk ^ row % 8"), answer="misaligned"),
        Mistake(
            name="V_read_without_swizzle",
            edits=(Edit(old=READ_V, new="V_tile[j][lane]"),),
            answer="has to be read from there",
        ),
        Mistake(
            name="stored_without_swizzle",
            edits=(Edit(old=TO, new="to = c;"),),
            answer="has to be read from there",
        ),
    ),
)
