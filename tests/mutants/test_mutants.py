"""The mutants are what they say, and the fuzzer kills one of each family; scripts/mutation_score.py runs them all."""

from __future__ import annotations

import builtins
import dataclasses
import symtable
from collections.abc import Iterator

import pytest
from lanes import exhaustive_unless

from harness.model.discovery import discover
from harness.operations.attention.cases.build import AttentionBuild
from harness.studies.fuzz.campaign import run_campaign
from harness.studies.fuzz.result import CampaignResult
from harness.studies.fuzz.settings import CampaignSettings
from tests.fuzzed_variants import edited, refuses
from tests.mutants import backward_layouts, layouts, lean, paged, pool_layouts, ring, stored_keys, widths
from tests.mutants.catalogue import EQUIVALENT, FAMILIES, MUTANTS
from tests.mutants.harness_mutants import HARNESS_MUTANTS, ROOT, failing_tests
from tests.mutants.patching import VARIANTS, Patch, digest_of, files_of, mutated_variant, patched_files
from tests.mutants.scoring import NOT_A_KERNEL, killed_by, score

QUICKLY_KILLED = ("lse-to-base-2",)
"""For the default lane."""
QUICK = CampaignSettings(seed=0, shrink_seconds=0.0)


def test_names_are_unique_and_every_bug_is_in_each_backend():
    registered = {variant.name: variant for variant in discover().registry}
    mutants = [mutant for family in FAMILIES.values() for mutant in family]
    assert len(MUTANTS) == len(mutants) >= 40
    planted = {(m.bug, m.variant) for m in mutants}
    # A Numba kernel gets arrays that know their strides. Only CUDA kernels overlap segments. Bugs of stored keys are
    # spread over kernels.
    of_types = (*layouts.IN_TYPES, *widths.IN_TYPES, *ring.OF_STRIDES, *backward_layouts.IN_STRIDES)
    of_types += pool_layouts.IN_ONE_LANGUAGE
    in_one = (*of_types, *lean.IN_SEGMENTS, *paged.IN_ONE_LANGUAGE, *stored_keys.MUTANTS)
    for mutant in mutants:
        if mutant in in_one:
            continue
        algorithm = mutant.variant.rpartition("-")[0]
        backends = {f"{algorithm}-cupy", f"{algorithm}-numba"} & registered.keys()
        # What one of them alone takes, such as fa2-mma-cupy masks that are no runs, may be wrong in it alone.
        needed = set(registered[mutant.variant].takes)
        backends = {variant for variant in backends if needed <= set(registered[variant].takes)}
        assert {(mutant.bug, variant) for variant in backends} <= planted
    assert all(reason for reason in EQUIVALENT.values())


def test_a_score_is_void_only_if_the_kernels_text_changed(monkeypatch: pytest.MonkeyPatch):
    of_fa2, of_fa3 = files_of("attention/fa2"), files_of("attention/fa3")
    assert {"attention/fa2/kernel.cu", "_tiles/tiles.cuh", "_tiles/numba_copies.py", "_tiles/sectors.py"} <= of_fa2
    assert {"_hopper/hopper.cuh", "_hopper/numba_softmax.py"} <= of_fa3 - of_fa2
    in_fa2, in_fa3 = (next(m for m in MUTANTS.values() if m.variant == name) for name in ("fa2-cupy", "fa3-cupy"))
    before = digest_of(in_fa2), digest_of(in_fa3)

    def changed(file: str) -> tuple[bool, bool]:
        with monkeypatch.context() as patch:
            patch.setattr(
                "tests.mutants.patching.patched_files", lambda mutant: patched_files(mutant) | {file: "another text"}
            )
            return digest_of(in_fa2) != before[0], digest_of(in_fa3) != before[1]

    assert changed("_hopper/softmax.cuh") == (False, True)
    assert changed("_tiles/space.py") == (True, False)
    assert changed("_tiles/schedule.py") == (True, True)
    assert changed("_tiles/numba_tiles.py") == (False, False)  # the other language's


@pytest.mark.parametrize("name", MUTANTS)
def test_every_patch_applies_and_changes_what_its_variant_has(name: str):
    mutant = MUTANTS[name]
    texts = patched_files(mutant)
    changed = {path for path, text in texts.items() if text != (VARIANTS / path).read_text()}
    assert changed == {patch.file for patch in mutant.patches}
    assert changed <= files_of(mutant.folder), "a file that the variant is not made of"
    for path in changed:
        if path.endswith(".py"):
            assert not unknown_names(texts[path]), f"{path}: a kernel that Numba does not compile is no mutant"


