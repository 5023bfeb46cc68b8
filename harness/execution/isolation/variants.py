"""Creates variants whose functions are requests to a planner process. The rest of the harness uses them like any other.

The variants of `variants/` share one process per backend, so that CuPy and Numba are imported in parallel. Those of a
plugin file or an installed package have one process per origin, so that they cannot affect other variants.
"""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.compilers.remote_kernel import RemoteCompiledKernel, RemoteKernel
from harness.compilers.toolchains import check_backend, toolchain_named, toolchain_of
from harness.execution.isolation import process
from harness.execution.isolation.process import COMPILE_SECONDS, PlannerProcess
from harness.execution.isolation.replies import Json, Malformed, PrefetchedReplies, checked, error_from_json
from harness.execution.isolation.server import Load
from harness.execution.isolation.wire import (
    KNOWN_TEXTS,
    THE_CALLER,
    argument_to_json,
    link_from_json,
    plan_from_json,
    plan_to_json,
    problem_to_json,
    tile_from_json,
    variant_fields,
)
from harness.model.discovery import MODULE, PLUGIN, BrokenModule, Discovery, Origin
from harness.model.plan import Launch, Plan
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import TileSizes
from harness.model.traffic import Traffic
from harness.model.variant import Registry, Variant
from harness.ptx.parameters import Parameter
from harness.support.errors import PlannerDied, PlannerLost, PluginError, SandboxError

LANGUAGES = {"cupy": ("cupy",), "numba": ("numba.cuda",), "triton": ("triton",)}
"""Packages that the first plan of a backend imports."""
KEPT_COMPILED = 256
"""Maximum compiled kernels cached for one planner."""


def discover_isolated(plugins: Iterable[Path] = (), package: str = "variants", folder: Path | None = None) -> Discovery:
    """Discover all variants, as `discover` does, with their code in other processes; nothing of them is imported here.

    With `folder`, only the modules of a `package` in that folder are searched, such as an earlier version of the
    variants. An origin whose import crashes or hangs is reported as broken, and the others are still found.
    """
    files = [str(path) for path in plugins]
    place = None if folder is None else str(folder)
    broken: list[list[str]] = []
    looking = PlannerProcess()
    try:
        while True:
            try:
                said = looking.ask(
                    "discover", process.LOAD_SECONDS, plugins=files, package=package, folder=place, broken=broken
                )
                return _discovery(said)
            except PlannerLost as lost:
                if looking.loading is None:
                    raise
                origin = Origin(*(checked(each, str) for each in looking.loading))
                reason = f"{_in_words(origin)} could not be imported: {lost}"
                if origin.kind == PLUGIN or [*_key(origin), reason] in broken:
                    raise PluginError(reason) from lost
                broken.append([*_key(origin), reason])
    finally:
        looking.end()


def variants_of(origin: Origin) -> list[Variant]:
    """Return the isolated variants of one origin. Raises `PluginError` if it cannot be loaded."""
    looking = PlannerProcess()
    try:
        said = looking.ask("discover", process.LOAD_SECONDS, only=_key(origin), broken=[])
    except PlannerLost as lost:
        raise PluginError(f"{_in_words(origin)} could not be imported: {lost}") from lost
    finally:
        looking.end()
    found = _discovery(said)
    if found.broken:
        raise PluginError(found.broken[0].reason)
    return list(found.registry)


def isolate(load: Load) -> Variant:
    """Return the variant that `load` creates, in its own process. Raises `SandboxError` if it cannot be created."""
    planner = RemotePlanner(PlannerProcess(load))
    try:
        return planner.variant(planner.ask("describe", _key(THE_CALLER)), THE_CALLER)
    except PlannerLost as lost:
        raise type(lost)(f"it was being loaded: {lost}") from lost


