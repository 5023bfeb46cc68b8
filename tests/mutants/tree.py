"""What can go wrong where results are merged in a tree over devices: who sends, when, what, and how it counts."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

_FOLDER = "tree_attention/tree"
BACKENDS = ("cupy", "numba")


def _in_plan(bug: str, *replacements: tuple[str, str]) -> tuple[Mutant, ...]:
    """The mistake in both languages, which have the plan in common."""
    patches = tuple(Patch(f"{_FOLDER}/__init__.py", *each) for each in replacements)
    return tuple(Mutant(bug, f"tree-{backend}", patches) for backend in BACKENDS)


def _in_merge(bug: str, cuda: tuple[str, str], numba: tuple[str, str], *, sanitize: bool = False) -> tuple[Mutant, ...]:
    files = {"cupy": ("kernel.cu", cuda), "numba": ("numba_kernel.py", numba)}
    return tuple(
        Mutant(bug, f"tree-{backend}", (Patch(f"{_FOLDER}/{file}", *replacement),), sanitize)
        for backend, (file, replacement) in files.items()
    )


MUTANTS = (
    # With 6 devices, what 4 and 5 have arrives and is not merged.
    *_in_plan(
        "branches beyond a power of two left out",
        (
            "[_merge(p, merge, kernels) for merge in level]",
            "[_merge(p, merge, kernels) for merge in level if merge.sender + (1 << merge.level) <= p.devices]",
        ),
    ),
    *_in_plan("own keys sent again after a merge", ("held[device] = merged\n", "held.setdefault(device, merged)\n")),
    *_in_plan("sent before the merge has ended", ("start = wait + sum(", "start = wait + 0 * sum(")),
    *_in_plan("result arrives where another one is being merged", ("\nSLOTS = 2\n", "\nSLOTS = 1\n")),
    *_in_plan(
        "half of a merged O sent",
        ("problem.head_dim * sent.O_bytes, start", "problem.head_dim * problem.itemsize_bytes, start"),
    ),
    *_in_plan(
        "causal mask of each device's keys as if they were all",
        ("kernels.plan(p.block(keys))", 'kernels.plan(type(p.whole)(**{**p.sizes, "kv_len": len(keys.rows)}))'),
    ),
    *_in_plan("rows of the first head merged alone", ("np.int32(count))", "np.int32(problem.q_len))")),
    *_in_plan(
        "weights exchanged",
        (
            "buffers = (name for each in (merge.own, merge.arrived, merge.merged) for name in (each.O, each.lse))",
            "own, other, to = merge.own, merge.arrived, merge.merged\n"
            "    buffers = (own.O, other.lse, other.O, own.lse, to.O, to.lse)",
        ),
    ),
    *_in_merge(
        "merge without lse",
        ("sees_a ? expf(a - m) : 0.0f", "sees_a ? 1.0f : 0.0f"),
        ("libdevice.expf(a - m) if sees_a", "float32(1) if sees_a"),
    ),
    *_in_merge(
        "sum not rescaled",
        ("share_a * as_float(O_a[at])", "as_float(O_a[at])"),
        ("share_a * own_as_float(O_a", "own_as_float(O_a"),
    ),
    *_in_merge(
        "lse of the larger part alone",
        ("sees_any ? m + logf(l)", "sees_any ? m"), ("m + libdevice.logf(l) if", "m if"),
    ),
    *_in_merge(
        "no barrier before lse is stored",
        ("    __syncwarp();  // all lanes have read lse_a\n", ""),
        ("        cuda.syncwarp()  # all lanes have read lse_a\n", ""),
        sanitize=True,
    ),
)  # fmt: skip
