"""Attributes the difference between two predicted times to causes, whose parts add up to it."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace

from harness.execution.traffic.counts import LOCAL
from harness.studies.why import causes
from harness.studies.why.causes import Cause
from harness.studies.why.decisions import Decision, decision_between
from harness.studies.why.figures import figure
from harness.studies.why.predicted_time import PredictedTime
from harness.studies.why.profile import Profile
from harness.studies.why.shares import PLACELESS, RESOURCES, totals
from harness.support.pipe_rates import LAUNCH_SECONDS, clock_hz

NOTHING_SECONDS = 1e-12
"""Smaller differences are rounding errors of equal sums."""
UNEVENNESS = ((causes.TAIL, "tail"), (causes.IMBALANCE, "imbalance"), (causes.FEW_WARPS, "vacancy"))
"""The causes of the factors of `LaunchTime` by which a launch takes longer than its busy cycles."""


@dataclass(frozen=True)
class Attributed:
    """The contribution of one cause to the difference."""

    cause: Cause
    seconds: float
    """By how much the cause makes the first variant slower, as predicted; negative if it makes it faster."""
    where: tuple[str, int]
    """Source file and line with the largest cost: of the first variant, or of the second one if it costs more there."""
    buffer: str = ""
    """The buffer with most of the cost, if any."""
    includes: tuple[Cause, ...] = ()
    """Other causes that follow from this one and are included in it."""


@dataclass
class _Account:
    """Accumulates seconds by cause and by place."""

    seconds: dict[Cause, float]
    places: dict[Cause, dict[tuple[tuple[str, int], str], float]]

    def add(self, cause: Cause, seconds: float, where: tuple[str, int] = PLACELESS, buffer: str = "") -> None:
        """Add seconds to a cause and a place."""
        self.seconds[cause] += seconds
        self.places[cause][where, buffer] += seconds


def _new_account() -> _Account:
    return _Account(defaultdict(float), defaultdict(lambda: defaultdict(float)))


def attribute(slow: Profile, fast: Profile | None, a: PredictedTime, b: PredictedTime) -> tuple[Attributed, ...]:
    """The causes of `a.seconds - b.seconds`, the largest cost first. `fast` is None if `b` is a roofline.

    Busy cycles: with t the cycles of a resource and T those of all, sum(t_a^2 - t_b^2) = T_a^2 - T_b^2, so a share of
    s_a and s_b cycles contributes (t_a + t_b) / (T_a + T_b) x (s_a - s_b). No cause costs more than the part of `a`
    that it makes up, nor saves more than its part of `b`.
    """
    account = _new_account()
    _busy(account, a, b)
    _stalls(account, a, b)
    splitting = [sum(kernel.splitting for kernel in time.kernels) / clock_hz(time.gpu) for time in (a, b)]
    account.add(causes.LAUNCHES, splitting[0] - splitting[1] + LAUNCH_SECONDS * (a.launches - b.launches))
    if fast is not None and _warps_differ_more((slow, a), (fast, b)):
        account.add(causes.FEW_WARPS, account.seconds.pop(causes.DEPENDENT, 0.0))
    found = [_attributed(account, cause) for cause in account.seconds]
    if fast is not None:
        for one, other, sign in ((slow, fast, 1), (fast, slow, -1)):
            decision = decision_between(one, other)
            if decision is not None and figure(decision.cause, slow, a) != figure(decision.cause, fast, b):
                explained = _explained(decision, (one, a if one is slow else b), (other, b if one is slow else a))
                found = _merged(found, decision.cause, explained, sign)
                break
    there = [each for each in found if abs(each.seconds) > NOTHING_SECONDS]
    return tuple(sorted(there, key=lambda each: -each.seconds))


def _warps_differ_more(*both: tuple[Profile, PredictedTime]) -> bool:
    """Whether issue slots are empty because of the number of warps rather than of longer dependency chains."""
    warps, chains = ([figure(cause, *each) or 1 for each in both] for cause in (causes.FEW_WARPS, causes.DEPENDENT))
    return abs(math.log(warps[0] / warps[1])) > abs(math.log(chains[0] / chains[1]))


def _attributed(account: _Account, cause: Cause) -> Attributed:
    seconds = account.seconds[cause]
    sign = 1 if seconds >= 0 else -1
    by_line: dict[tuple[str, int], float] = defaultdict(float)
    by_buffer: dict[str, float] = defaultdict(float)
    for (where, buffer), part in account.places[cause].items():
        by_line[where] += sign * part
        by_buffer[buffer] += sign * part
    where = max((place for place in by_line if place != PLACELESS), key=lambda place: by_line[place], default=PLACELESS)
    buffer = max(by_buffer, key=lambda name: by_buffer[name], default="")
    return Attributed(cause, seconds, where if by_line.get(where, 0) > 0 else PLACELESS, buffer)


def _explained(
    decision: Decision, one: tuple[Profile, PredictedTime], other: tuple[Profile, PredictedTime]
) -> dict[Cause, float]:
    """The share of each effect, from 0 to 1, that the decision alone explains.

    Twice the reads, or twice the steps, explain twice the effect. The rest of the effect has other causes.
    """
    if decision.growth is None:
        return dict.fromkeys(decision.effects, 1.0)
    growth = decision.growth(one[0], other[0])
    shares = {}
    for effect in decision.effects:
        more, less = (figure(effect, *each) or 0.0 for each in (one, other))
        shares[effect] = min(1.0, less * (growth - 1) / (more - less)) if more > less else 1.0
    return shares


def _merged(found: list[Attributed], cause: Cause, explained: dict[Cause, float], sign: int) -> list[Attributed]:
    """Merge the explained shares of effects of one decision into one line, if their sum has the decision's sign."""
    inside = [replace(each, seconds=each.seconds * explained[each.cause]) for each in found if each.cause in explained]
    inside = [each for each in inside if each.seconds]
    most = max(inside, key=lambda each: sign * each.seconds, default=None)
    if most is None:
        return found
    names = tuple(each.cause for each in sorted(inside, key=lambda each: -abs(each.seconds)))
    whole = replace(most, cause=cause, seconds=sum(each.seconds for each in inside), includes=names)
    if whole.seconds * sign < 0:
        return found
    rest = (replace(each, seconds=each.seconds * (1 - explained.get(each.cause, 0.0))) for each in found)
    return [*rest, whole]


