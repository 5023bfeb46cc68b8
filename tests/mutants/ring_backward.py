"""What can go wrong where gradients go round devices: where sums begin, meet, wait and end, and what is done once."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

_FOLDER = "ring_attention_backward/ring_bwd"
BACKENDS = ("cupy", "numba")


def _in_plan(bug: str, *patches: Patch) -> tuple[Mutant, ...]:
    """The mistake in both languages, which have the plan in common."""
    return tuple(Mutant(bug, f"ring-bwd-{backend}", patches) for backend in BACKENDS)


def _own(old: str, new: str) -> Patch:
    return Patch(f"{_FOLDER}/__init__.py", old, new)


def _shared(old: str, new: str) -> Patch:
    return Patch("_ring/__init__.py", old, new)


def _in_sums(bug: str, cuda: tuple[str, str], numba: tuple[str, str]) -> tuple[Mutant, ...]:
    files = {"cupy": ("kernel.cu", cuda), "numba": ("numba_kernel.py", numba)}
    return tuple(
        Mutant(bug, f"ring-bwd-{backend}", (Patch(f"{_FOLDER}/{file}", *replacement),))
        for backend, (file, replacement) in files.items()
    )


MUTANTS = (
    *_in_plan("sum begun anew on each device", _own("[np.int32(block.is_first)]", "[np.int32(1)]")),
    *_in_plan("sum never begun", _own("[np.int32(block.is_first)]", "[np.int32(0)]")),
    *_in_plan("sum stays where it begins", _own("begun[chunk] <= step", "begun[chunk] < step")),
    *_in_plan("sum added to before it has come", _own("(start, arrival), begun", "(start, len(launches)), begun")),
    *_in_plan("sums come where they are being sent from", _shared("\nSLOTS = 2\n", "\nSLOTS = 1\n")),
    *_in_plan(
        "half of a float32 sum copied",
        _shared("FLOAT32_BYTES if tensor.endswith", "p.itemsize_bytes if tensor.endswith"),
    ),
    # The second block of a device in zigzag order replaces the first one's part before that is added.
    *_in_plan(
        "parts of two blocks in one place",
        _own(
            "            launches += [_sum(p, each, gradients) for each in turn if not each.is_only]\n",
            "        launches += [_sum(p, each, gradients) for turn in turns for each in turn if not each.is_only]\n",
        ),
    ),
    *_in_plan(
        "dQ begun anew with each block",
        _own(
            "            launches += [_sum(p, each, gradients) for each in turn if not each.is_only]\n",
            "            launches += [_sum(p, each, gradients) for each in turn if not each.is_only]\n"
            "            launches += [_launch(p, of_rows[each.rows].launches[0], each.rows, each.rows, p.devices)"
            " for each in turn if step < p.devices]\n",
        ),
    ),
    *_in_plan(
        "own keys for those of a visitor",
        _own(
            "in_slot(p, place_of(p, tensor, keys, device, step), keys)",
            'f"{tensor}@{device}{keys.letter}"',
        ),
    ),
    *_in_plan(
        "dV added to dK",
        _own(
            "parts = [_part(gradient, device, keys) for gradient in GRADIENTS]",
            "parts = [_part(gradient, device, keys) for gradient in reversed(GRADIENTS)]",
        ),
    ),
    *_in_sums(
        "part of their own device left out",
        ("narrow(dV_s[e] + widen(dV_t[e]), &dV[e]);", "narrow(dV_s[e], &dV[e]);"),
        ("dV[e] = narrow(dV_s[e] + widen(dV_t[e]))", "dV[e] = narrow(dV_s[e])"),
    ),
    *_in_sums(
        "part in place of the sum",
        ("is_first ? widen(dK_t[e]) : dK_s[e] + widen(dK_t[e])", "widen(dK_t[e])"),
        ("widen(dK_t[e]) if is_first else dK_s[e] + widen(dK_t[e])", "widen(dK_t[e])"),
    ),
    *_in_sums(
        "elements beyond a multiple of the block left out",
        (
            "    if (e >= count) return;\n    dK_s[e]",
            "    if (e >= count / blockDim.x * blockDim.x) return;\n    dK_s[e]",
        ),
        (
            "        if e >= count:\n            return\n        dK_s[e]",
            "        if e >= count // cuda.blockDim.x * cuda.blockDim.x:\n            return\n        dK_s[e]",
        ),
    ),
)  # fmt: skip
