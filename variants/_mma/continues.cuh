// The next keys and rows of Q arrive while a block ends with these, so that slots are not free then: what splits.cuh has in
// shared memory. There is no room for longer rows.

constexpr bool CONTINUES = D <= 128;  // as in equal_runs.py
