"""clusterlaunchcontrol: clusters take the tiles of clusters that have not started, each tile once.

PTX ISA, sections 9.7.13.17 and 9.7.13.18. Which cluster takes which tile is not defined.
"""

from __future__ import annotations

import numpy as np
import pytest
from lanes import exhaustive
from stolen_tiles import FORMS, THREADS, Dimensions, Stolen, check, findings, steal

from harness.emulator.native.kernel_cache import native_kernel
from harness.support.errors import KernelFault, SandboxError


@pytest.mark.parametrize("form", range(len(FORMS)))
def test_responses(form: int):
    """Every query of the tile's coordinates, of responses that reach a register of 128 bits in every way."""
    grid = (5, 3, 2 + form)
    assert check(steal(grid, form=form, generic=bool(form % 2)), grid) > 0


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("cores", "seed", "resident"), [(1, 0, 1), (1, 5, 20), (2, 3, 7)])
def test_each_tile_once(depth: int, cores: int, seed: int, resident: int):
    """With one or two requests of a block in flight, in any order of warps, on one core or two."""
    grid = (150, 1, 1)
    assert check(steal(grid, depth=depth, threads=cores, seed=seed, shuffle=seed > 0, resident=resident), grid) > 0


@pytest.mark.parametrize("trial", exhaustive(range(20)))
def test_random_grids(trial: int):
    """Any grid, cluster, number of clusters that start, way to query, and number of requests in flight."""
    rng = np.random.default_rng(trial)
    cluster = tuple(int(x) for x in rng.permuted([1, 1, rng.integers(1, 5)]))
    grid = (
        cluster[0] * int(rng.integers(1, 9)),
        cluster[1] * int(rng.integers(1, 5)),
        cluster[2] * int(rng.integers(1, 4)),
    )
    options = {"form": int(rng.integers(len(FORMS))), "depth": 1 + trial % 2, "generic": trial % 3 == 0}
    options |= {"issuer": int(rng.integers(np.prod(cluster))), "resident": int(rng.integers(1, 10))}
    found = steal(grid, cluster, **options, seed=trial, shuffle=True, threads=1 + trial % 2)
    check(found, grid, (cluster[0], cluster[1], cluster[2]))


@pytest.mark.parametrize("grid", [(1, 1, 1), (2, 1, 1), (1, 1, 3)])
def test_a_small_grid(grid: Dimensions):
    """Requests fail at once where all blocks start."""
    assert check(steal(grid), grid) == 0


