"""Bank conflicts of shared memory: the number of wavefronts of a warp's request, and the minimum possible.

Shared memory has 32 banks of 4 bytes; successive words are in successive banks. In one wavefront each bank serves one
word, to any number of lanes (CUDA C++ Programming Guide, "Shared Memory" of compute capability 5.x and later). Accesses
of 8 bytes per lane are served by half warps and those of 16 bytes by quarter warps, so a group of lanes requests at
most 32 words. Loads for which all lanes 2 n and 2 n + 1 have equal addresses, or all lanes n and n + 2 of each four,
fill half as many registers, and their groups are twice as large (according to NVIDIA's Greg Smith in its developer
forum, topic 77228, for compute capability 7.x; confirmed by an H200's counters). A group takes as many wavefronts as
its busiest bank has distinct words.

An asynchronous copy is counted as a store of its size, when it is issued: an H200 counts the same if it copies more
than zeros, and counts some wavefronts twice if src-size is 0.
"""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.abi.context import SHARED_COUNTERS
from harness.emulator.abi.raw_memory import load32, load64, store64

SHARED_WINDOW = at.SHARED_WINDOW
WORDS = at.DATA_3
"""Scratch: the distinct words of a group, at most 32."""
BANKS = at.DATA_3 + 8 * 32
"""Scratch: the number of distinct words in each bank."""


def add_word(warp: int, count: int, word: int) -> int:
    """Add a 4-byte word to the `count` distinct ones of a group, and return the new count."""
    for index in range(count - 1, -1, -1):
        if load64(warp + WORDS + 8 * index) == word:
            return count
    store64(warp + WORDS + 8 * count, word)
    bank = warp + BANKS + 8 * (word & 31)
    store64(bank, load64(bank) + 1)
    return count + 1


def busiest_bank(warp: int) -> int:
    """Maximum number of words in one bank."""
    most = 0
    for bank in range(32):
        most = max(most, load64(warp + BANKS + 8 * bank))
    return most


def shared_offset(warp: int, lane: int, generic: int) -> int:
    """Byte offset in shared memory of the lane's access; -1 if it is elsewhere."""
    if generic == 0:
        return int(load32(warp + at.ADDRESSES + 4 * lane)) & 0xFFFFFFFF
    address = int(load64(warp + at.ADDRESSES + 8 * lane))
    return address & 0xFFFFFFFF if address >> at.WINDOW_BITS == SHARED_WINDOW else -1


def pairs_agree(warp: int, mask: int, generic: int, distance: int) -> bool:
    """Whether each active lane has the address of the lane whose number differs in the bit `distance`, if active."""
    for lane in range(32):
        other = lane ^ distance
        both = (mask >> lane) & (mask >> other) & 1
        if both and shared_offset(warp, lane, generic) != shared_offset(warp, other, generic):
            return False
    return True


def count_shared(ctx: int, warp: int, site: int, mask: int, size: int, generic: int, load: int) -> int:
    """Count one request of `size` bytes per lane, a load or a store. Returns 0.

    ADDRESSES contains 32-bit offsets or, if `generic` is 1, 64-bit addresses, some of which may be elsewhere.
    """
    lanes_per_group = 32 if size <= 4 else 128 // size
    if load and size > 4 and (pairs_agree(warp, mask, generic, 1) or pairs_agree(warp, mask, generic, 2)):
        lanes_per_group *= 2
    words = 1 if size <= 4 else size >> 2
    lanes = 0
    wavefronts = 0
    ideal = 0
    for first in range(0, 32, lanes_per_group):
        count = 0
        for bank in range(32):
            store64(warp + BANKS + 8 * bank, 0)
        for lane in range(first, first + lanes_per_group):
            if not (mask >> lane) & 1:
                continue
            offset = shared_offset(warp, lane, generic)
            if offset < 0:
                continue
            lanes += 1
            for item in range(words):
                count = add_word(warp, count, (offset >> 2) + item)
        if count > 0:
            wavefronts += busiest_bank(warp)
            ideal += 1
    if lanes > 0:
        entry = load64(ctx + SHARED_COUNTERS) + 8 * at.SHARED_COUNTERS_PER_SITE * site
        store64(entry, load64(entry) + 1)
        store64(entry + 8, load64(entry + 8) + lanes * size)
        store64(entry + 16, load64(entry + 16) + wavefronts)
        store64(entry + 24, load64(entry + 24) + ideal)
    return 0
