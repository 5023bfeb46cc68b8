"""mbarriers: what each form of arriving, expecting and waiting does to phases. What goes wrong: test_mbarriers.py."""

from __future__ import annotations

import numpy as np
import pytest
from single_opcode import run_body


def test_forms():
    """Tokens, counts, bytes that are expected and come, drops, pending arrivals."""
    y = np.zeros(8, np.uint32)
    run_body(
        """
        setp.ne.u32 p7, tid, 0; @p7 bra done;
        mbarrier.init.shared.b64 [bar], 3;
        mbarrier.arrive.shared.b64 q0, [bar], 2;
        mbarrier.pending_count.b64 r0, q0; st.global.u32 [y], r0;
        mbarrier.test_wait.shared.b64 p0, [bar], q0; selp.u32 r0, 1, 0, p0; st.global.u32 [y+4], r0;
        mbarrier.expect_tx.relaxed.cta.shared.b64 [bar], 16;
        mbarrier.arrive_drop.release.cta.shared::cta.b64 q1, [bar];
        mbarrier.test_wait.shared.b64 p0, [bar], q0; selp.u32 r0, 1, 0, p0; st.global.u32 [y+8], r0;
        mbarrier.complete_tx.relaxed.cta.shared.b64 [bar], 16;
        mbarrier.try_wait.acquire.cta.shared.b64 p0, [bar], q0, 100; selp.u32 r0, 1, 0, p0; st.global.u32 [y+12], r0;
        mbarrier.arrive.noComplete.shared.b64 q2, [bar], 1;
        mbarrier.pending_count.b64 r0, q2; st.global.u32 [y+16], r0;
        mov.u32 r1, bar; mapa.shared::cluster.u32 r1, r1, 0;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r1];
        mbarrier.test_wait.parity.shared.b64 p0, [bar], 1; selp.u32 r0, 1, 0, p0; st.global.u32 [y+20], r0;
        cvta.shared.u64 q3, q4; mov.u64 q4, bar; cvta.shared.u64 q3, q4; mbarrier.inval.b64 [q3];
        done:
        """,
        {"y": y},
        ".shared .align 8 .b64 bar;",
    )
    assert y.tolist() == [3, 0, 0, 1, 2, 1, 0, 0]


@pytest.mark.parametrize("arrivals", [1, 2, 3])
def test_phases(arrivals: int):
    """64 threads arrive so often, and the last arrival of all flips the parity that waits see."""
    rounds = 5
    y = np.zeros((rounds, arrivals, 2), np.uint32)
    lines = ["setp.eq.u32 p7, tid, 0; mov.u32 r1, bar;", f"@p7 mbarrier.init.shared::cta.b64 [r1], {64 * arrivals};"]
    for step in range(rounds * arrivals):
        lines.append("bar.sync 0; mbarrier.arrive.shared::cta.b64 _, [r1]; bar.sync 0;")
        for parity in (0, 1):
            lines.append(f"mbarrier.test_wait.parity.shared::cta.b64 p{parity}, [r1], {parity};")
            lines.append(f"selp.u32 r0, 1, 0, p{parity}; @p7 st.global.u32 [y+{8 * step + 4 * parity}], r0;")
    run_body("\n".join(lines), {"y": y}, ".shared .align 8 .b64 bar;", block=64)
    for step in range(rounds):
        for arrival in range(arrivals):
            over = (step + (arrival == arrivals - 1)) % 2
            assert y[step, arrival].tolist() == ([0, 1] if not over else [1, 0])


def test_bytes_of_a_phase():
    """A phase is over once no byte is missing and all have arrived; bytes may come before they are expected."""
    steps = [
        ("mbarrier.arrive.expect_tx.shared.b64 q1, [bar], 1048000;", 0),
        ("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 1000000;", 0),
        ("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 100;", 0),
        ("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 48100;", 1),
        ("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 16;", 1),
        ("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 q2, [bar], 16;", 0),
        ("mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 32;", 0),
        ("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 32;", 1),
        ("mbarrier.arrive.shared::cta.b64 _, [bar];", 0),
    ]
    y = np.zeros(len(steps), np.uint32)
    lines = ["setp.ne.u32 p7, tid, 0; @p7 bra done; mbarrier.init.shared.b64 [bar], 1;"]
    for number, (step, _) in enumerate(steps):
        lines.append(f"{step} mbarrier.test_wait.parity.shared.b64 p0, [bar], 0; selp.u32 r0, 1, 0, p0;")
        lines.append(f"st.global.u32 [y+{4 * number}], r0;")
    run_body("\n".join([*lines, "done:"]), {"y": y}, ".shared .align 8 .b64 bar;")
    assert y.tolist() == [over for _, over in steps]
