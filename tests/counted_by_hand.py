"""What a run of two launches counted, made up: two files, four buffers, an atomic, local memory."""

from __future__ import annotations

from harness.execution.protocol import Device, Execution, LaunchReport
from harness.execution.run_settings import RunSettings
from harness.execution.traffic.counts import SharedTraffic, SiteTraffic
from harness.execution.traffic.traffic_account import TrafficAccount, account
from harness.model.traffic import Traffic
from harness.operations.attention.problem import Problem

PROBLEM = Problem(heads=1, q_len=8, kv_len=4, head_dim=4)
DEVICE = Device("emulator", "by hand", "sm_90")
FIRST = (
    SiteTraffic("Q", "load", "a.cu", 3, requests=2, requested_bytes=100, sectors=8, ideal_sectors=4),
    SiteTraffic("S", "store", "a.cu", 5, requests=1, requested_bytes=32, sectors=1, ideal_sectors=1),
    SiteTraffic("local", "store", "a.cu", 6, requests=4, requested_bytes=512, sectors=16, ideal_sectors=16),
)
SECOND = (
    SiteTraffic("Q", "load", "a.cu", 3, requests=1, requested_bytes=50, sectors=2, ideal_sectors=2),
    SiteTraffic("S", "atomic", "b.cu", 1, requests=1, requested_bytes=4, sectors=1, ideal_sectors=1),
    SiteTraffic("O", "store", "b.cu", 2, requests=1, requested_bytes=128, sectors=4, ideal_sectors=4),
)
SHARED = SharedTraffic("load", "a.cu", 9, requests=2, requested_bytes=256, wavefronts=64, ideal_wavefronts=2)


def make(claim: Traffic | None = None, shared: tuple[SharedTraffic, ...] | None = None) -> TrafficAccount:
    launches = (LaunchReport("one", FIRST, shared=shared), LaunchReport("two", SECOND, shared=shared))
    execution = Execution({}, launches, 0)
    return account("mine", PROBLEM, RunSettings(), DEVICE, execution, claim, ("Q", "K", "V", "O", "S"))
