/* Functions of singular values by inverses of symmetric matrices.

   A Gram matrix G = XXᵀ and inverses of G + cI are symmetric: only blocks of SIDE × SIDE on and above the diagonal are
   computed. Sides are padded to multiples of SIDE. The padding of G is zero; that of inverses is a diagonal, which is
   not read. Blocks are stored one after the other, so that the rows of a block are neighbours in the cache.

   Products are sums over panels of at most DEPTH rows, AᵀB. A packed panel consists of tiles of SIDE columns, each of
   them contiguous: row k of tile t begins at (t·depth + k)·SIDE. Rows of tiles of a result are computed by groups of
   GROUP. The groups are distributed over the threads; no number depends on how many there are. */
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
#define DEPTH 128      /* rows of a panel; a multiple of SIDE·GROUP */
#define GROUP 4        /* tiles whose panel is in the first cache */

#define CHUNK 512      /* columns of a wide result, or rows of a tall one, that a thread computes */
#define LARGE 512      /* smaller side from which on the threads share the work on one matrix */
#ifdef __AVX512F__
#define BYTES 64
#define TILE 16 /* rows of a product that are computed at once, one register each */
#else
#define BYTES 32
#define TILE 8
#endif
static int64_t padded(int64_t n) { return (n + SIDE - 1) / SIDE * SIDE; }
static int64_t groups(int64_t tiles) { return (tiles + GROUP - 1) / GROUP; }

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

/* C += f AᵀB for a tile of A and a tile of B, both packed. */
static inline void NAME(block)(int64_t depth, const REAL *A, const REAL *B, REAL f, REAL *C, int64_t c_row) {
    for (int64_t i = 0; i < SIDE; i += TILE)
        for (int64_t j = 0; j < SIDE; j += LANES) {
            NAME(lanes) sums[TILE] = {{0}};
            NAME(tile)(depth, A + i, SIDE, B + j, SIDE, sums);
            for (int r = 0; r < TILE; r++) *(NAME(lanes) *)(C + (i + r) * c_row + j) += f * sums[r];
        }
}

/* Pack one tile of a panel: columns from `column` on of `depth` rows of a matrix with `columns` columns. */
static void NAME(pack)(const REAL *from, int64_t row, int64_t depth, int64_t column, int64_t columns, REAL *tile) {
    int64_t across = columns - column < SIDE ? columns - column : SIDE;
    if (across < SIDE) memset(tile, 0, (size_t)(depth * SIDE) * sizeof(REAL));
    for (int64_t k = 0; k < depth; k++) {
        if (across == SIDE) memcpy(tile + k * SIDE, from + k * row + column, SIDE * sizeof(REAL));
        else for (int64_t l = 0; l < across; l++) tile[k * SIDE + l] = from[k * row + column + l];
    }
}

/* Pack one tile of the transpose: rows from `first` on of `rows` rows, of which `depth` columns count. */
static void NAME(pack_transposed)(const REAL *from, int64_t row, int64_t depth, int64_t first, int64_t rows, REAL *tile) {
    int64_t down = rows - first < SIDE ? rows - first : SIDE, k = 0;
    from += first * row;
    if (down == SIDE) for (; k + SIDE <= depth; k += SIDE) NAME(transpose)(from + k, row, tile + k * SIDE, SIDE);
    for (; k < depth; k++)
        for (int64_t l = 0; l < SIDE; l++) tile[k * SIDE + l] = l < down ? from[l * row + k] : 0;
}

/* The work on one symmetric matrix of `tiles` × `tiles` blocks. */
typedef struct {
    int64_t tiles, depth, begin, end;
    const REAL *X;
    int64_t rows, columns;
    const REAL *D;      /* the block of the diagonal, after elimination, and its inverse root as a packed panel */
    REAL *roots, *G, *S, *total, *panel;
    REAL weight, scale, shift;
} NAME(matrix_work);

/* The number of the first entry of block (i, j). */
static inline int64_t NAME(at)(const NAME(matrix_work) *w, int64_t i, int64_t j) { return (i * w->tiles + j) * SIDE * SIDE; }

