"""The mistakes of pipelines.py in fa3's twin from Python: the same bugs, by the same names."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch
from tests.mutants.pipelines import ONE_BLOCK

FOLDER = "attention/fa3"
KERNEL, ATTEND, BLOCK = (f"{FOLDER}/numba_{name}.py" for name in ("kernel", "attend", "block"))
PRODUCER, NOT_FINITE = f"{FOLDER}/numba_producer.py", f"{FOLDER}/numba_not_finite.py"
INSPECTION, ROW_TILES = f"{FOLDER}/numba_inspection.py", f"{FOLDER}/numba_row_tiles.py"
HOPPER, SOFTMAX = "_hopper/numba_hopper.py", "_hopper/numba_softmax.py"


def _in(file: str, bug: str, old: str, new: str, sanitize: bool = False) -> Mutant:
    return Mutant(bug, "fa3-numba", (Patch(file, old, new),), sanitize)


def _in_second_tile(file: str, bug: str, old: str, new: str, sanitize: bool = False) -> Mutant:
    return Mutant(bug, "fa3-numba", (Patch(file, old, new), ONE_BLOCK), sanitize)


def _raced(bug: str, *changes: tuple[str, str, str]) -> Mutant:
    """See `pipelines`; each change names its file."""
    return Mutant(bug, "fa3-numba", (*(Patch(*change) for change in changes), ONE_BLOCK), sanitize=True)


_RELEASE_V = (
    "            if consumer.leads:\n                arrive(barrier_of(chip.barriers, V_EMPTY, step))  # line 15, V\n"
)
_WAIT_FOR_O = "            wait_for_O(O)  # line 14\n"
_CORRECT = "            if not CORRECTS_BESIDE_S:\n                correct(O, correction)\n"
_ROUND = "            round_weights(P, S)  # line 16\n"
_RELEASE_K = "        if consumer.leads:\n            arrive(barrier_of(chip.barriers, K_EMPTY, step))\n"
_WAIT_FOR_V = "            wait(barrier_of(chip.barriers, V_FULL, step), phase(step))  # line 10\n"
_LOAD_KEYS = "        wait(barrier_of(barriers, empty, step), phase(step) ^ uint32(1))\n"
_PUBLISH_O = "            publish_to_async()\n            sync_warpgroup()\n            store_output("

_BARRIERS = (
    _in(
        ATTEND,
        "wait on the wrong parity for V",
        _WAIT_FOR_V,
        _WAIT_FOR_V.replace("phase(step)", "phase(step) ^ uint32(1)"),
    ),
    _in(
        PRODUCER,
        "wait on the wrong parity for room",
        _LOAD_KEYS,
        "        wait(barrier_of(barriers, empty, step), phase(step) ^ uint32(empty != K_EMPTY))\n",
    ),
    _in(
        PRODUCER,
        "a stage of V filled while it is read",
        _LOAD_KEYS,
        f"        if empty == K_EMPTY:\n    {_LOAD_KEYS}",
    ),
    _in(
        BLOCK,
        "one consumer speaks for all",
        "init_barrier(barrier_of(barriers, V_EMPTY, s), CONSUMERS +",
        "init_barrier(barrier_of(barriers, V_EMPTY, s), CONSUMERS - 1 +",
    ),
    _in_second_tile(
        BLOCK,
        "one arrival too many awaited",
        "init_barrier(uint32(barriers + Q_EMPTY + 8 * w), 1)",
        "init_barrier(uint32(barriers + Q_EMPTY + 8 * w), 2)",
    ),
    _in(
        PRODUCER,
        "half of the bytes expected",
        "arrive_and_expect(barrier_of(barriers, full, step), KV_BYTES)",
        "arrive_and_expect(barrier_of(barriers, full, step), KV_BYTES if full == K_FULL else KV_BYTES // 2)",
    ),
    _in_second_tile(
        PRODUCER,
        "Q fetched while the last one is read",
        "            wait(uint32(barriers + Q_EMPTY + uint32(w) * uint32(8)), uint32(parity ^ uint32(1)))\n",
        "",
        sanitize=True,
    ),
    _in_second_tile(
        PRODUCER,
        "next work told before the last was heard",
        "            wait(uint32(barriers + WORK_EMPTY), uint32(parity ^ uint32(1)))\n",
        "",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "O stored before all warps have written theirs",
        _PUBLISH_O,
        "            publish_to_async()\n            store_output(",
        sanitize=True,
    ),
    _in(
        ATTEND,
        "each thread gives back what one should",
        _RELEASE_V,
        "            arrive(barrier_of(chip.barriers, V_EMPTY, step))\n",
    ),
    _in(
        PRODUCER,
        "bytes of all consumers expected for each",
        "arrive_and_expect(full, Q_BYTES // CONSUMERS)",
        "arrive_and_expect(full, Q_BYTES)",
    ),
    _raced(
        "first tile of K given back before the wait",
        (ATTEND, f"        wait_for_S(S)\n{_RELEASE_K}", f"{_RELEASE_K}        wait_for_S(S)\n"),
    ),
    _raced(
        "V given back before the wait",
        (ATTEND, f"{_WAIT_FOR_O}{_RELEASE_V}", f"{_RELEASE_V}{_WAIT_FOR_O}"),
    ),
    _raced(
        "one lane tells what others have read",
        (
            KERNEL,
            "            arrive(uint32(barriers + WORK_EMPTY))\n",
            "            if lane_index() == 0:\n                arrive(uint32(barriers + WORK_EMPTY))\n",
        ),
        (BLOCK, "WORK_EMPTY), CONSUMER_THREADS)", "WORK_EMPTY), CONSUMER_THREADS // 32)"),
    ),
    _raced(
        "one lane hears for others",
        (
            KERNEL,
            "            wait(uint32(barriers + WORK_FULL), parity)\n",
            "            if lane_index() == 0:\n                wait(uint32(barriers + WORK_FULL), parity)\n",
        ),
    ),
    _raced(
        "V taken for inspected before it is",
        (INSPECTION, "        wait(barrier_of(barriers, INSPECTED, step), phase(step))\n", ""),
    ),
    _raced(
        "marks of V read too late",
        (BLOCK, " + (INSPECTORS if HIDES_LAST else 0))", ")"),
        (INSPECTION, "                arrive(barrier_of(barriers, V_EMPTY, step))\n", ""),
    ),
    _raced(
        "O written while the last one leaves",
        (
            KERNEL,
            "                if leads:\n                    wait_until_read()\n                sync_warpgroup()\n",
            "                sync_warpgroup()\n",
        ),
    ),
    _raced(
        "Q given back while O leaves its place",
        (
            KERNEL,
            "                if leads:\n                    wait_until_read()\n                release_Q",
            "                release_Q",
        ),
    ),
    _raced(
        "O on its way out through another's rows",
        (
            KERNEL,
            "O_rows = uint32(unknown(Q_rows) + uint32(O_PLACE))",
            "O_rows = uint32(unknown(Q_tile) + uint32(O_PLACE))",
        ),
    ),
)
_FENCES = (
    _in(
        ATTEND,
        "no fence before Q K^T",
        "        begin_products()\n        multiply(S, Q, K)\n",
        "        multiply(S, Q, K)\n",
        sanitize=True,
    ),
    _in(
        ATTEND,
        "no fence before P V",
        "        begin_products()\n        add_all_steps(O, P, V)\n",
        "        add_all_steps(O, P, V)\n",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "no proxy fence before O is stored",
        _PUBLISH_O,
        "            sync_warpgroup()\n            store_output(",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "one lane fences what others have written of O",
        _PUBLISH_O,
        f"            if lane_index() == 0:\n    {_PUBLISH_O}",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "no proxy fence after the sign of Q",
        "        publish_to_async()\n        sync_warpgroup()\n",
        "        sync_warpgroup()\n",
        sanitize=True,
    ),
    _in(
        NOT_FINITE,
        "no proxy fence after zeros in V",
        "        publish_to_async()\n        sync_threads(ALL_CONSUMERS",
        "        sync_threads(ALL_CONSUMERS",
        sanitize=True,
    ),
)
_PRODUCTS = (
    _in(
        ATTEND,
        "S read a group too early",
        "wait_for_S_beside_O, wait_for_S = wait_for_products(1, SUMS)",
        "wait_for_S_beside_O, wait_for_S = wait_for_products(2, SUMS)",
    ),
    _in(
        ATTEND,
        "O corrected a group too early",
        _WAIT_FOR_O,
        "",
    ),
    _in(
        ATTEND,
        "last P V not waited for",
        "        wait_for_O(O)\n",
        "",
    ),
    _in(
        ATTEND,
        "P written while P V reads it",
        f"{_WAIT_FOR_O}{_RELEASE_V}{_CORRECT}{_ROUND}",
        f"{_ROUND}{_WAIT_FOR_O}{_RELEASE_V}{_CORRECT}",
        sanitize=True,
    ),
    _in(HOPPER, "a tile's rows taken for a box's", "(8 * ROW_BYTES // 16) << 32", "(8 * D * 2 // 16) << 32"),
    _in(HOPPER, "half of a step through V", "uint64(step * ROW_BYTES)", "uint64(step * ROW_BYTES // 2)"),
    _in(HOPPER, "the other width's swizzle", "(1 if COLUMNS == 64 else 2) << 62", "(2 if COLUMNS == 64 else 1) << 62"),
    _in(
        HOPPER,
        "O in the other width's swizzle",
        "row & uint32(7) if COLUMNS == 64 else (row >> uint32(1)) & uint32(3)",
        "(row >> uint32(1)) & uint32(3) if COLUMNS == 64 else row & uint32(7)",
    ),
    _in(
        HOPPER,
        "boxes of V as far apart as rows",
        "uint64(rows * ROW_BYTES // 16 << 16)",
        "uint64(ROW_BYTES // 16 << 16)",
    ),
    _in(BLOCK, "one stage short", "uint32(K_tiles + uint32(STAGES *", "uint32(K_tiles + uint32((STAGES - 1) *"),
)
_WORK = (
    _in_second_tile(
        PRODUCER,
        "the counter is not set back",
        "atomic_increment(taken(), uint32(all_tiles - 1))",
        "atomic_increment(taken(), uint32(0xFFFFFFFF))",
    ),
    _in(
        PRODUCER,
        "no Q for rows that see no key",
        "                if is_first:\n",
        "                if sees_keys and is_first:\n",
    ),
    _in(
        PRODUCER,
        "grouped heads by tiling instead of repetition",
        "uint32(unknown(rows.pack)) // sharing",
        "uint32(unknown(rows.pack)) % (uint32(p.packs.count) // uint32(p.packs.per_kv_head))",
    ),
    _in(
        KERNEL,
        "a pack's second row always 8 rows on",
        "(row_of_64(h) & int32((int32(1) << shift) - 1))",
        "(row_of_64(0) & int32((int32(1) << shift) - 1)) + 8 * h",
    ),
    _in(KERNEL, "lse of a pack's first head alone", " + int32(row_of_64(h) >> shift))", ")"),
)
_SOFTMAX = (
    _in(
        ATTEND,
        "padding not masked",
        "        mask(S, row, int32(j * BC), p)\n",
        "",
    ),
    _in(
        ROW_TILES,
        "a tile on the diagonal taken for unmasked",
        "            end = int32(uint32(end_seen(p, tile.first_row)) // uint32(BC))\n",
        "            end = tiles_of(end_seen(p, tile.first_row))\n",
    ),
    _in(
        ROW_TILES,
        "first tile of a window taken for unmasked",
        "first = tiles_of(first_seen(p, last_row))",
        "first = int32(uint32(first_seen(p, last_row)) // uint32(BC))",
    ),
    _in(ATTEND, "O not rescaled", _CORRECT, ""),
    _in(
        SOFTMAX,
        "P relative to the old maximum",
        "            m[h] = new_m\n",
        "            minus_m[h] = -m[h]\n            m[h] = new_m\n",
    ),
    _in(KERNEL, "l summed in one lane only", "quad_sum(l[h])", "l[h]"),
    _in(
        ATTEND,
        "V behind the mask not looked at",
        "        if HIDES_LAST and not whole_from <= j < whole_to:\n"
        "            take_V(rows, chip, step, row, int32(j * BC), p)\n",
        "",
    ),
    _in(
        NOT_FINITE,
        "NaN and infinity in V dropped",
        "        add_not_finite(O, P, V_tile, int32(p.kv_len - first_key), first, end)\n",
        "",
    ),
    _in(INSPECTION, "one warp's part of V alone looked at", "for warp in range(INSPECTORS):", "for warp in range(1):"),
    _in(KERNEL, "maximum before a negative scale", "            if sign != 1:\n", "            if sign == 0:\n"),
)

MUTANTS = (*_BARRIERS, *_FENCES, *_PRODUCTS, *_WORK, *_SOFTMAX)
