/* Sums over images and masks that a problem needs before the first step. */
#ifndef SUMS
#define SUMS
#include <math.h>
#include <stdlib.h>
#define SOME 8 /* rows that are summed in single precision */
#define ABSOLUTE(v) _Generic((v), float: fabsf, double: fabs)(v)

/* Dilate the observed pixels by one, into next, and count the pixels that are still missing. */
static long grown(long height, long width, const unsigned char *seen, unsigned char *next, unsigned char *column) {
    long missing = 0;
    for (long row = 0; row < height; row++) {
        const unsigned char *here = seen + row * width, *above = here - (row ? width : 0);
        const unsigned char *below = here + (row + 1 < height ? width : 0);
        unsigned char *out = next + row * width;
        for (long j = 0; j < width; j++) column[j + 1] = above[j] | here[j] | below[j];
        for (long j = 0; j < width; j++) out[j] = column[j] | column[j + 1] | column[j + 2];
        int found = 0;
        for (long j = 0; j < width; j++) found += out[j];
        missing += width - found;
    }
    return missing;
}
#endif

/* For every sample, sums gets the number of observed pixels, the sums of y - c and of its square over them, where c is
   the first of them, and the sum of |Dx| over all differences. masks is as for amd_stencil. */
void NAME(image_sums)(long samples, long channels, long height, long width, const REAL *y, const REAL *mask, long masks,
                      const REAL *x, double *sums, int threads) {
    long plane = height * width, planes = samples * channels;
#pragma omp parallel for num_threads(threads)
    for (long sample = 0; sample < samples; sample++) {
        double *all = sums + 4 * sample;
        REAL c = 0;
        int found = 0;
        all[0] = all[1] = all[2] = all[3] = 0;
        for (long p = sample * channels; p < (sample + 1) * channels; p++) {
            const REAL *ys = y + p * plane, *xs = x + p * plane, *ms = masks ? mask + p * masks / planes * plane : NULL;
            for (long j = 0; j < plane && !found; j++)
                if (!ms || ms[j] > 0) {
                    c = ys[j];
                    found = 1;
                }
            for (long top = 0; top < height; top += SOME) {
                long rows = top + SOME < height ? SOME : height - top, from = top * width, to = from + rows * width;
                long below = to < plane ? to : plane - width; /* the last row has no row below it */
                REAL count = 0, first = 0, second = 0, rough = 0;
                if (ms) {
#pragma omp simd reduction(+ : count, first, second)
                    for (long j = from; j < to; j++) {
                        REAL d = ms[j] * (ys[j] - c);
                        count += ms[j];
                        first += d;
                        second += d * d;
                    }
                } else {
                    count = (REAL)(to - from);
#pragma omp simd reduction(+ : first, second)
                    for (long j = from; j < to; j++) {
                        REAL d = ys[j] - c;
                        first += d;
                        second += d * d;
                    }
                }
#pragma omp simd reduction(+ : rough)
                for (long j = from; j < below; j++) rough += ABSOLUTE(xs[j + width] - xs[j]);
                for (long row = top; row < top + rows; row++) {
                    const REAL *xr = xs + row * width;
#pragma omp simd reduction(+ : rough)
                    for (long j = 0; j < width - 1; j++) rough += ABSOLUTE(xr[j + 1] - xr[j]);
                }
                all[0] += count;
                all[1] += first;
                all[2] += second;
                all[3] += rough;
            }
        }
    }
}

/* For every plane of a mask, depths gets the number of missing pixels and the sum of their distances from the nearest
   observed pixel, in steps to one of eight neighbours and at most deepest + 1. */
int NAME(hole_depths)(long planes, long height, long width, const REAL *mask, long deepest, double *depths, int threads) {
    int failed = 0;
#pragma omp parallel for num_threads(threads) reduction(| : failed)
    for (long p = 0; p < planes; p++) {
        unsigned char *seen = malloc(2 * height * width + width + 2), *next = seen + height * width;
        if (!seen) {
            failed = 1;
            continue;
        }
        unsigned char *column = next + height * width;
        column[0] = column[width + 1] = 0;
        long missing = 0;
        for (long j = 0; j < height * width; j++) missing += !(seen[j] = mask[p * height * width + j] > 0);
        depths[2 * p] = depths[2 * p + 1] = missing;
        unsigned char *one = seen;
        for (long round = 0; round < deepest && missing; round++) {
            missing = grown(height, width, one, next, column);
            depths[2 * p + 1] += missing;
            unsigned char *other = one;
            one = next;
            next = other;
        }
        free(seen);
    }
    return failed;
}
