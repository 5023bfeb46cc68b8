"""What can go wrong where new keys and values are written to a paged cache: slots, pages, neighbours, large offsets."""

from __future__ import annotations

from tests.mutants.planting import in_kernel

MUTANTS = (
    *in_kernel(
        "append", "lengths taken for those before the append",
        ("lengths[sequence] - (starts[sequence + 1] - token)", "lengths[sequence] + (token - starts[sequence])"),
        ("lengths[sequence] - (starts[sequence + 1] - token)", "lengths[sequence] + (token - starts[sequence])"),
    ),
    *in_kernel(
        "append", "slot counted from the length before once more",
        ("lengths[sequence] - (starts[sequence + 1] - token)",
         "max(lengths[sequence] - 2 * (starts[sequence + 1] - starts[sequence]) + token - starts[sequence], 0)"),
        ("lengths[sequence] - (starts[sequence + 1] - token)",
         "max(lengths[sequence] - 2 * (starts[sequence + 1] - starts[sequence]) + token - starts[sequence], 0)"),
    ),
    *in_kernel(
        "append", "last token of a page lost",
        ("if (i < vectors) {", "if (i < vectors && row < PAGE - 1) {"),
        ("if i < vectors:", "if i < vectors and row < PAGE - 1:"),
    ),
    *in_kernel(
        "append", "entry behind the last page followed",
        ("+ key / PAGE], row", "+ (key + 1) / PAGE], row"),
        ("table[sequence, key // PAGE]", "table[sequence, (key + 1) // PAGE]"),
    ),
    *in_kernel(
        "append", "one slot for all tokens of a page",
        ("row = key % PAGE;", "row = 0;"),
        ("PAGE], key % PAGE", "PAGE], 0"),
        sanitize=True,
    ),
    *in_kernel(
        "append", "pages of the first sequence for all",
        ("page = table[(size_t)sequence * table_len + key / PAGE], row",
         "page = max(table[key / PAGE], 0), row"),
        ("page, row = table[sequence, key // PAGE],", "page, row = max(table[0, key // PAGE], 0),"),
        sanitize=True,
    ),
    *in_kernel(
        "append", "whole page copied back",
        ("            K[to] = K_new[first + i];\n",
         "            for (int r = -row; r < PAGE - row; ++r)\n"
         "                K[to + r * ROW] = r == 0 ? K_new[first + i] : __ldcg(&K[to + r * ROW]);\n"),
        ("                store(global_address(K) + to, load(global_address(K_new) + at))\n",
         "                for r in range(-row, PAGE - row):\n"
         "                    other = global_address(K) + to + uint64(r * ROW * VECTOR)\n"
         "                    store(other, load(global_address(K_new) + at) if r == 0 else load(other))\n"),
        sanitize=True,
    ),
    *in_kernel(
        "append", "slot in 32 bits",
        ("const size_t to = (((size_t)page * kv_heads + head) * PAGE + row) * ROW + i % ROW;",
         "const int to = ((page * kv_heads + head) * PAGE + row) * ROW + i % ROW;"),
        ("to, at = (slot + uint64(i % ROW)) * uint64(VECTOR)",
         "to, at = uint64(int32(slot + uint64(i % ROW))) * uint64(VECTOR)"),
    ),
    *in_kernel(
        "append", "first token of a sequence taken for the one before",
        ("<= token) sequence += step", "< token) sequence += step"),
        ("<= token:", "< token:"),
    ),
    *in_kernel(
        "append", "rows of all heads together",
        ("(((size_t)page * kv_heads + head) * PAGE + row) * ROW",
         "(((size_t)page * PAGE + row) * kv_heads + head) * ROW"),
        ("((uint64(page) * uint64(kv_heads) + uint64(head)) * uint64(PAGE) + uint64(row)) * uint64(ROW)",
         "((uint64(page) * uint64(PAGE) + uint64(row)) * uint64(kv_heads) + uint64(head)) * uint64(ROW)"),
    ),
    *in_kernel(
        "append", "values from the keys",
        ("V[to] = V_new[first + i]", "V[to] = K_new[first + i]"),
        ("load(global_address(V_new) + at)", "load(global_address(K_new) + at)"),
    ),
    *in_kernel(
        "append", "vectors beyond the first 32 left out",
        ("start < vectors; start += 32", "start < 1; start += 32"),
        ("for start in range(0, vectors, 32)", "for start in range(0, 1, 32)"),
    ),
    *in_kernel(
        "append", "second half of the sequences not found",
        ("int step = farthest; step > 0", "int step = farthest / 2; step > 0"),
        ("sequence, step = int32(0), farthest", "sequence, step = int32(0), int32(farthest // 2)"),
    ),
)  # fmt: skip
