"""Compiles equal device functions once per process, even if several kernels call them or they are created repeatedly.

Numba compiles each jitted function object separately. A function that creates kernels for given tile sizes also creates
all device functions that they call, most of which are equal, since they depend on few or none of the sizes.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from harness.compilers.numba.function_identity import function_identity

MOST_KEPT = 512
"""Maximum compiled functions in the cache. A long search uses many tile sizes, and each result holds many objects."""

_compiled: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
"""Numba's results by everything that they depend on, least recently used first."""


@contextlib.contextmanager
def shared_device_functions(target: tuple[Any, ...]) -> Iterator[None]:
    """Make `CUDADispatcher` compile each device function only once for the compile options `target`.

    The caller must hold Numba's compiler lock.
    """
    from numba.cuda.dispatcher import CUDADispatcher

    own = vars(CUDADispatcher).get("compile_device")
    if own is None:  # a version of numba-cuda without this method
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
        # Computed before compilation, since globals may change meanwhile.
        identity = function_identity(dispatcher)
        if identity is None:
            return own(dispatcher, args, return_type)
        key = (identity, args, return_type, target)
        same = _compiled.get(key)
        if same is None:
            result = own(dispatcher, args, return_type)
        else:
            # Each dispatcher needs a separate result object, because Numba finds its code by the object's id.
            result = dispatcher.overloads[args] = same._replace()
            result.target_context.insert_user_function(result.entry_point, result.fndesc, [result.library])
        _compiled[key] = result
        _compiled.move_to_end(key)
        if len(_compiled) > MOST_KEPT:
            _compiled.popitem(last=False)
        return result

    return compile_device
