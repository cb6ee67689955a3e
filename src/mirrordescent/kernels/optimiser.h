/* Steps of optimisers on lists of tensors. Tensors are split into pieces, which are distributed over the threads. */
#include "pool.h"
#include "portable.h"
#include <stdint.h>
#include <string.h>
#ifndef PIECE
#define PIECE 65536 /* a multiple of PART */
#define PART 1024   /* a multiple of BLOCK: entries that are compared and stepped while they are in the first cache */
#define BLOCK 256   /* entries whose intervals are found before their lines are evaluated, in the first cache */
typedef uint64_t FOUR __attribute__((vector_size(32), aligned(4), may_alias));

/* The work on entries [from, to) of tensor i. piece is the index of this piece among those of all tensors. */
typedef void piece_function(const void *work, int64_t i, int64_t from, int64_t to, int64_t piece);

typedef struct {
    int64_t count;
    const int64_t *sizes;
    piece_function *function;
    const void *work;
} piece_work;

static int take_pieces(const void *work, int mine, int all) {
    const piece_work *w = work;
    int64_t piece = 0;
    for (int64_t i = 0; i < w->count; i++)
        for (int64_t from = 0; from < w->sizes[i]; from += PIECE, piece++) {
            if (piece % all != mine) continue;
            w->function(w->work, i, from, from + PIECE < w->sizes[i] ? from + PIECE : w->sizes[i], piece);
        }
    return 0;
}

/* Run a function for every piece of every tensor. A piece is always processed by the same thread, in whose cache it is. */
static void for_pieces(int64_t count, const int64_t *sizes, piece_function *function, const void *work, int threads) {
    piece_work all = {count, sizes, function, work};
    int64_t pieces = 0;
    for (int64_t i = 0; i < count && pieces < threads; i++) pieces += (sizes[i] + PIECE - 1) / PIECE;
    run_team(pieces < threads ? (int)pieces : threads, take_pieces, &all);
}
#endif

/* Arguments of the steps on lists of tensors. Those that a step does not have are zero. */
typedef struct {
    const int64_t *periods;
    REAL **x, **z, **g, **w, **tables, **copies;
    uint64_t **sums;
    int *moved;
    int64_t leaves;
    REAL far, near, lambda;
    int corrected;
} NAME(list_work);

/* Run the arguments for every stretch of a piece, `run` entries from `at` on, in which the repeated w does not wrap. */
#define STRETCHES(...)                                             \
    for (int64_t at = from, run; at < to; at += run) {             \
        int64_t period = l->periods[i], phase = at % period;       \
        run = period - phase < to - at ? period - phase : to - at; \
        __VA_ARGS__                                                \
    }

/* Run the arguments for every block of a piece, `run` entries from `at` on, at most BLOCK. */
#define BLOCKS(...)                                      \
    for (int64_t at = from; at < to; at += BLOCK) {      \
        int64_t run = to - at < BLOCK ? to - at : BLOCK; \
        __VA_ARGS__                                      \
    }

