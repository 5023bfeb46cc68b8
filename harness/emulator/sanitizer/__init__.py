"""Detects errors that a right answer does not show: reads of unwritten memory, and data races.

`watch.py` is called at every request of a warp, `vector_clock.py` determines which of two accesses happened first in
every schedule and stores what is known of all warps, `shadow_cell.py` stores the last accesses to a piece of
memory, `copies_in_flight.py` tracks asynchronous copies until they are waited for, `async_proxy.py` handles mbarriers,
bulk copies and operands of products in memory, `product_registers.py` those in registers, `cluster_barrier.py` and
`block_lifetime.py` handle blocks of a cluster, `finding_table.py` counts findings, and `launch/sanitizer_recorder.py`
is Python's side of it.
"""
