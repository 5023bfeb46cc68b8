"""Replaces calls by the bodies of the called functions.

Before: an entry that calls `.func`s through `.param` variables. After: one function without calls. The callee's
registers, labels and variables have a prefix, its parameters are the caller's `.param` variables, and its `ret` is a
branch to the end of the call. Values that a call passes in registers, or as numbers, are moved before the body, and
results after it. Recursion and indirect calls cannot be inlined.
"""

from __future__ import annotations

from dataclasses import replace

from harness.ptx import instructions as ir

BUILTIN_FUNCTIONS = ("vprintf", "__assertfail")
"""Functions of the CUDA runtime that the emulator provides. Calls to them are not inlined."""
_MOST_STATEMENTS = 1_000_000
_MOST_CALLS = 10_000
"""Maximum calls in a function, including nested ones. If each function calls the next one twice, they double at each
level."""
_DEEPEST_CALL = 100


def inline_calls(module: ir.Module, entry: ir.Function) -> ir.Function:
    """A copy of `entry` with every call inlined. Raises `UnsupportedInstruction` on recursion and unknown callees."""
    flat = ir.Function(entry.name, True, params=list(entry.params))
    flat.registers = dict(entry.registers)
    flat.variables = dict(entry.variables)
    flat.branch_targets = dict(entry.branch_targets)
    assert entry.body is not None
    flat.body = []
    _Inliner(module, flat).copy(entry.body, {}, (entry.name,), None)
    return flat


class _Inliner:
    def __init__(self, module: ir.Module, flat: ir.Function) -> None:
        self._module = module
        self._flat = flat
        self._calls = 0

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
            else:
                out.append(instruction)

    def _call(self, call: ir.Instruction, stack: tuple[str, ...]) -> None:
        results, name, arguments = _call_operands(call)
        out = self._flat.body
        assert out is not None
        if name in BUILTIN_FUNCTIONS:
            out.append(replace(call, operands=(results, ir.Symbol(name), arguments)))
            return
        callee = self._module.functions.get(name)
        if callee is None or callee.body is None:
            raise call.unsupported(f"a call of '{name}', which the PTX does not define")
        if name in stack:
            raise call.unsupported(f"recursion ({' -> '.join((*stack, name))})")
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
            skip = replace(call, opcode="bra", modifiers=(), operands=(ir.Symbol(skipped),), negated=not call.negated)
            out.append(skip)
        names = self._rename_callee(callee, prefix)
        plain = replace(call, predicate=None, negated=False)
        for formal, actual in zip(callee.params, arguments.items):
            out += self._bind(plain, formal, actual, names, prefix, is_result=False)
        handed_back: list[ir.Instruction] = []
        for formal, actual in zip(callee.returns, results.items):
            handed_back += self._bind(plain, formal, actual, names, prefix, is_result=True)
        self.copy(callee.body, names, (*stack, name), after)
        out.append(ir.Label(after))
        out += handed_back
        if call.predicate is not None:
            out.append(ir.Label(skipped))

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


def _renamed(variable: ir.Variable, name: str) -> ir.Variable:
    return replace(variable, name=name)


def _call_operands(call: ir.Instruction) -> tuple[ir.Arguments, str, ir.Arguments]:
    """Split `call [(results),] name [, (arguments)]` into results, name and arguments."""
    operands = list(call.operands)
    results = ir.Arguments(())
    if operands and isinstance(operands[0], ir.Arguments):
        first = operands.pop(0)
        assert isinstance(first, ir.Arguments)
        results = first
    if not operands or not isinstance(operands[0], ir.Symbol):
        raise call.unsupported("an indirect call")
    name = operands[0].name
    arguments = operands[1] if len(operands) > 1 else ir.Arguments(())
    if not isinstance(arguments, ir.Arguments) or len(operands) > 2:
        raise call.unsupported("an indirect call")
    return results, name, arguments
