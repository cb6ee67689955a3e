/* Functions of singular values by inverses of symmetric matrices, for matrices that fit into the inner caches.

   A Gram matrix G = XXᵀ and inverses of G + cI are symmetric: only blocks of SIDE × SIDE on and above the diagonal are
   computed. Sides are padded to multiples of SIDE. The padding of G is zero; that of inverses is a diagonal, which is
   not read. */
#ifdef __clang__ /* here, and only here, multiplications and additions are fused */
#pragma STDC FP_CONTRACT ON
#else
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif
#include "pool.h"
#include "portable.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifndef SIDE
#define SIDE 16
#define DEPTH 64 /* columns of X that are added to XXᵀ at a time; at least 2 SIDE */
#ifdef __AVX512F__
#define BYTES 64
#define TILE 16 /* rows of a product that are computed at once, one register each */
#else
#define BYTES 32
#define TILE 8
#endif
static int64_t padded(int64_t n) { return (n + SIDE - 1) / SIDE * SIDE; }
#endif
#define LANES ((int64_t)(BYTES / sizeof(REAL)))
typedef REAL NAME(lanes) __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));

/* c[r] += Σ_k a[k, r] b[k, :] for r < TILE, with row strides a_row and b_row. */
static inline __attribute__((always_inline)) void NAME(tile)(
    int64_t depth, const REAL *a, int64_t a_row, const REAL *b, int64_t b_row, NAME(lanes) *c) {
    NAME(lanes) sums[TILE];
    for (int r = 0; r < TILE; r++) sums[r] = c[r];
    for (int64_t k = 0; k < depth; k++) {
        NAME(lanes) row = *(const NAME(lanes) *)(b + k * b_row);
        UNROLL(16)
        for (int r = 0; r < TILE; r++) sums[r] += a[k * a_row + r] * row;
    }
    for (int r = 0; r < TILE; r++) c[r] = sums[r];
}

/* C += AᵀB for a tile of C, where A and B have depth rows. */
static inline __attribute__((always_inline)) void NAME(add)(
    int64_t depth, const REAL *A, int64_t a_row, const REAL *B, int64_t b_row, REAL *C, int64_t c_row) {
    NAME(lanes) tile[TILE];
    for (int r = 0; r < TILE; r++) tile[r] = *(const NAME(lanes) *)(C + r * c_row);
    NAME(tile)(depth, A, a_row, B, b_row, tile);
    for (int r = 0; r < TILE; r++) *(NAME(lanes) *)(C + r * c_row) = tile[r];
}

/* Write the transpose of a SIDE × SIDE block. */
static inline void NAME(transpose)(const REAL *restrict from, int64_t from_row, REAL *restrict to, int64_t to_row) {
    for (int64_t r = 0; r < SIDE; r++)
        for (int64_t l = 0; l < SIDE; l++) to[r * to_row + l] = from[l * from_row + r];
}

/* Copy `depth` columns of a wide X, or rows of a tall X, from k on into the rows of T, zero-padded. */
static void NAME(gather)(const REAL *X, int64_t rows, int64_t columns, int64_t k, int64_t depth, int64_t n, REAL *T) {
    int wide = rows <= columns;
    int64_t side = wide ? rows : columns;
    for (int64_t d = 0; d < depth; d++) memset(T + d * n + side, 0, (size_t)(n - side) * sizeof(REAL));
    if (wide)
        for (int64_t i = 0; i < side; i += SIDE)
            for (int64_t d = 0; d < depth; d += SIDE) {
                const REAL *from = X + i * columns + k + d;
                if (i + SIDE <= side && d + SIDE <= depth) NAME(transpose)(from, columns, T + d * n + i, n);
                else
                    for (int64_t r = 0; r < SIDE && d + r < depth; r++)
                        for (int64_t l = 0; l < SIDE && i + l < side; l++) T[(d + r) * n + i + l] = from[l * columns + r];
            }
    else
        for (int64_t d = 0; d < depth; d++) memcpy(T + d * n, X + (k + d) * columns, (size_t)side * sizeof(REAL));
}

/* G = XXᵀ of a wide matrix, XᵀX of a tall one. */
static void NAME(gram)(const REAL *X, int64_t rows, int64_t columns, int64_t n, REAL *T, REAL *G) {
    int64_t length = rows <= columns ? columns : rows;
    memset(G, 0, (size_t)(n * n) * sizeof(REAL));
    for (int64_t k = 0; k < length; k += DEPTH) {
        int64_t depth = length - k < DEPTH ? length - k : DEPTH;
        NAME(gather)(X, rows, columns, k, depth, n, T);
        for (int64_t i = 0; i < n; i += TILE)
            for (int64_t j = i / SIDE * SIDE; j < n; j += LANES) NAME(add)(depth, T + i, n, T + j, n, G + i * n + j, n);
    }
}

