"""What can go wrong where keys lie in pages: the table, the pages, lengths of each sequence, splits over sequences."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch
from tests.mutants.planting import SPLIT, in_kernel

_SPLITTING, _SPLIT_PAGES = "paged_attention/paged_split_kv/kernel.cu", "_paged/split_pages.cuh"
_POOLS = "_paged/pools.cuh"


def _in_splits(
    bug: str, old: str, new: str, *more: tuple[str, str], file: str = _SPLITTING, sanitize: bool = False
) -> Mutant:
    patches = tuple(Patch(file, *replacement) for replacement in ((old, new), *more))
    return Mutant(bug, "paged-split-kv-cupy", patches, sanitize)


def _in_lean(bug: str, cuda: tuple[str, str], numba: tuple[str, str], *, sanitize: bool = False) -> tuple[Mutant, ...]:
    files = {"cupy": ("kernel.cu", cuda), "numba": ("numba_kernel.py", numba)}
    return tuple(
        Mutant(bug, f"paged-lean-{language}", (Patch(f"paged_attention/paged_lean/{file}", *replaced),), sanitize)
        for language, (file, replaced) in files.items()
    )


_PAGES = (
    *in_kernel(
        "paged", "page of the neighbour",
        ("pages[first_key / PAGE], kv_heads", "pages[first_key / PAGE] ^ 1, kv_heads"),
        ("page = table[sequence, first_key // PAGE]", "page = table[sequence, first_key // PAGE] ^ 1"),
    ),
    *in_kernel(
        "paged", "first page for all keys",
        ("if (first_key % PAGE == 0 || (first_tile != 0 && first_key == first_tile))", "if (first_key == first_tile)"),
        ("if first_key % PAGE == 0 or first_key == first_tile:", "if first_key == first_tile:"),
    ),
    *in_kernel(
        "paged", "page size off by one",
        ("pages[first_key / PAGE]", "pages[first_key / (PAGE + 1)]"),
        ("first_key // PAGE]", "first_key // (PAGE + 1)]"),
    ),
    *in_kernel(
        "paged", "first tile of a page for all of it",
        ("row_of_page = first_key % PAGE;", "row_of_page = 0;"),
        ("(first_key & MASK) % PAGE", "0"),
    ),
    *in_kernel(
        "paged", "table row of another sequence",
        ("table + (size_t)sequence * table_len", "table + (size_t)((sequence + 1) % gridDim.z) * table_len"),
        ("table[sequence, first", "table[(sequence + 1) % cuda.gridDim.z, first"),
    ),
    *in_kernel(
        "paged", "rows of the table as long as the sequence",
        (
            "table + (size_t)sequence * table_len",
            "table + (size_t)sequence * ((lengths[sequence] + PAGE - 1) / PAGE)",
        ),
        (
            "table[sequence, first_key // PAGE]",
            "table.flat[sequence * ((kv_len + PAGE - 1) // PAGE) + first_key // PAGE]",
        ),
    ),
    *in_kernel(
        "paged", "key/value head 0 for all",
        ("* kv_heads + kv_head) * PAGE", "* kv_heads) * PAGE", _POOLS),
        ("K[page & MASK, kv_head]", "K[page & MASK, 0]"),
        (None, ("V[page & MASK, kv_head]", "V[page & MASK, 0]")),
    ),
    *in_kernel(
        "paged", "V of another key/value head",
        ("rows_of_place(V, place, kv_head", "rows_of_place(V, place + (kv_head + 1 < kv_heads ? PAGE : 0), kv_head"),
        ("V[page & MASK, kv_head]", "V[page & MASK, min(kv_head + 1, V.shape[1] - 1)]"),
    ),
)  # fmt: skip
_LENGTHS = (
    *in_kernel(
        "paged", "last page past the length",
        ("kv_len = lengths[sequence];", "kv_len = (lengths[sequence] + PAGE - 1) / PAGE * PAGE;"),
        ("kv_len = lengths[sequence]\n", "kv_len = (lengths[sequence] + PAGE - 1) // PAGE * PAGE\n"),
    ),
    *in_kernel(
        "paged", "last page left out unless it is full",
        ("end_by_last = run.end(last_query);", "end_by_last = run.end(last_query) / PAGE * PAGE;"),
        ("end_of(run, last_query)\n", "end_of(run, last_query) // PAGE * PAGE\n"),
    ),
    *in_kernel(
        "paged", "length of another sequence",
        ("kv_len = lengths[sequence];", "kv_len = lengths[0];"),
        ("kv_len = lengths[sequence]\n", "kv_len = lengths[0]\n"),
    ),
    *in_kernel(
        "paged", "empty sequence not zeroed",
        ("kv_len = lengths[sequence];", "kv_len = lengths[sequence];\n    if (kv_len == 0) return;"),
        ("kv_len = lengths[sequence]\n", "kv_len = lengths[sequence]\n        if kv_len == 0:\n            return\n"),
    ),
)  # fmt: skip
_ROWS = (
    *in_kernel(
        "paged", "rows of a group taken for one head's",
        ("query[i] = row % q_len;", "query[i] = row;"),
        ("query[i], head[i] = row % q_len,", "query[i], head[i] = row,"),
    ),
    *in_kernel(
        "paged", "last rows aligned with the first keys",
        ("unclipped_end(query[i])", "unclipped_end(query[i] + q_len - kv_len)"),
        ("unclipped_end(run, query[i])", "unclipped_end(run, query[i] + q_len - kv_len)"),
    ),
    *in_kernel(
        "paged", "keys of the first of two heads' rows alone",
        ("run.end(last_query)", "run.end(heads_meet ? 0 : last_query)"),
        ("end_of(run, last_query)", "end_of(run, 0 if last_of_rows >= q_len else last_query)"),
    ),
)  # fmt: skip
_SPLITS = (
    _in_splits("page of the neighbour", "(pool, pages[key / PAGE", "(pool, 1 ^ pages[key / PAGE", file=_SPLIT_PAGES),
    _in_splits("first page of a split wrong", "table_len + first_page,", "table_len,"),
    _in_splits("page size off by one", "pages[key / PAGE - first_page]",
               "pages[max(key / (PAGE + 1) - first_page, 0)]", file=_SPLIT_PAGES),
    _in_splits("table row of another sequence", "(size_t)sequence * table_len",
               "(size_t)((sequence + 1) % batch) * table_len"),
    _in_splits("one entry of a split's pages too few", "- first_page + 1);", "- first_page);"),
    _in_splits("entries of the table not waited for",
               "= entries[at];\n    }\n    __syncthreads();", "= entries[at];\n    }",
               file=_SPLIT_PAGES, sanitize=True),
    _in_splits("splits read before they are written", "    wait_for_splits();\n", "", sanitize=True),
    _in_splits("key/value head of another", "* kv_heads + kv_head) * PAGE", "* kv_heads + kv_heads - 1) * PAGE",
               file=_POOLS),
    _in_splits("last page past the length", "end = keys.end - copied_key;", "end = BC;", file=SPLIT),
    _in_splits("length rounded up to pages", "kv_len = found.kv_len;",
               "kv_len = (found.kv_len + PAGE - 1) / PAGE * PAGE;"),
    _in_splits("length of another sequence", "__shfl_sync(0xffffffff, length, at);",
               "__shfl_sync(0xffffffff, length, max(at - 1, 0));"),
    _in_splits("a split taken for the next one's sequence", "end > split);", "end >= split);"),
    _in_splits("splits counted from the batch's first", "(split - found.first_split +", "(split +"),
    _in_splits("sequences beyond 32 not looked at", "start < batch; start += 32", "start < 1; start += 32"),
    _in_splits("splits of the first 32 sequences forgotten", "behind = __shfl_sync(0xffffffff, end, 31);",
               "behind = 0;"),
    _in_splits("an empty sequence has a split", "return (length + SPLIT - 1) / SPLIT -", "return length / SPLIT + 1 -"),
    _in_splits("splits of the next sequence put together",
               "work.first_split -= splits_of(work.kv_len, limits.of_sequence(sequence, q_len, work.kv_len));\n", ""),
    _in_splits("one split too few put together", "splits = (run.end(query) + SPLIT - 1) / SPLIT",
               "splits = run.end(query) / SPLIT"),
    _in_splits("empty sequence not zeroed", "    const auto run = limits.of_sequence(sequence, q_len, found.kv_len);",
               "    if (found.kv_len == 0) return;\n"
               "    const auto run = limits.of_sequence(sequence, q_len, found.kv_len);"),
    _in_splits("splits strided by rows of all sequences", "first_stat, sequence_rows, splits",
               "first_stat, gridDim.x, splits"),
    _in_splits("rows of a group taken for one head's",
               "query[2] = {(first_row + lane / 4) % q_len, (first_row + lane / 4 + 8) % q_len};",
               "query[2] = {first_row + lane / 4, first_row + lane / 4 + 8};"),
)  # fmt: skip

IN_ONE_LANGUAGE = (
    *(
        Mutant(bug, "paged-lean-numba", (Patch("paged_attention/paged_lean/numba_kernel.py", old, ""),), True)
        for bug, old in (
            (
                "the next segment begins while the last is read",
                "            cuda.syncthreads()  # nothing of the last segment is read in shared memory any more\n",
            ),
            (
                "the segment written while other lanes read it",
                "                cuda.syncwarp()  # all lanes have read segment[TO]\n",
            ),
        )
    ),
    Mutant(
        "the next pages not asked for", "paged-lean-cupy",
        (Patch("paged_attention/paged_lean/kernel.cu", "        page = own", "        if (from == 0) page = own"),),
    ),
)  # fmt: skip
_LEAN = (
    *_in_lean(
        "pages of the first 32 tiles for all",
        ("if (key - from >= 32 * LEAN_TILE) expect", "if (from < 0) expect"),
        ("if int32(key - held[0]) >= AHEAD:", "if held[0] < 0:"),
    ),
    *_in_lean(
        "entries as if each tile had a page",
        ("entries + own / PAGE", "entries + own / BC"), ("uint32(own) // uint32(PAGE)", "uint32(own) // uint32(BC)"),
    ),
    *_in_lean(
        "table row of another sequence",
        ("(size_t)sequence * table_len", "(size_t)((sequence + 1) % batch) * table_len"),
        ("uint64(sequence) * row_bytes", "uint64((sequence + uint32(1)) % uint32(table.shape[0])) * row_bytes"),
    ),
    *_in_lean(
        "key/value head of another",
        ("PlaceOfHead<Pool>::of(kv_head)", "PlaceOfHead<Pool>::of(kv_heads - 1)"),
        ("+ uint64(keys.kv_head)", "+ uint64(keys.kv_heads - uint32(1))"),
    ),
    *_in_lean(
        "lean tiles of one head for all",
        ("lanes_before(per_head * kv_heads, lane)", "lanes_before(per_head, lane)"),
        ("lanes_before(of_sequence, lane)", "lanes_before(per_head, lane)"),
    ),
    *_in_lean(
        "sequences beyond 32 not looked at",
        ("for (;; start += 32) {", "for (;; start += 0) {"), ("search[0] + uint32(32))", "search[0] + uint32(0))"),
    ),
    *_in_lean(
        "search begins with the sequence it ended with",
        ("behind = __shfl_sync(0xffffffff, end, 31);", "behind += __shfl_sync(0xffffffff, end, 31);"),
        (
            "uint32(cuda.shfl_sync(ALL_LANES, int32(end), 31))",
            "uint32(search[1] + uint32(cuda.shfl_sync(ALL_LANES, int32(end), 31)))",
        ),
    ),
    *_in_lean(
        "length of the first sequence",
        ("kv_len = sequence.kv_len;", "kv_len = lengths[0];"),
        ("q_len, found.kv_len, limits)", "q_len, int32(lengths[0]), limits)"),
    ),
    *_in_lean(
        "keys of the first part in every part",
        ("first_key = (first / LEAN_TILE + (int)(segment.at - segment.begin))", "first_key = first / LEAN_TILE"),
        ("(first_lean + behind) *", "first_lean *"),
    ),
    *_in_lean(
        "last keys as far as the lean tile",
        (
            "min((first / LEAN_TILE + (int)(segment.to - segment.begin)) * LEAN_TILE, segment.tile.end)",
            "(first / LEAN_TILE + (int)(segment.to - segment.begin)) * LEAN_TILE",
        ),
        ("int32(min(end, tile.end)),", "end,"),
    ),
    *IN_ONE_LANGUAGE,
)  # fmt: skip
_RULES = (
    *in_kernel(
        "paged", "window one key too long",
        ("Window::first(run, query[i], first_key);", "Window::first(run, query[i], first_key) - 1;"),
        ("first_of(run, query[i], first_key)", "first_of(run, query[i], first_key) - 1"),
    ),
    *in_kernel(
        "paged", "evicted pages followed",
        ("Window::first(run, first_query) / BC * BC", "0"), ("first_of(run, first_query, 0) // BC * BC", "0"),
    ),
    *in_kernel(
        "paged", "page of the window's first tile not looked up",
        (" || (first_tile != 0 && first_key == first_tile)", ""), (" or first_key == first_tile", ""),
    ),
    *in_kernel(
        "paged", "first head of a group for all",
        ("head = kv_head * group + min(row / q_len, group - 1)", "head = kv_head * group"),
        ("kv_head * group + min(row // q_len, group - 1)", "kv_head * group"),
    ),
    *in_kernel("paged", "no weight of the sink", ("Sink::WEIGHT", "0.0f"), ("= SINK_WEIGHT,", "= ZERO,")),
    _in_splits("window one key too long", "{{run.first(query[0]), run.first(query[1])}",
               "{{run.first(query[0]) - 1, run.first(query[1]) - 1}", file="_paged/sequences.cuh"),
    _in_splits("splits before the window counted", "return Window::first(run, 0) / SPLIT;", "return 0;"),
    _in_splits("a row's splits counted from its sequence's", "found.first_split + first_split - evicted_splits(run)",
               "found.first_split"),
    _in_splits("first key of the last query for all", "Window::first(run, first_query)",
               "Window::first(run, last_query)"),
    _in_splits("slopes of the first head of a group", "min((first_row + row) / q_len, group - 1)", "0"),
    _in_splits("sink of another head", "row % sequence_rows / q_len", "row % (sequence_rows / q_len)"),
    *_in_lean(
        "first key of the last query for all",
        ("first_query(segment.tile));", "q_len - 1);"),
        ("first_seen(first_query, q_len", "first_seen(int32(q_len - 1), q_len"),
    ),
    *_in_lean(
        "slopes of the first rows' head",
        ("scores.of_head(head_of_row(row)", "scores.of_head(head_of_row(row % 8)"),
        ("heads[1], q_len", "heads[0], q_len"),
    ),
    *_in_lean(
        "sinks of the first key/value head",
        ("sink.logit(head_of_row(row))", "sink.logit(head_of_row(row) % group)"),
        ("int32(int32(segment[KV_HEAD] % uint32(kv_heads)) * group), group, sink", "int32(0), group, sink"),
    ),
)  # fmt: skip
"""Windows, slopes and sinks."""
MUTANTS = (*_PAGES, *_LENGTHS, *_ROWS, *_SPLITS, *_LEAN, *_RULES)
