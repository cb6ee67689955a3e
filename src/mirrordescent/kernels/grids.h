/* Total variation on grids of one to three axes, with a weight for every axis: primal-dual steps, values and bounds.

   A sample has planes of depth x height x width points, one for each channel; signals have depth = height = 1. The rows of
   a plane are numbered r = i height + j. A dual variable has one block of differences for every axis. */

#ifndef GRIDS
#define GRIDS
#include "pool.h"
#include "portable.h"
#include <math.h>
#include <stdlib.h>
#ifndef EACH
#define EACH(j, from, to) INDEPENDENT for (int64_t j = (from); j < (to); j++)
#endif
#define GRID_ROOT(v) _Generic((v), float: sqrtf, double: sqrt)(v)
#define GRID_STRIDE(width) (((width) + 31) / 16 * 16) /* of rows of workspaces */
#define GRID_COLUMNS 9    /* tau, pull, sigma, bound, shrink, relaxation, and the weights of the three axes */
#define GRID_ISOTROPIC 1  /* the differences of a point form one group */
#define GRID_COUPLED 2    /* the channels of a point belong to one group */

/* Barrier: wait until all threads have arrived. */
static void grid_meet(counter *arrived, int64_t needed) {
    atomic_fetch_add_explicit(arrived, 1, memory_order_acq_rel);
    wait_for(arrived, needed);
}
#endif

/* The shape of samples. ahead is the number of rows between a row and the one below or behind it that is farthest away.
   held has a bit for every axis (4 depth, 2 height, 1 width): the groups of its last layer stay as they are. */
typedef struct {
    int64_t samples, channels, coupled, depth, height, width, ahead;
    int groups, held;
} NAME(grid);

static NAME(grid) NAME(grid_of)(int64_t samples, int64_t channels, int64_t depth, int64_t height, int64_t width, int groups,
                                int held) {
    NAME(grid) g = {samples, channels, groups & GRID_COUPLED ? channels : 1, depth, height, width, 0, groups, held};
    g.ahead = depth > 1 ? height : height > 1;
    return g;
}

/* The place of a row of a plane in the block of an axis (0 depth, 1 height, 2 width), or -1 if it has no difference. */
static int64_t NAME(block_row)(const NAME(grid) *g, int axis, int64_t plane, int64_t row) {
    int64_t i = row / g->height, j = row % g->height;
    if (axis == 0) return i + 1 < g->depth ? ((plane * (g->depth - 1) + i) * g->height + j) * g->width : -1;
    if (axis == 1) return j + 1 < g->height ? ((plane * g->depth + i) * (g->height - 1) + j) * g->width : -1;
    return ((plane * g->depth + i) * g->height + j) * (g->width - 1);
}

/* Whether the groups of a row are held, and the number of groups of another row that are not. */
static int NAME(is_held)(const NAME(grid) *g, int64_t row) {
    return (g->held & 4 && row / g->height + 1 == g->depth) || (g->held & 2 && row % g->height + 1 == g->height);
}
static int64_t NAME(free_groups)(const NAME(grid) *g) { return g->held & 1 ? g->width - 1 : g->width; }

/* The projection onto [-bound, bound]; NaN stays NaN. */
static inline REAL NAME(within)(REAL v, REAL bound) {
    REAL most = bound < v ? bound : v;
    return -bound > most ? -bound : most;
}

/* Scale the groups of a row into the ball of a radius. a has the three axes, each with the coupled channels. */
static void NAME(into_balls)(const NAME(grid) *g, REAL *const *a, int64_t stride, REAL radius, REAL *length) {
    int64_t width = g->width;
    if (!g->groups) {
        for (int k = 0; k < 3; k++) EACH(j, 0, width) a[k][j] = NAME(within)(a[k][j], radius);
        return;
    }
    int parts = g->groups & GRID_ISOTROPIC ? 1 : 3, axes = 3 / parts;
    for (int part = 0; part < parts; part++) {
        EACH(j, 0, width) length[j] = 0;
        for (int k = part; k < part + axes; k++)
            for (int64_t c = 0; c < g->coupled; c++) {
                const REAL *d = a[k] + c * stride;
                EACH(j, 0, width) length[j] += d[j] * d[j];
            }
        EACH(j, 0, width) {
            REAL norm = GRID_ROOT(length[j]);
            length[j] = norm > radius ? radius / norm : 1;
        }
        for (int k = part; k < part + axes; k++)
            for (int64_t c = 0; c < g->coupled; c++) {
                REAL *d = a[k] + c * stride;
                EACH(j, 0, width) d[j] *= length[j];
            }
    }
}

