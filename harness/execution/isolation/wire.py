"""Encodes problems, variants, plans and arguments as JSON between the judge and a planner. Nothing in it runs code.

Pickle is not used, because unpickling a planner's message would run a plugin's code in the judge. Messages are checked
while they are decoded, and again by the constructors of plans, launches and buffers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from harness.compilers.compiled_kernel import DevicePointer
from harness.compilers.remote_kernel import RemoteArgument
from harness.execution.isolation.replies import Json, Malformed, checked
from harness.model.discovery import Origin
from harness.model.numerics import Numerics
from harness.model.operation import operation_named
from harness.model.peer_copy import PeerCopy
from harness.model.plan import Buffer, Launch, Plan, Reshaped, map_leaves
from harness.model.problem import BaseProblem
from harness.model.tensor_map import TensorMap
from harness.model.traffic import Link
from harness.model.variant import Variant

PLAIN = (type(None), bool, int, float)
"""Types of scalars that JSON has."""
DEEPEST_TUPLE = 16
"""Tuples of arguments may be nested so deep."""
VARIANT_FIELDS = (
    "name",
    "operation",
    "algorithm",
    "backend",
    "idea",
    "takes",
    "arch",
    "takes_arch",
    "deterministic",
    "fails_in",
    "invariant_to",
)
"""Fields of `Variant` that are sent by name. The others are encoded separately."""


KNOWN_TEXTS = 256
"""PTX texts that are not sent again. Planner and judge cache the same texts in the same order."""
THE_CALLER = Origin("caller", "")
"""Origin of the variant of a planner with a `load`."""


def problem_to_json(problem: BaseProblem) -> Json:
    """Encode a problem for `problem_from_json`."""
    return [problem.operation, problem.to_fields()]


def problem_from_json(said: Json) -> BaseProblem:
    """Decode a problem."""
    operation, fields = said
    problem: BaseProblem = operation_named(operation).problem.from_fields(fields)
    return problem


def variant_to_json(variant: Variant, origin: str) -> Json:
    """Describe a variant without its functions."""
    said = {name: getattr(variant, name) for name in VARIANT_FIELDS}
    return said | {
        "takes": list(variant.takes),
        "fails_in": list(variant.fails_in),
        "invariant_to": list(variant.invariant_to),
        "numerics": dataclasses.asdict(variant.numerics),
        "has_tiles": variant.tiles is not None,
        "has_claim": variant.claim is not None,
        "origin": origin,
    }


def variant_fields(said: Json) -> dict[str, Any]:
    """Decode the fields of a `Variant` that are plain data. Raises `Malformed`."""
    fields: dict[str, Any] = {
        n: checked(said.get(n), str) for n in ("name", "operation", "algorithm", "backend", "idea")
    }
    for name in ("takes", "fails_in", "invariant_to"):
        fields[name] = tuple(checked(each, str) for each in checked(said.get(name), list))
    fields |= {name: checked(said.get(name), bool) for name in ("takes_arch", "deterministic")}
    arch = said.get("arch")
    fields["arch"] = None if arch is None else checked(arch, str)
    return fields | {"numerics": Numerics(**checked(said.get("numerics"), dict))}


def tile_from_json(said: Json) -> dict[str, int]:
    """Decode tile sizes. Raises `Malformed`."""
    return {checked(name, str): checked(size, int) for name, size in checked(said, dict).items()}


def argument_to_json(argument: Any, kept: Callable[[object], int]) -> Json:
    """Encode an argument of a launch. `kept` stores an argument that has no JSON form and returns its number."""
    import numpy as np

    if isinstance(argument, str):
        return {"buffer": str(argument)}
    if isinstance(argument, DevicePointer):
        strides = None if argument.strides is None else list(argument.strides)
        return {"pointer": [argument.address, list(argument.shape), argument.dtype, strides]}
    if isinstance(argument, RemoteArgument):
        return {"kept": argument.number}
    if type(argument) is tuple:
        return {"tuple": [argument_to_json(item, kept) for item in argument]}
    if type(argument) in PLAIN:
        return {"value": argument}
    if isinstance(argument, np.generic) and argument.dtype.kind in "biufc":
        return {"scalar": [argument.dtype.str, argument.tobytes().hex()]}
    if isinstance(argument, TensorMap):
        return {"tensor_map": dataclasses.asdict(argument)}
    if isinstance(argument, Reshaped):
        return {"reshaped": [argument.buffer, list(argument.shape)]}
    if type(argument) is np.void and argument.dtype.names is None:
        return {"bytes": argument.tobytes().hex()}
    return {"kept": kept(argument), "type": type(argument).__name__}


def argument_from_json(said: Json, depth: int = 0) -> Any:
    """Decode an argument, `depth` tuples down. A stored argument becomes a `RemoteArgument`. Raises `Malformed`."""
    import numpy as np

    said = checked(said, dict)
    if "buffer" in said:
        return checked(said["buffer"], str)
    if "pointer" in said:
        address, *extents, dtype, steps = checked(said["pointer"], list)
        (shape,) = (tuple(checked(n, int) for n in checked(each, list)) for each in extents)
        strides = None if steps is None else tuple(checked(n, int) for n in checked(steps, list))
        return DevicePointer(checked(address, int), shape, dtype, strides)
    if "tuple" in said:
        if depth == DEEPEST_TUPLE:
            raise Malformed("tuples in tuples in tuples, and so on")
        return tuple(argument_from_json(item, depth + 1) for item in checked(said["tuple"], list))
    if "value" in said:
        return checked(said["value"], *PLAIN)
    if "scalar" in said:
        name, digits = checked(said["scalar"], list)
        dtype = np.dtype(checked(name, str))
        if dtype.kind not in "biufc":
            raise Malformed(f"a scalar of {dtype}")
        return np.frombuffer(bytes.fromhex(checked(digits, str)), dtype)[0]
    if "reshaped" in said:
        buffer, extents = checked(said["reshaped"], list)
        return Reshaped(checked(buffer, str), tuple(checked(n, int) for n in checked(extents, list)))
    if "tensor_map" in said:
        return _tensor_map(checked(said["tensor_map"], dict))
    if "bytes" in said:
        return np.void(bytes.fromhex(checked(said["bytes"], str)))
    return RemoteArgument(checked(said.get("kept"), int), checked(said.get("type", ""), str))


def _tensor_map(said: dict[str, Json]) -> TensorMap:
    def sizes(name: str) -> tuple[int, ...]:
        return tuple(checked(size, int) for size in checked(said.get(name), list))

    return TensorMap(
        checked(said.get("buffer"), str),
        sizes("extents"),
        sizes("strides"),
        sizes("box"),
        checked(said.get("dtype"), str),
        checked(said.get("swizzle"), int),
    )


def plan_to_json(plan: Plan, kernel_to_json: Callable[[Launch], Json], kept: Callable[[object], int]) -> Json:
    """Encode the buffers and launches of a plan. `kernel_to_json` encodes a launch's kernel."""
    return {
        "buffers": [[buffer.name, list(buffer.shape), buffer.dtype, buffer.device] for buffer in plan.buffers],
        "copies": [list(dataclasses.astuple(copy)) for copy in plan.copies],
        "launches": [
            {
                "kernel": kernel_to_json(launch),
                "grid": list(launch.grid),
                "block": list(launch.block),
                "args": [argument_to_json(argument, kept) for argument in launch.args],
                "shared_bytes": launch.shared_bytes,
                "cluster": None if launch.cluster is None else list(launch.cluster),
                "device": launch.device,
                "overlaps_previous": launch.overlaps_previous,
            }
            for launch in plan.launches
        ],
    }


