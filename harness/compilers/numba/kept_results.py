"""Caches results that Numba and llvmlite compute thousands of times per kernel. This saves a third of the compile time.

The compiled code does not change. Methods that an installed version lacks or has elsewhere are not replaced.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

Method = Any
"""A function or a property."""


@contextlib.contextmanager
def kept_results() -> Iterator[None]:
    """Replace the methods by caching ones within this context. The caller must hold Numba's compiler lock."""
    with contextlib.ExitStack() as undo:
        for owner, name, own, instead in _replacements():
            undo.callback(setattr, owner, name, own)
            setattr(owner, name, instead)
        yield


@functools.cache
def _replacements() -> tuple[tuple[type, str, Method, Method], ...]:
    """Return class, method name, original method and faster equivalent of each method to replace."""
    found = []
    for module, owner, name, wrap in (
        # Hashing an instruction's location hashes its function's description, which hashes its file's, and so on.
        ("llvmlite.ir.values", "DIValue", "__hash__", _hashed_once),
        ("llvmlite.ir.values", "MDValue", "__hash__", _hashed_once),
        # To determine the size of a type, llvmlite writes a module and lets LLVM parse it.
        ("numba.cuda.core.base", "BaseContext", "get_abi_sizeof", _sized_once),
        # About thirty options, each read through a property, at every lookup of an operator's implementation.
        ("numba.cuda.core.targetconfig", "TargetConfig", "values", _valued_at_once),
        # A device function is written out for every kernel that calls it, although it does not change any more.
        ("numba.cuda.codegen", "CUDACodeLibrary", "llvm_strs", _written_once),
        # A function that is called through several others is listed once for each, and libNVVM parses it each time.
        ("numba.cuda.codegen", "CUDACodeLibrary", "modules", _each_once),
        # Each use of an operator is resolved among about twenty templates, nearly always with the same types.
        ("numba.core.types.functions", "BaseFunction", "get_call_type", _called_once),
        # Live variables are computed after each of about twenty passes, but only one or two passes read them.
        ("numba.cuda.core.postproc", "PostProcessor", "run", _lives_when_asked),
        # The instructions of one line share a description, which is built for each of them.
        ("numba.cuda.debuginfo", "DIBuilder", "_di_location", _located_once),
        # The implementation's signature is inspected at every use, to see whether it takes a source location.
        ("numba.cuda.core.base", "_wrap_missing_loc", "__call__", _wrapped_once),
        # The kind of an operand depends on its class, but is determined half a million times.
        ("numba.cuda.core.ir", "Inst", "_rec_list_vars", _sorted_by_class),
    ):
        with contextlib.suppress(ImportError, AttributeError, KeyError):
            where = getattr(importlib.import_module(module), owner)
            own = vars(where)[name]
            found.append((where, name, own, wrap(own)))
    return tuple(found)


def _hashed_once(own: Method) -> Method:
    def hashed(value: Any) -> int:
        known: int | None = vars(value).get("kept_hash")
        if known is None:
            known = value.kept_hash = own(value)
        return known

    return hashed


def _sized_once(own: Method) -> Method:
    def size(context: Any, kind: Any) -> int:
        # Each function has its own context, but all contexts of one target share their code generator.
        sizes: dict[str, int] = vars(context.codegen()).setdefault("kept_sizes", {})
        text = str(kind)
        known = sizes.get(text)
        if known is None:
            known = own(context, kind)
            if "%" not in text:  # a named type, whose definition may change
                sizes[text] = known
        return known

    return size


def _valued_at_once(own: Method) -> Method:
    @functools.cache
    def defaults(kind: Any) -> dict[str, Any]:
        return {name: option.default for name, option in kind.options.items()}

    def values(config: Any) -> dict[str, Any]:
        kind: Any = type(config)
        return {**defaults(kind), **config._values}

    return values


def _called_once(own: Method) -> Method:
    def call_type(function: Any, context: Any, args: Any, kws: Any) -> Any:
        if kws:
            return own(function, context, args, kws)
        found: dict[Any, Any] = vars(function).setdefault("kept_call_types", {})
        signature = found.get((context, args))
        if signature is None:
            signature = own(function, context, args, kws)
            # The implementation compiled from Python code also depends on options, so it is not cached here.
            if function._impl_keys[signature.args] is function.typing_key:
                found[context, args] = signature
        else:
            function._impl_keys[signature.args] = function.typing_key
        return signature

    return call_type


def _lives_when_asked(own: Method) -> Method:
    def run(processor: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        from numba.cuda.core import postproc

        function = processor.func_ir
        if emit_dels or function.is_generator:
            own(processor, emit_dels, extend_lifetimes)
            return
        function.blocks = postproc.transforms.canonicalize_cfg(function.blocks)
        function.variable_lifetime = postproc.VariableLifetime(function.blocks)
        function.generator_info = None

    return run


def _located_once(own: Method) -> Method:
    def location(builder: Any, line: int) -> Any:
        places: dict[Any, Any] = vars(builder).setdefault("kept_locations", {})
        place = line, builder.subprograms[-1]
        known = places.get(place)
        if known is None:
            known = places[place] = own(builder, line)
        return known

    return location


def _wrapped_once(own: Method) -> Method:
    wrapped: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def with_place(wrapper: Any) -> Any:
        function = wrapper.func
        try:
            takes_place = wrapped.get(function)
        except TypeError:  # an unhashable callable
            return own(wrapper)
        if takes_place:
            return function
        made = own(wrapper)
        if takes_place is None:
            wrapped[function] = made is function
        return made

    return with_place


def _sorted_by_class(own: Method) -> Method:
    from numba.cuda.core import ir

    found: dict[type, str] = {}

    def class_of(kind: type) -> str:
        for classes, name in (
            (ir.var_types, "variable"),
            (ir.inst_types, "instruction"),
            ((list, tuple), "sequence"),
            (dict, "mapping"),
        ):
            if issubclass(kind, classes):
                return name
        return "other"

    def variables(instruction: Any, value: Any) -> list[Any]:
        kind = type(value)
        name = found.get(kind)
        if name is None:
            name = found[kind] = class_of(kind)
        if name == "other":
            return []
        if name == "variable":
            return [value]
        if name == "instruction":
            listed: list[Any] = value.list_vars()
            return listed
        inside = value if name == "sequence" else value.values()
        return [variable for each in inside for variable in variables(instruction, each)]

    return variables


def _each_once(own: Method) -> Method:
    return property(lambda library: list(dict.fromkeys(own.fget(library))))


def _written_once(own: Method) -> Method:
    texts: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    def written(module: Any) -> str:
        text = texts.get(module)
        if text is None:
            text = texts[module] = str(module)
        return text

    def written_library(library: Any) -> list[str]:
        if library._llvm_strs is None:
            library._llvm_strs = [written(module) for module in library.modules]
        strings: list[str] = library._llvm_strs
        return strings

    return property(written_library)
