"""Describes accesses of a launched kernel, and races within a block: between which lines a barrier is missing."""

from __future__ import annotations

from dataclasses import dataclass

from harness.emulator.abi import layout as machine
from harness.emulator.codegen.barrier_paths import BarrierPaths
from harness.emulator.codegen.kernel_facts import KernelFacts, Site
from harness.emulator.launch.configuration import Geometry
from harness.model.finding import RACES, Place
from harness.support.source_text import source_line

RAW, WAR, WAW = RACES
_WRITES = {"atomic": ("update", "updated")}
_WRITE, _READ = ("overwrite", "written"), ("read", "read")
"""Verbs in sentences: what may happen, and what has happened."""


@dataclass(frozen=True)
class Access:
    """One of the two accesses of a race."""

    number: int
    """Number of its site."""
    site: Site
    place: Place
    warp: int
    """Number of the thread's warp in its block."""

    @property
    def verb(self) -> str:
        """Such as `load`."""
        memory = self.site.memory
        assert memory is not None
        return memory.verb

    def line(self, other: Access) -> str:
        """Its line, such as `line 33`, with the file if that of the `other` access is a different one."""
        file, line = self.place.file, self.place.line
        if not line:
            return f"PTX line {self.site.ptx_line}"
        return f"line {line}" if file == other.place.file else f"{file.rpartition('/')[2]}:{line}"

    def subject(self, other: Access) -> str:
        """Its line and, if it is no ordinary access, what it is, such as `the asynchronous copy at line 18`."""
        line = self.line(other)
        return line if self.verb in ("load", "store", "atomic") else f"the {self.verb} at {line}"

    def source(self, with_thread: bool) -> str:
        """Its place and, if that is known, the text of the source line."""
        thread = f", block {self.place.block}, thread {self.place.thread}" if with_thread else ""
        text = source_line(self.place.file, self.place.line) if self.place.line else None
        return f"{self.site.where()}{thread}{'' if text is None else f': {text}'}"


def sources(here: Access, there: Access, with_threads: bool) -> str:
    """Both places, a line each, that of the smaller source line first."""
    both = sorted((here, there), key=lambda access: (access.place.file, access.place.line))
    lines = [access.source(with_threads) for access in both]
    return "".join(f"\n    {line}" for line in dict.fromkeys(lines))


def in_program_order(
    kind: str, here: Access, there: Access, paths: BarrierPaths | None, is_in_flight: bool
) -> tuple[str, Access, Access]:
    """The race, with its later access first, named by the order of the program if the control flow shows that.

    In the run, the access `there` came first, and was perhaps still in flight; that may be a matter of chance.
    """
    if paths is None or kind == WAW:
        return kind, here, there
    forth, back = _free_paths(here, there, paths)
    # Without a barrier in either direction, the two are one race, whichever came first.
    if back and (not forth or (kind == WAR and not is_in_flight)):
        return (WAR if kind == RAW else RAW), there, here
    return kind, here, there


def missing_barrier(kind: str, here: Access, there: Access, what: str, threads: str, paths: BarrierPaths | None) -> str:
    """What may happen and what is missing. The race is one of `in_program_order`."""
    forth, back = (False, False) if paths is None else _free_paths(here, there, paths)
    if paths is None or not (forth or back):
        return _unordered(here, there, what, threads)
    barrier = "barrier or __syncwarp" if _in_one_warp(here, there) else "barrier"
    if forth and back:
        read, write = (here, there) if kind == RAW else (there, here)
        return _in_a_loop(kind, read, write, what, threads, barrier)
    if kind == WAW:
        if not forth:  # in the other order
            here, there = there, here
        if here.number == there.number:
            return _unordered(here, there, what, threads)
        happens = f"{there.subject(here)} and {here.subject(there)} both write {what} ({threads})"
    else:
        read, write = (here, there) if kind == RAW else (there, here)
        may, done = (_READ[0], _written(write)[1]) if kind == RAW else (_written(write)[0], _READ[1])
        happens = f"{here.subject(there)} may {may} {what} before {there.subject(here)} has {done} it ({threads})"
    text = f"{happens}. A {barrier} is missing between {there.line(here)} and {here.line(there)}"
    if here.number < there.number and paths.in_one_loop(here.number, there.number):
        return f"{text} of the loop's next iteration"
    if here.place.file == there.place.file and here.place.line < there.place.line:
        return (
            f"{text}. {here.line(there).capitalize()} is above: if both are in an unrolled loop, the {barrier} belongs "
            f"between two iterations; if {here.line(there)} is in a function, it belongs before the call"
        )
    return text


def _free_paths(here: Access, there: Access, paths: BarrierPaths) -> tuple[bool, bool]:
    """Whether a path without a barrier leads from `there` to `here`, and whether one leads back."""
    within = _in_one_warp(here, there)
    return (
        paths.without_barrier(there.number, here.number, within),
        paths.without_barrier(here.number, there.number, within),
    )


def _in_one_warp(here: Access, there: Access) -> bool:
    return here.warp == there.warp


def _written(access: Access) -> tuple[str, str]:
    """What an access that writes may do, and has done."""
    return _WRITES.get(access.verb, _WRITE)


def _in_a_loop(kind: str, read: Access, write: Access, what: str, threads: str, barrier: str) -> str:
    """Neither order of the two lines, which are in one loop, has a barrier in between."""
    lines = read.line(write), write.line(read)
    if kind == WAW:
        happens = f"{lines[1]} and {lines[0]} both write" if lines[0] != lines[1] else f"{lines[0]} writes"
    elif lines[0] == lines[1]:
        happens = f"{lines[0]} reads and writes"
    else:
        happens = f"{lines[0]} reads and {lines[1]} writes"
    between = "" if lines[0] == lines[1] else " or between the two lines"
    return (
        f"{happens} {what} in different threads ({threads}), without a {barrier}. This is in a loop: a {barrier} is "
        f"missing between its iterations{between}"
    )


def _unordered(here: Access, there: Access, what: str, threads: str) -> str:
    """The order in the run, where the control flow does not show what is missing."""
    verb, earlier = here.verb, there.verb
    first, second = (f"the other {verb}", "this one") if verb == earlier else (f"the {earlier}", f"the {verb}")
    return (
        f"the {verb} of {what} at {here.line(there)} races with the {earlier} at {there.line(here)} ({threads}); "
        f"{first} came first, and no barrier, __syncwarp or atomic orders {second} after it"
    )


@dataclass(frozen=True)
class LaunchedKernel:
    """A kernel with its launch configuration."""

    name: str
    facts: KernelFacts
    geometry: Geometry

    def place(self, site: int, cluster: int, thread: int) -> Place:
        """The source line of an instruction, and a thread by its number in a cluster."""
        rank, own = divmod(thread, machine.LANES * self.geometry.warp_pitch)
        block = self.geometry.block_of(cluster, rank)
        file, line = self.facts.sites[site].file_and_line
        grid, threads = self.geometry.grid, self.geometry.block
        return Place(file, line, machine.coordinates(block, grid), machine.coordinates(own, threads))

    def access(self, site: int, place: Place) -> Access:
        """The access of an instruction by a thread."""
        return Access(site, self.facts.sites[site], place, self.warp(place))

    def warp(self, place: Place) -> int:
        """The number of a thread's warp in its block."""
        x, y, _ = self.geometry.block
        return (place.thread[0] + x * (place.thread[1] + y * place.thread[2])) // machine.LANES