def _discovery(said: Json) -> Discovery:
    registry, planners, origins = Registry(), dict[tuple[str, str], RemotePlanner](), dict[str, Origin]()
    try:
        for each in checked(said["variants"], list):
            origin = Origin(*(checked(word, str) for word in checked(each["from"], list)))
            group = checked(each["backend"], str) if origin.kind == MODULE else f"{origin.kind} {origin.name}"
            packages = LANGUAGES.get(group, ())
            planner = planners.setdefault((origin.folder, group), RemotePlanner(PlannerProcess(packages=packages)))
            registry.origin = checked(each["origin"], str)
            variant = planner.variant(each, origin)
            registry.add(variant)
            origins[variant.name] = origin
        for each in checked(said["left_out"], list):
            registry.leave_out(*(checked(word, str) for word in checked(each, list)))
        lost = [[checked(word, str) for word in checked(each, list)] for each in checked(said["broken"], list)]
        files = tuple(checked(path, str) for path in checked(said["files"], list))
    except (Malformed, KeyError, TypeError) as error:
        raise SandboxError(f"the descriptions of the variants cannot be read: {error}") from error
    return Discovery(registry, tuple(BrokenModule(*each) for each in lost), origins, files)


def _in_words(origin: Origin) -> str:
    if origin.kind == MODULE:
        return f"module {origin.package}.{origin.name}".replace(" .", " ")
    return f"plugin {origin.name}" if origin.kind == PLUGIN else f"installed package's entry point {origin.name}"


def _key(origin: Origin) -> list[str]:
    return [origin.kind, origin.name, origin.package, origin.folder]


@dataclass(frozen=True)
class _Ticket:
    """Locates a kernel in its process, and can plan again if that process is gone."""

    number: int
    generation: int
    again: Callable[[], Plan]


