"""The scheduler: runs clusters (usually of one block) in sequence, their warps in turns, and implements barriers."""

from __future__ import annotations

from harness.emulator.abi import context
from harness.emulator.abi import event_layout as event
from harness.emulator.abi import layout as at
from harness.emulator.abi.cluster_memory import warp_number
from harness.emulator.abi.fault_record import note_first, set_fault
from harness.emulator.abi.raw_memory import call_host, call_warp, fill_ones, load32, load64, store32, store64
from harness.emulator.abi.sanitizer_layout import CLUSTER_BARRIERS
from harness.emulator.memory.launch_control import leave_queue
from harness.emulator.memory.trace import NO_SITE, barrier_clock, note, note_now, note_step, set_forward, start_clocks
from harness.emulator.runtime.clusters import (
    IDLE,
    begin_cluster,
    enter_block,
    enter_blocked,
    leave_block,
    wait_for_cluster,
    warp_at,
)
from harness.emulator.runtime.spinning import FIRST_LOOK, ROUNDS_COMPARED, SHORT_TURN, WAITING_TURN, state_of
from harness.emulator.sanitizer.vector_clock import arrive_at_barrier, leave_barrier, reset_barrier
from harness.emulator.sanitizer.vector_clock import begin_cluster as begin_watched_cluster

DEADLOCK = at.FAULT["barrier deadlock"]
PAST_LIMIT = at.FAULT["step limit"]
NO_REGISTERS = at.FAULT["register deadlock"]


def start_cluster(ctx: int, cluster: int) -> None:
    """Start the blocks of a cluster, which is one block without clusters."""
    begin_cluster(ctx, cluster)
    store64(ctx + context.REFUSED, 0)
    size = load64(ctx + context.CLUSTER_SIZE)
    for rank in range(size - 1, -1, -1):
        enter_block(ctx, rank)
        start_block(ctx)
    order_warps(ctx, cluster, size)
    if load64(ctx + context.DROP_COPIES):
        call_host(load64(ctx + context.DROP_COPIES), ctx)
    if load64(ctx + context.DROP_ASYNC):
        call_host(load64(ctx + context.DROP_ASYNC), ctx)
    start_clocks(ctx)
    if load64(ctx + context.SANITIZER):
        begin_watched_cluster(load64(ctx + context.SANITIZER), cluster)


def start_block(ctx: int) -> None:
    """Fill memory with NaN patterns, and set every warp to the first basic block."""
    fill_ones(load64(ctx + context.SHARED_BASE), load64(ctx + context.SHARED_SIZE))
    warps = load64(ctx + context.WARP_COUNT)
    fill_ones(load64(ctx + context.LOCALS), load64(ctx + context.LOCAL_SIZE) * 32 * warps)
    for slot in range(at.BARRIER_SLOTS):
        store64(load64(ctx + context.BARRIERS) + 8 * slot, 0)
    threads = load64(ctx + context.THREADS)
    width = load64(ctx + context.WARP_BYTES)
    for index in range(warps):
        warp = load64(ctx + context.WARPS) + index * width
        lanes = threads - 32 * index
        started = 0xFFFFFFFF if lanes >= 32 else (1 << lanes) - 1
        for lane in range(32):
            store32(warp + at.PCS + 4 * lane, 0 if (started >> lane) & 1 else at.EXITED_PC)
        store32(warp + at.ALIVE, started)
        store32(warp + at.STARTED, started)
        store32(warp + at.STATUS, at.READY)
        store64(warp + at.SAVED_STEPS, 0)
        store64(warp + at.CLOCK_LEAD, 0)
        store64(warp + at.LAST_MOMENT, 0)
        store64(warp + at.WAITS_SINCE, 0)
        store64(warp + at.LOOKED_AT, -1 - at.WAIT_LOOP_INSTRUCTIONS)
        store32(warp + at.CLUSTER_STATE, IDLE)
        store32(warp + at.LEFT_AT, 0)
        store32(warp + at.REGISTER_COUNT, load64(ctx + context.ENTRY_REGISTERS))
        if load64(ctx + context.CLEAR_REGISTERS):
            fill_ones(warp + at.REGISTERS, width - at.REGISTERS)


