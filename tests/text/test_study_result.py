"""A study's result as a notebook shows it: HTML made of the same report, and nothing in it unescaped."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.support.errors import UsageError
from harness.support.version import VERSION
from harness.text.report import Report, Table, Title, Verbatim
from harness.text.study_result import Picture, StudyResult, inline_html

REPORT = Report(
    paragraphs=lambda: [
        "a <b> & c\nd",
        "",
        Title("of <i>"),
        Table(["name", "re-\nquests"], [["x<y", "1"], ["&", "22"]], [False, True]),
        Verbatim("  a\n<b>"),
    ],
    notes=lambda: ["a note <i>\nthat goes on\n  and indented", ""],
    records=lambda: ([{"name": "x", "bytes": None, "more": 1}], ("name", "bytes", "missing")),
    document=lambda: {"rows": []},
)
RESULT = StudyResult((1, 2), REPORT, passed=True, pictures={"bytes": lambda suffix: suffix.encode()})


class Reader(HTMLParser):
    """Which elements there are, and whether each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_well_formed_and_escaped() -> None:
    reader = Reader()
    reader.feed(inline_html(REPORT))
    assert reader.open == [] and "b" not in reader.seen and "i" not in reader.seen
    assert reader.seen.count("tr") == 3 and reader.seen.count("td") == 4 and reader.seen.count("pre") == 1
    for text in ("a <b> & c", "of <i>", "x<y", "re-quests", "  a\n<b>", "a note <i> that goes on  and indented"):
        assert text in reader.text
    assert "text-align:right" in inline_html(REPORT).split("<td")[2]  # numbers are flush right


def test_rows_have_the_columns_of_csv() -> None:
    assert RESULT.rows == [{"name": "x", "bytes": None, "missing": None}]
    assert RESULT.to_dict() == {"rows": [], "version": VERSION} and RESULT.result == (1, 2)
    assert repr(RESULT) == RESULT.render("table").rstrip("\n")


def test_pictures_are_drawn_when_they_are_asked_for(tmp_path: Path) -> None:
    picture = RESULT.picture()
    assert picture._repr_svg_() == ".svg" and picture._repr_png_() is None
    assert RESULT.picture("bytes", ".png")._repr_png_() == b".png"
    picture.save(tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text() == ".svg"
    picture.save(tmp_path / "a.PNG")
    assert (tmp_path / "a.PNG").read_text() == ".png"
    for bad, words in ((picture, "a picture is .png or .svg, not '.pdf'"), (Picture(b"", ".svg"), "only as .svg")):
        with pytest.raises(UsageError, match=words):
            bad.save(tmp_path / ("a.pdf" if bad is picture else "b.png"))
    assert not (tmp_path / "a.pdf").exists() and not (tmp_path / "b.png").exists()
    with pytest.raises(UsageError, match="there is no folder"):
        picture.save(tmp_path / "missing" / "a.svg")
    with pytest.raises(UsageError, match="there is no picture of this"):
        StudyResult(0, REPORT, passed=True).picture()
    assert "4 bytes" in repr(Picture(b"1234", ".svg"))
