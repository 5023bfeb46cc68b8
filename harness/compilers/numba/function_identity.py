"""Identifies a jitted function by a text of everything that its machine code depends on.

The text contains its bytecode, constants, closure and globals. Two functions with the same text compile to the same
PTX. A function that refers to a value of unknown kind has no identity (None). It is then compiled again, so a cached
result is never stale.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import os
import sys
import types
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import numpy as np

from harness.support.errors import CompileError

# Modules whose behaviour depends only on their version. Of the user's own modules, the attributes are compared.
_VERSIONED = ("numba", "numpy", "cuda", "llvmlite", "ml_dtypes", "cupy")


class _Unidentifiable(Exception):
    pass


def function_identity(dispatcher: Any) -> str | None:
    """Return the text that identifies a dispatcher's function, options and compiler; None if that is impossible."""
    walk = _Walk()
    try:
        parts = ["\n".join(compiler_versions()), *walk.value(dispatcher)]
    except (_Unidentifiable, RecursionError):
        return None
    return "\n".join(parts)


@functools.cache
def compiler_versions() -> tuple[str, ...]:
    """Return the versions of everything outside of a function that affects the code that Numba emits."""
    settings = sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith("NUMBA_"))
    packages = [f"{name} {_version(name)}" for name in ("numba-cuda", "numba", "llvmlite", "numpy", "cuda-bindings")]
    return (f"python {sys.version_info[:3]}", *packages, _nvvm_identity(), *settings)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _nvvm_identity() -> str:
    from cuda import pathfinder

    try:
        status = os.stat(str(pathfinder.load_nvidia_dynamic_lib("nvvm").abs_path))
    except RuntimeError as error:  # raised by pathfinder if the library is not found
        raise CompileError(
            f"libNVVM is not available ({error}); run: pip install nvidia-cuda-nvcc-cu12 (CUDA 13: nvidia-nvvm)"
        ) from error
    return f"libnvvm {status.st_size} {status.st_mtime_ns}"


