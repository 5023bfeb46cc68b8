"""Square roots and quotients of doubles that are multiplied: the same bits as by IEEE, whatever the operand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from single_opcode import run_body

from harness.emulator.codegen.cpu import Cpu
from harness.emulator.codegen.literal_divisors import is_suitable
from harness.emulator.native import llvm_compiler
from harness.emulator.native.tier import Tier

pytestmark = pytest.mark.compiles
Doubles = npt.NDArray[np.float64]
THREADS = 256
EDGES = np.array([
    0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1.0, 2.0, 4.0, 5e-324, 2.2e-308, 2.3e-308, 1.7e308, 2.0**-400, 2.0**400,
    np.nextafter(2.0**-400, 0), np.nextafter(2.0**400, 0), np.nextafter(1, 0), np.nextafter(1, 2), np.nextafter(4, 0),
])  # fmt: skip


def numbers(count: int, highest: float) -> Doubles:
    """Random mantissas and exponents, then edges, in blocks of `THREADS`."""
    random = np.random.default_rng(7)
    found = np.ldexp(random.uniform(1, 2, count), random.integers(-highest, highest, count))
    return np.concatenate([found, np.resize(EDGES, THREADS), np.where(np.arange(THREADS) % 3 == 0, 0, found[:THREADS])])


def near_midpoints(count: int) -> Doubles:
    """Numbers whose roots are as close to the middle between two doubles as is possible, then squares and neighbours.

    With r odd, of 54 bits, and r^2 = 1 + 8 c modulo 2^55, (r^2 - 1 - 8 c) / 4 is a number of 53 bits times 2^53.
    """
    hard = []
    c = 0
    while len(hard) < count:
        c = -c if c > 0 else 1 - c
        for root in _odd_roots(1 + 8 * c, 55):
            r = root % (1 << 54)
            if r >= 1 << 53:
                hard.append(float((r * r - 1 - 8 * c) // 4))
    exact = np.random.default_rng(8).integers(1 << 25, 1 << 26, count).astype(np.float64) ** 2
    return np.concatenate([np.array(hard[:count]), exact, np.nextafter(exact, 0), np.nextafter(exact, np.inf)])


def _odd_roots(square: int, bits: int) -> tuple[int, int]:
    """Both signs of an odd root modulo 2^bits, one bit after the other; `square` is 1 modulo 8."""
    root = 1
    for bit in range(3, bits):
        if (root * root - square) >> bit & 1:
            root += 1 << (bit - 1)
    return root, -root


def near_middles(divisor: float, count: int) -> Doubles:
    """Dividends whose quotients are as close to the middle between two doubles as is possible.

    With r odd, of 54 bits, and r D = -c modulo 2^k, (r D + c) / 2^k is the quotient r / 2^k times D and almost so.
    """
    numerator = abs(divisor.as_integer_ratio()[0])
    D = numerator // (numerator & -numerator)
    k = D.bit_length() + 1
    random = np.random.default_rng(9)
    found = []
    for c in range(-count, count, 2):
        r = (-(c + 1) * pow(D, -1, 1 << k)) % (1 << k) | int(random.integers(1 << 53, 1 << 54)) >> k << k
        found.append(float((r * D + c + 1) >> k))
    return np.array(found)


def computed(statement: str, x: Doubles) -> Doubles:
    """`statement` turns q2 into q3, for each element of x."""
    out = np.zeros_like(x)
    run_body(
        f"""
        mov.u32 r1, %ctaid.x; mad.lo.u32 r1, r1, {THREADS}, tid; mul.wide.u32 q1, r1, 8;
        add.u64 q4, q1, x; add.u64 q5, q1, out;
        ld.global.b64 q2, [q4]; {statement} st.global.b64 [q5], q3;
        """,
        {"x": x, "out": out},
        grid=len(x) // THREADS,
        block=THREADS,
        tier=Tier.OPTIMIZED,
    )
    return out


def cpus() -> list[Cpu]:
    """CPUs for which this one can run code: without a preference, its own, and one whose roots are multiplied."""
    own = llvm_compiler.host_cpu()
    return list(dict.fromkeys((Cpu(), own, Cpu("", own.features & {"avx512f"}))))


@pytest.mark.parametrize("cpu", cpus(), ids=lambda cpu: cpu.name or "-".join(sorted(cpu.features)) or "any")
@pytest.mark.parametrize("kind", ["random", "midpoints"])
def test_square_roots(cpu: Cpu, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm_compiler, "host_cpu", lambda: cpu)
    x = numbers(1 << 15, 410) if kind == "random" else near_midpoints(1 << 13)
    with np.errstate(invalid="ignore"):
        expected = np.sqrt(x)
    # The comment distinguishes the kernels of different CPUs in the cache.
    found = computed(f"sqrt.rn.f64 q3, q2; // {cpu}\n", x)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found)[x == 0], np.signbit(x)[x == 0])


# With the fifth and sixth, the product with the reciprocal is not yet correctly rounded for all dividends.
@pytest.mark.parametrize(
    "divisor",
    [3.0, -7.0, 0.1, np.pi, 6923307964374275.0, -7434669136451063.0, 2.0**53 - 1, 1e-120, 1e300, 3 * 2.0**-1074],
)
def test_quotients_by_a_literal(divisor: float) -> None:
    x = numbers(1 << 14, 600)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        x = np.concatenate([x, near_middles(divisor, 1 << 12)])
        expected = x / divisor
    (bits,) = np.array([divisor]).view(np.uint64)
    found = computed(f"div.rn.f64 q3, q2, 0d{int(bits):016X};", x)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found)[found == 0], np.signbit(expected)[found == 0])


def test_divisors_that_are_multiplied() -> None:
    assert [d for d in (3.0, -0.1, 2.0**398 + 2.0**350, 1.5) if not is_suitable(d)] == []
    others = (0.0, 0.5, -4.0, np.inf, np.nan, 1e300, 1e-300, 5e-324)
    assert [d for d in others if is_suitable(d)] == []
