"""Kernels on a small graph, in pairs: one that is right, and one in which an atomic, a guard, a barrier or a bound is
missing. Ten patterns of graph codes (conditional edges and vertices, push, pull, worklists, path compression, sums of
blocks), each with three ways to spread the edges over threads.

The lines of a racy kernel on which threads may meet end in `// race`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FILE = "graphs.cu"
BLOCKS, THREADS = 3, 64
NODES = 70
"""More than one block has threads, fewer than all."""

_PARAMETERS = "const int* first, const int* to, const int* weight, int* data, int* other, int* count, int n"

# Each traversal runs OPERATION for the edge j of the vertex i.
TRAVERSALS = {
    "vertex": """
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        for (int j = first[i]; j < END; j++) {
            OPERATION
        }""",
    "strided": """
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x / 2)
        if (blockIdx.x * blockDim.x + threadIdx.x < gridDim.x * blockDim.x / 2)
            for (int j = first[i]; j < END; j++) {
                OPERATION
            }""",
    "warp": """
    for (int i = (blockIdx.x * blockDim.x + threadIdx.x) / 32; i < n; i += gridDim.x * blockDim.x / 32)
        for (int j = first[i] + threadIdx.x % 32; j < END; j += 32) {
            OPERATION
        }""",
}


@dataclass(frozen=True)
class Pattern:
    """The statements for an edge in the right kernel and in the racy one, and what stands around the traversal."""

    clean: str
    racy: str
    before: str = ""
    clean_behind: str = ""
    racy_behind: str = ""
    racy_end: str = "first[i + 1]"


_TREE = """
    s[threadIdx.x] = sum;{race}
    BARRIER
    for (int half = blockDim.x / 2; half > 0; half /= 2) {{
        if (threadIdx.x < half)
            s[threadIdx.x] += s[threadIdx.x + half];{race}
        INNER
    }}
    if (threadIdx.x == 0) atomicAdd(count, s[0]);"""

PATTERNS = {
    "edges counted": Pattern("if (i < to[j]) atomicAdd(count, 1);", "if (i < to[j]) count[0] += 1; // race"),
    "maximum of edges": Pattern(
        "if (i < to[j]) atomicMax(count, weight[j]);",
        "if (i < to[j] && count[0] < weight[j]) // race\ncount[0] = weight[j]; // race",
    ),
    "guarded maximum": Pattern(
        "if (atomicOr(count, 0) < weight[j]) atomicMax(count, weight[j]);",
        "if (count[0] < weight[j]) // race\natomicMax(count, weight[j]); // race",
    ),
    "push minimum": Pattern(
        "atomicMin(&data[to[j]], weight[j]);", "data[to[j]] = min(data[to[j]], weight[j]); // race"
    ),
    "push sum": Pattern("atomicAdd(&data[to[j]], i + 1);", "data[to[j]] += i + 1; // race"),
    "pull": Pattern("other[j] = data[to[j]];", "data[i] = data[to[j]] + j + 1; // race"),
    "worklist": Pattern(
        "if (weight[j] > i) other[atomicAdd(count, 1)] = i;",
        "if (weight[j] > i) { int slot = count[0]++; // race\nother[slot] = i; } // race",
    ),
    "path compression": Pattern(
        "int v = i; while (v > atomicOr(&data[v], 0)) v = atomicOr(&data[v], 0);\natomicMin(&data[i], v);",
        "int v = i; while (v > data[v]) v = data[v]; // race\ndata[i] = v; // race",
    ),
    "one edge too many": Pattern("other[j] = i + 1;", "other[j] = i + 1; // race", racy_end="first[i + 1] + 1"),
    "sum of a block": Pattern(
        "sum += weight[j];",
        "sum += weight[j];",
        before="__shared__ int s[64]; int sum = 0; s[threadIdx.x] = 0; __syncthreads();",
        clean_behind=_TREE.format(race="").replace("BARRIER", "__syncthreads();").replace("INNER", "__syncthreads();"),
        racy_behind=_TREE.format(race=" // race").replace("BARRIER", "").replace("INNER", "__syncthreads();"),
    ),
}


def _text(name: str, traversal: str, pattern: Pattern, is_racy: bool) -> str:
    body = TRAVERSALS[traversal].replace("OPERATION", pattern.racy if is_racy else pattern.clean)
    body = body.replace("END", pattern.racy_end if is_racy else "first[i + 1]")
    behind = pattern.racy_behind if is_racy else pattern.clean_behind
    return f'extern "C" __global__ void {name}({_PARAMETERS}) {{\n{pattern.before}{body}\n{behind}\n}}\n'


@dataclass(frozen=True)
class GraphKernel:
    """One kernel of the module."""

    name: str
    is_racy: bool
    marked: frozenset[int]
    """Lines of the module on which its threads may meet."""


def module() -> tuple[str, list[GraphKernel]]:
    """CUDA C of all kernels, whose lines are those of `graphs.cu`, and the kernels."""
    text, kernels = "", []
    for traversal in TRAVERSALS:
        for title, pattern in PATTERNS.items():
            for is_racy in (False, True):
                name = f"{title.replace(' ', '_')}_by_{traversal}{'_racy' if is_racy else ''}"
                start = text.count("\n") + 1
                text += _text(name, traversal, pattern, is_racy)
                lines = text.split("\n")
                marked = (n for n in range(start, len(lines) + 1) if lines[n - 1].endswith("// race"))
                kernels.append(GraphKernel(name, is_racy, frozenset(marked)))
    return f'#line 1 "{FILE}"\n{text}', kernels


def graph() -> dict[str, np.ndarray]:
    """A connected graph of `NODES` vertices, all arrays of a kernel by name: neighbours are near, or vertex 3."""
    neighbours = [sorted({(i + 1) % NODES, (i + 7) % NODES, (i * 5 + 2) % NODES, 3}) for i in range(NODES)]
    first = np.cumsum([0, *map(len, neighbours)]).astype(np.int32)
    to = np.array([vertex for row in neighbours for vertex in row], np.int32)
    rng = np.random.default_rng(0)
    parents = np.array([rng.integers(0, max(1, i)) for i in range(NODES)], np.int32)
    return {
        "first": first,
        "to": np.append(to, np.int32(0)),
        "weight": np.append(rng.permutation(len(to)).astype(np.int32), np.int32(0)),
        "data": parents,
        "other": np.zeros(len(to) + 1, np.int32),
        "count": np.zeros(1, np.int32),
    }
