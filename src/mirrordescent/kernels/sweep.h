/* Many steps on many images in one call, on rows that stay in the cache.

   A step on a row reads at most LAG rows below it, and rows are changed in place. So step j + 1 can follow step j at a
   distance of LAG rows: a wave of several steps passes through an image together, and an image that does not fit into
   the cache is read from memory once per wave. Threads process images. If there are too few images, they process waves,
   one behind the other, without waiting for the end of a step. */
#ifndef SWEEP
#define SWEEP
#include "pool.h"
#include "portable.h"
#include <math.h>
#include <stdlib.h>

/* Loop over j in [from, to). Rows do not overlap, so the compiler may vectorise. */
#define EACH(j, from, to) INDEPENDENT for (int64_t j = (from); j < (to); j++)
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
typedef void row_function(const void *work, char *scratch, int64_t image, int64_t step, int64_t row);

/* Steps [from, to) on one image. If before is not null, it is the number of rows the previous steps have finished. */
static void wave(row_function *row_step, const void *work, char *scratch, int64_t size, int64_t image, int64_t height, int64_t from,
                 int64_t to, counter *before, counter *done) {
    for (int64_t front = 0; front < height + LAG * (to - from - 1); front++)
        for (int64_t j = 0; j < to - from; j++) {
            int64_t row = front - LAG * j, needed = row + LAG + 1 < height ? row + LAG + 1 : height;
            if (row < 0 || row >= height) continue;
            if (j == 0 && before) wait_for(before, needed);
            row_step(work, scratch + j * size, image, from + j, row);
            if (j == to - from - 1) atomic_store_explicit(done, row + 1, memory_order_release);
        }
}

/* Arguments of a sweep. Unit u is all steps on image u, or one wave if alone is 0. done has the finished rows of every
   wave of every image. */
typedef struct {
    row_function *row_step;
    const void *work;
    int64_t size, images, height, steps, depth, waves;
    int alone;
    counter *done, *next;
} sweep_work;

/* The part of a sweep of one thread. */
static int sweep_units(const void *work, int mine, int all) {
    const sweep_work *w = work;
    int64_t units = w->alone ? w->images : w->images * w->waves;
    char *scratch = allocate_aligned(w->depth * w->size);
    (void)mine;
    (void)all;
    for (int64_t unit; scratch && (unit = atomic_fetch_add(w->next, 1)) < units;) { /* in order, to avoid deadlocks */
        int64_t image = w->alone ? unit : unit / w->waves, first = w->alone ? 0 : unit % w->waves;
        int64_t last = w->alone ? w->waves : first + 1;
        for (int64_t n = first; n < last; n++) {
            int64_t to = (n + 1) * w->depth < w->steps ? (n + 1) * w->depth : w->steps;
            counter *done = w->done + image * w->waves + n, *before = n > first || n == 0 ? NULL : done - 1;
            wave(w->row_step, w->work, scratch, w->size, image, w->height, n * w->depth, to, before, done);
        }
    }
    free_aligned(scratch);
    return !scratch;
}

/* All steps on all images. scratch takes size bytes per step, about as many as a row. Returns 1 if memory cannot be
   allocated. */
static int sweep(row_function *row_step, const void *work, int64_t size, int64_t images, int64_t height, int64_t steps,
                 int threads) {
    int64_t deep = CACHE / (size + 1), depth = deep < 4 ? 4 : deep > WAVE ? WAVE : deep;
    int64_t waves = (steps + depth - 1) / depth;
    int alone = threads == 1 || images % threads == 0 || images >= 4 * threads;
    counter *done = calloc((size_t)(images * waves + 1), sizeof(counter));
    if (!done) return 1;
    sweep_work all = {row_step, work, size, images, height, steps, depth, waves, alone, done, done + images * waves};
    int64_t units = alone ? images : images * waves;
    int failed = run_team(units < threads ? (int)units : threads, sweep_units, &all);
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
static void NAME(limit)(REAL *restrict v, REAL *restrict h, int64_t channels, int64_t stride, int64_t width, REAL bound,
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
        for (int64_t c = 0; c < channels; c++) {
            const REAL *a = one + c * stride, *b = other + (other ? c * stride : 0);
            EACH(j, 0, width) length[j] += a[j] * a[j];
            if (other) EACH(j, 0, width) length[j] += b[j] * b[j];
        }
        EACH(j, 0, width) {
            REAL all = ROOT(length[j]);
            length[j] = bound / (all > bound ? all : bound);
        }
        for (int64_t c = 0; c < channels; c++) {
            REAL *a = one + c * stride, *b = other + (other ? c * stride : 0);
            EACH(j, 0, width) a[j] *= length[j];
            if (other) EACH(j, 0, width) b[j] *= length[j];
        }
    }
}