/* Arguments of the steps. x and u are the iterates; to_x and to_u get the points of the last step if the steps are relaxed
   and are null otherwise. */
typedef struct {
    NAME(grid) g;
    REAL *x, *u[3], *to_x, *to_u[3];
    const REAL *y;
    const double *numbers;
    int64_t steps, size; /* size is that of the workspace of a thread */
    int alone;                 /* whether a thread processes whole samples */
    REAL *room;
    counter *arrived;
} NAME(grid_work);

/* Write 2p - x for a row of p = prox(x - tau D^T u) to out. If relax is not negative, x moves by relax (p - x), and p is
   copied to `to` unless that is null. */
static void NAME(ahead_row)(const NAME(grid_work) *w, const double *n, int64_t plane, int64_t row, REAL relax, REAL *to,
                            const REAL *zeros, REAL *room, REAL *out) {
    const NAME(grid) *g = &w->g;
    int64_t width = g->width, at = (plane * g->depth * g->height + row) * width;
    int64_t i = row / g->height, j = row % g->height;
    REAL tau = (REAL)n[0], pull = (REAL)n[1], deep = tau * (REAL)n[6], tall = tau * (REAL)n[7], wide = tau * (REAL)n[8];
    const REAL *front = i ? w->u[0] + NAME(block_row)(g, 0, plane, row - g->height) : zeros;
    const REAL *back = i + 1 < g->depth ? w->u[0] + NAME(block_row)(g, 0, plane, row) : zeros;
    const REAL *up = j ? w->u[1] + NAME(block_row)(g, 1, plane, row - 1) : zeros;
    const REAL *down = j + 1 < g->height ? w->u[1] + NAME(block_row)(g, 1, plane, row) : zeros;
    const REAL *along = w->u[2] + NAME(block_row)(g, 2, plane, row);
    const REAL *y = w->y + at;
    REAL *x = w->x + at, *p = room;
    EACH(k, 0, width) p[k] = x[k] - deep * (front[k] - back[k]) - tall * (up[k] - down[k]);
    EACH(k, 0, width - 1) p[k] += wide * along[k];
    EACH(k, 0, width - 1) p[k + 1] -= wide * along[k];
    EACH(k, 0, width) p[k] += pull * (y[k] - p[k]);
    EACH(k, 0, width) out[k] = 2 * p[k] - x[k];
    if (relax < 0) return;
    if (to) EACH(k, 0, width) to[at + k] = p[k];
    if (relax == 1)
        EACH(k, 0, width) x[k] = p[k];
    else
        EACH(k, 0, width) x[k] += relax * (p[k] - x[k]);
}

/* The dual step on one row of the planes that are projected together. ring has the rows of 2p - x of these planes, each
   `size` rows of the workspace. */
