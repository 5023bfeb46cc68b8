"""Properties of a kernel related to clusters of blocks: its directives, and whether it uses clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.ptx.instructions import Function, Instruction, Reg, names_in

_OF_CLUSTERS = {"mapa", "getctarank", "barrier.cluster_arrive", "barrier.cluster_wait", "st.async", "red.async"}
_REGISTERS = ("%cluster", "%nclusterid", "%is_explicit_cluster")


@dataclass(frozen=True)
class ClusterFacts:
    """The cluster properties of one kernel."""

    required: tuple[int, int, int] | None
    """`.reqnctapercluster`: blocks of a cluster in x, y, z."""
    most_blocks: int | None
    """`.maxclusterrank`."""
    explicit: bool
    """`.explicitcluster`: the launch has to specify the cluster."""
    knows: bool
    """Whether the kernel uses any cluster feature. Only then do addresses of shared memory contain their block's
    rank."""

    @classmethod
    def of(cls, entry: Function, flat: Function) -> ClusterFacts:
        """Determine the properties of an entry.

        `flat` contains its instructions and those of the functions that it calls.
        """
        knows = entry.cluster is not None or any(_knows_clusters(i) for i in flat.instructions())
        return cls(entry.cluster, entry.most_cluster_blocks, entry.explicit_cluster, knows)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> ClusterFacts:
        """Restore the properties from JSON."""
        required = fields["required"]
        return cls(**{**fields, "required": None if required is None else tuple(required)})


def _knows_clusters(instruction: Instruction) -> bool:
    if instruction.row_name in _OF_CLUSTERS or "multicast::cluster" in instruction.modifiers:
        return True
    return any(isinstance(o, Reg) and o.name.startswith(_REGISTERS) for o in names_in(instruction))
