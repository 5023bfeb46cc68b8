// The barriers between the roles of a block. inspection.cuh is put before this text.

// Of each tile of 128 rows. Events of S and P happen at each step, those of Q and O in each round, a tile of 256 rows.
struct RowBarriers {
    Handover Q;       // load -> products
    Event S_ready;    // products -> softmax: S is there; P V of the step before is done, too
    Handover growth;  // softmax -> correction: by what O grows or, at the end of a round, l
    Event P_ready;    // softmax and correction -> products: P is there, and O is relative to its maximum
    Event O_ready;    // products -> correction: O of the round is complete

    __device__ __forceinline__ void init()
    {
        Q.init(1, 1);
        S_ready.init(1);
        growth.init(ROWS, ROWS);
        P_ready.init(2 * ROWS);
        O_ready.init(1);
    }
};

struct Barriers {
    Schedule schedule;
    Slots<STAGES> keys;  // load -> products
    RowBarriers rows[2];
    Handover output;     // correction -> store: rows of O in shared memory
    Event finished;      // correction: tensor memory is not read any more
    Inspection<Limits::HIDES_LAST> inspection;
    unsigned tensor_memory;
    float growth[2][ROWS];

    __device__ __forceinline__ void init()
    {
        schedule.init();
        keys.init(1);
        for (RowBarriers &each : rows) each.init();
        output.init(ROWS, 1);
        finished.init(ROWS);
        inspection.init();
        publish_barriers();
    }

    // Where sums are in tensor memory. P_t takes the first half of the columns of S_t.
    __device__ __forceinline__ unsigned S(int t) const { return tensor_memory + t * BC; }
    __device__ __forceinline__ unsigned O(int t) const { return tensor_memory + 2 * BC + t * D; }
};
