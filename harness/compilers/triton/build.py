"""Runs Triton's stages up to PTX. They need neither a GPU nor `ptxas`."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping
from typing import Any

from harness.compilers.triton.kernel import TritonKernel
from harness.compilers.triton.signature import DIVISOR, Typed
from harness.ptx.targets import Target
from harness.support.cache import default_cache
from harness.support.errors import CompileError

MISSING = "Triton is not installed; run: pip install 'attention-sandbox[triton]'"
_STAGES = ("ttir", "ttgir", "llir", "ptx")
_FACTS = ("name", "shared", "num_warps", "num_ctas", "global_scratch_size")
"""What of Triton's metadata a launch depends on."""
PTX_VERSION = 86
"""PTX 8.6, of CUDA 12.7 and later drivers and `ptxas`. In earlier versions Triton gives `tensormap.replace` strides in
another unit."""
NEWEST_WITH_IT = 90
"""Newest compute capability, times 10, that is sure to be in PTX 8.6."""


def options_of(kernel: TritonKernel, capability: int) -> dict[str, Any]:
    """Return the options of Triton's compiler, the defaults included."""
    defaults: dict[str, Any] = {"enable_fp_fusion": True}  # as nvcc
    if capability <= NEWEST_WITH_IT:
        defaults["ptx_version"] = PTX_VERSION
    return {**defaults, **kernel.options, "num_warps": kernel.num_warps, "num_stages": kernel.num_stages}


def built(kernel: TritonKernel, typed: Typed, arch: str) -> dict[str, Any]:
    """Return the PTX, as `ptx`, and the `_FACTS` of its metadata. Raises `CompileError` with Triton's message."""
    try:
        import triton
    except ImportError as error:
        raise CompileError(MISSING) from error
    target = Target.named(arch)
    assert target is not None
    options = options_of(kernel, target.number)
    function = kernel.function
    key = (
        triton.__version__, _text(function), function.fn.__code__.co_filename, repr(typed.types),
        repr([(name, _text(value)) for name, value in typed.constexprs]), repr(typed.multiples),
        repr(sorted(options.items())), arch,
    )  # fmt: skip

    def build() -> bytes:
        return json.dumps(_build(kernel, typed, target.number, options)).encode()

    found: dict[str, Any] = json.loads(default_cache().cached("triton", key, build))
    return found


def _text(value: Any) -> str:
    """A text that determines a function or the value of a constexpr."""
    return str(getattr(value, "cache_key", None) or repr(value))


def _build(kernel: TritonKernel, typed: Typed, capability: int, wanted: Mapping[str, Any]) -> dict[str, Any]:
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    names = kernel.function.arg_names
    attributes = {(names.index(name),): [["tt.divisibility", DIVISOR]] for name in typed.multiples}
    source = ASTSource(kernel.function, dict(typed.types), dict(typed.constexprs), attributes)
    target = GPUTarget("cuda", capability, 32)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            backend = make_backend(target)
            options = backend.parse_options(dict(wanted))
            context = ir.context()
            ir.load_dialects(context)
            backend.load_dialects(context)
            module = source.make_ir(
                target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
            )
            metadata, stages = {"target": target, **vars(options)}, dict[str, Any]()
            backend.add_stages(stages, options, source.language)
            for stage in _STAGES:
                module = stages[stage](module, metadata)
    except Exception as error:  # Triton's errors have no common base class
        code = kernel.function.fn.__code__
        place = f"{code.co_filename}:{code.co_firstlineno}"
        message = "\n".join(text for text in (str(error).strip(), said.getvalue().strip()) if text)
        raise CompileError(f"kernel {kernel.name} ({place}) did not compile with Triton:\n{message}") from error
    return {"ptx": str(module), **{fact: metadata.get(fact) for fact in _FACTS}}
