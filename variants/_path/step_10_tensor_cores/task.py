"""The task of step 10: parts of the products are missing."""

from __future__ import annotations

from harness import Edit, Figure, Mistake, Task, TaskCase, TaskLimit
from variants._path.halves import small_halves

K0 = "multiply_add(s + j / 2, q, k[0], k[2]);"
K1 = "multiply_add(s + j / 2 + 4, q, k[1], k[3]);"
LOAD_V = "load_transposed(v, place(V_tile, j + lane % 16, c + lane / 16));"
V0 = "multiply_add(o + 4 * c, a, v[0], v[1]);"
V1 = "multiply_add(o + 4 * c + 4, a, v[2], v[3]);"
A = "unsigned a[4] = {pack(p[0], p[1]), pack(p[2], p[3]), pack(p[4], p[5]), pack(p[6], p[7])}, v[4];"

TASK = Task(
    text="""Step 10: complete O = O + P V.

At the end of the loop over tiles, s holds P: of each eight keys, a lane has two of row lane / 4, then two of row lane
/ 4 + 8. Multiply P by V, 16 keys (from j on) and 16 columns (chunks c and c + 1) at a time, as the loop above does
with Q and K:
 - a[4] is P of 16 keys as the A of an mma: see the layout of A and C in tensor_cores.cuh, and pack().
 - v[4] are four matrices of 8 x 8 elements of V: keys j to j + 7 and j + 8 to j + 15 of chunk c, then of chunk c + 1.
   An mma sums over the rows of B. For Q K^T, rows of B are elements, which lie side by side in a row of K. For P V,
   rows of B are keys, which lie one below the other.
 - o + 4 * c are the sums of chunk c, o + 4 * c + 4 those of chunk c + 1.""",
    start=(
        Edit(
            old=A,
            new="unsigned a[4] = {}, v[4];  // Your code: P, rounded, in place of the zeros.",
        ),
        Edit(old=LOAD_V, new="// Your code: load v, and two mma."),
        Edit(old=f"                {V0}\n                {V1}\n", new=""),
    ),
    cases=(
        TaskCase(about="32 keys: one tile", problem=small_halves(64, 32)),
        TaskCase(about="64 keys: two tiles", problem=small_halves(64, 64)),
        TaskCase(about="45 keys: a tile and a part of one", problem=small_halves(64, 45)),
        TaskCase(
            about="races and reads of unwritten memory, 45 rows and keys", problem=small_halves(45), sanitize=True
        ),
    ),
    limits=(
        TaskLimit(
            figure=Figure(name="bank conflicts", kind="conflicts"),
            at_most=0,
            advice="Use place() for every address of a tile, so that eight rows lie in different banks.",
        ),
    ),
    hints=(
        (
            "1,024 of 2,048",
            "Half of the elements are wrong: those of one of the two mma, or of one of a lane's two rows, which are in "
            "a[0] and a[2], and in a[1] and a[3].",
        ),
        (
            "instead of",
            "Write down which keys and columns each register of a, v and o holds for lane 0. a[0] and a[1] are rows g "
            "and g + 8 of the first eight keys, a[2] and a[3] of the next eight; b0 and b1 are the first and the next "
            "eight keys.",
        ),
    ),
    mistakes=(
        Mistake(
            name="not_transposed",
            edits=(Edit(old=LOAD_V, new=LOAD_V.replace("load_transposed", "load_matrices")),),
            answer="32 keys: one tile",
        ),
        Mistake(
            name="pairs_as_for_K",
            edits=(
                Edit(old=V0, new="multiply_add(o + 4 * c, a, v[0], v[2]);"),
                Edit(old=V1, new="multiply_add(o + 4 * c + 4, a, v[1], v[3]);"),
            ),
            answer="Write down which keys and columns",
        ),
        Mistake(
            name="rows_of_A_exchanged",
            edits=(
                Edit(
                    old=A,
                    new="unsigned a[4] = {pack(p[0], p[1]), pack(p[4], p[5]), pack(p[2], p[3]), pack(p[6], p[7])}, "
                    "v[4];",
                ),
            ),
            answer="a[0] and a[1] are rows g and g + 8",
        ),
        Mistake(
            name="halves_exchanged",
            edits=(Edit(old="pack(p[0], p[1])", new="pack(p[1], p[0])"),),
            answer="32 keys: one tile",
        ),
        Mistake(
            name="same_sums_twice",
            edits=(Edit(old=V1, new="multiply_add(o + 4 * c, a, v[2], v[3]);"),),
            answer="32 keys: one tile",
        ),
        Mistake(
            name="first_16_keys_only",
            edits=(Edit(old=LOAD_V, new=LOAD_V.replace("j + lane", "lane")),),
            answer="32 keys: one tile",
        ),
        Mistake(
            name="without_swizzle",
            edits=(Edit(old=LOAD_V, new="load_transposed(v, V_tile + (j + lane % 16) * D + 8 * (c + lane / 16));"),),
            answer="32 keys: one tile",
        ),
        Mistake(
            name="no_swizzle_at_all",
            edits=(Edit(old="8 * (chunk ^ row / 2 % 4)", new="8 * chunk"),),
            answer="so that eight rows lie in different banks",
        ),
    ),
)
