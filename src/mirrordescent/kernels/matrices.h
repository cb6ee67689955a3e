/* Functions of singular values by inverses of symmetric matrices, for matrices that fit into the inner caches.

   A Gram matrix G = XXᵀ and inverses of G + cI are symmetric: only blocks of SIDE × SIDE on and above the diagonal are
   computed. Sides are padded to multiples of SIDE. The padding of G is zero; that of inverses is a diagonal, which is
   not read. */
#if defined(__GNUC__) && !defined(__clang__) /* clang fuses multiplications and additions by default */
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif
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
static long padded(long n) { return (n + SIDE - 1) / SIDE * SIDE; }
#endif
#define LANES ((long)(BYTES / sizeof(REAL)))
typedef REAL NAME(lanes) __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));

/* c[r] += Σ_k a[k, r] b[k, :] for r < TILE, with row strides a_row and b_row. */
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

/* C += AᵀB for a tile of C, where A and B have depth rows. */
static inline __attribute__((always_inline)) void NAME(add)(
    long depth, const REAL *A, long a_row, const REAL *B, long b_row, REAL *C, long c_row) {
    NAME(lanes) tile[TILE];
    for (int r = 0; r < TILE; r++) tile[r] = *(const NAME(lanes) *)(C + r * c_row);
    NAME(tile)(depth, A, a_row, B, b_row, tile);
    for (int r = 0; r < TILE; r++) *(NAME(lanes) *)(C + r * c_row) = tile[r];
}

/* Write the transpose of a SIDE × SIDE block. */
static inline void NAME(transpose)(const REAL *restrict from, long from_row, REAL *restrict to, long to_row) {
    for (long r = 0; r < SIDE; r++)
        for (long l = 0; l < SIDE; l++) to[r * to_row + l] = from[l * from_row + r];
}

/* Copy `depth` columns of a wide X, or rows of a tall X, from k on into the rows of T, zero-padded. */
static void NAME(gather)(const REAL *X, long rows, long columns, long k, long depth, long n, REAL *T) {
    int wide = rows <= columns;
    long side = wide ? rows : columns;
    for (long d = 0; d < depth; d++) memset(T + d * n + side, 0, (size_t)(n - side) * sizeof(REAL));
    if (wide)
        for (long i = 0; i < side; i += SIDE)
            for (long d = 0; d < depth; d += SIDE) {
                const REAL *from = X + i * columns + k + d;
                if (i + SIDE <= side && d + SIDE <= depth) NAME(transpose)(from, columns, T + d * n + i, n);
                else
                    for (long r = 0; r < SIDE && d + r < depth; r++)
                        for (long l = 0; l < SIDE && i + l < side; l++) T[(d + r) * n + i + l] = from[l * columns + r];
            }
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
            for (long j = i / SIDE * SIDE; j < n; j += LANES) NAME(add)(depth, T + i, n, T + j, n, G + i * n + j, n);
    }
}

/* Y = QX of a wide matrix, XQ of a tall one, for a symmetric Q; return the sum of the squares of Y. */
static double NAME(apply)(const REAL *X, long rows, long columns, long n, const REAL *Q, REAL *T, REAL *Y) {
    long wide = rows <= columns, side = wide ? rows : columns, length = wide ? columns : rows;
    double squares = 0;
    for (long k = 0; k < length; k += SIDE) { /* SIDE columns of a wide Y, or rows of a tall Y */
        long depth = length - k < SIDE ? length - k : SIDE;
        for (long i = 0; i < side; i++) /* row i of T: the factor of Q_i */
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
                    sum += tile[r] * tile[r]; /* the padding is zero */
                    if (across >= LANES) *(NAME(lanes) *)(to + r * columns) = tile[r];
                    else for (long l = 0; l < across; l++) to[r * columns + l] = tile[r][l];
                }
                for (long l = 0; l < LANES; l++) squares += sum[l];
            }
    }
    return squares;
}