def draw(ctx: int) -> int:
    """The next random number of this cluster, 30 bits."""
    state = (load64(ctx + context.RANDOM) * 0x5851F42D4C957F2D + 0x14057B7EF767814F) & 0x7FFFFFFFFFFFFFFF
    store64(ctx + context.RANDOM, state)
    return int(state >> 33)


def permute_warps(ctx: int, warps: int) -> None:
    """Permute the order in which ready warps run."""
    order = load64(ctx + context.ORDER)
    for index in range(warps - 1, 0, -1):
        other = draw(ctx) % (index + 1)
        held = load32(order + 4 * index)
        store32(order + 4 * index, load32(order + 4 * other))
        store32(order + 4 * other, held)


def order_warps(ctx: int, cluster: int, blocks: int) -> None:
    """Set the order in which ready warps run: ascending, or a permutation by the seed and the cluster."""
    warps, place = load64(ctx + context.WARP_COUNT), 0
    for rank in range(blocks):
        for index in range(warps):
            store32(load64(ctx + context.ORDER) + 4 * place, rank * load64(ctx + context.WARP_PITCH) + index)
            place += 1
    seed = load64(ctx + context.SEED)
    if seed == 0:
        return
    store64(ctx + context.RANDOM, (seed * 0x5851F42D4C957F2D + cluster * 0x14057B7EF767814F + 1) & 0x7FFFFFFFFFFFFFFF)
    permute_warps(ctx, place)


def turn_length(ctx: int) -> int:
    """Maximum instructions of a turn; random from 1 to 2048 if shuffled, so that warps overtake each other."""
    return 1 << draw(ctx) % 12 if load64(ctx + context.PLACES) else at.TURN_INSTRUCTIONS


def population(bits: int) -> int:
    """Number of set bits among the low 32."""
    total = 0
    for lane in range(32):
        total += (bits >> lane) & 1
    return total


def lowest_lane(bits: int) -> int:
    """Index of the lowest set bit; 31 if none is set."""
    lane = 0
    while lane < 31 and not (bits >> lane) & 1:
        lane += 1
    return lane


def waits_at(warp: int, number: int) -> bool:
    """Whether a warp waits at this barrier."""
    here = load32(warp + at.BARRIER_ID) & (at.BARRIER_SLOTS - 1) == number
    return bool(here and load32(warp + at.STATUS) == at.AT_BARRIER)


def arrive(ctx: int, warp: int) -> None:
    """Count a warp at its barrier, which may complete it."""
    number = load32(warp + at.BARRIER_ID) & (at.BARRIER_SLOTS - 1)
    slot = load64(ctx + context.BARRIERS) + 8 * number
    sanitizer = load64(ctx + context.SANITIZER)
    if sanitizer:
        arrive_at_barrier(sanitizer, warp_number(ctx), watched_barrier(ctx, number))
    if load64(ctx + context.EVENT_CLOCKS):
        note_arrival(ctx, warp, number)
    wanted = load32(warp + at.BARRIER_THREADS)
    if wanted == 0:
        wanted = 32 * warps_of_barrier(ctx)
    arrived = load64(slot) + 32
    store64(slot, arrived)
    if arrived >= wanted:
        complete(ctx, number)


def warps_of_barrier(ctx: int) -> int:
    """Warps for which a barrier of all threads waits. Hardware does not wait for those that have returned."""
    if load64(ctx + context.LENIENT_BARRIERS):
        return load32(load64(ctx + context.LIVE_WARPS) + 4 * load64(ctx + context.CLUSTER_RANK))
    return load64(ctx + context.WARP_COUNT)


def complete_without(ctx: int) -> None:
    """A warp has returned: complete the barriers of all threads that waited for it alone, and note them."""
    width = load64(ctx + context.WARP_BYTES)
    for index in range(load64(ctx + context.WARP_COUNT)):
        warp = load64(ctx + context.WARPS) + index * width
        if load32(warp + at.STATUS) != at.AT_BARRIER or load32(warp + at.BARRIER_THREADS):
            continue
        number = load32(warp + at.BARRIER_ID) & (at.BARRIER_SLOTS - 1)
        if load64(load64(ctx + context.BARRIERS) + 8 * number) >= 32 * warps_of_barrier(ctx):
            complete(ctx, number)


