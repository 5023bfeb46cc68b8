"""CUDA macros for `cp.async`: copy, copy with zero fill, commit and wait."""

COPIES = """
__device__ unsigned place_of(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
#define COPY(size, how, to, from) \\
    asm volatile("cp.async." how ".shared.global [%0], [%1], " #size ";" :: "r"(place_of(to)), "l"(from) : "memory")
#define FILL(size, to, from, bytes) asm volatile("cp.async.ca.shared.global [%0], [%1], " #size ", %2;" \\
    :: "r"(place_of(to)), "l"(from), "r"(bytes) : "memory")
#define COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
#define WAIT(n) asm volatile("cp.async.wait_group " #n ";" ::: "memory")
"""
