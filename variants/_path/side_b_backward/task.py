"""The task of side path b: the gradient of the scores is missing."""

from __future__ import annotations

from harness import BackwardProblem, Edit, Mistake, Task, TaskCase
from variants._path import HEAD_DIM


def small_backward(q_len: int, kv_len: int | None = None) -> BackwardProblem:
    """Return a backward problem of one head that these kernels support."""
    kv_len = q_len if kv_len is None else kv_len
    return BackwardProblem(heads=1, head_dim=HEAD_DIM, q_len=q_len, kv_len=kv_len)


P = "        float p = expf(tau * times_tile(k, Q_tile) - lse[row]);  // all lanes take part in the shuffles\n"
EDGE = "        if (first + lane >= rows) p = 0.0f;                      // this row does not exist\n"
DS = "        float ds = tau * p * (times_tile(v, dO_tile) - delta[row]);\n"
DV = "        dv += weighted_sum(p, dO_tile);\n"
DK = "        dk += weighted_sum(ds, Q_tile);\n"
BARRIER = "        __syncthreads();  // the tiles are complete\n        int row"

TASK = Task(
    text="""Side path b: complete the gradients of K and V.

In the kernel `keys`, a warp owns one key; lane i works on row i of the tile, and p is its P. With O = P V, P =
softmax(S) and S = tau Q K^T, the chain rule gives, summed over all rows i:
    dP_ij = dO_i . V_j                   times_tile(v, dO_tile) in lane i
    dS_ij = P_ij (dP_ij - delta_i)       delta_i = O_i . dO_i, from the kernel `prepare`
    dV_j  = sum of P_ij dO_i             weighted_sum(p, dO_tile): element `lane` of the sum over the tile's rows
    dK_j  = sum of tau dS_ij Q_i
Rows that do not exist must not count: their p is 0.""",
    start=(
        Edit(old=EDGE, new=""),
        Edit(old=DS + DV + DK, new="        // Your code: dv and dk.\n"),
    ),
    cases=(
        TaskCase(about="32 rows, 32 keys: one tile", problem=small_backward(32)),
        TaskCase(about="64 rows, 32 keys: two tiles of rows", problem=small_backward(64, 32)),
        TaskCase(about="45 rows: a tile and a part of one", problem=small_backward(45, 32)),
        TaskCase(about="45 rows, all scores very negative", problem=small_backward(45, 32), regime="far-negative"),
        TaskCase(
            about="races and reads of unwritten memory, 45 rows and keys", problem=small_backward(45), sanitize=True
        ),
    ),
    hints=(
        (
            "NaN",
            "For a row that does not exist, exp(S - lse) may be infinite, and infinity x 0 is NaN: its p has to be 0.",
        ),
        (
            "bits of unwritten memory",
            "A warp reads rows of a tile that other warps have not stored yet: put a __syncthreads() in between.",
        ),
        (
            "shfl.sync",
            "All 32 lanes take part in a shuffle: compute p in all of them, and set it to 0 afterwards where there is "
            "no row.",
        ),
        ("elements of dV", "dV_j is the sum of P_ij dO_i over all rows that exist: weighted_sum(p, dO_tile)."),
        ("elements of dK", "dK_j is the sum of tau P_ij (dP_ij - delta_i) Q_i over all rows that exist."),
        (
            "race",
            "All warps write the tiles and all warps read them: a __syncthreads() between these, both ways round.",
        ),
    ),
    mistakes=(
        Mistake(
            name="no_delta",
            edits=(Edit(old=DS, new="        float ds = tau * p * times_tile(v, dO_tile);\n"),),
            answer="dK_j is the sum of",
        ),
        Mistake(
            name="no_tau",
            edits=(Edit(old=DS, new="        float ds = p * (times_tile(v, dO_tile) - delta[row]);\n"),),
            answer="dK_j is the sum of",
        ),
        Mistake(
            name="no_p",
            edits=(Edit(old=DS, new="        float ds = tau * (times_tile(v, dO_tile) - delta[row]);\n"),),
            answer="dK_j is the sum of",
        ),
        Mistake(
            name="dV_from_Q",
            edits=(Edit(old=DV, new="        dv += weighted_sum(p, Q_tile);\n"),),
            answer="dV_j is the sum of",
        ),
        Mistake(
            name="last_tile_only",
            edits=(Edit(old=DV, new="        dv = weighted_sum(p, dO_tile);\n"),),
            answer="64 rows, 32 keys",
        ),
        Mistake(name="rows_that_do_not_exist", edits=(Edit(old=EDGE, new=""),), answer="all scores very negative"),
        Mistake(
            name="some_lanes_leave_the_shuffles",
            edits=(
                Edit(
                    old=P + EDGE,
                    new="        float p = first + lane < rows ? expf(tau * times_tile(k, Q_tile) - lse[row]) : "
                    "0.0f;\n",
                ),
            ),
            answer="compute p in all of them",
        ),
        Mistake(
            name="no_barrier",
            edits=(Edit(old=BARRIER, new="        int row"),),
            answer="put a __syncthreads() in between",
        ),
    ),
)