static void NAME(dual_row)(const NAME(grid_work) *w, const double *n, int64_t first, int64_t row, const REAL *ring, int64_t size,
                           int last, REAL *room, int64_t stride) {
    const NAME(grid) *g = &w->g;
    int64_t width = g->width, free = NAME(free_groups)(g), many = g->coupled * stride;
    int64_t across[3] = {row + g->height, row + 1, row};
    REAL bound = (REAL)n[3], shrink = (REAL)n[4], relax = (REAL)n[5];
    REAL *a[3] = {room, room + many, room + 2 * many};
    int held = NAME(is_held)(g, row);
    for (int64_t c = 0; c < g->coupled && !held; c++)
        for (int k = 0; k < 3; k++) {
            int64_t place = NAME(block_row)(g, k, first + c, row), count = k == 2 ? width - 1 : width;
            const REAL *from = ring + (c * size + row % size) * stride, *to = ring + (c * size + across[k] % size) * stride;
            REAL *d = a[k] + c * stride, sigma = (REAL)(n[2] * n[6 + k]);
            if (place < 0) {
                EACH(j, 0, width) d[j] = 0;
                continue;
            }
            const REAL *u = w->u[k] + place;
            if (k == 2) to++;
            EACH(j, 0, count) d[j] = shrink * (u[j] + sigma * (to[j] - from[j]));
            if (k == 2) d[width - 1] = 0;
        }
    if (!held) NAME(into_balls)(g, a, stride, bound, room + 3 * many);
    for (int64_t c = 0; c < g->coupled; c++)
        for (int k = 0; k < 3; k++) {
            int64_t place = NAME(block_row)(g, k, first + c, row), count = k == 2 ? width - 1 : width;
            int64_t moved = held ? 0 : count < free ? count : free;
            if (place < 0) continue;
            const REAL *d = a[k] + c * stride;
            REAL *u = w->u[k] + place;
            if (last && w->to_u[k]) {
                REAL *to = w->to_u[k] + place;
                EACH(j, 0, moved) to[j] = d[j];
                EACH(j, moved, count) to[j] = u[j];
            }
            if (relax == 1)
                EACH(j, 0, moved) u[j] = d[j];
            else
                EACH(j, 0, moved) u[j] += relax * (d[j] - u[j]);
        }
}

/* The number of entries of the workspace of a thread. */
static int64_t NAME(grid_room)(const NAME(grid) *g) {
    return ((2 * g->ahead + 1) * g->channels + 2 + 3 * g->coupled + 1) * GRID_STRIDE(g->width);
}

/* All steps on the rows [from, to) of a sample, while other threads process the other bands. Rows of 2p - x that depend on
   rows of other threads are computed before these change. */
static void NAME(grid_band)(const NAME(grid_work) *w, REAL *room, int64_t sample, int64_t from, int64_t to, int64_t bands,
                            counter *arrived) {
    const NAME(grid) *g = &w->g;
    int64_t stride = GRID_STRIDE(g->width), size = g->ahead + 1, channels = g->channels, rows = g->depth * g->height;
    const double *n = w->numbers + sample * GRID_COLUMNS;
    REAL relax = (REAL)n[5];
    REAL *ring = room, *next = ring + size * channels * stride, *zeros = next + g->ahead * channels * stride;
    REAL *point = zeros + stride, *space = point + stride;
    int64_t begun = to < from + g->ahead ? to : from + g->ahead, end = to < rows ? to + g->ahead : to;
    EACH(j, 0, stride) zeros[j] = 0;
    for (int64_t step = 0; step < w->steps; step++) {
        int last = step + 1 == w->steps;
        REAL *to_x = last ? w->to_x : NULL;
        for (int64_t c = 0; c < channels; c++) {
            int64_t plane = sample * channels + c;
            for (int64_t row = to; row < end; row++)
                NAME(ahead_row)(w, n, plane, row, -1, NULL, zeros, point, next + (c * g->ahead + row - to) * stride);
            for (int64_t row = from; row < begun; row++)
                NAME(ahead_row)(w, n, plane, row, -1, NULL, zeros, point, ring + (c * size + row % size) * stride);
        }
        grid_meet(arrived, bands * (2 * step + 1));
        for (int64_t c = 0; c < channels; c++)
            for (int64_t row = from; row < begun; row++) {
                int64_t at = ((sample * channels + c) * rows + row) * g->width;
                const REAL *b = ring + (c * size + row % size) * stride;
                REAL *x = w->x + at;
                if (to_x) EACH(j, 0, g->width) to_x[at + j] = (b[j] + x[j]) / 2;
                EACH(j, 0, g->width) x[j] += relax / 2 * (b[j] - x[j]);
            }
        for (int64_t row = from; row < to; row++) {
            int64_t far = row + g->ahead;
            for (int64_t c = 0; c < channels && g->ahead; c++) {
                REAL *out = ring + (c * size + far % size) * stride;
                if (far < to)
                    NAME(ahead_row)(w, n, sample * channels + c, far, relax, to_x, zeros, point, out);
                else if (far < rows)
                    EACH(j, 0, g->width) out[j] = next[(c * g->ahead + far - to) * stride + j];
            }
            for (int64_t c = 0; c < channels; c += g->coupled) {
                if (!g->ahead) /* a signal has one row */
                    for (int64_t k = c; k < c + g->coupled; k++)
                        NAME(ahead_row)(w, n, sample * channels + k, row, relax, to_x, zeros, point, ring + k * stride);
                NAME(dual_row)(w, n, sample * channels + c, row, ring + c * size * stride, size, last, space, stride);
            }
        }
        grid_meet(arrived, bands * (2 * step + 2));
    }
}

