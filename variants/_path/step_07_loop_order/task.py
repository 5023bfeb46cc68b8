"""The task of step 7: what a warp keeps from tile to tile is missing."""

from __future__ import annotations

from harness import Edit, Mistake, Task, TaskCase
from variants._path import small

L = "        l = l * correction + warp_sum(p);\n"
O = "        o *= correction;\n"
M = "        m = m_new;\n"
LOOP = "for (int j = 0; j < BC; ++j) o += __shfl_sync(0xffffffff, p, j) * V_tile[j][lane];"
MASK = "s = first + lane < n ? tau * s : -INFINITY;"

TASK = Task(
    text="""Step 7: complete the loop over the tiles of keys.

A warp owns one row. For each tile, lane j knows p, the weight of key first + j relative to the new maximum m_new. The
registers l and o hold the sum and the row of O of all tiles so far, relative to the old maximum m; correction is
exp(m - m_new). Bring l, o and m up to date. The loop over j that follows adds P V to o.""",
    start=(
        Edit(old=L + O, new="        // Your code: l and o.\n"),
        Edit(old=M, new="        // Your code: m.\n"),
    ),
    cases=(
        TaskCase(about="32 keys: one tile", problem=small(32, 32)),
        TaskCase(about="64 keys: two tiles", problem=small(32, 64), sanitize=True),
        TaskCase(about="large scores, 96 keys", problem=small(32, 96), regime="hot"),
        TaskCase(about="45 keys: a tile and a part of one", problem=small(32, 45)),
        TaskCase(about="40 rows: the last block has 8", problem=small(40, 32)),
    ),
    hints=(
        (
            "registers per thread",
            "A block of 1024 threads leaves 64 registers to each, and a second loop over the tile needs more. The loop "
            "over j that follows adds P V already.",
        ),
        ("inf instead", "l is 0 at the end, so that o / l is infinite: add the weights of each tile to l."),
        (
            "NaN",
            "exp(m - m_new) is NaN if both are -infinity: m_new is the maximum of all keys so far, not only of these.",
        ),
        (
            "race",
            "All warps write the tile and all warps read it: put a __syncthreads() between these, both ways round.",
        ),
        (
            "32 keys: one tile",
            "Each lane has the weight p of one key; l needs the sum of all 32: warp_sum(p). If l has it: o is only "
            "multiplied by the correction here; the next loop adds P V.",
        ),
        (
            "64 keys: two tiles",
            "After a tile, l and o must be relative to the new maximum, both by the same correction, and m must be it.",
        ),
        (
            "45 keys",
            "The last tile has 13 keys: the score of a key that does not exist is -infinity, so its weight is 0.",
        ),
        ("out-of-bounds", "The last tile may have fewer than 32 keys, the last block fewer than 32 rows."),
    ),
    mistakes=(
        Mistake(
            name="o_not_corrected",
            edits=(Edit(old=O, new=""),),
            answer="64 keys: two tiles",
        ),
        Mistake(
            name="l_not_corrected",
            edits=(Edit(old=L, new="        l = l + warp_sum(p);\n"),),
            answer="64 keys: two tiles",
        ),
        Mistake(
            name="own_lane_only",
            edits=(Edit(old=L, new="        l = l * correction + p;\n"),),
            answer="32 keys: one tile",
        ),
        Mistake(
            name="PV_added_twice",
            edits=(Edit(old=O, new=f"{O}        {LOOP}\n"),),
            answer="The loop over j that follows adds P V already",
        ),
        Mistake(
            name="own_key_added_twice",
            edits=(Edit(old=O, new="        o = o * correction + p * V_tile[lane][lane];\n"),),
            answer="the next loop adds P V",
        ),
        Mistake(
            name="maximum_of_this_tile_only",
            edits=(
                Edit(old="float m_new = fmaxf(m, warp_max(s));", new="float m_new = warp_max(s);"),
                Edit(old=M, new=""),
            ),
            answer="64 keys: two tiles",
        ),
        Mistake(
            name="maximum_not_kept",
            edits=(Edit(old=M, new=""),),
            answer="64 keys: two tiles",
        ),
        Mistake(
            name="keys_that_do_not_exist",
            edits=(Edit(old=MASK, new="s = tau * s;"),),
            answer="a key that does not exist is -infinity",
        ),
        Mistake(
            name="no_barrier_before_the_next_tile",
            edits=(Edit(old="        __syncthreads();  // all warps are done with the tile before\n", new=""),),
            answer="race",
        ),
    ),
)
