"""Progress of operations that take seconds: a bar on a terminal or in a notebook, one line elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.support.printable import printable

DELAY_SECONDS = 2.0
"""Time before the bar appears."""
PROGRESS_VARIABLE = "ATTENTION_SANDBOX_PROGRESS"
"""Environment variable that, if it is `off`, leaves out the bar and the line."""
LINE_DELAY_SECONDS = 5.0
"""Time before the line is written, if standard error is a file or a pipe."""
_UNITS = (("days", 86400), ("hours", 3600), ("minutes", 60))


def duration_in_words(seconds: float) -> str:
    """Format a duration, such as `3 hours`, in the largest unit of which there are at least two."""
    for unit, length in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.0f} second{'' if round(seconds) == 1 else 's'}"


class Progress:
    """Tracks the progress of an operation. Nothing is drawn until `show` is called."""

    def __init__(self, steps: int = 1) -> None:
        self._steps = steps
        self._start = time.monotonic()
        self._begun = 0
        self._done = 0.0
        self._name = ""
        self._bar: Any = None
        self._lock = threading.Lock()

    def step(self, name: str) -> None:
        """Begin the next step, and end the one before."""
        with self._lock:
            self._name, self._done = name, self._begun
            self._begun += 1
            self._draw()

    def part(self, fraction: float, name: str | None = None) -> None:
        """Set the completed fraction within this step, such as of one kernel launch, and optionally its name."""
        with self._lock:
            if name is not None:
                self._name = name
            self._done = max(0, self._begun - 1) + fraction
            self._draw()

    def show(self) -> None:
        """Draw from now on."""
        from tqdm import TqdmWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TqdmWarning)  # a notebook without ipywidgets has a bar of text
            from tqdm.auto import notebook_tqdm, tqdm
        from tqdm.std import tqdm as text_bar

        width = ":30" if notebook_tqdm is text_bar else ""  # a widget chooses its own
        with self._lock:
            if self._bar is None and self._begun:
                self._bar = tqdm(
                    desc=printable(self._name),
                    initial=self._done,
                    total=self._steps,
                    leave=False,
                    file=sys.stderr,
                    bar_format=f"{{desc}} {{bar{width}}} {{percentage:3.0f}} %{{postfix}}",
                )

    def tell(self) -> None:
        """Write one line that states what is being done, and about how long the rest takes."""
        with self._lock:
            if self._begun:
                name = printable(self._name.partition(";")[0])
                step = f"harness: {self._begun} of {self._steps}: {name}"
                rest = self._remaining() or "a first run compiles kernels, which can take a minute"
                with contextlib.suppress(OSError, ValueError):
                    print(f"{step}; {rest}", file=sys.stderr, flush=True)

    def _remaining(self) -> str:
        """The time that the rest takes if it goes on as fast as so far; empty if nothing is done yet."""
        if self._done <= 0:
            return ""
        elapsed = time.monotonic() - self._start
        return f"about {duration_in_words(elapsed * max(0.0, self._steps - self._done) / self._done)} left"

    def close(self) -> None:
        """Erase the bar and stop drawing."""
        with self._lock:
            if self._bar is not None:
                self._bar.close()
                self._bar = None
            self._begun = 0

    def _draw(self) -> None:
        if self._bar is not None:
            self._bar.n = self._done
            self._bar.set_postfix_str(self._remaining(), refresh=False)
            self._bar.set_description_str(printable(self._name))


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel, whose standard error is shown although it is not a terminal."""
    if "ipykernel" not in sys.modules:
        return False
    from IPython import get_ipython

    return "IPKernelApp" in getattr(get_ipython(), "config", {})


@contextmanager
def progress_bar(steps: int) -> Iterator[Progress]:
    """A context manager with a `Progress` over so many steps.

    The bar is erased at the end.
    """
    progress = Progress(steps)
    # The timer runs in a thread of its own: a step such as the oracle may report nothing for a minute.
    if sys.stderr.isatty() or in_notebook():
        late = threading.Timer(DELAY_SECONDS, progress.show)
    else:
        late = threading.Timer(LINE_DELAY_SECONDS, progress.tell)
    late.daemon = True
    if os.environ.get(PROGRESS_VARIABLE) != "off":
        late.start()
    try:
        yield progress
    finally:
        late.cancel()
        progress.close()
