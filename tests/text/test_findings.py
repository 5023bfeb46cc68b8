"""Findings of one cause are told as one."""

from __future__ import annotations

from dataclasses import replace

from harness.model.finding import Finding, Place, findings_by_cause
from harness.text.findings import finding_text, findings_in_words


def at(line: int) -> Place:
    return Place("folder/kernel.cu", line, (0, 0, 0), (0, 0, 0))


RACE = Finding(
    kind="RAW race", message="load races with store", kernel="k", place=at(28), other=at(23), target="shared memory s"
)
ANOTHER = replace(RACE, kind="WAR race", message="store races with load", place=at(23), other=at(32))
UNWRITTEN = replace(RACE, kind="uninitialised read", message="nobody has written", other=None)
ELSEWHERE = replace(RACE, target="shared memory t", message="elsewhere")
NOT_WRITTEN = Finding(kind="output not written", message="O is not written", kernel="k", target="buffer O")


def test_races_and_unwritten_reads_of_one_array_have_one_cause():
    found = findings_by_cause([UNWRITTEN, RACE, ANOTHER, ELSEWHERE, NOT_WRITTEN])
    assert found == [(RACE, ANOTHER, UNWRITTEN), (ELSEWHERE,), (NOT_WRITTEN,)]


def test_reads_of_unwritten_memory_without_a_race_are_findings_of_their_own():
    second = replace(UNWRITTEN, place=at(40))
    assert findings_by_cause([UNWRITTEN, second]) == [(UNWRITTEN,), (second,)]


def test_at_one_pair_of_lines_the_read_after_the_write_comes_first():
    swapped = replace(RACE, kind="WAR race", place=RACE.other, other=RACE.place)
    assert findings_by_cause([UNWRITTEN, ANOTHER, swapped, RACE]) == [(ANOTHER, RACE, swapped, UNWRITTEN)]


def test_a_race_comes_before_reads_of_other_unwritten_memory_but_not_before_other_findings():
    elsewhere = replace(UNWRITTEN, target="shared memory u")
    assert findings_by_cause([elsewhere, NOT_WRITTEN, RACE]) == [(NOT_WRITTEN,), (RACE,), (elsewhere,)]
    assert findings_by_cause([RACE, elsewhere, NOT_WRITTEN]) == [(RACE,), (elsewhere,), (NOT_WRITTEN,)]


def test_places_of_one_cause_are_listed_behind_its_message():
    (text,) = findings_in_words([RACE, ANOTHER, UNWRITTEN], None)
    assert text == (
        "RAW race: load races with store\n    From the same cause: WAR race at kernel.cu:23 with kernel.cu:32, "
        "uninitialised read at kernel.cu:28"
    )


def test_a_finding_that_is_the_reason_is_not_repeated_unless_it_has_more_places():
    assert list(findings_in_words([RACE], f"RAW race: {RACE.message}")) == []
    assert len(list(findings_in_words([RACE, ANOTHER], f"RAW race: {RACE.message}"))) == 1


def test_of_many_causes_five_are_shown():
    many = [replace(NOT_WRITTEN, message=f"number {i}") for i in range(8)]
    assert list(findings_in_words(many, None))[-1] == "and 3 more findings; --format json lists all"
    assert list(findings_in_words(many[:6], None))[-1] == "and 1 more finding; --format json lists all"
    assert [text[-8:] for text in findings_in_words(many, None, most=None)] == [f"number {i}" for i in range(8)]


def test_a_count_says_how_often_an_access_was_found_not_how_many_elements_are_missing():
    assert finding_text(replace(RACE, count=32)) == "RAW race (32 times): load races with store"
    assert finding_text(replace(NOT_WRITTEN, count=3)) == "output not written: O is not written"
