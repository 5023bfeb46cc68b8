"""All mutants of the variants, by name; what published kernels got wrong, planted in each backend that there is."""

from __future__ import annotations

from tests.mutants import (
    addressing,
    backward,
    backward_spans,
    backward_tensor_cores,
    backward_tensor_cores_numba,
    barriers,
    boundaries,
    dropout,
    eight_bits,
    paged,
    pipelines,
    pipelines_numba,
    plans,
    precision,
    recomputation,
    running_maximum,
    scores,
    softmax,
    spans,
    splits,
    sums,
    tensor_cores,
    untiled,
    visits,
)
from tests.mutants.patching import Mutant

FAMILIES: dict[str, tuple[Mutant, ...]] = {
    "running maximum": running_maximum.MUTANTS,
    "sums and rescaling": sums.MUTANTS,
    "masks and boundaries": boundaries.MUTANTS,
    "documents and prefixes": spans.MUTANTS,
    "addressing": addressing.MUTANTS,
    "caps, ALiBi and sinks": scores.MUTANTS,
    "dropout": dropout.MUTANTS,
    "precision and log-sum-exp": precision.MUTANTS,
    "barriers": barriers.MUTANTS,
    "plan": plans.MUTANTS,
    "splits, packed heads and copies on their way": splits.MUTANTS,
    "tensor cores": tensor_cores.MUTANTS,
    "producer and consumers": (*pipelines.MUTANTS, *pipelines_numba.MUTANTS),
    "factors of 8 bits": eight_bits.MUTANTS,
    "masks that are no runs": visits.MUTANTS,
    "scores computed anew": recomputation.MUTANTS,
    "rows without tiles": untiled.MUTANTS,
    "softmax": softmax.MUTANTS,
    "pages, tables and lengths": paged.MUTANTS,
    "backward pass": backward.MUTANTS,
    "documents and prefixes of the backward pass": backward_spans.MUTANTS,
    "backward pass on tensor cores": (*backward_tensor_cores.MUTANTS, *backward_tensor_cores_numba.MUTANTS),
}
MUTANTS: dict[str, Mutant] = {mutant.name: mutant for family in FAMILIES.values() for mutant in family}

EQUIVALENT: dict[str, str] = {
    "dS from P that is not masked, in a product that is": "each product of the backward pass leaves out by itself what "
    "the row does not see, so that NaN behind the mask stays there; the mutant that dies forgets it in dQ as well",
    "loop one tile long": "the extra tile holds no key: nothing is loaded, all scores are masked, m, l and O stay",
    "m of any finite size": "softmax is shift invariant: as long as no exponential overflows, any m gives the same; "
    "the mutants of the running maximum die where one does",
    "(-inf) - (-inf) in two-pass": "only a row that sees no key meets it: its l and P become NaN, but P meets no "
    "V behind the mask and no lse is written, so its O stays 0",
    "V ahead of a window times a weight of 0": "takes NaN or infinity in V in the tile in which a row's window begins, "
    "ahead of it: tests/variants/test_conformance.py has that, and campaigns of 200 cases meet it too seldom",
    "the first sequence's list, in fa3": "takes sequences of other documents under blocks or FlashMask besides: "
    "tests/variants/test_fa3.py has that, and campaigns of 200 cases meet it too seldom",
    "32-bit offset overflow": "needs 2^31 elements, which no campaign on the emulator holds",
    "heads that meet in a tile overlooked": "the first query of the second head is then taken to see as much as the "
    "first row of the tile; only NaN or infinity in one key shows it, where a tile of keys ends in between: "
    "tests/variants/test_split_kv.py looks there, and no campaign finds it",
    "a zero weight times NaN ahead of a window": "in split-kv, where every row sees the end of a tile and some see its "
    "beginning, only NaN or infinity there shows it: tests/variants/test_split_kv.py looks there, and no campaign "
    "finds it",
    "keys ahead of the first copied": "in split-kv, those that share a tile with the first that any row sees: their "
    "weights are 0, so only NaN or infinity there, or the bytes, show it: tests/variants/test_split_kv.py looks for "
    "both, and no campaign finds it",
    "splits not brought to one maximum, by a warp": "takes more splits than warps; tests/variants/test_split_kv.py has "
    "and campaigns of a few tiles do not; the mutant that dies forgets it between warps as well",
    "weights of a pair of keys swapped for infinity in V": "brings NaN for infinity at worst, where the other key is "
    "behind the mask, and NaN is taken there",
    "rescaling decided by each lane": "the four lanes that share a row share its maximum, and with it the decision",
    "K given back before the wait, in the loop of fa3": "before the producer fetches K into that stage it waits for V "
    "of the tile before, which each consumer gives back behind its wait for S",
    "the last V given back before the wait, in fa3": "before the producer fetches V into that stage it waits for Q's "
    "place, which each consumer gives back once it has stored O",
    "P's offset left out, in fa3-fp8": "e4m3 then has 0 for weights below 2^-10 of the largest, which is within the "
    "budget of any kernel whose weights have 8 bits; tests/variants/test_fa3_fp8.py holds this one to less",
    "sums left beyond float, in fa3-fp8": "a tile's weights have to lie within a factor of 32 of float's largest "
    "number; tests/variants/test_fa3_fp8.py has that, and no campaign draws it",
    "an oracle whose maximum alone swallows NaN": "the weight of a NaN score is NaN all the same, and with it O and "
    "lse; the mutant of the oracle gives such a score no weight either",
}
"""Bugs that were thought through and are not counted, each with the reason."""