def _busy(account: _Account, a: PredictedTime, b: PredictedTime) -> None:
    """Attribute busy cycles, and the unevenness of multiprocessors, which multiplies them.

    The cycles that only one variant spends count with the mean unevenness of both, or with that variant's own where
    this is less: removing them saves no more. The difference in unevenness counts for the cycles that both spend, and
    for half of those of the less even variant.
    """
    shares = (a.shares, b.shares)
    cycles = [totals(each) for each in shares]
    both = a.busy_cycles + b.busy_cycles
    weight = {
        resource: (cycles[0][resource] + cycles[1][resource]) / both / clock_hz(a.gpu) if both else 0.0
        for resource in RESOURCES
    }
    even = _new_account()
    for sign, each in zip((1, -1), shares, strict=True):
        for share in each:
            even.add(share.cause, sign * weight[share.resource] * share.cycles, share.where, share.buffer)
    more = sum(seconds for seconds in even.seconds.values() if seconds > 0)
    common = a.busy_cycles / clock_hz(a.gpu) - more
    evenness_a, evenness_b = (1 + sum(time.weighted(factor) for _, factor in UNEVENNESS) for time in (a, b))
    mean = (evenness_a + evenness_b) / 2
    for cause, parts in even.places.items():
        scale = min(mean, evenness_a if even.seconds[cause] > 0 else evenness_b)
        for (where, buffer), seconds in parts.items():
            account.add(cause, scale * seconds, where, buffer)
    uneven_only = more if evenness_a > evenness_b else b.busy_cycles / clock_hz(a.gpu) - common
    for cause, factor in UNEVENNESS:
        account.add(cause, (common + uneven_only / 2) * (a.weighted(factor) - b.weighted(factor)))


def _stalls(account: _Account, a: PredictedTime, b: PredictedTime) -> None:
    """Attribute stalls. With as many warps hiding each other as in the kernel that has most, stalls are latency.

    The rest is due to few warps.
    """
    seconds = clock_hz(a.gpu)
    most = max((kernel.stalls.together for time in (a, b) for kernel in time.kernels), default=1.0)
    for time, sign in ((a, 1), (b, -1)):
        for kernel in time.kernels:
            stalls = kernel.stalls
            there, hidden = (stalls.cycles(count) / seconds for count in (None, most))
            local = hidden * stalls.local_share
            account.add(causes.LATENCY, sign * (hidden - local), stalls.where)
            account.add(causes.LOCAL_MEMORY, sign * local, stalls.local_where, LOCAL)
            account.add(causes.FEW_WARPS, sign * (there - hidden))
