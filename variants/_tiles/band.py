"""The masks of the kernels here as two numbers, so that one kernel serves them all: no mask, causal, a sliding window.

Row i lies on key i + kv_len - q_len and sees the keys from `before` ahead of that one to `after` behind it, as far as
there are keys. What has no limit gets one that no key is beyond.
"""

from __future__ import annotations

import numpy as np

from harness import Problem

FEATURES = ("causal", "window")
"""What a variant whose kernels take a band says that it `takes`."""


def band(problem: Problem) -> tuple[np.int32, np.int32]:
    """(before, after), as kernels take them; at most q_len + kv_len each. Intersections are the narrower of each."""
    beyond = problem.q_len + problem.kv_len
    limits = [part.limits for part in problem.mask.parts]
    before = min([beyond, *(left for left, _ in limits if left is not None)])
    after = min([beyond, *(right for _, right in limits if right is not None)])
    return np.int32(before), np.int32(after)
