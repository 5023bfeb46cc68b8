"""Runs in the planner process: imports variants and answers the judge's requests, one at a time.

The process has no access to answers, error budgets or counts. Its replies are plain data (see `wire`), and the judge
checks all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
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
from harness.execution.isolation.server import Load, leave_server
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
from harness.model.plan import Launch, map_leaves
from harness.model.problem import BaseProblem
from harness.model.variant import Registry, Variant
from harness.support.errors import CompileError, PlanError, PluginError, SandboxError
from harness.support.exception_place import where_and_what
from harness.support.processes.child_process import ProcessLog

_ALLOCATED_BETWEEN_COLLECTIONS = 1_000_000
"""Allocations between two garbage collections. Numba creates millions of small objects and retains most of them. 50,000
would cost 6 % of the compile time and Python's default of 700 another 10 %; without any collection, ten large kernels
take 60 MiB more memory."""
KEPT_OBJECTS = 4096
"""Maximum kernels and arguments that the judge can still refer to. A search makes thousands of plans, but uses each one
right away."""


def serve(
    connection: Connection,
    log: ProcessLog,
    lifeline: Connection,
    output: Connection,
    load: Load | None,
    packages: Sequence[str],
    most_bytes: int,
) -> None:
    """Answer requests until the judge closes the connection.

    `load` creates the only variant of this process; if it is None, the process serves variants of any origin.
    `packages` are imported before the first request. Output of plugins goes to `output`, which a `PluginOutput` reads;
    reports of crashes go to `log`. No process of the planner may allocate more than `most_bytes`.
    """
    fork_planner(lifeline, (connection, output), most_bytes)
    leave_server()
    _end_with(lifeline)
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    faulthandler.enable(log.begin())
    _import(packages)
    planner = Planner(load, connection.send_bytes)
    with contextlib.suppress(EOFError, ConnectionError):  # the judge may close the connection at any time
        _answer_requests(connection, planner)


def _answer_requests(connection: Connection, planner: Planner) -> None:
    while True:
        request = json.loads(connection.recv_bytes())
        planner.number = request["number"]
        arrays = [connection.recv_bytes() for _ in range(request.get("arrays", 0))]
        reply, sent = _answer(planner, request, arrays)
        try:
            message = message_of(reply | {"number": planner.number})
        except (TypeError, ValueError, RecursionError) as error:  # such as an integer of 5,000 digits in a plan
            wrong = PlanError(f"{request['what']}() answered what has no form as JSON: {error}")
            message, sent = message_of({"error": error_to_json(wrong), "number": planner.number}), []
        connection.send_bytes(message)
        for array in sent:
            connection.send_bytes(array)


def _import(packages: Sequence[str]) -> None:
    """Import the packages that are installed, and exclude the objects loaded so far from garbage collection."""
    gc.disable()
    for package in packages:
        with contextlib.suppress(Exception):  # code that needs the package reports that it is missing
            importlib.import_module(package)
    gc.freeze()
    gc.set_threshold(_ALLOCATED_BETWEEN_COLLECTIONS)
    gc.enable()


def _end_with(lifeline: Connection) -> None:
    """Make the operating system kill this process when the judge ends, whatever code is running.

    The judge holds the other end of the pipe `lifeline`. When the pipe breaks, SIGIO is sent, whose default action ends
    the process.
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
    except BaseException as error:  # includes any exception of a plugin; SIGINT is ignored in this process
        if isinstance(error, (SandboxError, Exception)):
            return {"error": error_to_json(error)}, []
        return {"error": error_to_json(PlanError(f"{what}() failed: {where_and_what(error)}"))}, []


