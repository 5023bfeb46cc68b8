"""All mutants of the variants, by name; what published kernels got wrong, planted in each backend that there is."""

from __future__ import annotations

from tests.mutants import (
    addressing,
    appending,
    backward,
    backward_hopper,
    backward_hopper_numba,
    backward_layouts,
    backward_masks,
    backward_ordered,
    backward_spans,
    backward_tensor_cores,
    backward_tensor_cores_numba,
    barriers,
    blackwell,
    boundaries,
    cascade,
    chunks,
    dropout,
    eight_bits,
    layouts,
    lean,
    mla,
    paged,
    pipelines,
    pipelines_numba,
    plans,
    pool_layouts,
    precision,
    recomputation,
    ring,
    ring_backward,
    running_maximum,
    score_gradients,
    scores,
    scores_hopper,
    softmax,
    spans,
    splits,
    stored_keys,
    sums,
    tensor_cores,
    tree,
    triton_kernels,
    unified_max,
    untiled,
    varlen,
    visits,
    widths,
)
from tests.mutants.patching import Mutant

FAMILIES: dict[str, tuple[Mutant, ...]] = {
    "running maximum": running_maximum.MUTANTS,
    "sums and rescaling": sums.MUTANTS,
    "masks and boundaries": boundaries.MUTANTS,
    "documents and prefixes": spans.MUTANTS,
    "addressing": addressing.MUTANTS,
    "layouts": layouts.MUTANTS,
    "unpadded sequences": varlen.MUTANTS,
    "rows of V of another length": widths.MUTANTS,
    "caps, ALiBi and sinks": (*scores.MUTANTS, *scores_hopper.MUTANTS),
    "dropout": dropout.MUTANTS,
    "precision and log-sum-exp": precision.MUTANTS,
    "barriers": barriers.MUTANTS,
    "plan": plans.MUTANTS,
    "splits, packed heads and copies on their way": splits.MUTANTS,
    "equal runs of keys": lean.MUTANTS,
    "a constant in place of the maximum": unified_max.MUTANTS,
    "tensor cores": tensor_cores.MUTANTS,
    "producer and consumers": (*pipelines.MUTANTS, *pipelines_numba.MUTANTS),
    "factors of 8 bits": eight_bits.MUTANTS,
    "masks that are no runs": visits.MUTANTS,
    "scores computed anew": recomputation.MUTANTS,
    "rows without tiles": untiled.MUTANTS,
    "Blackwell": blackwell.MUTANTS,
    "Triton": triton_kernels.MUTANTS,
    "softmax": softmax.MUTANTS,
    "pages, tables and lengths": paged.MUTANTS,
    "different numbers of query rows": chunks.MUTANTS,
    "layouts of pages": pool_layouts.MUTANTS,
    "keys and values in 8 bits": stored_keys.MUTANTS,
    "a prefix that sequences share": cascade.MUTANTS,
    "one row for keys and values": mla.MUTANTS,
    "rows written to pages": appending.MUTANTS,
    "blocks that go round devices": ring.MUTANTS,
    "gradients that go round devices": ring_backward.MUTANTS,
    "results merged in a tree of devices": tree.MUTANTS,
    "backward pass": backward.MUTANTS,
    "documents and prefixes of the backward pass": backward_spans.MUTANTS,
    "sequences and masks that are no runs of the backward pass": backward_masks.MUTANTS,
    "layouts and rows of V of the backward pass": backward_layouts.MUTANTS,
    "score terms and sinks of the backward pass": score_gradients.MUTANTS,
    "backward pass on warpgroups": (*backward_hopper.MUTANTS, *backward_hopper_numba.MUTANTS),
    "gradients summed in a fixed order": backward_ordered.MUTANTS,
    "backward pass on tensor cores": (*backward_tensor_cores.MUTANTS, *backward_tensor_cores_numba.MUTANTS),
}
MUTANTS: dict[str, Mutant] = {mutant.name: mutant for family in FAMILIES.values() for mutant in family}

