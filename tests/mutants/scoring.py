"""One mutant's campaign: what killed it, after how much, and what the peers' rules say to the case that did."""

from __future__ import annotations

import datetime
import functools
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from harness.emulator.executor import EmulatorExecutor
from harness.execution.isolation.server import preload_compilers
from harness.execution.planning.tiles import parse_tile, with_tile
from harness.execution.planning.variant_calls import make_plan, refusal_of
from harness.model.cases.case import Case
from harness.model.variant import Variant
from harness.operations.attention.oracle import attention
from harness.options.machine import WORKER, Machine
from harness.studies.fuzz.campaign import run_campaign
from harness.studies.fuzz.finding import ERROR, NO_COMPILATION, NO_PLAN
from harness.studies.fuzz.result import CampaignResult
from harness.studies.fuzz.settings import CampaignSettings
from harness.support.errors import KernelFault, PlanError
from tests.mutants.catalogue import MUTANTS
from tests.mutants.loading import load, load_right
from tests.mutants.outside import OUTSIDE_MUTANTS, digest_of_outside
from tests.mutants.patching import digest_of
from tests.mutants.peers import RULES

ROOT = Path(__file__).resolve().parents[2]
NOT_A_KERNEL = (NO_COMPILATION, NO_PLAN, ERROR)
"""Findings that say no more than that the patch itself is no program, unless the mutant takes what the right one does
not: then it claims too much."""
PEERS_OF = "attention"
"""What the peers' rules are about."""
REJECTS, MISSED, FAULT = "rejects", "missed", "fault"


@dataclass(frozen=True)
class Score:
    """What became of one mutant."""

    mutant: str
    bug: str
    variant: str
    sanitized: bool
    """Whether the campaign ran under the sanitizer."""
    killed_by: str | None
    """The kind of the first finding; None: it survived."""
    examples: int
    """How many cases it took, or how many it survived."""
    seconds: float
    """Start to end, compilation and shrinking included."""
    tiles: tuple[int, int] | None
    """In the smallest case, each way: of rows and of keys per head, or as the operation's builds count them; None where
    there is no case, or none was shrunk."""
    peers: dict[str, str]
    """Rule -> `REJECTS`, `MISSED`, or `FAULT` where there is no output to look at, on the case that was found first;
    empty for other operations than `PEERS_OF`, and where nothing was shrunk."""
    digest: str
    """Digest of the texts that the mutant was made of, by `current_digest`."""
    date: str
    """The day of the campaign, such as `2026-11-20`."""
    reason: str | None = None
    """The finding in full, or why there was none; None for a mutant that was killed in an earlier run."""
    first_case: str | None = None
    """The first case that failed, as JSON; None where there is none, or it was found in an earlier run."""
    smallest_case: str | None = None
    """What the first case was shrunk to, as JSON; None where it was not shrunk, or in an earlier run."""

    @property
    def killed(self) -> bool:
        """Whether it was found out, as a kernel."""
        return self.killed_by is not None


def current_digest(name: str) -> str:
    """Of the texts that the mutant of that name is made of now."""
    return digest_of_outside(OUTSIDE_MUTANTS[name]) if name in OUTSIDE_MUTANTS else digest_of(MUTANTS[name])


def score(name: str, how: CampaignSettings) -> Score:
    """Run the mutant's campaign. Without `how.shrink_seconds`, what people would read of the case is left out."""
    mutant = OUTSIDE_MUTANTS.get(name) or MUTANTS[name]
    preload_compilers()
    began = time.monotonic()
    arch = load_right(name).arch or WORKER.arch
    machine = Machine(replace(WORKER, arch=arch, sanitize=mutant.sanitize))
    operation = load(name).operation
    result = run_campaign(name, functools.partial(load, name), machine, how, operation=operation)
    seconds = time.monotonic() - began
    failure = result.failure
    killer = killed_by(result, load_right(name))
    shrunk = failure if how.shrink_seconds else None
    return Score(
        mutant=name,
        bug=mutant.bug,
        variant=mutant.variant,
        sanitized=mutant.sanitize,
        killed_by=killer,
        reason=within_repository(failure.first_finding.reason if failure else result.reason),
        examples=result.examples,
        seconds=seconds,
        tiles=shrunk.tiles if shrunk else None,
        peers=peers_on(shrunk.first_case, load(name), machine) if shrunk and killer and operation == PEERS_OF else {},
        first_case=failure.first_case.to_json() if failure else None,
        smallest_case=shrunk.case.to_json() if shrunk else None,
        digest=current_digest(name),
        date=datetime.date.today().isoformat(),
    )


def within_repository(text: str | None) -> str | None:
    """With the paths of its files as they are from its top: a score is kept, and read elsewhere."""
    return None if text is None else text.replace(f"{ROOT}/", "")


def killed_by(result: CampaignResult, right: Variant) -> str | None:
    """The kind of what was found first; None where nothing was, all was refused, or the patch is no program."""
    if result.failure is None:
        return None
    finding, case = result.failure.first_finding, result.failure.first_case
    if finding.kind in NOT_A_KERNEL and refusal_of(right, case.problem) is None:
        return None
    return finding.kind


def peers_on(case: Case, variant: Variant, machine: Machine) -> dict[str, str]:
    """What each rule says to the variant's O on this case."""
    if case.tile is not None:
        variant = with_tile(variant, parse_tile(case.tile))
    inputs = case.inputs()
    try:
        executor = EmulatorExecutor(machine.settings)
        got = executor.run(case.problem, make_plan(variant, case.problem), inputs).outputs["O"].astype(np.float64)
    except (KernelFault, PlanError):
        return dict.fromkeys(RULES, FAULT)
    answer = attention(case.problem, inputs)["O"]
    with np.errstate(invalid="ignore"):
        return {
            name: MISSED if accepts(case.problem, inputs, got, answer) else REJECTS for name, accepts in RULES.items()
        }