/* C_ij += f P_iᵀP_j for tiles i and j, where P is the packed panel, whose first `zeros` rows are zero in one of them. */
static inline void NAME(add_pair)(const NAME(matrix_work) *w, int64_t i, int64_t j, int64_t zeros, REAL f, REAL *C) {
    const REAL *A = w->panel + i * w->depth * SIDE, *B = w->panel + j * w->depth * SIDE;
    NAME(block)(w->depth - zeros, A + zeros * SIDE, B + zeros * SIDE, f, C + NAME(at)(w, i, j), SIDE);
}

/* C_ij += f P_iᵀP_j for the tiles i of a group and i ≤ j < end. */
static void NAME(add_symmetric)(const NAME(matrix_work) *w, int64_t group, int64_t end, REAL f, REAL *C) {
    int64_t first = group * GROUP;
    for (int64_t j = first; j < end; j++)
        for (int64_t i = first; i < first + GROUP && i <= j; i++) NAME(add_pair)(w, i, j, 0, f, C);
}

/* Pack tile t of columns of a wide X, or rows of a tall X, from `begin` on. */
static int NAME(pack_unit)(const void *work, int64_t t) {
    const NAME(matrix_work) *w = work;
    REAL *tile = w->panel + t * w->depth * SIDE;
    if (w->rows <= w->columns) NAME(pack_transposed)(w->X + w->begin, w->columns, w->depth, t * SIDE, w->rows, tile);
    else NAME(pack)(w->X + w->begin * w->columns, w->columns, w->depth, t * SIDE, w->columns, tile);
    return 0;
}

static int NAME(gram_unit)(const void *work, int64_t group) {
    const NAME(matrix_work) *w = work;
    NAME(add_symmetric)(w, group, w->tiles, 1, w->G);
    return 0;
}