/* Y = QX of a wide matrix, XQ of a tall one, for a symmetric Q; return the sum of the squares of Y. */
static double NAME(apply)(const REAL *X, int64_t rows, int64_t columns, int64_t n, const REAL *Q, REAL *T, REAL *Y) {
    int64_t wide = rows <= columns, side = wide ? rows : columns, length = wide ? columns : rows;
    double squares = 0;
    for (int64_t k = 0; k < length; k += SIDE) { /* SIDE columns of a wide Y, or rows of a tall Y */
        int64_t depth = length - k < SIDE ? length - k : SIDE;
        for (int64_t i = 0; i < side; i++) /* row i of T: the factor of Q_i */
            for (int64_t d = 0; d < SIDE; d++)
                T[i * SIDE + d] = d >= depth ? 0 : wide ? X[i * columns + k + d] : X[(k + d) * columns + i];
        int64_t height = wide ? n : SIDE, width = wide ? SIDE : n;
        for (int64_t i = 0; i < height; i += TILE)
            for (int64_t j = 0; j < width; j += LANES) {
                NAME(lanes) tile[TILE] = {{0}}, sum = {0};
                if (wide) NAME(tile)(side, Q + i, n, T + j, SIDE, tile);
                else NAME(tile)(side, T + i, SIDE, Q + j, n, tile);
                int64_t across = (wide ? depth : side) - j, down = (wide ? side : depth) - i;
                REAL *to = wide ? Y + i * columns + k + j : Y + (k + i) * columns + j;
                for (int r = 0; r < TILE && r < down; r++) {
                    sum += tile[r] * tile[r]; /* the padding is zero */
                    if (across >= LANES) *(NAME(lanes) *)(to + r * columns) = tile[r];
                    else for (int64_t l = 0; l < across; l++) to[r * columns + l] = tile[r][l];
                }
                for (int64_t l = 0; l < LANES; l++) squares += sum[l];
            }
    }
    return squares;
}

/* P = R⁻ᵀ for a block A = RᵀR of SIDE rows: the elimination that makes A upper triangular turns the identity into P. */
static void NAME(root)(REAL *A, REAL *P) {
    REAL least = sizeof(REAL) == 4 ? (REAL)1e-12 : (REAL)1e-30; /* pivots are at least c, except for rounding */
    memset(P, 0, SIDE * SIDE * sizeof(REAL));
    for (int64_t r = 0; r < SIDE; r++) {
        REAL pivot = A[r * SIDE + r];
        REAL inverse = 1 / ROOT(pivot < least ? least : pivot);
        P[r * SIDE + r] = 1;
        for (int64_t l = 0; l < SIDE; l++) A[r * SIDE + l] *= inverse, P[r * SIDE + l] *= inverse;
        for (int64_t q = r + 1; q < SIDE; q++) {
            REAL f = A[r * SIDE + q];
            for (int64_t l = 0; l < SIDE; l += LANES) {
                *(NAME(lanes) *)(A + q * SIDE + l) -= f * *(const NAME(lanes) *)(A + r * SIDE + l);
                *(NAME(lanes) *)(P + q * SIDE + l) -= f * *(const NAME(lanes) *)(P + r * SIDE + l);
            }
        }
    }
}

/* M = R⁻ᵀ on and below the diagonal of S = RᵀR, which is positive definite: then S⁻¹ = MᵀM.

   The elimination is applied to S and to the identity, one block of rows after the other. Changed parts of the identity
   overwrite parts of S that are no longer needed. W is a workspace of 2 SIDE rows: the present block row, and its negative
   after elimination. */
static void NAME(eliminate)(int64_t n, REAL *S, REAL *W) {
    REAL *V = W + SIDE * n, A[SIDE * SIDE], P[SIDE * SIDE];
    for (int64_t k = 0; k < n; k += SIDE) {
        for (int64_t r = 0; r < SIDE; r++) {
            memcpy(A + r * SIDE, S + (k + r) * n + k, SIDE * sizeof(REAL));
            memcpy(W + r * n, S + (k + r) * n, (size_t)n * sizeof(REAL));
        }
        NAME(root)(A, P);
        NAME(transpose)(P, SIDE, A, SIDE); /* a product needs the transpose */
        for (int64_t r = 0; r < SIDE; r++) memset(S + (k + r) * n, 0, (size_t)n * sizeof(REAL));
        for (int64_t i = 0; i < SIDE; i += TILE)
            for (int64_t j = 0; j < n; j += LANES) NAME(add)(SIDE, A + i, SIDE, W + j, n, S + (k + i) * n + j, n);
        for (int64_t r = 0; r < SIDE; r++) {
            memcpy(S + (k + r) * n + k, P + r * SIDE, SIDE * sizeof(REAL));
            for (int64_t j = 0; j < n; j++) V[r * n + j] = -S[(k + r) * n + j];
        }
        for (int64_t i = k + SIDE; i < n; i += TILE) {
            const REAL *factors = S + k * n + i;
            for (int64_t j = 0; j < k + SIDE; j += LANES) NAME(add)(SIDE, factors, n, V + j, n, S + i * n + j, n);
            for (int64_t j = i / SIDE * SIDE; j < n; j += LANES) NAME(add)(SIDE, factors, n, V + j, n, S + i * n + j, n);
        }
    }
}

