"""The task of step 1: the sum over lanes is missing."""

from __future__ import annotations

from harness import Edit, Mistake, Task, TaskCase
from variants._path import small

LOOP = "for (int j = lane; j < n; j += 32) l += expf(S[row * n + j]);"
SUM = "l = warp_sum(l);"
WEIGHTS = "for (int j = lane; j < n; j += 32) S[row * n + j] = expf(S[row * n + j]) / l;"

TASK = Task(
    text="""Step 1: complete the softmax.

The kernel `softmax` gets a row of S and has to leave P = exp(S) / l there, where l is the sum of exp(S) over all n keys
of the row. Lane t of the warp takes keys t, t + 32, t + 64, ... A lane therefore knows only its own part of the sum;
warp_sum(x) returns the sum of x over all 32 lanes, in every lane. n need not be a multiple of 32.""",
    start=(
        Edit(old=LOOP, new="// Your code: add the lane's keys to l, then add up the lanes."),
        Edit(old=f"    {SUM}\n    {WEIGHTS}", new="    // Your code: store P in the place of S."),
    ),
    cases=(
        TaskCase(about="32 keys, one for each lane", problem=small(2, 32)),
        TaskCase(about="64 keys, two for each lane", problem=small(2, 64)),
        TaskCase(about="33 keys: lane 0 has two, the other lanes one", problem=small(2, 33)),
        TaskCase(about="5 keys: most lanes have none", problem=small(2, 5)),
        TaskCase(about="races and reads of unwritten memory, 40 keys", problem=small(2, 40), sanitize=True),
    ),
    hints=(
        ("race", "Two lanes touch the same element of S: lane t may use only keys t, t + 32, t + 64, ..."),
        (
            "out-of-bounds",
            "A lane must not touch keys from n on: its loop starts at `lane`, ends before n, and steps by 32.",
        ),
        ("is read", "Initialise l with 0 before you add to it."),
        ("32 keys, one", "Is l the sum over all lanes, and is every exp(S) divided by it?"),
        ("64 keys, two", "Does each lane go on to keys t + 32, t + 64, ..., in both loops?"),
        ("33 keys", "Only lane 0 has a second key here: the others must not add anything for key t + 32."),
        ("5 keys", "Only lanes 0 to 4 have a key here: the others add nothing, but take part in warp_sum."),
    ),
    mistakes=(
        Mistake(
            name="one_lane_only",
            edits=(Edit(old=SUM, new=""),),
            answer="Is l the sum over all lanes",
        ),
        Mistake(
            name="first_32_keys_only",
            edits=(Edit(old=LOOP, new="l += expf(S[row * n + lane]);"),),
            answer="Does each lane go on to keys t + 32",
        ),
        Mistake(
            name="padding_counts",
            edits=(
                Edit(
                    old=LOOP,
                    new="for (int j = lane; j < (n + 31) / 32 * 32; j += 32) l += j < n ? expf(S[row * n + j]) : 1.0f;",
                ),
            ),
            answer="the others must not add anything",
        ),
        Mistake(
            name="beyond_the_row",
            edits=(Edit(old=LOOP, new="for (int j = lane; j < n + 31; j += 32) l += expf(S[row * n + j]);"),),
            answer="out-of-bounds",
        ),
        Mistake(
            name="not_divided",
            edits=(Edit(old=WEIGHTS, new="for (int j = lane; j < n; j += 32) S[row * n + j] = expf(S[row * n + j]);"),),
            answer="32 keys, one for each lane",
        ),
        Mistake(
            name="every_lane_takes_every_key",
            edits=(
                Edit(old=LOOP, new="for (int j = 0; j < n; ++j) l += expf(S[row * n + j]);"),
                Edit(old=SUM, new=""),
                Edit(old=WEIGHTS, new="for (int j = 0; j < n; ++j) S[row * n + j] = expf(S[row * n + j]) / l;"),
            ),
            answer="lane t may use only keys t, t + 32",
        ),
        Mistake(
            name="lane_zero_stores",
            edits=(Edit(old=WEIGHTS, new="if (lane == 0) S[row * n] = expf(S[row * n]) / l;"),),
            answer="32 keys, one for each lane",
        ),
    ),
)
