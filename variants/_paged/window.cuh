// Window: whether rows see all keys up to their own, or only those of a sliding window. The plan chooses one of the two types as
// `Window`. Of what lies before the windows of all rows, kernels read neither keys nor entries of the table.

struct NoWindow {
    // The first key that a query sees, counted from the key `from`; `run` is one of limits.cuh.
    template <class Run> __device__ __forceinline__ static int first(const Run &, int, int = 0) { return 0; }
};

struct SlidingWindow {
    template <class Run> __device__ __forceinline__ static int first(const Run &run, int query, int from = 0)
    {
        return run.first(query) - from;
    }
};
