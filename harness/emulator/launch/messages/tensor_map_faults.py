"""Explains faults of tensor maps and of the boxes that are copied with them."""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.model.tensor_map import PIECE_BYTES


def explain_coordinate(coordinate: int, divisor: int) -> str:
    """A box that begins where none may; `divisor` has to divide the coordinate, or is 0 if it may not be negative."""
    if not divisor:
        return (
            f"a stored box begins at coordinate {coordinate}; only loaded boxes may begin before the start of the "
            "tensor (on a GPU: an illegal instruction)"
        )
    requirement = f"the element must be a multiple of {divisor} for this type"
    if divisor <= PIECE_BYTES:
        byte = coordinate * PIECE_BYTES // divisor
        requirement = f"which is byte {byte}; the byte must be a multiple of {PIECE_BYTES}"
    begins = f"the box begins at element {coordinate} of the innermost dimension"
    return f"{begins}, {requirement} (on a GPU: an illegal instruction)"


def explain_field(value: int, number: int) -> str:
    """A field of a tensor map, `async_proxy_layout.MAP_FIELDS[number]`, that a kernel has written."""
    field = proxy.MAP_FIELDS[number]
    if field == "element_stride":
        return f"the tensor map has an element_stride of {value}; the emulator supports only 1"
    if field == "elemtype" and value:
        return f"a store to a tensor of type .{proxy.MAP_TYPES[value]}, which only loads have"
    return f"the kernel wrote a {field} into its tensor map that no GPU accepts (on a GPU: an illegal instruction)"
