"""Scopes and orders (PTX ISA, memory consistency model): what is released to whom, and which strong accesses race.

Each rule has a kernel that is right and one that is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.emulator.sanitized_kernel import find


def write(how: str) -> str:
    """Set the flag: by a function of CUDA, or by an instruction."""
    if how.startswith("atomic"):
        return f"{how}(flag, 1u);"
    if how.startswith("st"):
        return f'asm volatile("{how}.global.u32 [%0], 1;" ::"l"(flag) : "memory");'
    if how.startswith("red"):
        return f'asm volatile("{how}.global.add.u32 [%0], 1;" ::"l"(flag) : "memory");'
    return f'asm volatile("{{ .reg .u32 d; {how}.global.add.u32 d, [%0], 1; }}" ::"l"(flag) : "memory");'


def read(how: str, added: int = 0) -> str:
    """Read the flag. An atomic adds to it, or compares it with what it is then."""
    if how.startswith("atomic"):
        return f"seen = {how}(flag, {'1u, 2u' if how == 'atomicCAS' else f'{added}u'});"
    operation, operand = ("add.u32", f", {added}") if how.startswith("atom") else ("u32", "")
    return f'asm volatile("{how}.global.{operation} %0, [%1]{operand};" : "=r"(seen) : "l"(flag) : "memory");'


def fence(name: str) -> str:
    return f'asm volatile("{name};" ::: "memory");' if name else ""


Case = tuple[str, str, str, str]
"""A fence, how the flag is set, how it is read, and a fence."""


def messages(cases: list[Case], writer: str, reader: str) -> str:
    """For each case a thread writes an element of `data` and sets a flag; another sees it and reads the element.

    Case number n is in line n + 2.
    """
    lines = []
    for number, (before, setting, reading, behind) in enumerate(cases):
        lines.append(
            f"if ({writer.replace('N', str(number))}) {{ data[{number}] = 1.f; {fence(before)} {write(setting)} }} "
            f"else if ({reader.replace('N', str(number))}) {{ do {{ {read(reading)} __nanosleep(1); }} while (!seen); "
            f"{fence(behind)} out[{number}] = data[{number}]; }} ++flag;"
        )
    newline = "\n"
    return f"""extern "C" __global__ void k(unsigned* flag, float* data, float* out) {{
int t = threadIdx.x, b = blockIdx.x; unsigned seen = 0;
{newline.join(lines)}
}}"""


def found_in(source: str, grid: int, block: int, cluster: int | None = None) -> list[tuple[str, str, int]]:
    """Kind, target and line of each race."""
    arrays = {"flag": np.zeros(64, np.uint32), "data": np.zeros(64, np.float32), "out": np.zeros(512, np.float32)}
    clusters = None if cluster is None else (cluster, 1, 1)
    found = find(source, arrays, tuple(arrays), grid=(grid, 1, 1), block=(block, 1, 1), cluster=clusters)
    assert all(finding.kind.endswith("race") and finding.place is not None for finding in found)
    return [(f.kind, f.target.removeprefix("buffer "), f.place.line) for f in found if f.place is not None]


def races(source: str, grid: int = 1, block: int = 64, cluster: int | None = None) -> set[tuple[str, str]]:
    return {(kind, target) for kind, target, _ in found_in(source, grid, block, cluster)}


def races_of(cases: list[Case], writer: str, reader: str, **launch: Any) -> dict[Case, set[tuple[str, str]]]:
    """What races in each case."""
    found = found_in(messages(cases, writer, reader), **launch)
    return {case: {(kind, where) for kind, where, line in found if line == n + 3} for n, case in enumerate(cases)}


DATA = {("RAW race", "data")}

ORDERED_BETWEEN_BLOCKS: list[Case] = [
    ("membar.gl", "atomicExch", "atomicAdd", ""),
    ("membar.sys", "st.volatile", "ld.volatile", "membar.gl"),
    ("fence.sc.gpu", "red.relaxed.gpu", "ld.acquire.gpu", ""),
    ("fence.acq_rel.gpu", "st.relaxed.gpu", "ld.relaxed.gpu", "fence.acq_rel.gpu"),
    ("fence.acq_rel.sys", "atomicExch", "atomicCAS", "fence.sc.gpu"),
    ("", "st.release.gpu", "ld.acquire.gpu", ""),
    ("", "st.release.sys", "ld.acquire.sys", ""),
    ("", "red.release.gpu", "atom.acquire.gpu", ""),
    ("", "atom.acq_rel.gpu", "ld.acquire.gpu", ""),
]
UNORDERED_BETWEEN_BLOCKS: list[Case] = [
    # Nothing releases.
    ("", "atomicExch", "atomicAdd", "membar.gl"),
    ("", "st.volatile", "ld.volatile", "membar.gl"),
    ("", "st.relaxed.gpu", "ld.acquire.gpu", ""),
    ("", "red.relaxed.gpu", "ld.acquire.gpu", ""),
    ("", "atom.acquire.gpu", "ld.acquire.gpu", ""),
    # Nothing acquires.
    ("", "st.release.gpu", "ld.relaxed.gpu", ""),
    ("", "st.release.gpu", "atomicCAS", ""),
    # A scope is too narrow.
    ("membar.cta", "atomicExch", "atomicAdd", "membar.gl"),
    ("fence.acq_rel.cluster", "st.relaxed.gpu", "ld.acquire.gpu", ""),
    ("", "st.release.gpu", "ld.relaxed.gpu", "fence.acq_rel.cta"),
    ("", "st.release.gpu", "atomicCAS", "membar.cta"),
]
RACY_FLAGS: dict[Case, str] = {
    ("membar.gl", "atomicExch_block", "atomicAdd", ""): "WAW race",
    ("membar.gl", "atomicExch", "atomicAdd_block", ""): "WAW race",
    ("", "st.release.cta", "ld.acquire.gpu", ""): "RAW race",
    ("", "st.release.gpu", "ld.acquire.cta", ""): "RAW race",
    ("", "st.release.cluster", "ld.acquire.cluster", ""): "RAW race",
    ("membar.gl", "st.weak", "ld.weak", "membar.gl"): "RAW race",
    ("membar.gl", "st.weak", "ld.acquire.gpu", ""): "RAW race",
    ("membar.gl", "atomicExch", "ld.weak", "membar.gl"): "RAW race",
}
"""How the flag itself races with an access of another block."""
ORDERED_IN_BLOCK: list[Case] = [
    ("membar.cta", "atomicExch_block", "atomicAdd_block", ""),
    ("membar.cta", "atomicExch_block", "atomicCAS", "membar.cta"),
    ("", "st.release.cta", "ld.acquire.cta", ""),
    ("fence.acq_rel.cta", "st.relaxed.cta", "ld.relaxed.gpu", "fence.acq_rel.cta"),
]
UNORDERED_IN_BLOCK: list[Case] = [
    ("", "atomicExch", "atomicAdd", "membar.cta"),
    ("", "st.release.cta", "ld.relaxed.gpu", ""),
    ("membar.cta", "atomicExch_block", "atomicCAS", ""),
]
ORDERED_IN_CLUSTER: list[Case] = [
    ("", "st.release.cluster", "ld.acquire.cluster", ""),
    ("fence.acq_rel.cluster", "atomicExch", "ld.relaxed.gpu", "fence.acq_rel.cluster"),
    ("", "st.release.gpu", "ld.acquire.gpu", ""),
]
UNORDERED_IN_CLUSTER: list[Case] = [
    ("fence.acq_rel.cta", "atomicExch", "ld.acquire.cluster", ""),
    ("", "st.release.cluster", "ld.relaxed.gpu", "fence.acq_rel.cta"),
]


def pairs_of_blocks(cases: list[Case]) -> dict[Case, set[tuple[str, str]]]:
    """Each case has two blocks, and each of them fences nothing but its own."""
    return races_of(cases, "t == 0 && b == 2 * N", "t == 0 && b == 2 * N + 1", grid=2 * len(cases), block=32)


def pairs_of_warps(cases: list[Case]) -> dict[Case, set[tuple[str, str]]]:
    return races_of(cases, "t == 64 * N", "t == 64 * N + 32", grid=1, block=64 * len(cases))


def pairs_in_clusters(cases: list[Case]) -> dict[Case, set[tuple[str, str]]]:
    reader = "t == 0 && b == 2 * N + 1"
    return races_of(cases, "t == 0 && b == 2 * N", reader, grid=2 * len(cases), block=32, cluster=2)


@pytest.mark.parametrize(
    ("ordered", "unordered", "races_in"),
    [
        (ORDERED_BETWEEN_BLOCKS, UNORDERED_BETWEEN_BLOCKS, pairs_of_blocks),
        (ORDERED_IN_BLOCK, UNORDERED_IN_BLOCK, pairs_of_warps),
        (ORDERED_IN_CLUSTER, UNORDERED_IN_CLUSTER, pairs_in_clusters),
    ],
)
def test_a_message_arrives_if_it_is_released_and_acquired_in_its_scope(
    ordered: list[Case], unordered: list[Case], races_in: Callable[[list[Case]], dict[Case, set[tuple[str, str]]]]
) -> None:
    assert races_in([*ordered, *unordered]) == {
        case: DATA if case in unordered else set() for case in [*ordered, *unordered]
    }


def test_a_flag_whose_scope_is_too_narrow_or_that_is_plain_is_a_race_itself() -> None:
    assert pairs_of_blocks([*RACY_FLAGS]) == {case: {(kind, "flag"), *DATA} for case, kind in RACY_FLAGS.items()}


def kernel(body: str) -> str:
    parameters = "unsigned* flag, float* data, float* out"
    return (
        f'extern "C" __global__ void k({parameters}) {{ int t = threadIdx.x, b = blockIdx.x; unsigned seen; {body} }}'
    )


BETWEEN_BLOCKS: dict[str, set[tuple[str, str]]] = {
    # Strong accesses of different sizes; the next flag lies behind both words.
    "if (b) atomicAdd((unsigned long long*)flag, 1ull); else atomicAdd(flag, 1u); ++flag;": {("WAW race", "flag")},
    "atomicAdd(data, 1.f);": set(),
    "atomicAdd_block(data, 1.f);": {("WAW race", "data")},
    "if (b) atomicAdd(data, 1.f); else atomicAdd_block(data, 1.f);": {("WAW race", "data")},
    "if (b) atomicAdd_block(data, 1.f); else atomicAdd(data, 1.f);": {("WAW race", "data")},
    "if (b) *(volatile float*)data = 2.f; else atomicAdd_system(data, 1.f);": set(),
    "if (b) *data = 2.f; else atomicAdd(data, 1.f);": {("WAW race", "data")},
    "if (b) *out = *(volatile float*)data; else *(volatile float*)data = 1.f;": set(),
    "if (b) *out = *data; else *(volatile float*)data = 1.f;": DATA,
    "if (b) *(volatile float*)data = 1.f; else *out = *data;": {("WAR race", "data")},
    # A read of wider scope does not hide one of narrower scope.
    f"if (b) atomicExch(flag, 1u); else {{ {read('ld.acquire.cta')} {read('ld.acquire.gpu')} *out = seen; }}": {
        ("WAR race", "flag")
    },
}
IN_A_BLOCK = ("atomicAdd_block(data, 1.f);", "if (t) atomicAdd_block(data, 1.f); else atomicAdd(data, 1.f);")


def each_in_a_line(bodies: list[str]) -> str:
    return kernel("\n" + "\n".join(f"{{ {body} }} ++data; ++flag; ++out;" for body in bodies))


def test_strong_accesses_race_outside_of_their_scope() -> None:
    found = found_in(each_in_a_line([*BETWEEN_BLOCKS]), grid=2, block=1)
    for number, (body, expected) in enumerate(BETWEEN_BLOCKS.items()):
        assert {(kind, target) for kind, target, line in found if line == number + 2} == expected, body
    assert found_in(each_in_a_line([*IN_A_BLOCK]), grid=1, block=64) == []


def test_a_race_of_scopes_in_words() -> None:
    source = kernel("atomicAdd_block(data, 1.f);")
    (finding,) = find(source, {name: np.zeros(4, np.float32) for name in "fdo"}, tuple("fdo"), grid=(2, 1, 1))
    assert "both are strong, but the scope of one does not include the other's thread" in finding.message
    plain = source.replace("_block(data, 1.f)", "(data, data[1] = threadIdx.x)")
    found = find(plain, {name: np.zeros(4, np.float32) for name in "fdo"}, tuple("fdo"), grid=(2, 1, 1))
    assert found and not any("both are strong" in finding.message for finding in found)


@pytest.mark.parametrize(("scope", "racy"), [("cta", True), ("cluster", False)])
def test_atomics_within_a_cluster(scope: str, racy: bool) -> None:
    add = f'asm volatile("red.relaxed.{scope}.global.add.f32 [%0], 0f3f800000;" ::"l"(data) : "memory");'
    assert races(kernel(add), grid=2, block=1, cluster=2) == ({("WAW race", "data")} if racy else set())


CHAIN = """
    if (b == 0 && t == 0) { data[0] = 1.f; __threadfence_block(); atomicExch(flag, 1u); }
    if (b == 0 && t == 32) {
        while (atomicAdd(flag, 0u) != 1) __nanosleep(1);
        __threadfence();
        atomicExch(flag, 2u);
    }
    if (b == 1 && t == 0) {
        while (atomicAdd(flag, 0u) != 2) __nanosleep(1);
        __threadfence_block();
        atomicExch(flag, 3u);
    }
    if (b == 1 && t == 32) {
        while (atomicAdd(flag, 0u) != 3) __nanosleep(1);
        out[0] = data[0];
    }"""


def test_what_is_released_to_a_block_is_released_further_by_wider_fences() -> None:
    assert races(kernel(CHAIN), grid=2) == set()
    assert races(kernel(CHAIN.replace("__threadfence();", "__threadfence_block();")), grid=2) == DATA


BYSTANDER = """
    if (t) return;
    if (b == 0) { data[0] = 1.f; __threadfence(); FIRST }
    if (b == 1) { atomicAdd(flag + 2, 0u); __threadfence(); atomicExch(flag, 1u); }
    if (b == 2) { atomicAdd(flag, 0u); out[0] = data[0]; }"""


def test_a_block_releases_of_other_blocks_only_what_it_has_acquired() -> None:
    assert races(kernel(BYSTANDER.replace("FIRST", "atomicExch(flag + 2, 1u);")), grid=3) == set()
    assert races(kernel(BYSTANDER.replace("FIRST", "")), grid=3) == DATA


SEQUENCE = """
    if (t) return;
    if (b == 0) { data[0] = 1.f; __threadfence(); atomicExch(flag, 1u); }
    if (b == 1) NEXT
    if (b == 2) { atomicAdd(flag, 0u); out[0] = data[0]; }"""


def test_an_atomic_continues_a_release_and_a_store_ends_it() -> None:
    assert races(kernel(SEQUENCE.replace("NEXT", "atomicAdd(flag, 1u);")), grid=3) == set()
    assert races(kernel(SEQUENCE.replace("NEXT", "*(volatile unsigned*)flag = 2u;")), grid=3) == DATA


TICKET = f"""
    __shared__ unsigned last;
    if (b == 0 && t == 0) {{ data[0] = 1.f; __threadfence(); }}
    if (t == 0) {{
        {read("atom.relaxed.gpu", added=1)}
        last = seen;
    }}
    __syncthreads();
    if (last) {{ FENCE out[t] = data[0]; }}"""


def test_after_a_barrier_each_thread_may_fence_what_one_has_read() -> None:
    assert races(kernel(TICKET.replace("FENCE", "__threadfence();")), grid=2) == set()
    assert races(kernel(TICKET.replace("FENCE", "")), grid=2) == DATA


def shared_flag(before: str, behind: str, order: str = "relaxed.cta") -> str:
    return kernel(f"""
    __shared__ unsigned ready;
    __shared__ float s[32];
    unsigned place = (unsigned)__cvta_generic_to_shared(&ready);
    if (t == 0) ready = 0;
    __syncthreads();
    if (t == 32) {{
        s[0] = data[0];
        {before}
        asm volatile("st.{order}.shared.u32 [%0], 1;" ::"r"(place) : "memory");
    }} else if (t == 0) {{
        do {{
            asm volatile("ld.{order}.shared.u32 %0, [%1];" : "=r"(seen) : "r"(place) : "memory");
            __nanosleep(1);
        }} while (!seen);
        {behind}
        out[0] = s[0];
    }}""")


@pytest.mark.parametrize(
    ("before", "behind", "order", "racy"),
    [
        ("__threadfence_block();", "__threadfence_block();", "relaxed.cta", False),
        ("", "", "volatile", False),
        ("", "__threadfence_block();", "relaxed.cta", True),
        ("__threadfence_block();", "", "relaxed.cta", True),
    ],
)
def test_a_relaxed_flag_in_shared_memory_needs_fences(before: str, behind: str, order: str, racy: bool) -> None:
    expected = {("RAW race", "shared memory s")} if racy else set()
    assert races(shared_flag(before, behind, order)) == expected


LOCK = """
    __shared__ unsigned lock;
    __shared__ float s[1];
    if (t == 0) { lock = 0; s[0] = 0; }
    __syncthreads();
    if (t % 32 == 0) {
        while (atomicCAS(&lock, 0u, 1u)) __nanosleep(1);
        FENCE
        s[0] += 1.f;
        __threadfence_block();
        atomicExch(&lock, 0u);
    }"""


def test_a_lock_needs_a_fence_after_it_is_taken() -> None:
    assert races(kernel(LOCK.replace("FENCE", "__threadfence_block();"))) == set()
    found = races(kernel(LOCK.replace("FENCE", "")))
    assert found == {(kind, "shared memory s") for kind in ("RAW race", "WAR race", "WAW race")}