EQUIVALENT: dict[str, str] = {
    "dQ added before one's turn, in bwd-fa3-ordered": "this needs three tiles of keys, and 16 bits of dQ rarely show "
    "which came first: 1 element of 28,800 in the problem of tests/variants/test_backward_fa3_ordered.py",
    "no tcgen05.fence, in fa4": "the sanitizer requires none, since mbarriers order accesses to tensor memory in the "
    "emulator. Nothing here would notice that such a fence is missing",
    "dS from unmasked P, in a masked product": "each product of the backward pass skips masked elements itself, so "
    "NaN behind the mask has no effect. The counted mutant omits the mask in dQ as well",
    "loop one tile too long": "the extra tile holds no key: nothing is loaded, all scores are masked, and m, l and O "
    "do not change",
    "any finite m": "softmax is invariant to shifts, so any m gives the same result unless an exponential overflows. "
    "The counted mutants of the running maximum cause an overflow",
    "(-inf) - (-inf) in two-pass": "this occurs only in rows that see no key. Their l and P become NaN, but P meets "
    "no V behind the mask and no lse is written, so O stays 0",
    "V before a window times a weight of 0": "this needs NaN or infinity in V in the tile in which a row's window "
    "begins, before the window. Campaigns of 200 cases draw this too rarely; tests/variants/test_conformance.py tests "
    "it",
    "the first sequence's list, in fa3": "this needs sequences with different documents, combined with blocks or "
    "FlashMask. Campaigns of 200 cases draw this too rarely; tests/variants/test_fa3.py tests it",
    "rows beyond a block see the last row's keys": "their O is not written. A thread masks the keys before its rows' "
    "runs if its last row begins behind the tile's first key, and the block's last row does if any row above it does. "
    "The counted mutant lets rows beyond the block begin before all keys",
    "32-bit offset overflow": "this needs 2^31 elements, which no campaign on the emulator allocates",
    "boundary between packed heads ignored": "the first query of the second head is then assumed to see as much as "
    "the first row of the tile. Only NaN or infinity in one key shows this, if a tile of keys ends in between. No "
    "campaign finds it; tests/variants/test_split_kv.py tests it",
    "zero weight times NaN before a window": "in split-kv, if every row sees the end of a tile and some see its "
    "beginning, only NaN or infinity there shows this. No campaign finds it; tests/variants/test_split_kv.py tests it",
    "keys before the first visible one copied": "in split-kv, these keys share a tile with the first key that any row "
    "sees. Their weights are 0, so only NaN or infinity there, or the byte counts, show this. No campaign finds it; "
    "tests/variants/test_split_kv.py tests both",
    "splits not rescaled to one maximum, by a warp": "this needs more splits than warps, which campaigns of a few "
    "tiles do not have; tests/variants/test_split_kv.py does. The counted mutant also omits the rescaling between "
    "warps",
    "weights of a pair of keys swapped for infinity in V": "at worst, the result is NaN instead of infinity if the "
    "other key is behind the mask, and NaN is accepted there",
    "rescaling decided by each lane": "the four lanes that share a row share its maximum, so they decide alike",
    "K released before the wait, in the loop of fa3": "before the producer loads K into that stage, it waits for V of "
    "the previous tile, which each consumer releases after its wait for S",
    "the last V released before the wait, in fa3": "before the producer loads V into that stage, it waits for the "
    "space of Q, which each consumer releases after it has stored O",
    "P's offset omitted, in fa3-fp8": "in e4m3, weights below 2^-10 of the largest then become 0, which is within the "
    "budget of any kernel with 8-bit weights. tests/variants/test_fa3_fp8.py has a smaller tolerance for this variant",
    "sums beyond the range of float, in fa3-fp8": "a tile's weights must lie within a factor of 32 of the largest "
    "float. No campaign draws this; tests/variants/test_fa3_fp8.py tests it",
    "L of rows that are not finite kept from before, in bwd-fa3": "dP of a row whose dO is not finite, and P or D of a "
    "row whose Q is not, are not finite either, so dS is NaN, and P takes it from dS",
    "block without keys counted, in a ring": "its weight exp(-inf - m) is 0 and its O is 0, and the first block that a "
    "row meets shows it a key, its own at the latest. Only where all scores of a block are -inf may its O be NaN, and "
    "any result is accepted there",
    "an oracle in which only the maximum ignores NaN": "the weight of a NaN score is still NaN, and so are O and lse. "
    "The counted mutant of the oracle also gives such a score no weight",
}
"""Bugs that campaigns cannot find or that change no result, each with the reason. They are not counted."""
