#!/usr/bin/env python3
"""Kill matrix: every mutant of tests/mutants against its campaign, beside what the peers' acceptance rules would say.

Mutants of the harness itself have no campaign: they are held against its own tests.

What a mutant came to is kept in tests/mutants/scores.jsonl and taken from there as long as the texts that it is made of
are the same, so that a run may be ended and taken up again, on another machine, too.

    .venv/bin/python scripts/mutation_score.py                                     # all of them
    .venv/bin/python scripts/mutation_score.py --mutants 'fa2-cupy~*' --workers 4 --format json
    .venv/bin/python scripts/mutation_score.py --workers tcp://10.0.0.1:8786       # the workers of a Dask cluster
    .venv/bin/python scripts/mutation_score.py --verdicts --workers 16             # do they all die still?

Exit status 1 where a mutant survives, 2 where the call was wrong, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness.execution.cluster.cluster_client import ClusterClient  # noqa: E402
from harness.options.standard_streams import complain  # noqa: E402
from harness.options.workers import parse_workers, require_distributed  # noqa: E402
from harness.studies.fuzz.finding import WRONG_ANSWER  # noqa: E402
from harness.studies.fuzz.settings import DEFAULT_EXAMPLES, CampaignSettings  # noqa: E402
from harness.support.errors import SandboxError, UsageError  # noqa: E402
from harness.support.file_replacement import replace_files, require_writable  # noqa: E402
from harness.support.progress import progress_bar  # noqa: E402
from harness.text.tables import table  # noqa: E402
from tests.mutants.catalogue import EQUIVALENT, FAMILIES, MUTANTS  # noqa: E402
from tests.mutants.harness_mutants import HARNESS_MUTANTS, HarnessScore, harness_score  # noqa: E402
from tests.mutants.outside import OUTSIDE_MUTANTS  # noqa: E402
from tests.mutants.peers import RULES  # noqa: E402
from tests.mutants.scoring import MISSED, Score, current_digest, score  # noqa: E402

SCORES = ROOT / "tests" / "mutants" / "scores.jsonl"
HEADERS = ("bug", "variant", "killed by", "examples", "seconds", "tiles\nq x kv", *RULES)
RIGHT = (False, False, False, True, True, True, *(False for _ in RULES))
INTRODUCTION = """# Mutation score

A mutant is a correct variant with one planted bug: a small patch of its CUDA or Numba code (`tests/mutants/*.py`, one
file per family). The families "Written outside" are bugs in kernels whose author knew the README and the page on
variants, but not the fuzzer (`tests/mutants/outside.py`). A campaign with the default settings has to find each bug
within {examples} examples.

This page summarizes `scores.jsonl`: {measured} of {all} mutants, in campaigns from {first_date} to {last_date}.
Regenerate it with `scripts/mutation_score.py --kept --format markdown --output tests/mutants/README.md`;
`--format table` lists every mutant.

- *median*, *most*: number of examples up to the one that killed the mutant.
- *allclose*, *flash-attention*, *xformers*, *triton*: number of killed mutants that the acceptance rules of these
  projects' own tests would accept on the same case (`tests/mutants/peers.py`). The rules check neither the log-sum-exp
  nor races. The numbers do not rate those test suites, which draw other inputs: a campaign often kills a mutant with
  values around 1e-38, where any fixed tolerance accepts every result.
