"""The planner's side: a process that imports variants and answers what the judge asks of them, one after the other.

It knows no answer, no budget and no count. What it says is data (see `wire`), and the judge believes none of it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import importlib
import json
import os
import signal
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from harness.compilers.remote_kernel import RemoteArgument
from harness.compilers.toolchains import check_backend, toolchain_of
from harness.execution.isolation.replies import Json, error_to_json, message_of
from harness.execution.isolation.server import Load, Surroundings, leave_server
from harness.execution.isolation.supervisor import fork_planner
from harness.execution.isolation.wire import (
    KNOWN_TEXTS,
    THE_CALLER,
    argument_from_json,
    only_numbers,
    plan_from_json,
    plan_to_json,
    problem_from_json,
    variant_to_json,
)
from harness.execution.planning.variant_calls import (
    checked_plan,
    claimed_traffic,
    declared_refusal,
    declared_tiles,
    untaken_features,
)
from harness.execution.protocol import Executor
from harness.model.discovery import PLUGIN, Origin, loaded_files, modules_in, origins
from harness.model.plan import Launch
from harness.model.problem import BaseProblem
from harness.model.registry import Registry
from harness.model.variant import Variant
from harness.support.errors import CompileError, PlanError, PluginError, SandboxError
from harness.support.exception_place import where_and_what
from harness.support.processes.child_process import ProcessLog

_ALLOCATED_BETWEEN_COLLECTIONS = 1_000_000
"""Numba makes millions of small objects and keeps most: 50,000 cost 6 % of the time it compiles for, Python's own 700
another tenth, and ten large kernels are 60 MiB larger without any."""
KEPT_OBJECTS = 4096
"""Kernels of so many launches can still be asked about. A search plans many thousand times, and asks at once."""


def serve(
    connection: Connection,
    load: Load | None,
    log: ProcessLog,
    surroundings: Surroundings,
    lifeline: Connection,
    output: Connection,
    packages: Sequence[str],
    most_bytes: int,
) -> None:
    """Answer requests until the judge hangs up. `load` makes the one variant of this process; None: of any origin.

    `packages` are imported first, before anybody waits for them.
    What a plugin prints goes to `output`, of which `PluginOutput` has the other end; why a process crashed, to `log`.
    """
    fork_planner(lifeline, (connection, output), most_bytes)
    leave_server()
    _end_with(lifeline)
    surroundings.take_on()
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    faulthandler.enable(log.begin())
    _import(packages)
    planner = Planner(load, connection.send_bytes)
    with contextlib.suppress(EOFError, ConnectionError):  # the judge has hung up, perhaps on an answer
        _answer_requests(connection, planner)


def _answer_requests(connection: Connection, planner: Planner) -> None:
    while True:
        request = json.loads(connection.recv_bytes())
        planner.number = request["number"]
        arrays = [connection.recv_bytes() for _ in range(request.get("arrays", 0))]
        reply, sent = _answer(planner, request, arrays)
        try:
            message = message_of(reply | {"number": planner.number})
        except (TypeError, ValueError, RecursionError) as error:  # such as a number of 5,000 digits in a plan
            wrong = PlanError(f"{request['what']}() answered what has no form as JSON: {error}")
            message, sent = message_of({"error": error_to_json(wrong), "number": planner.number}), []
        connection.send_bytes(message)
        for array in sent:
            connection.send_bytes(array)


def _import(packages: Sequence[str]) -> None:
    """Import what is there of them, and let the collector leave alone what stays for as long as the process does."""
    gc.disable()
    for package in packages:
        with contextlib.suppress(Exception):  # who needs it will say that it is not there
            importlib.import_module(package)
    gc.freeze()
    gc.set_threshold(_ALLOCATED_BETWEEN_COLLECTIONS)
    gc.enable()


def _end_with(lifeline: Connection) -> None:
    """Let the kernel end this process when the judge is gone, whatever a plugin is doing here at that time.

    The judge holds the other end of a pipe; a pipe that breaks raises SIGIO, which ends who does not handle it.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline.fileno(), fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(lifeline.fileno(), fcntl.F_GETFL)
    fcntl.fcntl(lifeline.fileno(), fcntl.F_SETFL, flags | os.O_ASYNC)


def _answer(planner: Planner, request: Json, arrays: list[bytes]) -> tuple[Json, list[bytes]]:
    what = request["what"]
    try:
        if what == "run":
            return planner.run(request, arrays)
        answer: Callable[[Json], Json] = getattr(planner, what)
        return {"answer": answer(request)}, []
    except BaseException as error:  # whatever a plugin raises, Ctrl-C being none here
        if isinstance(error, (SandboxError, Exception)):
            return {"error": error_to_json(error)}, []
        return {"error": error_to_json(PlanError(f"{what}() failed: {where_and_what(error)}"))}, []


