/* Many steps on many images in one call, on rows that stay in the cache.

   The arrays that steps change are called fields. A window holds some of their rows in a workspace: every row starts at
   a cache line and is followed by padding, so loops run over whole vectors and borders need no code of their own.

   A step on a row reads at most one row below it, changes rows in place, and is complete a few rows later. So step j + 1
   can follow step j at a distance of LAG rows: a wave of several steps passes through an image together. Rows enter the
   window in front of the wave and leave it behind the wave, and an image that does not fit into the cache is read from
   memory once per wave. A small image stays in the window until the last step.

   Threads process images. If there are too few images, they process waves, one behind the other, without waiting for the
   end of a step. */
#ifndef SWEEP
#define SWEEP
#include "pool.h"
#include "portable.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Loop over j in [from, to). Rows do not overlap, so the compiler may vectorise. */
#define EACH(j, from, to) INDEPENDENT for (int64_t j = (from); j < (to); j++)
#define ROOT(v) _Generic((v), float: sqrtf, double: sqrt)(v)

/* Loop over the entries of a padded row: a multiple of 16, whatever the compiler knows about it. */
#define VECTORS(j, whole) INDEPENDENT for (int64_t j = 0; j < (whole) / 16 * 16; j++)
#define WHOLE(width) (((width) + 15) / 16 * 16)

/* Stride of rows in memory: padding on both sides, aligned to cache lines. */
#define STRIDE(width) (((width) + 31) / 16 * 16)

/* The numbers for a step on a plane, and the mask of a plane, computed once because divisions are slow. */
#define NUMBERS(w, step, plane, columns) \
    ((w)->numbers +                      \
     (((w)->period == 1 ? 0 : (step)) * (w)->samples + ((w)->samples == 1 ? 0 : (plane) / (w)->channels)) * (columns))
#define MASKED(mask, masks, plane, planes, height, width) \
    ((masks) == 0 ? NULL : (mask) + ((masks) == 1 ? 0 : (plane) * (masks) / (planes)) * (height) * (width))
#define MASK(w, plane) MASKED((w)->mask, (w)->masks, plane, (w)->planes, (w)->height, (w)->width)

#define LAG 3
#define WAVE 10             /* maximal number of steps in a wave */
#define CACHE (1 << 19)     /* maximal size of the data of a wave in bytes */
#define RESIDENT (1 << 22)  /* size of the fields of an image up to which they stay in the window */
#define FIELDS 4            /* maximal number of fields */
#define ISOTROPIC 1         /* both differences of a pixel form one group, which is projected together */
#define COUPLED 2           /* the channels of a pixel belong to one group */

/* Shape of a sweep over images of several planes. A step on row r completes row r - trail, and needs room entries of
   workspace per step. */
typedef struct {
    int64_t images, planes, height, width, steps, trail, room;
    int count; /* of the fields */
} sweep_shape;
#endif

/* Planes of rows that steps change. Rows have the width of the image or one entry less; there may be one row less than
   in the image. Beyond both ends of a row is its last entry if it is reflected, else zero. */
typedef struct {
    const REAL *from; /* values before the first step */
    REAL *to;         /* values after the last step */
    int64_t height, width;
    int reflected;
} NAME(field);

/* The rows in the workspace of a thread. whole is the width, rounded up to whole vectors. */
typedef struct {
    REAL *rows;
    int64_t slots, stride, whole, planes;
} NAME(window);

/* A row of a field, aligned and padded. */
static inline REAL *NAME(row_of)(const NAME(window) *at, int field, int64_t plane, int64_t row) {
    return at->rows + ((field * at->planes + plane) * at->slots + (row & (at->slots - 1))) * at->stride + 16;
}

/* One step on one row of one image. room holds data for the next rows. */
typedef void NAME(row_function)(const void *work, const NAME(window) *at, REAL *room, int64_t image, int64_t step,
                                int64_t row);

