"""Functions of Python as C functions that modules compiled by Cython `cimport` from another module."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from harness.emulator.native.llvm_compiler import compile_ir
from harness.emulator.native.object_loading import native_address
from harness.emulator.native.tier import Tier

_SIGNATURE = re.compile(r"(?P<result>.+?) ?\((?P<parameters>.*)\)")
_DISPATCH, _OPTIONAL = "int __pyx_skip_dispatch", "__pyx_optional_args"
"""Parameters of Cython's own. The first is not passed on. The second is a pointer to the number of optional arguments,
and the arguments. In CuPy's runtime there is never more than one, of 32 bits."""
_batches = itertools.count()


class _CType(NamedTuple):
    llvm: str
    build: str
    """Code of `Py_BuildValue`."""
    convert: str = ""
    """Function of Python that converts a result."""
    error: str = "-1"
    """Result with which Cython looks for an exception."""


_INT = _CType("i32", "i", "PyLong_AsLongLong")
_C_TYPES = {
    "int": _INT,
    "cudaMemcpyKind": _INT,
    "unsigned int": _CType("i32", "I", "PyLong_AsLongLong", "0"),
    "size_t": _CType("i64", "K", "PyLong_AsUnsignedLongLong"),
    "intptr_t": _CType("i64", "L", "PyLong_AsLongLong", "0"),
    "uintmax_t": _CType("i64", "K", "PyLong_AsUnsignedLongLong", "0"),
    "float": _CType("float", "d", "PyFloat_AsDouble", "0.0"),
}
_OBJECT = _CType("i8*", "O", "", "null")


def _c_type(text: str) -> _CType | None:
    if text == "PyObject *" or (text.startswith("struct __pyx_obj_") and text.endswith("*")):
        return _OBJECT
    return _C_TYPES.get(text)


class _Signature(NamedTuple):
    result: _CType
    parameters: list[tuple[_CType | None, str]]
    """Types, and their LLVM names. Cython's own parameters have no type."""
    has_optional: bool = False
    """Whether the last parameter is `_OPTIONAL`."""


def _parsed(signature: str) -> _Signature | None:
    match = _SIGNATURE.fullmatch(signature)
    result = match and _c_type(match["result"])
    if match is None or result is None:
        return None
    parameters: list[tuple[_CType | None, str]] = []
    for text in match["parameters"].split(", "):
        found = _c_type(text)
        if found is not None:
            parameters.append((found, found.llvm))
        elif text == _DISPATCH:
            parameters.append((None, "i32"))
        elif text.endswith(_OPTIONAL):
            parameters.append((None, "i8*"))
        elif text != "void":
            return None
    return _Signature(result, parameters, match["parameters"].endswith(_OPTIONAL))


def is_supported(signature: str) -> bool:
    """Whether there can be a function with this signature."""
    return _parsed(signature) is not None


def _python(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def _definition(symbol: str, function: object, signature: _Signature) -> str:
    """A C function in LLVM IR that calls an object, and returns with its exception."""
    result, parameters, has_optional = signature
    declared = ", ".join(f"{llvm} %p{index}" for index, (_, llvm) in enumerate(parameters))
    lines, passed, code = [], [], ""
    for index, (kind, _) in enumerate(parameters):
        if kind is None:
            continue
        code += kind.build
        if kind.llvm == "float":
            lines.append(f"%w{index} = fpext float %p{index} to double")
            passed.append(f", double %w{index}")
        else:
            passed.append(f", {kind.llvm} %p{index}")
    formats = [f"({code})"]
    if has_optional:
        # Without an optional argument, the format leaves out the one that is passed.
        formats.append(f"({code}I)")
        passed.append(", i32 %optional")
        given, nothing = f"%p{len(parameters) - 1}", f"bitcast ([2 x i32]* @{symbol}.nothing to i8*)"
        lines += [
            f"%is.absent = icmp eq i8* {given}, null",
            f"%struct = select i1 %is.absent, i8* {nothing}, i8* {given}",
            "%count.place = bitcast i8* %struct to i32*",
            "%count = load i32, i32* %count.place",
            "%optional.place = getelementptr i32, i32* %count.place, i32 1",
            "%optional = load i32, i32* %optional.place",
        ]
    build = [f"i8* bitcast ([{len(each) + 1} x i8]* @{symbol}.build{n} to i8*)" for n, each in enumerate(formats)]
    lines += [
        f"%is.short = icmp eq i32 {'%count' if has_optional else '0'}, 0",
        f"%build = select i1 %is.short, {build[0]}, {build[-1]}",
        f"%call = inttoptr i64 {_python('PyObject_CallFunction')} to i8* (i8*, i8*, ...)*",
        f"%function = inttoptr i64 {id(function)} to i8*",
        f"%object = call i8* (i8*, i8*, ...) %call(i8* %function, i8* %build{''.join(passed)})",
    ]
    if result is _OBJECT:
        lines.append("ret i8* %object")
    else:
        wide = "double" if result.llvm == "float" else "i64"
        narrow = {"i32": "trunc i64", "float": "fptrunc double"}.get(result.llvm)
        lines += [
            "%failed = icmp eq i8* %object, null",
            "br i1 %failed, label %raise, label %return",
            "raise:",
            f"ret {result.llvm} {result.error}",
            "return:",
            f"%convert = inttoptr i64 {_python(result.convert)} to {wide} (i8*)*",
            f"%value = call {wide} %convert(i8* %object)",
            f"%drop = inttoptr i64 {_python('Py_DecRef')} to void (i8*)*",
            "call void %drop(i8* %object)",
        ]
        if narrow:
            lines.append(f"%narrow = {narrow} %value to {result.llvm}")
        lines.append(f"ret {result.llvm} {'%narrow' if narrow else '%value'}")
    constants = [
        f'@{symbol}.build{number} = private constant [{len(each) + 1} x i8] c"{each}\\00"'
        for number, each in enumerate(formats)
    ]
    constants.append(f"@{symbol}.nothing = private constant [2 x i32] zeroinitializer")
    return "\n".join((*constants, f"define {result.llvm} @{symbol}({declared}) {{", *lines, "}", ""))


_alive: list[object] = []
"""Functions and names that C code refers to."""


def cython_functions(functions: Mapping[str, tuple[Callable[..., Any], str]]) -> dict[str, object]:
    """Capsules for the `__pyx_capi__` of a module, by name, of functions and their C signatures as Cython writes them.

    The functions are called with the arguments that the caller gives. What they raise, the caller gets. Each signature
    must be one that `is_supported`.
    """
    batch, text = next(_batches), ""
    for name, (function, signature) in functions.items():
        parsed = _parsed(signature)
        assert parsed is not None, signature
        text += _definition(f"cython_{batch}_{name}", function, parsed)
    native = compile_ir(text, Tier.BASELINE)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    capsules = {}
    for name, (function, signature) in functions.items():
        kept = ctypes.create_string_buffer(signature.encode())
        _alive.extend((function, kept))
        address = native_address(f"cython_{batch}_{name}", native)
        capsules[name] = new(address, ctypes.cast(kept, ctypes.c_char_p), None)
    return capsules


def signature_of(capsule: object) -> str:
    """The C signature of an entry of `__pyx_capi__`."""
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, (ctypes.py_object,)
    return bytes(name(capsule)).decode()