def complete(ctx: int, number: int) -> None:
    """Release the warps that wait at a barrier, and compute their vote."""
    sanitizer = load64(ctx + context.SANITIZER)
    store64(load64(ctx + context.BARRIERS) + 8 * number, 0)
    votes, all_of, any_of, released = 0, 1, 0, 0
    latest = 0
    if load64(ctx + context.EVENT_CLOCKS):
        latest = load64(barrier_clock(ctx, number))
    width = load64(ctx + context.WARP_BYTES)
    for index in range(load64(ctx + context.WARP_COUNT)):
        other = load64(ctx + context.WARPS) + index * width
        if waits_at(other, number):
            if warps_of_barrier(ctx) < load64(ctx + context.WARP_COUNT) and load32(other + at.BARRIER_THREADS) == 0:
                note_first(ctx + context.ABSENT_LANES, load32(other + at.BARRIER_SITE))
            started = load32(other + at.STARTED)
            bits = load32(other + at.VOTE_BITS) & started
            votes += population(bits)
            all_of &= 1 if bits == started else 0
            any_of |= 1 if bits != 0 else 0
            latest = max(latest, load64(other + at.SAVED_STEPS) + load64(other + at.CLOCK_LEAD))
    for index in range(load64(ctx + context.WARP_COUNT)):
        other = load64(ctx + context.WARPS) + index * width
        if waits_at(other, number):
            kind = load32(other + at.VOTE_KIND)
            store32(other + at.VOTE_RESULT, votes if kind == 1 else all_of if kind == 2 else any_of)
            store32(other + at.STATUS, at.READY)
            released += 1
            if sanitizer:
                leave_barrier(sanitizer, load64(ctx + context.FIRST_WARP) + index, watched_barrier(ctx, number))
            store64(other + at.CLOCK_LEAD, latest - load64(other + at.SAVED_STEPS))
            note(ctx, other, load64(ctx + context.FIRST_WARP) + index, NO_SITE, event.LEAVES_BARRIER, number, latest)
    if released == load64(ctx + context.WARP_COUNT):
        note_step(ctx, 0, latest)
    if sanitizer:
        # Of a cluster there are other blocks, which do not know it.
        everyone = released == load64(ctx + context.WARP_COUNT) and load64(ctx + context.CLUSTER_SIZE) == 1
        reset_barrier(sanitizer, watched_barrier(ctx, number), everyone)


def note_arrival(ctx: int, warp: int, number: int) -> None:
    """Record that the current warp arrives at a barrier, if events are recorded."""
    set_forward(barrier_clock(ctx, number), load64(warp + at.SAVED_STEPS) + load64(warp + at.CLOCK_LEAD))
    code = event.ARRIVES if load32(warp + at.BARRIER_ARRIVES) else event.WAITS_AT_BARRIER
    note_now(ctx, load32(warp + at.BARRIER_SITE), code, number)


def watched_barrier(ctx: int, number: int) -> int:
    """The sanitizer's ID of a barrier of the current block."""
    return int(CLUSTER_BARRIERS + at.BARRIER_SLOTS * load64(ctx + context.CLUSTER_RANK) + number)


def run_blocks(ctx: int, first: int, last: int) -> int:
    """Run clusters `first` up to, excluding, `last`, in sequence.

    Returns `ENDED`, or the status of a cluster that did not end.

    Usually a cluster is one block. If PLACES is not 0, it contains the indices of the clusters at those places. If a
    cluster was suspended, PLACE contains its place, and `first` has to be that place in the next call. If CHOSEN is not
    0, only the clusters whose indices it contains run, and are numbered in its order.
    """
    for place in range(first, last):
        outcome = run_place(ctx, place)
        if outcome != at.ENDED:
            return outcome
    return at.ENDED


