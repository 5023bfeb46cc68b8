"""Compiles a function under `numba.cuda.jit` to PTX, with its dispatcher's options and the types of a native launch."""

from __future__ import annotations

import contextlib
import json
import linecache
import re
import traceback
import weakref
from collections.abc import Iterator, MutableMapping
from importlib import metadata
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np

from harness.compilers.compiled_kernel import CompiledKernel
from harness.compilers.numba.arguments import signature_of
from harness.compilers.numba.function_identity import function_identity
from harness.compilers.numba.kept_results import kept_results
from harness.compilers.numba.shared_functions import shared_device_functions
from harness.compilers.toolchain import Toolchain
from harness.ptx.device_runtime import RUNTIME_FUNCTIONS
from harness.ptx.parsing.declarations import entry_parameters
from harness.ptx.statements import functions
from harness.ptx.targets import Target
from harness.support.cache import default_cache
from harness.support.errors import CompileError, PlanError

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_REMOVED_FROM_NUMPY = re.compile(r"module 'numpy' has no attribute '(\w+)'")
# The driver provides these functions on a GPU. Their behaviour is documented, and no file has to be linked.
_SYSTEM_CALLS = {"vprintf", "malloc", "free", "__assertfail", *RUNTIME_FUNCTIONS}


def compile_dispatcher(dispatcher: Any, toolchain: Toolchain, args: tuple[Any, ...], arch: str) -> CompiledKernel:
    """Compile for `arch` and the types of `args`.

    Raises `CompileError` with Numba's own message, and `PlanError` if the number of arguments is wrong.
    """
    name = str(dispatcher.py_func.__name__)
    arch = feature_arch(dispatcher, arch) or arch
    _check_count(dispatcher, name, args)
    signature = signature_of(name, args)
    known = _known.setdefault(dispatcher, {})
    compiled = known.get((signature, arch))
    if compiled is None:
        compiled = known[signature, arch] = _compiled(dispatcher, toolchain, name, signature, arch)
    return compiled


def feature_arch(dispatcher: Any, arch: str) -> str | None:
    """Return `sm_90a` if `arch` is `sm_90` and the kernel is decorated with `cuda.jit(arch="sm_90a")`, otherwise None.

    Numba stores this option and ignores it. Raises `CompileError` if its value is not an architecture.
    """
    requested = dispatcher.targetoptions.get("arch")
    if requested is None:
        return None
    if not isinstance(requested, str) or Target.named(requested) is None:
        raise CompileError(f'kernel {dispatcher.py_func.__name__} has arch={requested!r}; write arch="sm_90a"')
    return requested if requested.rstrip("af") == arch and requested != arch else None


# A dispatcher compiles once per signature, as on a GPU. Later changes to its globals have no effect.
_known: MutableMapping[Any, dict[Any, CompiledKernel]] = weakref.WeakKeyDictionary()


def _compiled(
    dispatcher: Any, toolchain: Toolchain, name: str, signature: tuple[Any, ...], arch: str
) -> CompiledKernel:
    options = dict(dispatcher.targetoptions)
    _check_options(name, options)
    ptx = _compile(dispatcher, name, signature, options, arch)
    entries = entry_parameters(ptx)
    if len(entries) != 1:
        raise CompileError(f"kernel {name} compiled to {len(entries)} entry points ({', '.join(entries)}) instead of 1")
    called = {function.name for function in functions(ptx) if function.is_extern}
    missing = called - _SYSTEM_CALLS
    if missing:
        raise CompileError(
            f"kernel {name} calls {', '.join(sorted(missing))}, which would have to be linked from elsewhere; "
            "only a GPU's Numba does that. Write the function under numba.cuda.jit(device=True)"
        )
    ((entry, parameters),) = entries.items()
    return CompiledKernel(
        ptx=ptx,
        entry=entry,
        name=name,
        toolchain=toolchain,
        arch=arch,
        parameters=parameters,
        signature=tuple(str(numba_type) for numba_type in signature),
        max_registers=options.get("max_registers"),
        cooperative=not called.isdisjoint(RUNTIME_FUNCTIONS),
    )


def _check_options(name: str, options: dict[str, Any]) -> None:
    if options.get("device"):
        raise PlanError(f"{name} is a device function; only a kernel (cuda.jit without device=True) can be launched")
    if options.get("link"):
        files = ", ".join(str(getattr(file, "name", None) or file) for file in options["link"])
        raise CompileError(f"kernel {name} links {files}; only a GPU's Numba does that. Write it as a device function")
    if options.get("extensions"):
        raise CompileError(
            f"kernel {name} has extensions= that translate its arguments; pass what they come to instead"
        )


def _check_count(dispatcher: Any, name: str, args: tuple[Any, ...]) -> None:
    code = dispatcher.py_func.__code__
    if code.co_flags & 0x04:  # the flag CO_VARARGS: the function takes *args
        return
    wanted = code.co_varnames[: code.co_argcount]
    if len(args) != len(wanted):
        raise PlanError(
            f"kernel {name} takes {len(wanted)} arguments ({', '.join(wanted)}), but it is given {len(args)}"
        )


