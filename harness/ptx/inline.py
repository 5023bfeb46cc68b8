"""Replaces calls by the bodies of the called functions.

Before: an entry that calls `.func`s through `.param` variables. After: one function without calls. The callee's
registers, labels and variables have a prefix, its parameters are the caller's `.param` variables, and its `ret` is a
branch to the end of the call. Values that a call passes in registers, or as numbers, are moved before the body, and
results after it. An indirect call becomes a comparison of its address with that of each function that it may call, and
a call of that function. For a function that calls itself, see `recursion`.

Operations of tensor memory that a whole warp executes, and that have a predicate, are branched around, too.
"""

from __future__ import annotations

from dataclasses import replace

from harness.ptx import instructions as ir
from harness.ptx.device_runtime import RUNTIME_FUNCTIONS, runtime_functions
from harness.ptx.recursion import Activation, Recursion, recursive_functions
from harness.ptx.types import TYPES

BUILTIN_FUNCTIONS = {
    "vprintf": ("b32", ("b64", "b64")),
    "__assertfail": (None, ("b64", "b64", "b32", "b64", "b64")),
    "malloc": ("b64", ("b64",)),
    "free": (None, ("b64",)),
}
"""Functions of the CUDA runtime that the emulator provides: types of the result and of the parameters.

A call of one becomes an instruction `call.NAME` whose operands are registers or numbers.
"""
NOWHERE = "nowhere"
"""`call.nowhere address`: an indirect call whose address is that of no function that it may call."""
_MOST_STATEMENTS = 1_000_000
_MOST_CALLS = 10_000
"""Maximum calls in a function, including nested ones. If each function calls the next one twice, they double at each
level."""
_DEEPEST_CALL = 100


def inline_calls(module: ir.Module, entry: ir.Function) -> ir.Function:
    """A copy of `entry` with every call inlined. Raises `UnsupportedInstruction` for unknown callees."""
    flat = ir.Function(entry.name, True, params=list(entry.params))
    flat.registers = dict(entry.registers)
    flat.variables = dict(entry.variables)
    flat.branch_targets = dict(entry.branch_targets)
    assert entry.body is not None
    flat.body = []
    inliner = _Inliner(module, flat)
    inliner.copy(entry.body, {}, (entry.name,), None)
    if inliner.recursion.is_used:
        flat.body[:0] = inliner.recursion.begin(next(entry.instructions()))
    return flat


def _is_of_whole_warp(instruction: ir.Instruction) -> bool:
    """Whether it is an operation of tensor memory for which all lanes of a warp have the same predicate."""
    return instruction.opcode == "tcgen05" and "aligned" in instruction.modifiers


def _unless_executed(instruction: ir.Instruction, label: str) -> ir.Instruction:
    """A branch to `label` of the lanes in which the predicate keeps the instruction from executing."""
    return replace(
        instruction, opcode="bra", modifiers=(), operands=(ir.Symbol(label),), negated=not instruction.negated
    )