def plan_from_json(
    said: Json, kernel_from_json: Callable[[int, Json], Any], unkept: Callable[[Any], Any] = lambda argument: argument
) -> Plan:
    """Decode a plan. Raises `PlanError`, or `Malformed` if a part has another form.

    `kernel_from_json` receives a launch's index and its encoded kernel. `unkept` is applied to each argument or item,
    and replaces a `RemoteArgument` by the stored argument in the planner.
    """
    said = checked(said, dict)
    buffers = tuple(Buffer(*checked(each, list)) for each in checked(said.get("buffers"), list))
    launches = tuple(
        Launch(
            kernel_from_json(place, checked(each, dict).get("kernel")),
            each.get("grid"),
            each.get("block"),
            tuple(map_leaves(unkept, argument_from_json(argument)) for argument in checked(each.get("args"), list)),
            each.get("shared_bytes"),
            each.get("cluster"),
            device=checked(each.get("device"), int),
            overlaps_previous=checked(each.get("overlaps_previous"), bool),
        )
        for place, each in enumerate(checked(said.get("launches"), list))
    )
    copies = tuple(PeerCopy(*checked(each, list)) for each in checked(said.get("copies"), list))
    return Plan(launches, buffers, copies=copies)


def link_from_json(said: Json) -> Link:
    """Decode the bytes between two devices. Raises `Malformed`."""
    source, destination, size_bytes = (checked(each, int) for each in checked(said, list))
    return Link(source, destination, size_bytes)


def only_numbers(fields: Mapping[str, Any], *names: str) -> tuple[int, ...]:
    """Return these fields, each of which must be an integer. Raises `Malformed`."""
    return tuple(checked(checked(fields, dict).get(name), int) for name in names)