class Planner:
    """What the process has loaded, and what it has handed out."""

    def __init__(self, load: Load | None, send: Callable[[bytes], None]) -> None:
        self._load, self._send = load, send
        self.number = 0
        """Of the request that is answered: every message says which one it belongs to."""
        self._loaded: dict[Origin, Registry] = {}
        self._kept: OrderedDict[int, object] = OrderedDict()
        self._numbers: dict[int, int] = {}
        self._count = 0
        self._texts: OrderedDict[str, int] = OrderedDict()
        self._executors: dict[str, Executor] = {}
        self._last_said: Json = None
        self._last_problem: BaseProblem | None = None

    # Each public method is what a request may ask for.

    def discover(self, request: Json) -> Json:
        """Every variant, and what is broken. An origin is announced before it is run, for it may not come back."""
        registry, broken = Registry(), []
        known = {Origin(*each): reason for *each, reason in request["broken"]}
        variants = []
        if (only := request.get("only")) is not None:
            searched = [Origin(*only)]
        elif (folder := request.get("folder")) is not None:
            searched = modules_in(folder, request["package"])
        else:
            searched = origins([Path(path) for path in request["plugins"]], request["package"])
        for origin in searched:
            before = len(registry)
            try:
                if origin in known:
                    raise PluginError(known[origin])
                self._send(message_of({"loading": _key(origin), "number": self.number}))
                origin.load(registry, check_backend)
            except PluginError as error:
                if origin.kind == PLUGIN:
                    raise
                broken.append([origin.name, str(error)])
            for variant in [*registry][before:]:
                said = variant_to_json(variant, registry.origin_of(variant.name))
                variants.append(said | {"from": _key(origin)})
        return {"variants": variants, "broken": broken, "files": loaded_files()}

    def describe(self, request: Json) -> Json:
        """The one variant of this process."""
        return variant_to_json(self._variant(request), "the caller")

    def supports(self, request: Json) -> Json:
        """See `declared_refusal`."""
        return declared_refusal(self._variant(request), self._problem(request))

    def tiles(self, request: Json) -> Json:
        """See `declared_tiles`."""
        return [dict(tile) for tile in declared_tiles(self._variant(request), self._problem(request))]

    def claim(self, request: Json) -> Json:
        """See `claimed_traffic`."""
        problem = self._problem(request)
        claim = claimed_traffic(self._variant(request), problem, request["tile"])
        return None if claim is None else [int(claim.read_bytes), int(claim.write_bytes)]

    def plan(self, request: Json) -> Json:
        """See `checked_plan`."""
        problem = self._problem(request)
        plan = checked_plan(self._variant(request), problem, request["tile"])
        return plan_to_json(plan, self._kernel_to_json, self._keep)

    def attempt(self, request: Json) -> Json:
        """The replies to what an attempt asks, by question, up to where it ends; no claim: see `PrefetchedReplies`.

        `tile` is what its plan is for: `wanted` sizes beside the default ones.
        """
        variant, wanted = self._variant(request), request["wanted"]
        replies: dict[str, Json] = {"tile": None}

        def ask(what: str) -> Json:
            replies[what], _ = _answer(self, request | {"what": what, "tile": replies["tile"]}, [])
            return replies[what].get("answer")

        if ask("supports") is not None or "error" in replies["supports"]:
            return replies
        if untaken_features(variant, self._problem(request)):
            return replies
        tiles = None if variant.tiles is None else ask("tiles")
        if wanted is not None:
            replies["tile"] = {**tiles[0], **wanted} if tiles else wanted
            if not tiles or replies["tile"] not in tiles:
                return replies
        ask("plan")
        return replies

    def compile(self, request: Json) -> Json:
        """A kernel's PTX, unless it was sent before, and its parameters' bytes for the arguments, if any are given."""
        kernel, said = self._kernel(request), request["args"]
        args = tuple(self._unkept(argument_from_json(each)) for each in said or ())
        compiled = toolchain_of(kernel).compile(kernel, args, request["arch"])
        words, misfit = None, ""
        if said is not None:
            try:
                words = [word.hex() for word in compiled.pack(args)]
            except PlanError as error:
                misfit = str(error)
        known = self._texts.get(compiled.ptx)
        if known is None:
            known = self._texts[compiled.ptx] = self._next()
            if len(self._texts) > KNOWN_TEXTS:
                self._texts.popitem(last=False)
            text = compiled.ptx
        else:
            text = None
        return {
            "text": known,
            "ptx": text,
            "entry": compiled.entry,
            "name": compiled.name,
            "arch": compiled.arch,
            "parameters": [[p.type, p.size_bytes, p.align_bytes, p.is_array] for p in compiled.parameters],
            "signature": list(compiled.signature),
            "max_registers": compiled.max_registers,
            "words": words,
            "misfit": misfit,
        }

    def machine_code(self, request: Json) -> Json:
        """See `Toolchain.machine_code`; in hexadecimal digits."""
        kernel = self._kernel(request)
        code = toolchain_of(kernel).machine_code(kernel, request["arch"])
        return None if code is None else code.hex()

    def source(self, request: Json) -> Json:
        """See `Toolchain.source`."""
        kernel = self._kernel(request)
        return str(toolchain_of(kernel).source(kernel))

    def options(self, request: Json) -> Json:
        """See `Toolchain.options`."""
        kernel = self._kernel(request)
        return [str(option) for option in toolchain_of(kernel).options(kernel)]

    def identity(self, request: Json) -> Json:
        """See `Toolchain.identity`."""
        kernel = self._kernel(request)
        return toolchain_of(kernel).identity(kernel)

    def run(self, request: Json, arrays: list[bytes]) -> tuple[Json, list[bytes]]:
        """A plan run natively, by the executor that is made as `request` says: outputs, and how long it took."""
        problem = self._problem(request)
        plan = plan_from_json(request["plan"], lambda place, said: self._kernel({"kernel": said}), self._unkept)
        inputs = {
            tensor.name: np.frombuffer(data, _numpy_dtype(tensor.dtype)).reshape(tensor.shape)
            for tensor, data in zip(problem.inputs, arrays, strict=True)
        }
        done = self._executor(request["executor"], request["options"]).run(problem, plan, inputs)
        time = None if done.time_ms is None else [done.time_ms.low, done.time_ms.median, done.time_ms.high]
        outputs = {name: np.ascontiguousarray(array) for name, array in done.outputs.items()}
        said = {"outputs": list(outputs), "time_ms": time, "arrays": len(outputs)}
        return {"answer": said}, [array.tobytes() for array in outputs.values()]

    def _problem(self, request: Json) -> BaseProblem:
        """The very object that the last request was about, where this one is about the same."""
        said = request["problem"]
        if self._last_problem is None or said != self._last_said:
            self._last_said, self._last_problem = said, problem_from_json(said)
        return self._last_problem

    def _variant(self, request: Json) -> Variant:
        load, self._load = self._load, None
        if load is not None:
            try:
                variant = load()
            except SandboxError:
                raise
            except BaseException as error:
                raise SandboxError(where_and_what(error)) from error
            registry = Registry()
            registry.add(variant)
            self._loaded[THE_CALLER] = registry
        origin = Origin(*request["origin"])
        if origin not in self._loaded:
            registry = Registry()
            origin.load(registry, check_backend)
            self._loaded[origin] = registry
        if origin == THE_CALLER:
            (only,) = self._loaded[origin]
            return only
        return self._loaded[origin].get(request["variant"])

    def _kernel_to_json(self, launch: Launch) -> Json:
        """A number that stays the same for as long as it is the same kernel."""
        number = self._numbers.get(id(launch.kernel))
        if number is None or self._kept.get(number) is not launch.kernel:
            number = self._numbers[id(launch.kernel)] = self._keep(launch.kernel)
        self._kept.move_to_end(number)
        return {"number": number, "name": launch.kernel_name, "backend": toolchain_of(launch.kernel).name}

    def _kernel(self, request: Json) -> Any:
        (number,) = only_numbers(request["kernel"], "number")
        if number not in self._kept:
            raise CompileError("its plan is too old to be compiled: plan it anew")
        return self._kept[number]

    def _unkept(self, argument: Any) -> Any:
        return self._kept[argument.number] if isinstance(argument, RemoteArgument) else argument

    def _keep(self, thing: object) -> int:
        number = self._next()
        self._kept[number] = thing
        if len(self._kept) > KEPT_OBJECTS:
            _, oldest = self._kept.popitem(last=False)
            self._numbers.pop(id(oldest), None)
        return number

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _executor(self, name: str, options: Mapping[str, Any]) -> Executor:
        """One for each name and its options, such as `harness.gpu.executor:GpuExecutor`."""
        key = json.dumps([name, options])
        if key not in self._executors:
            module, _, attribute = name.partition(":")
            self._executors[key] = getattr(importlib.import_module(module), attribute)(**options)
        return self._executors[key]


def _key(origin: Origin) -> list[str]:
    return [origin.kind, origin.name, origin.package, origin.folder]


def _numpy_dtype(name: str) -> np.dtype:
    from harness.model.cases.regime import NUMPY_DTYPES

    return NUMPY_DTYPES.get(name) or np.dtype(name)
