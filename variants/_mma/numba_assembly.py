"""PTX instructions that Numba has no name for -> functions that kernels can call.

Two routes lead from a Numba kernel to an instruction such as mma.sync: device functions in CUDA C++ that are linked in
(cuda.declare_device, link=[...]), and inline assembly that an intrinsic writes into the kernel's own LLVM IR, as
numba-cuda does for its cache hints. This is the second:

- What is linked is not in the kernel's PTX. The emulator runs that PTX and the harness counts what it says; a linked
  mma would be a call into nothing. It would also want a C++ compiler wherever the kernel is compiled.
- A linked function takes its fragments through its calling convention, unless link-time optimisation inlines it. An
  intrinsic takes and gives values, which stay in registers.
- An instruction is one line of PTX and one signature.

Registers: the types of `_LETTERS` are one each, a tuple is as many as it has items.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types

I32, U16, U32, U64, F32 = types.int32, types.uint16, types.uint32, types.uint64, types.float32
_LETTERS = ((I32, "r"), (U16, "h"), (U32, "r"), (U64, "l"), (F32, "f"))
"""How LLVM's constraints call the registers of each type."""
GLOBAL, SHARED = 1, 3
"""Address spaces of LLVM's NVPTX back end."""


def assembly(ptx: str, signature: Any, ordered: bool = False) -> tuple[Any, Any]:
    """What the definition of an intrinsic returns so that it is the instruction `ptx`.

    $0, $1, ... are the registers of the result, then those of the arguments. `ordered`: it does more than give its
    result, so it is not dropped, and no access to memory moves over it.
    """

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        gives = _registers(signature.return_type)
        takes = [register for kind in signature.args for register in _registers(kind)]
        values = []
        for kind, value in zip(signature.args, arguments):
            if isinstance(kind, types.BaseTuple):
                values += cgutils.unpack_tuple(builder, value)
            else:
                values.append(value)
        results = [context.get_value_type(register) for register in gives]
        result = ir.LiteralStructType(results) if len(results) > 1 else results[0] if results else ir.VoidType()
        letters = dict(_LETTERS)
        constraints = [f"={letters[register]}" for register in gives] + [letters[register] for register in takes]
        constraints += ["~{memory}"] if ordered else []
        function = ir.FunctionType(result, [value.type for value in values])
        made = builder.call(ir.InlineAsm(function, ptx, ",".join(constraints), side_effect=ordered), values)
        if len(gives) < 2:
            return made
        return context.make_tuple(builder, signature.return_type, cgutils.unpack_tuple(builder, made))

    return signature, emit


def _registers(kind: Any) -> list[Any]:
    return list(kind) if isinstance(kind, types.BaseTuple) else [] if kind == types.void else [kind]


def address(array: Any, space: int, number: Any) -> tuple[Any, Any]:
    """The same for where an `array` begins in one of LLVM's address spaces, as a `number`."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = context.make_array(signature.args[0])(context, builder, value=arguments[0]).data
        pointer = builder.addrspacecast(pointer, pointer.type.pointee.as_pointer(space))
        return builder.ptrtoint(pointer, context.get_value_type(number))

    return number(array), emit
