"""Which batch, head, row, column or length an access goes to."""

from __future__ import annotations

from tests.mutants.planting import in_kernel, in_tiles, planted

_ACROSS = ("attention/fa2/kernel.cu", "_tiles/numba_grids.py")

MUTANTS = (
    *in_tiles(
        "two-pass", "query head dropped",
        ("{ return (size_t)blockIdx.z * gridDim.y + blockIdx.y; }", "{ return (size_t)blockIdx.z * gridDim.y; }"),
        ("return cuda.blockIdx.y & MASK", "return cuda.blockIdx.y & 0"),
    ),
    *planted(
        "fa2", "query head dropped", *_ACROSS,
        (
            (
                ("first_global_row = ((size_t)batch * gridDim.x + head) * q_len",
                 "first_global_row = (size_t)batch * gridDim.x * q_len"),
                ("return cuda.blockIdx.x & MASK", "return cuda.blockIdx.x & 0"),
            ),
        ),
    ),
    *in_tiles(
        "fa1", "batch dropped",
        ("{ return (size_t)blockIdx.z * gridDim.y + blockIdx.y; }", "{ return blockIdx.y; }"),
        ("return cuda.blockIdx.z & MASK", "return cuda.blockIdx.z & 0"),
    ),
    *in_kernel(
        "fa2", "batch dropped for V",
        ("layout.V_rows(V, kv_head * kv_len + own.key(0), batch,",
         "layout.V_rows(V, (size_t)(blockIdx.x / group) * kv_len + own.key(0), 0,"),
        ("V[batch, kv_head]", "V[0, kv_head]"),
    ),
    *in_tiles(
        "three-pass", "grouped heads by tiling instead of repetition",
        ("(gridDim.y / group) + blockIdx.y / group;", "(gridDim.y / group) + blockIdx.y % (gridDim.y / group);"),
        ("uint32(cuda.blockIdx.y) // uint32(group)",
         "uint32(cuda.blockIdx.y) % (uint32(cuda.gridDim.y) // uint32(group))", "_tiles/numba_grids.py"),
    ),
    *planted(
        "fa2", "grouped heads by tiling instead of repetition", *_ACROSS,
        (
            (
                ("(gridDim.x / group) + head / group;", "(gridDim.x / group) + head % (gridDim.x / group);"),
                ("uint32(cuda.blockIdx.x) // uint32(group)",
                 "uint32(cuda.blockIdx.x) % (uint32(cuda.gridDim.x) // uint32(group))"),
            ),
        ),
    ),
    *in_tiles(
        "two-pass", "query head used for K and V",
        ("(gridDim.y / group) + blockIdx.y / group;", "(gridDim.y / group) + blockIdx.y;"),
        ("uint32(cuda.blockIdx.y) // uint32(group)", "uint32(cuda.blockIdx.y)", "_tiles/numba_grids.py"),
    ),
    *in_tiles(
        "fa2", "head_dim hard-coded",
        ("for (int k = 0; k < WIDTH; k += STEP)", "for (int k = 0; k < 64; k += STEP)"),
        ("int32(AT_ONCE_END)", "int32(64)"),
    ),
    *in_tiles(
        "two-pass", "products stop at 64 elements",
        ("for (int k = 0; k < WIDTH; k += STEP)", "for (int k = 0; k < min(WIDTH, 64); k += STEP)"),
        ("int32(AT_ONCE_END)", "int32(min(AT_ONCE_END, 64))"),
    ),
    *in_kernel(
        "fa2", "V read with the length of Q",
        ("copy_keys<DV>(V_tile, V_head, first_key, own.kv_len);",
         "copy_keys<DV>(V_tile, V_head, first_key, own.q_len);"),
        ("copy_V(V_tile, V_head, key_in_K(own, first_key), keys)",
         "copy_V(V_tile, V_head, key_in_K(own, first_key), min(BC, own.q_len - first_key))"),
    ),
    *in_kernel(
        "two-pass", "K of the first tile in every tile of sweep two",
        ("(&S)[TM][TN], int first_key, int keys) {\n",
         "(&)[TM][TN], int first_key, int keys) {\n        float S[TM][TN];\n        __syncthreads();\n"
         "        load_tile<BC>(KV_tile, K_head, keys);\n        __syncthreads();\n"
         "        multiply_Q_Kt(S, Q_tile, KV_tile);\n"
         "        const auto seen_here = seen_in_tile(seen, block.first_row, first_key, keys);\n"
         "        scale_and_mask(S, tau, score, seen_here, block.first_row, first_key);\n"),
        ("            # Line 8",
         "            cuda.syncthreads()\n            load_tile(KV_tile, BC, K_head, 0, keys)\n"
         "            cuda.syncthreads()\n            multiply_Q_Kt(S, Q_tile, KV_tile)\n"
         "            scale_and_mask(S, tau, score, seen_here, first_row, first_key)\n\n            # Line 8"),
        (None, ("    add_P_V, gather = tiles.add_P_V, tiles.gather\n",
                "    add_P_V, gather = tiles.add_P_V, tiles.gather\n"
                "    multiply_Q_Kt, scale_and_mask = tiles.multiply_Q_Kt, tiles.scale_and_mask\n")),
    ),
    *in_kernel(
        "fa2", "lse without the head",
        ("lse[first_global_row + t] =", "lse[first_row + t] ="),
        ("lse[batch, head, row_in_Q(own, first_row) + t]", "lse[0, 0, row_in_Q(own, first_row) + t]"),
    ),
    *in_kernel(
        "fa1", "row of the running O dropped",
        ("store_tile(O + (first_q + first_row) * D, O_tile, rows);", "store_tile(O + first_q * D, O_tile, rows);"),
        ("store_running_tile(O_head, first_row, O_tile, rows)", "store_running_tile(O_head, 0, O_tile, rows)"),
    ),
    *in_kernel(
        "three-pass", "rows of S one element too long",
        ("stored *S_row = S + (first_stat + warp_index()) * kv_len + first_key + c;",
         "stored *S_row = S + (first_stat + warp_index()) * (kv_len + 1) + first_key + c;"),
        ("* kv_len + first_key + c\n                for i in range(ROWS_PER_WARP):\n                    s[i]",
         "* (kv_len + 1) + first_key + c\n                for i in range(ROWS_PER_WARP):\n                    s[i]"),
    ),
)  # fmt: skip
