"""What can go wrong where K and V go round devices: neighbours, slots, waits, the merge, blocks that nobody sees."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

_PLAN = "ring_attention/ring/__init__.py"
_SHARED = "_ring/__init__.py"
BACKENDS = ("cupy", "numba")


def _in_plan(bug: str, *patches: Patch) -> tuple[Mutant, ...]:
    """The mistake in both languages, which have the plan in common."""
    return tuple(Mutant(bug, f"ring-{backend}", patches) for backend in BACKENDS)


def _shared(old: str, new: str) -> Patch:
    return Patch(_SHARED, old, new)


def _own(old: str, new: str) -> Patch:
    return Patch(_PLAN, old, new)


def _in_merge(bug: str, cuda: tuple[str, str], numba: tuple[str, str], *, sanitize: bool = False) -> tuple[Mutant, ...]:
    files = {"cupy": ("kernel.cu", cuda), "numba": ("numba_kernel.py", numba)}
    return tuple(
        Mutant(bug, f"ring-{backend}", (Patch(f"ring_attention/ring/{file}", *replacement),), sanitize)
        for backend, (file, replacement) in files.items()
    )


OF_STRIDES = (
    # A slot has room for the largest chunk; shorter ones come to its beginning.
    Mutant(
        "strides of the largest chunk for all", "ring-numba",
        (Patch(_SHARED, "return buffer if is_full else Reshaped(", "return buffer if True else Reshaped("),),
    ),
)  # fmt: skip
"""In Numba alone, whose arrays have strides."""
MUTANTS = (
    # Copies go to the device before, while masks and launches take the block to come from there.
    *_in_plan(
        "wrong neighbour",
        _shared("= (device + 1) % p.devices\n        for", "= (device - 1) % p.devices\n        for"),
    ),
    # From the second step on, devices compute with what came to the slot in an earlier one.
    *_in_plan("stale block", _own("if step + 1 < p.devices:", "if step + 1 < min(p.devices, 3):")),
    *_in_plan(
        "no wait for a copy",
        _own(
            "copies=tuple(copies))",
            "copies=tuple(PeerCopy(each.source, each.destination, each.size_bytes, each.start, len(launches))"
            " for each in copies))",
        ),
    ),
    *_in_plan("copy to the slot that is computed with", _shared("\nSLOTS = 2\n", "\nSLOTS = 1\n")),
    *_in_plan(
        "only a head's part of the block copied",
        _shared(
            "elements_of_keys(p, chunk) * itemsize_bytes",
            "elements_of_keys(p, chunk) * itemsize_bytes // p.kv_heads_count",
        ),
    ),
    *_in_plan(
        "blocks of later devices skipped in every order",
        _shared(
            "if (block := p.block(rows, keys)) is not None:",
            "if (block := p.block(rows, keys)) is not None and (step <= device or not p.causal):",
        ),
    ),
    *_in_plan(
        "zigzag one device on",
        _shared(
            "in itertools.product(chunks, p.chunks[(device - step) % p.devices]):",
            "in itertools.product(\n"
            '                chunks, p.chunks[(device - step - (step > 0 and p.row_order == "zigzag")) % p.devices]\n'
            "            ):",
        ),
    ),
    *_in_plan(
        "masks of the device's own keys for a visitor",
        _shared(
            "if (block := p.block(rows, keys)) is not None:",
            "if (block := p.block(rows, keys)) is not None:\n"
            "                    block = dataclasses.replace(block, mask=block.mask & p.mask)",
        ),
    ),
    *_in_plan("sum begun anew", _own("np.int32(block.is_first)", "np.int32(block.step == 0)")),
    *_in_merge(
        "merge without lse",
        ("sees_block ? expf(of_block - m) : 0.0f", "sees_block ? 1.0f : 0.0f"),
        ("libdevice.expf(of_block - m) if sees_block", "float32(1) if sees_block"),
    ),
    *_in_merge(
        "sum not rescaled",
        ("fmaf(share_s, before, o)", "before + o"), ("libdevice.fmaf(share_s, before, o)", "before + o"),
    ),
    *_in_merge(
        "lse of the block alone",
        ("sees_any ? m + logf(l)", "sees_any ? of_block"), ("m + libdevice.logf(l) if", "of_block if"),
    ),
    *_in_merge(
        "no barrier before lse is stored",
        ("    __syncwarp();  // all lanes have read lse_s\n", ""),
        ("        cuda.syncwarp()  # all lanes have read lse_s\n", ""),
        sanitize=True,
    ),
    *OF_STRIDES,
)  # fmt: skip
