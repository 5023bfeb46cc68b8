"""Defines what a variant launches, as plain data: buffers, launches, plans. Nothing in this module needs a GPU."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.model.peer_copy import PeerCopy, held_bytes, require_devices
from harness.model.problem import ELEMENT_BYTES, IN_OUT, INPUT, OPTIONAL_OUTPUT, OUTPUT, BaseProblem, Tensor
from harness.model.tensor_map import TensorMap
from harness.support.errors import ClusterTooLarge, PlanError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

GRID_LIMITS = (2**31 - 1, 65535, 65535)
BLOCK_LIMITS = (1024, 1024, 64)
"""Maximum threads of a block in x, y, z (CUDA C++ Programming Guide, table of technical specifications). They are the
same for every compute capability."""
MOST_CLUSTER_BLOCKS = 8
"""Maximum blocks of a cluster (ibid., "Thread Block Clusters"). 16 need
`cudaFuncAttributeNonPortableClusterSizeAllowed`."""
__all__ = [
    "ELEMENT_BYTES",
    "Buffer",
    "Launch",
    "Plan",
    "Reshaped",
    "View",
    "in_three_dimensions",
    "kernel_name",
    "leaves",
    "map_leaves",
]


@dataclass(frozen=True)
class Buffer:
    """An array in GPU memory. Kernels get bfloat16 as bits (uint16 in NumPy and Numba). Can raise `PlanError`."""

    name: str
    """Name by which arguments of launches refer to it."""
    shape: tuple[int, ...]
    """Extents in elements, each at least 0. The array is C-contiguous."""
    dtype: str
    """A key of `ELEMENT_BYTES`, such as `float32`."""
    device: int = 0
    """The device in whose memory it lies, counted from 0."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise PlanError(f"a buffer is named {self.name!r}; its name has to be text, such as 'partial_sums'")
        if not isinstance(self.dtype, str) or self.dtype not in ELEMENT_BYTES:
            raise PlanError(f"buffer {self.name!r} has dtype {self.dtype!r}; choose one of {', '.join(ELEMENT_BYTES)}")
        object.__setattr__(self, "shape", _whole_numbers(f"buffer {self.name!r}: its shape", self.shape))
        if any(extent < 0 for extent in self.shape):
            raise PlanError(f"buffer {self.name!r} has a negative extent in its shape {self.shape}")

    @property
    def size_bytes(self) -> int:
        """Size of the buffer in bytes."""
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


@functools.lru_cache(maxsize=64)
def _buffer_of(tensor: Tensor) -> Buffer:
    """Return the buffer that contains a tensor of the problem."""
    placement = tensor.placement
    shape = tensor.shape if placement is None else (placement.elements,)
    return Buffer(tensor.buffer, shape, tensor.dtype, tensor.device)


@dataclass(frozen=True)
class View:
    """What a name among the arguments of a launch stands for: a tensor of the problem, or a buffer of the plan."""

    buffer: str
    """Name of the buffer that contains it."""
    offset_bytes: int
    """Where it begins in that buffer."""
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None
    """Bytes from one index to the next along each axis; None if it is C-contiguous."""

    @classmethod
    def of_tensor(cls, tensor: Tensor) -> View:
        """Return the view of a tensor of the problem."""
        if tensor.placement is None:
            return cls(tensor.name, 0, tensor.shape, tensor.dtype)
        item = ELEMENT_BYTES[tensor.dtype]
        strides = tuple(stride * item for stride in tensor.strides)
        return cls(tensor.buffer, tensor.first * item, tensor.shape, tensor.dtype, strides)


@dataclass(frozen=True)
class Reshaped:
    """The first elements of a buffer as a C-contiguous array, for a kernel that takes extents or strides from it.

    A buffer that receives blocks of several sizes has the size of the largest one. Kernels in CUDA C++ and PTX get a
    pointer and need no shape. Raises `PlanError` if the shape is invalid.
    """

    buffer: str
    """Name of a buffer of the plan, or of a tensor that is C-contiguous."""
    shape: tuple[int, ...]
    """Extents in elements. They have no more elements than the buffer."""

    def __post_init__(self) -> None:
        if not isinstance(self.buffer, str):
            raise PlanError(f"{self!r}: buffer has to be the name of a buffer")
        is_shape = isinstance(self.shape, tuple) and all(type(each) is int and each >= 0 for each in self.shape)
        if not is_shape:
            raise PlanError(f"{self!r}: shape has to be a tuple of whole numbers of at least 0")

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class BlockSample:
    """The blocks of some entries, which lie next to each other along one axis of the grid."""

    axis: int
    """The axis of the grid along which entries lie: 0, 1 or 2 for x, y or z."""
    blocks_per_entry: int
    """Number of consecutive indices along this axis that belong to one entry."""
    entries: tuple[int, ...]
    """The entries whose blocks run, in ascending order."""

    def numbers(self, grid: tuple[int, int, int]) -> npt.NDArray[np.int64]:
        """Return the linear indices of the blocks in ascending order, x varying fastest."""
        import numpy as np

        first = np.array(self.entries, np.int64)[:, None] * self.blocks_per_entry
        chosen = [np.arange(extent, dtype=np.int64) for extent in grid]
        chosen[self.axis] = (first + np.arange(self.blocks_per_entry, dtype=np.int64)).reshape(-1)
        x, y, z = chosen
        return ((z[:, None, None] * grid[1] + y[:, None]) * grid[0] + x).reshape(-1)


