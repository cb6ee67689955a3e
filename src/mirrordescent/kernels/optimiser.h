/* Steps of optimisers on lists of tensors. They are cut into pieces, which the threads take in turn. */
#ifdef _OPENMP
#include <omp.h>
#endif
#ifndef PIECE
#define PIECE 65536 /* a multiple of BLOCK */
#define BLOCK 256   /* entries whose intervals are counted together, in registers and the nearest cache */
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

/* Run what is given for every piece [from, to) of every tensor i. */
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

/* Run what is given for every stretch of run entries from at on, along which w, repeated, does not begin anew. */
#define FOR_STRETCHES(...)                                                              \
    FOR_PIECES(for (long at = from, run; at < to; at += run) {                          \
        long phase = at % periods[i];                                                   \
        run = periods[i] - phase < to - at ? periods[i] - phase : to - at;              \
        __VA_ARGS__                                                                     \
    })

/* Where v lies among the ends of intervals, all at once: how many ends are not above it. */
static inline void NAME(intervals)(const REAL *restrict v, int *restrict at, const REAL *restrict ends, long n_ends) {
    for (int j = 0; j < BLOCK; j++) at[j] = 0;
    for (long e = 0; e < n_ends; e++) {
        REAL end = ends[e];
        for (int j = 0; j < BLOCK; j++) at[j] += v[j] >= end;
    }
}

/* x <- x - t w g. A function, because compilers heed restrict of arguments and not of local variables. */
static inline void NAME(descend)(long n, REAL *restrict x, const REAL *restrict g, const REAL *restrict w, REAL t) {
    _Pragma("GCC unroll 8") /* so little is computed that counting j would show */
    for (long j = 0; j < n; j++) x[j] -= t * (w[j] * g[j]);
}

/* x <- x - t w g, with w repeated every period[i] entries. */
void NAME(md_scaled)(long count, const long *sizes, const long *periods, REAL **x, REAL **g, REAL **w, double t,
                     int threads) {
    REAL step = (REAL)t;
    FOR_STRETCHES(NAME(descend)(run, x[i] + at, g[i] + at, w[i] + phase, step);)
}

/* z <- z - far g,  x <- lambda w z + (1 - lambda) (x - near g), or with near w g where corrected is not 0. */
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

/* The same with w repeated every period[i] entries. */
void NAME(amd_scaled)(long count, const long *sizes, const long *periods, REAL **x, REAL **z, REAL **g, REAL **w,
                      double far_step, double near_step, double mixing, int corrected, int threads) {
    REAL far = (REAL)far_step, near = (REAL)near_step, lambda = (REAL)mixing;
    FOR_STRETCHES(
        NAME(accelerate)(run, x[i] + at, z[i] + at, g[i] + at, w[i] + phase, far, near, lambda, corrected);)
}

/* z <- z - far g,  x <- mixing s(z) + (1 - mixing) (x - near g), s piecewise linear: b + a z between ends.
   tables[i] holds ends (intervals - 1), then b and a (intervals each). */
void NAME(amd_spline)(long count, const long *sizes, REAL **x, REAL **z, REAL **g, REAL **tables, long intervals,
                      double far_step, double near_step, double mixing, int threads) {
    REAL far = (REAL)far_step, near = (REAL)near_step, lambda = (REAL)mixing;
    FOR_PIECES({
        const REAL *ends = tables[i], *b = ends + intervals - 1, *a = b + intervals;
        for (long at = from; at < to; at += BLOCK) {
            int run = to - at < BLOCK ? (int)(to - at) : BLOCK, place[BLOCK];
            REAL *restrict xs = x[i] + at, *restrict zs = z[i] + at, v[BLOCK];
            const REAL *restrict gs = g[i] + at;
            for (int j = 0; j < run; j++) v[j] = zs[j] -= far * gs[j];
            for (int j = run; j < BLOCK; j++) v[j] = 0;
            NAME(intervals)(v, place, ends, intervals - 1);
            for (int j = 0; j < run; j++) {
                REAL tilde = xs[j] - near * gs[j];
                xs[j] = tilde + lambda * (b[place[j]] + a[place[j]] * v[j] - tilde);
            }
        }
    })
}

/* x <- s(r(x) - t g), both piecewise linear. tables[i] holds the inverse s as above, then the ends, b and a of r. */
void NAME(md_spline)(long count, const long *sizes, REAL **x, REAL **g, REAL **tables, long intervals, double t,
                     int threads) {
    REAL step = (REAL)t;
    FOR_PIECES({
        const REAL *ends = tables[i], *b = ends + intervals - 1, *a = b + intervals;
        const REAL *knots = a + intervals, *c = knots + intervals - 1, *d = c + intervals;
        for (long at = from; at < to; at += BLOCK) {
            int run = to - at < BLOCK ? (int)(to - at) : BLOCK, place[BLOCK];
            REAL *restrict xs = x[i] + at, v[BLOCK];
            const REAL *restrict gs = g[i] + at;
            for (int j = 0; j < run; j++) v[j] = xs[j];
            for (int j = run; j < BLOCK; j++) v[j] = 0;
            NAME(intervals)(v, place, knots, intervals - 1);
            for (int j = 0; j < run; j++) v[j] = c[place[j]] + d[place[j]] * v[j] - step * gs[j];
            NAME(intervals)(v, place, ends, intervals - 1);
            for (int j = 0; j < run; j++) xs[j] = b[place[j]] + a[place[j]] * v[j];
        }
    })
}
