"""The task of step 6: both waits are missing."""

from __future__ import annotations

from harness import Edit, Mistake, Task, TaskCase
from variants._path import small

BEFORE = "        __syncthreads();  // all warps are done with the tile before\n"
AFTER = "        __syncthreads();  // the tile is complete\n"
LOOP = "        for (int row = warp; row < rows; row += BR) {\n            float q"
MASK = "s = first + lane < n ? tau * s : -INFINITY;"

TASK = Task(
    text="""Step 6: put the waits where they belong.

The 8 warps of the block load a tile of K and V into shared memory together, and then each of them uses all of it. They
run at their own pace. Nothing here makes a warp wait, so one may use a tile that another has not loaded yet, or load
the next tile over one that another still uses. On a lucky run the answer is right nevertheless.

__syncthreads() makes a warp wait until all warps of the block have arrived at it. Every thread of the block has to
arrive there equally often. Two per tile are enough.""",
    start=(Edit(old=BEFORE, new=""), Edit(old=AFTER, new="")),
    cases=(
        TaskCase(about="one tile of 32 keys, under the sanitizer", problem=small(8, 32), sanitize=True),
        TaskCase(about="two tiles, under the sanitizer", problem=small(8, 64), sanitize=True),
        TaskCase(about="33 keys: the second tile has one key", problem=small(8, 33), sanitize=True),
        TaskCase(about="9 rows: warp 0 has two, the other warps one", problem=small(9, 64), sanitize=True),
    ),
    hints=(
        (
            "RAW race",
            "A warp reads what another one has stored, of this tile or already of the next one, and nothing makes it "
            "wait: wait between loading and using, and between using and the next load.",
        ),
        ("WAR race", "A warp loads the next tile while another still reads this one: wait before loading, too."),
        ("WAW race", "Two warps store to one place without waiting for each other."),
        (
            "uninitialised",
            "A warp reads part of the tile before any warp has stored it: wait between loading and using.",
        ),
        ("deadlock", "A thread waits for others that never arrive: let every thread pass every __syncthreads()."),
        (
            "divergent",
            "All threads of a block have to arrive at the same __syncthreads(): move it out of the condition.",
        ),
        ("33 keys", "The 31 missing keys must have weight 0, so their score is minus infinity."),
    ),
    mistakes=(
        Mistake(name="no_wait", edits=(Edit(old=BEFORE, new=""), Edit(old=AFTER, new="")), answer="one tile"),
        Mistake(name="no_wait_after_loading", edits=(Edit(old=AFTER, new=""),), answer="one tile"),
        Mistake(name="no_wait_before_loading", edits=(Edit(old=BEFORE, new=""),), answer="two tiles"),
        Mistake(
            name="waits_for_its_own_warp_only",
            edits=(Edit(old=AFTER, new="        __syncwarp();\n"),),
            answer="one tile",
        ),
        Mistake(
            name="only_lanes_with_a_key_wait",
            edits=(Edit(old=AFTER, new="        if (first + lane < n) __syncthreads();\n"),),
            answer="33 keys",
        ),
        Mistake(
            name="waits_once_per_row",
            edits=(
                Edit(old=AFTER, new=""),
                Edit(
                    old=LOOP,
                    new=LOOP.replace("            float q", "            __syncthreads();\n            float q"),
                ),
            ),
            answer="9 rows",
        ),
        Mistake(name="missing_keys_count", edits=(Edit(old=MASK, new="s = tau * s;"),), answer="33 keys"),
    ),
)