/* Arguments of a sweep. done has the finished rows of every wave of every image. */
typedef struct {
    NAME(row_function) *row_step;
    const void *work;
    sweep_shape shape;
    const NAME(field) *fields;
    int64_t depth, slots, waves;
    int alone, resident; /* whether a thread processes whole images; whether they stay in the window */
    counter *done, *next;
} NAME(sweep_work);

/* Read a row of all fields into the window. */
static void NAME(read_row)(const NAME(sweep_work) *w, const NAME(window) *at, int64_t image, int64_t row, int first) {
    for (int f = 0; f < w->shape.count; f++) {
        const NAME(field) *field = w->fields + f;
        int64_t width = row < field->height ? field->width : 0;
        for (int64_t p = 0; p < w->shape.planes; p++) {
            const REAL *from = (first ? field->from : field->to) +
                               ((image * w->shape.planes + p) * field->height + row) * field->width;
            REAL *to = NAME(row_of)(at, f, p, row);
            if (width) memcpy(to, from, (size_t)width * sizeof(REAL));
            REAL last = field->reflected && width ? to[width - 1] : 0;
            to[-1] = field->reflected && width ? to[0] : 0;
            for (int64_t j = width; j <= at->whole; j++) to[j] = last;
        }
    }
}

/* Write a row of all fields from the window. */
static void NAME(write_row)(const NAME(sweep_work) *w, const NAME(window) *at, int64_t image, int64_t row) {
    for (int f = 0; f < w->shape.count; f++) {
        const NAME(field) *field = w->fields + f;
        for (int64_t p = 0; p < w->shape.planes && row < field->height; p++) {
            REAL *to = field->to + ((image * w->shape.planes + p) * field->height + row) * field->width;
            memcpy(to, NAME(row_of)(at, f, p, row), (size_t)field->width * sizeof(REAL));
        }
    }
}

/* Wave n on one image. If before is not null, it is the number of rows that the previous wave has finished. */
static void NAME(wave)(const NAME(sweep_work) *w, const NAME(window) *at, REAL *room, int64_t image, int64_t n,
                       counter *before, counter *done) {
    const sweep_shape *s = &w->shape;
    int64_t from = n * w->depth, depth = from + w->depth < s->steps ? w->depth : s->steps - from;
    int enters = n == 0 || !w->resident, leaves = n + 1 == w->waves || !w->resident, height = s->height;
    for (int64_t front = -1; front < height + s->trail + LAG * (depth - 1); front++) {
        if (enters && front + 1 < height) {
            if (before) wait_for(before, front + 2);
            NAME(read_row)(w, at, image, front + 1, n == 0);
        }
        for (int64_t j = 0; j < depth; j++) {
            int64_t row = front - LAG * j;
            if (row >= 0 && row < height + s->trail) w->row_step(w->work, at, room + j * s->room, image, from + j, row);
        }
        int64_t complete = front - LAG * (depth - 1) - s->trail;
        if (!leaves || complete < 0) continue;
        NAME(write_row)(w, at, image, complete);
        atomic_store_explicit(done, complete + 1, memory_order_release);
    }
}

/* The part of a sweep of one thread. Unit u is all steps on image u, or one wave if alone is 0. */
static int NAME(sweep_units)(const void *work, int mine, int all) {
    const NAME(sweep_work) *w = work;
    int64_t units = w->alone ? w->shape.images : w->shape.images * w->waves, stride = WHOLE(w->shape.width) + 16;
    int64_t rows = (w->shape.count * w->shape.planes * w->slots * stride + 32);
    REAL *memory = allocate_aligned((rows + w->depth * w->shape.room) * (int64_t)sizeof(REAL));
    NAME(window) at = {memory, w->slots, stride, WHOLE(w->shape.width), w->shape.planes};
    (void)mine;
    (void)all;
    if (memory) memset(memory + rows, 0, (size_t)(w->depth * w->shape.room) * sizeof(REAL));
    for (int64_t unit; memory && (unit = atomic_fetch_add(w->next, 1)) < units;) { /* in order, to avoid deadlocks */
        int64_t image = w->alone ? unit : unit / w->waves, first = w->alone ? 0 : unit % w->waves;
        int64_t last = w->alone ? w->waves : first + 1;
        for (int64_t n = first; n < last; n++) {
            counter *done = w->done + image * w->waves + n, *before = n > first || n == 0 ? NULL : done - 1;
            NAME(wave)(w, &at, memory + rows, image, n, before, done);
        }
    }
    free_aligned(memory);
    return !memory;
}

