"""What can go wrong where K and V go round devices: neighbours, slots, waits, the merge, blocks that nobody sees."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

_PLAN = "ring_attention/ring/__init__.py"


def _in_plan(bug: str, old: str, new: str, *more: tuple[str, str]) -> Mutant:
    return Mutant(bug, "ring-cupy", tuple(Patch(_PLAN, *replacement) for replacement in ((old, new), *more)))


def _in_merge(bug: str, old: str, new: str, *, sanitize: bool = False) -> Mutant:
    return Mutant(bug, "ring-cupy", (Patch("ring_attention/ring/kernel.cu", old, new),), sanitize)


MUTANTS = (
    # Copies go to the device before, while masks and launches take the block to come from there.
    _in_plan(
        "wrong neighbour",
        "        following = (device + 1) % p.devices\n", "        following = (device - 1) % p.devices\n",
    ),
    # From the second step on, devices compute with what came to the slot in an earlier one.
    _in_plan("stale block", "if step + 1 < p.devices:", "if step + 1 < min(p.devices, 3):"),
    _in_plan(
        "no wait for a copy",
        "copies += _copies(p, step, start, len(launches))", "copies += _copies(p, step, start, 10**6)",
        ("copies=tuple(copies))",
         "copies=tuple(dataclasses.replace(each, wait=len(launches)) for each in copies))"),
    ),
    _in_plan("copy to the slot that is computed with", "\nSLOTS = 2\n", "\nSLOTS = 1\n"),
    _in_plan(
        "only a head's part of the block copied",
        "yield PeerCopy(source, destination, _kv_bytes(p, chunk) // 2, start, wait)",
        "yield PeerCopy(source, destination, _kv_bytes(p, chunk) // 2 // p.kv_heads_count, start, wait)",
    ),
    _in_plan(
        "blocks of later devices skipped in every order",
        "if (block := p.block(rows, keys)) is not None:",
        "if (block := p.block(rows, keys)) is not None and (step <= device or not p.causal):",
    ),
    _in_plan(
        "zigzag one device on", "p.chunks[(device - step) % p.devices]):",
        'p.chunks[(device - step - (step > 0 and p.row_order == "zigzag")) % p.devices]):',
    ),
    _in_plan(
        "masks of the device's own keys for a visitor",
        "if (block := p.block(rows, keys)) is not None:",
        "if (block := p.block(rows, keys)) is not None:\n"
        "                    block = dataclasses.replace(block, mask=block.mask & p.mask)",
    ),
    _in_plan("sum begun anew", "np.int32(block.is_first)", "np.int32(block.step == 0)"),
    _in_merge("merge without lse", "sees_block ? expf(of_block - m) : 0.0f", "sees_block ? 1.0f : 0.0f"),
    _in_merge("sum not rescaled", "fmaf(share_s, before, o)", "before + o"),
    _in_merge("lse of the block alone", "sees_any ? m + logf(l)", "sees_any ? of_block"),
    _in_merge(
        "no barrier before lse is stored", "    __syncwarp();  // all lanes have read lse_s\n", "", sanitize=True,
    ),
)  # fmt: skip
