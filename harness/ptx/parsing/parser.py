"""Parses PTX text into a `Module`.

The parsers on PyPI (pyptx 0.1.1 was tested) do not record line numbers, do not resolve `{ }` scopes, and pass on text
that they do not understand instead of rejecting it. Faults and counts need line numbers; correctness needs the rest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from harness.ptx import instructions as ir
from harness.ptx.parsing.constant_expressions import WARP_SZ
from harness.ptx.parsing.declarations import LINKAGE, SPACES
from harness.ptx.parsing.lexer import INSTRUCTION, LOCATION, Token, tokenize
from harness.ptx.parsing.plain_instructions import PlainInstructions
from harness.ptx.parsing.token_stream import whole_number
from harness.ptx.types import PtxType
from harness.support.errors import CompileError

_IGNORED_LINES = {".version", ".address_size", ".pragma"}
_TUNING = {".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".maxnreg", ".noreturn", ".explicitcluster"}
_TUNING |= {".reqnctapercluster", ".maxclusterrank", ".abi_preserve", ".abi_preserve_control", ".unique"}
_DEEPEST_BLOCK = 64
_DEEPEST_OPERAND = 2
"""Maximum nesting of lists in operands: `[map, {x, y}]` contains one list in another."""
_LOCATIONS = re.compile(r"(?:\.loc|, inlined_at)[ \t]+(\d+)[ \t]+(\d+)[ \t]+(\d+)", re.ASCII)
"""The locations in a `.loc` that is a single token."""
_MOST_REGISTERS = 1_000_000
"""Maximum registers of a function. Compilers generate some thousands."""

_Place = tuple[int, int, int]
"""Number of a file, line and column."""


def parse(text: str) -> ir.Module:
    """Parse a PTX module. Raises `CompileError` with the PTX line if the text is not valid PTX."""
    return _Parser(tokenize(text)).module()


class _Parser(PlainInstructions):
    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self._module = ir.Module()
        self._files = dict(self._find_files())
        self._source: ir.SourceLine | None = None
        self._main_file: int | None = None
        self._locations: dict[str, list[_Place]] = {}
        """Locations in the text of a `.loc`."""
        self._callers: dict[_Place, tuple[int, int]] = {}
        """Maps a location (file, line, column) in an inlined function to the file and line of the innermost call in the
        kernel's own file, or else of the outermost call."""
        self._scopes: list[dict[str, str]] = []
        self._scope_count = 0
        self._is_call = False
        self._registers_here: dict[str, PtxType] = {}

    def _find_files(self) -> list[tuple[int, str]]:
        """Find all `.file` directives first, because they may follow the `.loc` lines that use them."""
        found = []
        for index, token in enumerate(self.tokens[:-2]):
            if token.text == ".file":
                found.append((whole_number(self.tokens[index + 1]), self.tokens[index + 2].text.strip('"')))
        return found

    # Module scope ---------------------------------------------------------------------------------------------------

    def module(self) -> ir.Module:
        while self.at < len(self.tokens):
            token = self.peek()
            if token.text in _IGNORED_LINES or token.text == ".file":
                self.next()
                self.skip_to_line_end()
            elif token.text == ".target":
                self.next()
                self._module.target = self.peek().text
                self.skip_to_line_end()
            elif token.text == ".section":
                self.skip_section()
            elif token.text in (".entry", ".func"):
                self._function()
            elif token.text in LINKAGE and self._function_follows():
                self.next()
            elif token.text in SPACES or token.text in LINKAGE:
                for variable in self.variables():
                    self._module.variables[variable.name] = variable
            elif token.text in (".alias", ".loc"):
                raise CompileError(f"PTX line {token.line}: '{token.text}' is not expected at module scope")
            else:
                raise CompileError(f"PTX line {token.line}: unknown directive '{token.shown}'")
        return self._module

    def _function_follows(self) -> bool:
        ahead = 1
        while self.peek(ahead).text in LINKAGE:
            ahead += 1
        return self.peek(ahead).text in (".entry", ".func")

    # Functions ------------------------------------------------------------------------------------------------------

    def _function(self) -> None:
        line = self.peek().line
        is_entry = self.next().text == ".entry"
        returns = self.parameters() if self.peek().text == "(" else []
        function = ir.Function(self.name(), is_entry, returns)
        if self.peek().text == "(":
            function.params = self.parameters()
        while self.peek().text in _TUNING:
            self._tuning(function)
        if self.accept(";"):
            self._module.functions.setdefault(function.name, function)
            return
        known = self._module.functions.get(function.name)
        if known is not None and known.body is not None:
            raise CompileError(f"PTX line {line}: there are two functions '{function.name}'")
        in_registers = [v for v in (*function.returns, *function.params) if v.space == "reg"]
        if is_entry and in_registers:
            raise CompileError(f"PTX line {line}: parameter '{in_registers[0].name}' of a kernel lies in '.reg'")
        for variable in in_registers:
            assert variable.element is not None
            function.registers[variable.name] = variable.element
        function.body = []
        self._registers_here = function.registers
        self._module.functions[function.name] = function
        self._source = None
        self._main_file = None
        self._callers = {}
        self._block(function)

    def _tuning(self, function: ir.Function) -> None:
        """Read a directive for compilers and launches. Those that limit launches are kept; others have no effect."""
        directive = self.next()
        numbers: list[int] = []
        while self.peek().kind == "number" or self.peek().text == ",":
            if not self.accept(","):
                numbers.append(self.count())
        if directive.text == ".explicitcluster":
            function.explicit_cluster = True
        if directive.text in (".maxntid", ".reqntid") and numbers:
            function.most_threads = math.prod(numbers)
        if directive.text == ".minnctapersm" and numbers:
            function.least_blocks = numbers[0]
        if directive.text == ".maxnreg" and numbers:
            function.most_registers = numbers[0]
        if directive.text not in (".reqnctapercluster", ".maxclusterrank"):
            return
        most = 3 if directive.text == ".reqnctapercluster" else 1
        if not 1 <= len(numbers) <= most or min(numbers) < 1:
            raise CompileError(
                f"PTX line {directive.line}: '{directive.text}' is given {numbers}; "
                f"it needs {'one to three numbers' if most == 3 else 'one number'} of at least 1"
            )
        if most == 1:
            function.most_cluster_blocks = numbers[0]
        else:
            x, y, z = (*numbers, 1, 1)[:3]
            function.cluster = (x, y, z)

    def _block(self, function: ir.Function) -> None:
        """Read a scope `{ ... }`. Names declared in it are renamed so that they are unique in the function."""
        assert function.body is not None
        self.expect("{")
        self._scopes.append({})
        self._operands.append({})
        self._declare_labels()
        while True:
            if self._take_plain_instruction(function.body) or self._take_location():
                continue
            if self.accept("}"):
                break
            token = self.peek()
            if token.text == "{":
                self._block(function)
            elif token.text == ".reg":
                self._registers(function)
            elif token.text in SPACES or token.text in LINKAGE:
                for variable in self.variables():
                    unique = self._declare(variable.name, token.line)
                    function.variables[unique] = ir.Variable(
                        unique,
                        variable.space,
                        variable.align_bytes,
                        variable.size_bytes,
                        variable.initial,
                        variable.extern,
                        links=variable.links,
                    )
            elif token.text == ".loc":
                self._location()
            elif token.text == ".pragma":
                self.next()
                self.next()
                self.expect(";")
            elif (
                token.kind == "word"
                and self.peek(1).text == ":"
                and self.peek(2).text
                in (
                    ".branchtargets",
                    ".calltargets",
                    ".callprototype",
                )
            ):
                self._targets(function)
            elif token.kind == "word" and self.peek(1).text == ":":
                function.body.append(ir.Label(self.resolve(self.next().text)))
                self.next()
            elif token.kind == "word" or token.text == "@":
                function.body.append(self._instruction())
            else:
                raise CompileError(f"PTX line {token.line}: unexpected '{token.shown}' in a function")
        self._scopes.pop()
        self._operands.pop()

    def _take_plain_instruction(self, body: list[ir.Statement]) -> bool:
        """Append the whole instruction here to `body`. Returns False if there is none that can be read as a whole."""
        if self.at >= len(self.tokens) or self.tokens[self.at].kind != INSTRUCTION:
            return False
        instruction = self.plain_instruction(self.tokens[self.at], self._source)
        if instruction is None:
            return False
        body.append(instruction)
        self.at += 1
        return True

    def _declare_labels(self) -> None:
        """Declare labels and branch tables of the block that begins here, because a branch may precede its label."""
        at, depth = self.at, 1
        while depth:
            if at < len(self.tokens) and self.tokens[at].kind in (INSTRUCTION, LOCATION):  # no unbalanced brace
                at += 1
                continue
            token = self.peek(at - self.at)
            depth += (token.text == "{") - (token.text == "}")
            if len(self._scopes) + depth > _DEEPEST_BLOCK:
                raise CompileError(f"PTX line {token.line}: more than {_DEEPEST_BLOCK} blocks within each other")
            is_label = token.kind == "word" and self.peek(at + 1 - self.at).text == ":"
            if depth == 1 and is_label and token.text != WARP_SZ:  # which may precede the `:` of a conditional
                self._declare(token.text, token.line)
            at += 1

    def _declare(self, name: str, line: int) -> str:
        if name in self._scopes[-1]:
            raise CompileError(f"PTX line {line}: '{name}' is declared twice")
        unique = name
        if len(self._scopes) > 1:
            self._scope_count += 1
            unique = f"{name}#{self._scope_count}"
        self._scopes[-1][name] = unique
        self._operands[-1].clear()
        return unique

    def resolve(self, name: str) -> str:
        """Return the name in the function of `name` in this scope."""
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return name

    def _registers(self, function: ir.Function) -> None:
        self.next()
        _, element, lanes = self.declared_type()
        while True:
            line = self.peek().line
            name = self.name()
            if self.accept("<"):
                count = self.count()
                if len(function.registers) + count > _MOST_REGISTERS:
                    raise CompileError(
                        f"PTX line {line}: with '{name}<{count}>' a function has more than {_MOST_REGISTERS} registers"
                    )
                for index in range(count):
                    function.registers[self._declare(f"{name}{index}", line)] = element
                self.expect(">")
            elif lanes != 1:
                raise CompileError(f"PTX line {line}: vector registers are not supported")
            else:
                function.registers[self._declare(name, line)] = element
            if not self.more(";"):
                return

    def _targets(self, function: ir.Function) -> None:
        """Read a table of branch targets or of indirect calls, or the prototype of an indirect call."""
        name = self.resolve(self.next().text)
        self.expect(":")
        if self.next().text == ".callprototype":  # the arguments of the call show the same
            while not self.accept(";"):
                self.next()
            return
        labels = [self.resolve(self.name())]
        while self.more(";"):
            labels.append(self.resolve(self.name()))
        function.branch_targets[name] = tuple(labels)

    def _location(self) -> None:
        """Read `.loc file line column [, function_name label[+n], inlined_at file line column]`.

        An inlined line of another file, such as a header, is attributed to the innermost calling line in the kernel's
        own file. Nested calls have a `.loc` each, outermost first, so the preceding ones give the location of the
        caller. In an unrolled loop, compilers name the caller once and then omit it; the last named one still applies.
        """
        self.next()
        here = self._line_and_column()
        calls = []
        while self.accept(","):
            word = self.next().text
            if word == "function_name":
                self.next()
                if self.accept("+"):
                    self.integer()
            elif word == "inlined_at":
                calls.append(self._line_and_column())
            else:
                raise CompileError(f"PTX line {self.peek().line}: unknown '.loc' attribute '{word}'")
        self._locate(here, calls)

    def _line_and_column(self) -> _Place:
        return self.integer(), self.integer(), self.integer()

    def _take_location(self) -> bool:
        """Read the whole `.loc` here, in the same way as word by word. Returns False if there is none."""
        if self.at >= len(self.tokens) or self.tokens[self.at].kind != LOCATION:
            return False
        text = self.tokens[self.at].text
        known = self._locations.get(text)
        if known is None:
            known = [(int(file), int(line), int(column)) for file, line, column in _LOCATIONS.findall(text)]
            self._locations[text] = known
        self._locate(known[0], known[1:])
        self.at += 1
        return True

    def _locate(self, here: _Place, calls: Sequence[_Place]) -> None:
        """Set the source line of the following instructions to `here`, inlined into `calls`."""
        for call in calls:
            at_file, at_line, _ = call
            own = at_file == self._main_file
            self._callers[here] = (at_file, at_line) if own else self._callers.get(call, (at_file, at_line))
        file, line, _ = here
        if self._main_file is None:
            self._main_file = file
        caller_file, caller_line = self._callers.get(here, (None, 0))
        if file != self._main_file and caller_file is not None and caller_file == self._main_file:
            file, line = caller_file, caller_line
        if line:
            self._source = ir.SourceLine(self._files.get(file, f"file {file}"), line)

    # Instructions ---------------------------------------------------------------------------------------------------

    def _instruction(self) -> ir.Instruction:
        predicate, negated = None, False
        if self.accept("@"):
            negated = self.accept("!")
            predicate = ir.Reg(self.resolve(self.name()))
        opcode = self.next()
        if opcode.kind != "word":
            raise CompileError(f"PTX line {opcode.line}: expected an opcode, found '{opcode.shown}'")
        modifiers = []
        while self.peek().kind == "dot":
            modifiers.append(self.next().text[1:])
        self._is_call = opcode.text == "call"
        operands: tuple[ir.Operand, ...] = () if self.accept(";") else self._list(";", 0)
        return ir.Instruction(opcode.text, tuple(modifiers), operands, predicate, negated, opcode.line, self._source)

    def operand(self, depth: int) -> ir.Operand:
        """Read the operand here, nested in `depth` lists. Raises `CompileError`."""
        first = self._simple_operand(depth)
        if self.accept("|"):
            return ir.Pair(first, self._simple_operand(depth))
        return first

    def _simple_operand(self, depth: int) -> ir.Operand:
        token = self.peek()
        if depth > _DEEPEST_OPERAND:
            raise CompileError(f"PTX line {token.line}: operands in more than {_DEEPEST_OPERAND} brackets")
        if self.accept("["):
            address = self._address()
            if self.accept(","):  # `[map, {x, y}]` of textures and tensors
                return ir.Vector((address, *self._list("]", depth + 1)))
            self.expect("]")
            return address
        if self.accept("{"):
            return ir.Vector(self._list("}", depth + 1))
        if self._is_call and depth == 0 and self.accept("("):
            return ir.Arguments(() if self.accept(")") else self._list(")", depth + 1))
        if token.text == "-" and self.peek(1).kind == "word" and self.peek(1).text != WARP_SZ:
            self.next()
            negated = self._named()
            if not isinstance(negated, ir.Reg | ir.Part):
                raise CompileError(f"PTX line {token.line}: '-' is followed by '{negated}', which is not a register")
            return ir.Negative(negated)
        if self.begins_constant():
            return self.literal()
        if self.accept("!"):
            return ir.Not(ir.Reg(self.resolve(self.name())))
        if token.kind != "word":
            raise CompileError(f"PTX line {token.line}: expected an operand, found '{token.shown}'")
        return self._named()

    def _list(self, closing: str, depth: int) -> tuple[ir.Operand, ...]:
        """Read one or more operands up to `closing`, nested in `depth` lists."""
        items = [self.operand(depth)]
        while self.more(closing):
            items.append(self.operand(depth))
        return tuple(items)

    def _named(self) -> ir.Reg | ir.Part | ir.Symbol:
        name = self.name()
        resolved = self.resolve(name)
        if self.peek().kind == "dot" and resolved in self._registers_here:
            return ir.Part(ir.Reg(resolved), self.next().text[1:])
        if name.startswith("%") and self.peek().kind == "dot":
            return ir.Reg(name + self.next().text)
        name = resolved
        if name.startswith("%") or name == "_" or name in self._registers_here:
            return ir.Reg(name)
        return ir.Symbol(name, self.offset())

    def _address(self) -> ir.Address:
        if self.begins_constant():
            return ir.Address(ir.Imm(self.constant_integer()))
        token = self.peek()
        base = self._named()
        if isinstance(base, ir.Part):
            raise CompileError(f"PTX line {token.line}: '{token.shown}' is no address")
        offset = self.offset()
        if isinstance(base, ir.Symbol):
            return ir.Address(ir.Symbol(base.name), base.offset + offset)
        return ir.Address(base, offset)