/* G = XXᵀ of a wide matrix, XᵀX of a tall one. */
static void NAME(gram)(NAME(matrix_work) *w, int threads) {
    int64_t length = w->rows <= w->columns ? w->columns : w->rows;
    memset(w->G, 0, (size_t)NAME(at)(w, w->tiles, 0) * sizeof(REAL));
    for (w->begin = 0; w->begin < length; w->begin += DEPTH) {
        w->depth = length - w->begin < DEPTH ? length - w->begin : DEPTH;
        for_each(w->tiles, NAME(pack_unit), w, threads);
        for_each(groups(w->tiles), NAME(gram_unit), w, threads);
    }
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
static double NAME(size)(const NAME(matrix_work) *w) {
    double size = 0, tiny = sizeof(REAL) == 4 ? 1.17549435e-38 : 2.2250738585072014e-308;
    for (int64_t i = 0; i < w->tiles; i++)
        for (int64_t j = i; j < w->tiles; j++) {
            const REAL *some = w->G + NAME(at)(w, i, j);
            double sums[SIDE] = {0}, times = j > i ? 2 : 1; /* entries above the diagonal count twice */
            for (int64_t r = 0; r < SIDE; r++)
                for (int64_t l = 0; l < SIDE; l++) sums[l] += (double)some[r * SIDE + l] * (double)some[r * SIDE + l];
            for (int64_t l = 0; l < SIDE; l++) size += times * sums[l];
        }
    return sqrt(size) < tiny ? tiny : sqrt(size);
}

/* S = scale·G + shift·I on and above the diagonal, 0 below, for a group of rows of blocks. */
static int NAME(shift_unit)(const void *work, int64_t group) {
    const NAME(matrix_work) *w = work;
    for (int64_t i = group * GROUP; i < w->tiles && i < (group + 1) * GROUP; i++) {
        REAL *to = w->S + NAME(at)(w, i, 0);
        const REAL *from = w->G + NAME(at)(w, i, 0);
        int64_t diagonal = i * SIDE * SIDE;
        memset(to, 0, (size_t)diagonal * sizeof(REAL));
        for (int64_t e = diagonal; e < w->tiles * SIDE * SIDE; e++) to[e] = w->scale * from[e];
        for (int64_t r = 0; r < SIDE; r++) to[diagonal + r * SIDE + r] += w->shift;
    }
    return 0;
}

/* Pack tile j of the rows from begin to end of S. */
static void NAME(pack_rows)(const NAME(matrix_work) *w, int64_t j, REAL *tile) {
    for (int64_t k = w->begin; k < w->end; k++, tile += SIDE * SIDE)
        memcpy(tile, w->S + NAME(at)(w, k, j), SIDE * SIDE * sizeof(REAL));
}

/* Tile j of the rows from begin to end, multiplied by the inverse root of their block of the diagonal. */
static int NAME(rows_unit)(const void *work, int64_t j) {
    const NAME(matrix_work) *w = work;
    int64_t depth = w->depth, own = j - w->begin;
    REAL *to = w->panel + j * depth * SIDE, rows[DEPTH * SIDE];
    memset(to, 0, (size_t)(depth * SIDE) * sizeof(REAL));
    if (w->begin <= j && j < w->end) { /* the identity was there before */
        for (int64_t k = own * SIDE; k < depth; k++) memcpy(to + k * SIDE, w->D + k * depth + own * SIDE, SIDE * sizeof(REAL));
        return 0;
    }
    NAME(pack_rows)(w, j, rows);
    for (int64_t i = 0; i < depth / SIDE; i++) /* the root is triangular */
        NAME(block)((i + 1) * SIDE, w->roots + i * depth * SIDE, rows, 1, to + i * SIDE * SIDE, SIDE);
    return 0;
}

/* The rest of the elimination of the rows from begin to end. Before `end`, rows of the inverse root are complete: their
   part of the inverse is added to the total. */
static int NAME(update_unit)(const void *work, int64_t group) {
    const NAME(matrix_work) *w = work;
    int64_t first = group * GROUP, complete = first < w->end;
    for (int64_t j = complete ? first : 0; j < w->end; j++) {
        int64_t zeros = j < w->begin ? 0 : (j - w->begin) * SIDE;
        for (int64_t i = first; i < first + GROUP && i < w->tiles && (i <= j || !complete); i++)
            NAME(add_pair)(w, i, j, zeros, complete ? w->weight : -1, complete ? w->total : w->S);
    }
    if (!complete) NAME(add_symmetric)(w, group, w->tiles, -1, w->S);
    return 0;
}

/* total += weight·S⁻¹ on and above the diagonal, for S = RᵀR, which is positive definite: S⁻¹ = MᵀM with M = R⁻ᵀ.

   The elimination that makes S upper triangular turns the identity into M. It is applied to both, one block of DEPTH rows
   after the other. Changed parts of the identity overwrite parts of S that are no longer needed. */
static void NAME(add_inverse)(NAME(matrix_work) *w, REAL *D, REAL *W, int threads) {
    int64_t step = DEPTH / SIDE;
    for (w->begin = 0; w->begin < w->tiles; w->begin += step) {
        w->end = w->tiles - w->begin < step ? w->tiles : w->begin + step;
        int64_t depth = w->depth = (w->end - w->begin) * SIDE;
        for (int64_t j = w->begin; j < w->end; j++) {
            NAME(pack_rows)(w, j, W);
            for (int64_t k = 0; k < depth; k++)
                memcpy(D + k * depth + (j - w->begin) * SIDE, W + k * SIDE, SIDE * sizeof(REAL));
        }
        NAME(eliminate)(depth, D, W);
        for (int64_t i = 0; i < depth; i += SIDE) NAME(pack_transposed)(D, depth, i + SIDE, i, depth, w->roots + i * depth);
        for_each(w->tiles, NAME(rows_unit), w, threads);
        for_each(groups(w->tiles), NAME(update_unit), w, threads);
    }
}

/* total = (w_0 I + Σ_j w_j (G/s + c_j I)⁻¹)/√s with s = ‖G‖_F and w ≥ 0, on and above the diagonal. */
static void NAME(resolvents)(NAME(matrix_work) *w, int64_t poles, const double *weights, const double *shifts, REAL *D, REAL *W,
                             int threads) {
    double size = NAME(size)(w);
    memset(w->total, 0, (size_t)NAME(at)(w, w->tiles, 0) * sizeof(REAL));
    for (int64_t i = 0; i < w->tiles; i++)
        for (int64_t r = 0; r < SIDE; r++) w->total[NAME(at)(w, i, i) + r * SIDE + r] = (REAL)(weights[0] / sqrt(size));
    w->scale = (REAL)(1 / size);
    for (int64_t p = 0; p < poles; p++) {
        w->shift = (REAL)shifts[p];
        w->weight = (REAL)(weights[p + 1] / sqrt(size));
        for_each(groups(w->tiles), NAME(shift_unit), w, threads);
        NAME(add_inverse)(w, D, W, threads);
    }
}

/* Pack tile q of some rows of the symmetric total, from block k on. */
static void NAME(pack_total)(const NAME(matrix_work) *w, int64_t k, int64_t depth, int64_t q, REAL *tile) {
    for (int64_t last = k + (depth + SIDE - 1) / SIDE; k < last; k++, tile += SIDE * SIDE) {
        const REAL *from = w->total + (k <= q ? NAME(at)(w, k, q) : NAME(at)(w, q, k));
        if (k <= q) memcpy(tile, from, SIDE * SIDE * sizeof(REAL));
        else NAME(transpose)(from, SIDE, tile, SIDE);
    }
}

/* Y = QX of a wide matrix, XQ of a tall one, for the symmetric total Q; Y is zero before. */
typedef struct {
    const NAME(matrix_work) *matrix;
    REAL *y;
} NAME(apply_work);

/* C += AᵀB for packed tiles; only down × across entries of C exist. */
static inline void NAME(clipped_block)(int64_t depth, const REAL *A, const REAL *B, REAL *C, int64_t c_row, int64_t down,
                                       int64_t across) {
    if (down >= SIDE && across >= SIDE) {
        NAME(block)(depth, A, B, 1, C, c_row);
        return;
    }
    REAL whole[SIDE * SIDE] = {0};
    NAME(block)(depth, A, B, 1, whole, SIDE);
    for (int64_t i = 0; i < SIDE && i < down; i++)
        for (int64_t j = 0; j < SIDE && j < across; j++) C[i * c_row + j] += whole[i * SIDE + j];
}

/* A chunk of columns of a wide result, or of rows of a tall one. */
static int NAME(apply_unit)(const void *work, int64_t chunk) {
    const NAME(apply_work) *all = work;
    const NAME(matrix_work) *w = all->matrix;
    int64_t wide = w->rows <= w->columns, side = wide ? w->rows : w->columns;
    int64_t length = wide ? w->columns : w->rows, from = chunk * CHUNK, columns = w->columns;
    int64_t count = length - from < CHUNK ? length - from : CHUNK, tiles = (count + SIDE - 1) / SIDE;
    REAL *Q = malloc((size_t)((w->tiles + tiles) * SIDE * DEPTH) * sizeof(REAL)), *X = Q + w->tiles * SIDE * DEPTH;
    if (!Q) return 1;
    for (int64_t k = 0; k < side; k += DEPTH) {
        int64_t depth = side - k < DEPTH ? side - k : DEPTH, size = depth * SIDE, step = padded(depth) * SIDE;
        for (int64_t q = 0; q < w->tiles; q++) NAME(pack_total)(w, k / SIDE, depth, q, Q + q * step);
        for (int64_t t = 0; t < tiles; t++) {
            if (wide) NAME(pack)(w->X + k * columns + from, columns, depth, t * SIDE, count, X + t * size);
            else NAME(pack_transposed)(w->X + from * columns + k, columns, depth, t * SIDE, count, X + t * size);
        }
        for (int64_t first = 0; first < w->tiles; first += GROUP)
            for (int64_t t = 0; t < tiles; t++)
                for (int64_t q = first; q < w->tiles && q < first + GROUP; q++) {
                    const REAL *A = Q + q * step, *B = X + t * size;
                    int64_t in_side = side - q * SIDE, in_chunk = count - t * SIDE;
                    REAL *to = all->y + (wide ? q * SIDE * columns + from + t * SIDE : (from + t * SIDE) * columns + q * SIDE);
                    if (wide) NAME(clipped_block)(depth, A, B, to, columns, in_side, in_chunk);
                    else NAME(clipped_block)(depth, B, A, to, columns, in_chunk, in_side);
                }
    }
    free(Q);
    return 0;
}

/* The sum of the squares of n numbers. */
static double NAME(sum_of_squares)(int64_t n, const REAL *y) {
    double total = 0;
    int64_t j = 0;
    for (; j + 64 * LANES <= n; j += 64 * LANES) {
        NAME(lanes) sums[4] = {{0}};
        for (int64_t l = 0; l < 64 * LANES; l += 4 * LANES)
            for (int s = 0; s < 4; s++) {
                NAME(lanes) some = *(const NAME(lanes) *)(y + j + l + s * LANES);
                sums[s] += some * some;
            }
        for (int64_t l = 0; l < LANES; l++) total += (double)sums[0][l] + (double)sums[1][l] + (double)sums[2][l] + (double)sums[3][l];
    }
    for (; j < n; j++) total += (double)y[j] * (double)y[j];
    return total;
}

/* Arguments of directions. */
typedef struct {
    const int64_t *blocks, *rows, *columns;
    REAL **x, **y;
    int64_t poles;
    const double *weights, *shifts;
} NAME(direction_work);

/* Whether all threads work on the matrices of tensor m together. */
static int NAME(is_large)(const NAME(direction_work) *w, int64_t m) {
    return (w->rows[m] < w->columns[m] ? w->rows[m] : w->columns[m]) >= LARGE;
}

/* The direction of tensor m. */
static int NAME(direction)(const NAME(direction_work) *w, int64_t m, int threads) {
    int64_t rows = w->rows[m], columns = w->columns[m], blocks = w->blocks[m], poles = w->poles;
    int64_t n = padded(rows < columns ? rows : columns), entries = rows * columns, failed = 0;
    int64_t largest = n < DEPTH ? n : DEPTH; /* rows of a panel in an elimination */
    if (!entries) return 0;
    REAL *G = malloc((size_t)(3 * n * n + n * DEPTH + largest * (2 * largest + 2 * SIDE)) * sizeof(REAL)), *y = w->y[m];
    if (!G) return 1;
    REAL *panel = G + 3 * n * n, *D = panel + n * DEPTH, *W = D + 2 * largest * largest;
    NAME(matrix_work) matrix = {.tiles = n / SIDE, .rows = rows, .columns = columns, .D = D, .roots = D + largest * largest, .G = G,
                                .S = G + n * n, .total = G + 2 * n * n, .panel = panel};
    memset(y, 0, (size_t)(blocks * entries) * sizeof(REAL));
    for (int64_t b = 0; b < blocks; b++) {
        matrix.X = w->x[m] + b * entries;
        NAME(gram)(&matrix, threads);
        NAME(resolvents)(&matrix, poles, w->weights + m * (poles + 1), w->shifts + m * poles, D, W, threads);
        NAME(apply_work) apply = {&matrix, y + b * entries};
        int64_t length = rows <= columns ? columns : rows;
        failed |= for_each((length + CHUNK - 1) / CHUNK, NAME(apply_unit), &apply, threads);
    }
    free(G);
    double length = sqrt(NAME(sum_of_squares)(blocks * entries, y) / (double)(blocks * entries));
    REAL inverse = (REAL)(length > 0 ? 1 / length : 1);
    for (int64_t i = 0; i < blocks * entries; i++) y[i] *= inverse;
    return failed != 0;
}

static int NAME(small_direction)(const void *work, int64_t m) {
    const NAME(direction_work) *w = work;
    return NAME(is_large)(w, m) ? 0 : NAME(direction)(w, m, 1);
}

/* y = D/rms(D) for tensors x of several blocks each, where D has h(σ) in place of the singular values σ of every block:
   h(σ) = w_0 σ + Σ_j w_j σ/(σ² + c_j), after division by ‖XXᵀ‖_F^½; 0 for x = 0.

   weights: poles + 1 for each tensor; shifts: poles for each. Returns 1 if memory cannot be allocated. */
EXPORT int NAME(directions)(int64_t count, const int64_t *blocks, const int64_t *rows, const int64_t *columns, REAL **x,
                            REAL **y, int64_t poles, const double *weights, const double *shifts, int threads) {
    NAME(direction_work) work = {blocks, rows, columns, x, y, poles, weights, shifts};
    int failed = for_each(count, NAME(small_direction), &work, threads);
    for (int64_t m = 0; m < count; m++)
        if (NAME(is_large)(&work, m)) failed |= NAME(direction)(&work, m, threads);
    return failed;
}
#undef LANES
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC pop_options
#endif
