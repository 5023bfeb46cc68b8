"""PTX text -> `Module`.

Our own, because the parsers on PyPI (pyptx 0.1.1 was tried) keep no line numbers, do not open `{ }` scopes, and pass
text that they do not understand through instead of refusing it; faults and counts need the first, correctness the rest.
"""

from __future__ import annotations

import struct

from harness.emulator.ptx.instructions import (
    Address,
    Arguments,
    Function,
    Imm,
    Instruction,
    Label,
    Module,
    Not,
    Operand,
    Pair,
    Reg,
    SourceLine,
    Symbol,
    Variable,
    Vector,
)
from harness.emulator.ptx.lexer import Token, tokenize
from harness.emulator.ptx.types import TYPES, PtxType
from harness.errors import CompileError

_LINKAGE = {".extern", ".visible", ".weak", ".common"}
_SPACES = {".global", ".const", ".shared", ".local", ".param"}
_IGNORED_LINES = {".version", ".address_size", ".pragma"}
_TUNING = {".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".maxnreg", ".noreturn", ".explicitcluster"}
_TUNING |= {".reqnctapercluster", ".maxclusterrank", ".abi_preserve", ".abi_preserve_control", ".unique"}


def parse(text: str) -> Module:
    """Parse one PTX module. Raises `CompileError` with the PTX line where the text is not PTX as we know it."""
    return _Parser(tokenize(text)).module()


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._module = Module()
        self._files = dict(self._find_files())
        self._source: SourceLine | None = None
        self._main_file: int | None = None
        self._scopes: list[dict[str, str]] = []
        self._scope_count = 0
        self._registers_here: dict[str, PtxType] = {}

    # Tokens ---------------------------------------------------------------------------------------------------------

    def _peek(self, ahead: int = 0) -> Token:
        index = self._at + ahead
        if index >= len(self._tokens):
            raise CompileError("the PTX ends in the middle of a statement")
        return self._tokens[index]

    def _next(self) -> Token:
        token = self._peek()
        self._at += 1
        return token

    def _accept(self, text: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at].text == text:
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> Token:
        token = self._next()
        if token.text != text:
            raise CompileError(f"PTX line {token.line}: expected '{text}', found '{token.text}'")
        return token

    def _integer(self) -> int:
        sign = -1 if self._accept("-") else 1
        token = self._next()
        if token.kind != "number":
            raise CompileError(f"PTX line {token.line}: expected a number, found '{token.text}'")
        return sign * _integer_value(token.text)

    def _skip_to_line_end(self) -> None:
        line = self._tokens[self._at - 1].line
        while self._at < len(self._tokens) and self._tokens[self._at].line == line:
            self._at += 1

    def _find_files(self) -> list[tuple[int, str]]:
        """`.file` may stand at the end of the text, behind the `.loc` lines that use it."""
        found = []
        for index, token in enumerate(self._tokens[:-2]):
            if token.text == ".file":
                found.append((int(self._tokens[index + 1].text), self._tokens[index + 2].text.strip('"')))
        return found

    # Module scope ---------------------------------------------------------------------------------------------------

    def module(self) -> Module:
        while self._at < len(self._tokens):
            token = self._peek()
            if token.text in _IGNORED_LINES or token.text == ".file":
                self._next()
                self._skip_to_line_end()
            elif token.text == ".target":
                self._next()
                self._module.target = self._peek().text
                self._skip_to_line_end()
            elif token.text == ".section":
                self._skip_section()
            elif token.text in (".entry", ".func"):
                self._function()
            elif token.text in _LINKAGE and self._function_follows():
                self._next()
            elif token.text in _SPACES or token.text in _LINKAGE:
                for variable in self._variables():
                    self._module.variables[variable.name] = variable
            elif token.text in (".alias", ".loc"):
                raise CompileError(f"PTX line {token.line}: '{token.text}' is not expected at module scope")
            else:
                raise CompileError(f"PTX line {token.line}: unknown directive '{token.text}'")
        return self._module

    def _function_follows(self) -> bool:
        ahead = 1
        while self._peek(ahead).text in _LINKAGE:
            ahead += 1
        return self._peek(ahead).text in (".entry", ".func")

    def _skip_section(self) -> None:
        while self._next().text != "{":
            pass
        depth = 1
        while depth:
            text = self._next().text
            depth += (text == "{") - (text == "}")

    def _variables(self) -> list[Variable]:
        """One declaration, of one or more variables."""
        extern = False
        while self._peek().text in _LINKAGE:
            extern |= self._next().text == ".extern"
        space = self._next().text
        if space not in _SPACES:
            raise CompileError(f"PTX line {self._peek().line}: unknown state space '{space}'")
        align, element, lanes = self._declared_type()
        variables = []
        while True:
            name = self._next().text
            count, sized = lanes, True
            while self._accept("["):
                if self._accept("]"):
                    sized = False
                    continue
                count *= self._integer()
                self._expect("]")
            initial = None
            if self._accept("="):
                values = self._initializer()
                count = count if sized else len(values)
                sized = True
                initial = self._pack_initial(element, values, count)
            variables.append(
                Variable(
                    name,
                    space[1:],
                    align or element.size_bytes,
                    count * element.size_bytes if sized else 0,
                    initial,
                    extern,
                    element,
                )
            )
            if not self._accept(","):
                break
        self._expect(";")
        return variables

    def _declared_type(self) -> tuple[int, PtxType, int]:
        """`[.align n] [.ptr ...] [.v2|.v4] .type` -> alignment (0 where not given), type, elements per vector."""
        align, lanes = 0, 1
        while True:
            token = self._next()
            if token.text == ".align":
                align = self._integer()
            elif token.text in (".v2", ".v4", ".v8"):
                lanes = int(token.text[2:])
            elif token.text in (".attribute", ".managed", ".unified"):
                if self._accept("("):
                    while self._next().text != ")":
                        pass
            elif token.text[1:] in TYPES:
                return align, TYPES[token.text[1:]], lanes
            else:
                raise CompileError(f"PTX line {token.line}: unknown type '{token.text}'")

    def _initializer(self) -> list[int]:
        if not self._accept("{"):
            return [self._initial_value()]
        values: list[int] = []
        while not self._accept("}"):
            if self._peek().text == "{":
                values += self._initializer()
            else:
                values.append(self._initial_value())
            self._accept(",")
        return values

    def _initial_value(self) -> int:
        token = self._peek()
        if token.kind == "word":
            raise CompileError(f"PTX line {token.line}: a variable initialised with the address of '{token.text}'")
        if token.text[:2].lower() in ("0f", "0d") and len(token.text) > 8:
            return int(self._next().text[2:], 16)
        return self._integer()

    @staticmethod
    def _pack_initial(element: PtxType, values: list[int], count: int) -> bytes:
        size = element.size_bytes
        mask = (1 << (8 * size)) - 1
        packed = b"".join((v & mask).to_bytes(size, "little") for v in values)
        return packed.ljust(count * size, b"\0")

    # Functions ------------------------------------------------------------------------------------------------------

    def _function(self) -> None:
        is_entry = self._next().text == ".entry"
        returns = self._parameters() if self._peek().text == "(" else []
        function = Function(self._next().text, is_entry, returns)
        if self._peek().text == "(":
            function.params = self._parameters()
        while self._peek().text in _TUNING:
            self._next()
            while self._peek().kind == "number" or self._peek().text == ",":
                self._next()
        if self._accept(";"):
            self._module.functions.setdefault(function.name, function)
            return
        function.body = []
        self._registers_here = function.registers
        self._module.functions[function.name] = function
        self._source = None
        self._main_file = None
        self._block(function)

    def _parameters(self) -> list[Variable]:
        self._expect("(")
        params: list[Variable] = []
        while not self._accept(")"):
            space = self._next().text
            if space == ".reg":
                raise CompileError(f"PTX line {self._peek().line}: '.reg' parameters are not supported")
            align, element, _ = self._pointer_or_type()
            name = self._next().text
            count = 1
            while self._accept("["):
                count *= self._integer() if self._peek().text != "]" else 0
                self._expect("]")
            params.append(Variable(name, "param", align or element.size_bytes, count * element.size_bytes, None))
            self._accept(",")
        return params

    def _pointer_or_type(self) -> tuple[int, PtxType, int]:
        align, element, lanes = self._declared_type()
        if self._accept(".ptr"):
            while self._peek().kind == "dot":
                if self._next().text == ".align":
                    self._integer()
        return align, element, lanes

    def _block(self, function: Function) -> None:
        """`{ ... }`: a scope of its own; names declared inside are renamed so that they are unique in the function."""
        assert function.body is not None
        self._expect("{")
        self._scopes.append({})
        while not self._accept("}"):
            token = self._peek()
            if token.text == "{":
                self._block(function)
            elif token.text == ".reg":
                self._registers(function)
            elif token.text in _SPACES or token.text in _LINKAGE:
                for variable in self._variables():
                    unique = self._declare(variable.name)
                    function.variables[unique] = Variable(
                        unique,
                        variable.space,
                        variable.align_bytes,
                        variable.size_bytes,
                        variable.initial,
                        variable.extern,
                    )
            elif token.text == ".loc":
                self._location()
            elif token.text == ".pragma":
                self._next()
                self._next()
                self._expect(";")
            elif (
                token.kind == "word"
                and self._peek(1).text == ":"
                and self._peek(2).text
                in (
                    ".branchtargets",
                    ".calltargets",
                    ".callprototype",
                )
            ):
                self._targets(function)
            elif token.kind == "word" and self._peek(1).text == ":":
                function.body.append(Label(self._next().text))
                self._next()
            elif token.kind == "word" or token.text == "@":
                function.body.append(self._instruction())
            else:
                raise CompileError(f"PTX line {token.line}: unexpected '{token.text}' in a function")
        self._scopes.pop()

    def _declare(self, name: str) -> str:
        unique = name
        if len(self._scopes) > 1:
            self._scope_count += 1
            unique = f"{name}#{self._scope_count}"
        self._scopes[-1][name] = unique
        return unique

    def _resolve(self, name: str) -> str:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return name

    def _registers(self, function: Function) -> None:
        self._next()
        _, element, lanes = self._declared_type()
        while True:
            token = self._next()
            if self._accept("<"):
                for index in range(self._integer()):
                    function.registers[self._declare(f"{token.text}{index}")] = element
                self._expect(">")
            elif lanes != 1:
                raise CompileError(f"PTX line {token.line}: vector registers are not supported")
            else:
                function.registers[self._declare(token.text)] = element
            if not self._accept(","):
                break
        self._expect(";")

    def _targets(self, function: Function) -> None:
        name = self._next().text
        self._expect(":")
        directive = self._next()
        if directive.text != ".branchtargets":
            raise CompileError(f"PTX line {directive.line}: indirect calls ('{directive.text}') are not supported")
        labels = [self._next().text]
        while self._accept(","):
            labels.append(self._next().text)
        self._expect(";")
        function.branch_targets[name] = tuple(labels)

    def _location(self) -> None:
        """`.loc file line column [, function_name label[+n], inlined_at file line column]`.

        Lines of a toolkit header that was inlined count for the user's line that called it.
        """
        self._next()
        file, line = self._integer(), self._integer()
        self._integer()
        while self._accept(","):
            word = self._next().text
            if word == "function_name":
                self._next()
                if self._accept("+"):
                    self._integer()
            elif word == "inlined_at":
                at_file, at_line = self._integer(), self._integer()
                self._integer()
                if file != self._main_file and at_file == self._main_file:
                    file, line = at_file, at_line
            else:
                raise CompileError(f"PTX line {self._peek().line}: unknown '.loc' attribute '{word}'")
        if self._main_file is None:
            self._main_file = file
        if line:
            self._source = SourceLine(self._files.get(file, f"file {file}"), line)

    # Instructions ---------------------------------------------------------------------------------------------------

    def _instruction(self) -> Instruction:
        predicate, negated = None, False
        if self._accept("@"):
            negated = self._accept("!")
            predicate = Reg(self._resolve(self._next().text))
        opcode = self._next()
        if opcode.kind != "word":
            raise CompileError(f"PTX line {opcode.line}: expected an opcode, found '{opcode.text}'")
        modifiers = []
        while self._peek().kind == "dot":
            modifiers.append(self._next().text[1:])
        operands: list[Operand] = []
        while not self._accept(";"):
            operands.append(self._operand())
            if self._peek().text != ";":
                self._expect(",")
        return Instruction(
            opcode.text, tuple(modifiers), tuple(operands), predicate, negated, opcode.line, self._source
        )

    def _operand(self) -> Operand:
        first = self._simple_operand()
        if self._accept("|"):
            return Pair(first, self._simple_operand())
        return first

    def _simple_operand(self) -> Operand:
        token = self._peek()
        if self._accept("["):
            address = self._address()
            self._expect("]")
            return address
        if self._accept("{"):
            return Vector(self._list("}"))
        if self._accept("("):
            return Arguments(self._list(")"))
        if self._accept("!"):
            return Not(Reg(self._resolve(self._next().text)))
        if token.kind == "number" or token.text == "-":
            return self._literal()
        if token.kind != "word":
            raise CompileError(f"PTX line {token.line}: expected an operand, found '{token.text}'")
        return self._named()

    def _list(self, closing: str) -> tuple[Operand, ...]:
        items: list[Operand] = []
        while not self._accept(closing):
            items.append(self._operand())
            self._accept(",")
        return tuple(items)

    def _named(self) -> Operand:
        name = self._next().text
        if name.startswith("%") and self._peek().kind == "dot":
            return Reg(name + self._next().text)
        name = self._resolve(name)
        if name == "WARP_SZ":
            return Imm(32)
        if name.startswith("%") or name == "_" or name in self._registers_here:
            return Reg(name)
        offset = 0
        while self._peek().text in ("+", "-"):
            sign = 1 if self._next().text == "+" else -1
            offset += sign * self._integer()
        return Symbol(name, offset)

    def _literal(self) -> Imm:
        token = self._peek()
        if token.text[:2] in ("0f", "0F") and len(token.text) == 10:
            return Imm(int(self._next().text[2:], 16), 32)
        if token.text[:2] in ("0d", "0D") and len(token.text) == 18:
            return Imm(int(self._next().text[2:], 16), 64)
        if "." in token.text:
            self._next()
            return Imm(struct.unpack("<Q", struct.pack("<d", float(token.text)))[0], 64)
        return Imm(self._integer())

    def _address(self) -> Address:
        token = self._peek()
        if token.kind == "number" or token.text == "-":
            return Address(Imm(self._integer()))
        base = self._named()
        offset = 0
        while self._peek().text in ("+", "-"):
            sign = 1 if self._next().text == "+" else -1
            offset += sign * self._integer()
        if isinstance(base, Symbol):
            return Address(Symbol(base.name), base.offset + offset)
        assert isinstance(base, Reg)
        return Address(base, offset)


def _integer_value(text: str) -> int:
    text = text.rstrip("U")
    if text[:2] in ("0x", "0X"):
        return int(text, 16)
    if text[:2] in ("0b", "0B"):
        return int(text, 2)
    if len(text) > 1 and text[0] == "0":
        return int(text, 8)
    return int(text)
