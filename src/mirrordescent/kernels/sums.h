/* Sums over images and masks that a problem needs before the first step. */
#ifndef SUMS
#define SUMS
#include "pool.h"
#include "portable.h"
#include <math.h>
#include <stdlib.h>
#define SOME 8 /* rows that are summed in single precision */
#define ABSOLUTE(v) _Generic((v), float: fabsf, double: fabs)(v)

/* Dilate the observed pixels by one, into next, and count the pixels that are still missing. */
static int64_t grown(int64_t height, int64_t width, const unsigned char *seen, unsigned char *next, unsigned char *column) {
    int64_t missing = 0;
    for (int64_t row = 0; row < height; row++) {
        const unsigned char *here = seen + row * width, *above = here - (row ? width : 0);
        const unsigned char *below = here + (row + 1 < height ? width : 0);
        unsigned char *out = next + row * width;
        for (int64_t j = 0; j < width; j++) column[j + 1] = above[j] | here[j] | below[j];
        for (int64_t j = 0; j < width; j++) out[j] = column[j] | column[j + 1] | column[j + 2];
        int found = 0;
        for (int64_t j = 0; j < width; j++) found += out[j];
        missing += width - found;
    }
    return missing;
}
#endif

/* The sum of |b - a|. Rows are short, so few entries may remain after the last vector. */
static REAL NAME(variation)(int64_t n, const REAL *a, const REAL *b) {
    REAL lanes[16] = {0}, sum = 0;
    int64_t j = 0;
    for (; j + 16 <= n; j += 16)
        for (int l = 0; l < 16; l++) lanes[l] += ABSOLUTE(b[j + l] - a[j + l]);
    for (; j < n; j++) sum += ABSOLUTE(b[j] - a[j]);
    for (int l = 0; l < 16; l++) sum += lanes[l];
    return sum;
}

/* Arguments of image_sums. */
typedef struct {
    int64_t samples, channels, height, width, masks;
    const REAL *y, *mask, *x;
    double *sums;
} NAME(image_sums_work);

/* The sums of one sample. */
static int NAME(sample_sums)(const void *work, int64_t sample) {
    const NAME(image_sums_work) *w = work;
    int64_t height = w->height, width = w->width, plane = height * width, planes = w->samples * w->channels;
    double *all = w->sums + 4 * sample;
    REAL c = 0;
    int found = 0;
    all[0] = all[1] = all[2] = all[3] = 0;
    for (int64_t p = sample * w->channels; p < (sample + 1) * w->channels; p++) {
        const REAL *ys = w->y + p * plane, *xs = w->x + p * plane;
        const REAL *ms = w->masks ? w->mask + p * w->masks / planes * plane : NULL;
        for (int64_t j = 0; j < plane && !found; j++)
            if (!ms || ms[j] > 0) {
                c = ys[j];
                found = 1;
            }
        for (int64_t top = 0; top < height; top += SOME) {
            int64_t rows = top + SOME < height ? SOME : height - top, from = top * width, to = from + rows * width;
            int64_t below = to < plane ? to : plane - width; /* the last row has no row below it */
            REAL count = 0, first = 0, second = 0, rough = 0;
            if (ms) {
#pragma omp simd reduction(+ : count, first, second)
                for (int64_t j = from; j < to; j++) {
                    REAL d = ms[j] * (ys[j] - c);
                    count += ms[j];
                    first += d;
                    second += d * d;
                }
            } else {
                count = (REAL)(to - from);
#pragma omp simd reduction(+ : first, second)
                for (int64_t j = from; j < to; j++) {
                    REAL d = ys[j] - c;
                    first += d;
                    second += d * d;
                }
            }
            rough += NAME(variation)(below - from, xs + from, xs + from + width);
            for (int64_t row = top; row < top + rows; row++) {
                const REAL *xr = xs + row * width;
                rough += NAME(variation)(width - 1, xr, xr + 1);
            }
            all[0] += count;
            all[1] += first;
            all[2] += second;
            all[3] += rough;
        }
    }
    return 0;
}

/* For every sample, sums gets the number of observed pixels, the sums of y - c and of its square over them, where c is
   the first of them, and the sum of |Dx| over all differences. masks is as for amd_stencil. */
EXPORT int NAME(image_sums)(int64_t samples, int64_t channels, int64_t height, int64_t width, const REAL *y,
                            const REAL *mask, int64_t masks, const REAL *x, double *sums, int threads) {
    NAME(image_sums_work) work = {samples, channels, height, width, masks, y, mask, x, sums};
    return for_each(samples, NAME(sample_sums), &work, threads);
}

/* Arguments of hole_depths. */
typedef struct {
    int64_t height, width, deepest;
    const REAL *mask;
    double *depths;
} NAME(hole_depths_work);

/* The depths of one plane. */
static int NAME(plane_depths)(const void *work, int64_t p) {
    const NAME(hole_depths_work) *w = work;
    int64_t height = w->height, width = w->width, pixels = height * width, missing = 0;
    unsigned char *seen = malloc((size_t)(2 * pixels + width + 2));
    if (!seen) return 1;
    unsigned char *one = seen, *next = seen + pixels, *column = next + pixels;
    column[0] = column[width + 1] = 0;
    for (int64_t j = 0; j < pixels; j++) missing += !(seen[j] = w->mask[p * pixels + j] > 0);
    double *depths = w->depths + 2 * p;
    depths[0] = depths[1] = missing;
    for (int64_t round = 0; round < w->deepest && missing; round++) {
        missing = grown(height, width, one, next, column);
        depths[1] += missing;
        unsigned char *other = one;
        one = next;
        next = other;
    }
    free(seen);
    return 0;
}

/* For every plane of a mask, depths gets the number of missing pixels and the sum of their distances from the nearest
   observed pixel, in steps to one of eight neighbours and at most deepest + 1. */
EXPORT int NAME(hole_depths)(int64_t planes, int64_t height, int64_t width, const REAL *mask, int64_t deepest,
                             double *depths, int threads) {
    NAME(hole_depths_work) work = {height, width, deepest, mask, depths};
    return for_each(planes, NAME(plane_depths), &work, threads);
}
