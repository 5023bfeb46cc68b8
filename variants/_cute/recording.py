"""Calls FlashAttention-4's interface with tensors that have no memory, and notes what it launches."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cutlass
import cutlass.utils.hardware_info
import torch
from cutlass.cutlass_dsl import CuTeDSL
from flash_attn.cute import interface, tile_scheduler
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from harness import Buffer, CuteFunction, CuteTensor, Plan
from variants._cute import Target, element_strides, versions
from variants._cute.filling import store_integers, zeros

STAGES = {
    "fwd": ("_flash_attn_fwd", {}),
    "bwd_pre": ("_bwd_preprocess", {2: "dpsum", 4: "lse_log2", 5: "dQ_sums"}),
    "bwd": ("_flash_attn_bwd", {7: "dK_sums", 8: "dV_sums"}),
    "bwd_post": ("_bwd_postprocess_convert", {}),
}
"""For each stage the function of the interface that compiles it, and names of the scratch tensors among the arguments
of the compiled function."""

FOLDERS: list[Any] = []
"""Temporary folders, which are removed when the process ends."""


class Recording:
    """The launches of calls of the interface, and the buffers that it allocated."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._names: dict[int, str] = {}
        self._zeroed: set[int] = set()
        self._storages: list[Any] = []  # kept, so that no two have the same identity
        self.launches: list[Any] = []
        self.buffers: list[Buffer] = []

    def tensor(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        """A tensor that stands for a buffer of the problem."""
        made = torch.empty(shape, dtype=getattr(torch, dtype), device="cuda")
        self._names[self._identity(made)] = name
        return made

    def rows(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        """The same for (batch, heads, length, head_dim), in the order that FlashAttention takes: length, then heads."""
        return self.tensor(name, shape, dtype).transpose(1, 2)

    def integers(self, name: str, values: tuple[int, ...]) -> Any:
        """A new buffer of int32, which launches at this place of the plan fill."""
        self.buffers.append(Buffer(name, (len(values),), "int32"))
        self.launches += store_integers(name, values, _key(self._target))
        return self.tensor(name, (len(values),), "int32")

    def plan(self) -> Plan:
        """The plan of all calls."""
        return Plan(tuple(self.launches), tuple(self.buffers))

    def note_zeros(self, made: Any) -> None:
        """Note that a scratch tensor begins with zeros."""
        self._zeroed.add(self._identity(made))

    def call(self, function: CuteFunction, names: Mapping[int, str], arguments: tuple[Any, ...]) -> None:
        """Note a call of a compiled function, whose argument number i is the scratch tensor `names[i]` if it is new."""
        given = tuple(self._argument(each, names.get(i)) for i, each in enumerate(arguments))
        self.launches += function.launches(*given)

    def _argument(self, argument: Any, name: str | None = None) -> Any:
        if isinstance(argument, (tuple, list)):
            return tuple(self._argument(each) for each in argument)
        if not isinstance(argument, torch.Tensor):
            return argument
        identity = self._identity(argument)
        if identity not in self._names:
            assert name is not None, "a scratch tensor has no name"
            self._allocate(argument, identity, name)
        dtype = str(argument.dtype).removeprefix("torch.")
        place = tuple(argument.shape), tuple(argument.stride())
        return CuteTensor(self._names[identity], *place, dtype, argument.storage_offset())

    def _allocate(self, tensor: Any, identity: int, name: str) -> None:
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        calls_before = sum(buffer.name.partition("-")[0] == name for buffer in self.buffers)
        self._names[identity] = name = f"{name}-{calls_before}" if calls_before else name
        self.buffers.append(Buffer(name, shape, dtype))
        if identity in self._zeroed:
            self.launches += zeros(name, tensor.numel(), _key(self._target))
            assert element_strides(shape) == tuple(tensor.stride())

    def _identity(self, tensor: Any) -> int:
        storage = tensor.untyped_storage()
        self._storages.append(storage)
        return int(storage._cdata)


class _Functions:
    """Takes the place of the interface's cache of compiled functions: keeps them on disk, and notes calls of them."""

    def __init__(self, stage: str, scratch: Mapping[int, str], target: Target) -> None:
        self._stage, self._scratch, self._target = stage, scratch, target
        self._functions: dict[str, CuteFunction] = {}
        self.recording: Recording | None = None

    def __contains__(self, key: object) -> bool:
        text = repr(key)
        if text not in self._functions:
            kept = CuteFunction.kept(f"fa4-{self._stage}", _key(self._target, text))
            if kept is not None:
                self._functions[text] = kept
        return text in self._functions

    def __setitem__(self, key: object, compiled: Any) -> None:
        text = repr(key)
        self._functions[text] = function = CuteFunction.of(compiled, f"fa4-{self._stage}")
        function.keep(_key(self._target, text))
        for file in Path(os.environ["CUTE_DSL_DUMP_DIR"]).iterdir():
            file.unlink()

    def __getitem__(self, key: object) -> Callable[..., None]:
        function, recording = self._functions[repr(key)], self.recording
        assert recording is not None
        return lambda *arguments: recording.call(function, self._scratch, arguments)


class _NotesZeros(TorchFunctionMode):
    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if function is torch.zeros:
            self._recording.note_zeros(made)
        return made


def _key(target: Target, *of_function: str) -> tuple[str, ...]:
    return (*(versions() or ()), target.name, *of_function)


@functools.cache
def _functions(target: Target) -> dict[str, _Functions]:
    """The functions compiled for a target, by the function of the interface that compiles them."""
    return {name: _Functions(stage, scratch, target) for stage, (name, scratch) in STAGES.items()}


class _Hardware:
    """Takes the place of CuTe's `HardwareInfo`, which asks the driver."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def get_device_multiprocessor_count(self) -> int:
        return self._target.multiprocessors

    def get_max_active_clusters(self, cluster_size: int) -> int:
        return self._target.multiprocessors // cluster_size


@contextlib.contextmanager
def _compiling_for(target: Target) -> Iterator[None]:
    """Make the interface choose the kernels of a target, and CuTe compile for it."""
    with contextlib.ExitStack() as stack:
        hardware = functools.partial(_Hardware, target)
        for module in (cutlass.utils, cutlass.utils.hardware_info, tile_scheduler):
            stack.enter_context(patch.object(module, "HardwareInfo", hardware))
        stack.enter_context(patch.object(interface, "_get_device_arch", lambda: target.number))
        stack.enter_context(patch.object(CuTeDSL._get_dsl().envar, "arch", target.name))
        stack.enter_context(patch.dict(os.environ, {"FLASH_ATTENTION_NUM_SMS": str(target.multiprocessors)}))
        yield


def record(call: Callable[[Any, Recording], None], target: Target) -> Plan:
    """Return the plan of what `call` calls in the interface, its first argument, with tensors of the second."""
    recording = Recording(target)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_compiling_for(target))
        for name, functions in _functions(target).items():
            functions.recording = recording
            stack.enter_context(patch.object(getattr(interface, name), "compile_cache", functions))
        # The interface compiles and calls nothing under fake tensors; it has to see none.
        stack.enter_context(patch.object(interface, "is_fake_mode", lambda: False))
        stack.enter_context(FakeTensorMode())
        stack.enter_context(_NotesZeros(recording))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        call(interface, recording)
    return recording.plan()
