"""A kernel whose clusters take the tiles of clusters that have not started, and what a right run of it leaves.

PTX ISA, sections 9.7.13.17 (clusterlaunchcontrol.try_cancel) and 9.7.13.18 (query_cancel).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sanitized_kernel import find

from harness.model.finding import Finding
from tests.emulator import cuda_kernel
from tests.emulator.hopper_kernel import HEAD

Dimensions = tuple[int, int, int]

WAYS = {
    "all coordinates": "@p clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%0, %1, %2, _}, h;",
    "each coordinate": "".join(
        f"@p clusterlaunchcontrol.query_cancel.get_first_ctaid::{axis}.b32.b128 %{i}, h;"
        for i, axis in enumerate("xyz")
    ),
}
"""Queries of the tile."""
LOADS = {
    "whole": "ld.shared.b128 h, [%4];",
    "two halves": ".reg .b64 a, b; ld.shared.v2.b64 {a, b}, [%4]; mov.b128 h, {a, b};",
    "four words": ".reg .b32 a, b, c, d; .reg .b128 g; ld.shared.b128 g, [%4]; mov.b128 {a, b, c, d}, g;"
    "mov.b128 h, {a, b, c, d};",
    "of any block": "ld.shared::cluster.b128 h, [%4];",
    "by global memory": ".reg .b128 g; .reg .b64 lo, hi; ld.shared.b128 g, [%4]; st.global.b128 [%5], g;"
    "ld.global.b128 h, [%5]; mov.b128 {lo, hi}, h; mov.b128 h, {lo, hi};",
}
"""Statements that bring a response to the register h of 128 bits."""
FORMS = list(itertools.product(WAYS, LOADS))
"""Each is a number of the kernel's argument `form`."""
SPACES = (".shared::cta", "r", "place_of"), ("", "l", "(u64)")
"""Of the request's addresses: qualifier, constraint of the operands, conversion of a pointer."""
THREADS = 64


def _queries() -> str:
    """A case for each form: `is`, and the tile x, y, z if there is one, of the response at the address `at`."""
    cases = []
    for number, (way, load) in enumerate(FORMS):
        text = (
            f"{{.reg .pred p; .reg .b128 h; {LOADS[load]}"
            "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, h; selp.u32 %3, 1, 0, p;"
            f"{WAYS[way]}}}"
        ).replace(";", ";\\n")
        outs = ", ".join(f'"+r"({each})' for each in ("x", "y", "z", "is"))
        cases.append(f'case {number}: asm volatile("{text}" : {outs} : "r"(at), "l"(copy) : "memory"); break;')
    return "\n      ".join(cases)


def _requests() -> str:
    """The function `request0` with addresses of shared memory, `request1` with generic addresses."""
    lines = []
    for number, (space, constraint, cast) in enumerate(SPACES):
        opcode = f"clusterlaunchcontrol.try_cancel.async{space}.mbarrier::complete_tx::bytes"
        operands = f'"{constraint}"({cast}(to)), "{constraint}"({cast}(bar))'
        lines.append(f"__device__ void request{number}(void* to, u64* bar) {{")
        lines.append(f'  asm volatile("{opcode}" MULTICAST ".b128 [%0], [%1];" :: {operands} : "memory");\n}}')
    return "\n".join(lines)


SOURCE = f"""{HEAD}
#if CLUSTERS
#ifndef ALONE
#define MULTICAST ".multicast::cluster::all"
#else
#define MULTICAST ""
#endif
__device__ u32 place_in(void* p, u32 rank) {{
  u32 place;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(place_of(p)), "r"(rank));
  return place;
}}
#define MEET() asm volatile("barrier.cluster.arrive;\\nbarrier.cluster.wait;" ::: "memory")
#define SPECIAL(name) [] {{ u32 r; asm volatile("mov.u32 %0, %%" name ";" : "=r"(r)); return r; }}()
#else
#define MULTICAST ""
#define place_in(p, rank) place_of(p)
#define MEET() __syncthreads()
#define SPECIAL(name) 0u
#endif
{_requests()}
#line 1 "planted.cu"
extern "C" __global__ void k(u32* visits, u32* worker, u32* firsts, u32* counts, uint4* copies, u32 form, u32 depth,
                             u32 generic, u32 issuer, u32 offset, u32 bytes) {{
  __shared__ __align__(16) u32 responses[3][4]; __shared__ u64 bars[2];
  u32 t = threadIdx.x, me = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  u32 dx = SPECIAL("cluster_ctaid.x"), dy = SPECIAL("cluster_ctaid.y"), dz = SPECIAL("cluster_ctaid.z");
  u32 x = blockIdx.x - dx, y = blockIdx.y - dy, z = blockIdx.z - dz;
  u32 count = 0, phases = 0, is = 1, in_flight = 0, slot = 0, has_failed = 0;
  bool asks = t == 0 && SPECIAL("cluster_ctarank") == issuer;
  uint4* copy = copies + {THREADS} * me + t;
  if (t == 0) {{ init(&bars[0], 1); init(&bars[1], 1); }}
  asm volatile("fence.mbarrier_init.release.cluster;\\nfence.proxy.async;" ::: "memory");
  __syncthreads(); MEET();
  for (;;) {{
    while (!has_failed && in_flight < depth) {{
      u32 free = (slot + in_flight++) % depth;
      void* to = (char*)responses[free] + offset;
#ifdef ALONE
      if (asks)
#else
      if (t == 0)
#endif
        expect(&bars[free], bytes);
      if (asks && generic) request1(to, &bars[free]);
      else if (asks) request0(to, &bars[free]);
    }}
    // A block that knows of a refusal must not ask again: no warp waits before all requests are made.
    __syncthreads();
    if (is) {{
      u32 tile = x + dx + gridDim.x * (y + dy + gridDim.y * (z + dz));
      ++count;
      if (t == 0) {{
        atomicAdd(&visits[tile], 1); worker[tile] = me + 1;
        firsts[3 * tile] = x; firsts[3 * tile + 1] = y; firsts[3 * tile + 2] = z;
      }}
    }}
    if (!in_flight) break;
#ifdef ALONE
    if (SPECIAL("cluster_ctarank") == issuer) wait(&bars[slot], phases >> slot & 1);
    MEET();
    u32 at = place_in(responses[slot], issuer);
#else
    wait(&bars[slot], phases >> slot & 1);
    u32 at = place_of(responses[slot]);
#endif
    phases ^= 1 << slot;
    switch (form) {{
      {_queries()}
    }}
    if (!is) has_failed = 1;
    asm volatile("fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;" ::: "memory");
    MEET();
    asm volatile("fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
    slot = (slot + 1) % depth; --in_flight;
  }}
  counts[{THREADS} * me + t] = count;
}}"""
"""CUDA of the kernel `k`, with `CLUSTERS` 0 or 1. A block writes one more than its number for its tiles.

With `ALONE`, only the block that asks has the response, and the others of its cluster read it there.
"""