/* The part of all steps of one thread. */
static int NAME(grid_part)(const void *work, int mine, int all) {
    const NAME(grid_work) *w = work;
    const NAME(grid) *g = &w->g;
    REAL *room = w->room + mine * w->size;
    int64_t rows = g->depth * g->height, unit = g->depth > 1 ? g->height : 1, units = rows / unit;
    if (w->alone)
        for (int64_t sample = mine; sample < g->samples; sample += all)
            NAME(grid_band)(w, room, sample, 0, rows, 1, w->arrived + sample);
    else
        for (int64_t sample = 0; sample < g->samples; sample++)
            NAME(grid_band)(w, room, sample, units * mine / all * unit, units * (mine + 1) / all * unit, all, w->arrived + sample);
    return 0;
}

/* At least one step of the primal-dual hybrid gradient method on 1/2 c |x - y|^2 + G(Dx), in place:
     p = (1 - pull)(x - tau D^T u) + pull y,    q = limit(shrink (u + sigma D(2p - x))),    pull = c tau/(1 + c tau)
     (x, u) += relaxation ((p, q) - (x, u))
   D has a weight for every axis. numbers has GRID_COLUMNS for every sample. to_x and to_deep, to_tall and to_wide get the
   last p and q, unless they are null. Returns 0, or 1 if memory cannot be allocated. */
EXPORT int NAME(grid_steps)(int64_t samples, int64_t channels, int64_t depth, int64_t height, int64_t width, int groups, int held,
                            REAL *x, REAL *deep, REAL *tall, REAL *wide, REAL *to_x, REAL *to_deep, REAL *to_tall, REAL *to_wide,
                            const REAL *y, const double *numbers, int64_t steps, int threads) {
    NAME(grid) g = NAME(grid_of)(samples, channels, depth, height, width, groups, held);
    int64_t units = depth > 1 ? depth : height, size = NAME(grid_room)(&g);
    int alone = samples % threads == 0 || samples >= 4 * threads || channels * depth * height * width < 1 << 14;
    int64_t parts = alone ? samples : units;
    if (threads > parts) threads = parts > 1 ? (int)parts : 1;
    REAL *room = allocate_aligned(threads * size * (int64_t)sizeof(REAL));
    counter *arrived = calloc((size_t)(samples ? samples : 1), sizeof(counter));
    NAME(grid_work) work = {g, x, {deep, tall, wide}, to_x, {to_deep, to_tall, to_wide}, y, numbers, steps, size, alone, room, arrived};
    int failed = !room || !arrived;
    if (!failed) run_team(threads, NAME(grid_part), &work);
    free_aligned(room);
    free(arrived);
    return failed;
}

/* Arguments of the sums of values and bounds. */
typedef struct {
    NAME(grid) g;
    const REAL *x, *y, *u[3];
    const double *numbers;
    double *sums;
} NAME(grid_sums_work);

/* The sums of one layer of a sample: of (x - y)^2, and of h(|(Dx)_g|). numbers has the width of the Huber function and the
   weights of the axes. */
