"""Gradients of unpadded sequences and under masks that are no run: a block owns keys and visits tiles of rows."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutants.patching import Mutant
from tests.mutants.planting import Replacement, in_kernel, planted

_FEATURES, _VISITS = "_features/__init__.py", "_tiles/visits.py"
_AS_LONG_AS_LISTS_OF_KEYS = ("(of_keys, of_rows) if self._mirrored", "(of_keys, of_keys) if self._mirrored")


def _in_features(bug: str, replacement: Replacement) -> Iterator[Mutant]:
    """Planted in what plans of both languages ask of a problem's features, and seen through bwd-fa2."""
    return planted("bwd-fa2", bug, _FEATURES, _FEATURES, ((replacement, replacement),))


def _in_order(bug: str, cuda: Replacement, numba: Replacement, algorithm: str = "bwd-fa2") -> Iterator[Mutant]:
    files = "_features/tile_order.cuh", "_features/numba_tile_order.py"
    return planted(algorithm, bug, *files, ((cuda, numba),))


_SEQUENCES = (
    *_in_features(
        "keys of a sequence where its rows are", ("argument=feature.argument[::-1]", "argument=feature.argument")
    ),
    *_in_features(
        "blocks of keys for the mean length",
        ("max(problem.sequences.kv_lengths)", "-(-problem.kv_len // problem.sequences.sequence_count)"),
    ),
    *in_kernel(
        "bwd-fa2", "causal mask aligned by the rows of all sequences",
        ("rows_seeing(limits, block, own_rows, own_keys)", "rows_seeing(limits, block, q_len, own_keys)"),
        ("rows_seeing(limits, block, own_rows, own_keys)", "rows_seeing(limits, block, q_len, own_keys)"),
    ),
    *in_kernel(
        "bwd-fa2-ordered", "keys of the first sequence for all",
        ("first_key = own.row(block.first_row);", "first_key = block.first_row;"),
        ("first_key = key_in_K(own, block.first_row)", "first_key = block.first_row"),
    ),
    *in_kernel(
        "bwd-fa2-ordered", "dQ of the first sequence for all",
        ("gridDim.x + head) * q_len + own.row(first_row);", "gridDim.x + head) * q_len + first_row;"),
        ("row_in_head, kv_head = row_in_Q(own, first_row)", "row_in_head, kv_head = first_row"),
    ),
)  # fmt: skip
_VISITING = (
    *_in_order(
        "tiles looked at with the extremes of the first keys",
        ("look_at_tile(any, all, first_key / BR,", "look_at_tile(any, all, 0,"),
        ("look_at_pairs(rule, head, first_key // own_keys,", "look_at_pairs(rule, head, 0,"),
    ),
    *_in_order(
        "rows looked at as keys, and keys as rows",
        ("first_key / BR, first_row, rows, first_key, keys);", "first_key / BR, first_key, keys, first_row, rows);"),
        ("own_keys, first_row, rows, first_key, keys)", "own_keys, first_key, keys, first_row, rows)"),
    ),
    *in_kernel(
        "bwd-fa2", "a head's first tile of rows where the list begins later",
        ("of_next_head ? first_tile.first_key : next.first_key", "of_next_head ? 0 : next.first_key"),
        ("first_tile.first_key if of_next_head else next.first_key", "0 if of_next_head else next.first_key"),
    ),
    *planted(
        "bwd-fa2-ordered", "lists of rows as long as those of keys", _VISITS, _VISITS,
        ((_AS_LONG_AS_LISTS_OF_KEYS, _AS_LONG_AS_LISTS_OF_KEYS),),
    ),
)  # fmt: skip
_PAIRS = (
    *_in_order(
        "bits of rows and keys exchanged where a block owns keys",
        ("row = OWNS_KEYS ? visited : owned, key = OWNS_KEYS ? owned : visited;", "row = owned, key = visited;"),
        ("            row, key = visited, owned\n", "            row, key = owned, visited\n"),
    ),
    *_in_order(
        "bits of the keys that have the numbers of a tile's rows",
        ("first_key = OWNS_KEYS ? block.first_row : tile.first_key,", "first_key = tile.first_key,"),
        ("first_key, last_key = first_key, last_key, first_row, last_row",
         "first_key, last_key = first_key, last_key, first_key, last_row"),
        "bwd-fa2-ordered",
    ),
    *planted(
        "bwd-fa2", "pairs of a mixed tile not looked at", "_tiles/tiles.cuh", "_tiles/numba_backward.py",
        (
            (
                ("return in_run(i, key) && (!pairs.hides_some() || pairs.sees(thread_row() + TY * i, key));",
                 "return in_run(i, key);"),
                ("            sees = sees and pair_seen(seen.pairs, row_of(i), other)\n", "            pass\n"),
            ),
        ),
    ),
    *planted(
        "bwd-fa2", "dQ of a mixed tile of all pairs", "_tiles/backward.cuh", "_tiles/numba_backward.py",
        (
            (
                ("sees = sees && pairs.sees(k, row_of(i));", ";"),
                ("sees = sees and pair_seen(seen.pairs, k, row_of(i))\n", "pass\n"),
            ),
        ),
    ),
)  # fmt: skip


def _in_turns(bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    """Planted in the turns of a block on tensor cores that visits listed tiles."""
    files = "_mma_backward/turns.cuh", "_mma_backward/numba_turns.py"
    return planted("bwd-mma", bug, *files, ((cuda, numba),))


def _in_hiding(bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    """Planted where P and dS of pairs that a mask hides become 0."""
    files = "_mma_backward/products.cuh", "_mma_backward/numba_products.py"
    return planted("bwd-mma", bug, *files, ((cuda, numba),))


_TENSOR_CORES = (
    *_in_turns(
        "a mixed tile taken for a whole one",
        ("hides_some() const { return *entry % 2 != 0; }", "hides_some() const { return false; }"),
        ("return uint32(load_word(place(hidden.numbers, unknown(hidden.number)))) & uint32(1) != uint32(0)",
         "return False"),
    ),
    *_in_turns(
        "entries of the next heads from the end of the list",
        ("1 + (unsigned)number % (unsigned)tiles();", "1 + min(number, tiles() - 1);"),
        ("of_list = uint64(uint32(number) % tiles(numbers))",
         "of_list = uint64(min(uint32(number), tiles(numbers) - uint32(1)))"),
    ),
    *_in_turns(
        "an entry copied over that of the turn before",
        ("ENTRIES = 4;", "ENTRIES = 2;"),
        ("lag, 4, words(tile)", "lag, 2, words(tile)"),
    ),
    *_in_hiding(
        "bits of the row beside",
        ("[row + 8 * j + lane % 4 * 2 + e];", "[row + 8 * j + lane % 4 * 2];"),
        ("((8 * j + e) * WORDS + (i >> 1)) * 4", "(8 * j * WORDS + (i >> 1)) * 4"),
    ),
    *_in_hiding(
        "bits of the first warp's keys",
        ("of_row[key / 32 + i / 2]", "of_row[i / 2]"),
        ("(lane_row * uint32(WORDS) + (uint32(key) >> uint32(5)))", "lane_row * uint32(WORDS)"),
    ),
)  # fmt: skip
MUTANTS = (*_SEQUENCES, *_VISITING, *_PAIRS, *_TENSOR_CORES)
