/* Directions of elementwise powers: y = s sign(x)|x|^e, where s makes the mean square of the entries of y 1. Pieces and
   threads are those of optimiser.h. Sums are taken by pieces, so they do not depend on the number of threads. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifndef POWER_LANES
#define POWER_LANES 16
#endif
typedef __typeof__(_Generic((REAL)0, float: (int32_t)0, double: (int64_t)0)) NAME(whole);

/* a^e for a ≥ 0: 2^(e log2 a), in operations that compilers vectorise. Subnormal a or a^e become 0, and overflows become infinite.

   log2 of the mantissa m in [√½, √2) is the series of artanh((m − 1)/(m + 1)); 2 to a fraction is the series of exp. */
static inline __attribute__((always_inline)) REAL NAME(power)(REAL a, REAL e) {
    const int single = sizeof(REAL) == 4, digits = single ? 23 : 52, terms = single ? 5 : 11, degree = single ? 7 : 13;
    const NAME(whole) bias = single ? 127 : 1023, one = bias << digits, fraction = ((NAME(whole))1 << digits) - 1;
    NAME(whole) bits, exponent;
    memcpy(&bits, &a, sizeof a);
    exponent = (bits >> digits) - bias;
    bits = (bits & fraction) | one;
    REAL m;
    memcpy(&m, &bits, sizeof m);
    int large = m > (REAL)1.4142135623730951;
    m = large ? m / 2 : m;
    REAL s = (m - 1) / (m + 1), square = s * s, sum = 0;
    UNROLL(16)
    for (int k = terms; k--;) sum = sum * square + (REAL)1 / (REAL)(2 * k + 1);
    REAL z = e * ((REAL)exponent + (REAL)large + (REAL)2.8853900817779268 * s * sum);
    const REAL rounder = single ? (REAL)12582912 : (REAL)6755399441055744; /* 1.5 · 2^digits: adding it rounds to an integer */
    int small = a < (single ? (REAL)FLT_MIN : (REAL)DBL_MIN) || z < (REAL)(1 - bias), far = z >= (REAL)bias + (REAL)0.5;
    z = small || far ? 0 : z;
    REAL near = (z + rounder) - rounder, rest = (z - near) * (REAL)0.6931471805599453, value = 1;
    UNROLL(16)
    for (int k = degree; k; k--) value = 1 + value * (rest * ((REAL)1 / (REAL)k));
    bits = ((NAME(whole))near + bias) << digits;
    REAL scale;
    memcpy(&scale, &bits, sizeof scale);
    return far ? (REAL)INFINITY : small ? 0 : value * scale;
}

/* Σ x². */
static inline double NAME(squares)(int64_t n, const REAL *x) {
    double sums[POWER_LANES] = {0}, total = 0;
    int64_t j = 0;
    for (; j + POWER_LANES <= n; j += POWER_LANES)
        for (int64_t l = 0; l < POWER_LANES; l++) sums[l] += (double)x[j + l] * (double)x[j + l];
    for (; j < n; j++) sums[0] += (double)x[j] * (double)x[j];
    for (int64_t l = 0; l < POWER_LANES; l++) total += sums[l];
    return total;
}

/* y = sign(x)|fx|^e; return Σ y², or NaN if f is NaN. */
static inline double NAME(raise)(int64_t n, const REAL *restrict x, REAL *restrict y, REAL f, REAL e) {
    INTERLEAVE(2)
    for (int64_t j = 0; j < n; j++) {
        REAL a = x[j] < 0 ? -x[j] : x[j], raised = NAME(power)(f * a, e);
        y[j] = x[j] < 0 ? -raised : raised;
    }
    return NAME(squares)(n, y) + 0 * (double)f;
}

static inline void NAME(shrink)(int64_t n, REAL *y, REAL f) {
    for (int64_t j = 0; j < n; j++) y[j] *= f;
}

/* Reciprocal root mean squares of tensors, from the sums of their pieces: 1 for zeros, NaN for values that are not finite,
   and at most the largest number. The latter makes subnormal numbers normal, and the next pass completes the scaling. */
static void NAME(inverse_roots)(int64_t count, const int64_t *sizes, const double *sums, REAL *factors) {
    for (int64_t i = 0, piece = 0; i < count; i++) {
        double total = 0;
        for (int64_t from = 0; from < sizes[i]; from += PIECE) total += sums[piece++];
        double inverse = 1 / sqrt(total / (double)sizes[i]), most = sizeof(REAL) == 4 ? FLT_MAX : DBL_MAX;
        factors[i] = (REAL)(total == 0 ? 1 : !isfinite(total) ? NAN : inverse < most ? inverse : most);
    }
}

/* Arguments of powers. sums has a number for every piece, factors one for every tensor. */
typedef struct {
    REAL **x, **y, *factors, exponent;
    double *sums;
} NAME(power_work);

PIECES_OF(square_piece) {
    const NAME(power_work) *w = work;
    w->sums[piece] = NAME(squares)(to - from, w->x[i] + from);
}

PIECES_OF(raise_piece) {
    const NAME(power_work) *w = work;
    w->sums[piece] = NAME(raise)(to - from, w->x[i] + from, w->y[i] + from, w->factors[i], w->exponent);
}

PIECES_OF(shrink_piece) {
    const NAME(power_work) *w = work;
    (void)piece;
    NAME(shrink)(to - from, w->y[i] + from, w->factors[i]);
}

/* Directions of tensors. Returns 1 if memory cannot be allocated. */
EXPORT int NAME(powers)(int64_t count, const int64_t *sizes, REAL **x, REAL **y, double exponent, int threads) {
    int64_t pieces = 0;
    for (int64_t i = 0; i < count; i++) pieces += (sizes[i] + PIECE - 1) / PIECE;
    double *sums = malloc((size_t)(pieces + 1) * sizeof(double));
    REAL *factors = malloc((size_t)count * sizeof(REAL));
    NAME(power_work) work = {x, y, factors, (REAL)exponent, sums};
    int failed = !sums || !factors;
    if (!failed) {
        for_pieces(count, sizes, NAME(square_piece), &work, threads);
        NAME(inverse_roots)(count, sizes, sums, factors);
        for_pieces(count, sizes, NAME(raise_piece), &work, threads);
        NAME(inverse_roots)(count, sizes, sums, factors);
        for_pieces(count, sizes, NAME(shrink_piece), &work, threads);
    }
    free(sums);
    free(factors);
    return failed;
}