static int NAME(grid_value_layer)(const void *work, int64_t unit) {
    const NAME(grid_sums_work) *w = work;
    const NAME(grid) *g = &w->g;
    int64_t sample = unit / g->depth, i = unit % g->depth, width = g->width, rows = g->depth * g->height;
    const double *n = w->numbers;
    int parts = g->groups & GRID_ISOTROPIC ? 1 : 3, axes = 3 / parts;
    double *room = malloc((size_t)(3 * width) * sizeof(double)), squares = 0, total = 0;
    if (!room) return 1;
    for (int64_t j = 0; j < g->height; j++)
        for (int64_t first = 0; first < g->channels; first += g->coupled) {
            int64_t row = i * g->height + j;
            EACH(k, 0, 3 * width) room[k] = 0;
            for (int64_t c = first; c < first + g->coupled; c++) {
                int64_t plane = sample * g->channels + c, at = (plane * rows + row) * width;
                const REAL *x = w->x + at, *y = w->y + at;
                double sum = 0;
#pragma omp simd reduction(+ : sum)
                for (int64_t k = 0; k < width; k++) {
                    double d = (double)x[k] - y[k];
                    sum += d * d;
                }
                squares += sum;
                if (NAME(is_held)(g, row)) continue;
                for (int axis = 0; axis < 3; axis++) {
                    if (NAME(block_row)(g, axis, plane, row) < 0) continue;
                    const REAL *to = x + (axis == 0 ? g->height * width : axis == 1 ? width : 1);
                    double *lengths = room + axis / axes * width, weight = n[1 + axis];
                    int64_t count = axis == 2 ? width - 1 : width, free = NAME(free_groups)(g);
                    if (free < count) count = free;
                    EACH(k, 0, count) {
                        double d = weight * ((double)to[k] - x[k]);
                        lengths[k] += d * d;
                    }
                }
            }
            double half = n[0] / 2, sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t k = 0; k < parts * width; k++) {
                double length = sqrt(room[k]);
                sum += length < n[0] ? room[k] / (2 * n[0]) : length - half;
            }
            total += sum;
        }
    w->sums[2 * unit] = squares;
    w->sums[2 * unit + 1] = total;
    free(room);
    return 0;
}

/* For every layer of every sample, sums gets the sums of (x - y)^2 and of h(|(Dx)_g|), in double precision. numbers has the
   width of the Huber function h, 0 for none, and the weights of the three axes. */
EXPORT int NAME(grid_value)(int64_t samples, int64_t channels, int64_t depth, int64_t height, int64_t width, int groups, int held,
                            const REAL *x, const REAL *y, const double *numbers, double *sums, int threads) {
    NAME(grid_sums_work) work = {NAME(grid_of)(samples, channels, depth, height, width, groups, held), x, y, {NULL, NULL, NULL},
                                 numbers, sums};
    return for_each(samples * depth, NAME(grid_value_layer), &work, threads);
}

/* Write the groups of a row of u, scaled into the ball of a radius, to a; zeros outside of the sample. */
static void NAME(projected_row)(const NAME(grid_sums_work) *w, int64_t first, int64_t i, int64_t j, double radius, double *const *a,
                                double *length) {
    const NAME(grid) *g = &w->g;
    int64_t width = g->width, row = i * g->height + j;
    IN_DOUBLE(grid) same = {g->samples, g->channels, g->coupled, g->depth, g->height, width, g->ahead, g->groups, g->held};
    int absent = i < 0 || j < 0 || NAME(is_held)(g, row);
    for (int k = 0; k < 3; k++)
        for (int64_t c = 0; c < g->coupled; c++) {
            double *d = a[k] + c * width;
            int64_t place = absent ? -1 : NAME(block_row)(g, k, first + c, row), count = k == 2 ? width - 1 : width;
            int64_t free = NAME(free_groups)(g);
            if (place < 0) count = 0;
            if (free < count) count = free;
            const REAL *u = w->u[k] + (place < 0 ? 0 : place);
            EACH(e, 0, count) d[e] = u[e];
            EACH(e, count, width) d[e] = 0;
        }
    if (!absent) IN_DOUBLE(into_balls)(&same, a, width, radius, length);
}