/* P = R⁻ᵀ for a block A = RᵀR of SIDE rows: the elimination that makes A upper triangular turns the identity into P. */
static void NAME(root)(REAL *A, REAL *P) {
    REAL least = sizeof(REAL) == 4 ? (REAL)1e-12 : (REAL)1e-30; /* pivots are at least c, except for rounding */
    memset(P, 0, SIDE * SIDE * sizeof(REAL));
    for (long r = 0; r < SIDE; r++) {
        REAL pivot = A[r * SIDE + r];
        REAL inverse = 1 / ROOT(pivot < least ? least : pivot);
        P[r * SIDE + r] = 1;
        for (long l = 0; l < SIDE; l++) A[r * SIDE + l] *= inverse, P[r * SIDE + l] *= inverse;
        for (long q = r + 1; q < SIDE; q++) {
            REAL f = A[r * SIDE + q];
            for (long l = 0; l < SIDE; l += LANES) {
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
static void NAME(eliminate)(long n, REAL *S, REAL *W) {
    REAL *V = W + SIDE * n, A[SIDE * SIDE], P[SIDE * SIDE];
    for (long k = 0; k < n; k += SIDE) {
        for (long r = 0; r < SIDE; r++) {
            memcpy(A + r * SIDE, S + (k + r) * n + k, SIDE * sizeof(REAL));
            memcpy(W + r * n, S + (k + r) * n, (size_t)n * sizeof(REAL));
        }
        NAME(root)(A, P);
        NAME(transpose)(P, SIDE, A, SIDE); /* a product needs the transpose */
        for (long r = 0; r < SIDE; r++) memset(S + (k + r) * n, 0, (size_t)n * sizeof(REAL));
        for (long i = 0; i < SIDE; i += TILE)
            for (long j = 0; j < n; j += LANES) NAME(add)(SIDE, A + i, SIDE, W + j, n, S + (k + i) * n + j, n);
        for (long r = 0; r < SIDE; r++) {
            memcpy(S + (k + r) * n + k, P + r * SIDE, SIDE * sizeof(REAL));
            for (long j = 0; j < n; j++) V[r * n + j] = -S[(k + r) * n + j];
        }
        for (long i = k + SIDE; i < n; i += TILE) {
            const REAL *factors = S + k * n + i;
            for (long j = 0; j < k + SIDE; j += LANES) NAME(add)(SIDE, factors, n, V + j, n, S + i * n + j, n);
            for (long j = i / SIDE * SIDE; j < n; j += LANES) NAME(add)(SIDE, factors, n, V + j, n, S + i * n + j, n);
        }
    }
}

/* ‖G‖_F of a symmetric matrix, or the smallest normal number if it is 0. */
static double NAME(size)(long n, const REAL *G) {
    double sums[SIDE] = {0}, size = 0, tiny = sizeof(REAL) == 4 ? 1.17549435e-38 : 2.2250738585072014e-308;
    for (long i = 0; i < n; i++)
        for (long j = i / SIDE * SIDE; j < n; j += SIDE) {
            const REAL *some = G + i * n + j;
            double times = j > i ? 2 : 1; /* entries above the diagonal count twice */
            for (long l = 0; l < SIDE; l++) sums[l] += times * (double)some[l] * (double)some[l];
        }
    for (long l = 0; l < SIDE; l++) size += sums[l];
    return sqrt(size) < tiny ? tiny : sqrt(size);
}

/* (w_0 I + Σ_j w_j (G/s + c_j I)⁻¹)/√s with s = ‖G‖_F and w ≥ 0, written to all of G. S and W are workspaces. */
static void NAME(resolvents)(long n, long poles, const double *w, const double *c, REAL *G, REAL *S, REAL *W) {
    long all = n * n;
    double size = NAME(size)(n, G);
    REAL inverse = (REAL)(1 / size), *total = S + all;
    memset(total, 0, (size_t)all * sizeof(REAL));
    for (long i = 0; i < n; i++) total[i * n + i] = (REAL)(w[0] / sqrt(size));
    for (long p = 0; p < poles; p++) {
        REAL weight = (REAL)sqrt(w[p + 1] / sqrt(size));
        for (long i = 0; i < n; i++)
            for (long j = 0; j < n; j++) S[i * n + j] = j < i / SIDE * SIDE ? 0 : inverse * G[i * n + j];
        for (long i = 0; i < n; i++) S[i * n + i] += (REAL)c[p];
        NAME(eliminate)(n, S, W);
        for (long i = 0; i < all; i++) S[i] *= weight;
        for (long i = 0; i < n; i += TILE)
            for (long j = i / SIDE * SIDE; j < n; j += LANES) {
                long first = j / SIDE * SIDE; /* M is zero above this row in these columns */
                NAME(add)(n - first, S + first * n + i, n, S + first * n + j, n, total + i * n + j, n);
            }
    }
    memcpy(G, total, (size_t)all * sizeof(REAL));
    for (long i = 0; i < n; i += SIDE)
        for (long j = i + SIDE; j < n; j += SIDE) NAME(transpose)(G + i * n + j, n, G + j * n + i, n);
}

/* y = D/rms(D) for tensors x of several blocks each, where D has h(σ) in place of the singular values σ of every block:
   h(σ) = w_0 σ + Σ_j w_j σ/(σ² + c_j), after division by ‖XXᵀ‖_F^½; 0 for x = 0.

   weights: poles + 1 for each tensor; shifts: poles for each. Returns 1 if memory cannot be allocated. */
int NAME(directions)(
    long count, const long *blocks, const long *rows, const long *columns, REAL **x, REAL **y, long poles,
    const double *weights, const double *shifts, int threads) {
    int failed = 0;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (count > 1)
    for (long m = 0; m < count; m++) {
        long side = rows[m] < columns[m] ? rows[m] : columns[m], n = padded(side), entries = rows[m] * columns[m];
        if (!entries) continue;
        REAL *G = malloc((size_t)(3 * n * n + n * DEPTH) * sizeof(REAL)), *S = G + n * n, *T = S + 2 * n * n;
        if (!G) {
            _Pragma("omp atomic write") failed = 1;
            continue;
        }
        double squares = 0;
        for (long b = 0; b < blocks[m]; b++) {
            const REAL *X = x[m] + b * entries;
            NAME(gram)(X, rows[m], columns[m], n, T, G);
            NAME(resolvents)(n, poles, weights + m * (poles + 1), shifts + m * poles, G, S, T);
            squares += NAME(apply)(X, rows[m], columns[m], n, G, T, y[m] + b * entries);
        }
        free(G);
        double length = sqrt(squares / (double)(blocks[m] * entries));
        REAL inverse = (REAL)(length > 0 ? 1 / length : 1);
        for (long i = 0; i < blocks[m] * entries; i++) y[m][i] *= inverse;
    }
    return failed;
}
#undef LANES
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif
