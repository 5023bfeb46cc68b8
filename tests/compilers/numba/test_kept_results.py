"""What is kept while Numba compiles changes the time that it takes, and nothing else."""

from __future__ import annotations

import operator
import re
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from counted_builds import Builds
from llvmlite import ir
from numba import cuda
from sample_kernels import ARCH, STAGED_ARGS, staged, twice

from harness.compilers import compile_kernel
from harness.compilers.numba import dispatcher, kept_results, shared_functions
from harness.support.cache import DIRECTORY_VARIABLE

_RUNNING_NUMBER = re.compile(r"(?<=B)\d+v\d+(?=B)|(?<=B)v\d+(?=B)|(?<=smem_)\d+")
"""Of what Numba names: functions and shared arrays."""


def compiled_lines() -> list[str]:
    """Of the kernel and its device function, compiled anew. Numba leaves the order of declarations to chance."""
    scope = {**staged.py_func.__globals__, "twice": cuda.jit(device=True)(twice.py_func)}
    function = type(staged.py_func)(staged.py_func.__code__, scope, "staged")
    lines = _RUNNING_NUMBER.sub("", compile_kernel(cuda.jit(function), STAGED_ARGS, ARCH).ptx).splitlines()
    return sorted(line for line in lines if not line.startswith(".b8"))  # the same names in bytes, for debuggers


def test_ptx_and_its_line_table_are_the_same(monkeypatch: pytest.MonkeyPatch, builds: Builds, tmp_path: Path) -> None:
    kept = compiled_lines()
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "another cache"))
    monkeypatch.setattr(shared_functions, "_compiled", OrderedDict())
    monkeypatch.setattr(dispatcher, "kept_results", nullcontext)
    assert compiled_lines() == kept
    assert builds.count == 2
    assert any(".loc" in line for line in kept)


def test_replaced_functions_exist_and_are_restored() -> None:
    found = kept_results._replacements()
    assert [(owner.__name__, name) for owner, name, _, _ in found] == [
        ("DIValue", "__hash__"),
        ("MDValue", "__hash__"),
        ("BaseContext", "get_abi_sizeof"),
        ("TargetConfig", "values"),
        ("CUDACodeLibrary", "llvm_strs"),
        ("CUDACodeLibrary", "modules"),
        ("BaseFunction", "get_call_type"),
        ("PostProcessor", "run"),
        ("DIBuilder", "_di_location"),
        ("_wrap_missing_loc", "__call__"),
        ("Inst", "_rec_list_vars"),
    ]
    with suppress(KeyError), kept_results.kept_results():
        assert [vars(owner)[name] for owner, name, _, _ in found] == [instead for *_, instead in found]
        raise KeyError
    assert [vars(owner)[name] for owner, name, _, _ in found] == [own for _, _, own, _ in found]


def test_sizes_are_kept_except_for_types_known_by_name() -> None:
    asked: list[str] = []

    def own(context: Any, kind: Any) -> int:
        asked.append(str(kind))
        return len(asked)

    def context() -> Any:
        return SimpleNamespace(codegen=lambda: target)

    size: Callable[[Any, Any], int] = kept_results._sized_once(own)
    target = SimpleNamespace()
    named = ir.Context().get_identified_type("named")
    for kind in (ir.IntType(32), ir.ArrayType(named, 2), ir.DoubleType()):
        size(context(), kind)
        size(context(), kind)  # of another function
    assert asked == ["i32", '[2 x %"named"]', '[2 x %"named"]', "double"]
    target = SimpleNamespace()
    assert size(context(), ir.IntType(32)) == 5  # another target has sizes of its own


def test_a_device_function_is_written_once_for_all_kernels_that_call_it() -> None:
    class Module:
        written = 0

        def __str__(self) -> str:
            self.written += 1
            return "text"

    class Library:
        def __init__(self, *modules: Module) -> None:
            self.modules = modules
            self._llvm_strs: list[str] | None = None

    strings = kept_results._written_once(property()).fget
    own, other, shared = Module(), Module(), Module()
    library = Library(own, shared, shared)
    assert strings(library) == strings(library) == ["text"] * 3
    assert strings(Library(other, shared)) == ["text"] * 2
    assert (own.written, other.written, shared.written) == (1, 1, 1)


def test_a_configuration_has_the_same_values_in_the_same_order() -> None:
    from numba.cuda.flags import CUDAFlags

    flags = CUDAFlags()
    plain = list(flags.values().items())
    flags.debuginfo = True
    own = list(flags.values().items())
    assert own != plain
    with kept_results.kept_results():
        assert list(flags.values().items()) == own
        assert list(CUDAFlags().values().items()) == plain


