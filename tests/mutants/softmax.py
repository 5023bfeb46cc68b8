"""What can go wrong in a softmax over rows: the maximum, the sum, the ends of a row, rows mixed up, barriers."""

from __future__ import annotations

from tests.mutants.planting import in_kernel, in_plan, in_rows, planted

_PIPELINED = "softmax/pipelined"
_PLAN = ("(problem.rows,), (THREADS,)", "(max(1, problem.rows - 1),), (THREADS,)")

MUTANTS = (
    *in_kernel(
        "softmax-online", "maximum not carried along a row",
        ("m_new = fmaxf(m, x_j)", "m_new = x_j"),
        ("m_new = max(m, x_j)", "m_new = x_j"),
    ),
    *in_kernel(
        "softmax-online", "sum not rescaled as the maximum rises",
        ("d = d * exp_below(m, m_new) + exp_below(x_j, m_new);", "d = d + exp_below(x_j, m_new);"),
        ("d = d * exp_below(m, m_new) + exp_below(x_j, m_new)", "d = d + exp_below(x_j, m_new)"),
    ),
    *in_kernel(
        "softmax-online", "sums of two threads not brought to one maximum",
        ("d_other * exp_below(m_other, m_both)", "d_other"),
        ("d_other * exp_below(m_other, m_both)", "d_other"),
    ),
    *in_rows(
        "softmax-online", "(-inf) - (-inf) of a thread that has no columns",
        ("expf(x - (m == MINUS_INFINITY ? 0.0f : m))", "expf(x - m)"),
        ("libdevice.expf(x - (ZERO if m == MINUS_INFINITY else m))", "libdevice.expf(x - m)"),
    ),
    *in_kernel(
        "softmax-safe", "maximum starts at 0",
        ("float m = MINUS_INFINITY;", "float m = 0.0f;"),
        ("m = MINUS_INFINITY\n", "m = ZERO\n"),
    ),
    *in_kernel(
        "softmax-safe", "sum starts at 1",
        ("float d = 0.0f;", "float d = 1.0f;"),
        ("d = ZERO\n", "d = ZERO + 1\n"),
    ),
    *in_kernel(
        "softmax-safe", "maximum not subtracted in the quotient",
        ("exp_below(element(x, i, columns), m)", "exp_below(element(x, i, columns), 0.0f)"),
        ("exp_below(element(x, i, columns), m)", "exp_below(element(x, i, columns), ZERO)"),
    ),
    *in_kernel(
        "softmax-native", "last columns left out of the sum",
        ("start < columns; start += THREADS) d +=", "start + THREADS <= columns; start += THREADS) d +="),
        ("for start in range(0, columns, THREADS):\n            d +=",
         "for start in range(0, columns - THREADS + 1, THREADS):\n            d +="),
    ),
    *in_kernel(
        "softmax-native", "last column never written",
        ("if (i < columns)", "if (i < columns - 1)"),
        ("if i < columns:", "if i < columns - 1:"),
    ),
    *in_kernel(
        "softmax-native", "row of the neighbour read",
        ("*x = X + row_start(columns)", "*x = X + (blockIdx.x + 1 < gridDim.x ? row_start(columns) + columns : 0)"),
        ("X[row_index()]", "X[(row_index() + 1) % X.shape[0]]"),
    ),
    *in_rows(
        "softmax-safe", "last column read as one beyond the row",
        ("return j < columns ? widen", "return j < columns - 1 ? widen"),
        ("if j < columns else", "if j < columns - 1 else"),
    ),
    *in_rows(
        "softmax-online", "column beyond the row has a weight",
        ("widen(x[j]) : MINUS_INFINITY;", "widen(x[j]) : 0.0f;"),
        ("if j < columns else MINUS_INFINITY", "if j < columns else ZERO"),
    ),
    *in_rows(
        "softmax-safe", "two blocks share a row",
        ("(size_t)blockIdx.x * columns", "(size_t)(blockIdx.x / 2) * columns"),
        ("cuda.blockIdx.x & MASK", "(cuda.blockIdx.x & MASK) // 2"),
    ),
    *in_rows(
        "softmax-safe", "last warp left out of the maximum",
        ("warp < WARPS; ++warp) x = fmaxf", "warp < WARPS - 1; ++warp) x = fmaxf"),
        ("range(1, WARPS):\n        x = max", "range(1, WARPS - 1):\n        x = max"),
    ),
    *in_rows(
        "softmax-safe", "half of a warp left out of the sum",
        ("int distance = 16; distance > 0; distance /= 2) x +=", "int distance = 8; distance > 0; distance /= 2) x +="),
        ("distance = 16\n    while distance > 0:\n        x +=", "distance = 8\n    while distance > 0:\n        x +="),
    ),
    *in_rows(
        "softmax-safe", "no barrier before the sums of the warps are read",
        ("    __syncthreads();\n    x = parts[0];\n#pragma unroll\n    for (int warp = 1; warp < WARPS; ++warp) x +=",
         "    x = parts[0];\n#pragma unroll\n    for (int warp = 1; warp < WARPS; ++warp) x +="),
        ("    cuda.syncthreads()\n    x = parts[0]\n    for warp in range(1, WARPS):\n        x +=",
         "    x = parts[0]\n    for warp in range(1, WARPS):\n        x +="),
        sanitize=True,
    ),
    *in_kernel(
        "softmax-online", "no barrier before the pairs of the warps are read",
        ("    __syncthreads();\n", ""),
        ("    cuda.syncthreads()\n", ""),
        sanitize=True,
    ),
    *in_kernel(
        "softmax-on-chip", "quotients of a warp not brought to the maximum of the row",
        ("exp_below(m_warp, m) / d", "1.0f / d"),
        ("exp_below(m_warp, m) / d", "(ZERO + 1) / d"),
    ),
    *in_kernel(
        "softmax-on-chip", "sums of two warps not brought to one maximum",
        ("pairs[warp].y * exp_below(pairs[warp].x, m)", "pairs[warp].y"),
        ("pairs[warp, 1] * exp_below(pairs[warp, 0], m)", "pairs[warp, 1]"),
    ),
    *in_kernel(
        "softmax-on-chip", "column beyond the row has a weight",
        ("widen(loaded[k].elements[e % VECTOR]) : MINUS_INFINITY", "widen(loaded[k].elements[e % VECTOR]) : 0.0f"),
        ("< pieces else MINUS_INFINITY", "< pieces else ZERO"),
    ),
    *in_kernel(
        "softmax-on-chip", "last warp left out of the sum",
        ("warp < CLUSTER * warps; warp += 32) d +=", "warp < CLUSTER * warps - 1; warp += 32) d +="),
        ("range(lane, CLUSTER * warps, WARP):\n            d +=",
         "range(lane, CLUSTER * warps - 1, WARP):\n            d +="),
    ),
    *in_kernel(
        "softmax-on-chip", "pairs of more than 32 warps left out of the sum",
        ("warp < CLUSTER * warps; warp += 32) d +=", "warp < min(32, CLUSTER * warps); warp += 32) d +="),
        ("range(lane, CLUSTER * warps, WARP):\n            d +=",
         "range(lane, min(32, CLUSTER * warps), WARP):\n            d +="),
    ),
    *in_kernel(
        "softmax-on-chip", "half of a warp left out of the sum",
        ("int distance = 16; distance > 0; distance /= 2) x +=", "int distance = 8; distance > 0; distance /= 2) x +="),
        ("distance = 16\n    while distance > 0:\n        x +=", "distance = 8\n    while distance > 0:\n        x +="),
    ),
    *in_kernel(
        "softmax-on-chip", "no barrier before the pairs of the warps are read",
        ("        __syncthreads();\n", ""),
        ("            cuda.syncthreads()\n", ""),
        sanitize=True,
    ),
    *in_kernel(
        "softmax-on-chip", "pairs given to the first block of the cluster alone",
        ("if (lane < CLUSTER)", "if (lane < 1)"),
        ("if lane < CLUSTER:", "if lane < 1:"),
    ),
    *in_kernel(
        "softmax-on-chip", "no barrier of the cluster before its pairs are read",
        ("        __cluster_barrier_arrive();\n        __cluster_barrier_wait();\n", ""),
        ("            cluster_arrive()\n            cluster_wait()\n", ""),
    ),
    *in_kernel(
        "softmax-on-chip", "blocks of a cluster all take the same columns",
        ("* CLUSTER + blockIdx.x % CLUSTER) * blockDim.x", "* CLUSTER) * blockDim.x"),
        ("+ int32(cuda.blockIdx.x % CLUSTER)\n", "\n"),
    ),
    *in_plan(
        "softmax-on-chip", "last rows not launched",
        "-(-problem.rows // division.rows)", "max(1, problem.rows // division.rows)",
    ),
    *in_plan(
        "softmax-on-chip", "a row's last pieces have no thread",
        "-(-row_pieces // (cluster * pieces * WARP))", "row_pieces // (cluster * pieces * WARP)",
    ),
    *in_kernel(
        "softmax-pipelined", "quotients of a warp not brought to the maximum of the row",
        ("exp_below(m_warp, m) / d", "1.0f / d"),
        ("exp_below(m_warp, m) / d", "(ZERO + 1) / d"),
    ),
    *in_kernel(
        "softmax-pipelined", "column beyond the row has a weight",
        ("widen(loaded.elements[e]) : MINUS_INFINITY", "widen(loaded.elements[e]) : 0.0f"),
        ("x[e] = MINUS_INFINITY", "x[e] = float32(0)", f"{_PIPELINED}/numba_pieces.py"),
    ),
    *in_kernel(
        "softmax-pipelined", "rows read before their copies have come",
        ("        wait(full[stage], parity);\n", ""),
        ("            wait(barrier, parity)\n", ""),
    ),
    *in_kernel(
        "softmax-pipelined", "last piece of a tile not copied",
        ("min(TILE_ROWS, rows - row) * pieces", "(min(TILE_ROWS, rows - row) * pieces - 1)"),
        ("int32(rows - row)) * pieces * PIECE_BYTES", "int32(rows - row)) * (pieces - 1) * PIECE_BYTES",
         f"{_PIPELINED}/numba_tiles.py"),
    ),
    *in_kernel(
        "softmax-pipelined", "rows of a last tile that is not full left out",
        ("tiles = (rows - 1) / TILE_ROWS + 1", "tiles = max(1, rows / TILE_ROWS)"),
        ("int32((rows - 1) // TILE_ROWS) + 1", "max(int32(1), int32(rows // TILE_ROWS))"),
    ),
    *in_kernel(
        "softmax-pipelined", "no barrier before the pairs of the warps are read",
        ("        if (IS_SHARED || IS_PERSISTENT) cluster_sync();\n", ""),
        ("            if IS_SHARED or IS_PERSISTENT:\n                cluster_sync()\n", ""),
        sanitize=True,
    ),
    *planted(
        "softmax-pipelined", "sums of two warps not brought to one maximum",
        f"{_PIPELINED}/exchange.cuh", f"{_PIPELINED}/numba_exchange.py",
        ((("pairs[warp].y * exp_below(pairs[warp].x, m)", "pairs[warp].y"),
          ("pairs[first + warp, 1] * exp_below(pairs[first + warp, 0], m)", "pairs[first + warp, 1]")),),
    ),
    *planted(
        "softmax-pipelined", "pairs given to the first block of the cluster alone",
        f"{_PIPELINED}/exchange.cuh", f"{_PIPELINED}/numba_exchange.py",
        ((("if (lane < CLUSTER)", "if (lane < 1)"), ("if lane < CLUSTER:", "if lane < 1:")),),
    ),
    *in_plan(
        "softmax-pipelined", "a row's last pieces have no thread",
        "-(-pieces // (pieces_of_thread * WARP)) * WARP", "pieces // (pieces_of_thread * WARP) * WARP",
    ),
    *planted(
        "softmax-safe", "last row not launched", "_rows/__init__.py", "_rows/__init__.py", ((_PLAN, _PLAN),),
    ),
)  # fmt: skip