def unknown_names(source: str) -> set[str]:
    """Names that functions take from their module, which does not have them."""
    module = symtable.symtable(source, "mutant.py", "exec")
    had = {symbol.get_name() for symbol in module.get_symbols()} | set(dir(builtins)) | {"__file__"}
    return {
        symbol.get_name()
        for scope in scopes_in(module)
        for symbol in scope.get_symbols()
        if symbol.is_global() and symbol.get_name() not in had
    }


def scopes_in(scope: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for inner in scope.get_children():
        yield inner
        yield from scopes_in(inner)


def test_a_name_that_a_module_does_not_have_is_found():
    assert unknown_names("def f():\n    def g(x):\n        return min(x, ONE, f)\n    return g\n") == {"ONE"}


FIRST = {mutant.variant: name for name, mutant in reversed(MUTANTS.items())}
"""One mutant of each variant: a package is written and imported for it."""


@pytest.mark.parametrize("name", exhaustive_unless(lambda name: name in FIRST.values(), MUTANTS))
def test_a_mutant_is_loaded_under_its_own_name(name: str):
    assert mutated_variant(MUTANTS[name]).name == name


def test_a_patch_whose_text_has_moved_on_says_so():
    with pytest.raises(ValueError, match=r"fa2/kernel\.cu has 'b' 0 times, not once: renew this patch"):
        Patch("fa2/kernel.cu", "b", "c").apply("a")
    with pytest.raises(ValueError, match="2 times"):
        Patch("fa2/kernel.cu", "a", "c").apply("a a")


@pytest.mark.parametrize(
    ("name", "kinds"),
    exhaustive_unless(
        lambda case: case[0].partition("~")[2] in QUICKLY_KILLED,
        [
            ("fa2-cupy~m-not-carried-across-tiles", {"wrong answer", "wrong lse"}),
            ("fa1-cupy~l-not-rescaled", {"wrong answer"}),
            ("fa2-cupy~padding-not-masked", {"wrong answer", "wrong lse"}),
            ("three-pass-cupy~grouped-heads-by-tiling-instead-of-repetition", {"wrong answer"}),
            ("fa2-numba~lse-to-base-2", {"wrong lse"}),
            ("fa1-cupy~no-barrier-before-o-is-stored", {"RAW race", "WAR race"}),
            ("fa1-cupy~final-rounding-not-launched", {"wrong answer"}),
            ("split-kv-cupy~other-lanes-copies-not-waited-for", {"RAW race", "WAR race"}),
            ("fa2-mma-cupy~registers-of-p-in-the-order-of-c", {"wrong answer"}),
        ],
    ),
)
def test_one_of_each_family_is_killed(name: str, kinds: set[str]):
    found = score(name, QUICK)
    assert found.killed_by in kinds
    assert found.examples <= 200 and found.first_case is not None


@pytest.mark.exhaustive
def test_what_was_refused_or_is_no_program_is_not_killed():
    builds = (AttentionBuild("float32", 8, 16, 8),)
    refused = run_campaign("refuses", _refuses, how=dataclasses.replace(QUICK, examples=5, builds=builds))
    right = discover().registry.get("fa2-cupy")
    assert refused.verdict == "error" and killed_by(refused, right) is None
    broken = run_campaign("broken", _broken, how=dataclasses.replace(QUICK, examples=5, builds=builds))
    assert broken.failure is not None and broken.failure.first_finding.kind in NOT_A_KERNEL
    assert killed_by(broken, right) is None
    modest = dataclasses.replace(right, supports=lambda p: "head_dim up to 7" if p.head_dim > 7 else None)
    assert killed_by(broken, modest) == broken.failure.first_finding.kind  # it takes more than it can do


def test_what_survives_is_not_killed():
    passed = CampaignResult("it", "pass", None, None, 200, 0, (), 1.0, 0.0, 0, None, None)
    assert killed_by(passed, discover().registry.get("fa2-cupy")) is None


@pytest.mark.parametrize("mutant", HARNESS_MUTANTS, ids=lambda mutant: mutant.bug.replace(" ", "-"))
def test_patches_of_the_harness_apply(mutant):
    for patch in mutant.patches:
        text = (ROOT / patch.file).read_text()
        assert patch.apply(text) != text
    assert all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests)


def test_a_wrong_oracle_is_found_by_its_own_tests():
    wrong = next(m for m in HARNESS_MUTANTS if m.bug == "the oracle's causal mask is aligned top-left")
    assert "test_rows_that_see_nothing_are_0_and_minus_infinity" in failing_tests(wrong)
    assert failing_tests(dataclasses.replace(wrong, patches=())) == []


def _refuses():
    return refuses("all")


def _broken():
    return edited("float s = 0.0f;", "float s = nothing;")
