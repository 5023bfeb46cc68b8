"""Compiles functions over 64-bit integers, written in a subset of Python, to LLVM IR text.

The runtime is written in it: memory requests, scheduling of blocks and warps, and the sanitizer. Its functions are
readable and can be called from Python, while generated code calls them as native code.

The subset: integers and truth values, which are 0 and 1; names, constants of modules, `+ - * // % << >> & | ^ ~`,
comparisons, `and or not`, `x if c else y`, `min max int bool abs`; assignments, `if`, `while`, `for` over a `range`,
`break`, `continue`, `return`; calls of each other, of `abi/raw_memory.py` and of `abi/doubles.py`. Integers wrap around
at 64 bits and division by zero is undefined; otherwise the semantics are Python's. Anything outside of the subset is
rejected at compile time.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any, NoReturn

from harness.emulator.abi import raw_memory
from harness.emulator.codegen.functions import double_operations

Function = Callable[..., int | None]

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge",
}  # fmt: skip
_OPERATIONS: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.LShift: "shl", ast.RShift: "ashr",
    ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
}  # fmt: skip
_LOADS: dict[Any, int] = {getattr(raw_memory, f"load{bits}"): bits for bits in (8, 16, 32, 64)}
_STORES: dict[Any, int] = {getattr(raw_memory, f"store{bits}"): bits for bits in (8, 16, 32, 64)}
_DECLARATIONS = (
    "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n"
    "declare i64 @llvm.smin.i64(i64, i64)\n"
    "declare i64 @llvm.smax.i64(i64, i64)\n"
    "declare i64 @llvm.abs.i64(i64, i1)\n"
)


def translate(exports: Mapping[str, Function]) -> str:
    """A module with the functions under the given names, and all functions that they call.

    Raises `TypeError` if a function is not in the subset; the message says where.
    """
    names: dict[Function, str] = {}
    texts: list[str] = []
    waiting = list(exports.values())

    def name_of(function: Function) -> str:
        if function not in names:
            names[function] = f"{function.__module__}.{function.__name__}"
            waiting.append(function)
        return names[function]

    for symbol, function in exports.items():
        names[function] = symbol
    while waiting:
        function = waiting.pop()
        linkage = "" if names[function] in exports else "internal "
        texts.append(_Translation(function, name_of).text(linkage))
    return _DECLARATIONS + double_operations.DECLARATIONS + "".join(texts)


@cache
def _definitions(module: ModuleType) -> dict[str, ast.FunctionDef]:
    body = ast.parse(inspect.getsource(module)).body
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


class _Translation:
    """The text of one function. A value is an operand and its type, `i64` or `i1`."""

    def __init__(self, function: Function, name_of: Callable[[Function], str]) -> None:
        module = sys.modules[function.__module__]
        self._function, self._name_of = function, name_of
        self._globals: dict[str, Any] = vars(module)
        self._definition = _definitions(module)[function.__name__]
        self._lines: list[str] = []
        self._slots: dict[str, None] = {}
        """Names of stack slots: local variables, and temporaries of loops and conditional expressions."""
        self._locals = {
            node.id
            for node in ast.walk(self._definition)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }.union(parameter.arg for parameter in self._definition.args.args)
        self._count = 0
        self._loops: list[tuple[str, str]] = []
        """(target of `continue`, target of `break`) of the enclosing loops."""

    def text(self, linkage: str) -> str:
        """The whole function."""
        parameters = [parameter.arg for parameter in self._definition.args.args]
        for name in parameters:
            self._store(name, f"%{name}")
        self._block(self._definition.body)
        self._do("ret i64 0")
        formal = ", ".join(f"i64 %{name}" for name in parameters)
        slots = "".join(f"  %slot.{name} = alloca i64\n" for name in self._slots)
        body = "\n".join(self._lines)
        symbol = self._name_of(self._function)
        return f'define {linkage}i64 @"{symbol}"({formal}) nounwind {{\n{slots}{body}\n}}\n'

    # Text -----------------------------------------------------------------------------------------------------------

    def _op(self, expression: str) -> str:
        self._count += 1
        self._lines.append(f"  %v{self._count} = {expression}")
        return f"%v{self._count}"

    def _do(self, statement: str) -> None:
        self._lines.append(f"  {statement}")

    def _labels(self, *kinds: str) -> list[str]:
        self._count += 1
        return [f"{kind}{self._count}" for kind in kinds]

    def _begin(self, label: str) -> None:
        self._do(f"br label %{label}")
        self._lines.append(f"{label}:")

    def _jump(self, label: str) -> None:
        """Jump to a label; code that follows in the text is unreachable."""
        self._do(f"br label %{label}")
        self._lines.append(f"{self._labels('after')[0]}:")

    def _branch(self, condition: str, yes: str, no: str) -> None:
        self._do(f"br i1 {condition}, label %{yes}, label %{no}")

    def _store(self, name: str, value: str) -> None:
        self._slots[name] = None
        self._do(f"store i64 {value}, ptr %slot.{name}")

    def _refuse(self, node: ast.AST, what: str) -> NoReturn:
        line = getattr(node, "lineno", self._definition.lineno)
        raise TypeError(f"{self._function.__module__}, line {line}: {what} is not in the subset of Python")

    # Statements -----------------------------------------------------------------------------------------------------

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            handler = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if handler is None:
                self._refuse(statement, type(statement).__name__)
            handler(statement)

    def _pass(self, node: ast.Pass) -> None:
        pass

    def _expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self._integer(node.value)

    def _assign(self, node: ast.Assign) -> None:
        (target,) = node.targets
        if isinstance(target, ast.Tuple):
            if not isinstance(node.value, ast.Tuple) or len(node.value.elts) != len(target.elts):
                self._refuse(node, "an assignment of anything but as many values")
            values = [self._integer(value) for value in node.value.elts]
            for name, value in zip(target.elts, values, strict=True):
                self._store(self._target(name), value)
        else:
            self._store(self._target(target), self._integer(node.value))

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is None:
            self._refuse(node, "a declaration without a value")
        self._store(self._target(node.target), self._integer(node.value))

    def _augassign(self, node: ast.AugAssign) -> None:
        name = self._target(node.target)
        before = self._op(f"load i64, ptr %slot.{name}")
        self._store(name, self._operation(node, node.op, before, self._integer(node.value)))

    def _target(self, node: ast.AST) -> str:
        if not isinstance(node, ast.Name):
            self._refuse(node, "an assignment to anything but a name")
        return node.id

    def _return(self, node: ast.Return) -> None:
        value = "0" if node.value is None else self._integer(node.value)
        self._do(f"ret i64 {value}")
        self._lines.append(f"{self._labels('after')[0]}:")

    def _if(self, node: ast.If) -> None:
        yes, no, end = self._labels("then", "else", "endif")
        self._branch(self._truth(node.test), yes, no)
        self._lines.append(f"{yes}:")
        self._block(node.body)
        self._do(f"br label %{end}")
        self._lines.append(f"{no}:")
        self._block(node.orelse)
        self._begin(end)

    def _while(self, node: ast.While) -> None:
        if node.orelse:
            self._refuse(node, "else of a loop")
        test, body, end = self._labels("test", "body", "done")
        self._begin(test)
        self._branch(self._truth(node.test), body, end)
        self._lines.append(f"{body}:")
        self._repeat(node.body, test, end)
        self._do(f"br label %{test}")
        self._lines.append(f"{end}:")

    def _for(self, node: ast.For) -> None:
        bounds = node.iter.args if isinstance(node.iter, ast.Call) else []
        if node.orelse or not bounds or not isinstance(node.iter, ast.Call) or self._called(node.iter) is not range:
            self._refuse(node, "a loop over anything but a range, or with else")
        name = self._target(node.target)
        first = "0" if len(bounds) == 1 else self._integer(bounds[0])
        last = self._integer(bounds[0] if len(bounds) == 1 else bounds[1])
        step = "1" if len(bounds) < 3 else self._integer(bounds[2])
        down = step.startswith("-")
        # Python's loop has a counter of its own: the body cannot change it by assigning to the name.
        test, body, following, end = self._labels("test", "body", "next", "done")
        counter = f"{name}.{test}"
        self._store(counter, first)
        self._begin(test)
        now = self._op(f"load i64, ptr %slot.{counter}")
        if step[0] not in "-0123456789":
            rising = self._op(f"icmp sgt i64 {step}, 0")
            below, above = self._op(f"icmp slt i64 {now}, {last}"), self._op(f"icmp sgt i64 {now}, {last}")
            more = self._op(f"select i1 {rising}, i1 {below}, i1 {above}")
        else:
            more = self._op(f"icmp {'sgt' if down else 'slt'} i64 {now}, {last}")
        self._branch(more, body, end)
        self._lines.append(f"{body}:")
        self._store(name, now)
        self._repeat(node.body, following, end)
        self._begin(following)
        self._store(counter, self._op(f"add i64 {now}, {step}"))
        self._do(f"br label %{test}")
        self._lines.append(f"{end}:")

    def _repeat(self, body: Sequence[ast.stmt], following: str, end: str) -> None:
        self._loops.append((following, end))
        self._block(body)
        self._loops.pop()

    def _continue(self, node: ast.Continue) -> None:
        self._jump(self._loops[-1][0])

    def _break(self, node: ast.Break) -> None:
        self._jump(self._loops[-1][1])

    # Expressions ----------------------------------------------------------------------------------------------------

    def _integer(self, node: ast.expr) -> str:
        value, kind = self._value(node)
        return value if kind == "i64" else self._op(f"zext i1 {value} to i64")

    def _truth(self, node: ast.expr) -> str:
        value, kind = self._value(node)
        return value if kind == "i1" else self._op(f"icmp ne i64 {value}, 0")

    def _value(self, node: ast.expr) -> tuple[str, str]:
        """An operand and its type."""
        if isinstance(node, ast.Name) and node.id in self._locals:
            return self._op(f"load i64, ptr %slot.{node.id}"), "i64"
        if isinstance(node, (ast.Constant, ast.Name, ast.Attribute)):
            return str(int(self._constant(node))), "i64"
        if isinstance(node, ast.BinOp):
            left, right = self._integer(node.left), self._integer(node.right)
            return self._operation(node, node.op, left, right), "i64"
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.Compare):
            return self._comparison(node), "i1"
        if isinstance(node, ast.BoolOp):
            return self._junction(node)
        if isinstance(node, ast.IfExp):
            return self._choice(node), "i64"
        if isinstance(node, ast.Call):
            return self._call(node)
        self._refuse(node, type(node).__name__)

    def _constant(self, node: ast.expr) -> int:
        found = self._global(node)
        if not isinstance(found, int):
            self._refuse(node, f"{ast.unparse(node)}, which is no integer,")
        return found

    def _global(self, node: ast.expr) -> Any:
        """The object that a name of the module, or of a module that it imports, refers to."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Attribute):
            return getattr(self._global(node.value), node.attr)
        if isinstance(node, ast.Name):
            for names in (self._globals, vars(sys.modules["builtins"])):
                if node.id in names:
                    return names[node.id]
        self._refuse(node, f"{ast.unparse(node)}, which has no value here,")

    def _operation(self, node: ast.AST, operator: ast.operator, left: str, right: str) -> str:
        if type(operator) in _OPERATIONS:
            return self._op(f"{_OPERATIONS[type(operator)]} i64 {left}, {right}")
        if not isinstance(operator, (ast.FloorDiv, ast.Mod)):
            self._refuse(node, type(operator).__name__)
        divides = isinstance(operator, ast.FloorDiv)
        if right.isdigit() and int(right).bit_count() == 1:
            bits = int(right).bit_length() - 1
            return self._op(f"ashr i64 {left}, {bits}" if divides else f"and i64 {left}, {int(right) - 1}")
        # The hardware rounds towards zero, Python down.
        rest = self._op(f"srem i64 {left}, {right}")
        differs = self._op(f"icmp slt i64 {self._op(f'xor i64 {rest}, {right}')}, 0")
        down = self._op(f"and i1 {differs}, {self._op(f'icmp ne i64 {rest}, 0')}")
        if divides:
            quotient = self._op(f"sdiv i64 {left}, {right}")
            return self._op(f"sub i64 {quotient}, {self._op(f'zext i1 {down} to i64')}")
        return self._op(f"add i64 {rest}, {self._op(f'select i1 {down}, i64 {right}, i64 0')}")

    def _unary(self, node: ast.UnaryOp) -> tuple[str, str]:
        if isinstance(node.op, ast.Not):
            return self._op(f"xor i1 {self._truth(node.operand)}, true"), "i1"
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return str(-int(self._constant(node.operand))), "i64"
        value = self._integer(node.operand)
        if isinstance(node.op, ast.USub):
            return self._op(f"sub i64 0, {value}"), "i64"
        if isinstance(node.op, ast.Invert):
            return self._op(f"xor i64 {value}, -1"), "i64"
        return value, "i64"

    def _comparison(self, node: ast.Compare) -> str:
        # Operands have no side effects except for calls, which do not occur in chains.
        operands = [self._integer(operand) for operand in (node.left, *node.comparators)]
        result = ""
        for index, operator in enumerate(node.ops):
            if type(operator) not in _COMPARISONS:
                self._refuse(node, type(operator).__name__)
            one = self._op(f"icmp {_COMPARISONS[type(operator)]} i64 {operands[index]}, {operands[index + 1]}")
            result = self._op(f"and i1 {result}, {one}") if result else one
        return result

    def _junction(self, node: ast.BoolOp) -> tuple[str, str]:
        """`and`, `or` with short-circuit evaluation."""
        (end,) = self._labels("decided")
        result = f"junction.{end}"
        truths = []
        for number, operand in enumerate(node.values):
            value, kind = self._value(operand)
            truths.append(kind == "i1")
            self._store(result, value if kind == "i64" else self._op(f"zext i1 {value} to i64"))
            if number < len(node.values) - 1:
                (following,) = self._labels("operand")
                truth = value if kind == "i1" else self._op(f"icmp ne i64 {value}, 0")
                decided = isinstance(node.op, ast.Or)
                self._branch(truth, end if decided else following, following if decided else end)
                self._lines.append(f"{following}:")
        self._begin(end)
        value = self._op(f"load i64, ptr %slot.{result}")
        return (self._op(f"trunc i64 {value} to i1"), "i1") if all(truths) else (value, "i64")

    def _choice(self, node: ast.IfExp) -> str:
        yes, no, end = self._labels("yes", "no", "chosen")
        result = f"choice.{end}"
        self._branch(self._truth(node.test), yes, no)
        for label, operand in ((yes, node.body), (no, node.orelse)):
            self._lines.append(f"{label}:")
            self._store(result, self._integer(operand))
            self._do(f"br label %{end}")
        self._lines.append(f"{end}:")
        return self._op(f"load i64, ptr %slot.{result}")

    # Calls ----------------------------------------------------------------------------------------------------------

    def _called(self, node: ast.Call) -> Any:
        if node.keywords:
            self._refuse(node, "an argument by name")
        return self._global(node.func)

    def _call(self, node: ast.Call) -> tuple[str, str]:
        function = self._called(node)
        if function is bool:
            return self._truth(node.args[0]), "i1"
        values = [self._integer(argument) for argument in node.args]
        if function is int:
            return values[0], "i64"
        if function is abs:
            return self._op(f"call i64 @llvm.abs.i64(i64 {values[0]}, i1 false)"), "i64"
        if function in (min, max):
            found = values[0]
            for value in values[1:]:
                found = self._op(f"call i64 @llvm.s{function.__name__}.i64(i64 {found}, i64 {value})")
            return found, "i64"
        if getattr(function, "__module__", None) == raw_memory.__name__:
            return self._primitive(function, values), "i64"
        if function in double_operations.FUNCTIONS:
            return double_operations.emit(function, values, self._op)
        if not inspect.isfunction(function):
            self._refuse(node, f"a call of {ast.unparse(node.func)}")
        arguments = ", ".join(f"i64 {value}" for value in values)
        return self._op(f'call i64 @"{self._name_of(function)}"({arguments})'), "i64"

    def _primitive(self, function: Any, values: Sequence[str]) -> str:
        pointer = self._op(f"inttoptr i64 {values[0]} to ptr")
        if function in _LOADS:
            bits = _LOADS[function]
            word = self._op(f"load i{bits}, ptr {pointer}, align 1")
            return word if bits == 64 else self._op(f"zext i{bits} {word} to i64")
        if function in _STORES:
            bits = _STORES[function]
            word = values[1] if bits == 64 else self._op(f"trunc i64 {values[1]} to i{bits}")
            self._do(f"store i{bits} {word}, ptr {pointer}, align 1")
        elif function is raw_memory.fill_ones:
            self._do(f"call void @llvm.memset.p0.i64(ptr {pointer}, i8 -1, i64 {values[1]}, i1 false)")
        elif function is raw_memory.call_host:
            self._do(f"call void {pointer}(i64 {values[1]})")
        else:
            assert function is raw_memory.call_warp
            return self._op(f"zext i32 {self._op(f'call i32 {pointer}(i64 {values[1]}, i64 {values[2]})')} to i64")
        return "0"
