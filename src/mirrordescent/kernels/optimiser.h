/* Steps of optimisers on lists of tensors. Tensors are split into pieces, which are distributed over the threads. */
#include <stdint.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#ifndef PIECE
#define PIECE 65536 /* a multiple of PART */
#define PART 1024   /* a multiple of BLOCK: entries that are compared and stepped while they are in the first cache */
#define BLOCK 256   /* entries whose intervals are found before their lines are evaluated, in the first cache */
typedef uint64_t FOUR __attribute__((vector_size(32), aligned(4), may_alias));
static int this_thread(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}
static int all_threads(void) {
#ifdef _OPENMP
    return omp_get_num_threads();
#else
    return 1;
#endif
}
#endif

/* Run the arguments for every piece [from, to) of every tensor i. */
#define FOR_PIECES(...)                                                         \
    _Pragma("omp parallel num_threads(threads)") {                              \
        long turn = 0, mine = this_thread(), all = all_threads();               \
        for (long i = 0; i < count; i++)                                        \
            for (long from = 0; from < sizes[i]; from += PIECE) {               \
                if (turn++ % all != mine) continue;                             \
                long to = from + PIECE < sizes[i] ? from + PIECE : sizes[i];    \
                __VA_ARGS__                                                     \
            }                                                                   \
    }

/* Run the arguments for every stretch of a piece, `run` entries from `at` on, in which the repeated w does not wrap. */
#define STRETCHES(...)                                                                  \
    for (long at = from, run; at < to; at += run) {                                     \
        long phase = at % periods[i];                                                   \
        run = periods[i] - phase < to - at ? periods[i] - phase : to - at;              \
        __VA_ARGS__                                                                     \
    }

/* Run the arguments for every block of a piece, `run` entries from `at` on, at most BLOCK. */
#define BLOCKS(...)                                                     \
    for (long at = from; at < to; at += BLOCK) {                        \
        long run = to - at < BLOCK ? to - at : BLOCK;                   \
        __VA_ARGS__                                                     \
    }

/* The bits of n numbers, summed as integers that wrap around. */
static inline uint64_t NAME(bits)(long n, const REAL *x) {
    uint64_t few[4] = {0};
    FOUR four[4] = {{0}};
    const char *bytes = (const char *)x;
    size_t size = (size_t)n * sizeof(REAL), done = 0;
    for (; size - done >= sizeof four; done += sizeof four)
        for (int j = 0; j < 4; j++) four[j] += *(const FOUR *)(bytes + done + (size_t)j * sizeof *four);
    FOUR sum = four[0] + four[1] + four[2] + four[3];
    for (; done < size; done += sizeof few) {
        memset(few, 0, sizeof few);
        memcpy(few, bytes + done, size - done < sizeof few ? size - done : sizeof few);
        sum += *(FOUR *)few;
    }
    return sum[0] + sum[1] + sum[2] + sum[3];
}

/* Whether n entries have changed since the last step, by their copy or the sum of their bits; 0 if neither is given. */
static inline int NAME(is_moved)(long n, const REAL *x, const REAL *copy, const uint64_t *sum) {
    return copy ? memcmp(x, copy, (size_t)n * sizeof(REAL)) != 0 : sum ? NAME(bits)(n, x) != *sum : 0;
}

/* Record the present values. */
static inline void NAME(leave)(long n, const REAL *x, REAL *copy, uint64_t *sum) {
    if (copy) memcpy(copy, x, (size_t)n * sizeof(REAL));
    if (sum) *sum = NAME(bits)(n, x);
}

/* Run a step on every part of every tensor. If a part has changed since the last step, `dual` computes its dual v first,
   which replaces z at all entries, or at the changed entries if there is a copy. */
#define FOR_WATCHED_PARTS(dual, ...)                                                                            \
    FOR_PIECES(for (long first = from, last = to; first < last; first += PART) {                                \
        long from = first, to = last - first < PART ? last : first + PART;                                      \
        REAL *copy = copies[i] ? copies[i] + from : 0;                                                          \
        uint64_t *sum = sums[i] ? sums[i] + from / PART : 0;                                                    \
        if (NAME(is_moved)(to - from, x[i] + from, copy, sum)) {                                                \
            _Pragma("omp atomic write") moved[i] = 1;                                                           \
            BLOCKS(REAL v[BLOCK]; dual for (long j = 0; j < run; j++)                                           \
                       if (!copy || x[i][at + j] != copy[at - from + j]) z[i][at + j] = v[j];)                  \
        }                                                                                                       \
        __VA_ARGS__                                                                                             \
        NAME(leave)(to - from, x[i] + from, copy, sum);                                                         \
    })