/* The sums of one layer of a sample for the bound, with w = D^T u and u scaled into the ball:
   of w (y - c) - w^2/(4s), of the magnitudes of these terms, of |y - c| + |w|/(2s), and of u^2. numbers has the radius, 1/(4s),
   the weights of the axes, and c for every channel. */
static int NAME(grid_bound_layer)(const void *work, int64_t unit) {
    const NAME(grid_sums_work) *w = work;
    const NAME(grid) *g = &w->g;
    int64_t sample = unit / g->depth, i = unit % g->depth, width = g->width, rows = g->depth * g->height, many = g->coupled * width;
    const double *n = w->numbers + sample * (5 + g->channels);
    double *room = malloc((size_t)(9 * many + 2 * width) * sizeof(double)), sums[4] = {0, 0, 0, 0};
    if (!room) return 1;
    double *blocks[3][3];
    for (int at = 0; at < 3; at++)
        for (int k = 0; k < 3; k++) blocks[at][k] = room + (3 * at + k) * many;
    double *length = room + 9 * many, *v = length + width;
    for (int64_t first = 0; first < g->channels; first += g->coupled)
        for (int64_t j = 0; j < g->height; j++) {
            int64_t plane = sample * g->channels + first;
            double **here = blocks[j % 2], **above = blocks[1 - j % 2], **front = blocks[2];
            if (j == 0) NAME(projected_row)(w, plane, i, -1, n[0], above, length);
            NAME(projected_row)(w, plane, i, j, n[0], here, length);
            NAME(projected_row)(w, plane, i - 1, j, n[0], front, length);
            for (int64_t c = 0; c < g->coupled; c++) {
                const REAL *y = w->y + ((plane + c) * rows + i * g->height + j) * width;
                double *deep = here[0] + c * width, *tall = here[1] + c * width, *wide = here[2] + c * width;
                double *before = front[0] + c * width, *up = above[1] + c * width, centre = n[5 + first + c], quarter = n[1];
                double value = 0, size = 0, extent = 0, squares = 0;
                EACH(k, 0, width) v[k] = n[2] * (before[k] - deep[k]) + n[3] * (up[k] - tall[k]) - n[4] * wide[k];
                EACH(k, 1, width) v[k] += n[4] * wide[k - 1];
#pragma omp simd reduction(+ : value, size, extent, squares)
                for (int64_t k = 0; k < width; k++) {
                    double offset = (double)y[k] - centre, linear = v[k] * offset, square = v[k] * (v[k] * quarter); /* v^2 may underflow */
                    value += linear - square;
                    size += fabs(linear) + square;
                    extent += fabs(offset) + 2 * quarter * fabs(v[k]);
                    squares += deep[k] * deep[k] + tall[k] * tall[k] + wide[k] * wide[k];
                }
                sums[0] += value;
                sums[1] += size;
                sums[2] += extent;
                sums[3] += squares;
            }
        }
    for (int k = 0; k < 4; k++) w->sums[4 * unit + k] = sums[k];
    free(room);
    return 0;
}

/* For every layer of every sample, sums gets four sums of the dual value of u, in double precision; see grid_bound_layer.
   numbers has 5 + channels numbers for every sample. */
EXPORT int NAME(grid_bound)(int64_t samples, int64_t channels, int64_t depth, int64_t height, int64_t width, int groups, int held,
                            const REAL *deep, const REAL *tall, const REAL *wide, const REAL *y, const double *numbers,
                            double *sums, int threads) {
    NAME(grid_sums_work) work = {NAME(grid_of)(samples, channels, depth, height, width, groups, held), NULL, y, {deep, tall, wide},
                                 numbers, sums};
    return for_each(samples * depth, NAME(grid_bound_layer), &work, threads);
}