def test_a_library_has_each_module_once_in_order() -> None:
    modules = kept_results._each_once(property(lambda library: library.listed)).fget
    assert modules(SimpleNamespace(listed=["kernel", "b", "a", "b", "a"])) == ["kernel", "b", "a"]


class Typed:
    """A function as Numba types it; `key` is what its code is found by where no options matter."""

    typing_key = "add"

    def __init__(self, key: str) -> None:
        self.key = key
        self.asked: list[Any] = []
        self._impl_keys: dict[Any, Any] = {}

    def call_type(self, context: Any, args: Any, kws: Any) -> Any:
        self.asked.append((context, args))
        self._impl_keys[args] = self.key
        return SimpleNamespace(args=args)


def test_an_operator_is_looked_for_once_for_each_context_and_types() -> None:
    call_type = kept_results._called_once(Typed.call_type)
    function = Typed("add")
    first = call_type(function, "context", ("i32", "i32"), {})
    assert call_type(function, "context", ("i32", "i32"), {}) is first
    call_type(function, "context", ("i32", "f32"), {})
    call_type(function, "another", ("i32", "i32"), {})
    call_type(Typed("add"), "context", ("i32", "i32"), {})
    assert function.asked == [("context", ("i32", "i32")), ("context", ("i32", "f32")), ("another", ("i32", "i32"))]
    # What another overload has left under these types meanwhile is not what the operator is.
    function._impl_keys["i32", "i32"] = "compiled"
    call_type(function, "context", ("i32", "i32"), {})
    assert function._impl_keys["i32", "i32"] == "add"


def test_functions_from_python_or_called_by_keyword_are_not_kept() -> None:
    call_type = kept_results._called_once(Typed.call_type)
    compiled, by_keyword = Typed("compiled"), Typed("add")
    for _ in range(2):
        call_type(compiled, "context", ("i32",), {})
        call_type(by_keyword, "context", ("i32",), {"axis": "i32"})
    assert len(compiled.asked) == len(by_keyword.asked) == 2


def test_lives_of_variables_are_the_same_whenever_they_are_asked_for() -> None:
    from numba.cuda.core import bytecode, interpreter, postproc

    def loop(n):  # type: ignore[no-untyped-def]
        total = 0
        for i in range(n):
            total += i
        return total

    def lives(run: Callable[..., None]) -> Any:
        identity = bytecode.FunctionIdentity.from_function(loop)
        function = interpreter.Interpreter(identity).interpret(bytecode.ByteCode(func_id=identity))
        run(postproc.PostProcessor(function))
        found = function.variable_lifetime
        return found.livemap, found.usedefs, found.deadmaps

    own = postproc.PostProcessor.run
    assert lives(kept_results._lives_when_asked(own)) == lives(own)


def test_instructions_of_one_line_and_one_function_have_one_place() -> None:
    made: list[tuple[int, str]] = []

    def own(builder: Any, line: int) -> object:
        made.append((line, builder.subprograms[-1]))
        return object()

    place = kept_results._located_once(own)
    builder = SimpleNamespace(subprograms=["kernel"])
    assert place(builder, 7) is place(builder, 7) is not place(builder, 8)
    builder.subprograms.append("inner")
    assert place(builder, 7) is place(builder, 7)
    assert made == [(7, "kernel"), (8, "kernel"), (7, "inner")]


def test_an_emitter_gets_the_place_only_where_it_takes_one() -> None:
    from numba.cuda.core import base

    def without(value: int) -> str:
        return f"{value}"

    def with_place(value: int, loc: Any) -> str:
        return f"{value} at {loc}"

    with kept_results.kept_results():
        for _ in range(2):
            assert base._wrap_missing_loc(without)()(1, loc="line 3") == "1"
            assert base._wrap_missing_loc(with_place)()(1, loc="line 3") == "1 at line 3"
            assert base._wrap_missing_loc(with_place)() is with_place


def test_variables_are_listed_in_the_same_order() -> None:
    from numba.cuda.core import ir as numba_ir

    place = numba_ir.Loc("file.py", 1)
    a, b, c = (numba_ir.Var(None, name, place) for name in "abc")
    nested = {"first": [a, (b, "text")], "second": numba_ir.Expr.binop(operator.add, c, a, place), "third": None}
    statement = numba_ir.Assign(c, b, place)
    listed = statement._rec_list_vars(nested)
    with kept_results.kept_results():
        assert statement._rec_list_vars(nested) == listed
    assert [variable.name for variable in listed] == ["a", "b", "c", "a"]
