"""A compiled CuTe function, its arguments, and the kernels that it launches."""

from __future__ import annotations

import functools
import hashlib
import json
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.compilers.compiled_kernel import DevicePointer
from harness.model.plan import Launch, leaves, map_leaves
from harness.support.errors import CompileError, PlanError

if TYPE_CHECKING:
    from harness.compilers.cute.host_code import HostCode, HostLaunch

_BUFFER_BYTES = 1 << 40
"""Distance of the addresses of buffers while a plan is made."""
_SIZE = struct.Struct("<Q")


@dataclass(frozen=True)
class CuteTensor:
    """A buffer, or a view of it, as an argument of a CuTe function."""

    buffer: str
    """Name of the buffer."""
    shape: tuple[int, ...]
    """Extents in elements, in the order in which the function takes them."""
    strides: tuple[int, ...]
    """Distance in elements between consecutive elements of each dimension."""
    dtype: str
    """Data type of the elements, such as `bfloat16`."""
    offset: int = 0
    """Elements of the buffer before the first one of the view."""


@dataclass(frozen=True)
class CuteFunction:
    """A function that `cute.compile` has compiled with `options="--enable-tvm-ffi"`: its host code and its kernels.

    Make one with `CuteFunction.of(compiled)`, and its launches with `launches`.
    """

    name: str
    """Name for messages and tables."""
    host_code: bytes = field(repr=False)
    """The object file that CuTe exports."""
    ptx: str = field(repr=False)
    """The PTX of its kernels."""

    @staticmethod
    def of(compiled: Any, name: str) -> CuteFunction:
        """Return a function that was compiled in this process, with the environment variable `CUTE_DSL_KEEP=ptx`.

        Raises `CompileError` if CuTe has not kept its PTX, or cannot export it.
        """
        from harness.compilers.cute.host_code import ENTRY

        ptx = getattr(compiled, "__ptx__", None)
        if not ptx:
            raise CompileError(
                f"CuTe function {name}: CuTe has not kept its PTX; set the environment variable CUTE_DSL_KEEP=ptx "
                "before the import of cutlass"
            )
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "host.o")
            try:
                compiled.export_to_c(object_file_path=str(file), function_name=ENTRY)
                host_code = file.read_bytes()
            except Exception as error:
                raise CompileError(
                    f"CuTe function {name}: its host code cannot be exported ({error}); compile it with "
                    'options="--enable-tvm-ffi"'
                ) from error
        return CuteFunction(name, host_code, str(ptx))

    @staticmethod
    def kept(name: str, key: tuple[str, ...]) -> CuteFunction | None:
        """Return the function that any process has kept under this name and key; None if there is none.

        `key` is everything that the function depends on, such as versions of packages.
        """
        from harness.support.cache import default_cache

        kept = default_cache().get("cute", (name, *key))
        if kept is None:
            return None
        (code_bytes,) = _SIZE.unpack_from(kept)
        code = _SIZE.size + code_bytes
        return CuteFunction(name, kept[_SIZE.size : code], kept[code:].decode())

    def keep(self, key: tuple[str, ...]) -> None:
        """Keep the function for `kept` in the disk cache."""
        from harness.support.cache import default_cache

        payload = _SIZE.pack(len(self.host_code)) + self.host_code + self.ptx.encode()
        default_cache().put("cute", (self.name, *key), payload)

    def launches(self, *arguments: Any) -> tuple[Launch, ...]:
        """Return the launches of a call with these arguments, in order.

        Arguments are `CuteTensor`s, None, numbers, and tuples of these, in the order of the compiled function and
        without its stream. Raises `PlanError` with the function's own message if it refuses them.
        """
        names = tuple(dict.fromkeys(leaf.buffer for leaf in leaves(arguments) if isinstance(leaf, CuteTensor)))
        addresses = {name: _BUFFER_BYTES * (number + 1) for number, name in enumerate(names)}
        made = self.host_launches(arguments, addresses)
        launches = []
        for number, each in enumerate(made):
            name = self.name if len(made) == 1 else f"{self.name}-{number}"
            kernel = CuteKernel(self, arguments, number, each.entry, name)
            launches.append(Launch(kernel, each.grid, each.block, names, each.shared_bytes, each.cluster))
        return tuple(launches)

    def host_launches(self, arguments: tuple[Any, ...], addresses: dict[str, int]) -> tuple[HostLaunch, ...]:
        """Run the host code with the buffers at these addresses. Raises `PlanError`."""
        from harness.compilers.cute.tvm_ffi import Tensor
        from harness.model.problem import ELEMENT_BYTES

        def packed(leaf: Any) -> Any:
            if not isinstance(leaf, CuteTensor):
                return leaf
            address = addresses[leaf.buffer] + ELEMENT_BYTES[leaf.dtype] * leaf.offset
            return Tensor(address, leaf.shape, leaf.strides, leaf.dtype)

        given = tuple(map_leaves(packed, argument) for argument in arguments)
        try:
            return _loaded(self).launches(given)
        except PlanError as error:
            raise PlanError(f"CuTe function {self.name}: {error}") from None

    @property
    def digest(self) -> str:
        """Hash of its code."""
        return hashlib.sha256(self.host_code + self.ptx.encode()).hexdigest()


@dataclass(frozen=True)
class CuteKernel:
    """A kernel that a CuTe function launches. Its launch takes the buffers of the function's arguments, in order."""

    function: CuteFunction
    arguments: tuple[Any, ...]
    """The arguments of the function."""
    number: int
    """Index of the launch among those of the function."""
    entry: str
    """Name in the PTX."""
    name: str
    """Name for messages and tables."""

    def parameters(self, pointers: tuple[Any, ...]) -> tuple[bytes, ...]:
        """Return the bytes of each parameter, with the buffers at these `DevicePointer`s. Raises `PlanError`."""
        names = tuple(self.buffers())
        if len(pointers) != len(names) or not all(isinstance(each, DevicePointer) for each in pointers):
            raise PlanError(f"kernel {self.name} takes the buffers {', '.join(names)}; its launch has other arguments")
        addresses = {name: pointer.address for name, pointer in zip(names, pointers)}
        return self.function.host_launches(self.arguments, addresses)[self.number].parameters

    def buffers(self) -> Iterator[str]:
        """Yield the names of the buffers, in the order of the arguments."""
        yield from dict.fromkeys(leaf.buffer for leaf in leaves(self.arguments) if isinstance(leaf, CuteTensor))


@functools.lru_cache(maxsize=256)
def _loaded(function: CuteFunction) -> HostCode:
    from harness.compilers.cute.host_code import HostCode
    from harness.ptx.parsing.declarations import entry_parameters
    from harness.ptx.targets import Target
    from harness.support.gpu_data_sheets import usual_gpu

    sizes = {
        entry: tuple(parameter.size_bytes for parameter in parameters)
        for entry, parameters in entry_parameters(function.ptx).items()
    }
    if not sizes:
        raise CompileError(f"CuTe function {function.name} has no kernel in its PTX")
    target = Target.of(function.ptx)
    gpu = usual_gpu(target.name if target is not None else "")
    return HostCode(function.host_code, sizes, gpu)


def description(kernel: CuteKernel) -> str:
    """Return a text of everything that the kernel's machine code depends on."""
    return json.dumps([kernel.entry, kernel.function.digest])