/* The bits of n numbers, summed as integers that wrap around. */
static inline uint64_t NAME(bits)(int64_t n, const REAL *x) {
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
static inline int NAME(is_moved)(int64_t n, const REAL *x, const REAL *copy, const uint64_t *sum) {
    return copy ? memcmp(x, copy, (size_t)n * sizeof(REAL)) != 0 : sum ? NAME(bits)(n, x) != *sum : 0;
}

/* Record the present values. */
static inline void NAME(leave)(int64_t n, const REAL *x, REAL *copy, uint64_t *sum) {
    if (copy) memcpy(copy, x, (size_t)n * sizeof(REAL));
    if (sum) *sum = NAME(bits)(n, x);
}

/* Run a step on every part of a piece. If a part has changed since the last step, `dual` computes its dual v first,
   which replaces z at all entries, or at the changed entries if there is a copy. */
#define WATCHED_PARTS(dual, ...)                                                                     \
    for (int64_t first = from, last = to; first < last; first += PART) {                             \
        int64_t from = first, to = last - first < PART ? last : first + PART;                        \
        REAL *copy = l->copies[i] ? l->copies[i] + from : 0;                                         \
        uint64_t *sum = l->sums[i] ? l->sums[i] + from / PART : 0;                                   \
        if (NAME(is_moved)(to - from, l->x[i] + from, copy, sum)) {                                  \
            __atomic_store_n(&l->moved[i], 1, __ATOMIC_RELAXED);                                     \
            BLOCKS(REAL v[BLOCK]; dual for (int64_t j = 0; j < run; j++)                             \
                       if (!copy || l->x[i][at + j] != copy[at - from + j]) l->z[i][at + j] = v[j];) \
        }                                                                                            \
        __VA_ARGS__                                                                                  \
        NAME(leave)(to - from, l->x[i] + from, copy, sum);                                           \
    }

/* The head of the function for the pieces of a step. */
#define PIECES_OF(name) \
    static void NAME(name)(const void *work, int64_t i, int64_t from, int64_t to, int64_t piece)
#define LISTS                        \
    const NAME(list_work) *l = work; \
    (void)piece;

/* x <- x - t w g. A function, because compilers use restrict of arguments but not of local variables. */
static inline void NAME(descend)(int64_t n, REAL *restrict x, const REAL *restrict g, const REAL *restrict w, REAL t) {
    UNROLL(8) /* the loop overhead would be noticeable */
    for (int64_t j = 0; j < n; j++) x[j] -= t * (w[j] * g[j]);
}

PIECES_OF(md_scaled_piece) {
    LISTS
    STRETCHES(NAME(descend)(run, l->x[i] + at, l->g[i] + at, l->w[i] + phase, l->far);)
}

/* x <- x - t w g, with w repeated every period[i] entries. */
EXPORT void NAME(md_scaled)(int64_t count, const int64_t *sizes, const int64_t *periods, REAL **x, REAL **g, REAL **w,
                            double t, int threads) {
    NAME(list_work) work = {.periods = periods, .x = x, .g = g, .w = w, .far = (REAL)t};
    for_pieces(count, sizes, NAME(md_scaled_piece), &work, threads);
}

/* z <- z - far g,  x <- lambda w z + (1 - lambda) (x - near g), or with near w g if corrected is not 0. */
static inline void NAME(accelerate)(int64_t n, REAL *restrict x, REAL *restrict z, const REAL *restrict g,
                                    const REAL *restrict w, REAL far, REAL near, REAL lambda, int corrected) {
    if (corrected)
        for (int64_t j = 0; j < n; j++) {
            z[j] -= far * g[j];
            REAL tilde = x[j] - near * (w[j] * g[j]);
            x[j] = tilde + lambda * (w[j] * z[j] - tilde);
        }
    else
        for (int64_t j = 0; j < n; j++) {
            z[j] -= far * g[j];
            REAL tilde = x[j] - near * g[j];
            x[j] = tilde + lambda * (w[j] * z[j] - tilde);
        }
}

PIECES_OF(amd_scaled_piece) {
    LISTS
    WATCHED_PARTS(
        for (int64_t j = 0; j < run; j++) v[j] = l->x[i][at + j] / l->w[i][(at + j) % l->periods[i]];,
        STRETCHES(NAME(accelerate)(run, l->x[i] + at, l->z[i] + at, l->g[i] + at, l->w[i] + phase, l->far, l->near,
                                   l->lambda, l->corrected);))
}

/* The same with w repeated every period[i] entries; where x has changed, z = x/w first. */
EXPORT void NAME(amd_scaled)(int64_t count, const int64_t *sizes, const int64_t *periods, REAL **x, REAL **z, REAL **g,
                             REAL **w, REAL **copies, uint64_t **sums, int *moved, double far_step, double near_step,
                             double mixing, int corrected, int threads) {
    NAME(list_work) work = {.periods = periods, .x = x, .z = z, .g = g, .w = w, .copies = copies, .sums = sums,
                            .moved = moved, .far = (REAL)far_step, .near = (REAL)near_step, .lambda = (REAL)mixing,
                            .corrected = corrected};
    for_pieces(count, sizes, NAME(amd_scaled_piece), &work, threads);
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
#define FOR_ENTRIES for (int64_t j = 0; j < n; j++)
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
static inline void NAME(evaluate)(int64_t n, const REAL *restrict v, REAL *restrict y, const REAL *restrict table,
                                  int64_t leaves) {
    REAL origin = table[0], scale = table[1], last = table[2] - 1, few[4] = {0};
    unsigned at[BLOCK], cells = (unsigned)table[2];
    const REAL *restrict ends = table + 4;
    const QUAD *restrict leaf = (const QUAD *)(ends + leaves) - leaves; /* leaves are numbered after all nodes */
    FOR_ENTRIES {
        REAL place = (v[j] - origin) * scale;
        place = place > 0 ? place : 0;
        at[j] = (unsigned)(int)(place < last ? place : last) + cells;
    }
    for (int64_t nodes = cells; nodes < leaves; nodes *= 2)
        FOR_ENTRIES at[j] = 2 * at[j] + (v[j] >= ends[at[j]]);
    int64_t whole = n - n % 4;
    for (int64_t j = 0; j < whole; j += 4) NAME(four_values)(at + j, v + j, y + j, leaf);
    if (whole < n) {
        for (int64_t j = n; j < whole + 4; j++) at[j] = (unsigned)leaves; /* any leaf: the result is discarded */
        memcpy(few, v + whole, (size_t)(n - whole) * sizeof(REAL));
        NAME(four_values)(at + whole, few, few, leaf);
        memcpy(y + whole, few, (size_t)(n - whole) * sizeof(REAL));
    }
}
#undef BITS
#undef QUAD

/* z <- z - far g,  x <- mixing s(z) + (1 - mixing) (x - near g), on at most BLOCK entries. */
static inline void NAME(accelerate_spline)(int64_t n, REAL *restrict x, REAL *restrict z, const REAL *restrict g,
                                           const REAL *restrict table, int64_t leaves, REAL far, REAL near, REAL lambda) {
    REAL v[BLOCK];
    for (int64_t j = 0; j < n; j += 64 / (int64_t)sizeof(REAL)) __builtin_prefetch(x + PART + j); /* needed by the next sum of bits */
    FOR_ENTRIES z[j] -= far * g[j];
    NAME(evaluate)(n, z, v, table, leaves);
    FOR_ENTRIES {
        REAL tilde = x[j] - near * g[j];
        x[j] = tilde + lambda * (v[j] - tilde);
    }
}

PIECES_OF(amd_spline_piece) {
    LISTS
    WATCHED_PARTS(
        NAME(evaluate)(run, l->x[i] + at, v, l->tables[i] + 4 + 5 * l->leaves, l->leaves);,
        BLOCKS(NAME(accelerate_spline)(run, l->x[i] + at, l->z[i] + at, l->g[i] + at, l->tables[i], l->leaves, l->far,
                                       l->near, l->lambda);))
}

/* The same on all entries; where x has changed, z = r(x) first. The table of r follows that of its inverse s. */
EXPORT void NAME(amd_spline)(int64_t count, const int64_t *sizes, REAL **x, REAL **z, REAL **g, REAL **tables,
                             REAL **copies, uint64_t **sums, int *moved, int64_t leaves, double far_step,
                             double near_step, double mixing, int threads) {
    NAME(list_work) work = {.x = x, .z = z, .g = g, .tables = tables, .copies = copies, .sums = sums, .moved = moved,
                            .leaves = leaves, .far = (REAL)far_step, .near = (REAL)near_step, .lambda = (REAL)mixing};
    for_pieces(count, sizes, NAME(amd_spline_piece), &work, threads);
}

/* x <- s(r(x) - t g), on at most BLOCK entries. */
static inline void NAME(descend_spline)(int64_t n, REAL *restrict x, const REAL *restrict g, const REAL *restrict table,
                                        int64_t leaves, REAL t) {
    REAL v[BLOCK];
    NAME(evaluate)(n, x, v, table + 4 + 5 * leaves, leaves);
    FOR_ENTRIES v[j] -= t * g[j];
    NAME(evaluate)(n, v, x, table, leaves);
}

PIECES_OF(md_spline_piece) {
    LISTS
    BLOCKS(NAME(descend_spline)(run, l->x[i] + at, l->g[i] + at, l->tables[i], l->leaves, l->far);)
}

/* The same on all entries. */
EXPORT void NAME(md_spline)(int64_t count, const int64_t *sizes, REAL **x, REAL **g, REAL **tables, int64_t leaves,
                            double t, int threads) {
    NAME(list_work) work = {.x = x, .g = g, .tables = tables, .leaves = leaves, .far = (REAL)t};
    for_pieces(count, sizes, NAME(md_spline_piece), &work, threads);
}