def run_place(ctx: int, place: int) -> int:
    """Run the cluster at a place, and then those behind it in its queue that no cluster has cancelled.

    A queue is left only by kernels with `clusterlaunchcontrol`. If HANDS_OVER is set, the result is `FOLLOWED` after
    each cluster but the last; the next call continues with the queue.
    """
    outcome = at.ENDED
    while outcome == at.ENDED:
        if load64(ctx + context.SUSPENDED) == 0 and not start_next(ctx, place):
            return at.ENDED
        outcome = run_cluster(ctx)
        store64(ctx + context.SUSPENDED, 1 if outcome > at.STOPPED else 0)
        if outcome == at.ENDED and load64(ctx + context.NEXT_CLUSTER) < 0:
            return at.ENDED
        if outcome == at.ENDED and load64(ctx + context.HANDS_OVER):
            return at.FOLLOWED
    return outcome


def start_next(ctx: int, place: int) -> bool:
    """Start the next cluster of the queue at a place, at first the cluster of the place. Returns False if none does."""
    shuffled, chosen = load64(ctx + context.PLACES), load64(ctx + context.CHOSEN)
    number = load64(ctx + context.NEXT_CLUSTER)
    if number < 0:
        number = load64(shuffled + 8 * place) if shuffled else place
    cluster = load64(chosen + 8 * number) if chosen else number
    # Another worker has faulted in an earlier cluster, so later ones do not matter.
    if cluster > load64(load64(ctx + context.STOP_AT)):
        store64(ctx + context.NEXT_CLUSTER, -1)
        return False
    leave_queue(ctx, number)
    start_cluster(ctx, cluster)
    store64(ctx + context.EXITED_WARPS, 0)
    store64(ctx + context.CLUSTER_STEPS, 0)
    store64(ctx + context.PLACE, place)
    return True


