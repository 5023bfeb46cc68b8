"""A progress bar on stderr for what takes longer than two seconds; none where nobody looks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DELAY_SECONDS = 2.0


@contextmanager
def progress_bar(steps: int) -> Iterator[Callable[[str], None]]:
    """A function to call with the name of each step as it begins. Shows nothing unless stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda name: None
        return
    from tqdm import tqdm

    bar = tqdm(total=steps, delay=DELAY_SECONDS, leave=False, file=sys.stderr, bar_format="{desc} {bar} {n}/{total}")
    # tqdm looks at its delay only when a step ends, and a single step may take minutes.
    late = threading.Timer(DELAY_SECONDS, bar.refresh)
    late.daemon = True
    begun = 0

    def begin(name: str) -> None:
        nonlocal begun
        bar.set_description_str(name, refresh=False)
        bar.update(1 if begun else 0)
        begun += 1
        if not late.is_alive():
            bar.refresh()

    late.start()
    try:
        yield begin
    finally:
        late.cancel()
        late.join()
        bar.close()
