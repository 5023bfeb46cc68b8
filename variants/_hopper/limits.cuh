// Limits of _features/limits.cuh for consumers, where a lane has two rows. HIDES_LAST: some rows do not see the last keys, as
// under a causal mask. HIDES_FIRST: some rows do not see the first keys, as under a window. Both are known when a kernel is
// compiled, so that tiles of keys are compared only at an end that is hidden from some row. limits.cuh is put before this text.
//
//     const auto lane = limits.of_lane(row, sequence, q_len, kv_len);
//     lane.first(h), lane.end(h)      // row[h] sees keys first to end - 1; first may be negative

template <bool FIRST, bool LAST> struct WarpgroupBand : Band {
    static constexpr bool HIDES_FIRST = FIRST, HIDES_LAST = LAST, ARE_READ = false;

    struct OfLane {
        Run run;
        int row[2];
        __device__ __forceinline__ int first(int h) const { return FIRST ? run.unclipped_first(row[h]) : 0; }
        __device__ __forceinline__ int end(int h) const
        {
            return LAST ? min(run.unclipped_end(row[h]), run.kv_len) : run.kv_len;
        }
    };

    __device__ __forceinline__ OfLane of_lane(const int (&row)[2], int sequence, int q_len, int kv_len) const
    {
        return {of_sequence(sequence, q_len, kv_len), {row[0], row[1]}};
    }
};

struct WarpgroupSpans : Spans {
    static constexpr bool HIDES_FIRST = true, HIDES_LAST = true, ARE_READ = true;

    // Read once for each tile of rows.
    struct OfLane {
        int firsts[2], ends[2];
        __device__ __forceinline__ int first(int h) const { return firsts[h]; }
        __device__ __forceinline__ int end(int h) const { return ends[h]; }
    };

    // A tile may have room for rows after the last: these are as the last.
    __device__ __forceinline__ OfLane of_lane(const int (&row)[2], int sequence, int q_len, int kv_len) const
    {
        const RunInMemory run = of_sequence(sequence, q_len, kv_len);
        OfLane lane;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int some_row = min(row[h], q_len - 1);
            lane.firsts[h] = run.first(some_row);
            lane.ends[h] = run.end(some_row);
        }
        return lane;
    }
};
