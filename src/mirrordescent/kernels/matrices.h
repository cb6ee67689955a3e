/* Functions of singular values by products of symmetric matrices, for matrices that fit into the nearer caches.

   Polynomials of one Gram matrix G = XXᵀ are symmetric and commute. So their products are symmetric too: half of each is
   computed, and rows serve as columns, which nobody has to transpose. Matrices are kept with sides that are multiples of
   SIDE; what is beside G is zero, and what is beside the others is nothing but a diagonal, and is not looked at. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifndef SIDE
#define SIDE 16
#define DEPTH 64 /* columns of X whose share of XXᵀ is added at a time; at least SIDE */
#ifdef __AVX512F__
#define BYTES 64
#define TILE 16 /* rows of a product that are computed at once, in as many registers */
#else
#define BYTES 32
#define TILE 8
#endif
static long padded(long n) { return (n + SIDE - 1) / SIDE * SIDE; }
#endif
#define LANES ((long)(BYTES / sizeof(REAL)))
typedef REAL NAME(lanes) __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));

/* c[r] += Σ_k a[k, r] b[k, :] for r < TILE, where rows of a and b are so far apart. */
static inline __attribute__((always_inline)) void NAME(tile)(
    long depth, const REAL *a, long a_row, const REAL *b, long b_row, NAME(lanes) *c) {
    NAME(lanes) sums[TILE];
    for (int r = 0; r < TILE; r++) sums[r] = c[r];
    for (long k = 0; k < depth; k++) {
        NAME(lanes) row = *(const NAME(lanes) *)(b + k * b_row);
#pragma GCC unroll 16
        for (int r = 0; r < TILE; r++) sums[r] += a[k * a_row + r] * row;
    }
    for (int r = 0; r < TILE; r++) c[r] = sums[r];
}

/* Write a tile of a symmetric matrix at (i, j), and at (j, i) too. */
static inline void NAME(write_both)(long n, const NAME(lanes) *tile, REAL *C, long i, long j) {
    for (int r = 0; r < TILE; r++) *(NAME(lanes) *)(C + (i + r) * n + j) = tile[r];
    if (j >= i + TILE)
        for (long l = 0; l < LANES; l++)
            for (int r = 0; r < TILE; r++) C[(j + l) * n + i + r] = tile[r][l];
}

/* C = αAB + βB + γI for symmetric A and B that commute; C is another matrix than both. */
static void NAME(product)(long n, double alpha, const REAL *A, const REAL *B, double beta, double gamma, REAL *C) {
    for (long i = 0; i < n; i += TILE)
        for (long j = i / LANES * LANES; j < n; j += LANES) {
            NAME(lanes) tile[TILE] = {{0}};
            NAME(tile)(n, A + i, n, B + j, n, tile);
            for (int r = 0; r < TILE; r++) {
                tile[r] = (REAL)alpha * tile[r] + (REAL)beta * *(const NAME(lanes) *)(B + (i + r) * n + j);
                if (i + r >= j && i + r < j + LANES) tile[r][i + r - j] += (REAL)gamma;
            }
            NAME(write_both)(n, tile, C, i, j);
        }
}

/* Put `depth` columns of a wide X from k on, or rows of a tall one, into the rows of T, filled up with zeros. */
static void NAME(gather)(const REAL *X, long rows, long columns, long k, long depth, long n, REAL *T) {
    int wide = rows <= columns;
    long side = wide ? rows : columns;
    for (long d = 0; d < depth; d++) memset(T + d * n + side, 0, (size_t)(n - side) * sizeof(REAL));
    if (wide)
        for (long i = 0; i < side; i++)
            for (long d = 0; d < depth; d++) T[d * n + i] = X[i * columns + k + d];
    else
        for (long d = 0; d < depth; d++) memcpy(T + d * n, X + (k + d) * columns, (size_t)side * sizeof(REAL));
}

/* G = XXᵀ of a wide matrix, XᵀX of a tall one. */
static void NAME(gram)(const REAL *X, long rows, long columns, long n, REAL *T, REAL *G) {
    long length = rows <= columns ? columns : rows;
    memset(G, 0, (size_t)(n * n) * sizeof(REAL));
    for (long k = 0; k < length; k += DEPTH) {
        long depth = length - k < DEPTH ? length - k : DEPTH;
        NAME(gather)(X, rows, columns, k, depth, n, T);
        for (long i = 0; i < n; i += TILE)
            for (long j = i / LANES * LANES; j < n; j += LANES) {
                NAME(lanes) tile[TILE];
                for (int r = 0; r < TILE; r++) tile[r] = *(const NAME(lanes) *)(G + (i + r) * n + j);
                NAME(tile)(depth, T + i, n, T + j, n, tile);
                for (int r = 0; r < TILE; r++) *(NAME(lanes) *)(G + (i + r) * n + j) = tile[r];
            }
    }
    for (long i = 0; i < n; i++)
        for (long j = i + 1; j < n; j++) G[j * n + i] = G[i * n + j];
}

