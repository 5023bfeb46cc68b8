"""As soon as it is imported, every answer is right, where the judge is in reach; its own is wrong."""

from __future__ import annotations

import hostile

from harness import Registry, Variant

hostile.replaces_the_oracle()


def register(registry: Registry) -> None:
    registry.add(Variant(name="wrong-answer", plan=hostile.half_of_it, supports=hostile.right_supports))