CLUSTERS: list[tuple[Dimensions, Dimensions]] = [
    ((8, 3, 2), (2, 1, 1)), ((3, 8, 1), (1, 2, 1)), ((2, 3, 8), (1, 1, 2)), ((8, 4, 2), (2, 2, 1)),
    ((5, 2, 1), (1, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("grid", "cluster"), CLUSTERS)
def test_clusters(grid: Dimensions, cluster: Dimensions):
    """One block asks. All blocks of its cluster get the response, and find their tile by their place in the cluster."""
    last = int(np.prod(cluster)) - 1
    for issuer, form in ((0, 0), (last, 5)):
        assert check(steal(grid, cluster, form, issuer=issuer, generic=issuer > 0), grid, cluster) > 0


@pytest.mark.parametrize("issuer", [0, 1])
def test_a_response_of_one_block(issuer: int):
    """Without `.multicast`, only the block that asks has it. The other block reads it there."""
    grid, cluster = (8, 3, 1), (2, 1, 1)
    form = next(i for i, (_, load) in enumerate(FORMS) if load == "of any block")
    assert check(steal(grid, cluster, form, issuer=issuer, depth=2, alone=True), grid, cluster) > 0


def test_two_requests_of_a_cluster():
    grid, cluster = (12, 2, 3), (2, 1, 1)
    assert check(steal(grid, cluster, depth=2, threads=2, seed=1, shuffle=True), grid, cluster) > 0


@pytest.mark.thorough
@pytest.mark.parametrize("cluster", [None, (2, 1, 1)])
def test_the_sanitizer_finds_nothing(cluster: Dimensions | None):
    assert not findings((8, 2, 1), cluster)


@pytest.mark.parametrize("offset", [4, 8])
def test_a_misaligned_response(offset: int):
    with pytest.raises(KernelFault, match=r"misaligned|aligned"):
        steal((8, 1, 1), offset=offset)


@pytest.mark.parametrize("cluster", [None, (2, 1, 1)])
def test_a_response_has_16_bytes(cluster: Dimensions | None):
    """A block that expects more waits forever."""
    with pytest.raises(KernelFault, match=r"planted.cu:\d+ .*"):
        steal((8, 1, 1), cluster, size=32)


KERNEL = """.version 8.8
.target {target}
.address_size 64
.visible .entry k() {{
.reg .b32 r0, r1, r2, at, bar; .reg .b64 rd; .reg .b128 h; .reg .pred p;
mov.u32 at, 0; mov.u32 bar, 16; mov.u64 rd, 0; mov.b128 h, {{rd, rd}};
{form};
ret; }}"""
REQUEST = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
QUERY = "clusterlaunchcontrol.query_cancel"
FIRST = f"{QUERY}.get_first_ctaid"
VALID = [
    ("sm_100", f"{REQUEST}.b128 [at], [bar]"),
    ("sm_100a", f"{REQUEST}.multicast::cluster::all.b128 [at], [bar]"),
    ("sm_100", f"{QUERY}.is_canceled.pred.b128 p, h"),
    ("sm_100", f"{FIRST}.v4.b32.b128 {{r0, r1, r2, _}}, h"),
    ("sm_100", f"{FIRST}::z.b32.b128 r0, h"),
]
WRONG = [
    ("sm_100", f"{REQUEST} [at], [bar]"),
    ("sm_100", f"{REQUEST}.b64 [at], [bar]"),
    ("sm_100", f"{REQUEST}.b128 [at]"),
    ("sm_100a", f"{REQUEST}.multicast::cluster.b128 [at], [bar]"),
    ("sm_100", "clusterlaunchcontrol.try_cancel.shared::cta.mbarrier::complete_tx::bytes.b128 [at], [bar]"),
    ("sm_100", "clusterlaunchcontrol.try_cancel.async.shared::cta.b128 [at], [bar]"),
    ("sm_100", "clusterlaunchcontrol.try_cancel.async.global.mbarrier::complete_tx::bytes.b128 [at], [bar]"),
    ("sm_100", f"{QUERY}.is_canceled.pred.b64 p, rd"),
    ("sm_100", f"{QUERY}.is_canceled.pred.b128 r0, h"),
    ("sm_100", f"{QUERY}.is_canceled.pred.b128 p, rd"),
    ("sm_100", f"{FIRST}.b32.b128 r0, h"),
    ("sm_100", f"{FIRST}::w.b32.b128 r0, h"),
    ("sm_100", f"{FIRST}::x.v4.b32.b128 {{r0, r1, r2, _}}, h"),
    ("sm_100", f"{FIRST}.v2.b32.b128 {{r0, r1}}, h"),
    ("sm_100", f"{FIRST}::x.b32.b64 r0, rd"),
]
"""NVIDIA's assembler 13.0 accepts each of the former and none of these."""


@pytest.mark.parametrize(("target", "form"), VALID)
def test_forms(target: str, form: str):
    native_kernel(KERNEL.format(target=target, form=form), "k")


@pytest.mark.parametrize(("target", "form"), WRONG)
def test_forms_refused(target: str, form: str):
    """When the kernel is compiled, with the opcode and the line."""
    with pytest.raises(SandboxError) as caught:
        native_kernel(KERNEL.format(target=target, form=form), "k")
    told = str(caught.value)
    assert form.split()[0] in told and "line 7" in told, told


GRID, CLUSTER = (4, 2, 1), (2, 1, 1)


def right_answer() -> Stolen:
    """What two clusters leave that do four tiles each: the first that of the third, the second that of the fourth."""
    worker = np.array([1, 2, 3, 4, 1, 2, 3, 4])
    firsts = np.array([[0, 0, 0], [0, 0, 0], [2, 0, 0], [2, 0, 0], [0, 1, 0], [0, 1, 0], [2, 1, 0], [2, 1, 0]])
    counts = np.repeat(np.array([2, 2, 2, 2, 0, 0, 0, 0])[:, None], THREADS, axis=1)
    return Stolen(np.ones(8, np.int64), worker, firsts, counts)


@pytest.mark.compiles(False)
def test_a_right_answer_is_accepted():
    assert check(right_answer(), GRID, CLUSTER) == 4


@pytest.mark.compiles(False)
@pytest.mark.parametrize(
    ("name", "place", "value"),
    [("visits", 3, 0), ("visits", 3, 2), ("worker", 4, 2), ("firsts", (4, 0), 2), ("counts", (0, 5), 1),
     ("counts", 4, 1)],
)  # fmt: skip
def test_a_wrong_answer_is_noticed(name: str, place: object, value: int):
    """A tile twice or never, another worker, another cluster, threads that disagree, a block that started late."""
    wrong = right_answer()
    getattr(wrong, name)[place] = value
    with pytest.raises(AssertionError):
        check(wrong, GRID, CLUSTER)
