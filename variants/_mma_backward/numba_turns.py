"""Which tiles of rows a block of keys visits, and which pairs of a tile the mask hides where tiles are listed. The CUDA
twin, turns.cuh, has the same names."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

from numba import cuda, int32, uint32, uint64

from variants._features.numba_limits import RowBlock
from variants._features.numba_tile_order import ListedTile, ListOfTiles, NumbaRule, numba_tile_order
from variants._mma.numba_mma import (
    copy_async,
    global_address,
    load_global,
    load_shared,
    shared_address,
    store_shared,
    thread_index,
    unknown,
)
from variants._mma_backward.tile import BackwardMmaTile
from variants._tiles.visits import words

NOTHING, WORD = uint32(0), uint32(4)
load_word, store_word = load_shared(4), store_shared(4)
load_entry, copy_word = load_global(4), copy_async(4)


class Turn(NamedTuple):
    """One turn of a block's loop: it scores a tile of rows of one of the query heads that share the block's keys.

    What one turn scores is summed LAG turns later.
    """

    number: Any
    head: Any
    first_row: Any


@functools.cache
def numba_turns(tile: BackwardMmaTile, lag: int, rule: NumbaRule | None) -> SimpleNamespace:
    """The turns of a block: all tiles of rows that see its keys, or with a mask's `rule` those of a list."""
    return _run_of_turns(tile.Br, lag) if rule is None else _listed_turns(tile, lag, rule)


