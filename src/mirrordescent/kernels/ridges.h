/* Sums of profiles of the responses of a filter bank, and their gradients.

   Rows of responses are computed one after the other, and stay in the cache. A row of all filters is computed in tiles of
   columns. φ′ of a tile is then spread over the rows of the gradient below. The gradient of an image is computed in bands of
   rows. Responses above a band that reach into it are computed again, so every row of the gradient is the same sum in the
   same order for every number of threads. */
#ifdef __clang__ /* multiplications and additions are fused */
#pragma STDC FP_CONTRACT ON
#else
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif
#include "pool.h"
#include "portable.h"
#include <stdint.h>
#include <string.h>
#ifndef RIDGE_TILE
#define RIDGE_TILE 192       /* columns of a tile, a multiple of RIDGE_ACROSS registers */
#define RIDGE_ACROSS 3       /* registers of neighbouring columns that are computed at once */
#define RIDGE_SHORTEST 16    /* rows of a band at least */
#define RIDGE_WORTHWHILE 2e6 /* multiplications that are worth a thread */
#if defined(__AVX512F__)
#define RIDGE_BYTES 64
#define RIDGE_SUMS 8 /* sums that are computed at once: RIDGE_SUMS · RIDGE_ACROSS registers */
#elif defined(__AVX__)
#define RIDGE_BYTES 32
#define RIDGE_SUMS 4
#elif defined(__aarch64__)
#define RIDGE_BYTES 16
#define RIDGE_SUMS 8
#else
#define RIDGE_BYTES 16
#define RIDGE_SUMS 4
#endif
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* With 16 registers, all of them in use, clang copies sums from register to register. This keeps a sum where it is. */
#if defined(__clang__) && defined(__AVX__) && !defined(__AVX512F__)
#define STAY(sum) __asm__("" : "+x"(sum))
#else
#define STAY(sum)
#endif

/* The least multiple of `of` that is at least n. */
static int64_t rounded_up(int64_t n, int64_t of) { return (n + of - 1) / of * of; }
#endif
#define RIDGE_LANES ((int64_t)(RIDGE_BYTES / sizeof(REAL)))
typedef REAL NAME(ridge_lanes) __attribute__((vector_size(RIDGE_BYTES), aligned(sizeof(REAL)), may_alias));

/* The sums of shifted rows that are computed at once. */
typedef struct {
    const REAL *from; /* rows, with `taps` shifts each */
    int64_t rows, pitch, taps;
    const REAL *weights; /* a weight for every row, shift and sum; those of the next shift are `stride` further */
    int64_t stride;
} NAME(ridge_sum);

/* to[m][j] (+)= Σ_row Σ_tap weights[row, tap, m] from[row][j + tap], for m < sums and `across` registers j. */
ALWAYS_INLINE void NAME(ridge_block)(const NAME(ridge_sum) *s, const REAL *from, const REAL *weights, REAL *const *to,
                                     int64_t at, int add, int sums, int across) {
    NAME(ridge_lanes) total[RIDGE_SUMS][RIDGE_ACROSS];
    UNROLL(8)
    for (int m = 0; m < sums; m++)
        UNROLL(3)
        for (int a = 0; a < across; a++) total[m][a] = (NAME(ridge_lanes)){0};
    for (int64_t row = 0; row < s->rows; row++, from += s->pitch) {
        for (int64_t tap = 0; tap < s->taps; tap++, weights += s->stride) {
            NAME(ridge_lanes) x[RIDGE_ACROSS];
            UNROLL(3)
            for (int a = 0; a < across; a++) x[a] = *(const NAME(ridge_lanes) *)(from + tap + a * RIDGE_LANES);
            UNROLL(8)
            for (int m = 0; m < sums; m++)
                UNROLL(3)
                for (int a = 0; a < across; a++) {
                    total[m][a] += weights[m] * x[a];
                    STAY(total[m][a]);
                }
        }
    }
    UNROLL(8)
    for (int m = 0; m < sums; m++)
        UNROLL(3)
        for (int a = 0; a < across; a++) {
            NAME(ridge_lanes) *there = (NAME(ridge_lanes) *)(to[m] + at + a * RIDGE_LANES);
            if (add) *there += total[m][a];
            else *there = total[m][a];
        }
}

