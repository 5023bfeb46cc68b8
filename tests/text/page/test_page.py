from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest
from markupsafe import escape

from harness.text.page.page import render_page
from harness.text.page.section import Section
from harness.text.page.templates import environment, heat, identifier

NASTY = "</script><script>alert('&\"<!--')</script>"


def page(**changes) -> str:
    section = Section(
        "one", NASTY, "<p>one</p>", {"picture": {"name": NASTY}}, "document.title = 'set';", ".a { top: 0; }"
    )
    return render_page(NASTY, NASTY, [section, Section("two", "Two", "<p>two</p>", **changes)], [NASTY])


def test_nothing_that_a_user_names_becomes_markup():
    text = page()
    assert NASTY not in text and "<!--" not in text
    assert text.count("<script") == 2  # the data and the one script
    assert escape(NASTY) in text


def test_data_comes_back_as_it_was():
    data = re.search(r'<script type="application/json" id="picture-data">(.*?)</script>', page(), re.S)
    assert json.loads(data[1]) == {"name": NASTY}


@pytest.mark.parametrize("kind", ["style", "script"])
def test_the_policy_knows_the_style_sheet_and_the_script_and_nothing_else(kind):
    text = page()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    own = re.search(rf"<{kind}>(.*?)</{kind}>", text, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy and "default-src 'none'" in policy


def test_a_script_and_a_style_that_two_sections_share_stand_there_once():
    text = page(script="document.title = 'set';", style=".a { top: 0; }")
    assert text.count("document.title = 'set';") == 1 and text.count(".a { top: 0; }") == 1


def test_every_section_is_in_the_table_of_contents():
    assert re.findall(r'<li><a href="#(\w+)">', page()) == ["one", "two"]
    assert re.findall(r'<section id="(\w+)"', page()) == ["one", "two"]


def test_data_without_a_form_in_json_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        page(data={"x": float("nan")})


def test_no_attribute_that_the_policy_refuses_and_nothing_from_elsewhere():
    text = page()
    body = re.sub(r"<(style|script)\b.*?</\1>", "", text, flags=re.S)
    assert not re.search(r"\s(style|on\w+)=", body)
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)


def test_tables_name_their_rows_and_columns():
    html = (
        environment()
        .from_string(
            '{% import "macros.html" as m %}{% call m.table("Bytes & more", [("a",), ("b\nMiB", "number")]) %}'
            '<tr>{{ m.head("x") }}{{ m.number("1") }}</tr>{% endcall %}'
        )
        .render()
    )
    assert '<th scope="col" class="number">b<br>MiB</th>' in html and '<th scope="row">x</th>' in html
    assert "<caption" in html and "Bytes &amp; more" in html and 'tabindex="0"' in html


def test_shades_begin_where_there_is_something():
    assert [heat(share) for share in (None, 0.0, float("nan"), 1e-9, 0.5, 1.0, 7.0)] == [
        "", "", "", "warm-1", "warm-5", "warm-10", "warm-10",
    ]  # fmt: skip


def test_identifiers_are_plain_and_differ():
    names = ["a b", "a_b", "a-b", "a<b", "ä", "A.b"]
    assert len({identifier(name) for name in names}) == len(names)
    assert all(re.fullmatch(r"[\w.-]+", identifier(name), re.A) for name in names)
