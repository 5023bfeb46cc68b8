"""The task of step 11: nothing waits for the copies, and nobody for the readers."""

from __future__ import annotations

from harness import Edit, Mistake, Task, TaskCase
from variants._path.halves import small_halves

COMMIT = "        commit_copies();          // a group without copies after the last tile\n"
WAIT = "        wait_for_all_but_last();  // this thread's part of these tiles has arrived\n"
ARRIVED = "        __syncthreads();          // the parts of all other threads, too\n"
READ = "        __syncthreads();  // no thread reads these tiles any more: the next copies may overwrite them\n"
NEXT_K = "copy_tile(K_tiles[1 - stage], BC, K + next * D, n - next);"
HOLE = "        // Your code: these tiles have to be complete before the products read them.\n"

TASK = Task(
    text="""Step 11: put the waits where they belong.

The loop begins to copy the next tiles, then multiplies the current ones, but nothing waits. Three things are needed:
 - commit_copies() makes a group of the copies that the thread has begun; wait_for_all_but_last() waits for all groups
   of the thread but the last one. In each turn, that has to be the group of the next tiles, also in the last turn, in
   which there are none.
 - A thread can wait for its own copies only. __syncthreads() waits until all threads have arrived there, and what
   they have waited for is then visible to all.
 - The next turn copies into the place that this turn reads. No thread may begin that while another one still reads.""",
    start=(Edit(old=COMMIT + WAIT + ARRIVED, new=HOLE), Edit(old=READ, new="")),
    cases=(
        TaskCase(about="32 keys: one tile, no next one", problem=small_halves(64, 32), sanitize=True),
        TaskCase(about="64 keys: two tiles", problem=small_halves(64, 64), sanitize=True),
        TaskCase(about="128 keys: four tiles, each place is used twice", problem=small_halves(64, 128), sanitize=True),
        TaskCase(about="45 keys: a tile and a part of one", problem=small_halves(64, 45)),
    ),
    hints=(
        (
            "WAW race",
            "The next tiles are copied into the place that is read or filled now: they belong into stage 1 - stage.",
        ),
        (
            "still in flight",
            "The tiles have not arrived when the products read them. Wait for their group: it must not be the last "
            "one, so commit one in each turn, even without copies. Then let all threads meet, and only then read.",
        ),
        (
            "WAR race",
            "A copy overwrites a tile that another thread may still read: end the turn with a __syncthreads().",
        ),
        (
            "race",
            "A thread reads what another one has copied: after each has waited for its own, all meet at "
            "__syncthreads().",
        ),
    ),
    mistakes=(
        Mistake(name="no_wait", edits=(Edit(old=WAIT, new=""),), answer="have not arrived"),
        Mistake(
            name="barrier_before_the_wait",
            edits=(Edit(old=WAIT + ARRIVED, new=ARRIVED + WAIT),),
            answer="Then let all threads meet",
        ),
        Mistake(
            name="no_barrier_after_the_wait", edits=(Edit(old=ARRIVED, new=""),), answer="all meet at __syncthreads()"
        ),
        Mistake(
            name="no_barrier_at_the_end", edits=(Edit(old=READ, new=""),), answer="end the turn with a __syncthreads()"
        ),
        Mistake(
            name="no_group_after_the_last_tile",
            edits=(Edit(old=COMMIT, new="        if (next < n) commit_copies();\n"),),
            answer="commit one in each turn",
        ),
        Mistake(name="no_groups", edits=(Edit(old=COMMIT, new=""),), answer="commit one in each turn"),
        Mistake(
            name="into_the_place_that_is_read",
            edits=(Edit(old=NEXT_K, new=NEXT_K.replace("1 - stage", "stage")),),
            answer="stage 1 - stage",
        ),
    ),
)
