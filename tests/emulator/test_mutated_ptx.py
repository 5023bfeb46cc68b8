"""PTX that is damaged is refused with its line, or it runs; see `examined_ptx`. What was found once stays as a case."""

from __future__ import annotations

import importlib.util
import random
import time
from pathlib import Path

import numpy as np
import pytest
import sample_cluster_ptx
import sample_ptx
from examined_ptx import MOST_SECONDS, examine
from lanes import is_exhaustive
from mutated_ptx import mutated
from single_opcode import run_ptx

from harness import PtxKernel
from harness.compilers import compile_kernel
from harness.emulator.codegen.kernel import generate
from harness.ptx.parsing.parser import parse
from harness.support.errors import CompileError, UnsupportedInstruction

PLUGIN = Path(__file__).resolve().parents[1] / "plugins" / "one_thread_per_row.py"
SAMPLE = (sample_ptx.TEXT, sample_ptx.ENTRY)
CLUSTERS = (sample_cluster_ptx.TEXT, sample_cluster_ptx.ENTRY)


def originals() -> list[tuple[str, str]]:
    """What is mutated, each with its entry: by hand, and what NVRTC makes of a kernel."""
    spec = importlib.util.spec_from_file_location("plugin_for_mutations", PLUGIN)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    compiled = compile_kernel(module.KERNEL, (), "sm_90").ptx, "one_thread_per_row"
    return [SAMPLE, SAMPLE, compiled, CLUSTERS]


def test_the_sample_itself_runs() -> None:
    code = generate(parse(sample_ptx.TEXT), sample_ptx.ENTRY)
    assert {site.opcode for site in code.facts.sites} >= {"ld", "st", "atom", "red", "cp", "ldmatrix"}


