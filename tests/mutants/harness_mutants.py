"""Mutants of the harness itself: an oracle, a measure or a counter that is wrong must be found by its own tests."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.patching import Patch, hyphenated

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("harness", "variants", "tests", "scripts", "pyproject.toml")


@dataclass(frozen=True)
class HarnessMutant:
    """One mistake in the harness."""

    bug: str
    patches: tuple[Patch, ...]
    """Files are relative to the root of the repository."""
    tests: tuple[str, ...]
    """Where it has to be found, as pytest takes them: files, or one test of a file that takes long."""

    @property
    def name(self) -> str:
        """Such as `harness~the-budget-is-ten-times-as-wide`."""
        return f"harness~{hyphenated(self.bug)}"


@dataclass(frozen=True)
class HarnessScore:
    """What became of one of them."""

    mutant: str
    bug: str
    failing: tuple[str, ...]
    """Names of the tests that fail; none: it survived."""

    @property
    def killed(self) -> bool:
        """Whether a test fails."""
        return bool(self.failing)


HARNESS_MUTANTS = (
    HarnessMutant(
        "the oracle gives a NaN score no weight",
        (
            Patch(
                "harness/operations/attention/oracle.py",
                "np.max(self.scores, axis=-1)",
                "np.fmax.reduce(self.scores, axis=-1)",
            ),
            Patch(
                "harness/operations/attention/oracle.py",
                "weights = np.exp(block.scores - m[..., None])",
                "weights = np.nan_to_num(np.exp(block.scores - m[..., None]))",
            ),
        ),
        ("tests/operations/attention/test_oracle.py",),
    ),
    HarnessMutant(
        "the oracle's causal mask is aligned top-left",
        (
            Patch(
                "harness/operations/attention/masks/causal.py",
                "(kv_len - keys) > (q_len - 1 - rows)",
                "keys <= rows",
            ),
        ),
        ("tests/operations/attention/test_oracle.py",),
    ),
    HarnessMutant(
        "a NaN in the output is not beyond its budget",
        (
            Patch(
                "harness/execution/judging/accuracy.py",
                "wrong = ~same & ~(error <= allowed)",
                "wrong = ~same & (error > allowed)",
            ),
        ),
        ("tests/execution/judging/test_accuracy.py::test_nan_fails",),
    ),
    HarnessMutant(
        "the budget is ten times as wide",
        (
            Patch(
                "harness/operations/attention/budget/error_budget.py",
                'return {"O": Tolerance(O, ',
                'return {"O": Tolerance(10 * O, ',
            ),
            Patch(
                "harness/operations/attention/budget/error_budget.py",
                '"lse": Tolerance(lse, ',
                '"lse": Tolerance(10 * lse, ',
            ),
        ),
        ("tests/operations/attention/budget/test_error_budget.py::test_neither_tier_is_vacuous_in_16_bits",),
    ),
    HarnessMutant(
        "the counter misses what is read again",
        (
            Patch(
                "harness/emulator/memory/translation.py",
                "store64(entry + 16, load64(entry + 16) + sectors)",
                "store64(entry + 16, max(load64(entry + 16), sectors))",
            ),
        ),
        ("tests/emulator/launch/test_counts.py",),
    ),
    HarnessMutant(
        "a row of a ring does not see its own key in its own block",
        (
            Patch(
                "harness/operations/_across_devices/order.py",
                "most = (rows.start - keys.start) // rows.step",
                "most = (rows.start - keys.start) // rows.step - 1",
            ),
        ),
        ("tests/operations/ring_attention/test_ring_problem.py",),
    ),
    HarnessMutant(
        "a device of a ring in zigzag order has its neighbour's second chunk",
        (
            Patch(
                "harness/operations/_across_devices/order.py",
                "pieces[count - 1 - device]",
                "pieces[(count - 2 - device) % count]",
            ),
        ),
        ("tests/operations/ring_attention/test_ring_problem.py",),
    ),
    HarnessMutant(
        "kernels may use what a copy in flight writes",
        (
            Patch(
                "harness/emulator/launch/memory/peer_copies.py",
                "if site.buffer == copy.destination or (site.buffer == copy.source and is_store):",
                "if site.buffer == copy.source and is_store:",
            ),
        ),
        ("tests/variants/test_ring.py::test_what_meets_a_copy_in_flight_is_a_fault",),
    ),
    HarnessMutant(
        "a device may receive all keys",
        (
            Patch(
                "harness/model/peer_copy.py",
                "if most is not None and size_bytes > most:\n            names",
                "if False:\n            names",
            ),
        ),
        ("tests/model/test_peer_copy.py",),
    ),
    HarnessMutant(
        "the counter counts a sector once for each lane",
        (Patch("harness/emulator/memory/translation.py", "return count\n", "return count + 1\n"),),
        ("tests/emulator/launch/test_counts.py",),
    ),
)


def harness_score(name: str) -> HarnessScore:
    """Plant it and run its tests."""
    (mutant,) = (each for each in HARNESS_MUTANTS if each.name == name)
    return HarnessScore(name, mutant.bug, tuple(failing_tests(mutant)))


def failing_tests(mutant: HarnessMutant) -> list[str]:
    """Names of the tests that fail with the mistake planted in a copy; none: it survives.

    Raises `RuntimeError` where pytest could not even run them.
    """
    with tempfile.TemporaryDirectory(prefix="attention-sandbox-mutant-") as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        for patch in mutant.patches:
            target = copy / patch.file
            target.write_text(patch.apply(target.read_text()))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", *mutant.tests]
        ran = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    if ran.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {ran.returncode}: {ran.stdout[-800:]}{ran.stderr[-800:]}")
    return list(dict.fromkeys(re.findall(r"^FAILED \S+::(\w+)", ran.stdout, re.MULTILINE)))