def run_cluster(ctx: int) -> int:
    """Run the cluster that the context describes until it ends or is suspended, as described for `run_blocks`."""
    entry = load64(ctx + context.ENTRY)
    size, pitch = load64(ctx + context.CLUSTER_SIZE), load64(ctx + context.WARP_PITCH)
    warps = load64(ctx + context.WARP_COUNT) * size
    width = load64(ctx + context.WARP_BYTES)
    order = load64(ctx + context.ORDER)
    exited, spent = load64(ctx + context.EXITED_WARPS), load64(ctx + context.CLUSTER_STEPS)
    limit, patience = load64(ctx + context.CLUSTER_LIMIT), load64(ctx + context.PATIENCE)
    waits = load64(ctx + context.GRID_BARRIER) != 0 or load64(ctx + context.WAITS) != 0
    short_turn = WAITING_TURN if waits else SHORT_TURN
    if patience:
        short_turn = min(short_turn, patience)
    pause_at, gap, looks, seen = spent + patience, short_turn if spent or waits else FIRST_LOOK, 0, 0
    look_at = spent + gap
    short = (spent > 0 or waits) and load64(ctx + context.PLACES) == 0
    futile_rounds = 0
    while exited < warps:
        progress = 0
        in_vain = 1
        changes = load64(ctx + context.CHANGES)
        if load64(ctx + context.PLACES):
            permute_warps(ctx, warps)
        for place in range(warps):
            index = load32(order + 4 * place)
            warp = load64(ctx + context.WARPS_ORIGIN) + index * width
            if load32(warp + at.STATUS) != at.READY:
                continue
            if size > 1:
                if index // pitch != load64(ctx + context.CLUSTER_RANK):
                    enter_block(ctx, index // pitch)
                index = index % pitch
            progress = 1
            store64(ctx + context.WARP_INDEX, index)
            store64(
                ctx + context.LOCAL_BASE, load64(ctx + context.LOCALS) + index * 32 * load64(ctx + context.LOCAL_SIZE)
            )
            steps = load64(warp + at.SAVED_STEPS)
            store64(ctx + context.STEPS, steps)
            turn = short_turn if short else turn_length(ctx)
            store64(ctx + context.TURN_END, min(steps + turn, load64(ctx + context.STEP_LIMIT)))
            status = call_warp(entry, ctx, warp)
            since_look = load64(ctx + context.STEPS) - load64(warp + at.LOOKED_AT)
            if status != at.YIELDED or since_look > at.WAIT_LOOP_INSTRUCTIONS:
                in_vain = 0
            spent += load64(ctx + context.STEPS) - steps
            store64(warp + at.SAVED_STEPS, load64(ctx + context.STEPS))
            if status == at.FAULTED:
                return at.STOPPED
            if status == at.EXITED:
                total = load64(ctx + context.WARP_INSTRUCTIONS) + load64(ctx + context.STEPS)
                store64(ctx + context.WARP_INSTRUCTIONS, total)
                store32(warp + at.STATUS, at.EXITED)
                note_now(ctx, NO_SITE, event.ENDS, 0)
                exited += 1
                leave_block(ctx, warp)
                if load64(ctx + context.LENIENT_BARRIERS):
                    complete_without(ctx)
            elif status == at.YIELDED:
                if load64(ctx + context.STEPS) > load64(ctx + context.STEP_LIMIT):
                    set_fault(ctx, PAST_LIMIT, -1, lowest_lane(load32(warp + at.ALIVE)), 0, 0)
                    return at.STOPPED
            elif status == at.AT_BARRIER:
                if load32(warp + at.BARRIER_ARRIVES) == 0:
                    store32(warp + at.STATUS, at.AT_BARRIER)
                arrive(ctx, warp)
            elif status == at.AT_CLUSTER:
                wait_for_cluster(ctx, warp)
            elif status == at.AT_WARPGROUP:
                store32(warp + at.STATUS, at.AT_WARPGROUP)
                call_host(load64(ctx + context.WARPGROUP_ARRIVES), ctx)
                if load64(ctx + context.FAULT_KIND):
                    return at.STOPPED
            if limit and spent > limit and status != at.EXITED:
                set_fault(ctx, PAST_LIMIT, -1, lowest_lane(load32(warp + at.ALIVE)), 0, limit)
                return at.STOPPED
        futile_rounds = futile_rounds + 1 if in_vain and load64(ctx + context.CHANGES) == changes else 0
        if progress == 0 or futile_rounds == at.FUTILE_ROUNDS:
            if size > 1:
                enter_blocked(ctx)
            set_fault(ctx, DEADLOCK, -1, 0, 0, 0)
            return at.STOPPED
        if patience and exited < warps and spent >= look_at:
            pauses = spent >= pause_at
            state = state_of(ctx) if looks or not pauses else 0
            spins = looks > 0 and state == seen
            if spins or pauses:
                store64(ctx + context.EXITED_WARPS, exited)
                store64(ctx + context.CLUSTER_STEPS, spent)
                if spins:
                    store64(ctx + context.SPINNING_STATE, state)
                return at.SPINS if spins else at.PAUSES
            if looks == 0:
                seen = state
            looks += 1
            if looks > ROUNDS_COMPARED:
                looks = 0
                gap *= 2
                look_at = spent + gap
    return at.STOPPED if load64(ctx + context.FAULT_KIND) or lacks_registers(ctx) else at.ENDED


def lacks_registers(ctx: int) -> int:
    """Fault if a block's warps have more registers by `setmaxnreg` than it was launched with. Returns 1 then, else 0.

    On a GPU one of them would wait for the others to release registers, which they never do.
    """
    at_launch, warps = load64(ctx + context.ENTRY_REGISTERS), load64(ctx + context.WARP_COUNT)
    if at_launch == 0:
        return 0
    for rank in range(load64(ctx + context.CLUSTER_SIZE)):
        total, most, owner = 0, 0, 0
        for index in range(warps):
            count = load32(warp_at(ctx, rank, index) + at.REGISTER_COUNT)
            total += count
            if count > most:
                most, owner = count, index
        if total > at_launch * warps:
            enter_block(ctx, rank)
            store64(ctx + context.WARP_INDEX, owner)
            site = load32(warp_at(ctx, rank, owner) + at.REGISTER_SITE)
            set_fault(ctx, NO_REGISTERS, site, 0, 32 * total, at_launch)
            return 1
    return 0