/* The same, for a number of registers that is not known to the compiler. */
ALWAYS_INLINE void NAME(ridge_columns)(const NAME(ridge_sum) *s, const REAL *weights, REAL *const *to, int64_t at, int add,
                                       int sums, int64_t across) {
    if (across == 3) NAME(ridge_block)(s, s->from + at, weights, to, at, add, sums, 3);
    else if (across == 2) NAME(ridge_block)(s, s->from + at, weights, to, at, add, sums, 2);
    else NAME(ridge_block)(s, s->from + at, weights, to, at, add, sums, 1);
}

/* The same for [0, columns), where columns is a multiple of RIDGE_LANES, and any number of sums up to RIDGE_SUMS. */
static void NAME(ridge_sums)(const NAME(ridge_sum) *s, const REAL *weights, REAL *const *to, int64_t columns, int add,
                             int64_t sums) {
    int64_t registers = columns / RIDGE_LANES, blocks = (registers + RIDGE_ACROSS - 1) / RIDGE_ACROSS;
    for (int64_t block = 0; block < blocks; block++) {
        int64_t first = registers * block / blocks, across = registers * (block + 1) / blocks - first;
        int64_t at = first * RIDGE_LANES;
        switch (sums) {
        case 1: NAME(ridge_columns)(s, weights, to, at, add, 1, across); break;
        case 2: NAME(ridge_columns)(s, weights, to, at, add, 2, across); break;
        case 3: NAME(ridge_columns)(s, weights, to, at, add, 3, across); break;
        case 4: NAME(ridge_columns)(s, weights, to, at, add, 4, across); break;
#if RIDGE_SUMS == 8
        case 5: NAME(ridge_columns)(s, weights, to, at, add, 5, across); break;
        case 6: NAME(ridge_columns)(s, weights, to, at, add, 6, across); break;
        case 7: NAME(ridge_columns)(s, weights, to, at, add, 7, across); break;
        case 8: NAME(ridge_columns)(s, weights, to, at, add, 8, across); break;
#endif
        }
    }
}

/* u ← φ′(u) = sign(u) Σ_j c_j min(|u|, b_j). A NaN stays a NaN. */
ALWAYS_INLINE void NAME(ridge_slopes)(REAL *u, int64_t count, const REAL *b, const REAL *c, int64_t pieces) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        REAL size = u[i] < 0 ? -u[i] : u[i], sum = 0;
        for (int64_t j = 0; j < pieces; j++) sum += c[j] * (b[j] < size ? b[j] : size);
        u[i] = u[i] < 0 ? -sum : sum;
    }
}

/* Add Σ φ(u) and Σ |φ(u)| to sums, where φ(u) = |u| Σ_j c_j t_j − Σ_j c_j t_j²/2 with t_j = min(|u|, b_j). If `slopes`, also
   u ← φ′(u), as in ridge_slopes. */
ALWAYS_INLINE void NAME(ridge_values)(
    REAL *u, int64_t count, const REAL *b, const REAL *c, int64_t pieces, double *sums, int slopes) {
    double total = 0, sizes = 0;
#pragma omp simd reduction(+ : total, sizes)
    for (int64_t i = 0; i < count; i++) {
        REAL size = u[i] < 0 ? -u[i] : u[i], slope = 0, square = 0;
        for (int64_t j = 0; j < pieces; j++) {
            REAL t = b[j] < size ? b[j] : size;
            slope += c[j] * t;        /* rounded as in ridge_slopes */
            square += c[j] * (t * t);
        }
        REAL value = size * slope - square / 2;
        if (slopes) u[i] = u[i] < 0 ? -slope : slope;
        total += (double)value;
        sizes += (double)(value < 0 ? -value : value);
    }
    sums[0] += total;
    sums[1] += sizes;
}

