"""PyTorch tensors in the memory of a device, for libraries with kernels of CuTe DSL, such as FlashAttention-4."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import cutlass.cute as cute
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from harness.compilers.cute.kernel import CuteFunction
from harness.device.array import DeviceArray
from harness.device.result import LaunchResult
from harness.support.errors import UsageError

if TYPE_CHECKING:
    from harness.device.device import Device

_CREATING = ("aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided")
_FLASH_ATTENTION = "flash_attn.cute.interface"


class TorchTensors:
    """PyTorch tensors of a device, and the launches of compiled functions that were called with them."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._arrays: dict[int, DeviceArray] = {}
        self._storages: list[Any] = []  # kept, so that no two have the same identity
        self.results: list[LaunchResult] = []
        """Counts of each launch, in order."""

    def tensor(self, array: DeviceArray) -> Any:
        """A CUDA tensor of an array of the device: the same memory. Raises `UsageError` for a type PyTorch lacks."""
        dtype = getattr(torch, array.dtype.name, None)
        if not isinstance(dtype, torch.dtype):
            raise UsageError(f"PyTorch has no type {array.dtype.name}, of array {array.name}")
        strides = [stride // array.dtype.itemsize for stride in array.strides]
        made = torch.empty_strided(array.shape, strides, dtype=dtype, device="cuda")
        self._arrays[self._identity(made)] = array
        return made

    def array(self, tensor: Any) -> DeviceArray:
        """The array of the device in which a tensor's elements are."""
        dtype, size = str(tensor.dtype).removeprefix("torch."), tensor.element_size()
        identity = self._identity(tensor)
        if identity not in self._arrays:
            elements = tensor.untyped_storage().nbytes() // size
            self._arrays[identity] = self._device.empty((elements,), dtype, name=f"tensor{len(self._arrays)}")
        whole = self._arrays[identity]
        if whole.dtype.name != dtype:
            raise UsageError(f"a tensor of {dtype} is a view of an array of {whole.dtype.name}; use only one type")
        begin = tensor.storage_offset()
        first = whole.as_strided((begin + 1,), (size,))[begin:] if tensor.numel() else whole
        return first.as_strided(tensor.shape, [stride * size for stride in tensor.stride()])

    def compile(self, original: Callable[..., Any], function: Any, *arguments: Any, **options: Any) -> Any:
        """Compile a function of CuTe DSL. The result runs it on the device."""
        name = getattr(function, "__name__", type(function).__name__)
        compiled = CuteFunction.of(original(function, *arguments, **options), name)

        def call(*given: Any) -> None:
            self.results += self._device.call(compiled, *map(self._argument, given))

        return call

    def _argument(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return tuple(map(self._argument, value))
        return self.array(value) if isinstance(value, torch.Tensor) else value

    def _identity(self, tensor: Any) -> int:
        storage = tensor.untyped_storage()
        self._storages.append(storage)
        return int(storage._cdata)


class _OnlyViews(TorchDispatchMode):  # type: ignore[misc]
    """Refuses PyTorch's own computations, because there is no memory behind its tensors."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = function._schema
        is_new = any("Tensor" in str(result.type) and result.alias_info is None for result in schema.returns)
        if (is_new or schema.is_mutable) and schema.name not in _CREATING:
            raise UsageError(f"PyTorch's {schema.name} does not run on the emulated GPU; only kernels of CuTe DSL do")
        return function(*args, **(kwargs or {}))


def _prepare(interface: Any, stack: contextlib.ExitStack) -> None:
    """Let FlashAttention-4 launch what it compiles, and compile anew: what it keeps belongs to another context."""
    stack.enter_context(patch.object(interface, "is_fake_mode", lambda: False))
    for function in list(vars(interface).values()):
        if hasattr(function, "compile_cache"):
            stack.enter_context(patch.object(function, "compile_cache", {}))


@contextlib.contextmanager
def torch_tensors(device: Device) -> Iterator[TorchTensors]:
    """Let functions that `cute.compile` compiles within the context run on the device.

    Within it, CUDA tensors of PyTorch have memory only on the device.
    """
    tensors = TorchTensors(device)
    original = cute.compile
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            patch.object(cute, "compile", lambda *given, **options: tensors.compile(original, *given, **options))
        )
        if _FLASH_ATTENTION in sys.modules:
            _prepare(sys.modules[_FLASH_ATTENTION], stack)
        stack.enter_context(FakeTensorMode())
        stack.enter_context(_OnlyViews())
        yield tensors
