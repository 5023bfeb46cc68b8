"""What the sanitizer finds in kernels with `tcgen05` whose answer may be right: PTX ISA, section 9.7.16.6."""

from __future__ import annotations

import numpy as np
import pytest
from planted_kernel import findings_of
from product_cases import SHARED_BYTES, random_memory, random_product, random_shared
from product_model import InstructionDescriptor, Product
from tensor_machine import WAIT, Step, TensorMachine
from test_asynchrony import ISSUE, WAITED
from test_products import FLOATS
from test_products_of_pairs import PAIR

ROUNDS = f"""
{ISSUE}
if (given[0] == 1) {{ store1(mine, 0); WRITTEN(); }}
if (given[0] == 2) {{ __syncthreads(); READ(0); }}
{WAITED}
READ(0);
if (given[0] != 3) {{ ALL(); }}
if (t == 0) {{ PRODUCT(1); PRODUCT(1); TRACK(1, &bar); }}
wait(&bar, 1); AFTER();
READ(0);
"""
"""Two rounds of products, lines 2 and 8, and loads, lines 6 and 10."""


def places(mistake: int) -> list[tuple[str, int, int | None]]:
    """Kind and both lines of each finding, in the order of lines."""
    found = []
    for finding in findings_of(ROUNDS, given=[mistake]):
        assert finding.place is not None
        found.append((finding.kind, finding.place.line, finding.other.line if finding.other else None))
    return found


def test_a_correct_kernel():
    """One warp allocates, one thread issues, all warps read, twice; products on one accumulator need no wait."""
    assert places(0) == []


@pytest.mark.parametrize(("mistake", "lines"), [(1, {2, 3}), (2, {2, 4}), (3, {6, 8})])
def test_accumulators_in_flight(mistake: int, lines: set[int]):
    """D is stored to, or read, before the commit is waited for; or multiplied into while other warps still read it."""
    assert any(kind.endswith("race") and {line, other} == lines for kind, line, other in places(mistake))


def test_shared_memory_without_a_proxy_fence():
    """Products read shared memory in the async proxy (section 9.7.16.6.5)."""
    (finding,) = findings_of(f"{ISSUE}\n{WAITED}\nREAD(0);", fence="")
    assert finding.kind == "missing proxy fence" and finding.place is not None and finding.place.line == 2


@pytest.mark.parametrize("machine", [FLOATS, PAIR], ids=["one block", "a pair"])
def test_correct_products(machine: TensorMachine):
    """Of one block and of a pair, with A in shared and in tensor memory, waited for in turn: nothing is found."""
    rng = np.random.default_rng(machine.blocks)
    form = InstructionDescriptor("f32", "f16", "f16", 128 * machine.blocks, 32)
    program: list[Product | Step | str] = []
    for i in range(3):
        program += [random_product(rng, form, 32 * i, blocks=machine.blocks, in_tensor_memory=i == 1), WAIT]
    shareds = [random_shared(rng, "f16", SHARED_BYTES) for _ in range(machine.blocks)]
    memories = [random_memory(rng, "f32", "f16") for _ in range(machine.blocks)]
    assert machine.findings(program, shareds, memories) == ()