/* Arguments of ridges, and the filters in the order in which they are read. */
typedef struct {
    int64_t samples, channels, height, width, filters, rows, columns, pieces, profiles, bands;
    const REAL *x, *positions, *coefficients, *base;
    const double *weights;
    int64_t weight_count;
    REAL *gradient;
    double *sums;
    REAL *forward;  /* for every group of RIDGE_SUMS filters: channel, row, column, filter */
    REAL *backward; /* for every channel: filter, column from the last to the first, row */
} NAME(ridge_work);

/* Workspace for one band. */
typedef struct {
    int64_t tile, patch_pitch, slope_pitch, gradient_pitch;
    REAL *patch;    /* rows of the image below the tile, of all channels */
    REAL *slopes;   /* responses of all filters in the tile, then φ′; columns − 1 entries of the tile before are in front */
    REAL *gradient; /* unfinished rows, of all channels; row i of the image is row i modulo the rows of a filter */
} NAME(ridge_room);

/* Compute the responses of row i and columns [from, from + tile), and replace them by φ′. */
static void NAME(ridge_responses)(const NAME(ridge_work) *w, const NAME(ridge_room) *room, int64_t sample, int64_t i,
                                  int64_t from, double *sums) {
    int64_t valid = w->width - w->columns + 1 - from, pieces = w->pieces, taps = w->rows * w->columns * w->channels;
    if (valid > room->tile) valid = room->tile;
    if (valid < 0) valid = 0;
    int64_t needed = valid ? valid + w->columns - 1 : 0, computed = rounded_up(valid, RIDGE_LANES);
    for (int64_t c = 0; c < w->channels; c++)
        for (int64_t d = 0; d < w->rows; d++) {
            REAL *to = room->patch + (c * w->rows + d) * room->patch_pitch;
            memcpy(to, w->x + ((sample * w->channels + c) * w->height + i + d) * w->width + from,
                   (size_t)needed * sizeof(REAL));
        }
    NAME(ridge_sum) s = {room->patch, w->channels * w->rows, room->patch_pitch, w->columns, w->forward, RIDGE_SUMS};
    for (int64_t first = 0; first < w->filters; first += RIDGE_SUMS) {
        int64_t count = w->filters - first < RIDGE_SUMS ? w->filters - first : RIDGE_SUMS;
        REAL *to[RIDGE_SUMS];
        for (int64_t m = 0; m < count; m++) to[m] = room->slopes + (first + m) * room->slope_pitch + w->columns - 1;
        NAME(ridge_sums)(&s, w->forward + first * taps, to, computed, 0, count);
        for (int64_t m = 0; m < count; m++) {
            int64_t profile = ((w->profiles == 1 ? 0 : sample) * w->filters + first + m) * pieces;
            const REAL *b = w->positions + profile, *c = w->coefficients + profile;
            if (sums && w->gradient) {
                if (pieces == 9) NAME(ridge_values)(to[m], valid, b, c, 9, sums, 1);
                else NAME(ridge_values)(to[m], valid, b, c, pieces, sums, 1);
            } else if (sums) {
                if (pieces == 9) NAME(ridge_values)(to[m], valid, b, c, 9, sums, 0);
                else NAME(ridge_values)(to[m], valid, b, c, pieces, sums, 0);
            } else {
                if (pieces == 9) NAME(ridge_slopes)(to[m], valid, b, c, 9);
                else NAME(ridge_slopes)(to[m], valid, b, c, pieces);
            }
            if (w->gradient) memset(to[m] + valid, 0, (size_t)(room->tile - valid) * sizeof(REAL));
        }
    }
}

