"""What a kernel may not do and a right answer does not show: reads of memory that nobody wrote, and data races.

`watch.py` is called at every request of a warp, `vector_clock.py` knows which of two accesses came first whatever the
schedule, `clock.py` is what somebody knows of all warps, `shadow_cell.py` remembers who touched a piece of memory last,
`copies_in_flight.py` follows asynchronous copies until they are waited for, `async_proxy.py` has mbarriers, bulk copies
and operands of products in memory, `product_registers.py` those in registers, `cluster_barrier.py` and
`block_lifetime.py` what blocks of a cluster are to each other, `finding_table.py` counts what was found, and
`launch/sanitizer_recorder.py` is the side of it that Python sees.
"""
