"""The page in a real browser: every control, both themes, wide and narrow, the keyboard, paper, and no script."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import browser, open_page
from page_actions import change, column_of, focus, press, run

from harness.cli import main

SCREENS = [(width, dark) for width in (400, 800, 1200, 1600) for dark in (False, True)]


@pytest.fixture(scope="module")
def driver():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def path(driver, tmp_path_factory) -> Path:
    """A page; of a driver first, so that nobody compiles for a test that is skipped."""
    page = tmp_path_factory.mktemp("page") / "page.html"
    chosen = "fa1-cupy,fa2-cupy,fa2-numba,fa3-cupy"
    problem = ["--seq-len", "100", "--head-dim", "32", "--device", "emulator"]
    assert main(["report", "--output", str(page), "--variants", chosen, *problem]) == 0
    return page


@pytest.fixture
def page(driver, path):
    """Opened anew; at the end there must be nothing on the console."""
    open_page(driver, path)
    yield driver
    run(driver, "localStorage.clear()")
    assert driver.get_log("browser") == []


# What is there --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_it_fits_the_screen_and_complains_of_nothing(driver, path, width, dark):
    open_page(driver, path, width, dark)
    assert driver.get_log("browser") == []
    run(driver, "document.querySelectorAll('details').forEach(d => d.open = true)")
    assert run(driver, "return innerWidth") == width
    assert run(driver, "const r = document.documentElement; return r.scrollWidth === r.clientWidth")
    # Whatever is wider than the screen stands in a box that scrolls by itself.
    sticking_out = run(
        driver,
        "return [...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1"
        " && !e.closest('.scroll') && !e.closest('.unseen')).map(e => e.outerHTML.slice(0, 90))",
    )
    assert sticking_out == []
    anchors = run(driver, "return [...document.querySelectorAll('main > section')].map(s => s.id)")
    assert anchors == [
        "result", "ranking", "bytes", "roofline", "errors", "sources", "algorithm", "schedule",
    ]  # fmt: skip


CONTRASTS = """
const pen = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const rgba = (text) => {
  pen.clearRect(0, 0, 1, 1); pen.fillStyle = text; pen.fillRect(0, 0, 1, 1);
  return [...pen.getImageData(0, 0, 1, 1).data];
};
const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
function behind(element) {
  for (let e = element; e; e = e.parentElement) {
    const colour = rgba(getComputedStyle(e).backgroundColor);
    if (colour[3] === 255) return colour;
    if (colour[3] > 0) throw new Error('half transparent: ' + e.outerHTML.slice(0, 80));
  }
  return rgba('white');
}
const pairs = new Map();
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || element.closest('script, style, .unseen, .skip')) continue;
  if (!element.checkVisibility()) continue;
  const style = getComputedStyle(element);
  const front = element.closest('svg') ? style.fill : style.color;
  const [a, b] = [light(rgba(front)), light(behind(element))].sort((x, y) => y - x);
  const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
  const found = [(a + 0.05) / (b + 0.05), large ? 3 : 4.5, element.outerHTML.slice(0, 90)];
  pairs.set(`${front} on ${behind(element)}`, found);
}
return [...pairs].map(([name, rest]) => [name, ...rest]);
"""


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_has_contrast_enough(driver, path, dark):
    """WCAG 2.2, 1.4.3 (AA)."""
    open_page(driver, path, dark=dark)
    run(driver, "document.querySelectorAll('details').forEach(d => d.open = true)")
    pairs = run(driver, CONTRASTS)
    assert len(pairs) > 15  # shades of heat maps among them
    assert [pair for pair in pairs if not pair[1] >= pair[2]] == []


def test_every_shade_of_a_heat_map_can_be_written_on(page):
    rows = "".join(
        f'<span class="{colour}-{n}">text <i class="muted">more</i></span>'
        for colour in ("warm", "bad", "cool")
        for n in range(1, 11)
    )
    for theme in ("light", "dark"):
        change(page, "theme", theme)
        run(page, "const p = document.createElement('p'); p.innerHTML = arguments[0]; document.body.append(p)", rows)
        assert [pair for pair in run(page, CONTRASTS) if not pair[1] >= pair[2]] == []


def test_it_can_be_used_within_a_second(driver, path):
    def opened() -> dict[str, float]:
        open_page(driver, path)
        return run(driver, "return performance.getEntriesByType('navigation')[0].toJSON()")

    # The best of several: other processes may be at work here.
    timing = min((opened() for _ in range(5)), key=lambda timing: timing["domContentLoadedEventEnd"])
    assert 0 < timing["domInteractive"] <= timing["domContentLoadedEventEnd"] < 1000


# Controls -------------------------------------------------------------------------------------------------------------


def test_the_switch_of_themes_wins_over_the_system_and_is_remembered(page, path):
    background = "return getComputedStyle(document.body).backgroundColor"
    light = run(page, background)
    change(page, "theme", "dark")
    dark = run(page, background)
    assert dark != light
    open_page(page, path)
    assert run(page, background) == dark
    change(page, "theme", "")
    assert run(page, background) == light


def test_tables_sort_both_ways_with_the_mouse_and_the_keyboard(page):
    button = "#ranking th:nth-child(2) button"
    names = column_of(page, "#ranking table", 1)
    run(page, "document.querySelector(arguments[0]).click()", button)
    assert column_of(page, "#ranking table", 1) == sorted(names)
    focus(page, button)
    press(page, "ENTER")
    assert column_of(page, "#ranking table", 1) == sorted(names, reverse=True)
    assert run(page, "return document.querySelector('#ranking th:nth-child(2)').ariaSort") == "descending"
    focus(page, "#ranking th:nth-child(1) button")
    press(page, "SPACE")
    ranks = column_of(page, "#ranking table", 0)
    assert ranks == sorted(ranks, key=int)
    assert run(page, "return document.querySelectorAll('#ranking [aria-sort]').length") == 1


def test_numbers_sort_as_numbers(page):
    focus(page, "#bytes table th:nth-child(5) button")
    press(page, "ENTER")
    sizes = [float(text.split()[0]) for text in column_of(page, "#bytes table", 4)[:3]]
    assert sizes == sorted(sizes) and len(set(sizes)) > 1


def test_buffers_at_another_level_open_on_demand(page):
    details = "return document.querySelector('#bytes details').open"
    assert run(page, details) is False
    focus(page, "#bytes summary")
    press(page, "ENTER")
    assert run(page, details) is True
    assert "requested" in run(page, "return document.querySelector('#bytes summary').textContent")
    assert len(column_of(page, "#bytes details table", 0)) == 3


def test_a_variants_name_leads_to_its_source(page):
    details = "return document.getElementById('source-fa1-cupy').open"
    assert run(page, details) is False
    focus(page, "#ranking a[href='#source-fa1-cupy']")
    press(page, "ENTER")
    from selenium.webdriver.support.wait import WebDriverWait

    top = "return document.getElementById('source-fa1-cupy').getBoundingClientRect().top"
    WebDriverWait(page, 5).until(lambda driver: run(driver, details) and abs(run(driver, top)) < 300)


def test_sources_open_close_and_leave_out_what_costs_nothing(page):
    are_open = "return [...document.querySelectorAll('details.sources-of')].map(d => d.open)"
    focus(page, "#source-open")
    press(page, "ENTER")
    assert all(run(page, are_open))
    quiet = "return [...document.querySelectorAll('tr.quiet')].filter(r => r.checkVisibility()).length"
    assert run(page, quiet) > 50
    focus(page, "#source-costly")
    press(page, "SPACE")
    assert run(page, quiet) == 0
    assert run(page, "return [...document.querySelectorAll('.source tr:not(.quiet) td.code')].length") > 10
    press(page, "SPACE")
    focus(page, "#source-close")
    press(page, "SPACE")
    assert not any(run(page, are_open))
    focus(page, "details.sources-of summary")
    press(page, "ENTER")
    assert run(page, are_open)[0]


def test_the_costliest_line_of_a_source_is_in_sight(page):
    assert run(
        page,
        "const line = document.querySelector('details[open] tr.most').getBoundingClientRect();"
        "const box = document.querySelector('details[open] tr.most').closest('.scroll').getBoundingClientRect();"
        "return box.top <= line.top && line.bottom <= box.bottom",
    )


def test_a_picture_of_errors_says_what_a_cell_holds(page):
    figure = "return document.getElementById('error-figure').textContent"
    focus(page, "#error-maps canvas")
    first = run(page, figure)
    assert "rows 0 to 1, columns 0:" in first and "x budget" in first
    press(page, "ARROW_DOWN", "ARROW_DOWN", "ARROW_RIGHT", "ARROW_UP", "ARROW_LEFT", "ARROW_RIGHT")
    assert "rows 2 to 3, columns 1:" in run(page, figure)
    before = run(page, "return document.querySelector('#error-maps canvas').toDataURL()")
    change(page, "error-panel", "O, batch 0, head 1")
    assert run(page, figure) == ""
    assert run(page, "return document.querySelector('#error-maps canvas').toDataURL()") != before
    own = run(page, "return [...document.querySelectorAll('#error-maps canvas')].map(c => c.toDataURL())")
    change(page, "error-scale", "one")
    one = run(page, "return [...document.querySelectorAll('#error-maps canvas')].map(c => c.toDataURL())")
    assert sum(a != b for a, b in zip(own, one)) in range(1, len(own))  # all but the one with the largest error
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    ActionChains(page, duration=0).move_to_element(page.find_element(By.CSS_SELECTOR, "#error-maps canvas")).perform()
    assert "head 1" in run(page, figure)


def test_the_algorithm_is_folded_and_opens_with_the_keyboard(page):
    is_open = "return document.querySelector('#algorithm details').open"
    assert run(page, is_open) is False
    focus(page, "#algorithm summary")
    press(page, "ENTER")
    assert run(page, is_open) is True


def test_a_row_of_the_ranking_is_a_card_on_a_phone(driver, path):
    open_page(driver, path, 400)
    size = run(driver, "const e = document.querySelector('#ranking .scroll'); return [e.scrollWidth, e.clientWidth]")
    assert size[0] <= size[1]
    label = "return getComputedStyle(document.querySelector('#ranking td[data-label]'), '::before').content"
    assert run(driver, label) not in ("none", "normal")


def test_equal_lines_of_an_algorithm_stand_beside_each_other(page):
    change(page, "algorithm-0", "fa2-cupy")
    change(page, "algorithm-1", "fa2-numba")
    shown = (
        "return [...document.querySelectorAll('#algorithms > .algorithm:not([hidden])')].map(c => c.dataset.variant)"
    )
    assert sorted(run(page, shown)) == ["fa2-cupy", "fa2-numba"]
    tops = (
        "return Object.fromEntries([...document.querySelectorAll(`#algorithm-of-${arguments[0]} .step`)]"
        ".filter(s => s.dataset.number !== '' && s.dataset.number !== '7')"
        ".map(s => [s.querySelector('h4').firstChild.textContent.trim(), s.getBoundingClientRect().top]))"
    )
    cuda, numba = run(page, tops, "fa2-cupy"), run(page, tops, "fa2-numba")
    assert cuda == numba and len(cuda) > 8
    in_order = sorted(cuda, key=cuda.get)
    assert in_order.index("Line 4") < in_order.index("Line 8") < in_order.index("Line 12")
    left, right = (
        run(
            page,
            f"return document.getElementById('algorithm-of-{name}').querySelector('h3').getBoundingClientRect().left",
        )
        for name in ("fa2-cupy", "fa2-numba")
    )
    assert left < right


def test_repeated_lines_keep_both_sides_aligned(page):
    change(page, "algorithm-0", "fa2-cupy")
    run(page, "document.querySelector('#algorithm-of-fa2-numba [data-number=\"7\"]').remove()")
    change(page, "algorithm-1", "fa2-numba")
    tops = (
        "return [...document.querySelectorAll(`#algorithm-of-${arguments[0]} .step`)]"
        ".filter(s => s.dataset.number)"  # the rest outside of any line, which one of them has, is no step
        ".map(s => [s.dataset.number, s.getBoundingClientRect().top])"
    )
    cuda, numba = run(page, tops, "fa2-cupy"), run(page, tops, "fa2-numba")
    assert len({top for _, top in cuda}) == len(cuda) == len(numba) + 1
    assert [each for each in cuda if each[0] != "7"] == [each for each in numba if each[0] != "7"]


def test_two_algorithms_have_their_own_order(page):
    change(page, "algorithm-0", "fa1-cupy")
    change(page, "algorithm-1", "fa2-cupy")
    assert run(page, "return document.getElementById('algorithms').classList.contains('aligned')") is False
    tops = (
        "return [...document.querySelectorAll(`#algorithm-of-${arguments[0]} .step`)]"
        ".map(s => s.getBoundingClientRect().top)"
    )
    for name in ("fa1-cupy", "fa2-cupy"):
        assert run(page, tops, name) == sorted(run(page, tops, name))
    change(page, "algorithm-1", "fa1-cupy")  # one beside itself is one
    shown = "return document.querySelectorAll('#algorithms > .algorithm:not([hidden])').length"
    assert run(page, shown) == 1


def test_bars_have_one_scale_or_full_length(page):
    widths = (
        "return [...document.querySelectorAll('.bars dd svg')].map(bar => {"
        "const all = [...bar.children].map(piece => piece.getBoundingClientRect());"
        "return (all[all.length - 1].right - all[0].left) / bar.getBoundingClientRect().width; })"
    )
    change(page, "bars-scale", "one")
    scaled = run(page, widths)
    assert max(scaled) == pytest.approx(1, abs=0.01) and min(scaled) < 0.9
    change(page, "bars-scale", "own")
    assert run(page, widths) == pytest.approx([1] * len(scaled), abs=0.01)


def test_the_schedule_plays_steps_and_goes_back(page):
    said = "return [...document.querySelectorAll('.replay-step')].map(p => p.textContent)"
    before = run(page, said)
    focus(page, "#replay-forward")
    press(page, "ENTER")
    stepped = run(page, said)
    assert stepped != before
    focus(page, "#replay-back")
    press(page, "ENTER")
    assert run(page, said) == before
    change(page, "replay-speed", "4")
    change(page, "replay-left", "fa2-numba")
    change(page, "replay-right", "fa1-cupy")
    assert "fa2-numba" in run(page, "return document.getElementById('replay-left-side').textContent")
    focus(page, "#replay-play")
    press(page, "ENTER")
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(page, 5).until(lambda driver: run(driver, said) != before)
    press(page, "ENTER")
    focus(page, "#replay-position")
    press(page, "END")
    at_end = run(page, said)
    run(
        page, "const e = document.getElementById('replay-position'); e.value = 400; e.dispatchEvent(new Event('input'))"
    )
    totals = run(page, "return [...document.querySelectorAll('.replay-total')].map(p => p.textContent)")
    assert not any("-" in total for total in totals)
    focus(page, "#replay-first")
    press(page, "ENTER")
    assert run(page, said) != at_end
    focus(page, "#schedule summary")
    press(page, "ENTER")
    assert run(page, "return document.querySelector('#schedule details').open") is True


USED = {
    "theme", "bars-scale", "source-costly", "source-open", "source-close", "error-panel", "error-scale", "algorithm-0",
    "algorithm-1", "replay-left", "replay-right", "replay-first", "replay-back", "replay-play", "replay-forward",
    "replay-speed", "replay-position",
}  # fmt: skip
"""Controls that the tests above use, besides the heads of tables, sources' own summaries and pictures of errors."""