/* Spread φ′ of row i and a tile over rows [i + first, i + last) of the gradient, in columns [from, from + tile). */
static void NAME(ridge_adjoint)(const NAME(ridge_work) *w, const NAME(ridge_room) *room, int64_t i, int64_t from,
                                int64_t first, int64_t last) {
    int64_t columns = rounded_up(w->width - from < room->tile ? w->width - from : room->tile, RIDGE_LANES);
    NAME(ridge_sum) s = {room->slopes, w->filters, room->slope_pitch, w->columns, NULL, w->rows};
    for (int64_t c = 0; c < w->channels; c++)
        for (int64_t d = first; d < last; d += RIDGE_SUMS) {
            int64_t count = last - d < RIDGE_SUMS ? last - d : RIDGE_SUMS;
            REAL *to[RIDGE_SUMS];
            for (int64_t m = 0; m < count; m++)
                to[m] = room->gradient + ((i + d + m) % w->rows * w->channels + c) * room->gradient_pitch + from;
            NAME(ridge_sums)(&s, w->backward + c * w->filters * w->columns * w->rows + d, to, columns, 1, count);
        }
    for (int64_t k = 0; k < w->filters; k++) {
        REAL *row = room->slopes + k * room->slope_pitch;
        memmove(row, row + room->tile, (size_t)(w->columns - 1) * sizeof(REAL));
    }
}

/* gradient = base + weight · sum in row i, which is finished; its place is cleared for a row below. */
static void NAME(ridge_finish)(const NAME(ridge_work) *w, const NAME(ridge_room) *room, int64_t sample, int64_t i) {
    REAL weight = (REAL)w->weights[w->weight_count == 1 ? 0 : sample];
    for (int64_t c = 0; c < w->channels; c++) {
        int64_t at = ((sample * w->channels + c) * w->height + i) * w->width;
        REAL *sum = room->gradient + (i % w->rows * w->channels + c) * room->gradient_pitch;
        for (int64_t j = 0; j < w->width; j++) w->gradient[at + j] = w->base[at + j] + weight * sum[j];
        memset(sum, 0, (size_t)room->gradient_pitch * sizeof(REAL));
    }
}

/* The rows [from, to) of the gradient of a sample, and the sums of its rows of responses. */
static void NAME(ridge_rows)(const NAME(ridge_work) *w, const NAME(ridge_room) *room, int64_t sample, int64_t from,
                             int64_t to) {
    int64_t valid = w->height - w->rows + 1;
    for (int64_t i = w->gradient && from >= w->rows ? from - w->rows + 1 : w->gradient ? 0 : from; i < to; i++) {
        if (i < valid) {
            double *sums = w->sums && i >= from ? w->sums + 2 * (sample * valid + i) : NULL;
            if (sums) sums[0] = sums[1] = 0;
            for (int64_t k = 0; k < w->filters; k++)
                memset(room->slopes + k * room->slope_pitch, 0, (size_t)(w->columns - 1) * sizeof(REAL));
            int64_t first = i < from ? from - i : 0, last = to - i < w->rows ? to - i : w->rows;
            for (int64_t j = 0; j < w->width; j += room->tile) {
                NAME(ridge_responses)(w, room, sample, i, j, sums);
                if (w->gradient) NAME(ridge_adjoint)(w, room, i, j, first, last);
            }
        }
        if (w->gradient && i >= from) NAME(ridge_finish)(w, room, sample, i);
    }
}