class _Inliner:
    def __init__(self, module: ir.Module, flat: ir.Function) -> None:
        self._module = module
        self._flat = flat
        self._calls = self._skipped = 0
        self._recursive = recursive_functions(module)
        self._activations: list[Activation] = []
        """The functions that are being inlined, as in `stack`, but without the entry."""
        self.recursion = Recursion(flat)

    def copy(
        self, body: list[ir.Statement], names: dict[str, str], stack: tuple[str, ...], return_label: str | None
    ) -> None:
        """Append `body` to the flat function with renamed identifiers. `stack` is the chain of calling functions."""
        out = self._flat.body
        assert out is not None
        for statement in body:
            if isinstance(statement, ir.Label):
                out.append(ir.Label(names.get(statement.name, statement.name)))
                continue
            instruction = ir.rename_instruction(statement, names) if names else statement
            if instruction.opcode == "call":
                self._call(instruction, stack)
            elif instruction.opcode == "ret" and return_label is not None:
                target = (ir.Symbol(return_label),)
                out.append(replace(instruction, opcode="bra", modifiers=(), operands=target))
            elif instruction.predicate is not None and _is_of_whole_warp(instruction):
                out += self._branched_around(instruction)
            elif self._activations and self._activations[-1].variables:
                out += self.recursion.in_frame(instruction, self._activations[-1])
            else:
                out.append(instruction)

    def _branched_around(self, instruction: ir.Instruction) -> list[ir.Statement]:
        """The instruction without its predicate, behind a branch of the lanes where that does not hold."""
        self._skipped += 1
        skipped = f"{instruction.opcode}@{self._skipped}.skipped"
        plain = replace(instruction, predicate=None, negated=False)
        return [_unless_executed(instruction, skipped), plain, ir.Label(skipped)]

    def _call(self, call: ir.Instruction, stack: tuple[str, ...]) -> None:
        results, callee_or_address, arguments = _call_operands(call)
        if isinstance(callee_or_address, ir.Reg):
            self._call_indirectly(call, results, callee_or_address, arguments, stack)
            return
        name = callee_or_address.name
        out = self._flat.body
        assert out is not None
        if name in BUILTIN_FUNCTIONS and (name not in self._module.functions or not self._module.functions[name].body):
            self._call_builtin(call, results, name, arguments)
            return
        callee = self._module.functions.get(name)
        if callee is None or callee.body is None:
            callee = _at_call(runtime_functions()[name], call) if name in RUNTIME_FUNCTIONS else None
        if callee is None or callee.body is None:
            raise call.unsupported(f"a call of '{name}', which the PTX does not define")
        if name == stack[0]:
            raise call.unsupported("a call of a kernel")
        if len(stack) > _DEEPEST_CALL:
            raise call.unsupported(f"calls that are more than {_DEEPEST_CALL} deep")
        if self._calls >= _MOST_CALLS or len(out) > _MOST_STATEMENTS:
            raise call.unsupported(
                f"more than {_MOST_CALLS} calls, or {_MOST_STATEMENTS} instructions, with all that is called"
            )
        formals, actuals = (*callee.returns, *callee.params), (*results.items, *arguments.items)
        if len(results.items) != len(callee.returns) or len(actuals) != len(formals):
            raise call.unsupported(
                f"'{name}' returns {len(callee.returns)} values and takes {len(callee.params)}; this call has "
                f"{len(results.items)} and {len(arguments.items)}"
            )
        self._calls += 1
        prefix = f"{name}@{self._calls}."
        after, skipped = f"{prefix}return", f"{prefix}skipped"
        if call.predicate is not None:
            out.append(_unless_executed(call, skipped))
        plain = replace(call, predicate=None, negated=False)
        if name in stack:
            self._call_again(plain, name, results, arguments)
        else:
            names = self._rename_callee(callee, prefix)
            registers = {prefix + each: kind for each, kind in callee.registers.items()}
            self._activations.append(Activation(name, prefix, registers))
            if name in self._recursive:
                self._call_recursive(plain, callee, results, arguments, names, stack)
            else:
                for formal, actual in zip(callee.params, arguments.items):
                    out += self._bind(plain, formal, actual, names, prefix, is_result=False)
                handed_back: list[ir.Instruction] = []
                for formal, actual in zip(callee.returns, results.items):
                    handed_back += self._bind(plain, formal, actual, names, prefix, is_result=True)
                self.copy(callee.body, names, (*stack, name), after)
                out.append(ir.Label(after))
                out += handed_back
            self._activations.pop()
        if call.predicate is not None:
            out.append(ir.Label(skipped))

    def _call_recursive(
        self, call: ir.Instruction, callee: ir.Function, results: ir.Arguments, arguments: ir.Arguments,
        names: dict[str, str], stack: tuple[str, ...],
    ) -> None:  # fmt: skip
        """Append the body of a function that calls itself, which has its own copies of its parameters."""
        out, activation = self._flat.body, self._activations[-1]
        assert out is not None and callee.body is not None
        after, left = f"{activation.prefix}return", f"{activation.prefix}left"
        given, taken = _passed_in_memory(call, arguments), _passed_in_memory(call, results)
        for formals, own in ((callee.params, activation.parameters), (callee.returns, activation.results)):
            for formal in formals:
                names[formal.name] = activation.prefix + formal.name
                own.append(_renamed(formal, names[formal.name]))
                self._flat.variables[names[formal.name]] = own[-1]
        for variable, actual in zip(activation.parameters, given):
            out += self.recursion.copy(call, actual, variable.name, variable.size_bytes)
        local = [names[name] for name, variable in callee.variables.items() if variable.space == "local"]
        activation.place_variables(self._flat.variables.pop(name) for name in local)
        out += self.recursion.enter(call, activation)
        self.copy(callee.body, names, (*stack, callee.name), after)
        out.append(ir.Label(after))
        out += self.recursion.leave(call, activation, left)
        out.append(ir.Label(left))
        for variable, actual in zip(activation.results, taken):
            out += self.recursion.copy(call, variable.name, actual, variable.size_bytes)

    def _call_again(self, call: ir.Instruction, name: str, results: ir.Arguments, arguments: ir.Arguments) -> None:
        """Append a call of a function that is running."""
        out = self._flat.body
        assert out is not None
        first = next(number for number, each in enumerate(self._activations) if each.name == name)
        chain = self._activations[first:]
        out += self.recursion.call(call, chain, _passed_in_memory(call, arguments), _passed_in_memory(call, results))

    def _call_builtin(self, call: ir.Instruction, results: ir.Arguments, name: str, arguments: ir.Arguments) -> None:
        """Append a call of a function that the emulator provides, between moves of its arguments and its result."""
        out = self._flat.body
        assert out is not None
        result, parameters = BUILTIN_FUNCTIONS[name]
        if len(arguments.items) != len(parameters) or len(results.items) != (result is not None):
            raise call.unsupported(f"'{name}' takes {len(parameters)} values")
        self._calls += 1
        prefix = f"{name}@{self._calls}."
        operands: list[ir.Operand] = []
        for number, (actual, kind) in enumerate(zip(arguments.items, parameters)):
            if isinstance(actual, ir.Symbol):
                register = ir.Reg(f"{prefix}{number}")
                self._flat.registers[register.name] = TYPES[kind]
                place = ir.Address(ir.Symbol(actual.name))
                out.append(replace(call, opcode="ld", modifiers=("param", kind), operands=(register, place)))
                actual = register
            operands.append(actual)
        taken: list[ir.Instruction] = []
        if result is not None:
            (into,) = results.items
            if isinstance(into, ir.Symbol):
                register = ir.Reg(f"{prefix}result")
                self._flat.registers[register.name] = TYPES[result]
                place = ir.Address(ir.Symbol(into.name))
                taken.append(replace(call, opcode="st", modifiers=("param", result), operands=(place, register)))
                into = register
            operands.insert(0, into)
        out.append(replace(call, modifiers=(name,), operands=tuple(operands)))
        out += taken

    def _call_indirectly(
        self, call: ir.Instruction, results: ir.Arguments, address: ir.Reg, arguments: ir.Arguments,
        stack: tuple[str, ...],
    ) -> None:  # fmt: skip
        """Append a direct call of each function that may be meant, where the address is that function's."""
        out = self._flat.body
        assert out is not None
        self._calls += 1
        prefix = f"indirect@{self._calls}."
        done = f"{prefix}done"
        here = ir.Reg(f"{prefix}here")
        self._flat.registers[here.name] = TYPES["pred"]
        if call.predicate is not None:
            out.append(_unless_executed(call, done))
        plain = replace(call, predicate=None, negated=False)
        (*_, table) = call.operands
        assert isinstance(table, ir.Symbol)
        for number, name in enumerate(self._candidates(call, table, results, arguments)):
            if name in stack:  # recursion, which is an error only where it is reached
                continue
            other = f"{prefix}other{number}"
            operands: tuple[ir.Operand, ...] = (here, address, ir.Symbol(name))
            out.append(replace(plain, opcode="setp", modifiers=("ne", "u64"), operands=operands))
            out.append(replace(plain, opcode="bra", modifiers=(), operands=(ir.Symbol(other),), predicate=here))
            self._call(replace(plain, operands=(results, ir.Symbol(name), arguments)), stack)
            out.append(replace(plain, opcode="bra", modifiers=(), operands=(ir.Symbol(done),)))
            out.append(ir.Label(other))
        out.append(replace(plain, modifiers=(NOWHERE,), operands=(address,)))
        out.append(ir.Label(done))

    def _candidates(
        self, call: ir.Instruction, table: ir.Symbol, results: ir.Arguments, arguments: ir.Arguments
    ) -> list[str]:
        """The functions of a `.calltargets`, or those whose address is taken and that fit a `.callprototype`."""
        targets = self._flat.branch_targets.get(table.name, ())
        if targets:
            return list(targets)
        taken = addressed_functions(self._module)
        passed = (*results.items, *arguments.items)
        fits = []
        for name in taken:
            function = self._module.functions[name]
            formals = (*function.returns, *function.params)
            same_counts = len(function.returns) == len(results.items) and len(formals) == len(passed)
            if same_counts and all(_may_be(self._flat, item, formal) for item, formal in zip(passed, formals)):
                fits.append(name)
        return fits

    def _bind(
        self,
        call: ir.Instruction,
        formal: ir.Variable,
        actual: ir.Operand,
        names: dict[str, str],
        prefix: str,
        is_result: bool,
    ) -> list[ir.Instruction]:
        """Connect a callee's parameter to the value that a call passes.

        Returns the instructions that move the value.
        """
        if formal.space == "param" and isinstance(actual, ir.Symbol):
            names[formal.name] = actual.name
            return []
        kind = formal.element
        fits = isinstance(actual, ir.Reg) if is_result else isinstance(actual, ir.Reg | ir.Imm)
        if kind is None or not fits or formal.size_bytes != kind.size_bytes:
            raise call.unsupported(f"what it passes for the parameter '{formal.name}'")
        word = "pred" if kind.kind == "pred" else f"b{kind.total_bits}"
        place: ir.Operand = ir.Reg(prefix + formal.name)
        opcode, modifiers = "mov", [word]
        if formal.space == "param":
            names[formal.name] = prefix + formal.name
            self._flat.variables[prefix + formal.name] = _renamed(formal, prefix + formal.name)
            place = ir.Address(ir.Symbol(prefix + formal.name))
            opcode, modifiers = "ld" if is_result else "st", ["param", word]
        operands = (actual, place) if is_result else (place, actual)
        return [replace(call, opcode=opcode, modifiers=tuple(modifiers), operands=operands)]

    def _rename_callee(self, callee: ir.Function, prefix: str) -> dict[str, str]:
        names = {name: prefix + name for name in callee.registers}
        for name, element in callee.registers.items():
            self._flat.registers[prefix + name] = element
        for name, variable in callee.variables.items():
            # One copy per block, however often the function is called. Its name must differ from that of other
            # functions' variables.
            names[name] = f"{callee.name}.{name}" if variable.space == "shared" else prefix + name
            self._flat.variables[names[name]] = _renamed(variable, names[name])
        for statement in callee.body or ():
            if isinstance(statement, ir.Label):
                names[statement.name] = prefix + statement.name
        for name, labels in callee.branch_targets.items():
            names[name] = prefix + name
            self._flat.branch_targets[prefix + name] = tuple(names.get(label, label) for label in labels)
        return names