/* x <- x - t w g. A function, because compilers use restrict of arguments but not of local variables. */
static inline void NAME(descend)(long n, REAL *restrict x, const REAL *restrict g, const REAL *restrict w, REAL t) {
    _Pragma("GCC unroll 8") /* the loop overhead would be noticeable */
    for (long j = 0; j < n; j++) x[j] -= t * (w[j] * g[j]);
}

/* x <- x - t w g, with w repeated every period[i] entries. */
void NAME(md_scaled)(long count, const long *sizes, const long *periods, REAL **x, REAL **g, REAL **w, double t,
                     int threads) {
    REAL step = (REAL)t;
    FOR_PIECES(STRETCHES(NAME(descend)(run, x[i] + at, g[i] + at, w[i] + phase, step);))
}

/* z <- z - far g,  x <- lambda w z + (1 - lambda) (x - near g), or with near w g if corrected is not 0. */
static inline void NAME(accelerate)(long n, REAL *restrict x, REAL *restrict z, const REAL *restrict g,
                                    const REAL *restrict w, REAL far, REAL near, REAL lambda, int corrected) {
    if (corrected)
        for (long j = 0; j < n; j++) {
            z[j] -= far * g[j];
            REAL tilde = x[j] - near * (w[j] * g[j]);
            x[j] = tilde + lambda * (w[j] * z[j] - tilde);
        }
    else
        for (long j = 0; j < n; j++) {
            z[j] -= far * g[j];
            REAL tilde = x[j] - near * g[j];
            x[j] = tilde + lambda * (w[j] * z[j] - tilde);
        }
}

/* The same with w repeated every period[i] entries; where x has changed, z = x/w first. */
void NAME(amd_scaled)(long count, const long *sizes, const long *periods, REAL **x, REAL **z, REAL **g, REAL **w,
                      REAL **copies, uint64_t **sums, int *moved, double far_step, double near_step, double mixing,
                      int corrected, int threads) {
    REAL far = (REAL)far_step, near = (REAL)near_step, lambda = (REAL)mixing;
    FOR_WATCHED_PARTS(
        for (long j = 0; j < run; j++) v[j] = x[i][at + j] / w[i][(at + j) % periods[i]];,
        STRETCHES(
            NAME(accelerate)(run, x[i] + at, z[i] + at, g[i] + at, w[i] + phase, far, near, lambda, corrected);))
}

/* Continuous functions that are linear between some ends, and beyond them.

   The range of the ends is divided into cells of equal length. If no cell has more than one end, the usual case, a cell
   is a leaf. It holds the end, the value there, and the slopes to its left and right; without an end it holds 0, the
   intercept, and the slope twice. Otherwise a cell is the root of a binary tree of ends, with leaves at its last level.
   Cells, nodes and leaves are numbered from the number of cells on: the children of k are 2k, for numbers less than the
   end of k, and 2k + 1, for all others.

   The cell of a number is computed by the same arithmetic as those of the ends, and is monotone in the number. So
   rounding cannot lead to a wrong leaf. It is clamped before the conversion to an integer: numbers out of range,
   infinities too, are in the first or last cell, and NaN is in the first cell and stays NaN.

   A table holds the origin of the cells, their number per unit, their total number, and 0; then the ends of nodes, padded
   to the number of leaves; then the leaves. Four leaves at a time are read and transposed, which is faster than gathers. */
#define QUAD NAME(quad)
#define BITS __typeof__((QUAD){0} < (QUAD){0})
typedef REAL QUAD __attribute__((vector_size(4 * sizeof(REAL)), aligned(sizeof(REAL))));
#ifndef FOR_ENTRIES
#define FOR_ENTRIES for (long j = 0; j < n; j++)
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLED(p, q, ...) __builtin_shufflevector(p, q, __VA_ARGS__)
#else
#define SHUFFLED(p, q, ...) __builtin_shuffle(p, q, (__typeof__(p < q)){__VA_ARGS__})
#endif
#endif