def test_every_control_is_used_by_a_test_above_and_has_a_name(page):
    controls = run(
        page,
        "return [...document.querySelectorAll('button, select, input, textarea')].filter(e => !e.closest('th'))"
        ".map(e => [e.id, (e.labels && e.labels.length ? e.labels[0].textContent : e.textContent).trim()])",
    )
    assert {control for control, _ in controls} == USED
    assert all(name for _, name in controls)
    elsewhere = run(
        page,
        "return [...document.querySelectorAll('summary')]"
        ".filter(e => !e.closest('#bytes, #sources, #schedule, #algorithm')).length"
        " + [...document.querySelectorAll('canvas[tabindex]')].filter(e => !e.closest('#error-maps')).length",
    )
    assert elsewhere == 0


# Keyboard, paper, no script -------------------------------------------------------------------------------------------


def test_the_tab_key_goes_through_the_page_in_its_order(page):
    reach = (
        "return [...document.querySelectorAll('a[href], button, select, input, summary, [tabindex=\"0\"]')]"
        ".filter(e => e.checkVisibility() && !e.disabled).length"
    )
    expected = run(page, reach)
    place = (
        "const all = [...document.querySelectorAll('*')]; const at = document.activeElement;"
        "const style = getComputedStyle(at);"
        "return [all.indexOf(at), at === document.body, style.outlineStyle !== 'none']"
    )
    run(page, "document.activeElement.blur()")
    places = []
    for _ in range(expected + 5):
        press(page, "TAB")
        index, is_body, visible = run(page, place)
        if is_body or index in places:
            break
        assert visible, index
        places.append(index)
    assert len(places) == expected and places == sorted(places)


