"""The task of side path c: scales and the order of keys are missing."""

from __future__ import annotations

from harness import Edit, Mistake, Task, TaskCase
from variants._path.halves import small_halves

PLACE = "return key / 16 * 16 + key % 8 / 2 * 4 + key % 16 / 8 * 2 + key % 2;"
SCORE = "tau * q_scale * k_scale * s[i]"
OUTPUT = "float f = v_scale / l[h];"
WEIGHTS = "a[i] = pack(p[0], p[1], p[4], p[5]);"
LOAD_V = "load_tile<true>(V_tile, BC, V + first * D, n - first, v_scale);"

TASK = Task(
    text="""Side path c: put the keys of V where P has them, and the scales where they belong.

 - Q, K and V are divided by their scales as they are loaded. Multiply the scores and O accordingly.
 - V is stored transposed: byte place(key) of row c of V_tile is element c of that key. The sum over keys of P V may
   have any order, if P and V have the same. After Q K^T, lane q of the four that share a row has P of keys 2 q and 2
   q + 1, and of 8 + 2 q and 8 + 2 q + 1; of the next 16 keys likewise. These four are what pack() puts into a
   register, and a register of A is multiplied by bytes 4 q to 4 q + 3 of V's row (and 16 + 4 q to 16 + 4 q + 3). So
   place() of the keys 0, 1, 8, 9 is 0, 1, 2, 3; of 2, 3, 10, 11 it is 4, 5, 6, 7; and so on.""",
    start=(
        Edit(old=PLACE, new="return key /* your code */;"),
        Edit(old=SCORE, new="tau * s[i]"),
        Edit(old=OUTPUT, new="float f = 1 / l[h];"),
    ),
    cases=(
        TaskCase(about="32 keys: one tile", problem=small_halves(64, 32)),
        TaskCase(about="64 keys: two tiles", problem=small_halves(64, 64)),
        TaskCase(about="45 keys: a tile and a part of one", problem=small_halves(64, 45)),
        TaskCase(
            about="races and reads of unwritten memory, 45 rows and keys", problem=small_halves(45), sanitize=True
        ),
    ),
    hints=(
        ("bits of unwritten memory", "Some byte of V_tile is never written: 32 keys need 32 different places."),
        (
            "NaN",
            "Bytes that were never written may be NaN: does place() give 32 keys 32 different places? If so, is l the "
            "divisor of O, and no scale 0?",
        ),
        (
            "instead of",
            "Check one at a time: scores need the scales of Q and K, O needs that of V. place() of the keys 0, 1, 8, "
            "9, 2, 3, 10, 11 is 0 to 7, that of key + 16 is 16 more.",
        ),
    ),
    mistakes=(
        Mistake(
            name="keys_in_order", edits=(Edit(old=PLACE, new="return key;"),), answer="place() of the keys 0, 1, 8, 9"
        ),
        Mistake(
            name="inverse_order",
            edits=(Edit(old=PLACE, new="return key / 16 * 16 + key % 4 / 2 * 8 + key % 16 / 4 * 2 + key % 2;"),),
            answer="place() of the keys 0, 1, 8, 9",
        ),
        Mistake(
            name="first_16_keys_only",
            edits=(Edit(old=PLACE, new="return key % 8 / 2 * 4 + key % 16 / 8 * 2 + key % 2;"),),
            answer="32 different places",
        ),
        Mistake(
            name="scores_not_scaled",
            edits=(Edit(old=SCORE, new="tau * s[i]"),),
            answer="scores need the scales of Q and K",
        ),
        Mistake(
            name="output_not_scaled",
            edits=(Edit(old=OUTPUT, new="float f = 1 / l[h];"),),
            answer="O needs that of V",
        ),
        Mistake(
            name="divided_twice",
            edits=(Edit(old=OUTPUT, new="float f = 1 / (v_scale * l[h]);"),),
            answer="O needs that of V",
        ),
        Mistake(
            name="rows_of_A_exchanged",
            edits=(Edit(old=WEIGHTS, new="a[i] = pack(p[0], p[1], p[2], p[3]);"),),
            answer="32 keys: one tile",
        ),
        Mistake(
            name="not_transposed",
            edits=(Edit(old=LOAD_V, new=LOAD_V.replace("true", "false")),),
            answer="32 keys: one tile",
        ),
    ),
)
