// Blocks end with their keys before they begin others, so that slots are free then: what splits.cuh has in shared memory.

constexpr bool CONTINUES = false;
