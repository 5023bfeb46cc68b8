from __future__ import annotations

from counted_by_hand import SHARED, make

from harness.execution.traffic.counts import Count
from harness.execution.traffic.line_costs import line_costs
from harness.model.finding import Finding, Place


def test_lines_add_up_to_the_account():
    account = make(shared=(SHARED,))
    costs = {(cost.file, cost.line): cost for cost in line_costs(account)}
    assert sum(cost.sector_bytes for cost in costs.values()) == account.sector_bytes
    assert [*costs] == [("a.cu", 3), ("a.cu", 5), ("a.cu", 6), ("a.cu", 9), ("b.cu", 1), ("b.cu", 2)]
    q = costs["a.cu", 3]
    assert q.uses == ("Q load",) and q.count == Count(3, 150, 10, 6)
    assert q.sectors_per_request == (("Q", 10 / 3, 2.0),)


def test_local_memory_is_no_part_of_any_level():
    costs = {cost.line: cost for cost in line_costs(make()) if cost.file == "a.cu"}
    assert (
        costs[6].local_bytes == 512
        and costs[6].sector_bytes == 0
        and costs[6].sectors_per_request == (("local", 4.0, 4.0),)
    )


def test_bank_conflicts_are_unknown_where_nobody_counted():
    assert all(cost.wavefronts_per_request is None for cost in line_costs(make()))
    shared = next(cost for cost in line_costs(make(shared=(SHARED,))) if cost.line == 9)
    assert shared.wavefronts_per_request == 32.0 and shared.fewest_wavefronts_per_request == 1.0


def test_a_finding_stands_at_both_of_its_places_and_without_bytes():
    place = Place("c.cu", 4, (0, 0, 0), (1, 0, 0))
    race = Finding(kind="RAW race", message="m", place=place, other=Place("a.cu", 3, (0, 0, 0), (2, 0, 0)))
    costs = {(cost.file, cost.line): cost for cost in line_costs(make(), [race])}
    assert costs["c.cu", 4].findings == (race,) == costs["a.cu", 3].findings
    assert costs["a.cu", 5].findings == ()
    assert [cost.line for cost in line_costs(None, [race])] == [3, 4]
    same = Finding(kind="WAW race", message="m", place=place, other=place)
    assert line_costs(None, [same])[0].findings == (same,)
