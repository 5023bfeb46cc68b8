"""What Numba and llvmlite work out thousands of times per kernel, kept while a kernel compiles: it takes a third less.

Nothing that is compiled changes. What a version of theirs does not have, or has elsewhere, is left as it is.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

Method = Any
"""A function, or a property."""


@contextlib.contextmanager
def kept_results() -> Iterator[None]:
    """Replace methods of their classes until the end. Only for who holds Numba's compiler lock."""
    with contextlib.ExitStack() as undo:
        for owner, name, own, instead in _replacements():
            undo.callback(setattr, owner, name, own)
            setattr(owner, name, instead)
        yield


@functools.cache
def _replacements() -> tuple[tuple[type, str, Method, Method], ...]:
    """Classes, names of methods, these, and what comes to the same in less time."""
    found = []
    for module, owner, name, wrap in (
        # The place of an instruction hashes its function's description, which hashes its file's, and so on.
        ("llvmlite.ir.values", "DIValue", "__hash__", _hashed_once),
        ("llvmlite.ir.values", "MDValue", "__hash__", _hashed_once),
        # llvmlite writes a module and has LLVM read it, to learn how many bytes one type has.
        ("numba.cuda.core.base", "BaseContext", "get_abi_sizeof", _sized_once),
        # Some thirty options, each through a property, whenever the code of an operator is looked for.
        ("numba.cuda.core.targetconfig", "TargetConfig", "values", _valued_at_once),
        # A device function is written out anew for every kernel that calls it, when nothing changes it any more.
        ("numba.cuda.codegen", "CUDACodeLibrary", "llvm_strs", _written_once),
        # A function that is called by way of several others comes once for each, and libNVVM reads it as often.
        ("numba.cuda.codegen", "CUDACodeLibrary", "modules", _each_once),
        # An operator is looked for among some twenty templates wherever it stands, with the same types nearly always.
        ("numba.core.types.functions", "BaseFunction", "get_call_type", _called_once),
        # Which variables live where is worked out after each of some twenty passes, of which one or two ask for it.
        ("numba.cuda.core.postproc", "PostProcessor", "run", _lives_when_asked),
        # Instructions of one line have one description, which is put together for each.
        ("numba.cuda.debuginfo", "DIBuilder", "_di_location", _located_once),
        # Whether what emits an operator takes a place in the source is seen from its signature, each time it emits one.
        ("numba.cuda.core.base", "_wrap_missing_loc", "__call__", _wrapped_once),
        # Which of five kinds of thing an operand is depends on its class, and is asked half a million times.
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
        # Each function has a context of its own; what emits for one target is the same object in all of them.
        sizes: dict[str, int] = vars(context.codegen()).setdefault("kept_sizes", {})
        text = str(kind)
        known = sizes.get(text)
        if known is None:
            known = own(context, kind)
            if "%" not in text:  # a name, which may come to stand for something else
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
            # What Python code was compiled for depends on options, too, and is looked for each time.
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
        except TypeError:  # a callable that cannot be kept
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