def _passed_in_memory(call: ir.Instruction, items: ir.Arguments) -> list[str]:
    """Names of the `.param` variables that a recursive call passes."""
    names = [item.name for item in items.items if isinstance(item, ir.Symbol)]
    if len(names) != len(items.items):
        raise call.unsupported("recursion with parameters in registers")
    return names


def _renamed(variable: ir.Variable, name: str) -> ir.Variable:
    return replace(variable, name=name)


def addressed_functions(module: ir.Module) -> list[str]:
    """Names of the functions whose address a variable holds or an instruction takes, in the order of the text."""
    named = {link.target for variable in module.variables.values() for link in variable.links}
    for function in module.functions.values():
        for instruction in function.instructions():
            if instruction.opcode in ("mov", "cvta"):
                named |= {operand.name for operand in instruction.operands if isinstance(operand, ir.Symbol)}
    return [name for name, function in module.functions.items() if name in named and function.body is not None]


def _may_be(flat: ir.Function, item: ir.Operand, formal: ir.Variable) -> bool:
    """Whether a call may pass this value for a parameter: by its space and size."""
    if isinstance(item, ir.Symbol):
        known = flat.variables.get(item.name)
        return formal.space == "param" and known is not None and known.size_bytes == formal.size_bytes
    if isinstance(item, ir.Reg) and item.name in flat.registers:
        return flat.registers[item.name].size_bytes == formal.size_bytes
    return True


