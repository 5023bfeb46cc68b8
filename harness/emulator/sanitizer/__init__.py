"""Detects errors that a right answer does not show: reads of unwritten memory, and data races.

`watch.py` is called at every request of a warp. `vector_clock.py` determines which of two accesses happened first in
every schedule: `clock_words.py` has the words of a clock, `grid_clock.py` what is known of other blocks;
`global_sync.py` and `fences.py` handle release and acquire by scope, `cluster_barrier.py` and `block_lifetime.py` the
blocks of a cluster. `shadow_cell.py` stores the last accesses to a piece of memory, `copies_in_flight.py` tracks
asynchronous copies until they are waited for, `async_proxy.py` handles mbarriers, bulk copies and operands of products
in memory, `product_registers.py` those in registers. `finding_table.py` counts findings, and
`launch/messages/sanitizer_recorder.py` is Python's side of it.
"""
