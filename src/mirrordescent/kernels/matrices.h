/* Functions of singular values by inverses of symmetric matrices, for matrices that fit into the nearer caches.

   A Gram matrix G = XXᵀ, and what becomes of G + cI on the way to its inverse, are symmetric: blocks of SIDE × SIDE on
   and above the diagonal are kept, what is below is not looked at. Matrices have sides that are multiples of SIDE; beside
   G are zeros, and beside inverses nothing but a diagonal, which is not looked at either. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifndef SIDE
#define SIDE 16
#define DEPTH 64 /* columns of X whose share of XXᵀ is added at a time; at least 2 SIDE */
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

/* C += AᵀB for a tile of C, with so many rows of A and B. */
static inline void NAME(add)(
    long depth, const REAL *A, long a_row, const REAL *B, long b_row, REAL *C, long c_row) {
    NAME(lanes) tile[TILE];
    for (int r = 0; r < TILE; r++) tile[r] = *(const NAME(lanes) *)(C + r * c_row);
    NAME(tile)(depth, A, a_row, B, b_row, tile);
    for (int r = 0; r < TILE; r++) *(NAME(lanes) *)(C + r * c_row) = tile[r];
}

/* Write the transpose of a SIDE × SIDE block, times α. */
static inline void NAME(transpose)(REAL alpha, const REAL *from, long from_row, REAL *to, long to_row) {
    for (long r = 0; r < SIDE; r++)
        for (long l = 0; l < SIDE; l++) to[r * to_row + l] = alpha * from[l * from_row + r];
}