@dataclass(frozen=True)
class Launch:
    """A kernel launch. Raises `PlanError` if a GPU does not support its grid, block or cluster."""

    kernel: Any
    """Kernel object of any supported language: a `cupy.RawKernel`, a function decorated with `numba.cuda.jit` or
    `triton.jit`, a `PtxKernel`, or a `TritonKernel`."""
    grid: tuple[int, ...]
    """Number of thread blocks in x, y, z; of a Triton kernel, number of programs."""
    block: tuple[int, ...]
    """Threads per block in x, y, z; of a Triton kernel, `TritonKernel.block`."""
    args: tuple[Any, ...]
    """Arguments in the kernel's order. Each is the name of a buffer, a `Reshaped` one, a `TensorMap`, a scalar, or a
    tuple. Write scalars as `np.int32(n)` or `np.float32(x)`, because their types are not converted. A tuple has names
    of buffers, scalars and tuples. In CUDA C++ and PTX it is a struct by value, with the tuple's items as members; `()`
    is an empty struct."""
    shared_bytes: int = 0
    """Dynamic shared memory per block, in bytes."""
    cluster: tuple[int, ...] | None = None
    """Thread blocks per cluster in x, y, z. They run concurrently and can access each other's shared memory (Hopper).
    None: no clusters, unless they are compiled into the kernel (`__cluster_dims__`)."""
    sample: BlockSample | None = None
    """The blocks that the emulator runs of a huge problem (`BaseProblem.spread`), chosen by the harness. None: all."""
    device: int = 0
    """The device that runs it, counted from 0. All its buffers lie in that device's memory."""
    overlaps_previous: bool = False
    """Whether it may begin before the previous launch of its device has ended (programmatic dependent launch): as soon
    as all blocks of that have executed `griddepcontrol.launch_dependents`, or ended. Before it accesses what that
    launch writes, or writes what that accesses, it has to execute `griddepcontrol.wait`. No effect before Hopper."""

    def __post_init__(self) -> None:
        kernel = f"kernel {self.kernel_name}: its"
        for name in ("grid", "block"):
            object.__setattr__(self, name, _whole_numbers(f"{kernel} {name}", getattr(self, name)))
        if not isinstance(self.args, (tuple, list)):
            raise PlanError(f"{kernel} args are {self.args!r}; they have to be a tuple of buffers' names and scalars")
        object.__setattr__(self, "args", tuple(self.args))
        (shared_bytes,) = _whole_numbers(f"{kernel} shared_bytes", (self.shared_bytes,))
        if shared_bytes < 0:  # the device checks the maximum
            raise PlanError(f"{kernel} shared_bytes is {shared_bytes}; it has to be at least 0")
        object.__setattr__(self, "shared_bytes", shared_bytes)
        for what, extents in (("grid", self.grid), ("block", self.block)):
            if not 1 <= len(extents) <= 3 or any(extent < 1 for extent in extents):
                raise PlanError(f"{kernel} {what} is {extents}; it needs one to three whole numbers of at least 1")
        for what, extents, limits in (("grid", self.grid, GRID_LIMITS), ("block", self.block, BLOCK_LIMITS)):
            if any(extent > limit for extent, limit in zip(extents, limits)):
                raise PlanError(f"{kernel} {what} is {extents}; a GPU takes at most {limits} in x, y, z")
        if math.prod(self.block) > 1024:
            raise PlanError(
                f"{kernel} block is {self.block}: {math.prod(self.block)} threads, and a GPU takes at most 1024"
            )
        if self.cluster is not None:
            object.__setattr__(self, "cluster", _whole_numbers(f"{kernel} cluster", self.cluster))
            require_cluster(kernel, self.grid, self.cluster)
        if not isinstance(self.overlaps_previous, bool):
            raise PlanError(f"{kernel} overlaps_previous is {self.overlaps_previous!r}; it has to be True or False")

    @property
    def kernel_name(self) -> str:
        """Name that the user gave the kernel."""
        return kernel_name(self.kernel)


