"""A progress bar on stderr for what takes longer than two seconds; none where nobody looks."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

DELAY_SECONDS = 2.0


class Progress:
    """Told what happens; shows it, or, with no bar, does nothing."""

    def __init__(self, bar: Any = None) -> None:
        self._bar = bar
        self._begun = 0
        self._started = time.monotonic()

    def step(self, name: str) -> None:
        """The next step begins, and with it the one before has ended."""
        if self._bar is not None:
            self._bar.set_description_str(name, refresh=False)
            self._show(self._begun)
        self._begun += 1

    def part(self, fraction: float) -> None:
        """How much of something within this step, such as one kernel launch, is done."""
        if self._bar is not None:
            self._show(self._begun - 1 + fraction)

    def _show(self, done: float) -> None:
        self._bar.n = done
        # tqdm's own delay is looked at only by its update().
        if time.monotonic() - self._started > DELAY_SECONDS:
            self._bar.refresh()


@contextmanager
def progress_bar(steps: int) -> Iterator[Progress]:
    """A `Progress` over so many steps. It shows nothing unless stderr is a terminal, and leaves nothing behind."""
    if not sys.stderr.isatty():
        yield Progress()
        return
    from tqdm import tqdm

    bar = tqdm(
        total=steps, delay=DELAY_SECONDS, leave=False, file=sys.stderr, bar_format="{desc} {bar:30} {percentage:3.0f} %"
    )
    # For a long step that tells nothing of its parts, such as the oracle.
    late = threading.Timer(DELAY_SECONDS, bar.refresh)
    late.daemon = True
    late.start()
    try:
        yield Progress(bar)
    finally:
        late.cancel()
        late.join()
        bar.close()
