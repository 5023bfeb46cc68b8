"""Python functions that compiled code calls through the capsules of `__pyx_capi__`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from harness.device.cupy_runtime.cython_function import cython_functions, is_supported, signature_of

pytestmark = pytest.mark.compiles

DISPATCH = "int __pyx_skip_dispatch"


def compiled(function: Callable[..., Any], signature: str, *types: Any) -> Callable[..., Any]:
    """The C function that is made of a Python function; `types` are its result's and its parameters' types."""
    capsule = cython_functions({"function": (function, signature)})["function"]
    assert signature_of(capsule) == signature
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return ctypes.PYFUNCTYPE(*types)(pointer(capsule, signature.encode()))


def test_numbers_and_objects_arrive_unchanged() -> None:
    seen: list[tuple[Any, ...]] = []
    many = compiled(
        lambda *given: seen.append(given),
        f"PyObject *(size_t, int, unsigned int, intptr_t, float, PyObject *, {DISPATCH})",
        ctypes.py_object, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint, ctypes.c_int64, ctypes.c_float,
        ctypes.py_object, ctypes.c_int,
    )  # fmt: skip
    assert many(2**63 + 1, -1, 2**32 - 1, -5, 0.5, "text", 0) is None
    assert seen == [(2**63 + 1, -1, 2**32 - 1, -5, 0.5, "text")]


def test_one_tuple_is_one_argument() -> None:
    same = compiled(lambda given: given, "PyObject *(PyObject *)", ctypes.py_object, ctypes.py_object)
    assert same((1, 2)) == (1, 2)


@pytest.mark.parametrize(
    ("result", "kind", "value"),
    [
        ("int", ctypes.c_int, -7),
        ("unsigned int", ctypes.c_uint, 2**32 - 1),
        ("size_t", ctypes.c_size_t, 2**64 - 2),
        ("intptr_t", ctypes.c_int64, -(2**40)),
        ("float", ctypes.c_float, 0.25),
    ],
)
def test_results_and_exceptions(result: str, kind: Any, value: Any) -> None:
    def divide(by: int) -> Any:
        return value if 1 // by else None

    signature = f"{result} (int, {DISPATCH})"
    function = compiled(divide, signature, kind, ctypes.c_int, ctypes.c_int)
    assert function(1, 0) == value
    with pytest.raises(ZeroDivisionError):
        function(0, 0)


def test_an_optional_argument_has_its_default_if_the_caller_gives_none() -> None:
    signature = f"int (int, {DISPATCH}, struct opt_args *__pyx_optional_args)"
    function = compiled(
        lambda given, flags=40: given + flags, signature, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p
    )
    given = (ctypes.c_int * 2)(1, 5)
    assert function(2, 0, None) == 42
    assert function(2, 0, ctypes.addressof(given)) == 7
    given[0] = 0  # Cython's number of given arguments
    assert function(2, 0, ctypes.addressof(given)) == 42


def test_structures_are_not_supported() -> None:
    assert is_supported(f"int (int, {DISPATCH})") and is_supported("PyObject *(void)")
    assert not is_supported("cudaExtent (size_t, size_t, size_t)") and not is_supported("int")
    assert not is_supported("int (cudaPos)")