/* ‖G‖_F of a symmetric matrix, or the smallest normal number if it is 0. */
static double NAME(size)(int64_t n, const REAL *G) {
    double sums[SIDE] = {0}, size = 0, tiny = sizeof(REAL) == 4 ? 1.17549435e-38 : 2.2250738585072014e-308;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i / SIDE * SIDE; j < n; j += SIDE) {
            const REAL *some = G + i * n + j;
            double times = j > i ? 2 : 1; /* entries above the diagonal count twice */
            for (int64_t l = 0; l < SIDE; l++) sums[l] += times * (double)some[l] * (double)some[l];
        }
    for (int64_t l = 0; l < SIDE; l++) size += sums[l];
    return sqrt(size) < tiny ? tiny : sqrt(size);
}

/* (w_0 I + Σ_j w_j (G/s + c_j I)⁻¹)/√s with s = ‖G‖_F and w ≥ 0, written to all of G. S and W are workspaces. */
static void NAME(resolvents)(int64_t n, int64_t poles, const double *w, const double *c, REAL *G, REAL *S, REAL *W) {
    int64_t all = n * n;
    double size = NAME(size)(n, G);
    REAL inverse = (REAL)(1 / size), *total = S + all;
    memset(total, 0, (size_t)all * sizeof(REAL));
    for (int64_t i = 0; i < n; i++) total[i * n + i] = (REAL)(w[0] / sqrt(size));
    for (int64_t p = 0; p < poles; p++) {
        REAL weight = (REAL)sqrt(w[p + 1] / sqrt(size));
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) S[i * n + j] = j < i / SIDE * SIDE ? 0 : inverse * G[i * n + j];
        for (int64_t i = 0; i < n; i++) S[i * n + i] += (REAL)c[p];
        NAME(eliminate)(n, S, W);
        for (int64_t i = 0; i < all; i++) S[i] *= weight;
        for (int64_t i = 0; i < n; i += TILE)
            for (int64_t j = i / SIDE * SIDE; j < n; j += LANES) {
                /* M is zero above this row in these columns. */
                int64_t first = j / SIDE * SIDE;
                NAME(add)(n - first, S + first * n + i, n, S + first * n + j, n, total + i * n + j, n);
            }
    }
    memcpy(G, total, (size_t)all * sizeof(REAL));
    for (int64_t i = 0; i < n; i += SIDE)
        for (int64_t j = i + SIDE; j < n; j += SIDE) NAME(transpose)(G + i * n + j, n, G + j * n + i, n);
}

/* Arguments of directions. */
typedef struct {
    const int64_t *blocks, *rows, *columns;
    REAL **x, **y;
    int64_t poles;
    const double *weights, *shifts;
} NAME(direction_work);

/* The direction of tensor m. */
static int NAME(direction)(const void *work, int64_t m) {
    const NAME(direction_work) *w = work;
    int64_t rows = w->rows[m], columns = w->columns[m], blocks = w->blocks[m], poles = w->poles;
    int64_t n = padded(rows < columns ? rows : columns), entries = rows * columns;
    if (!entries) return 0;
    REAL *G = malloc((size_t)(3 * n * n + n * DEPTH) * sizeof(REAL)), *S = G + n * n, *T = S + 2 * n * n, *y = w->y[m];
    if (!G) return 1;
    double squares = 0;
    for (int64_t b = 0; b < blocks; b++) {
        const REAL *X = w->x[m] + b * entries;
        NAME(gram)(X, rows, columns, n, T, G);
        NAME(resolvents)(n, poles, w->weights + m * (poles + 1), w->shifts + m * poles, G, S, T);
        squares += NAME(apply)(X, rows, columns, n, G, T, y + b * entries);
    }
    free(G);
    double length = sqrt(squares / (double)(blocks * entries));
    REAL inverse = (REAL)(length > 0 ? 1 / length : 1);
    for (int64_t i = 0; i < blocks * entries; i++) y[i] *= inverse;
    return 0;
}

/* y = D/rms(D) for tensors x of several blocks each, where D has h(σ) in place of the singular values σ of every block:
   h(σ) = w_0 σ + Σ_j w_j σ/(σ² + c_j), after division by ‖XXᵀ‖_F^½; 0 for x = 0.

   weights: poles + 1 for each tensor; shifts: poles for each. Returns 1 if memory cannot be allocated. */
EXPORT int NAME(directions)(int64_t count, const int64_t *blocks, const int64_t *rows, const int64_t *columns, REAL **x,
                            REAL **y, int64_t poles, const double *weights, const double *shifts, int threads) {
    NAME(direction_work) work = {blocks, rows, columns, x, y, poles, weights, shifts};
    return for_each(count, NAME(direction), &work, threads);
}
#undef LANES
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC pop_options
#endif
