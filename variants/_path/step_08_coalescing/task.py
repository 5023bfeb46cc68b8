"""The task of step 8: the loads of step 7, to be coalesced."""

from __future__ import annotations

from harness import Edit, Figure, Mistake, Task, TaskCase, TaskLimit
from variants._path import small

LOAD = """        if (warp < BC / 4) {  // a warp copies four keys; eight lanes share a key, 16 bytes each
            int key = 4 * warp + lane / 8, c = lane % 8 * 4;
            bool exists = first + key < n;
            float4 zero = {}, *k = (float4 *)&K_tile[key][c], *v = (float4 *)&V_tile[key][c];
            *k = exists ? *(const float4 *)&K[(first + key) * D + c] : zero;
            *v = exists ? *(const float4 *)&V[(first + key) * D + c] : zero;
        }
"""
COLUMNS = """        for (int c = warp; c < D; c += BR) {
            bool exists = first + lane < n;
            K_tile[lane][c] = exists ? K[(first + lane) * D + c] : 0.0f;
            V_tile[lane][c] = exists ? V[(first + lane) * D + c] : 0.0f;
        }
"""
ROWS = """        for (int key = warp; key < BC; key += BR) {
            bool exists = first + key < n;
            K_tile[key][lane] = exists ? K[(first + key) * D + lane] : 0.0f;
            V_tile[key][lane] = exists ? V[(first + key) * D + lane] : 0.0f;
        }
"""
PLACE = "int key = 4 * warp + lane / 8, c = lane % 8 * 4;"

TASK = Task(
    text="""Step 8: coalesce the loads.

The loop copies a tile of K and V as in step 7: in each turn, a warp copies one column, and its lanes ask for
addresses that are 128 bytes apart. Write it so that a request touches only sectors of which it uses every byte, and
so that each lane copies 16 bytes at once: *(float4 *)&tile[key][c] = *(const float4 *)&K[...]. The address of a
float4 has to be a multiple of 16 bytes. The block has 32 warps, a tile 32 keys of 32 floats; not every warp needs to
copy. Keys from n on do not exist: their rows of the tile become 0.""",
    start=(Edit(old=LOAD, new=COLUMNS),),
    cases=(
        TaskCase(about="32 keys: one tile", problem=small(32, 32)),
        TaskCase(about="64 keys: two tiles", problem=small(32, 64)),
        TaskCase(about="45 keys: a tile and a part of one", problem=small(32, 45)),
        TaskCase(about="races and reads of unwritten memory, 45 keys", problem=small(32, 45), sanitize=True),
    ),
    limits=(
        TaskLimit(
            figure=Figure(name="bytes of K", kind="bytes", unit="bytes", buffer="K"),
            at_most=8 * 256 * 128,
            advice="Sectors are read of which only a part is used. Neighbouring lanes have to read neighbouring "
            "addresses: let c depend on lane % 8, and the key on lane / 8.",
        ),
        TaskLimit(
            figure=Figure(name="requests of K", kind="requests", buffer="K"),
            at_most=8 * 256 * 128 / 512,
            advice="The loads are coalesced, but a lane reads 4 bytes at a time. Read a float4, 16 bytes, and use a "
            "quarter of the warps.",
        ),
    ),
    hints=(
        ("misaligned", "A float4 begins at a multiple of four floats: c is 0, 4, ..., 28."),
        ("of shared memory", "A warp copies four keys, so that 8 warps copy a tile: leave out warps from 8 on."),
        ("out-of-bounds load", "Keys from n on must not be read: the last tile may have fewer than 32."),
        ("unwritten", "Some part of the tile is not copied: 8 warps copy four keys each."),
        ("instead of", "Row `key`, column c of the tile is element c of key first + key, of K and of V."),
    ),
    mistakes=(
        Mistake(name="columns_as_before", edits=(Edit(old=LOAD, new=COLUMNS),), answer="let c depend on lane % 8"),
        Mistake(name="coalesced_but_narrow", edits=(Edit(old=LOAD, new=ROWS),), answer="Read a float4"),
        Mistake(
            name="all_warps_copy",
            edits=(Edit(old="if (warp < BC / 4) {", new="{"),),
            answer="leave out warps from 8 on",
        ),
        Mistake(
            name="misaligned",
            edits=(Edit(old=PLACE, new="int key = 4 * warp + lane / 8, c = lane % 8;"),),
            answer="misaligned",
        ),
        Mistake(
            name="K_in_place_of_V",
            edits=(Edit(old="*(const float4 *)&V[", new="*(const float4 *)&K["),),
            answer="of K and of V",
        ),
        Mistake(
            name="beyond_the_last_key",
            edits=(Edit(old="bool exists = first + key < n;", new="bool exists = true;"),),
            answer="Keys from n on must not be read",
        ),
        Mistake(
            name="half_of_the_tile",
            edits=(Edit(old="if (warp < BC / 4) {", new="if (warp < BC / 8) {"),),
            answer="8 warps copy four keys each",
        ),
    ),
)
