"""How long to measure times before they are believed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    noise: float = 0.005
    """A contender is known well enough when half its interval is below this fraction of its median."""
    most_seconds: float = 3.0
    """GPU time of cold runs per contender, at most."""
    most_samples: int = 500
    """And so many of them."""
    sustained_seconds: float = 1.0
    """How long the sustained runs go on; 0 leaves them out."""
    seed: int = 0
    """Of the order within the rounds."""