def require_cluster(kernel: str, grid: tuple[int, ...], cluster: tuple[int, ...]) -> None:
    """Raise `PlanError` if a GPU cannot launch such clusters. `kernel` is the beginning of the message."""
    if not 1 <= len(cluster) <= 3 or any(extent < 1 for extent in cluster):
        raise PlanError(f"{kernel} cluster is {cluster}; it needs one to three whole numbers of at least 1")
    if math.prod(cluster) > MOST_CLUSTER_BLOCKS:
        raise ClusterTooLarge(
            f"{kernel} cluster is {cluster}: {math.prod(cluster)} blocks; at most {MOST_CLUSTER_BLOCKS} are supported, "
            "for more of them are not portable between GPUs"
        )
    if any(blocks % extent for blocks, extent in zip((*grid, 1, 1), (*cluster, 1, 1))):
        raise PlanError(f"{kernel} grid is {grid}, and its cluster {cluster}; the grid has to be a multiple of it")


def in_three_dimensions(extents: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the extents of a grid, block or cluster in x, y, z; those that are left out are 1."""
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def _whole_numbers(what: str, values: object) -> tuple[int, ...]:
    """Convert to Python integers. Raises `PlanError` for other values, such as 1.5 or True."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise PlanError(f"{what} is {values!r}; it has to be a tuple of whole numbers")
    given = tuple(values)
    for value in given:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            shown = repr(given[0]) if len(given) == 1 and what.endswith("shared_bytes") else repr(given)
            raise PlanError(f"{what} is {shown}; it has to be whole numbers, and {value!r} is a {type(value).__name__}")
    return tuple(operator.index(value) for value in given)


def kernel_name(kernel: object) -> str:
    """Return the name that the user gave the kernel, in any language."""
    return str(getattr(kernel, "name", None) or getattr(kernel, "__name__", None) or type(kernel).__name__)


def leaves(argument: Any) -> Iterator[Any]:
    """Yield the items of an argument that is a tuple, those of tuples in it, and so on; else the argument itself."""
    if isinstance(argument, tuple):
        for item in argument:
            yield from leaves(item)
    else:
        yield argument


def map_leaves(convert: Callable[[Any], Any], argument: Any) -> Any:
    """Convert each of the `leaves` of an argument. Tuples keep their types, such as a named tuple's."""
    if not isinstance(argument, tuple):
        return convert(argument)
    items = [map_leaves(convert, item) for item in argument]
    return type(argument)(*items) if hasattr(argument, "_fields") else tuple(items)


@dataclass(frozen=True)
class Plan:
    """Everything that one run needs: which buffers to allocate and which kernels to launch, in order.

    Raises `PlanError` if a field has another type.
    """

    launches: tuple[Launch, ...]
    """Kernel launches in order. Each starts after the previous one of its device has ended, unless it may overlap it
    (`Launch.overlaps_previous`)."""
    buffers: tuple[Buffer, ...] = ()
    """Buffers in addition to the problem's inputs and outputs, such as Q, K, V and O, which always exist. One with the
    name of an optional output of the operation, such as `lse`, is that output. Their initial content is undefined."""
    unsampled: str | None = None
    """Why no blocks could be chosen for a sample of a huge problem, in words; None if they were, or all run."""
    copies: tuple[PeerCopy, ...] = ()
    """Copies between devices. Nothing else moves data from one device to another."""

    def __post_init__(self) -> None:
        for field, of in (("launches", Launch), ("buffers", Buffer), ("copies", PeerCopy)):
            given = getattr(self, field)
            if not isinstance(given, (tuple, list)):
                raise PlanError(f"the plan's {field} are {given!r}; they have to be a tuple of {of.__name__}(...)")
            for position, each in enumerate(given):
                if not isinstance(each, of):
                    raise PlanError(
                        f"the plan's {field}[{position}] is {each!r}; each of them has to be a {of.__name__}(...)"
                    )
            object.__setattr__(self, field, tuple(given))
        for number, launch in enumerate(self.launches):
            if launch.overlaps_previous:
                _require_launch_before(self, number)

    def all_buffers(self, problem: BaseProblem) -> dict[str, Buffer]:
        """Return every buffer by name, as kernels get them: those of inputs and outputs, and the plan's own.

        Raises `PlanError` for a duplicate or an unknown name.
        """
        problem = _as_held(problem)
        tensors = problem.with_role(INPUT, OUTPUT, IN_OUT)
        always = {t.buffer: _buffer_of(t) for t in tensors}
        buffers = dict(always)
        for buffer in self.buffers:
            if buffer.name in buffers or any(buffer.name == t.name for t in tensors):
                there = " and ".join([", ".join([*always][:-1]), [*always][-1]])
                raise PlanError(f"the plan has two buffers named {buffer.name!r} ({there} are always there)")
            buffers[buffer.name] = buffer
        for tensor in problem.with_role(OPTIONAL_OUTPUT):
            own = buffers.get(tensor.name)
            if own is not None and own != _buffer_of(tensor):
                places = [f" on device {each.device}" if problem.devices > 1 else "" for each in (own, tensor)]
                raise PlanError(
                    f"buffer {own.name!r} is {own.dtype}{own.shape}{places[0]}; it has to be "
                    f"{tensor.dtype}{tensor.shape}{places[1]}"
                )
        views = _views(tensors, buffers)
        for launch in self.launches:
            for argument in leaves(launch.args):
                name = argument.buffer if isinstance(argument, (TensorMap, Reshaped)) else argument
                if isinstance(name, str) and name not in views:
                    raise PlanError(
                        f"kernel {launch.kernel_name} is given a buffer {name!r} that the plan does not have; "
                        f"it has {', '.join(views)}"
                    )
                if isinstance(argument, Reshaped):
                    _require_room(launch, argument, views[argument.buffer])
                if isinstance(argument, TensorMap):
                    view = views[argument.buffer]
                    size_bytes = buffers[view.buffer].size_bytes - view.offset_bytes
                    if argument.size_bytes > size_bytes:
                        raise PlanError(
                            f"kernel {launch.kernel_name} is given a tensor map of {argument.size_bytes} bytes of "
                            f"buffer {name!r}, which has {size_bytes}"
                        )
        require_devices(self, buffers, views, problem)
        return buffers

    def views(self, problem: BaseProblem) -> dict[str, View]:
        """Return what each name that arguments may use stands for. Raises `PlanError` as `all_buffers` does."""
        return _views(_as_held(problem).with_role(INPUT, OUTPUT, IN_OUT), self.all_buffers(problem))

    def output_names(self, problem: BaseProblem) -> tuple[str, ...]:
        """Return the outputs of a run of this plan: required ones, and optional ones that have a buffer."""
        own = {buffer.name for buffer in self.buffers}
        parts = {} if problem.sharing is None else problem.sharing.buffers
        written = problem.with_role(OUTPUT, OPTIONAL_OUTPUT, IN_OUT)
        return tuple(
            t.name for t in written if t.role != OPTIONAL_OUTPUT or own.issuperset(parts.get(t.name, (t.name,)))
        )

    def allocated_bytes(self, problem: BaseProblem) -> int:
        """Return how many bytes the plan allocates in addition to the inputs, for scratch buffers and outputs."""
        outputs = {tensor.buffer: _buffer_of(tensor) for tensor in _as_held(problem).with_role(OUTPUT)}
        return sum(buffer.size_bytes for buffer in (*outputs.values(), *self.buffers))

    def device_bytes(self, problem: BaseProblem) -> tuple[int, ...]:
        """Return how many bytes each device holds: its parts of inputs and outputs, and the plan's own buffers."""
        return held_bytes(self.all_buffers(problem).values(), problem.devices)


def _require_launch_before(plan: Plan, number: int) -> None:
    """Raise `PlanError` if no launch, or something else, comes right before the launch of this number on its device."""
    launch = plan.launches[number]
    if all(earlier.device != launch.device for earlier in plan.launches[:number]):
        raise PlanError(f"kernel {launch.kernel_name} is launched first; there is no launch that it could overlap")
    if any(number in (copy.start, copy.wait) for copy in plan.copies):
        raise PlanError(
            f"kernel {launch.kernel_name} cannot overlap the launch before it, because a copy between devices starts "
            "or is waited for in between"
        )


def _require_room(launch: Launch, argument: Reshaped, view: View) -> None:
    """Raise `PlanError` if what a launch is given has another shape than the beginning of this view can have."""
    if view.strides is not None:
        raise PlanError(f"kernel {launch.kernel_name} is given {argument}, and {argument.buffer} is not C-contiguous")
    if argument.elements > math.prod(view.shape):
        raise PlanError(
            f"kernel {launch.kernel_name} is given {argument}, of {argument.elements} elements; {argument.buffer} has "
            f"{math.prod(view.shape)}"
        )


def _as_held(problem: BaseProblem) -> BaseProblem:
    """Return the problem that kernels get, with a tensor for each part that a device holds."""
    problem = problem.of_kernels
    return problem if problem.sharing is None else problem.sharing.held


def _views(tensors: Iterable[Tensor], buffers: Mapping[str, Buffer]) -> dict[str, View]:
    views = {tensor.name: View.of_tensor(tensor) for tensor in tensors}
    of_buffers = ((name, View(name, 0, buffer.shape, buffer.dtype)) for name, buffer in buffers.items())
    return views | {name: view for name, view in of_buffers if name not in views}