def _at_call(function: ir.Function, call: ir.Instruction) -> ir.Function:
    """A function of the runtime whose instructions have the location of the call."""
    assert function.body is not None
    body = [
        replace(statement, ptx_line=call.ptx_line, source=call.source)
        if isinstance(statement, ir.Instruction)
        else statement
        for statement in function.body
    ]
    return replace(function, body=body)


def _call_operands(call: ir.Instruction) -> tuple[ir.Arguments, ir.Symbol | ir.Reg, ir.Arguments]:
    """Split `call [(results),] name [, (arguments)]` into results, name and arguments.

    An indirect call has a register in place of the name, and a table or a prototype at its end.
    """
    operands = list(call.operands)
    results = ir.Arguments(())
    if operands and isinstance(operands[0], ir.Arguments):
        first = operands.pop(0)
        assert isinstance(first, ir.Arguments)
        results = first
    callee = operands.pop(0) if operands else None
    if isinstance(callee, ir.Reg) and operands and isinstance(operands[-1], ir.Symbol):
        operands.pop()
    elif not isinstance(callee, ir.Symbol):
        raise call.unsupported("its operands do not fit its form")
    arguments = operands[0] if operands else ir.Arguments(())
    if not isinstance(arguments, ir.Arguments) or len(operands) > 1:
        raise call.unsupported("its operands do not fit its form")
    return results, callee, arguments
