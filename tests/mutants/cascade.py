"""A prefix that sequences share: cascade. Each mistake is in CUDA and in Numba."""

from __future__ import annotations

from tests.mutants.patching import Mutant
from tests.mutants.planting import Replacement, in_kernel


def _planted(bug: str, cuda: Replacement, numba: Replacement, *, sanitize: bool = False) -> tuple[Mutant, ...]:
    return tuple(in_kernel("cascade", bug, cuda, numba, sanitize=sanitize))


MUTANTS = (
    *_planted(
        "all of a short sequence's keys taken for shared ones",
        ("min(prefix, length / PAGE * PAGE)", "min(prefix, length)"),
        ("int32(int32(uint32(length) // uint32(PAGE)) * PAGE)", "length"),
    ),
    *_planted(
        "every row sees all of the prefix",
        ("ends[t] = min(end, shared_keys(kv_len, prefix));", "ends[t] = prefix;"),
        ("ends[t] = min(end, shared_keys(kv_len, prefix))", "ends[t] = prefix"),
    ),
    *_planted(
        "the mask left out in the prefix",
        ("ends[t] = min(end, shared_keys(kv_len, prefix));", "ends[t] = shared_keys(kv_len, prefix);"),
        ("ends[t] = min(end, shared_keys(kv_len, prefix))", "ends[t] = shared_keys(kv_len, prefix)"),
    ),
    *_planted(
        "prefix found in the first sequence's pages",
        ("table + (size_t)owner * table_len", "table"),
        ("load_pages(pages, table, owner, first_page, end, t)", "load_pages(pages, table, 0, first_page, end, t)"),
    ),
    *_planted(
        "rows of all sequences taken for the first one's",
        ("return in_part(sequence(row), row); }", "return in_part(0, row); }"),
        ("in_part(rows, uint64(sequence_of(rows, row)), row)", "in_part(rows, uint64(0), row)"),
    ),
    *_planted(
        "parts of the prefix written where the first split's are",
        ("(size_t)sequence(row) * most_splits + split, row)", "(size_t)sequence(row) * most_splits, row)"),
        ("uint64(rows.most_splits) + uint64(rows.split), row)", "uint64(rows.most_splits), row)"),
    ),
    *_planted(
        "parts of other keys written over those of the prefix",
        ("most_splits + splits_of(shared_end) + split;", "most_splits + split;"),
        ("uint64(most_splits) + uint64(splits_of(shared_end)) + uint64(own_split)",
         "uint64(most_splits) + uint64(own_split)"),
    ),
    *_planted(
        "keys behind the prefix counted from the first key",
        ("split_first = shared_end + split * SPLIT;", "split_first = split * SPLIT;"),
        ("split_first = int32(shared_end + own_split * SPLIT)", "split_first = int32(own_split * SPLIT)"),
    ),
    *_planted(
        "prefix left out where parts are put together",
        ("splits_of(min(end, shared_end)) + splits_of(max(end - shared_end, 0));",
         "splits_of(max(end - shared_end, 0));"),
        ("of_row = splits_of(int32(min(end, shared_end))) + splits_of", "of_row = splits_of"),
    ),
    *_planted(
        "parts counted as if keys were in one run",
        ("splits_of(min(end, shared_end)) + splits_of(max(end - shared_end, 0));", "splits_of(end);"),
        ("of_row = splits_of(int32(min(end, shared_end))) + splits_of(int32(max(int32(end - shared_end), int32(0))))",
         "of_row = splits_of(end)"),
    ),
    *_planted(
        "one warp's tile of keys for all",
        ("by_column + w * RING_BYTES + slot);", "by_column + slot);"),
        ("uint32(K_lane + uint32(w * RING_BYTES))", "K_lane"),
    ),
    *_planted(
        "other warps' copies not waited for",
        ("        wait_for_copies<SLOTS - 2>();\n        __syncthreads();", "        wait_for_copies<SLOTS - 2>();"),
        ("        wait_for_copied()\n        cuda.syncthreads()", "        wait_for_copied()"),
        sanitize=True,
    ),
    *_planted(
        "o put where another warp still reads v",
        ("    __syncthreads();  // no warp reads a slot any more\n", ""),
        ("        cuda.syncthreads()  # no warp reads a slot any more\n", ""),
        sanitize=True,
    ),
)  # fmt: skip
