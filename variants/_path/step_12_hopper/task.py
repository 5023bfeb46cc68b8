"""The task of step 12: producer and consumers do not wait for each other."""

from __future__ import annotations

from harness import Edit, Mistake, Task, TaskCase
from variants._path.halves import small_halves

FREE = "            wait(&empty[stage], 1 - parity);  // at first, both stages are empty\n"
EXPECT = "            arrive_and_expect(&full[stage], KV_BYTES);\n"
ARRIVED = "        wait(&full[stage], parity);\n"
RELEASE = "        arrive(&empty[stage]);\n"
WAIT_FOR_O = "        wait_for_products(o);\n"

TASK = Task(
    text="""Step 12: connect the producer and the consumers.

The producer copies tiles into two stages in turn; the consumers multiply them. Each stage has two barriers: `full`,
which 1 arrival and the expected bytes complete, and `empty`, which 128 arrivals complete, one of each thread of the
consumers. Round 0 of a stage is phase 0 of its barriers, with parity 0, the next one has parity 1, then 0 again. Put
in
 - where the producer waits until the stage is empty. Phase 0 of `empty` ends when the consumers have read round 0;
   before round 0 there is nothing to wait for, and wait() for parity 1 does not wait then.
 - where the producer arrives at `full` and tells it how many bytes it will copy,
 - where the consumers wait until the stage is full, and where they release it.""",
    start=(
        Edit(old=FREE + EXPECT, new="            // Your code: wait until the stage is empty; announce the bytes.\n"),
        Edit(old=ARRIVED, new="        // Your code: wait until the stage is full.\n"),
        Edit(old=RELEASE, new="        // Your code: release the stage.\n"),
    ),
    cases=(
        TaskCase(about="32 keys: one tile", problem=small_halves(64, 32), sanitize=True),
        TaskCase(about="64 keys: two tiles, one for each stage", problem=small_halves(64, 64)),
        TaskCase(about="160 keys: five tiles, stages are used again", problem=small_halves(64, 160), sanitize=True),
        TaskCase(about="45 rows and keys: partial tiles", problem=small_halves(45)),
    ),
    hints=(
        ("where 0 arrivals", "A barrier expects more bytes than the copies bring: K_j and V_j have 2,048 each."),
        (
            "deadlock",
            "Somebody waits for a phase that nobody completes. The message says which barrier lacks which arrivals. "
            "The producer waits for `empty` and completes `full`; the consumers wait for `full` and complete `empty`.",
        ),
        (
            "mbarrier count",
            "The producer has announced the next round of a stage before the consumers were done with this one: it has "
            "to wait for `empty` first.",
        ),
        (
            "still in flight",
            "The products read a tile before it has arrived. The consumers have to wait for `full`, and `full` has to "
            "expect the bytes of both copies.",
        ),
        (
            "uninitialised",
            "The products read a stage that was never filled: a wait for the wrong parity does not wait. Round 0 of "
            "`full` is the phase of parity 0.",
        ),
        ("race", "A copy overwrites a stage that is still read: release it when both products have been waited for."),
    ),
    mistakes=(
        Mistake(name="consumers_do_not_wait", edits=(Edit(old=ARRIVED, new=""),), answer="have to wait for `full`"),
        Mistake(name="producer_does_not_wait", edits=(Edit(old=FREE, new=""),), answer="wait for `empty` first"),
        Mistake(
            name="waits_exchanged",
            edits=(
                Edit(old=FREE, new=FREE.replace("&empty", "&full")),
                Edit(old=ARRIVED, new=ARRIVED.replace("&full", "&empty")),
            ),
            answer="deadlock",
        ),
        Mistake(
            name="parities_exchanged",
            edits=(
                Edit(old=FREE, new=FREE.replace("1 - parity", "parity")),
                Edit(old=ARRIVED, new=ARRIVED.replace("parity", "1 - parity")),
            ),
            answer="does not wait",
        ),
        Mistake(name="never_released", edits=(Edit(old=RELEASE, new=""),), answer="deadlock"),
        Mistake(
            name="one_thread_releases",
            edits=(Edit(old=RELEASE, new="        if (lane == 0) arrive(&empty[stage]);\n"),),
            answer="deadlock",
        ),
        Mistake(
            name="bytes_of_one_tile",
            edits=(Edit(old=EXPECT, new=EXPECT.replace("KV_BYTES", "KV_BYTES / 2")),),
            answer="the bytes of both copies",
        ),
        Mistake(
            name="too_many_bytes",
            edits=(Edit(old=EXPECT, new=EXPECT.replace("KV_BYTES", "2 * KV_BYTES")),),
            answer="more bytes than the copies bring",
        ),
        Mistake(
            name="released_before_the_products_end",
            edits=(Edit(old=WAIT_FOR_O + RELEASE, new=RELEASE + WAIT_FOR_O),),
            answer="release it when both products",
        ),
    ),
)
