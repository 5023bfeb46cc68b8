"""What can go wrong in a backward pass: D, P from the log-sum-exp, masks once more, scales, groups, sums in memory."""

from __future__ import annotations

from tests.mutants.planting import in_backward, in_backward_weights, in_kernel, in_plan, planted

_MIRRORED = '"Band", (after, before)'

MUTANTS = (
    *in_kernel(
        "bwd-fa2", "next Q of the head before",
        ("first_q + (of_next_head ? q_len : 0);", "first_q;"),
        ("next_head = head + 1 if of_next_head else head", "next_head = head"),
    ),
    *in_kernel(
        "bwd-fa2", "no Q for the heads behind the first",
        ("if (!of_next_head || member + 1 < group)", "if (!of_next_head)"),
        ("if not of_next_head or member + 1 < group:", "if not of_next_head:"),
    ),
    *in_kernel(
        "bwd-fa2", "a product with dO that has not come",
        ("            wait_for_copies();\n            __syncthreads();\n",
         "            __syncthreads();\n            wait_for_copies();\n"),
        ("                wait_for_copies()\n                cuda.syncthreads()\n",
         "                cuda.syncthreads()\n                wait_for_copies()\n"),
        sanitize=True,
    ),
    *in_kernel(
        "bwd-fa2", "dO brought where dQ is still added from",
        ("            __syncthreads();\n            copy_tile<ROWS, DV>(dO_tile",
         "            copy_tile<ROWS, DV>(dO_tile"),
        ("                cuda.syncthreads()\n                copy_dO(dO_tile", "                copy_dO(dO_tile"),
        sanitize=True,
    ),
    *in_backward(
        "bwd-fa2", "D left out",
        ("sees ? p * (dp - delta_j)", "sees ? p * dp"),
        ("p * (dp - delta_j) if sees", "p * dp if sees"),
    ),
    *in_backward(
        "bwd-fa1", "D of another row",
        ("delta_tile[tile_key(j)]", "delta_tile[(tile_key(j) + 1) % ROWS]"),
        ("delta_tile[tile_key(j)]", "delta_tile[(tile_key(j) + 1) % ROWS]"),
    ),
    *in_backward(
        "bwd-fa1", "D without the last elements of a row",
        ("if (e < DV) sum +=", "if (e < DV / TX * TX) sum +="),
        ("if e < DV:", "if e < DV // 8 * 8:"),
    ),
    *in_backward(
        "bwd-fa2", "P from a log-sum-exp to base 2",
        ("lse_j = lse_tile[tile_key(j)]", "lse_j = 1.442695f * lse_tile[tile_key(j)]"),
        ("lse_j = lse_tile[tile_key(j)]", "lse_j = float32(1.442695) * lse_tile[tile_key(j)]"),
    ),
    *in_backward(
        "bwd-fa2", "mask not repeated",
        ("bool sees = seen.sees(i, key_of(j));\n            if constexpr (DBiasOfHead",
         "bool sees = true;\n            if constexpr (DBiasOfHead"),
        ("sees = sees_in_tile(seen, i, key_of(j))\n                if IS_BIASED:\n"
         "                    sees = sees and row_of(i) < seeing.keys",
         "sees = True\n                if IS_BIASED:\n                    sees = sees and row_of(i) < seeing.keys"),
        (("if (seen.first_by_all == 0 && seen.end_by_all == rows && !seen.pairs.hides_some()) {", "if (true) {"),
         ("all_seen = seen.first_by_all == 0 and seen.end_by_all == rows and", "all_seen = True and")),
    ),
    *in_backward(
        "bwd-fa2", "dS from P that is not masked",
        ("sees ? p * (dp - delta_j) : 0.0f", "__expf(tau * S[i][j] - lse_j) * (dp - delta_j)"),
        ("p * (dp - delta_j) if sees else ZERO", "libdevice.fast_expf(tau * S[i, j] - lse_j) * (dp - delta_j)"),
        (("if (seen.first_by_all == 0 && seen.end_by_all == rows && !seen.pairs.hides_some()) {", "if (true) {"),
         ("all_seen = seen.first_by_all == 0 and seen.end_by_all == rows and", "all_seen = True and")),
    ),
    *planted(
        "bwd-fa2", "window before and after mixed up", "_features/__init__.py", "_features/__init__.py",
        (((_MIRRORED, '"Band", (before, after)'), (_MIRRORED, '"Band", (before, after)')),),
    ),
    *in_kernel(
        "bwd-fa2", "scale missing on dQ",
        ("gather_dQ(dO_tile, dQ_part, tau)", "gather_dQ(dO_tile, dQ_part, 1.0f)"),
        ("gather_dQ(dQ_tile, dQ_part, tau)", "gather_dQ(dQ_tile, dQ_part, float32(1))"),
    ),
    *in_kernel(
        "bwd-fa1", "scale missing on dK",
        ("dV_acc, tau, 1.0f, keys)", "dV_acc, 1.0f, 1.0f, keys)"),
        ("dV_acc, tau, ONE, first_key", "dV_acc, ONE, ONE, first_key"),
    ),
    *in_kernel(
        "bwd-fa2", "group not summed",
        ("member < group;", "member < 1;"),
        ("for member in range(group):", "for member in range(1):"),
    ),
    *in_kernel(
        "bwd-fa2-ordered", "group's heads mapped by tiling",
        ("(kv_head * group + member) * q_len", "(member * gridDim.x + kv_head) * q_len"),
        ("head = kv_head * group + member", "head = kv_head + member * cuda.gridDim.x"),
    ),
    *in_kernel(
        "bwd-fa1", "last tile of rows left out",
        ("first_row < seeing.end_row; first_row += ROWS", "first_row + ROWS <= seeing.end_row; first_row += ROWS"),
        ("seeing.end_row, ROWS)", "seeing.end_row - ROWS + 1, ROWS)"),
    ),
    *in_kernel(
        "bwd-fa2-ordered", "last tile of keys left out of dQ",
        ("order.of_block(block, seen.first_key, seen.end_key,",
         "order.of_block(block, seen.first_key, seen.end_key - BC + 1,"),
        ("tiles_of_block(order, block, seen.first_key, seen.end_key,",
         "tiles_of_block(order, block, seen.first_key, seen.end_key - BC + 1,"),
    ),
    *in_kernel(
        "bwd-fa2", "dQ not zeroed",
        ("    zero_rows(dQ + first_stat * D, rows);\n", ""),
        ("        zero_rows(dQ[batch, head], first_row, rows)\n", ""),
    ),
    *in_kernel(
        "bwd-fa2", "dQ added without atomics",
        ("atomicAdd(&dQ[(first_q + first_row) * D + e], dO_tile[place(e)]);",
         "dQ[(first_q + first_row) * D + e] += dO_tile[place(e)];"),
        ("cuda.atomic.add(dQ_head, (row_in_head + e // D, e % D), dQ_tile[e // D, e % D])",
         "dQ_head[row_in_head + e // D, e % D] += dQ_tile[e // D, e % D]"),
        sanitize=True,
    ),
    *in_kernel(
        "bwd-fa1", "dQ of the last tile of keys kept, not the sum",
        ("* D + e] += O_tile[place(e)]", "* D + e] = O_tile[place(e)]"),
        ("e % D] += O_tile[e // D, e % D]", "e % D] = O_tile[e // D, e % D]"),
    ),
    *in_kernel(
        "bwd-fa2", "dK written to the query head",
        ("gradients.K_rows(dK, first_kv, own.batch, blockIdx.x,",
         "gradients.K_rows(dK, (size_t)kv_head / group * kv_len + first_key, own.batch, blockIdx.x / group,"),
        ("dK[batch, kv_head]", "dK[batch, kv_head // group]"),
    ),
    *in_kernel(
        "bwd-fa2-ordered", "no barrier before the next rows are loaded",
        ("no thread reads the last ones any more.\n            __syncthreads();\n",
         "no thread reads the last ones any more.\n"),
        ("(ROWS, own_rows - first_row), row_in_Q(own, first_row)\n                cuda.syncthreads()\n",
         "(ROWS, own_rows - first_row), row_in_Q(own, first_row)\n"),
        sanitize=True,
    ),
    *in_kernel(
        "bwd-fa2", "no barrier before dQ is gathered where dO was",
        ("            __syncthreads();\n            const bool of_next", "            const bool of_next"),
        ("                cuda.syncthreads()\n                of_next", "                of_next"),
        sanitize=True,
    ),
    *in_kernel(
        "bwd-fa1", "no barrier between dQ gathered and added",
        ("gather_dQ(O_tile, dQ_part, tau);\n                __syncthreads();\n", "gather_dQ(O_tile, dQ_part, tau);\n"),
        ("gather_dQ(O_tile, dQ_part, tau)\n                    cuda.syncthreads()\n",
         "gather_dQ(O_tile, dQ_part, tau)\n"),
        sanitize=True,
    ),
    *in_backward_weights(
        "half of a row's lanes left out of D",
        ("lanes_sum<32>(sum)", "lanes_sum<16>(sum)"),
        ("lanes_sum(total, 32)", "lanes_sum(total, 16)"),
    ),
    *in_plan(
        "bwd-three-pass", "scale on dP",
        '("dO", "V", "dP", *by, one,', '("dO", "V", "dP", *by, tau,',
    ),
    *in_plan(
        "bwd-three-pass", "dK from P", '("dS", "Q", "dK",', '("P", "Q", "dK",',
    ),
    # Dao-AILab/flash-attention pull request 2481: a launch that may begin early does not wait for the one before.
    *in_plan(
        "bwd-fa2", "D read by a launch that may begin before it is written",
        "key_grid_across(p, tile), BLOCK, args, shared_bytes),",
        "key_grid_across(p, tile), BLOCK, args, shared_bytes, overlaps_previous=True),",
        sanitize=True,
    ),
)  # fmt: skip