def _compile(dispatcher: Any, name: str, signature: tuple[Any, ...], options: dict[str, Any], arch: str) -> str:
    def build() -> bytes:
        return _run_numba(dispatcher.py_func, name, signature, options, arch).encode()

    identity = function_identity(dispatcher)
    if identity is None:
        return build().decode()
    key = (identity, json.dumps([str(t) for t in signature]), arch, "lines without variables")
    return default_cache().cached("numba", key, build).decode()


def _run_numba(py_func: Any, name: str, signature: tuple[Any, ...], options: dict[str, Any], arch: str) -> str:
    from numba import cuda

    debug = bool(options.get("debug"))
    kept = {key: options[key] for key in ("fastmath", "opt", "launch_bounds") if options.get(key) is not None}
    target = Target.named(arch)
    if target is None:
        raise CompileError(f"arch is {arch!r}; it has to look like sm_90")
    cc = (*divmod(target.number, 10), target.suffix) if target.suffix else divmod(target.number, 10)
    try:
        with (
            _device_functions_without_driver(cc, lineinfo=not debug),
            line_tables_without_variables(),
            shared_device_functions((cc, debug)),
            kept_results(),
        ):
            ptx, _ = cuda.compile_ptx(py_func, signature, debug=debug, lineinfo=not debug, cc=cc, **kept)
    except Exception as error:  # Numba, NVVM and the bindings have no common base class of errors
        message = _ANSI.sub("", str(error)).strip() or type(error).__name__
        removed = _REMOVED_FROM_NUMPY.fullmatch(message)
        if removed and isinstance(error, AttributeError) and removed[1] not in py_func.__code__.co_names:
            raise CompileError(_too_new_a_numpy(removed[1])) from error
        file, line = py_func.__code__.co_filename, _failing_line(error, py_func.__code__)
        shown = f"{linecache.getline(file, line).strip()}\n{message}".lstrip("\n")
        raise CompileError(f"kernel {name} ({file}:{line}) did not compile with Numba:\n{shown}") from error
    return str(ptx)


def _failing_line(error: Exception, code: CodeType) -> int:
    """The line in the kernel's file that Numba was compiling when it raised the error; otherwise the kernel's first.

    Most of Numba's messages do not name the line, but the frames of the traceback hold it.
    """
    line = code.co_firstlineno
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for name in ("self", "inst", "expr", "loc"):
            found = frame.f_locals.get(name)
            place: Any = getattr(found, "loc", found)
            if getattr(place, "filename", None) == code.co_filename and isinstance(place.line, int):
                line = place.line
    return line


def _too_new_a_numpy(name: str) -> str:
    """Describe the error that the installed NumPy lacks `numpy.<name>`, which Numba needs to compile any kernel."""
    here = np.lib.NumpyVersion(np.__version__)
    return (
        f"numba-cuda {metadata.version('numba-cuda')} does not go with NumPy {np.__version__}, which has no "
        f"numpy.{name} any more; run: pip install 'numpy<{here.major}.{here.minor}' (or -r requirements.txt)"
    )


@contextlib.contextmanager
def _device_functions_without_driver(cc: tuple[Any, ...], *, lineinfo: bool) -> Iterator[None]:
    """Allow device functions to be compiled without a GPU, and with line information.

    `compile_ptx` takes the compute capability as an argument. A device function that the kernel calls, however, queries
    the current device for it, and takes `lineinfo` only from its own decorator.
    """
    from numba.cuda import dispatcher
    from numba.cuda.core.compiler_lock import global_compiler_lock

    def compile_with_lines(*args: Any, **options: Any) -> Any:
        return compile_cuda(*args, **{**options, "lineinfo": lineinfo and not options.get("debug")})

    with global_compiler_lock:  # reentrant; prevents other compilations while the module's names are replaced
        compile_cuda = dispatcher.compile_cuda
        get_current_device = dispatcher.get_current_device
        dispatcher.compile_cuda = compile_with_lines
        dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=cc)
        try:
            yield
        finally:
            dispatcher.compile_cuda = compile_cuda
            dispatcher.get_current_device = get_current_device


@contextlib.contextmanager
def line_tables_without_variables() -> Iterator[None]:
    """Keep numba-cuda from emitting debug information for variables when only lines are needed.

    The caller must hold Numba's compiler lock. With lineinfo=True, numba-cuda calls llvm.dbg.declare and llvm.dbg.value
    as for debug=True, although the resulting PTX does not contain this information. If code generation moves the end of
    a variable's live range, libNVVM refers to an unnamed label and rejects the kernel: "Symbol name with unsupported
    characters". Which kernels it rejects cannot be predicted. The types of a function's parameters are not in the PTX
    either, and describing them takes longer than describing the lines.
    """
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


def _unless_only_lines(own: Any) -> Any:
    def marked(builder: Any, *arguments: Any, **options: Any) -> Any:
        if builder.emission_kind != "DebugDirectivesOnly":
            return own(builder, *arguments, **options)

    return marked


def _without_types(own: Any) -> Any:
    """Replace a function's debug type by an empty one, since a line table does not need the types of its parameters."""

    def described(builder: Any, *arguments: Any, **options: Any) -> Any:
        if builder.emission_kind != "DebugDirectivesOnly":
            return own(builder, *arguments, **options)
        return builder.module.add_debug_info("DISubroutineType", {"types": builder.module.add_metadata([])})

    return described
