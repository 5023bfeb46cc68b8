"""Chooses who examines the cases of a campaign: processes of this machine, or the workers of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.execution.isolation.server import Load
from harness.options.machine import Machine
from harness.studies.fuzz.drawing.examples_per_build import FIRST_EXAMPLES
from harness.studies.fuzz.examining.examiners import Examiners
from harness.studies.fuzz.examining.workers import Workers
from harness.studies.fuzz.settings import CampaignSettings
from harness.support.cores import usable_cores

if TYPE_CHECKING:
    from harness.execution.cluster.cluster_client import ClusterClient

WORKERS = 2
"""Worker processes of a long campaign; more would wait for Hypothesis."""


def _workers(how: CampaignSettings, machine: Machine) -> int:
    """Return the number of workers; 1 for a default campaign, which ends before a second one has compiled kernels."""
    is_long = how.examples is None or how.examples > FIRST_EXAMPLES
    return min(WORKERS, usable_cores()) if is_long and machine.kind == "emulator" else 1


def examiners_of(load: Load, machine: Machine, how: CampaignSettings, cluster: ClusterClient | None) -> Examiners:
    """Workers of `cluster` if given, else one or two processes of this machine."""
    builds = how.builds or ()
    if cluster is None:
        return Workers(load, machine, how.case_seconds, builds, _workers(how, machine))
    from harness.studies.fuzz.examining.spread import ClusterExaminers

    return ClusterExaminers(cluster, load, machine, how.case_seconds, builds)
