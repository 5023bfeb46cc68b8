"""What tests of the page do in a browser as a user would, and what they ask it."""

from __future__ import annotations


def run(driver, script: str, *arguments):
    return driver.execute_script(script, *arguments)


def change(driver, control: str, value: str) -> None:
    """Choose in a select with the keyboard's own event."""
    run(
        driver,
        "const e = document.getElementById(arguments[0]); e.focus(); e.value = arguments[1];"
        "e.dispatchEvent(new Event('input', {bubbles: true})); e.dispatchEvent(new Event('change', {bubbles: true}));",
        control,
        value,
    )
    assert run(driver, "return document.getElementById(arguments[0]).value", control) == value


def press(driver, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    actions = ActionChains(driver, duration=0)
    for key in keys:
        actions.send_keys(getattr(Keys, key, key))
    actions.perform()


def focus(driver, selector: str) -> None:
    run(driver, "document.querySelector(arguments[0]).focus()", selector)


def column_of(driver, table: str, column: int) -> list[str]:
    script = (
        "return [...document.querySelectorAll(`${arguments[0]} tbody tr`)].map(r => r.cells[arguments[1]].innerText)"
    )
    return run(driver, script, table, column)