/* All steps on all images. Returns 1 if memory cannot be allocated. */
static int NAME(sweep)(NAME(row_function) *row_step, const void *work, sweep_shape shape, const NAME(field) *fields,
                       int threads) {
    int64_t images = shape.images, row = shape.count * shape.planes * STRIDE(shape.width) * (int64_t)sizeof(REAL);
    int alone = threads == 1 || images % threads == 0 || images >= 4 * threads;
    int resident = alone && row * shape.height <= RESIDENT;
    int64_t step = LAG * row + (shape.room + LAG * 2 * shape.planes * shape.width) * (int64_t)sizeof(REAL);
    int64_t depth = resident ? 1 : CACHE / step > WAVE ? WAVE : CACHE / step > 3 ? CACHE / step : 3, slots = 4;
    if (depth > shape.steps) depth = shape.steps;
    while (slots < (resident ? shape.height : LAG * depth + 2)) slots *= 2;
    int64_t waves = (shape.steps + depth - 1) / depth;
    counter *done = calloc((size_t)(images * waves + 1), sizeof(counter));
    if (!done) return 1;
    NAME(sweep_work) all = {row_step, work, shape, fields, depth, slots, waves, alone, resident, done, done + images * waves};
    int64_t units = alone ? images : images * waves;
    int failed = run_team(units < threads ? (int)units : threads, NAME(sweep_units), &all);
    free(done);
    return failed;
}

/* A row of a constant array, as if it were padded: the row itself, or a copy if it is the last of the array. */
static inline const REAL *NAME(padded)(const REAL *row, const REAL *end, int64_t width, int64_t whole, REAL *copy) {
    if (row + whole <= end) return row;
    memcpy(copy, row, (size_t)width * sizeof(REAL));
    return copy;
}

/* In this form it compiles to two instructions, and NaN stays NaN. */
static inline REAL NAME(clip)(REAL v, REAL bound) {
    REAL most = bound < v ? bound : v;
    return -bound > most ? -bound : most;
}

/* A row of ones in the place of a mask, or null if memory cannot be allocated. It is freed by free_aligned. */
static REAL *NAME(row_of_ones)(int64_t width) {
    REAL *ones = allocate_aligned(WHOLE(width) * (int64_t)sizeof(REAL));
    for (int64_t j = 0; ones && j < WHOLE(width); j++) ones[j] = 1;
    return ones;
}

/* The factors that project the groups of a row of differences (v vertical, h horizontal, channels stride apart) to length
   <= bound. Only isotropic groups share the factor v_factor; others have h_factor for h. */
static void NAME(factors)(const REAL *v, const REAL *h, int64_t channels, int64_t stride, int64_t whole, REAL bound, int groups,
                          REAL *v_factor, REAL *h_factor) {
    if (groups == ISOTROPIC) {
        VECTORS(j, whole) {
            REAL both = ROOT(v[j] * v[j] + h[j] * h[j]);
            v_factor[j] = bound / (both > bound ? both : bound);
        }
        return;
    }
    for (int part = 0; part < (groups & ISOTROPIC ? 1 : 2); part++) {
        REAL *factor = part ? h_factor : v_factor;
        const REAL *one = part ? h : v;
        for (int64_t c = 0; c < channels; c++) {
            const REAL *a = one + c * stride, *b = h + c * stride;
            if (c == 0) memset(factor, 0, (size_t)whole * sizeof(REAL));
            if (groups & ISOTROPIC)
                VECTORS(j, whole) factor[j] += a[j] * a[j] + b[j] * b[j];
            else
                VECTORS(j, whole) factor[j] += a[j] * a[j];
        }
        VECTORS(j, whole) {
            REAL all = ROOT(factor[j]);
            factor[j] = bound / (all > bound ? all : bound);
        }
    }
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