/* Y = QX of a wide matrix, XQ of a tall one, for a symmetric Q; return the sum of the squares of Y. */
static double NAME(apply)(const REAL *X, long rows, long columns, long n, const REAL *Q, REAL *T, REAL *Y) {
    long wide = rows <= columns, side = wide ? rows : columns, length = wide ? columns : rows;
    double squares = 0;
    for (long k = 0; k < length; k += SIDE) { /* so many columns of a wide Y, rows of a tall one */
        long depth = length - k < SIDE ? length - k : SIDE;
        for (long i = 0; i < side; i++) /* row i of T: what Q_i is multiplied by */
            for (long d = 0; d < SIDE; d++)
                T[i * SIDE + d] = d >= depth ? 0 : wide ? X[i * columns + k + d] : X[(k + d) * columns + i];
        long height = wide ? n : SIDE, width = wide ? SIDE : n;
        for (long i = 0; i < height; i += TILE)
            for (long j = 0; j < width; j += LANES) {
                NAME(lanes) tile[TILE] = {{0}}, sum = {0};
                if (wide) NAME(tile)(side, Q + i, n, T + j, SIDE, tile);
                else NAME(tile)(side, T + i, SIDE, Q + j, n, tile);
                long across = (wide ? depth : side) - j, down = (wide ? side : depth) - i;
                REAL *to = wide ? Y + i * columns + k + j : Y + (k + i) * columns + j;
                for (int r = 0; r < TILE && r < down; r++) {
                    sum += tile[r] * tile[r]; /* zeros outside */
                    if (across >= LANES) *(NAME(lanes) *)(to + r * columns) = tile[r];
                    else for (long l = 0; l < across; l++) to[r * columns + l] = tile[r][l];
                }
                for (long l = 0; l < LANES; l++) squares += sum[l];
            }
    }
    return squares;
}

/* Σ_k w_k X_k/X, with X_k the Newton–Schulz steps from X/‖G‖_F^½ and G the Gram matrix of X; it takes six matrices. */
static REAL *NAME(factor)(long n, long steps, const double *w, const double *coefficients, REAL *G) {
    long all = n * n;
    REAL *q = G + all, *Q = q + all, *next = Q + all, *spare = next + all, *total = spare + all;
    double size = 0, tiny = sizeof(REAL) == 4 ? 1.17549435e-38 : 2.2250738585072014e-308;
    for (long i = 0; i < all; i++) size += (double)G[i] * (double)G[i];
    size = sqrt(size) < tiny ? tiny : sqrt(size);
    for (long i = 0; i < all; i++) G[i] = (REAL)(G[i] / size);
    for (long k = 0; k < steps; k++) {
        const double *c = coefficients + 3 * k;
        REAL *now = k ? q : Q;
        NAME(product)(n, c[2], G, G, c[1], c[0], now);
        if (k) {
            REAL *old = Q;
            NAME(product)(n, 1, Q, q, 0, 0, next);
            Q = next, next = old;
        }
        if (k + 1 < steps) {
            REAL *old = G;
            NAME(product)(n, 1, now, now, 0, 0, spare);
            NAME(product)(n, 1, spare, G, 0, 0, next);
            G = next, next = old;
        }
        for (long i = 0; i < all; i++) total[i] = (k ? total[i] : 0) + (REAL)w[k + 1] * Q[i];
    }
    for (long i = 0; i < n; i++) total[i * n + i] += (REAL)w[0];
    double root = 1 / sqrt(size);
    for (long i = 0; i < all; i++) total[i] = (REAL)(total[i] * root);
    return total;
}

/* y = D/rms(D) for tensors x of so many blocks each, with D = Σ_k w_k X_k of every block X; 0 for x = 0.

   weights: steps + 1 for each tensor. coefficients: three for each step. Returns 1 if there is no memory. */
int NAME(directions)(
    long count, const long *blocks, const long *rows, const long *columns, REAL **x, REAL **y, long steps,
    const double *weights, const double *coefficients, int threads) {
    int failed = 0;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (count > 1)
    for (long m = 0; m < count; m++) {
        long side = rows[m] < columns[m] ? rows[m] : columns[m], n = padded(side), entries = rows[m] * columns[m];
        if (!entries) continue;
        REAL *memory = malloc((size_t)(6 * n * n + n * DEPTH) * sizeof(REAL));
        if (!memory) {
            failed = 1;
            continue;
        }
        REAL *T = memory + 6 * n * n;
        double squares = 0;
        for (long b = 0; b < blocks[m]; b++) {
            const REAL *X = x[m] + b * entries;
            NAME(gram)(X, rows[m], columns[m], n, T, memory);
            const REAL *Q = NAME(factor)(n, steps, weights + m * (steps + 1), coefficients, memory);
            squares += NAME(apply)(X, rows[m], columns[m], n, Q, T, y[m] + b * entries);
        }
        free(memory);
        double length = sqrt(squares / (double)(blocks[m] * entries));
        if (length > 0)
            for (long i = 0; i < blocks[m] * entries; i++) y[m][i] = (REAL)(y[m][i] / length);
    }
    return failed;
}
#undef LANES
