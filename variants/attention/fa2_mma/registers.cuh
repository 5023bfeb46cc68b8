// What a thread keeps in registers, of which there are 255. _mma/mma.cuh, _mma/tiles.cuh and seen.cuh are put before this text.
//
// Compile-time parameters: D (elements per row), BR and BC (rows and keys per tile), WARPS, and KEPT_REGISTERS, which S, O_i
// and as much of Q_i as fits may take of a thread's. IN_ONE: tiles that are masked and those that are not share their code.

constexpr int STEPS = (D + 15) / 16;  // of 16 elements in which Q K^T is summed; zeros fill the last
constexpr int TD = 2 * STEPS;         // tiles of 8 elements of O

// As many steps of Q_i stay in registers as have room beside S and O_i; the others are read anew for every tile of keys.
constexpr int SPARE = (KEPT_REGISTERS - TM * 4 * (TN + TD)) / (TM * 4);
constexpr int KEPT = SPARE < 0 ? 0 : SPARE < STEPS ? SPARE : STEPS;

// Sums in which a lane looks for NaN in V_j: one addition waits for another, but how many leave ptxas without spills is
// what it was tried out with.
#if defined(ALIBI) || defined(ENDS_AT_ONCE) || defined(VISITS)
constexpr int SUMS = 1;
#elif defined(SPANS) && !defined(SOFTCAP) && !defined(SINKS)
constexpr int SUMS = TM > 1 ? 4 : 1;
#else
constexpr int SUMS = TM > 1 && D >= 64 ? 2 : 1;
#endif

// Whether any lane has found so is asked where that takes fewer registers.
#ifdef IN_ONE
#define EARLY_VOTE(found) __any_sync(0xffffffff, found)
#define LATE_VOTE(found) (found)
#else
#define EARLY_VOTE(found) (found)
#define LATE_VOTE(found) __any_sync(0xffffffff, found)
#endif

// In the layout of C, as Scores.
typedef float Output[TM][TD][4];
typedef float PerRow[TM][2];
typedef unsigned Weights[TM][4];  // A: P for 16 keys

// What a warp carries from tile to tile. m is in powers of two; l is that of the lane's own columns.
struct Rows {
    Output O;
    PerRow m, l;
};

// Q_i of the warp's rows: as A, as far as it is kept, and where this lane reads the rest.
struct Query {
    unsigned kept[TM][KEPT ? KEPT : 1][4];
    unsigned lane;
};
