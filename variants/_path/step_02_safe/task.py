"""The task of step 2: the maximum is missing."""

from __future__ import annotations

from harness import Edit, Mistake, Task, TaskCase
from variants._path import small

INIT = "float m = -INFINITY;"
FIND = "for (int j = lane; j < n; j += 32) m = fmaxf(m, S[row * n + j]);"
JOIN = "m = warp_max(m);"
SUM = "for (int j = lane; j < n; j += 32) l += expf(S[row * n + j] - m);"
WEIGHTS = "for (int j = lane; j < n; j += 32) S[row * n + j] = expf(S[row * n + j] - m) / l;"

TASK = Task(
    text="""Step 2: make the softmax safe.

This is the softmax of step 1. In float32, expf(s) is infinite for s > 88.7 and 0 for s < -104, and infinity / infinity
and 0 / 0 are not numbers. Let m be the maximum of the row's n scores, and replace exp(S) by exp(S - m), so that the
largest weight is exp(0) = 1. Lane t of the warp knows keys t, t + 32, t + 64, ...; warp_max(x) returns the maximum of x
over all 32 lanes, in every lane.""",
    start=(
        Edit(old=f"    {INIT}\n    {FIND}\n    {JOIN}\n", new="    // Your code: find m.\n"),
        Edit(old=SUM, new=SUM.replace(" - m", "")),
        Edit(old=WEIGHTS, new=WEIGHTS.replace(" - m", "")),
    ),
    cases=(
        TaskCase(about="ordinary scores", problem=small(2, 64)),
        TaskCase(about="scores so large that exp overflows", problem=small(2, 64), regime="hot"),
        TaskCase(about="scores that are all far below zero", problem=small(2, 64), regime="far-negative"),
        TaskCase(about="large scores and 33 keys: lane 0 has two, the others one", problem=small(2, 33), regime="hot"),
        TaskCase(
            about="far negative scores and 5 keys: most lanes have none", problem=small(2, 5), regime="far-negative"
        ),
        TaskCase(about="races and reads of unwritten memory, 40 keys", problem=small(2, 40), sanitize=True),
    ),
    hints=(
        ("NaN", "NaN comes from 0 / 0 or infinity / infinity: is m subtracted in both loops, and is it the maximum?"),
        ("inf", "An infinite value comes from expf of a large number: is m subtracted in both loops?"),
        ("race", "Two lanes touch the same element of S: lane t may use only keys t, t + 32, t + 64, ..."),
        ("ordinary scores", "Is m the maximum of all lanes, and is the same m subtracted in both loops?"),
    ),
    mistakes=(
        Mistake(name="nothing_subtracted", edits=(Edit(old=JOIN, new="m = 0.0f;"),), answer="exp overflows"),
        Mistake(
            name="only_in_the_sum",
            edits=(Edit(old=WEIGHTS, new=WEIGHTS.replace(" - m", "")),),
            answer="is the same m subtracted in both loops",
        ),
        Mistake(name="starts_at_zero", edits=(Edit(old=INIT, new="float m = 0.0f;"),), answer="far below zero"),
        Mistake(name="lanes_not_joined", edits=(Edit(old=JOIN, new=""),), answer="Is m the maximum of all lanes"),
        Mistake(
            name="maximum_of_one_lane",
            edits=(Edit(old=JOIN, new="m = __shfl_sync(0xffffffff, m, 0) - 200.0f;"),),
            answer="ordinary scores",
        ),
        Mistake(
            name="minimum",
            edits=(
                Edit(old=INIT, new="float m = INFINITY;"),
                Edit(old=FIND, new=FIND.replace("fmaxf", "fminf")),
                Edit(old=JOIN, new="m = -warp_max(-m);"),
            ),
            answer="exp overflows",
        ),
    ),
)