def _run_of_turns(rows: int, lag: int) -> SimpleNamespace:
    """All tiles of `rows` rows with one that sees a key of the block, of all heads that share the keys.

    `numbers`: where in shared memory three of them are noted, read anew each time: sums want the registers.
    """
    BR, LAG = rows, lag

    # With those in which it only sums.
    @cuda.jit(device=True, forceinline=True)
    def count(numbers):
        return int32(load_word(numbers))

    @cuda.jit(device=True, forceinline=True)
    def first_row(numbers):
        return int32(load_word(uint32(numbers + WORD)))

    @cuda.jit(device=True, forceinline=True)
    def end_row(numbers):
        return int32(load_word(uint32(numbers + WORD + WORD)))

    # By one thread. Rows first to end - 1 see the block's keys.
    @cuda.jit(device=True, forceinline=True)
    def note(numbers, first, end, heads, order, q_len):
        tile = int32(uint32(first) // uint32(BR))
        tiles = int32(int32(uint32(end + BR - 1) // uint32(BR)) - tile) if first < end else int32(0)
        store_word(numbers, uint32(int32(heads * tiles) + LAG) if tiles > 0 else NOTHING)
        store_word(uint32(numbers + WORD), uint32(tile * BR))
        store_word(uint32(numbers + WORD + WORD), uint32(int32(tile + tiles) * BR))

    @cuda.jit(device=True, forceinline=True)
    def scores(numbers, turn):
        return turn.number < int32(count(numbers) - LAG)

    @cuda.jit(device=True, forceinline=True)
    def after(numbers, turn):
        is_last = int32(turn.first_row + BR) == end_row(numbers)
        row = first_row(numbers) if is_last else int32(turn.first_row + BR)
        return Turn(int32(turn.number + 1), int32(turn.head + is_last), row)

    @cuda.jit(device=True, forceinline=True)
    def before(numbers, turn):
        is_first = turn.first_row == first_row(numbers)
        row = int32((end_row(numbers) if is_first else turn.first_row) - BR)
        return Turn(int32(turn.number - 1), int32(turn.head - is_first), row)

    # Limits alone hide pairs.
    @cuda.jit(device=True, forceinline=True)
    def room():
        return ()

    @cuda.jit(device=True, forceinline=True)
    def pairs(numbers, bits, turn):
        return ()

    @cuda.jit(device=True, forceinline=True)
    def hides_some(hidden):
        return False

    @cuda.jit(device=True, forceinline=True)
    def compute(hidden, bits, numbers, turn, block, order):
        pass

    @cuda.jit(device=True, forceinline=True)
    def copy_entry(numbers, turn, order, q_len):
        pass

    return SimpleNamespace(
        NUMBERS=3,
        count=count,
        first_row=first_row,
        note=note,
        scores=scores,
        after=after,
        before=before,
        room=room,
        pairs=pairs,
        hides_some=hides_some,
        compute=compute,
        copy_entry=copy_entry,
    )


class HiddenPairs(NamedTuple):
    """Which rows of a turn's tile see which of the block's keys."""

    bits: Any
    """Where in shared memory `compute` writes bits, 32 keys to a word."""
    numbers: Any
    number: Any
    """Of the turn, whose entry is odd if the mask hides some pairs."""


def _listed_turns(tile: BackwardMmaTile, lag: int, rule: NumbaRule) -> SimpleNamespace:
    """Those of a list that is ahead of the launch, of one head after the other.

    The numbers are that of turns, that of the list's entries, and the entries of the turn before, of this turn and of
    the two after it. One thread reads each entry once, by an asynchronous copy beside those of rows. Of a mixed tile
    the block computes which row sees which key, a bit each.
    """
    BR, BC, LAG, ENTRIES, WORDS = tile.Br, tile.Bc, lag, 4, words(tile)
    compute_bits = numba_tile_order(rule, BR, BC, 32 * tile.warps).compute_bits

    # With those in which it only sums.
    @cuda.jit(device=True, forceinline=True)
    def count(numbers):
        return int32(load_word(numbers))

    @cuda.jit(device=True, forceinline=True)
    def tiles(numbers):
        return uint32(load_word(uint32(numbers + WORD)))

    @cuda.jit(device=True, forceinline=True)
    def place(numbers, number):
        return uint32(numbers + WORD + WORD + (uint32(number) & uint32(ENTRIES - 1)) * WORD)

    @cuda.jit(device=True, forceinline=True)
    def row_of(numbers, number):
        return int32((uint32(load_word(place(numbers, number))) >> uint32(1)) * uint32(BR))

    @cuda.jit(device=True, forceinline=True)
    def first_row(numbers):
        return row_of(numbers, int32(0))

    # The list of the block's keys.
    @cuda.jit(device=True, forceinline=True)
    def list_of(order, q_len):
        number = uint32(unknown(int32(cuda.blockIdx.z)) * order[1] * cuda.gridDim.y + cuda.blockIdx.y)
        room = uint32(1) + uint32(q_len + BR - 1) // uint32(BR)
        return global_address(order[0]) + uint64(number) * uint64(room) * uint64(4)

    # By one thread.
    @cuda.jit(device=True, forceinline=True)
    def note(numbers, first, end, heads, order, q_len):
        entries = list_of(order, q_len)
        tiles_listed = uint32(load_entry(entries))
        turns = uint32(uint32(heads) * tiles_listed)
        store_word(numbers, uint32(turns + uint32(LAG)) if turns > uint32(0) else NOTHING)
        store_word(uint32(numbers + WORD), tiles_listed)
        for n in range(ENTRIES):
            entry = NOTHING
            if n < 2 and uint32(n) < turns:
                entry = uint32(load_entry(entries + uint64(4) + uint64(uint32(n) % tiles_listed) * uint64(4)))
            store_word(place(numbers, n), entry)

    @cuda.jit(device=True, forceinline=True)
    def at(numbers, number):
        return Turn(number, int32(uint32(number) // tiles(numbers)), row_of(numbers, number))

    @cuda.jit(device=True, forceinline=True)
    def scores(numbers, turn):
        return turn.number < int32(count(numbers) - LAG)

    @cuda.jit(device=True, forceinline=True)
    def after(numbers, turn):
        return at(numbers, int32(turn.number + 1))

    @cuda.jit(device=True, forceinline=True)
    def before(numbers, turn):
        return at(numbers, int32(turn.number - 1))

    # The entry that `after` needs in the next turn.
    @cuda.jit(device=True, forceinline=True)
    def copy_entry(numbers, turn, order, q_len):
        number = int32(turn.number + 2)
        if thread_index() == 0 and number < int32(count(numbers) - LAG):
            of_list = uint64(uint32(number) % tiles(numbers))
            copy_word(place(numbers, number), list_of(order, unknown(q_len)) + uint64(4) + of_list * uint64(4), True)

    @cuda.jit(device=True, forceinline=True)
    def room():
        return (cuda.shared.array((BR, WORDS), uint32),)

    @cuda.jit(device=True, forceinline=True)
    def pairs(numbers, bits, turn):
        return HiddenPairs(shared_address(bits[0]), numbers, turn.number)

    # Read anew.
    @cuda.jit(device=True, forceinline=True)
    def hides_some(hidden):
        return uint32(load_word(place(hidden.numbers, unknown(hidden.number)))) & uint32(1) != uint32(0)

    # By all threads.
    @cuda.jit(device=True, forceinline=True)
    def compute(hidden, bits, numbers, turn, block, order):
        if hides_some(hidden) and scores(numbers, turn):
            rows = int32(min(int32(BR), int32(block.q_len - turn.first_row)))
            keys = int32(min(int32(BC), int32(block.kv_len - block.first_key)))
            of_rows = RowBlock(int32(0), int32(0), int32(0), int32(0), turn.first_row, rows)
            seen = ListOfTiles((), int32(0), order[3], int32(0), of_rows)
            compute_bits(bits[0], seen, ListedTile(int32(1), int32(0), int32(0), block.first_key), keys)
            cuda.syncthreads()

    return SimpleNamespace(
        NUMBERS=2 + ENTRIES,
        count=count,
        first_row=first_row,
        note=note,
        scores=scores,
        after=after,
        before=before,
        room=room,
        pairs=pairs,
        hides_some=hides_some,
        compute=compute,
        copy_entry=copy_entry,
    )
