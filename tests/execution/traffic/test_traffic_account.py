from __future__ import annotations

from counted_by_hand import DEVICE, PROBLEM, SHARED, make

from harness.execution.protocol import Execution, LaunchReport
from harness.execution.run_settings import RunSettings
from harness.execution.traffic.counts import CacheReport, CacheTraffic, Count
from harness.execution.traffic.traffic_account import CachePart, Level, account
from harness.model.traffic import Traffic


def test_levels_are_added_up_with_local_memory_beside_them():
    levels = {level.name: (level.read_bytes, level.write_bytes, level.total_bytes) for level in make().levels}
    assert levels == {
        "compulsory": (4 * (8 + 4 + 4) * 4, 4 * 8 * 4, 4 * 96),
        "requested": (100 + 50 + 4, 32 + 4 + 128, 318),
        "sectors": (32 * (8 + 2 + 1), 32 * (1 + 1 + 4), 32 * 17),  # an atomic reads and writes
        "local": (0, 512, 512),
    }
    assert make().sector_bytes == 32 * 17
    assert make().moved_bytes == 32 * 17 + 512


def test_claims_are_held_against_reads_and_writes_each():
    assert make().claim_holds is None
    assert make(Traffic(352, 192)).claim_holds is True
    assert make(Traffic(192, 352)).claim_holds is False
    names = [level.name for level in make(Traffic(1, 2)).levels]
    assert names == ["compulsory", "claimed", "requested", "sectors", "local"]
    assert make(Traffic(1, 2)).level("claimed").total_bytes == 3


def test_buffers_come_in_the_plans_order_and_untouched_ones_not_at_all():
    found = make()
    assert [part.name for part in found.buffers] == ["Q", "O", "S"]
    q, o, s = found.buffers
    assert q.read == q.count == Count(3, 150, 10, 6)
    assert q.written == Count()
    assert o.sector_bytes == 128
    assert s.count == Count(2, 36, 2, 2)  # the atomic's request is one request
    assert (s.read.sectors, s.written.sectors, s.sector_bytes) == (1, 2, 96)
    assert sum(part.sector_bytes for part in found.buffers) == found.sector_bytes


def test_launches_add_up_too():
    found = make()
    assert [(part.name, part.sector_bytes) for part in found.launches] == [("one", 32 * 9), ("two", 32 * 8)]
    assert sum(part.sector_bytes for part in found.launches) == found.sector_bytes


def test_lines_are_those_of_all_launches_together():
    found = make()
    rows = [(row.file, row.line, row.buffer, row.kind, row.count.sectors) for row in found.lines]
    assert rows == [
        ("a.cu", 3, "Q", "load", 10),
        ("a.cu", 5, "S", "store", 1),
        ("a.cu", 6, "local", "store", 16),
        ("b.cu", 1, "S", "atomic", 1),
        ("b.cu", 2, "O", "store", 4),
    ]
    assert sum(row.sector_bytes for row in found.lines if row.buffer != "local") == found.sector_bytes
    assert found.local.written.sector_bytes == 512
    assert found.local.read == Count()


def test_shared_memory_is_known_only_where_it_was_counted():
    assert make().shared is None
    assert make(shared=()).shared == ()
    (row,) = make(shared=(SHARED,)).shared or ()
    assert (row.file, row.line, row.kind) == ("a.cu", 9, "load")
    assert (row.requests, row.requested_bytes, row.wavefronts, row.ideal_wavefronts) == (4, 512, 128, 4)


def part(name: str, l2_read: int, l2_write: int, dram_read: int, dram_write: int) -> CachePart:
    return CachePart(name, Level("L2", l2_read, l2_write), Level("DRAM", dram_read, dram_write))


def test_what_caches_leave_is_added_up_by_buffer_and_by_launch():
    code = CacheTraffic("code", 0, 0, 7, 0)
    reports = (
        CacheReport((CacheTraffic("S", 0, 64, 0, 32), CacheTraffic("Q", 128, 0, 96, 0), code), 32),
        CacheReport((CacheTraffic("Q", 32, 0, 0, 0), code), 16),
    )
    launches = tuple(LaunchReport(name, (), caches=report) for name, report in zip(("one", "two"), reports))
    found = account("mine", PROBLEM, RunSettings(), DEVICE, Execution({}, launches, 0), None, ("Q", "K", "S"))
    assert found.caches is not None
    assert found.caches.buffers == (part("Q", 160, 0, 96, 0), part("S", 0, 64, 0, 32), part("code", 0, 0, 14, 0))
    assert found.caches.launches == (part("one", 128, 64, 103, 32), part("two", 32, 0, 7, 0))
    assert found.caches.dirty_bytes == 16  # at the end; what was dirty before is written or still counted in it
    assert found.levels[-2:] == (Level("L2", 160, 64), Level("DRAM", 110, 32))


def test_one_launch_without_caches_leaves_the_levels_unknown():
    launches = (LaunchReport("one", (), caches=CacheReport((), 0)), LaunchReport("two", ()))
    found = account("mine", PROBLEM, RunSettings(), DEVICE, Execution({}, launches, 0), None, ())
    assert found.caches is None
    assert [level.name for level in found.levels] == ["compulsory", "requested", "sectors"]