@dataclass(frozen=True)
class Stolen:
    """What the kernel leaves. Tiles and blocks are numbered, x first."""

    visits: np.ndarray
    """Of each tile."""
    worker: np.ndarray
    """One more than the block that was launched and did the tile."""
    firsts: np.ndarray
    """(tiles, 3): the first block of the tile's cluster, as the response has it."""
    counts: np.ndarray
    """(blocks, threads): tiles that each thread did, 0 for blocks that were cancelled."""


def check(stolen: Stolen, grid: Dimensions, cluster: Dimensions = (1, 1, 1)) -> int:
    """Each tile is done once; a block that starts does its own. Returns the number of tiles that others did."""
    tiles = int(np.prod(grid))
    assert (stolen.visits == 1).all(), f"tiles {np.flatnonzero(stolen.visits != 1)} are not done once"
    places = np.stack(np.unravel_index(np.arange(tiles), grid[::-1])[::-1], axis=1)
    assert np.array_equal(stolen.firsts, places // cluster * cluster), "a tile is in another cluster"
    by_block = stolen.counts[:, 0]
    assert (stolen.counts == by_block[:, None]).all(), "threads of a block disagree"
    assert np.array_equal(by_block, np.bincount(stolen.worker - 1, minlength=tiles)), "tiles are done, and not counted"
    started = np.flatnonzero(by_block)
    assert np.array_equal(stolen.worker[started] - 1, started), "a block that started did not do its own tile"
    cluster_of = np.unique(places // cluster, axis=0, return_inverse=True)[1].reshape(-1)
    per_cluster = [set(by_block[cluster_of == i].tolist()) for i in range(cluster_of.max() + 1)]
    assert all(len(each) == 1 for each in per_cluster), "blocks of a cluster did not do as many tiles each"
    return tiles - started.size


def _launched(
    grid: Dimensions, cluster: Dimensions | None, numbers: Sequence[int], alone: bool = False
) -> tuple[Any, dict[str, np.ndarray], tuple[Any, ...], dict[str, Any]]:
    """The kernel, its arrays and arguments, and the options of the launch."""
    import cupy

    defines = f"#define CLUSTERS {int(cluster is not None)}\n" + "#define ALONE\n" * alone
    kernel = cupy.RawKernel(defines + SOURCE, "k", options=("-arch=sm_100a",))
    tiles = int(np.prod(grid))
    arrays = {
        "visits": np.zeros(tiles, np.uint32),
        "worker": np.zeros(tiles, np.uint32),
        "firsts": np.zeros((tiles, 3), np.uint32),
        "counts": np.zeros((tiles, THREADS), np.uint32),
        "copies": np.zeros((tiles, THREADS, 4), np.uint32),
    }
    launch = {"grid": grid, "block": (THREADS, 1, 1), "cluster": cluster, "arch": "sm_100"}
    return kernel, arrays, (*arrays, *map(np.uint32, numbers)), launch


def steal(
    grid: Dimensions,
    cluster: Dimensions | None = None,
    form: int = 0,
    depth: int = 1,
    generic: bool = False,
    issuer: int = 0,
    offset: int = 0,
    size: int = 16,
    alone: bool = False,
    resident: int = 4,
    **launch: Any,
) -> Stolen:
    """Run the kernel. `depth` is the number of requests of a block in flight, `issuer` the rank that asks.

    `offset` is added to the address of the first responses, `size` is the number of bytes that a block expects, and
    `resident` is the number of clusters that start at once. `alone` is for responses that only one block gets.
    """
    numbers = (form, depth, generic, issuer, offset, size)
    kernel, arrays, args, options = _launched(grid, cluster, numbers, alone)
    after, _ = cuda_kernel.run(kernel, arrays, args, resident=lambda: resident, **options, **launch)
    return Stolen(after["visits"], after["worker"].astype(np.int64), after["firsts"], after["counts"])


def findings(grid: Dimensions, cluster: Dimensions | None = None) -> tuple[Finding, ...]:
    """What the sanitizer finds in the kernel."""
    kernel, arrays, args, options = _launched(grid, cluster, (0, 1, 0, 0, 0, 16))
    return find(kernel, arrays, args, resident=lambda: 3, **options)