/* Four values, at four leaves. */
static inline void NAME(four_values)(const unsigned *at, const REAL *v, REAL *y, const QUAD *leaf) {
    QUAD p = leaf[at[0]], q = leaf[at[1]], r = leaf[at[2]], s = leaf[at[3]], number, value;
    QUAD pq = SHUFFLED(p, q, 0, 4, 1, 5), rs = SHUFFLED(r, s, 0, 4, 1, 5);
    QUAD end = SHUFFLED(pq, rs, 0, 1, 4, 5), there = SHUFFLED(pq, rs, 2, 3, 6, 7);
    pq = SHUFFLED(p, q, 2, 6, 3, 7), rs = SHUFFLED(r, s, 2, 6, 3, 7);
    BITS left = (BITS)SHUFFLED(pq, rs, 0, 1, 4, 5), right = (BITS)SHUFFLED(pq, rs, 2, 3, 6, 7);
    memcpy(&number, v, sizeof number);
    BITS is_right = number >= end;
    value = there + (QUAD)((right & is_right) | (left & ~is_right)) * (number - end);
    memcpy(y, &value, sizeof value);
}

/* y <- s(v), on at most BLOCK entries. */
static inline void NAME(evaluate)(long n, const REAL *restrict v, REAL *restrict y, const REAL *restrict table,
                                  long leaves) {
    REAL origin = table[0], scale = table[1], last = table[2] - 1, few[4] = {0};
    unsigned at[BLOCK], cells = (unsigned)table[2];
    const REAL *restrict ends = table + 4;
    const QUAD *restrict leaf = (const QUAD *)(ends + leaves) - leaves; /* leaves are numbered after all nodes */
    FOR_ENTRIES {
        REAL place = (v[j] - origin) * scale;
        place = place > 0 ? place : 0;
        at[j] = (unsigned)(int)(place < last ? place : last) + cells;
    }
    for (long nodes = cells; nodes < leaves; nodes *= 2)
        FOR_ENTRIES at[j] = 2 * at[j] + (v[j] >= ends[at[j]]);
    long whole = n - n % 4;
    for (long j = 0; j < whole; j += 4) NAME(four_values)(at + j, v + j, y + j, leaf);
    if (whole < n) {
        for (long j = n; j < whole + 4; j++) at[j] = (unsigned)leaves; /* any leaf: the result is discarded */
        memcpy(few, v + whole, (size_t)(n - whole) * sizeof(REAL));
        NAME(four_values)(at + whole, few, few, leaf);
        memcpy(y + whole, few, (size_t)(n - whole) * sizeof(REAL));
    }
}
#undef BITS
#undef QUAD

/* z <- z - far g,  x <- mixing s(z) + (1 - mixing) (x - near g), on at most BLOCK entries. */
static inline void NAME(accelerate_spline)(long n, REAL *restrict x, REAL *restrict z, const REAL *restrict g,
                                           const REAL *restrict table, long leaves, REAL far, REAL near, REAL lambda) {
    REAL v[BLOCK];
    for (long j = 0; j < n; j += 64 / (long)sizeof(REAL)) __builtin_prefetch(x + PART + j); /* needed by the next sum of bits */
    FOR_ENTRIES z[j] -= far * g[j];
    NAME(evaluate)(n, z, v, table, leaves);
    FOR_ENTRIES {
        REAL tilde = x[j] - near * g[j];
        x[j] = tilde + lambda * (v[j] - tilde);
    }
}

/* The same on all entries; where x has changed, z = r(x) first. The table of r follows that of its inverse s. */
void NAME(amd_spline)(long count, const long *sizes, REAL **x, REAL **z, REAL **g, REAL **tables, REAL **copies,
                      uint64_t **sums, int *moved, long leaves, double far_step, double near_step, double mixing,
                      int threads) {
    REAL far = (REAL)far_step, near = (REAL)near_step, lambda = (REAL)mixing;
    FOR_WATCHED_PARTS(
        NAME(evaluate)(run, x[i] + at, v, tables[i] + 4 + 5 * leaves, leaves);,
        BLOCKS(
            NAME(accelerate_spline)(run, x[i] + at, z[i] + at, g[i] + at, tables[i], leaves, far, near, lambda);))
}

/* x <- s(r(x) - t g), on at most BLOCK entries. */
static inline void NAME(descend_spline)(long n, REAL *restrict x, const REAL *restrict g, const REAL *restrict table,
                                        long leaves, REAL t) {
    REAL v[BLOCK];
    NAME(evaluate)(n, x, v, table + 4 + 5 * leaves, leaves);
    FOR_ENTRIES v[j] -= t * g[j];
    NAME(evaluate)(n, v, x, table, leaves);
}

/* The same on all entries. */
void NAME(md_spline)(long count, const long *sizes, REAL **x, REAL **g, REAL **tables, long leaves, double t,
                     int threads) {
    REAL step = (REAL)t;
    FOR_PIECES(BLOCKS(NAME(descend_spline)(run, x[i] + at, g[i] + at, tables[i], leaves, step);))
}
