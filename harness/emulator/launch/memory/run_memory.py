"""The device memory of one run of a plan: a buffer for each array of the problem, and the plan's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.emulator.abi.layout import BUFFER_START
from harness.emulator.abi.sanitizer_layout import GIVEN, NEVER_WRITTEN, WRITTEN
from harness.emulator.launch.memory.device_memory import DeviceBuffer, new_buffer, new_sparse_buffer
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.finding import OUTPUT_NOT_WRITTEN, Finding
from harness.model.placed_tensors import view
from harness.model.plan import ELEMENT_BYTES, Buffer, Plan
from harness.model.problem import IN_OUT, BaseProblem, Tensor
from harness.support.errors import UnsupportedProblem

LARGEST_BUFFER_BYTES = BUFFER_START
"""Size of a buffer that fills its range of addresses."""


def require_emulated(plan: Plan, problem: BaseProblem) -> None:
    """Raise `UnsupportedProblem` if the emulator cannot run this plan of a huge problem (`BaseProblem.spread`)."""
    if problem.spread is None:
        return
    kernel = f"kernel {plan.launches[0].kernel_name}" if plan.launches else "the plan"
    if plan.unsampled is not None:
        raise UnsupportedProblem(kernel, f"{plan.unsampled}; the emulator cannot run those of a few sequences alone")
    for name, buffer in plan.all_buffers(problem).items():
        if buffer.size_bytes > LARGEST_BUFFER_BYTES:
            raise UnsupportedProblem(
                kernel,
                f"its buffer {name} has {buffer.size_bytes:,} bytes; the emulator takes at most "
                f"{LARGEST_BUFFER_BYTES:,}; choose a smaller --far",
            )


class RunMemory:
    """The buffers of a run. Those of a huge problem take up memory only where they are given or written.

    Inputs are copied, everything else is filled with NaN patterns. `watched` memory has a state for the sanitizer.
    Raises `SandboxError` if there is not enough memory.
    """

    def __init__(
        self, problem: BaseProblem, buffers: Mapping[str, Buffer], given: Mapping[str, npt.NDArray[Any]], watched: bool
    ) -> None:
        self._spread, self._shapes = problem.spread, buffers
        self._tensors = {tensor.buffer: tensor for tensor in problem.tensors}  # one of those in each buffer
        self.buffers = [self._new(buffer, given.get(name), watched) for name, buffer in buffers.items()]
        """In the order of their addresses."""
        self._named = dict(zip(buffers, self.buffers))

    def _new(self, buffer: Buffer, source: npt.NDArray[Any] | None, watched: bool) -> DeviceBuffer:
        tensor = self._tensors.get(buffer.name)
        if self._spread is None or (source is not None and tensor is None):
            given = None if source is None else np.ascontiguousarray(source).reshape(-1).view(np.uint8)
            memory = new_buffer(buffer.name, buffer.size_bytes, watched, given)
            if memory.written is not None and tensor is not None and tensor.role == IN_OUT:
                memory.written[:] = WRITTEN
            return memory
        memory = new_sparse_buffer(buffer.name, buffer.size_bytes, watched)
        if source is not None:
            assert tensor is not None
            self._spread.scatter(tensor, source, _typed(buffer, memory.data))
            if memory.written is not None:
                state = WRITTEN if tensor.role == IN_OUT else GIVEN
                states = np.full(source.shape, state * 0x0101_0101_0101_0101, np.int64).astype(_whole(source.itemsize))
                self._spread.scatter(tensor, states, memory.written.view(states.dtype).reshape(buffer.shape))
        return memory

    def buffer(self, name: str) -> DeviceBuffer:
        """Return the memory of the buffer with this name."""
        return self._named[name]

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return the contents of the buffer with this name that has inputs or outputs of the problem, as elements."""
        return self._gathered(name, _typed(self._shapes[name], self._named[name].data))

    def clear(self, name: str) -> None:
        """Set the buffer of an output to zeros."""
        huge = _typed(self._shapes[name], self._named[name].data)
        if self._spread is None:
            huge[...] = 0
        else:
            self._spread.scatter(self._tensors[name], np.zeros_like(self._gathered(name, huge)), huge)

    def holes(self, tensor: Tensor) -> Iterator[Finding]:
        """Findings for elements of an output that were not written, or only partially."""
        buffer, itemsize = self._shapes[tensor.buffer], ELEMENT_BYTES[tensor.dtype]
        written = self._named[buffer.name].written
        assert written is not None
        states = self._gathered(buffer.name, written.reshape(*buffer.shape, itemsize))
        holes = view(tensor, (states == NEVER_WRITTEN).any(axis=-1))
        if not holes.any():
            return
        index = np.unravel_index(int(np.argmax(holes)), tensor.shape)
        where = ", ".join(f"{a} {i}" for a, i in zip(tensor.axes, index))
        first = tensor.first + sum(int(i) * stride for i, stride in zip(index, tensor.strides))
        count, name = int(holes.sum()), tensor.name
        yield Finding(
            kind=OUTPUT_NOT_WRITTEN,
            message=f"no thread wrote {count:,} of the {holes.size:,} elements of {name}, the first one at {where}",
            target=f"buffer {buffer.name}",
            offset=first * itemsize,
            count=count,
        )

    def _gathered(self, name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array if self._spread is None else self._spread.gather(self._tensors[name], array)


def _typed(buffer: Buffer, data: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    assert data.nbytes == buffer.size_bytes and buffer.dtype in ELEMENT_BYTES
    typed: npt.NDArray[Any] = data.view(NUMPY_DTYPES.get(buffer.dtype) or np.dtype(buffer.dtype))
    return typed.reshape(buffer.shape)


def _whole(itemsize: int) -> np.dtype[Any]:
    return np.dtype(f"u{itemsize}")