class RemotePlanner:
    """Represents the variants and kernels of one planner process. It is the `KernelOwner` of these kernels."""

    def __init__(self, process: PlannerProcess) -> None:
        self.process = process
        """The planner process. The first request starts it."""
        self._texts: OrderedDict[int, str] = OrderedDict()
        self._texts_of = 0
        self._lost: dict[str, PlannerLost] = {}
        self._compiled: OrderedDict[tuple[int, int, str | None, str], RemoteCompiledKernel] = OrderedDict()

    def ask(self, what: str, origin: list[str], **said: Json) -> Json:
        """Send a request about an origin and return the answer (`PlannerProcess.ask`)."""
        return self.process.ask(what, origin=origin, **said)

    def variant(self, said: Json, origin: Origin) -> Variant:
        """Create a variant from its description; its functions send requests. Raises `Malformed` or `PluginError`."""
        fields = variant_fields(said)
        toolchain = toolchain_named(fields["backend"])
        plan_seconds = COMPILE_SECONDS if toolchain is not None and toolchain.compiles_in_plan else None
        functions = _Functions(self, {"origin": _key(origin), "variant": fields["name"]}, plan_seconds)
        variant = Variant(
            **fields,
            plan=functions.plan,
            supports=functions.supports,
            tiles=functions.tiles if checked(said["has_tiles"], bool) else None,
            claim=functions.claim if checked(said["has_claim"], bool) else None,
        )
        check_backend(variant)
        return variant

    def ask_about(
        self, what: str, about: Json, problem: BaseProblem, seconds: float | None = None, **said: Json
    ) -> Json:
        """Call one of a variant's functions in the process, with a time limit (`PlannerProcess.ask`).

        A call that crashed or hung once raises the same error again without being sent.
        """
        request = about | {"problem": problem_to_json(problem)} | said
        if self._lost:
            lost_before = self._lost.get(json.dumps([what, request]))
            if lost_before is not None:
                raise lost_before  # the same call would crash or hang the next process
        try:
            return self.process.ask(what, seconds, **request)
        except PlannerLost as lost:
            self._lost[json.dumps([what, request])] = lost
            raise

    def end(self) -> None:
        """End the process. The next request starts another one."""
        self.process.end()

    def compile(self, kernel: RemoteKernel, args: tuple[Any, ...] | None, arch: str) -> RemoteCompiledKernel:
        """Compile a kernel for these arguments, in its process (`KernelOwner.compile`)."""
        ticket = self._ticket(kernel)
        said_args = None if args is None else [argument_to_json(each, _unkept) for each in args]
        key = ticket.generation, ticket.number, None if said_args is None else json.dumps(said_args), arch
        found = self._compiled.get(key)
        if found is None:
            about = {"number": ticket.number}
            said = self.process.ask("compile", COMPILE_SECONDS, kernel=about, args=said_args, arch=arch)
            found = self._compiled[key] = self._compiled_kernel(kernel, said)
            if len(self._compiled) > KEPT_COMPILED:
                self._compiled.popitem(last=False)
        return dataclasses.replace(found, args=args, kernel=kernel)

    def _compiled_kernel(self, kernel: RemoteKernel, said: Json) -> RemoteCompiledKernel:
        """Decode the reply to a request to compile. Its `args` are not set yet."""
        words = checked(said["words"], list, type(None))
        return RemoteCompiledKernel(
            ptx=self._text(said),
            entry=checked(said["entry"], str),
            name=checked(said["name"], str),
            toolchain=toolchain_of(kernel),
            arch=checked(said["arch"], str),
            parameters=tuple(
                Parameter(checked(t, str), checked(size, int), checked(align, int), checked(is_array, bool))
                for t, size, align, is_array in checked(said["parameters"], list)
            ),
            signature=tuple(checked(each, str) for each in checked(said["signature"], list)),
            max_registers=checked(said["max_registers"], int, type(None)),
            cooperative=checked(said["cooperative"], bool),
            words=None if words is None else tuple(bytes.fromhex(checked(word, str)) for word in words),
            argument_error=checked(said["argument_error"], str),
            threads=checked(said["threads"], int, type(None)),
            added_threads=checked(said["added_threads"], int),
            shared_bytes=checked(said["shared_bytes"], int),
            blocks_per_program=checked(said["blocks_per_program"], int),
        )

    def machine_code(self, kernel: RemoteKernel, arch: str) -> bytes | None:
        """Return the kernel's machine code, or None (`KernelOwner.machine_code`)."""
        digits = checked(self._of(kernel, "machine_code", COMPILE_SECONDS, arch=arch), str, type(None))
        return None if digits is None else bytes.fromhex(digits)

    def source(self, kernel: RemoteKernel) -> str:
        """Return the kernel's source text (`KernelOwner.source`)."""
        text: str = checked(self._of(kernel, "source"), str)
        return text

    def expanded(self, kernel: RemoteKernel) -> str:
        """Return what of the source the kernel compiles (`KernelOwner.expanded`)."""
        text: str = checked(self._of(kernel, "expanded"), str)
        return text

    def options(self, kernel: RemoteKernel) -> tuple[str, ...]:
        """Return the options that the kernel is compiled with (`KernelOwner.options`)."""
        return tuple(checked(option, str) for option in checked(self._of(kernel, "options"), list))

    def identity(self, kernel: RemoteKernel) -> str | None:
        """Return the text that identifies the kernel's code, or None (`KernelOwner.identity`)."""
        text: str | None = checked(self._of(kernel, "identity"), str, type(None))
        return text

    def run(
        self, problem: BaseProblem, plan: Plan, inputs: list[bytes], executor: str, options: Json, seconds: float
    ) -> tuple[Json, list[bytes]]:
        """Run a plan natively in this process, as `Planner.run` does. Returns the reply and the output arrays."""
        found = {id(step): self._ticket(step.kernel) for step in plan.launches}
        most_bytes = max(tensor.size_bytes for tensor in problem.tensors)

        def kernel_to_json(step: Launch) -> Json:
            return {"number": found[id(step)].number}

        said = plan_to_json(plan, kernel_to_json, _unkept)
        return self.process.ask_for_arrays(
            "run",
            seconds,
            tuple(inputs),
            most_bytes,
            problem=problem_to_json(problem),
            plan=said,
            executor=executor,
            options=options,
        )

    def _of(self, kernel: RemoteKernel, what: str, seconds: float = COMPILE_SECONDS, **said: Json) -> Json:
        """Send a request about a kernel. Plans again if the process that made the kernel is gone."""
        return self.process.ask(what, seconds, kernel={"number": self._ticket(kernel).number}, **said)

    def _ticket(self, kernel: RemoteKernel) -> _Ticket:
        ticket: _Ticket = kernel.ticket
        if ticket.generation != self.process.started:
            anew = ticket.again().launches[kernel.launch].kernel.ticket
            assert isinstance(anew, _Ticket)
            ticket = anew
        return ticket

    def _text(self, said: Json) -> str:
        """Return the PTX of a reply. Each text is sent once; later replies refer to it by number."""
        if self._texts_of != self.process.started:
            self._texts.clear()
            self._texts_of = self.process.started
        number = checked(said["text"], int)
        if said["ptx"] is not None:
            self._texts[number] = checked(said["ptx"], str)
            if len(self._texts) > KNOWN_TEXTS:
                self._texts.popitem(last=False)
        if number not in self._texts:
            raise PlannerDied("the process that ran it named a text that it never sent")
        return self._texts[number]


