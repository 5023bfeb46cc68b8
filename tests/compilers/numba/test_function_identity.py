"""Two functions with one identity compile to the same code; what is not understood has none."""

from __future__ import annotations

from collections import namedtuple
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int32
from sample_kernels import staged, twice

from harness.compilers.numba import function_identity

pytestmark = pytest.mark.compiles(False)


def identity(function: Any) -> str:
    text = function_identity.function_identity(cuda.jit(function))
    assert text is not None
    return text


def test_a_moved_line_is_another_identity() -> None:
    code = "def f(y):\n    y[0] = 1\n"
    spaces: list[dict[str, Any]] = [{}, {}]
    exec(compile(code, "a.py", "exec"), spaces[0])
    exec(compile("\n" + code, "a.py", "exec"), spaces[1])
    assert identity(spaces[0]["f"]) != identity(spaces[1]["f"])


def test_a_changed_constant_is_another_identity() -> None:
    spaces: list[dict[str, Any]] = [{}, {}]
    for space, number in zip(spaces, ("1.5", "2.5")):
        exec(compile(f"def f(y):\n    y[0] = {number}\n", "a.py", "exec"), space)
    assert identity(spaces[0]["f"]) != identity(spaces[1]["f"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        (np.float32(1), np.float64(1)),
        ((1, 2), (1, 3)),
        ((1, (2,)), (1, 2)),
        (np.dtype("f4"), np.dtype("f8")),
        (float32, int32),
        (np.zeros(2), np.ones(2)),
        (twice, staged),
        ("a", b"a"),
        (None, 0),
        (namedtuple("Pair", "x y"), namedtuple("Pair", "y x")),
        (namedtuple("Pair", "x y", defaults=(0,)), namedtuple("Pair", "x y", defaults=(1,))),
    ],
)
def test_closure_values_are_told_apart(one: Any, other: Any) -> None:
    def closing_over(value: Any) -> Any:
        def f(y):  # type: ignore[no-untyped-def]
            y[0] = value

        return f

    assert identity(closing_over(one)) != identity(closing_over(other))
    assert identity(closing_over(one)) == identity(closing_over(one))


def test_a_constant_of_a_users_module_is_part_of_the_identity() -> None:
    module = ModuleType("my_constants")
    module.TILE = 16  # type: ignore[attr-defined]

    def f(y):  # type: ignore[no-untyped-def]
        y[0] = module.TILE

    first = identity(f)
    module.UNRELATED = 1  # type: ignore[attr-defined]
    assert identity(f) == first
    module.TILE = 32  # type: ignore[attr-defined]
    assert identity(f) != first


def test_what_is_not_understood_is_not_cached() -> None:
    def plain(x: Any) -> Any:  # may stand for an overload that is registered elsewhere
        return x

    for value in (object(), plain, [1], {"a": 1}):

        def f(y):  # type: ignore[no-untyped-def]
            y[0] = value  # noqa: B023

        assert function_identity.function_identity(cuda.jit(f)) is None


def test_functions_that_call_each_other_end() -> None:
    @cuda.jit(device=True)
    def down(n):  # type: ignore[no-untyped-def]
        return down(n - 1) if n > 0 else 0

    def f(y):  # type: ignore[no-untyped-def]
        y[0] = down(3)

    assert identity(f) == identity(f)


def test_names_imported_from_numba_are_understood() -> None:
    from numba.cuda import grid, shared, syncthreads, threadIdx

    def f(y):  # type: ignore[no-untyped-def]
        tile = shared.array(4, float32)
        tile[threadIdx.x] = y[grid(1)]
        syncthreads()
        y[0] = tile[0]

    assert identity(f) == identity(f)


def test_an_intrinsic_is_what_defines_it() -> None:
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    def as_it_is(number: int) -> int:
        return number

    def negated(number: int) -> int:
        return -number

    def writing(number: int, sign: Any) -> Any:
        def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return context.get_constant(types.int32, sign(number))

        @intrinsic
        def chosen(typing_context):  # type: ignore[no-untyped-def]
            return types.int32(), emit

        def f(y):  # type: ignore[no-untyped-def]
            y[0] = chosen()

        return f

    assert identity(writing(1, as_it_is)) == identity(writing(1, as_it_is))
    assert identity(writing(1, as_it_is)) != identity(writing(2, as_it_is))
    assert identity(writing(1, as_it_is)) != identity(writing(1, negated))