/* One band of one sample. */
static int NAME(ridge_band)(const void *work, int64_t unit) {
    const NAME(ridge_work) *w = work;
    int64_t sample = unit / w->bands, band = unit % w->bands, line = 64 / (int64_t)sizeof(REAL);
    int64_t tiles = (w->width + RIDGE_TILE - 1) / RIDGE_TILE;
    NAME(ridge_room) room;
    room.tile = rounded_up((w->width + tiles - 1) / tiles, RIDGE_LANES);
    /* An odd number of cache lines: then rows do not compete for the same places of the cache. */
    room.patch_pitch = room.slope_pitch = rounded_up(room.tile + w->columns - 1, 2 * line) + line;
    room.gradient_pitch = room.tile * tiles;
    int64_t patch = w->channels * w->rows * room.patch_pitch, slopes = w->filters * room.slope_pitch;
    int64_t gradient = w->rows * w->channels * room.gradient_pitch;
    room.patch = allocate_aligned((patch + slopes + gradient) * (int64_t)sizeof(REAL));
    if (!room.patch) return 1;
    room.slopes = room.patch + patch;
    room.gradient = room.slopes + slopes;
    memset(room.patch, 0, (size_t)(patch + slopes + gradient) * sizeof(REAL));
    NAME(ridge_rows)(w, &room, sample, w->height * band / w->bands, w->height * (band + 1) / w->bands);
    free_aligned(room.patch);
    return 0;
}

/* Write the filters in the order in which they are read. */
static void NAME(ridge_pack)(const NAME(ridge_work) *w, const REAL *filters) {
    int64_t taps = w->channels * w->rows * w->columns;
    for (int64_t k = 0; k < w->filters; k++)
        for (int64_t c = 0; c < w->channels; c++)
            for (int64_t d = 0; d < w->rows; d++)
                for (int64_t e = 0; e < w->columns; e++) {
                    int64_t tap = (c * w->rows + d) * w->columns + e;
                    REAL weight = filters[k * taps + tap];
                    int64_t group = k / RIDGE_SUMS * RIDGE_SUMS;
                    w->forward[group * taps + tap * RIDGE_SUMS + k - group] = weight;
                    w->backward[((c * w->filters + k) * w->columns + w->columns - 1 - e) * w->rows + d] = weight;
                }
}

/* gradient = base + weight · Wᵀφ′(Wx), and Σφ(Wx), Σ|φ(Wx)| for every row of responses: sums[sample][row][2].

   Wx are the responses at positions where a filter lies inside the image. weights: weight_count = 1 or samples numbers.
   positions, coefficients: b_j and c_j of φ′(t) = Σ_j c_j min(max(t, −b_j), b_j), for every filter, and for every sample if
   profiles > 1. gradient (with base) or sums may be null. Returns 1 if memory cannot be allocated. */
EXPORT int NAME(ridges)(int64_t samples, int64_t channels, int64_t height, int64_t width, int64_t filter_count, int64_t rows,
                        int64_t columns, int64_t pieces, int64_t profiles, const REAL *x, const REAL *filters,
                        const REAL *positions, const REAL *coefficients, const double *weights, int64_t weight_count,
                        const REAL *base, REAL *gradient, double *sums, int threads) {
    NAME(ridge_work) w = {.samples = samples, .channels = channels, .height = height, .width = width,
                          .filters = filter_count, .rows = rows, .columns = columns, .pieces = pieces,
                          .profiles = profiles, .x = x, .positions = positions, .coefficients = coefficients,
                          .base = base, .weights = weights, .weight_count = weight_count, .gradient = gradient,
                          .sums = sums};
    int64_t taps = channels * rows * columns, all = rounded_up(filter_count, RIDGE_SUMS) * taps;
    double work = (double)(samples * height * width) * (double)(filter_count * taps);
    if (work < RIDGE_WORTHWHILE * threads) threads = work < 2 * RIDGE_WORTHWHILE ? 1 : (int)(work / RIDGE_WORTHWHILE);
    int64_t most = height / RIDGE_SHORTEST;
    w.bands = samples % threads ? threads : 1;
    if (w.bands > most) w.bands = most > 1 ? most : 1;
    w.forward = allocate_aligned((all + filter_count * taps) * (int64_t)sizeof(REAL));
    if (!w.forward) return 1;
    w.backward = w.forward + all;
    NAME(ridge_pack)(&w, filters);
    int failed = for_each(samples * w.bands, NAME(ridge_band), &w, threads);
    free_aligned(w.forward);
    return failed;
}
#undef RIDGE_LANES
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC pop_options
#endif