@dataclass(frozen=True)
class _Functions:
    """The functions of one variant, which call its planner."""

    planner: RemotePlanner
    about: Json
    """Identifies the variant in requests: its origin and its name."""
    plan_seconds: float | None = None
    """Time limit for planning; None for that of all requests."""
    prefetched: PrefetchedReplies = field(default_factory=PrefetchedReplies)

    def prefetch_replies(self, problem: BaseProblem, wanted: TileSizes | None) -> None:
        """Prefetch the replies for one attempt, in one message."""
        if self.prefetched.cautious:
            return
        try:
            said = self.planner.ask_about("attempt", self.about, problem, self.plan_seconds, wanted=_plain(wanted))
            self.prefetched.put(problem, said, self.planner.process.started)
        except SandboxError:  # the question that caused it raises it again
            self.prefetched.cautious = True

    def _ask(self, what: str, problem: BaseProblem, tile: TileSizes | None = None) -> Json:
        reply = self.prefetched.take(what, problem, _plain(tile), self.planner.process.started)
        if reply is None:
            seconds = self.plan_seconds if what == "plan" else None
            return self.planner.ask_about(what, self.about, problem, seconds, tile=_plain(tile))
        if "error" in reply:
            raise error_from_json(reply["error"])
        return reply["answer"]

    def supports(self, problem: Any) -> str | None:
        """Return the reason why the variant does not support the problem, or None (`Variant.supports`)."""
        refusal: str | None = checked(self._ask("supports", problem), str, type(None))
        return refusal

    def tiles(self, problem: Any) -> list[TileSizes]:
        """Return the tile sizes that the variant offers (`Variant.tiles`)."""
        return [tile_from_json(tile) for tile in checked(self._ask("tiles", problem), list)]

    def claim(self, problem: Any, tile: TileSizes | None = None) -> Traffic | None:
        """Return the traffic that the variant claims (`Variant.claim`)."""
        said = self._ask("claim", problem, tile)
        if said is None:
            return None
        *sizes, links = checked(said, list)
        read_bytes, write_bytes, further = (checked(size, int) for size in sizes)
        return Traffic(read_bytes, write_bytes, further, tuple(link_from_json(link) for link in checked(links, list)))

    def plan(self, problem: Any, tile: TileSizes | None = None, arch: str | None = None) -> Plan:
        """Plan the problem (`Variant.plan`). Raises `Malformed` if the reply is not a plan."""
        if arch is None:
            said = self._ask("plan", problem, tile)
        else:  # never prefetched
            said = self.planner.ask_about("plan", self.about, problem, self.plan_seconds, tile=_plain(tile), arch=arch)
        generation = self.planner.process.started

        def kernel(place: int, found: Json) -> RemoteKernel:
            ticket = _Ticket(checked(found["number"], int), generation, lambda: self.plan(problem, tile, arch))
            names = (checked(found["name"], str), checked(found["backend"], str))
            return RemoteKernel(*names, self.planner, place, ticket)

        try:
            return plan_from_json(said, kernel)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise Malformed(f"plan() did not return a valid plan: {error}") from error


def begin_planners(variants: Iterable[Variant]) -> None:
    """Start the processes of these variants in the background, so that they import their packages meanwhile."""
    for variant in variants:
        functions = _functions_of(variant)
        if functions is not None:
            functions.planner.process.start()


def prefetch_replies(variant: Variant, problem: BaseProblem, wanted: TileSizes | None = None) -> None:
    """Prefetch the variant's replies for one attempt at this problem object in one message, except its claimed traffic.

    `wanted` are the tile sizes that `with_tile` receives afterwards. Does nothing if the variant is not isolated.
    Questions that were not prefetched are sent one by one, as are those to a variant that takes an architecture.
    """
    functions = _functions_of(variant)
    if functions is not None and not variant.takes_arch:
        functions.prefetch_replies(problem.of_kernels, wanted)


def _functions_of(variant: Variant) -> _Functions | None:
    functions = getattr(variant.plan, "__self__", None)
    return functions if isinstance(functions, _Functions) else None


def _plain(tile: TileSizes | None) -> Json:
    return None if tile is None else dict(tile)


def _unkept(argument: object) -> int:
    raise PluginError(f"an argument of type {type(argument).__name__} cannot go to another process")
