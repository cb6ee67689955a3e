/* Many steps on many images in one call, on rows that stay in the cache.

   A step on a row reads at most LAG rows below it, and rows are changed in place. So step j + 1 can follow step j at a
   distance of LAG rows: a wave of several steps passes through an image together, and an image that does not fit into
   the cache is read from memory once per wave. Threads process images. If there are too few images, they process waves,
   one behind the other, without waiting for the end of a step. */
#ifndef SWEEP
#define SWEEP
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <sched.h>
#endif

/* Loop over j in [from, to). Rows do not overlap, so the compiler may vectorise. */
#define EACH(j, from, to) _Pragma("GCC ivdep") for (long j = (from); j < (to); j++)
#define ROOT(v) _Generic((v), float: sqrtf, double: sqrt)(v)

/* Stride of rows in memory: one entry of padding on both sides, aligned to cache lines. */
#define STRIDE(width) (((width) + 31) / 16 * 16)

/* The numbers for a step on a plane, and the mask of a plane, computed once because divisions are slow. */
#define NUMBERS(w, step, plane, columns) \
    ((w)->numbers +                      \
     (((w)->period == 1 ? 0 : (step)) * (w)->samples + ((w)->samples == 1 ? 0 : (plane) / (w)->channels)) * (columns))
#define MASKED(mask, masks, plane, planes, height, width) \
    ((masks) == 0 ? NULL : (mask) + ((masks) == 1 ? 0 : (plane) * (masks) / (planes)) * (height) * (width))
#define MASK(w, plane) MASKED((w)->mask, (w)->masks, plane, (w)->planes, (w)->height, (w)->width)

#define LAG 2
#define WAVE 16          /* maximal number of steps in a wave */
#define CACHE (1 << 19)  /* maximal size of the rows of a wave in bytes */
#define ISOTROPIC 1      /* both differences of a pixel form one group, which is projected together */
#define COUPLED 2        /* the channels of a pixel belong to one group */

/* One step on one row of one image. scratch holds its data for the next row. */
typedef void row_function(const void *work, char *scratch, long image, long step, long row);

/* Steps [from, to) on one image. If before is not null, it is the number of rows the previous steps have finished. */
static void wave(row_function *row_step, const void *work, char *scratch, long size, long image, long height, long from,
                 long to, atomic_long *before, atomic_long *done) {
    for (long front = 0; front < height + LAG * (to - from - 1); front++)
        for (long j = 0; j < to - from; j++) {
            long row = front - LAG * j, needed = row + LAG + 1 < height ? row + LAG + 1 : height;
            if (row < 0 || row >= height) continue;
            if (j == 0 && before)
                for (long tries = 0; atomic_load_explicit(before, memory_order_acquire) < needed; tries++) {
#ifdef _OPENMP
                    if (tries > 1000) sched_yield();
#endif
                }
            row_step(work, scratch + j * size, image, from + j, row);
            if (j == to - from - 1) atomic_store_explicit(done, row + 1, memory_order_release);
        }
}

/* All steps on all images. scratch takes size bytes per step, about as many as a row. Returns 1 if memory cannot be
   allocated. */
static int sweep(row_function *row_step, const void *work, long size, long images, long height, long steps,
                 int threads) {
    long deep = CACHE / (size + 1), depth = deep < 4 ? 4 : deep > WAVE ? WAVE : deep, waves = (steps + depth - 1) / depth;
    int alone = threads == 1 || images % threads == 0 || images >= 4 * threads, failed = 0;
    atomic_long *done = calloc(images * waves + 1, sizeof(atomic_long)), *next = done + images * waves;
    if (!done) return 1;
#pragma omp parallel num_threads(threads)
    {
        char *scratch = aligned_alloc(64, depth * size);
        if (!scratch) {
#pragma omp atomic write
            failed = 1;
        }
        long all = alone ? images : images * waves;
        for (long unit; scratch && (unit = atomic_fetch_add(next, 1)) < all;) { /* in order, to avoid deadlocks */
            long image = alone ? unit : unit / waves, first = alone ? 0 : unit % waves, last = alone ? waves : first + 1;
            for (long w = first; w < last; w++) {
                long to = (w + 1) * depth < steps ? (w + 1) * depth : steps;
                atomic_long *mine = done + image * waves + w;
                wave(row_step, work, scratch, size, image, height, w * depth, to, w > first || !w ? NULL : mine - 1, mine);
            }
        }
        free(scratch);
    }
    free(done);
    return failed;
}
#endif

/* In this form it compiles to two instructions, and NaN stays NaN. */
static inline REAL NAME(clip)(REAL v, REAL bound) {
    REAL most = bound < v ? bound : v;
    return -bound > most ? -bound : most;
}

/* Project the groups of a row of differences (v vertical, h horizontal, channels stride apart) to length <= bound. */
static void NAME(limit)(REAL *restrict v, REAL *restrict h, long channels, long stride, long width, REAL bound,
                        int groups, REAL *restrict length) {
    if (groups == ISOTROPIC) {
        EACH(j, 0, width) {
            REAL both = ROOT(v[j] * v[j] + h[j] * h[j]), factor = bound / (both > bound ? both : bound);
            v[j] *= factor;
            h[j] *= factor;
        }
        return;
    }
    for (int part = 0; part < (groups & ISOTROPIC ? 1 : 2); part++) {
        REAL *one = part ? h : v, *other = groups & ISOTROPIC ? h : NULL;
        EACH(j, 0, width) length[j] = 0;
        for (long c = 0; c < channels; c++) {
            const REAL *a = one + c * stride, *b = other + (other ? c * stride : 0);
            EACH(j, 0, width) length[j] += a[j] * a[j];
            if (other) EACH(j, 0, width) length[j] += b[j] * b[j];
        }
        EACH(j, 0, width) {
            REAL all = ROOT(length[j]);
            length[j] = bound / (all > bound ? all : bound);
        }
        for (long c = 0; c < channels; c++) {
            REAL *a = one + c * stride, *b = other + (other ? c * stride : 0);
            EACH(j, 0, width) a[j] *= length[j];
            if (other) EACH(j, 0, width) b[j] *= length[j];
        }
    }
}