def test_the_sample_of_clusters_runs_to_its_end() -> None:
    """Both blocks get what the other sends, in all the ways."""
    y = np.zeros(64, np.uint32)
    run_ptx(sample_cluster_ptx.TEXT, {"x": np.zeros(1024, np.uint32), "y": y}, 2, 64, 0, [bytes(4)], entry="pair")
    assert np.array_equal(y, np.where(np.arange(64) // 4 == 8, 0, np.arange(64)))


def test_mutations_are_drawn_by_their_seed_and_change_something() -> None:
    texts = [mutated(sample_ptx.TEXT, random.Random(seed)) for seed in range(50)]
    assert texts == [mutated(sample_ptx.TEXT, random.Random(seed)) for seed in range(50)]
    assert len({*texts, sample_ptx.TEXT}) > 45


def test_mutated_texts_are_refused_with_a_line_or_run() -> None:
    starts = originals()
    seeds = range(400) if is_exhaustive() else range(50)
    found = [examine(seed, starts, launched=is_exhaustive() or seed % 10 == 0) for seed in seeds]
    assert not [f"seed {each.seed}: {each.outcome}" for each in found if each.is_bug]
    assert {each.outcome for each in found} >= {"refused", "accepted"} - ({"accepted"} if is_exhaustive() else set())


HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"


def kernel(body: str, before: str = "") -> str:
    registers = ".reg .b32 %r<9>; .reg .pred %p<3>; .reg .b64 %q<4>; .reg .f32 %f<9>; .reg .b16 %h<4>;"
    return f"{HEAD}{before}\n.visible .entry k(.param .u64 a)\n{{\n{registers}\n{body}\nret;\n}}\n"


DOUBLING = "".join(
    f".func f{n}()\n{{\n" + (f"call f{n - 1}, ();\ncall f{n - 1}, ();\n" if n else "") + "ret;\n}\n" for n in range(30)
)
CHAIN = "".join(f".func f{n}()\n{{\n" + (f"call f{n - 1}, ();\n" if n else "") + "ret;\n}\n" for n in range(2000))

CASES = {
    "a billion registers": (kernel(".reg .b32 %x<1000000000>;"), "more than 1000000 registers"),
    "no number of registers": (kernel(".reg .b32 %x<-3>;"), "expected a number"),
    "5000 digits": (kernel(f"mov.u32 %r1, {'9' * 5000};"), "does not fit into 64 bits"),
    "more than 64 bits": (kernel("mov.u64 %q1, 18446744073709551616;"), "does not fit into 64 bits"),
    "another script's digit": (kernel("mov.u32 %r1, \u0663;"), "unexpected character"),
    "no octal number": (kernel("mov.u32 %r1, 08;"), "expected a number, found '08'"),
    "a fraction as an offset": (kernel("ld.global.u32 %r1, [%q1+1.5];"), "expected a number, found '1.5'"),
    "a float as an extent": (kernel("", ".shared .b8 x[0f3F800000];"), "expected a number"),
    "a directive as a value": (kernel("", ".const .f32 x = .loc;"), "expected a number, found '.loc'"),
    "a huge array": (kernel("", ".shared .b8 x[99999999999];"), "bytes in '.shared'"),
    "a huge array of rows": (kernel("", ".global .b8 x[4294967296][4294967296] = {1};"), "bytes in '.global'"),
    "a negative extent": (kernel("", ".shared .b8 x[-5];"), "an array of -5 elements"),
    "a large constant": (kernel("", ".const .b8 x[65537];"), "at most 65536 can be"),
    "large local memory": (kernel(".local .b8 x[400000]; .local .b8 y[400000];"), "more than the 524288"),
    "many parameters": (kernel("").replace(".u64 a", ".b8 a[40000]"), "at most 32768 can be"),
    "an alignment of 0": (kernel("", ".shared .align 0 .b8 x[8];"), "an alignment of 0 bytes"),
    "an alignment of 3": (kernel("", ".shared .align 3 .b8 x[8];"), "an alignment of 3 bytes"),
    "an alignment of 2^40": (kernel("", ".shared .align 1099511627776 .b8 x[8];"), "power of two of at most 1024"),
    "a predicate in memory": (kernel("", ".shared .pred x;"), "which only registers have"),
    "too many values": (kernel("", ".global .b8 x[2] = {1, 2, 3};"), "3 initial values for the 2"),
    "values in shared memory": (kernel("", ".shared .b8 x[2] = {1};"), "has no initial values"),
    "a value beyond float": (kernel("", ".global .f32 x = 1.0e300;"), "is no value of '.f32'"),
    "deep blocks": (kernel("{" * 100_000 + "}" * 100_000), "more than 64 blocks"),
    "deep braces": (kernel("mov.b32 %r1, " + "{" * 50 + "%r2" + "}" * 50 + ";"), "in more than 2 brackets"),
    "deep values": (kernel("", ".global .b8 x[2] = " + "{" * 100_000), "in more than 16 braces"),
    "declared twice": (kernel(".reg .b32 %r1;"), "'%r1' is declared twice"),
    "a label twice": (kernel("x: x: "), "'x' is declared twice"),
    "a function twice": (kernel("") + kernel("").removeprefix(HEAD), "two functions 'k'"),
    "calls that double": (kernel("call f29, ();", DOUBLING), "more than 10000 calls"),
    "a chain of calls": (kernel("call f1999, ();", CHAIN), "more than 100 deep"),
    "a call with too little": (kernel("call f, ();", ".func f(.param .b32 x)\n{ ret; }"), "takes 1; this call has 0"),
    "a branch to two": (kernel("bra x, x; x:"), "a form with 2 operands"),
    "a branch to nothing": (kernel("bra;"), "a form with 0 operands"),
    "a label as a number": (kernel("x: mov.u64 %q1, x;"), "'x' is not declared"),
    "a guard that is a number": (kernel("@%r1 mov.u32 %r2, 1;"), "'@%r1' is not a predicate"),
    "a number that is negated": (kernel("add.s32 %r1, %r2, !%r3;"), "operands do not fit"),
    "a predicate as a number": (kernel("add.s32 %r1, %r2, %p1;"), "operands do not fit"),
    "a number as a predicate": (kernel("setp.lt.s32 %r1, %r2, %r3;"), "operands do not fit"),
    "a vote into a predicate": (kernel("bar.red.popc.u32 %p1, 0, %p2;"), "operands do not fit"),
    "our own opcode": (kernel("barrier_result.u32 %r1;"), "'barrier_result' is not an instruction of PTX"),
    "an empty vector": (kernel("ld.global.v2.u32 {}, [%q1];"), "expected an operand"),
    "a comma too many": (kernel("add.s32 %r1, %r2, %r3, ;"), "expected an operand"),
    "no end": (kernel("")[:-3], "ends in the middle"),
    "no name": (kernel(".reg .b32 ;"), "expected a name"),
    "a number as an address": (kernel("ld.global.u32 %r1, [1.5];"), "expected a number, found '1.5'"),
    "a file without a number": (kernel("") + ".file , 1 ;", "expected a number"),
    "a parameter beyond its end": (
        kernel("{ .param .b32 x; st.param.b64 [x], %q1; }"),
        "an offset of 0 bytes into a parameter of 4",
    ),
}  # fmt: skip


@pytest.mark.compiles(False)
@pytest.mark.parametrize("name", CASES)
def test_what_was_found(name: str) -> None:
    text, words = CASES[name]
    began = time.process_time()
    with pytest.raises((CompileError, UnsupportedInstruction)) as caught:
        generate(parse(compile_kernel(PtxKernel(text, "k"), (), "sm_90").ptx), "k")
    message = str(caught.value)
    assert words in message and len(message) < 500 and "\n" not in message
    assert "PTX line " in message or "kernel k" in message
    assert time.process_time() - began < MOST_SECONDS