class Planner:
    """State of a planner process: loaded variants, and the kernels and arguments that the judge can refer to."""

    def __init__(self, load: Load | None, send: Callable[[bytes], None]) -> None:
        self._load, self._send = load, send
        self.number = 0
        """Number of the request being answered; each message repeats it."""
        self._loaded: dict[Origin, Registry] = {}
        self._kept: OrderedDict[int, object] = OrderedDict()
        self._numbers: dict[int, int] = {}
        self._count = 0
        self._texts: OrderedDict[str, int] = OrderedDict()
        self._executors: dict[str, Executor] = {}
        self._last_said: Json = None
        self._last_problem: BaseProblem | None = None

    # Each public method answers the request of that name.

    def discover(self, request: Json) -> Json:
        """Return all variants and all broken modules.

        Each origin is announced before it is imported, because the import may crash or hang.
        """
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
        left_out = [[name, str(reason)] for name, reason in registry.left_out.items()]
        return {"variants": variants, "broken": broken, "left_out": left_out, "files": loaded_files()}

    def describe(self, request: Json) -> Json:
        """Describe the only variant of this process."""
        return variant_to_json(self._variant(request), "the caller")

    def supports(self, request: Json) -> Json:
        """Return the reason why the variant does not support the problem, or None (`declared_refusal`)."""
        return declared_refusal(self._variant(request), self._problem(request))

    def tiles(self, request: Json) -> Json:
        """Return the tile sizes that the variant offers for the problem (`declared_tiles`)."""
        return [dict(tile) for tile in declared_tiles(self._variant(request), self._problem(request))]

    def claim(self, request: Json) -> Json:
        """Return the variant's claimed traffic, as bytes read and bytes written, or None (`claimed_traffic`)."""
        problem = self._problem(request)
        claim = claimed_traffic(self._variant(request), problem, request["tile"])
        if claim is None:
            return None
        links = [list(dataclasses.astuple(link)) for link in claim.links]
        return [int(claim.read_bytes), int(claim.write_bytes), int(claim.further_read_bytes), links]

    def plan(self, request: Json) -> Json:
        """Plan the problem with the given tile sizes, for the given architecture; return the checked plan."""
        problem = self._problem(request)
        plan = checked_plan(self._variant(request), problem, request["tile"], request.get("arch"))
        return plan_to_json(plan, self._kernel_to_json, self._keep)

    def attempt(self, request: Json) -> Json:
        """Return the replies to all questions of one attempt, by question, up to the first that ends the attempt.

        The claimed traffic is not included. The entry `tile` holds the tile sizes of the plan: the variant's first
        choice, updated with `wanted`, or None without `wanted`.
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
        """Compile a kernel.

        Returns its PTX, unless it was sent before, and the bytes of its parameters for `args`, if given.
        """
        kernel, said = self._kernel(request), request["args"]
        args = tuple(map_leaves(self._unkept, argument_from_json(each)) for each in said or ())
        compiled = toolchain_of(kernel).compile(kernel, args, request["arch"])
        words, argument_error = None, ""
        if said is not None:
            try:
                words = [word.hex() for word in compiled.pack(args)]
            except PlanError as error:
                argument_error = str(error)
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
            "cooperative": compiled.cooperative,
            "words": words,
            "argument_error": argument_error,
            "threads": compiled.threads,
            "added_threads": compiled.added_threads,
            "shared_bytes": compiled.shared_bytes,
            "blocks_per_program": compiled.blocks_per_program,
        }

    def machine_code(self, request: Json) -> Json:
        """Return the kernel's machine code in hexadecimal digits, or None (`Toolchain.machine_code`)."""
        kernel = self._kernel(request)
        code = toolchain_of(kernel).machine_code(kernel, request["arch"])
        return None if code is None else code.hex()

    def source(self, request: Json) -> Json:
        """Return the kernel's source text (`Toolchain.source`)."""
        kernel = self._kernel(request)
        return str(toolchain_of(kernel).source(kernel))

    def expanded(self, request: Json) -> Json:
        """Return what of the source the kernel compiles (`Toolchain.expanded`)."""
        kernel = self._kernel(request)
        return str(toolchain_of(kernel).expanded(kernel))

    def options(self, request: Json) -> Json:
        """Return the options that the kernel is compiled with (`Toolchain.options`)."""
        kernel = self._kernel(request)
        return [str(option) for option in toolchain_of(kernel).options(kernel)]

    def identity(self, request: Json) -> Json:
        """Return the text that identifies the kernel's code, or None (`Toolchain.identity`)."""
        kernel = self._kernel(request)
        return toolchain_of(kernel).identity(kernel)

    def run(self, request: Json, arrays: list[bytes]) -> tuple[Json, list[bytes]]:
        """Run a plan natively with the requested executor. Returns the outputs and the measured time."""
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
        """Return the problem of a request. Consecutive requests about an equal problem share one object."""
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
        """Identify a launch's kernel by a number, which is the same for each launch of that kernel object."""
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
        """Return an executor by its name, such as `harness.gpu.executor:GpuExecutor`, and its options.

        Creates it once.
        """
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
