"""What is no run of keys: which tiles are listed and visited, and which of a tile's pairs are let through."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutants.patching import Mutant
from tests.mutants.planting import Replacement, in_cuda_of_mma, in_feature, in_tiles, planted

_LOOKING = ("_features/block_mask.cuh", "_tiles/numba_block_rule.py")
_EXTREMES = ("_tiles/tile_extremes.cu", "_tiles/numba_flashmask_rule.py")
_HIDING = ("_features/flashmask.cuh", "_tiles/numba_flashmask_rule.py")
_LISTING = ("_tiles/list_visits.cu", "_tiles/numba_visits.py")
_SEEN_BY_MMA, _VISITS_OF_MMA = "attention/fa2_mma/seen.cuh", "attention/fa2_mma/visits.cuh"
_NOTED_BY_MMA = "_features/tile_order.cuh"


def _in(
    files: tuple[str, str], bug: str, cuda: Replacement, numba: Replacement, sanitize: bool = False
) -> Iterator[Mutant]:
    """Seen through fa2."""
    yield from planted("fa2", bug, *files, ((cuda, numba),), sanitize)


def _in_order(bug: str, cuda: Replacement, numba: Replacement, sanitize: bool = False) -> Iterator[Mutant]:
    """Planted in the order of tiles, and seen through fa2."""
    yield from in_feature("fa2", "tile_order", bug, cuda, numba, sanitize=sanitize)


MUTANTS = (
    *_in(
        _LOOKING,
        "last column of blocks that a tile meets not looked at",
        ("j <= last_j; j += 32", "j <= max(last_j - 1, first_j); j += 32"),
        ("last_j + 1, 32)", "max(last_j, first_j + 1), 32)"),
    ),
    *_in(
        _LOOKING,
        "last row of blocks that a tile meets not looked at",
        ("i <= last_i; ++i", "i <= max(last_i - 1, first_i); ++i"),
        ("range(first_i, last_i + 1)", "range(first_i, max(last_i, first_i + 1))"),
    ),
    *_in(
        _LOOKING,
        "a tile is what one lane saw of it",
        ("all = __all_sync(0xffffffff, each);", "all = each;"),
        ("cuda.all_sync(ALL_LANES, each)", "each"),
    ),
    *_in(
        _LOOKING,
        "block on where it is off",
        ("columns + j) != 0;", "columns + j) == 0;"),
        ("on = blocks[head, i & MASK, j & MASK] != 0", "on = blocks[head, i & MASK, j & MASK] == 0"),
    ),
    *_in(
        _LOOKING,
        "all rows of a warp take the first one's row of blocks",
        ("if (i != key.row) {", "if (key.row < 0) {"),
        ("if i != of[1]:", "if of[1] < 0:"),
    ),
    *_in(
        _LISTING,
        "blocks of the first head listed for all",
        ("rules.of_head(blockIdx.y,", "rules.of_head(0,"),
        ("look_at_tile(rule, head,", "look_at_tile(rule, 0,"),
    ),
    *_in_order(
        "blocks of the first head noted for all",
        ("rule.of_head(block.head * lists_per_head,", "rule.of_head(0,"),
        ("rule, block.head if per_head else 0,", "rule, 0,"),
    ),
    *_in_order(
        "list of the first head for all",
        (" + block.head * lists_per_head;", ";"),
        ("block.head if per_head else 0, block.number]", "0, block.number]"),
    ),
    *_in(
        _EXTREMES,
        "largest start of a tile is that of its first key",
        ("largest = max(largest, bound);", "largest = first == first_key ? bound : largest;"),
        ("max(largest, row)", "row if first == first_key else largest"),
    ),
    *_in(
        _EXTREMES,
        "extremes over a lane's own keys",
        ("distance > 0; distance /= 2", "distance > 16; distance /= 2"),
        ("while distance > 0:", "while distance > 16:"),
    ),
    *_in(
        _HIDING,
        "tile hidden whole where the first row is",
        ("largest_start <= first_row && last_row < least_end", "largest_start <= first_row && first_row < least_end"),
        ("largest_start <= first_row and last_row < least_end",
         "largest_start <= first_row and first_row < least_end"),
    ),
    *_in(
        _HIDING,
        "tile hidden nowhere where its first rows are not",
        ("last_row < least_start || largest_end", "first_row < least_start || largest_end"),
        ("last_row < least_start or largest_end", "first_row < least_start or largest_end"),
    ),
    *_in(
        _HIDING,
        "tile of which one span hides nothing taken for a full one",
        ("all = all && (last_row", "all = (last_row"),
        ("each = each and (last_row", "each = (last_row"),
    ),
    *_in(
        _HIDING,
        "the end of a span hidden itself",
        ("row < key.end[p])", "row <= key.end[p])"),
        ("row < of[2 * p + 1])", "row <= of[2 * p + 1])"),
    ),
    *_in(
        _HIDING,
        "row seen where one of two spans lets it",
        ("hidden |= (key.start", "hidden = (key.start"),
        ("hidden = hidden or (of[2", "hidden = (of[2"),
    ),
    *_in(
        _LISTING,
        "tile left out where one of its keys is hidden",
        ("seen[at] = any;", "seen[at] = all;"),
        ("seen[warp & MASK] = some", "seen[warp & MASK] = each"),
    ),
    *_in(
        _LISTING,
        "mixed tile taken for a full one",
        ("+ !seen_whole[at]", "+ !seen[at]"),
        ("0 if seen_whole[lane & MASK] else 1", "0 if seen[lane & MASK] else 1"),
    ),
    *_in(
        _LISTING,
        "tiles put over those before them",
        ("list[1 + count + before_this]", "list[1 + before_this]"),
        ("listed[(1 + count + before_this) & MASK]", "listed[(1 + before_this) & MASK]"),
    ),
    *_in(
        _LISTING,
        "tiles listed before all have been looked at",
        ("__syncthreads();\n        for (int at = lane;", "for (int at = lane;"),
        ("cuda.syncthreads()\n            if warp == 0:", "if warp == 0:"),
        sanitize=True,
    ),
    *_in_order(
        "every row noted as the first",
        ("first_row + min(row, last_row)", "first_row"),
        ("first_row + min(row, last_row)", "first_row"),
    ),
    *_in_order(
        "keys of a tile noted as its first 32",
        ("min(32 * w + lane, last_key)", "min(lane, last_key)"),
        ("min(32 * w + lane, last_key)", "min(lane, last_key)"),
    ),
    *_in_order(
        "bits of the first 32 keys for all",
        ("(*bits)[row][key / 32]", "(*bits)[row][0]"),
        ("pairs.bits[row & MASK, (key >> 5) & MASK]", "pairs.bits[row & MASK, 0]"),
    ),
    *_in_order(
        "noted bits read before all are there",
        ("                __syncthreads();\n", ""),
        ("            cuda.syncthreads()\n", ""),
        sanitize=True,
    ),
    *in_tiles(
        "fa2",
        "mixed tile not masked",
        ("if (seen.pairs.hides_some()) {\n#pragma", "if (false) {\n#pragma"),
        ("if hides_some(seen.pairs):\n            for i", "if False:\n            for i"),
    ),
    *in_tiles(
        "fa2",
        "V of a hidden pair times a weight of 0",
        ("if (seen.pairs.hides_some()) {\n        add_P_V", "if (false) {\n        add_P_V"),
        ("if hides_some(seen.pairs):\n            add_P_V", "if False:\n            add_P_V"),
    ),
    *_in_order(
        "list of the first block of rows for all",
        ("* block.blocks + block.number)", "* block.blocks)"),
        ("block.head if per_head else 0, block.number]", "block.head if per_head else 0, 0]"),
    ),
    *_in_order(
        "last tile of a list not visited",
        ("return {list, __ldg(list),", "return {list, __ldg(list) - 1,"),
        ("ListOfTiles(entries, entries[0],", "ListOfTiles(entries, entries[0] - 1,"),
    ),
    *_in_order(
        "a tile visited after a list's last",
        ("return {list, __ldg(list),", "return {list, __ldg(list) + 1,"),
        ("ListOfTiles(entries, entries[0],", "ListOfTiles(entries, entries[0] + 1,"),
    ),
    in_cuda_of_mma(
        "copies of the next tile, listed or not",
        "coming(int, int further) const { return entries[further] / 2;", "coming(int n, int) const { return n;",
        _VISITS_OF_MMA,
    ),
    in_cuda_of_mma(
        "each tile of a list but the first visited twice",
        "entry(n - STAGES)", "entry(n + 1 - STAGES)", _VISITS_OF_MMA,
    ),
    in_cuda_of_mma(
        "orders a block of rows closer",
        "* count + started)", "* (count - 1) + started)", "_features/row_order.cuh",
    ),
    in_cuda_of_mma("mixed tile not masked", "if (!pairs.hides_some()) return;", "return;", _SEEN_BY_MMA),
    in_cuda_of_mma("bits of the first 32 keys for all", "[row_of(i, h)][key / 32]", "[row_of(i, h)][0]", _SEEN_BY_MMA),
    in_cuda_of_mma(
        "keys of a tile noted as its first 32", "min(32 * w + lane, last_key)", "min(lane, last_key)", _NOTED_BY_MMA
    ),
    in_cuda_of_mma(
        "columns of a lane counted from the tile's first", ">> (int)threadIdx.x % 4 * 2;", ";", _SEEN_BY_MMA
    ),
    in_cuda_of_mma(
        "mixed tile taken for what all rows see",
        "!pairs.hides_some() && place", "place", _SEEN_BY_MMA
    ),
    in_cuda_of_mma(
        "noted bits read before all are there", "            __syncwarp();\n", "", _VISITS_OF_MMA, sanitize=True
    ),
)  # fmt: skip
