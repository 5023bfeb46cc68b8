"""Device functions that are the same are compiled once in a process, be they called by several kernels or made anew.

Numba compiles each jitted function object by itself. Whoever makes kernels for certain tile sizes makes all functions
that they call with them, most of which come to the same again: they depend on some of the sizes, or on none.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from harness.compilers.numba.function_identity import function_identity

MOST_KEPT = 512
"""A long search goes through many tile sizes, and each function keeps its code as objects."""

_compiled: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
"""Numba's results, by everything that they depend on; those that were used last are at the end."""


@contextlib.contextmanager
def shared_device_functions(target: tuple[Any, ...]) -> Iterator[None]:
    """Let `CUDADispatcher` compile no device function twice for `target`, which is what all of them are compiled for.

    Only for who holds Numba's compiler lock.
    """
    from numba.cuda.dispatcher import CUDADispatcher

    own = vars(CUDADispatcher).get("compile_device")
    if own is None:  # another version of numba-cuda, which compiles each by itself
        yield
        return
    CUDADispatcher.compile_device = _sharing(own, target)
    try:
        yield
    finally:
        CUDADispatcher.compile_device = own


def _sharing(own: Callable[..., Any], target: tuple[Any, ...]) -> Callable[..., Any]:
    def compile_device(dispatcher: Any, args: Any, return_type: Any = None) -> Any:
        if args in dispatcher.overloads:
            return dispatcher.overloads[args]
        # Before it is compiled: what its globals become meanwhile is not in it.
        identity = function_identity(dispatcher)
        if identity is None:
            return own(dispatcher, args, return_type)
        key = (identity, args, return_type, target)
        same = _compiled.get(key)
        if same is None:
            result = own(dispatcher, args, return_type)
        else:
            # Each needs a result of its own, whose id is what Numba finds its code by.
            result = dispatcher.overloads[args] = same._replace()
            result.target_context.insert_user_function(result.entry_point, result.fndesc, [result.library])
        _compiled[key] = result
        _compiled.move_to_end(key)
        if len(_compiled) > MOST_KEPT:
            _compiled.popitem(last=False)
        return result

    return compile_device
