"""The modelled caches, on access patterns whose counts were worked out by hand."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from harness.emulator.abi import cache_layout as at
from harness.emulator.launch.cache_hierarchy import CacheCount, CacheSizes, MemoryHierarchy
from harness.emulator.memory.residency import Residency
from harness.support.errors import PlanError
from harness.support.memory_units import LINE_BYTES as LINE

WHOLE = 0b1111
ONE_SET = CacheSizes(multiprocessors=1, l2_bytes=16 * LINE, l2_partitions=1)
"""One multiprocessor, and an L2 of 16 lines that may each be anywhere."""
NO_L1 = Residency(blocks=1, l1_bytes=0)
FOUR_LINES = Residency(blocks=1, l1_bytes=4 * LINE)

Access = tuple[int, int, int, int]


def load(line: int, mask: int = WHOLE, delay: int = 1) -> Access:
    return (line, mask, at.LOAD, delay)


def store(line: int, mask: int = WHOLE, delay: int = 1) -> Access:
    return (line, mask, at.STORE, delay)


def packed(accesses: Iterable[Access]) -> np.ndarray:
    words = [(line << 35) | (kind << 32) | (mask << 28) | delay for line, mask, kind, delay in accesses]
    return np.array(words, dtype=np.uint64)


def caches(sizes: CacheSizes = ONE_SET, lines: int = 1000) -> MemoryHierarchy:
    return MemoryHierarchy(sizes, [("A", lines * LINE)])


def play(
    hierarchy: MemoryHierarchy, blocks: Sequence[Iterable[Access]], residency: Residency = NO_L1
) -> tuple[CacheCount, ...]:
    launch = hierarchy.launch(len(blocks), residency)
    for number, block in enumerate(blocks):
        launch.deliver(number, packed(block))
    return launch.finish()


def counted(
    accesses: Iterable[Access], residency: Residency = NO_L1, sizes: CacheSizes = ONE_SET
) -> tuple[int, int, int, int]:
    """Sectors read and written at L2, read from and written to DRAM, by one block alone."""
    (found,) = play(caches(sizes), [list(accesses)], residency)
    return found.l2_read, found.l2_write, found.dram_read, found.dram_write


# L1 ------------------------------------------------------------------------------------------------------------------


def test_l1_replaces_the_line_that_was_used_longest_ago():
    order = [0, 1, 2, 3, 0, 4, 0, 1]  # 4 takes the place of 1, not of 0, which was used after it
    assert counted(map(load, order), FOUR_LINES)[0] == 4 * len({0, 1, 2, 3, 4}) + 4


def test_an_l1_that_draws_lots_keeps_some_of_a_loop_that_is_too_large_for_it():
    def missed(lines: int, residency: Residency) -> float:
        return counted([load(line) for line in range(lines)] * 200, residency)[0] / (4 * lines * 200)

    by_lot = Residency(1, 8 * LINE, l1_random=True)
    assert missed(8, by_lot) == 1 / 200
    assert missed(9, Residency(1, 8 * LINE)) == pytest.approx(5 / 9, abs=0.01)  # all five lines of one set of four
    assert 0.2 < missed(9, by_lot) < 0.5
    assert 0.8 < missed(14, by_lot) < 1


def test_what_an_l1_draws_is_one_of_the_older_half():
    # Of eight lines the last four are safe, whichever goes when the ninth comes.
    loads = [*range(8), 8, 4, 5, 6, 7]
    assert counted(map(load, loads), Residency(1, 8 * LINE, l1_random=True))[0] == 4 * 9


def test_l1_has_sectors_of_a_line_and_not_the_line():
    assert counted([load(0, 0b0001), load(0, 0b0011), load(0, 0b0011)], FOUR_LINES)[0] == 2


def test_what_a_store_brings_can_be_read_back_and_goes_to_l2_at_once():
    assert counted([store(0), load(0)], FOUR_LINES) == (0, 4, 0, 0)
    assert counted([store(0), load(0)], NO_L1) == (4, 4, 0, 0)


def test_some_loads_pass_the_l1_by():
    beyond = (0, WHOLE, at.LOAD_BEYOND_L1, 1)
    assert counted([load(0), beyond, beyond], FOUR_LINES)[0] == 12


def test_an_atomic_reads_and_writes_at_l2():
    assert counted([load(0), (0, 0b0001, at.ATOMIC, 1)], FOUR_LINES) == (5, 1, 4, 0)


def test_rows_of_a_pitch_do_not_all_meet_in_a_few_sets():
    # 56 sets of 4 ways. A column of 64 rows that are 8 lines apart falls into 7 of them by number alone.
    column = [load(8 * row) for row in range(64)]
    assert counted(column * 2, Residency(1, 28 * 1024), CacheSizes(1, 1 << 20, 1))[0] < 4 * 64 * 1.5


def test_stores_of_two_warps_to_one_sector_at_the_same_time_are_one():
    assert counted([store(0, 0b1100), store(0, 0b1000, delay=0)])[1] == 2
    assert counted([store(0, 0b1100), store(0, 0b1000, delay=1)])[1] == 3
    assert counted([store(0, 0b1100), store(1, 0b0001, delay=0), store(0, 0b1000, delay=0)])[1] == 4


# L2 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lines", "misses"), [(16, 16), (17, 3 * 17)])
def test_a_loop_over_more_than_l2_finds_nothing_again(lines: int, misses: int):
    assert counted([load(line) for line in range(lines)] * 3) == (4 * 3 * lines, 0, 4 * misses, 0)


def test_dram_delivers_pairs_of_sectors():
    assert counted([load(0, 0b0001)])[2] == 2
    assert counted([load(0, 0b0001), load(0, 0b0010)])[2] == 2
    assert counted([load(0, 0b0110)])[2] == 4


def test_what_is_stored_is_not_fetched_and_stays_until_its_line_is_replaced():
    assert counted([store(0, 0b0011), *map(load, range(1, 16))])[2:] == (4 * 15, 0)
    assert counted([store(0, 0b0011), *map(load, range(1, 17))])[2:] == (4 * 16, 2)


def test_a_line_that_is_stored_to_twice_is_written_back_once():
    assert counted([store(0), store(0), *map(load, range(1, 17))])[3] == 4


def test_of_many_dirty_lines_of_a_set_the_oldest_is_written_back_early():
    hierarchy = caches()
    (found,) = play(hierarchy, [[*map(store, range(at.L2_DIRTY_WAYS + 1)), load(0)]])
    assert (found.dram_write, found.dram_read) == (4, 0)  # written, but still there
    assert hierarchy.dirty_bytes == at.L2_DIRTY_WAYS * LINE


def test_a_line_that_both_partitions_read_is_kept_twice():
    # Of four multiprocessors the third belongs to another partition than the first two; each partition has 8 lines.
    sizes = CacheSizes(multiprocessors=4, l2_bytes=16 * LINE, l2_partitions=2)

    def dram_reads(lines: int) -> int:
        reading = [load(line, delay=1000) for line in range(lines)] * 2
        (found,) = play(caches(sizes), [reading] * 3)
        return found.dram_read

    assert dram_reads(8) == 4 * 8
    assert dram_reads(16) == 4 * 2 * 16  # though L2 has 16 lines


def test_l2_stays_warm_from_launch_to_launch_and_l1_does_not():
    hierarchy = caches()
    play(hierarchy, [[load(0), store(1)]], FOUR_LINES)
    (second,) = play(hierarchy, [[load(0), load(1)]], FOUR_LINES)
    assert (second.l2_read, second.dram_read) == (8, 0)
    hierarchy.flush()
    assert hierarchy.dirty_bytes == 0
    (third,) = play(hierarchy, [[load(0), load(1)]], FOUR_LINES)
    assert (third.l2_read, third.dram_read) == (8, 8)


def test_counts_are_by_buffer():
    hierarchy = MemoryHierarchy(ONE_SET, [("A", 100), ("B", 600), ("C", 4)])
    assert hierarchy.first_lines == [0, 4, 12]  # buffers begin at multiples of 512 bytes
    found = play(hierarchy, [[load(3), load(4, 0b0001), load(11), store(12)]])
    assert found == (CacheCount("A", 4, 0, 4, 0), CacheCount("B", 5, 0, 6, 0), CacheCount("C", 0, 4, 0, 0))


def test_a_plan_that_is_too_large_is_refused():
    with pytest.raises(PlanError, match="at most 64 GiB"):
        MemoryHierarchy(ONE_SET, [("A", 1 << 38)])


# Blocks --------------------------------------------------------------------------------------------------------------


def test_blocks_on_one_multiprocessor_share_its_l1_and_those_on_two_share_l2():
    reading = [load(line) for line in range(4)]
    two = CacheSizes(multiprocessors=2, l2_bytes=16 * LINE, l2_partitions=1)
    (together,) = play(caches(), [reading, reading], Residency(2, 4 * LINE))
    (apart,) = play(caches(two), [reading, reading], Residency(2, 4 * LINE))
    assert (together.l2_read, together.dram_read) == (16, 16)
    assert (apart.l2_read, apart.dram_read) == (32, 16)


def test_a_block_begins_where_another_has_ended():
    # One place: one block after the other, and nothing of the first is left in the L1 when the third comes.
    (found,) = play(caches(), [map(load, range(4)), map(load, range(4, 8)), map(load, range(4))], FOUR_LINES)
    assert found.l2_read == 4 * 12
    # Two places: the third takes that of the second, which ends early.
    blocks = [[load(0), load(1, delay=10_000)], [load(2)], [load(0)]]
    (found,) = play(caches(), blocks, Residency(2, 4 * LINE))
    assert found.l2_read == 4 * 3


def test_resident_blocks_run_side_by_side():
    # Both read a range that is larger than the L1; whoever comes second finds what the other has just read.
    reading = [load(line, delay=1000) for line in range(100)]
    (found,) = play(caches(), [reading, reading], Residency(2, 4 * LINE))
    assert found.l2_read == 4 * 100
    late = [load(999, delay=50_000), *reading]
    (found,) = play(caches(), [reading, late], Residency(2, 4 * LINE))
    assert found.l2_read == 4 * (100 + 1 + 100)  # for what the other read 50 lines ago is gone


def test_the_order_of_delivery_does_not_matter():
    draw = random.Random(3)
    blocks = [[load(draw.randrange(60), delay=draw.randrange(500)) for _ in range(50)] for _ in range(40)]
    blocks[7] = []  # a block may touch nothing
    sizes = CacheSizes(multiprocessors=3, l2_bytes=32 * LINE, l2_partitions=1)
    expected = play(caches(sizes), blocks, Residency(2, 8 * LINE))
    for _ in range(5):
        launch = (hierarchy := caches(sizes)).launch(len(blocks), Residency(2, 8 * LINE))
        for number in draw.sample(range(len(blocks)), len(blocks)):
            launch.deliver(number, packed(blocks[number]))
        assert launch.finish() == expected == hierarchy.counts()
