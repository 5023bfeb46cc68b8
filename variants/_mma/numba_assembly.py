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
from numba.cuda.core.targetconfig import ConfigStack

I32, U16, U32, U64, F32 = types.int32, types.uint16, types.uint32, types.uint64, types.float32
_LETTERS = ((I32, "r"), (U16, "h"), (U32, "r"), (U64, "l"), (F32, "f"))
"""How LLVM's constraints call the registers of each type."""
_TOGETHER = ("convergent",)
GLOBAL, SHARED = 1, 3
"""Address spaces of LLVM's NVPTX back end."""


def assembly(ptx: str, signature: Any, ordered: bool = False, together: bool = False) -> tuple[Any, Any]:
    """What the definition of an intrinsic returns so that it is the instruction `ptx`.

    $0, $1, ... are the registers of the result, then those of the arguments. `ordered`: it does more than give its
    result, so it is not dropped, and no access to memory moves over it. `together`: it is, and the threads of a warp do
    it at the same time, or wait there, so no compiler makes two of it where they would go apart.
    """
    ordered = ordered or together

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        gives = _registers(signature.return_type)
        values, letters = _operands(builder, signature.args, arguments)
        results = [context.get_value_type(register) for register in gives]
        result = ir.LiteralStructType(results) if len(results) > 1 else results[0] if results else ir.VoidType()
        constraints = [f"={dict(_LETTERS)[register]}" for register in gives] + letters
        constraints += ["~{memory}"] if ordered else []
        function = ir.FunctionType(result, [value.type for value in values])
        code = ir.InlineAsm(function, ptx, ",".join(constraints), side_effect=ordered)
        made = builder.call(code, values, attrs=_TOGETHER if together else ())
        if len(gives) < 2:
            return made
        return context.make_tuple(builder, signature.return_type, cgutils.unpack_tuple(builder, made))

    return signature, emit


def assembly_in_place(
    ptx: str, count: int, signature: Any, overwrites: bool = False, apart: bool = False
) -> tuple[Any, Any]:
    """As `assembly`, for an instruction that changes the first `count` items of its first argument, a local array.

    $0, $1, ... are these items, then the registers of the other arguments. Threads do it `together`. `overwrites`: what
    the items were does not matter. `apart`: once for each item, which is $0.
    """

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, *others = signature.args
        first = context.make_array(kind)(context, builder, value=arguments[0]).data
        values, letters = _operands(builder, others, arguments[1:])
        letter, item = dict(_LETTERS)[kind.dtype], context.get_value_type(kind.dtype)
        places = [builder.gep(first, [ir.Constant(ir.IntType(64), i)], inbounds=True) for i in range(count)]
        for some in [[place] for place in places] if apart else [places]:
            read = [] if overwrites else [builder.load(place) for place in some]
            constraints = [f"={letter}"] * len(some) + letters + [str(i) for i in range(len(read))] + ["~{memory}"]
            operands = values + read
            result = ir.LiteralStructType([item] * len(some)) if len(some) > 1 else item
            function = ir.FunctionType(result, [operand.type for operand in operands])
            code = ir.InlineAsm(function, ptx, ",".join(constraints), side_effect=True)
            made = builder.call(code, operands, attrs=_TOGETHER)
            for place, changed in zip(some, cgutils.unpack_tuple(builder, made) if len(some) > 1 else [made]):
                builder.store(changed, place)
        return context.get_dummy_value()

    return signature, emit


def capability() -> int:
    """Compute capability that the kernel is compiled for, e.g. 90 for sm_90; valid while an intrinsic is typed."""
    major, minor = ConfigStack().top().compute_capability
    return int(10 * major + minor)


def _operands(builder: Any, kinds: Any, arguments: Any) -> tuple[list[Any], list[str]]:
    """The registers of some arguments, and their constraints."""
    values = []
    for kind, value in zip(kinds, arguments):
        values += cgutils.unpack_tuple(builder, value) if isinstance(kind, types.BaseTuple) else [value]
    letters = dict(_LETTERS)
    return values, [letters[register] for kind in kinds for register in _registers(kind)]


def _registers(kind: Any) -> list[Any]:
    return list(kind) if isinstance(kind, types.BaseTuple) else [] if kind == types.void else [kind]


def address(array: Any, space: int, number: Any) -> tuple[Any, Any]:
    """Definition of an intrinsic that returns an `array`'s address in an LLVM address space as a `number`."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = context.make_array(signature.args[0])(context, builder, value=arguments[0]).data
        pointer = builder.addrspacecast(pointer, pointer.type.pointee.as_pointer(space))
        return builder.ptrtoint(pointer, context.get_value_type(number))

    return number(array), emit
