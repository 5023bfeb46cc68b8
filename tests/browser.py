"""A real browser without a window, for tests of pages; where there is none, they are skipped with the reason."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def why_no_browser() -> str | None:
    """None where a page can be opened."""
    if not any(map(shutil.which, BROWSERS)):
        return f"no browser: none of {', '.join(BROWSERS)} is installed"
    return None if shutil.which("chromedriver") else "no chromedriver beside the browser"


@contextmanager
def browser() -> Iterator[Any]:
    """A driver of Selenium's. Skips the test where there is no browser."""
    reason = why_no_browser()
    if reason is not None:
        pytest.skip(reason)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = next(path for name in BROWSERS if (path := shutil.which(name)))
    switches = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage"]
    if os.geteuid() == 0:
        switches.append("--no-sandbox")  # it refuses to start as root with one
    for switch in switches:
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def open_page(driver: Any, path: Path, width: int = 1600, dark: bool = False, script: bool = True) -> None:
    """Load a file anew, in a window of that many pixels, as a system with that theme shows it."""
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not script})
    driver.get("about:blank")
    driver.get(path.as_uri())
