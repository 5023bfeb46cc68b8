"""The table of opcodes: complete, and what it says is what instructions are told."""

from __future__ import annotations

import pytest

from harness.emulator.codegen.emitters import emits, supported_opcodes
from harness.ptx.opcodes import (
    ASYNC_REDUCTION,
    ASYNC_STORE,
    ATOMIC,
    BETWEEN_BLOCKS,
    BULK_LOAD,
    BULK_REDUCTION,
    BULK_STORE,
    COPY,
    COPY_MAP,
    LOAD,
    LOAD_ROWS,
    MBARRIER,
    MODIFY_MAP,
    OPCODES,
    OPERANDS_IN_SHARED,
    RESPONSE,
    STORE,
    SURFACE_LOAD,
    SURFACE_STORE,
    TENSOR_ADDRESS,
    TENSOR_COPY,
    TENSOR_FREE,
    TENSOR_LOAD,
    TENSOR_PRODUCT,
    TENSOR_SHIFT,
    TENSOR_STORE,
    TEXTURE,
    UNKNOWN,
    Flow,
    facts_of,
    row_name,
)

MBARRIER_FORMS = "init inval expect_tx complete_tx arrive arrive_drop test_wait try_wait"
LOWERED = {"bra", "brx", "ret", "exit"}
"""The ends of blocks, which `codegen/kernel.py` emits."""


def test_every_row_has_an_emitter_and_every_emitter_a_row() -> None:
    assert set(supported_opcodes()) == set(OPCODES) - LOWERED


def test_an_emitter_without_a_row_is_refused() -> None:
    with pytest.raises(AssertionError, match="teleport"):
        emits("teleport")(lambda lanes, instruction: None)


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("ld.global.f32", "ld"),
        ("add.s32", "add.int"),
        ("add.rn.ftz.f32", "add.float"),
        ("min.NaN.bf16x2", "min.half"),
        ("cvt.rn.f16.f32", "cvt"),
        ("wmma.load.a.sync.aligned.row.m16n16k16.shared.f16", "wmma.load"),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", "wmma.mma"),
        ("cp.async.ca.shared.global", "cp"),
        ("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes", "cp.bulk_load"),
        ("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group", "cp.bulk_store"),
        ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster", "cp.bulk_load"),
        ("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes", "cp.bulk_between"),
        ("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32", "cp.bulk_between"),
        ("cp.async.bulk.commit_group", "cp.bulk_group"),
        ("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32", "st.async"),
        ("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32", "red.async"),
        ("red.shared::cluster.add.u32", "red"),
        ("barrier.cluster.arrive.aligned", "barrier.cluster_arrive"),
        ("barrier.cluster.wait.acquire", "barrier.cluster_wait"),
        ("barrier.cta.sync", "barrier"),
        ("cp.async.bulk.prefetch.tensor.2d.L2.global", "cp.bulk_prefetch"),
        ("mbarrier.arrive.expect_tx.shared.b64", "mbarrier.arrive"),
        ("teleport.b32", "teleport"),
        ("wmma", "wmma"),
    ],
)
def test_an_instruction_has_one_row(form: str, name: str) -> None:
    opcode, *words = form.split(".")
    assert row_name(opcode, tuple(words)) == name
    assert facts_of(opcode, tuple(words)) is OPCODES.get(name, UNKNOWN)


def test_who_touches_which_memory() -> None:
    """Against the PTX ISA, 9.7.9, 9.7.13 and 9.7.14: an opcode that is left out here would not be counted."""
    touching = {name: row.memory for name, row in OPCODES.items() if row.memory is not None}
    assert touching == {
        **dict.fromkeys(("ld", "ldu", "wmma.load"), LOAD),
        **dict.fromkeys(("st", "wmma.store"), STORE),
        **dict.fromkeys(("atom", "red"), ATOMIC),
        "cp": COPY,
        "cp.mbarrier": MBARRIER,
        "cp.bulk_load": BULK_LOAD,
        "cp.bulk_store": BULK_STORE,
        "cp.bulk_reduction": BULK_REDUCTION,
        "cp.bulk_between": BETWEEN_BLOCKS,
        "st.async": ASYNC_STORE,
        "red.async": ASYNC_REDUCTION,
        "clusterlaunchcontrol.try_cancel": RESPONSE,
        "wgmma.mma_async": OPERANDS_IN_SHARED,
        **dict.fromkeys((f"mbarrier.{form}" for form in MBARRIER_FORMS.split()), MBARRIER),
        "tensormap.replace": MODIFY_MAP,
        "tensormap.cp_fenceproxy": COPY_MAP,
        "ldmatrix": LOAD_ROWS,
        "stmatrix": OPCODES["stmatrix"].memory,
        **dict.fromkeys(("tex", "tld4"), TEXTURE),
        "suld": SURFACE_LOAD,
        "sust": SURFACE_STORE,
        "tcgen05.alloc": TENSOR_ADDRESS,
        "tcgen05.dealloc": TENSOR_FREE,
        "tcgen05.ld": TENSOR_LOAD,
        "tcgen05.st": TENSOR_STORE,
        "tcgen05.mma": TENSOR_PRODUCT,
        "tcgen05.cp": TENSOR_COPY,
        "tcgen05.shift": TENSOR_SHIFT,
        "tcgen05.commit": MBARRIER,
    }
    assert [memory.verb for memory in (LOAD, STORE, ATOMIC, COPY)] == ["load", "store", "atomic", "asynchronous copy"]
    assert {name for name, row in OPCODES.items() if row.flow is not Flow.NEXT} == {
        *LOWERED, "bar", "barrier", "nanosleep", "mbarrier.test_wait", "mbarrier.try_wait", "wgmma.wait_group",
        "barrier.cluster_wait", "tcgen05.alloc",
    }  # fmt: skip
