"""Which clusters of a launch start, and which of the others each of them may cancel (`clusterlaunchcontrol`).

A GPU starts as many clusters as it holds at a time. The others wait; a cluster that runs may cancel the first of them
and do its work, and when one ends without that, the next starts in its place. Which cluster gets which work depends on
time there. Here it does not, so that results do not depend on the number of host cores: each place that a cluster runs
in has a queue of its own, and the clusters that wait are dealt out to the queues in order. A cluster requests, and is
succeeded by, only clusters of its queue. So cores never share a queue, and a request is refused once it is empty.

With a seed other than 0, fewer clusters start than a GPU holds, the others are dealt out at random, and some requests
are refused although clusters wait, as by a GPU that has a more urgent kernel to run: the cluster behind a refusal
starts when the one that made the request has ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.emulator.abi import launch_control_layout as control

_REFUSED_SHARE = 1 / 16
"""Share of clusters whose cancellation is refused, with a seed other than 0."""


@dataclass(frozen=True)
class LaunchQueues:
    """The queues of one launch."""

    started: int
    """Number of places. The clusters with numbers below it start there; each place has a queue."""
    rows: npt.NDArray[np.int64]
    """Array (clusters, 2): a row of `abi/launch_control_layout.py` for each cluster."""

    @classmethod
    def of(cls, clusters: int, resident: int, seed: int) -> LaunchQueues:
        """The queues of a launch of so many clusters, of which a GPU holds `resident` at a time."""
        started = min(clusters, resident)
        rows = np.zeros((clusters, control.ROW_BYTES // 8), np.int64)
        following, refuses = rows[:, control.NEXT // 8], rows[:, control.REFUSES // 8]
        if not seed:
            following[:] = np.arange(started, clusters + started)
            following[following >= clusters] = -1
            return cls(started, rows)
        random = np.random.default_rng(seed)
        started = int(random.integers(1, started + 1))
        numbers = np.arange(clusters)
        places = np.where(numbers < started, numbers, random.integers(0, started, clusters))
        in_queues = np.argsort(places, kind="stable")
        is_last = np.diff(places[in_queues], append=-1) != 0
        following[in_queues] = np.where(is_last, -1, np.roll(in_queues, -1))
        refuses[:] = random.random(clusters) < _REFUSED_SHARE
        return cls(started, rows)
