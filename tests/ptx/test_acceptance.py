"""Which modules are refused because no driver loads them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from harness import Device
from harness.ptx.acceptance import ISA_OPCODES, require_loadable, require_shared_arrays_fit
from harness.support.errors import CompileError, UnsupportedInstruction, UnsupportedPtxVersion

MODULE = """// .version 99.0
.version {version}
.target sm_90
.address_size 64
.visible .entry seven(.param .u64 out)
{{
    .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [out];
    st.global.u32 [%rd0], 7;
    ret;
}}
.visible .entry other()
{{
    .reg .pred %p<1>;
    /* frob */ setp.eq.u32 %p0, 1, 1;
    @!%p0 {instruction};
    ret;
}}
"""


def text(version: str = "8.0", instruction: str = "trap") -> str:
    return MODULE.format(version=version, instruction=instruction)


@pytest.mark.compiles(False)
@pytest.mark.parametrize("version", ["1.4", "8.8", "9.5"])
def test_known_versions(version: str) -> None:
    require_loadable(text(version))


@pytest.mark.parametrize("version", ["9.6", "10.0", "99.0"])
def test_newer_versions(version: str) -> None:
    said = f"PTX line 2: '.version {version}' is not supported; the newest version is 9.5"
    with pytest.raises(UnsupportedPtxVersion, match=re.escape(said)):
        Device().module(text(version))


@pytest.mark.parametrize(
    ("instruction", "said"),
    [
        ("frob.u32 %r1, %r2", "PTX line 16: 'frob' is not an instruction of PTX."),
        ("wgmmma.fence.sync.aligned", "PTX line 16: 'wgmmma' is not an instruction of PTX; did you mean 'wgmma'?"),
    ],
)
def test_unknown_instructions(instruction: str, said: str) -> None:
    with pytest.raises(CompileError, match=re.escape(said)):
        Device().module(text(instruction=instruction))


@pytest.mark.compiles(False)
def test_shared_arrays_that_ptxas_refuses() -> None:
    for array in (".shared .align 4 .b8 s[49152]", ".shared .f32 s[12288]", "// .shared .b8 s[49153]"):
        require_shared_arrays_fit(f"{array};\n{text()}")
    require_shared_arrays_fit(f".extern .shared .align 16 .b8 s[];\n{text()}")
    for array in ("    .shared .align 4 .b8 s[49153]", ".shared .f32 s[12289]", ".visible .shared .b64 s[2][3073]"):
        with pytest.raises(CompileError, match=r"PTX line 1: s has \d+ bytes of static shared memory; a block has"):
            require_shared_arrays_fit(f"{array};\n{text()}")


def test_an_instruction_that_is_not_emulated_fails_only_its_own_kernel() -> None:
    device = Device()
    module = device.module(text(instruction="multimem.red.relaxed.sys.global.add.u32 [%rd0], 1"))
    out = device.zeros(1, np.uint32)
    device.launch(module["seven"], 1, 1, (out,))
    assert out.numpy() == 7
    with pytest.raises(UnsupportedInstruction, match=r"'multimem\.red.* at .*PTX line 16"):
        device.launch(module["other"], 1, 1)


@pytest.mark.compiles(False)
def test_every_opcode_is_known_up_to_its_first_dot() -> None:
    assert {"tcgen05", "wgmma", "cp", "mul24", "brx", "fabric"} <= ISA_OPCODES
    assert all(name.isidentifier() for name in ISA_OPCODES)