def test_the_first_tab_offers_to_skip_to_the_content(page):
    press(page, "TAB")
    assert run(page, "return document.activeElement.getBoundingClientRect().left") >= 0
    press(page, "ENTER")
    assert run(page, "return document.activeElement.id") == "content"


def test_on_paper_there_are_no_controls_and_it_is_light(page):
    change(page, "theme", "dark")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    a4 = {"width": 718, "height": 1000, "deviceScaleFactor": 1, "mobile": False}  # less margins, at 96 dots per inch
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", a4)
    visible = "return [...document.querySelectorAll('nav, .controls')].filter(e => e.checkVisibility()).length"
    assert run(page, "return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert run(page, visible) == 0
    assert run(page, "return document.querySelector('#ranking th:nth-child(2)').innerText.trim()") == "variant"
    assert run(page, "return document.documentElement.scrollWidth") <= 718
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    change(page, "theme", "")


def test_without_scripts_tables_and_sources_are_shown(driver, path):
    open_page(driver, path, script=False)
    try:
        tree = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    finally:
        open_page(driver, path)
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node["ignored"]]
    assert ("table", "Ranking of all variants") in named
    assert any(role == "table" and "kernel.cu" in name for role, name in named)
    assert not any(role == "combobox" and name.startswith(("Theme", "Picture", "Left")) for role, name in named)