"""
FAMILY_HEADERS = ("family", "mutants", "killed", "median", "most", *RULES)
OF_HARNESS = {mutant.name for mutant in HARNESS_MUTANTS}
SHRINK_SECONDS = 5.0
"""Most need two. What kills a mutant is known before that, and how small it may get is for people to read."""
LONG_SECONDS = 45.0
"""Seconds from which a campaign counts as long; a few take several minutes."""
UNKNOWN = "-"
SURVIVES = "SURVIVES"
AnyScore = Score | HarnessScore


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    try:
        if arguments.output is not None:
            require_writable(arguments.output)
        known = (*MUTANTS, *OUTSIDE_MUTANTS, *(mutant.name for mutant in HARNESS_MUTANTS))
        names = [name for name in known if any(fnmatch.fnmatch(name, glob) for glob in arguments.mutants)]
        if not names:
            raise UsageError(f"no mutant is called {' or '.join(arguments.mutants)}; 'fa2-cupy~*' are some")
        if arguments.examples < 1:
            raise UsageError("--examples has to be at least 1")
        workers = parse_workers(arguments.workers)
        if not arguments.kept:
            require_distributed()
        shrink_seconds = 0.0 if arguments.verdicts else SHRINK_SECONDS
        how = CampaignSettings(examples=arguments.examples, shrink_seconds=shrink_seconds)
        scores = run(names, workers, how, arguments.scores, arguments.kept, arguments.verdicts)
    except SandboxError as error:
        print(f"mutation_score: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mutation_score: interrupted; what is scored is kept, and the same command goes on", file=sys.stderr)
        return 130
    text = RENDERERS[arguments.format](scores)
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        replace_files({arguments.output: text.encode()})
    return 0 if all(each.killed for each in scores) else 1


def run(
    names: Sequence[str],
    workers: int | str,
    how: CampaignSettings,
    kept: Path,
    only_kept: bool = False,
    verdicts: bool = False,
) -> list[AnyScore]:
    """The scores of these mutants, in their order. What is in the file `kept` is taken, the rest is added to it.

    Scores of other texts than those of now are not taken, and those of mutants that there are no more leave the file.
    With `only_kept` nothing is run, and mutants that are not in the file are left out. With `verdicts` all are run, and
    the file says no more than which of them take long.
    """
    scores = {} if verdicts else _kept_scores(kept)
    if only_kept:
        names = [name for name in names if name in scores]
    waiting = in_order_of_work([name for name in names if name not in scores], _seconds(kept))
    if waiting:
        with ClusterClient(workers, complain) as cluster, progress_bar(len(names)) as progress:
            for name, result in cluster.map_unordered(score_of, {name: (name, how) for name in waiting}):
                if isinstance(result, Exception):
                    raise result
                scores[name] = result
                if isinstance(result, Score) and not verdicts:
                    with kept.open("a") as file:
                        file.write(_kept_line(result))
                progress.step(f"{sum(s.killed for s in scores.values())} of {len(scores)} killed, {result.mutant}")
    if not verdicts:
        ordered = sorted((each for each in scores.values() if isinstance(each, Score)), key=lambda each: each.mutant)
        replace_files({kept: "".join(map(_kept_line, ordered)).encode()})
    return [scores[name] for name in names]


def in_order_of_work(names: Sequence[str], seconds: Mapping[str, float]) -> list[str]:
    """The long ones first, so that none of them is begun last; of the others, mutants of one kernel together.

    Those find in the cache what the mistake left as it was. `seconds`: what each took when it ran last, of any text.
    """
    usual = statistics.median(seconds.values()) if seconds else 0.0

    def place(name: str) -> tuple[bool, str, float]:
        took = LONG_SECONDS if name in OF_HARNESS else seconds.get(name, usual)
        return took < LONG_SECONDS, name.partition("~")[0] if took < LONG_SECONDS else "", -took

    return sorted(names, key=place)


def score_of(campaign: tuple[str, CampaignSettings]) -> AnyScore:
    """In a worker."""
    name, how = campaign
    return harness_score(name) if name in OF_HARNESS else score(name, how)


def _seconds(path: Path) -> dict[str, float]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {fields["mutant"]: fields["seconds"] for fields in map(json.loads, lines)}


def _kept_line(score: Score) -> str:
    """A line of the file of scores: what is shown of a mutant later, so the reason only where it survives."""
    left_out = {"first_case", "smallest_case", *(("reason",) if score.killed else ())}
    fields = {key: value for key, value in dataclasses.asdict(score).items() if key not in left_out}
    return json.dumps(fields | {"seconds": round(score.seconds, 1)}) + "\n"


def _kept_scores(path: Path) -> dict[str, AnyScore]:
    """Those that are still of what there is."""
    scores: dict[str, AnyScore] = {}
    if not path.exists():
        return scores
    for line in path.read_text().splitlines():
        # JSON has lists for tuples.
        fields = {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(line).items()}
        name = fields["mutant"]
        if name in (MUTANTS | OUTSIDE_MUTANTS) and fields["digest"] == current_digest(name):
            scores[name] = Score(**fields)
    return scores


def _parted(scores: Sequence[AnyScore]) -> tuple[list[Score], list[HarnessScore]]:
    return [s for s in scores if isinstance(s, Score)], [s for s in scores if isinstance(s, HarnessScore)]


def summary(scores: Sequence[AnyScore]) -> str:
    """The figures in sentences."""
    of_variants, of_harness = _parted(scores)
    lines = [_summary(of_variants)] if of_variants else []
    if of_harness:
        killed = sum(each.killed for each in of_harness)
        lines.append(f"Of the harness itself: {killed} of {len(of_harness)} mutants killed by its tests.")
    return "\n".join(lines)


def _summary(scores: Sequence[Score]) -> str:
    killed = [each for each in scores if each.killed]
    lines = [f"{len(killed)} of {len(scores)} mutants killed, of {len({s.bug for s in scores})} bugs."]
    if killed:
        kinds = Counter(each.killed_by for each in killed).most_common()
        lines.append("Killed by: " + ", ".join(f"{kind} {count}" for kind, count in kinds) + ".")
        for what, values in (
            ("Examples", [s.examples for s in killed]),
            ("Seconds", [s.seconds for s in killed]),
        ):
            lines.append(f"{what}: median {statistics.median(values):.3g}, largest {max(values):.3g}.")
        if any(s.tiles for s in killed):
            large = [s for s in killed if s.tiles is not None and max(s.tiles) > 2]
            lines.append(f"Shrunk to more than two tiles one way: {len(large)}." + _names(large))
        for what, some in (
            ("all that were killed", killed),
            ("those killed by a wrong O", [s for s in killed if s.killed_by == WRONG_ANSWER]),
        ):
            if not any(each.peers for each in killed):
                continue  # nothing that their rules are about
            judged = [each for each in some if each.peers]
            missed = (f"{rule} {sum(each.peers[rule] == MISSED for each in judged)}" for rule in RULES)
            lines.append(
                f"Missed by the peers' rules on the very case, of {what} ({len(judged)}): {', '.join(missed)}."
            )
    survivors = [each for each in scores if not each.killed]
    lines.append(f"Survivors: {len(survivors)}." + _names(survivors))
    return "\n".join(lines)


def _names(scores: Sequence[Score]) -> str:
    return "" if not scores else " " + ", ".join(each.mutant for each in scores)


def _family_cells(title: str, scores: Sequence[Score]) -> tuple[str, ...]:
    """A row of the table of families."""
    killed = [each for each in scores if each.killed]
    examples = [each.examples for each in killed] or [0]
    accepted = (sum(each.peers.get(rule) == MISSED for each in killed) for rule in RULES)
    figures = (len(scores), len(killed), round(statistics.median(examples)), max(examples), *accepted)
    return (title, *map(str, figures))


def _harness_table(scores: Sequence[HarnessScore], markdown: bool = True) -> str:
    cells = [(each.bug, ", ".join(each.failing) or SURVIVES) for each in scores]
    return table(("bug of the harness", "killed by the tests"), cells, (False, False), markdown)


def _cells(each: Score) -> tuple[str, ...]:
    killed_by = each.killed_by or SURVIVES
    return (
        each.bug,
        each.variant,
        killed_by + (" (sanitizer on)" if each.sanitized else ""),
        str(each.examples),
        f"{each.seconds:.1f}",
        UNKNOWN if each.tiles is None else "{} x {}".format(*each.tiles),
        *(each.peers.get(rule, UNKNOWN) for rule in RULES),
    )


def _plain(scores: Sequence[AnyScore]) -> str:
    of_variants, of_harness = _parted(scores)
    tables = ([table(HEADERS, [_cells(each) for each in of_variants], RIGHT)] if of_variants else []) + (
        [_harness_table(of_harness, markdown=False)] if of_harness else []
    )
    return "\n\n".join([*tables, summary(scores)]) + "\n"


def _groups() -> dict[str, set[str]]:
    """Title -> names: by family, and by style what was written by somebody who did not know the fuzzer."""
    groups = {family.capitalize(): {mutant.name for mutant in mutants} for family, mutants in FAMILIES.items()}
    for mutant in OUTSIDE_MUTANTS.values():
        groups.setdefault(f"Written outside: {mutant.style}", set()).add(mutant.name)
    return groups


def _markdown(scores: Sequence[AnyScore]) -> str:
    of_variants, of_harness = _parted(scores)
    facts = {
        "examples": DEFAULT_EXAMPLES,
        "shrink_seconds": SHRINK_SECONDS,
        "first_date": min((each.date for each in of_variants), default=UNKNOWN),
        "last_date": max((each.date for each in of_variants), default=UNKNOWN),
        "measured": len(of_variants),
        "all": len(MUTANTS) + len(OUTSIDE_MUTANTS),
    }
    parts = [INTRODUCTION.format(**facts).rstrip(), "\n".join(f"- {line}" for line in summary(scores).splitlines())]
    families = [
        _family_cells(title, members)
        for title, names in _groups().items()
        if (members := [each for each in of_variants if each.mutant in names])
    ]
    if families:
        parts += ["## Families", table(FAMILY_HEADERS, families, (False, *[True] * (len(FAMILY_HEADERS) - 1)), True)]
    if of_harness:
        parts += ["## The harness itself", _harness_table(of_harness)]
    survivors = [each for each in of_variants if not each.killed]
    if survivors:
        parts += ["## Survivors", "\n".join(f"- `{each.mutant}`: {_why_it_survives(each)}" for each in survivors)]
    parts += ["## Not counted", "\n".join(f"- {bug}: {reason}." for bug, reason in EQUIVALENT.items())]
    return "\n\n".join(parts) + "\n"


def _why_it_survives(each: Score) -> str:
    outside = OUTSIDE_MUTANTS.get(each.mutant)
    shows_at = "" if outside is None else f"; it shows at `compare {outside.shows_at}`"
    return f"{each.reason or 'passed'}{shows_at}"


def _json(scores: Sequence[AnyScore]) -> str:
    return json.dumps([dataclasses.asdict(each) for each in scores], indent=1) + "\n"


RENDERERS = {"table": _plain, "markdown": _markdown, "json": _json}


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--mutants",
        action="append",
        metavar="GLOB",
        help="names, or shell patterns such as 'fa2-cupy~*' (default: all)",
    )
    parser.add_argument(
        "--workers",
        default="2",
        metavar="N|ADDRESS",
        help="campaigns at a time, in processes of this machine, or the workers of the Dask scheduler at this address "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--examples", type=int, default=DEFAULT_EXAMPLES, metavar="N", help="cases per campaign (default: %(default)s)"
    )
    parser.add_argument(
        "--scores",
        type=Path,
        default=SCORES,
        metavar="FILE",
        help="JSON lines: what is there of the same texts is not run again, the rest is added (default: %(default)s)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--kept", action="store_true", help="run nothing, only show what is in that file")
    which.add_argument(
        "--verdicts",
        action="store_true",
        help="run all of them anew, and only as far as it is known who is killed: nothing is shrunk, nothing kept",
    )
    parser.add_argument("--format", choices=tuple(RENDERERS), default="table", help="(default: %(default)s)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there instead of to standard output")
    arguments = parser.parse_args(words)
    arguments.mutants = arguments.mutants or ["*"]
    return arguments


if __name__ == "__main__":
    sys.exit(main())