class _Walk:
    """Traverses everything that a function refers to, and describes each function once."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.emitting = False
        """Whether the current code runs in Python while Numba compiles, such as the definition of an intrinsic."""

    def value(self, value: Any) -> Iterator[str]:
        """Yield lines that identify `value`. Raises `_Unidentifiable`."""
        kind = type(value)
        if value is None or value is Ellipsis or kind in (bool, int, float, complex, str, bytes):
            yield f"{kind.__name__} {value!r}"
        elif isinstance(value, np.dtype):
            yield f"dtype {value.descr!r} {value.itemsize} {value.alignment}"
        elif isinstance(value, np.generic) and not value.dtype.hasobject:
            yield f"scalar {value.dtype.descr!r} {value.tobytes().hex()}"
        elif kind is np.ndarray and not value.dtype.hasobject:
            digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            yield f"array {value.dtype.descr!r} {value.shape} {value.strides} {value.flags.writeable} {digest}"
        elif isinstance(value, (tuple, frozenset)):
            yield from self._collection(value)
        elif kind in (range, slice):
            yield f"{kind.__name__} {value!r}"
        elif isinstance(value, enum.Enum):
            yield f"enum {kind.__module__}.{kind.__qualname__}.{value.name}"
            yield from self.value(value.value)
        elif isinstance(value, types.CodeType):
            yield from self._code(value)
        elif hasattr(value, "py_func") and hasattr(value, "targetoptions"):
            yield from self._dispatcher(value)
        elif _is_intrinsic(value):
            yield from self._intrinsic(value)
        elif self.emitting and isinstance(value, types.FunctionType) and _versioned_name(value) is None:
            yield from self._once(value, "called function", self._function(value))
        else:
            yield from self._named(value)

    def module(self, module: types.ModuleType, names: set[str]) -> Iterator[str]:
        """Yield lines that identify a module: its version, or those of its attributes that are in `names`."""
        package = module.__name__.partition(".")[0]
        if package in sys.stdlib_module_names:
            yield f"module {module.__name__}"
        elif package in _VERSIONED:
            yield f"module {module.__name__} {getattr(sys.modules.get(package), '__version__', '')}"
        else:
            if id(module) in self.seen:
                return
            self.seen[id(module)] = len(self.seen)
            yield f"module {module.__name__}"
            for name in sorted(names):
                if name in module.__dict__:
                    yield f"attribute {name}"
                    yield from self._referred(module.__dict__[name], names)
            self.seen.pop(id(module))

    def _referred(self, value: Any, names: set[str]) -> Iterator[str]:
        if isinstance(value, types.ModuleType):
            yield from self.module(value, names)
        else:
            yield from self.value(value)

    def _collection(self, value: Any) -> Iterator[str]:
        if type(value) is frozenset:
            lines = sorted("\n".join(self.value(item)) for item in value)
        elif type(value) is tuple or hasattr(value, "_fields"):
            lines = [line for item in value for line in self.value(item)]
        else:
            raise _Unidentifiable
        fields = getattr(value, "_fields", ())
        yield f"{type(value).__module__}.{type(value).__qualname__} {fields} {len(value)}"
        yield from lines

    def _once(self, value: Any, title: str, lines: Iterator[str]) -> Iterator[str]:
        if id(value) in self.seen:
            yield f"again {self.seen[id(value)]}"
            return
        self.seen[id(value)] = len(self.seen)
        yield title
        yield from lines

    def _intrinsic(self, value: Any) -> Iterator[str]:
        before, self.emitting = self.emitting, True
        yield from self._once(value, "intrinsic", self._function(value.__wrapped__))
        self.emitting = before

    def _dispatcher(self, value: Any) -> Iterator[str]:
        title = f"dispatcher {type(value).__module__}.{type(value).__qualname__}"
        yield from self._once(value, title, self._dispatched(value))

    def _dispatched(self, value: Any) -> Iterator[str]:
        for option in sorted(value.targetoptions):
            yield f"option {option}"
            setting = value.targetoptions[option]
            yield from self.value(tuple(setting) if isinstance(setting, list) else setting)
        yield from self._function(value.py_func)

    def _function(self, function: Any) -> Iterator[str]:
        code = function.__code__
        yield f"function {function.__module__}.{function.__qualname__}"
        yield from self._code(code)
        yield from self.value(function.__defaults__)
        yield from self.value(tuple(sorted((function.__kwdefaults__ or {}).items())))
        names = {name for nested in _nested_codes(code) for name in nested.co_names}
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            yield f"closure {name}"
            try:
                content = cell.cell_contents
            except ValueError:
                yield "empty"
                continue
            yield from self._referred(content, names)
        for name in sorted(_global_names(code)):
            if name in function.__globals__:
                yield f"global {name}"
                yield from self._referred(function.__globals__[name], names)

    def _code(self, code: types.CodeType) -> Iterator[str]:
        # The line table is included, because PTX contains line numbers. Python 3.10 to 3.13 name it co_linetable.
        yield f"code {code.co_filename}:{code.co_firstlineno} {code.co_code.hex()} {code.co_linetable.hex()}"
        yield f"names {code.co_names} {code.co_varnames} {code.co_freevars} {code.co_cellvars} {code.co_argcount}"
        exceptions = getattr(code, "co_exceptiontable", b"")  # Python 3.11 and later
        yield f"flags {code.co_flags} {code.co_kwonlyargcount} {code.co_posonlyargcount} {exceptions.hex()}"
        yield from self.value(code.co_consts)

    def _named(self, value: Any) -> Iterator[str]:
        """Yield lines for objects identified by name: enums, named tuples, Numba types, what versioned packages hold.

        Raises `_Unidentifiable` for other objects.
        """
        kind = type(value)
        if isinstance(value, enum.EnumMeta):
            yield f"enum {value.__module__}.{value.__qualname__}"
            yield from self.value(tuple((name, value.__members__[name].value) for name in value.__members__))
        elif isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            yield f"named tuple {value.__module__}.{value.__qualname__} {value._fields}"
            yield from self.value(tuple(sorted(getattr(value, "_field_defaults", {}).items())))
        elif isinstance(value, np.ufunc):
            yield f"ufunc {value.__name__}"
        elif _is_numba_type(value):
            yield f"numba type {kind.__qualname__} {value!r}"
        elif (name := _versioned_name(value)) is not None:
            yield f"{kind.__name__} {name}"
        else:
            # Plain functions are rejected too: an overload registered elsewhere may define their meaning.
            raise _Unidentifiable


def _versioned_name(value: Any) -> str | None:
    """Return the name under which a versioned package holds this object, or None."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    package = module.partition(".")[0]
    if package not in _VERSIONED and package not in sys.stdlib_module_names:
        return None
    return f"{module}.{name}" if getattr(sys.modules.get(module), name, None) is value else None


def _is_intrinsic(value: Any) -> bool:
    return type(value).__name__ == "_Intrinsic" and type(value).__module__.startswith("numba.")


def _is_numba_type(value: Any) -> bool:
    return any(t.__name__ == "Type" and t.__module__.startswith("numba.") for t in type(value).__mro__)


def _nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested_codes(constant)


@functools.lru_cache(maxsize=1024)
def _global_names(code: types.CodeType) -> frozenset[str]:
    return frozenset(
        str(instruction.argval)
        for nested in _nested_codes(code)
        for instruction in dis.get_instructions(nested)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    )
