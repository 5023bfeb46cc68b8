"""Command lines that are run in this process."""

from __future__ import annotations

import pytest
from command_lines import Called

from harness.cli import main


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]):
    """Run a command line in this process."""

    def run(*arguments: object) -> Called:
        status = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Called(status, captured.out, captured.err)

    return run