/* Put `depth` columns of a wide X from k on, or rows of a tall one, into the rows of T, filled up with zeros. */
static void NAME(gather)(const REAL *X, long rows, long columns, long k, long depth, long n, REAL *T) {
    int wide = rows <= columns;
    long side = wide ? rows : columns;
    for (long d = 0; d < depth; d++) memset(T + d * n + side, 0, (size_t)(n - side) * sizeof(REAL));
    if (wide)
        for (long i = 0; i < side; i += SIDE)
            for (long d = 0; d < depth; d += SIDE) {
                const REAL *from = X + i * columns + k + d;
                if (i + SIDE <= side && d + SIDE <= depth) NAME(transpose)(1, from, columns, T + d * n + i, n);
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

/* P ← −P⁻¹ for a symmetric block of SIDE rows: each in turn is swept, as blocks are below. */
static void NAME(invert)(REAL *P) {
    REAL f[SIDE], v[SIDE];
    for (long k = 0; k < SIDE; k++) {
        REAL inverse = 1 / P[k * SIDE + k];
        for (long l = 0; l < SIDE; l++) f[l] = P[k * SIDE + l], v[l] = f[l] * inverse;
        f[k] -= 1, v[k] = 1 - inverse; /* with which row and column k become v, without being treated apart */
        for (long l = 0; l < SIDE; l += LANES) {
            NAME(lanes) some = *(const NAME(lanes) *)(v + l);
#pragma GCC unroll 16
            for (long r = 0; r < SIDE; r++) *(NAME(lanes) *)(P + r * SIDE + l) -= f[r] * some;
        }
        P[k * SIDE + k] = -inverse;
    }
}

/* S ← −S⁻¹ for a positive definite S (Gauss–Jordan). For one block of rows K after the other, with P = S_KK⁻¹,

       S_IJ ← S_IJ − S_IK P S_KJ,    S_KJ ← P S_KJ,    S_KK ← −P                        for all I, J other than K,

   which keeps S symmetric. Without exchanges of rows and without refinement, a matrix of low rank loses about two digits
   more than a Cholesky factorisation does. W, of 2 SIDE rows, is to work in: S_KJ for all J, and below it −P S_KJ. */
static void NAME(sweep)(long n, REAL *S, REAL *W) {
    REAL *V = W + SIDE * n, P[SIDE * SIDE];
    for (long k = 0; k < n; k += SIDE) {
        for (long j = 0; j < k; j += SIDE) NAME(transpose)(1, S + j * n + k, n, W + j, n);
        for (long r = 0; r < SIDE; r++) {
            memcpy(W + r * n + k, S + (k + r) * n + k, (size_t)(n - k) * sizeof(REAL));
            memcpy(P + r * SIDE, S + (k + r) * n + k, SIDE * sizeof(REAL));
        }
        NAME(invert)(P);
        memset(V, 0, (size_t)(SIDE * n) * sizeof(REAL));
        for (long i = 0; i < SIDE; i += TILE)
            for (long j = 0; j < n; j += LANES) NAME(add)(SIDE, P + i, SIDE, W + j, n, V + i * n + j, n);
        for (long i = 0; i < n; i += TILE)
            for (long j = i / SIDE * SIDE; j < n; j += LANES)
                if (i / SIDE * SIDE != k && j / SIDE * SIDE != k) NAME(add)(SIDE, W + i, n, V + j, n, S + i * n + j, n);
        for (long j = 0; j < k; j += SIDE) NAME(transpose)(-1, V + j, n, S + j * n + k, n);
        for (long r = 0; r < SIDE; r++) {
            memcpy(S + (k + r) * n + k, P + r * SIDE, SIDE * sizeof(REAL));
            for (long j = k + SIDE; j < n; j++) S[(k + r) * n + j] = -V[r * n + j];
        }
    }
}

/* ‖G‖_F of a symmetric matrix, or the least number where it is 0. */
static double NAME(size)(long n, const REAL *G) {
    double sums[SIDE] = {0}, size = 0, tiny = sizeof(REAL) == 4 ? 1.17549435e-38 : 2.2250738585072014e-308;
    for (long i = 0; i < n; i++)
        for (long j = i / SIDE * SIDE; j < n; j += SIDE) {
            const REAL *some = G + i * n + j;
            double times = j > i ? 2 : 1; /* what is above the diagonal stands for what is below */
            for (long l = 0; l < SIDE; l++) sums[l] += times * (double)some[l] * (double)some[l];
        }
    for (long l = 0; l < SIDE; l++) size += sums[l];
    return sqrt(size) < tiny ? tiny : sqrt(size);
}

/* (w_0 I + Σ_j w_j (G/s + c_j I)⁻¹)/√s with s = ‖G‖_F, where G is, the whole of it. S and W are to work in. */
static void NAME(resolvents)(long n, long poles, const double *w, const double *c, REAL *G, REAL *S, REAL *W) {
    long all = n * n;
    double size = NAME(size)(n, G);
    REAL inverse = (REAL)(1 / size), root = (REAL)(1 / sqrt(size)), *total = S + all;
    memset(total, 0, (size_t)all * sizeof(REAL));
    for (long i = 0; i < n; i++) total[i * n + i] = (REAL)w[0] * root;
    for (long p = 0; p < poles; p++) {
        for (long i = 0; i < all; i++) S[i] = inverse * G[i];
        for (long i = 0; i < n; i++) S[i * n + i] += (REAL)c[p];
        NAME(sweep)(n, S, W);
        REAL weight = (REAL)w[p + 1] * root;
        for (long i = 0; i < all; i++) total[i] -= weight * S[i];
    }
    memcpy(G, total, (size_t)all * sizeof(REAL));
    for (long i = 0; i < n; i += SIDE)
        for (long j = i + SIDE; j < n; j += SIDE) NAME(transpose)(1, G + i * n + j, n, G + j * n + i, n);
}

/* y = D/rms(D) for tensors x of so many blocks each, where D has h(σ) in the place of every block's singular values σ:
   h(σ) = w_0 σ + Σ_j w_j σ/(σ² + c_j), after division by ‖XXᵀ‖_F^½; 0 for x = 0.

   weights: poles + 1 for each tensor; shifts: poles for each. Returns 1 if there is no memory. */
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
            failed = 1;
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
