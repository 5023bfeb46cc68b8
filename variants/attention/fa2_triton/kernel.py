"""FlashAttention-2, forward pass: Dao 2023, arXiv 2307.08691, algorithm 1. Line numbers are the paper's."""

from __future__ import annotations

import triton
import triton.language as tl

INFINITY = tl.constexpr(float("inf"))


@triton.jit(do_not_specialize=("q_len", "kv_len", "D", "group", "before", "after"))
def fa2(
    Q, K, V, O, lse, q_len, kv_len, D, group, tau, before, after,
    ALIGNED: tl.constexpr, D_TILE: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # Line 3: a program owns Q_i and O_i of one head. `group` heads share K and V.
    i_block, head = tl.program_id(0), tl.program_id(1)
    batch_head = tl.program_id(2).to(tl.int64) * tl.num_programs(1) + head
    kv_head = batch_head // group
    if ALIGNED:
        D = tl.multiple_of(D, 16)
    rows, columns = i_block * BR + tl.arange(0, BR), tl.arange(0, D_TILE)
    has_row, has_column = rows < q_len, columns < D
    places = batch_head * q_len * D + rows[:, None] * D + columns[None, :]
    inside = has_row[:, None] & has_column[None, :]

    # Line 4: load Q_i.
    Q_i = tl.load(Q + places, mask=inside, other=0.0)

    # Line 5: O_i = 0, l_i = 0, m_i = -inf.
    O_i = tl.zeros((BR, D_TILE), tl.float32)
    l = tl.zeros((BR,), tl.float32)
    m = tl.full((BR,), -INFINITY, tl.float32)

    # Line 6: for all K_j, V_j with a key that some row sees. Row i sees the keys from `before` before key
    # i + kv_len - q_len to `after` after it.
    diagonal = rows + kv_len - q_len
    first_diagonal = i_block * BR + kv_len - q_len
    last_diagonal = tl.minimum(i_block * BR + BR, q_len) - 1 + kv_len - q_len
    first_key = tl.maximum(first_diagonal - before, 0)
    end_key = tl.minimum(last_diagonal + after + 1, kv_len)
    end_key = tl.where(first_key < end_key, end_key, 0)
    for tile in range(first_key // BC * BC, end_key, BC):
        # Line 7: load K_j and V_j.
        keys = tile + tl.arange(0, BC)
        has_key = keys < kv_len
        key_places = kv_head * kv_len * D + keys[:, None] * D + columns[None, :]
        has_element = has_key[:, None] & has_column[None, :]
        K_j = tl.load(K + key_places, mask=has_element, other=0.0)
        V_j = tl.load(V + key_places, mask=has_element, other=0.0)

        # Line 8: S = tau Q_i K_j^T, -inf where a row does not see a key.
        S = tau * tl.dot(Q_i, tl.trans(K_j), input_precision=PRECISION)
        distance = keys[None, :] - diagonal[:, None]
        seen = (distance >= -before) & (distance <= after) & has_key[None, :] & has_row[:, None]
        S = tl.where(seen, S, -INFINITY)

        # Line 9: m = max(m, rowmax(S)), P = exp(S - m), l = exp(m_old - m) l + rowsum(P).
        m_new = tl.maximum(m, tl.max(S, 1))
        maximum = tl.where(m_new == -INFINITY, 0.0, m_new)
        correction = tl.exp(m - maximum)
        P = tl.exp(S - maximum[:, None])
        l = correction * l + tl.sum(P, 1)
        m = m_new

        # Line 10: O_i = diag(exp(m_old - m)) O_i + P V_j. A weight of 0 times an infinite V_j that a row does not see
        # would be NaN, so that those elements are 0 in the product, and are added to the rows that see them.
        is_finite = tl.abs(V_j) < INFINITY
        P_V = tl.dot(P.to(V_j.dtype), tl.where(is_finite, V_j, 0.0).to(V_j.dtype), input_precision=PRECISION)
        O_i = correction[:, None] * O_i + P_V
        if tl.min(is_finite.to(tl.int32)) == 0:
            # One product counts the keys that a row sees: +inf in the lowest 7 bits, -inf in the next 7, NaN above.
            kind = tl.where(V_j == INFINITY, 1.0, tl.where(V_j == -INFINITY, 128.0, 16384.0))
            count = tl.dot(seen.to(tl.float16), tl.where(is_finite, 0.0, kind).to(tl.float16)).to(tl.int32)
            O_i += tl.where(count % 128 > 0, INFINITY, 0.0)
            O_i += tl.where(count // 128 % 128 > 0, -INFINITY, 0.0)
            O_i += tl.where(count // 16384 > 0, float("nan"), 0.0)

    # Line 12: O_i = diag(l_i)^-1 O_i. A row that sees nothing has l = 0: its O is 0.
    O_i = O_i / tl.where(l == 0.0, 1.0, l)[:, None]
    tl.store(O + places, O_i.to(O.dtype.element_ty), mask=inside)

    # Line 13: L_i = m_i + log(l_i).
    L = tl.where(l == 0.0, -INFINITY, m + tl.log(l))
    tl.store(lse + batch_head * q_len + rows, L, mask=has_row)
