"""Line tables without variables: what numba-cuda says of variables to debuggers is left out where only lines are asked.

With lineinfo=True numba-cuda calls llvm.dbg.declare and llvm.dbg.value as for debug=True, though PTX then has no place
for what they say. Where code generation moves the end of a variable's range, libNVVM asks for a label that has no name
and refuses the kernel: "Symbol name with unsupported characters". Which kernels these are nobody can foresee.
The types of a function's parameters have no place either, and take longer to describe than its lines.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

Method = Any
"""A function of a class."""


@contextlib.contextmanager
def line_tables_without_variables() -> Iterator[None]:
    """Replace methods of numba-cuda's classes until the end. Only for who holds Numba's compiler lock."""
    from numba.cuda.debuginfo import CUDADIBuilder as builder

    with contextlib.ExitStack() as undo:
        for name in ("mark_variable", "update_variable"):
            own = vars(builder).get(name)
            if own is not None:  # older versions have no update_variable
                undo.callback(setattr, builder, name, own)
                setattr(builder, name, _unless_only_lines(own))
        own = vars(builder).get("_di_subroutine_type")
        if own is not None:
            undo.callback(setattr, builder, "_di_subroutine_type", own)
            builder._di_subroutine_type = _without_types(own)
        yield


def _unless_only_lines(own: Method) -> Method:
    def marked(builder: Any, *arguments: Any, **options: Any) -> Any:
        if builder.emission_kind != "DebugDirectivesOnly":
            return own(builder, *arguments, **options)

    return marked


def _without_types(own: Method) -> Method:
    """A function's description has to have a type; a line table says nothing of those of its parameters."""

    def described(builder: Any, *arguments: Any, **options: Any) -> Any:
        if builder.emission_kind != "DebugDirectivesOnly":
            return own(builder, *arguments, **options)
        return builder.module.add_debug_info("DISubroutineType", {"types": builder.module.add_metadata([])})

    return described
