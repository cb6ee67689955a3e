/* FISTA on the dual of total-variation denoising: many steps on a sample while it is in the cache.

   Whether the momentum m of a sample restarts is known only after a step on the whole sample. So v = u + m (u - old) is
   not stored: the next step computes it row by row from u and the previous u, and a step is one pass over memory.
   Threads process samples. If there are too few samples, they process bands of rows and synchronise twice a step. */

/* Arguments of the steps. u is in v[0] and h[0], the point to step from in v[1] and h[1], where the next u is written:
   the two are swapped at every step. numbers has COLUMNS_FISTA for every sample and step. */
typedef struct {
    int64_t channels, coupled, height, width, planes, samples, period;
    REAL *x, *v[2], *h[2], *theta;
    const REAL *y, *low, *high;
    const double *numbers;
    int groups;
    int64_t steps, size; /* size is that of the workspace of a thread */
    int alone;           /* whether a thread processes whole samples */
    REAL *room;
    double *sums;
    counter *arrived;
} NAME(fista_work);

#ifndef COLUMNS_FISTA
#define COLUMNS_FISTA 4 /* sigma, bound, shrink, pull */
#define SMALL (1 << 14) /* pixels of a sample up to which synchronisation costs more than it gains */
/* Barrier: wait until all threads have arrived. */
static void meet(counter *arrived, int64_t needed) {
    atomic_fetch_add_explicit(arrived, 1, memory_order_acq_rel);
    wait_for(arrived, needed);
}
#endif

/* out <- a + m (a - b), or a if there is no m. */
static void NAME(extrapolate)(int64_t n, const REAL *a, const REAL *b, const REAL *m, REAL *out) {
    if (m) {
        REAL momentum = *m;
        EACH(j, 0, n) out[j] = a[j] + momentum * (a[j] - b[j]);
    } else
        EACH(j, 0, n) out[j] = a[j];
}

/* One row of the vertical part of the extrapolated v; zero at the border. */
static void NAME(down_row)(const NAME(fista_work) *w, int64_t plane, int64_t row, int64_t one, const REAL *m, REAL *down) {
    int64_t width = w->width, at = (plane * (w->height - 1) + row) * width;
    if (row < 0 || row + 1 >= w->height)
        EACH(j, 0, width) down[j] = 0;
    else
        NAME(extrapolate)(width, w->v[one] + at, w->v[1 - one] + at, m, down);
}

/* One row of its horizontal part. */
static void NAME(along_row)(const NAME(fista_work) *w, int64_t plane, int64_t row, int64_t one, const REAL *m, REAL *along) {
    int64_t width = w->width, at = (plane * w->height + row) * (width - 1);
    NAME(extrapolate)(width - 1, w->h[one] + at, w->h[1 - one] + at, m, along);
    along[-1] = along[width - 1] = 0;
}

/* One row of x(v) = clip(y - pull D^T v). */
static void NAME(point_row)(const NAME(fista_work) *w, int64_t plane, int64_t row, REAL pull, const REAL *up, const REAL *down,
                            const REAL *along, REAL *x) {
    const REAL *y = w->y + (plane * w->height + row) * w->width;
    REAL low = w->low[plane], high = w->high[plane];
    EACH(j, 0, w->width) {
        REAL pulled = y[j] - pull * (up[j] - down[j] + (along[j - 1] - along[j]));
        REAL most = high < pulled ? high : pulled; /* NaN stays NaN */
        x[j] = low > most ? low : most;
    }
}

/* One row of x(v). room is a workspace of three rows. */
static void NAME(lone_row)(const NAME(fista_work) *w, int64_t plane, int64_t row, REAL pull, int64_t one, const REAL *m, REAL *room,
                           REAL *x) {
    REAL *up = room, *down = up + STRIDE(w->width), *along = down + STRIDE(w->width);
    NAME(down_row)(w, plane, row - 1, one, m, up);
    NAME(down_row)(w, plane, row, one, m, down);
    NAME(along_row)(w, plane, row, one, m, along);
    NAME(point_row)(w, plane, row, pull, up, down, along, x);
}

/* The sum of a row whose last vector is zero-padded, in a fixed order. */
static double NAME(total)(const REAL *p, int64_t width) {
    REAL lanes[16] = {0};
    double sum = 0;
    for (int64_t j = 0; j < width; j += 16)
        EACH(k, 0, 16) lanes[k] += p[j + k];
    for (int k = 0; k < 16; k++) sum += lanes[k];
    return sum;
}

/* Write n entries of u' = limit(shrink (v + sigma (b - a))) to next, each projected by itself; return their
   contribution to <v - u', u' - u>. */
static void NAME(ascend)(int64_t n, const REAL *v, const REAL *a, const REAL *b, const double *numbers, const REAL *u,
                         REAL *next, REAL *product) {
    REAL sigma = (REAL)numbers[0], bound = (REAL)numbers[1], shrink = (REAL)numbers[2];
    EACH(j, 0, n) {
        REAL new = NAME(clip)(shrink * (v[j] + sigma * (b[j] - a[j])), bound);
        product[j] += (v[j] - new) * (new - u[j]);
        next[j] = new;
    }
}

/* The same for entries that have been projected already. */
static void NAME(keep)(int64_t n, const REAL *v, const REAL *new, const REAL *u, REAL *next, REAL *product) {
    EACH(j, 0, n) {
        product[j] += (v[j] - new[j]) * (new[j] - u[j]);
        next[j] = new[j];
    }
}

/* One step on rows [from, to) of the planes that are projected together. ends has x(v) of the first of these rows and of
   the row after the last, for all channels; sums gets <v - u', u' - u> of every row. u is at index `u`, and v is
   extrapolated from index `one`. */
static void NAME(fista_rows)(const NAME(fista_work) *w, REAL *room, int64_t first, int64_t from, int64_t to, const double *n, int64_t u,
                             int64_t one, const REAL *m, REAL *ends, double *sums) {
    int64_t width = w->width, height = w->height, stride = STRIDE(width), many = w->coupled * stride, next = 1 - u;
    REAL sigma = (REAL)n[0], bound = (REAL)n[1], shrink = (REAL)n[2], pull = (REAL)n[3];
    REAL *down[2] = {room, room + many}, *along[2] = {room + 2 * many, room + 3 * many};
    REAL *x[2] = {room + 4 * many, room + 5 * many}, *new_down = room + 6 * many, *new_along = room + 7 * many;
    REAL *product = room + 8 * many, *length = product + stride, *last = ends + w->channels * stride;
    EACH(j, 0, many) x[from % 2][j] = ends[first % w->channels * stride + j];
    for (int64_t i = 0; i < w->coupled; i++) {
        NAME(down_row)(w, first + i, from, one, m, down[from % 2] + i * stride);
        NAME(along_row)(w, first + i, from, one, m, along[from % 2] + i * stride);
    }
    for (int64_t row = from; row < to; row++) {
        int here = row % 2, below = 1 - here;
        EACH(j, 0, stride) product[j] = 0;
        for (int64_t i = 0; i < w->coupled; i++) {
            int64_t plane = first + i, at_v = (plane * (height - 1) + row) * width, at_h = (plane * height + row) * (width - 1);
            REAL *d = down[here] + i * stride, *a = along[here] + i * stride, *xs = x[here] + i * stride;
            REAL *xb = x[below] + i * stride;
            if (row + 1 < to) {
                REAL *db = down[below] + i * stride, *ab = along[below] + i * stride;
                NAME(down_row)(w, plane, row + 1, one, m, db);
                NAME(along_row)(w, plane, row + 1, one, m, ab);
                NAME(point_row)(w, plane, row + 1, pull, d, db, ab, xb);
            } else if (row + 1 < height)
                EACH(j, 0, width) xb[j] = last[plane % w->channels * stride + j];
            if (!w->groups) {
                if (row + 1 < height) NAME(ascend)(width, d, xs, xb, n, w->v[u] + at_v, w->v[next] + at_v, product);
                NAME(ascend)(width - 1, a, xs, xs + 1, n, w->h[u] + at_h, w->h[next] + at_h, product);
                continue;
            }
            REAL *nd = new_down + i * stride, *na = new_along + i * stride;
            if (row + 1 < height)
                EACH(j, 0, width) nd[j] = shrink * (d[j] + sigma * (xb[j] - xs[j]));
            else
                EACH(j, 0, width) nd[j] = 0;
            EACH(j, 0, width - 1) na[j] = shrink * (a[j] + sigma * (xs[j + 1] - xs[j]));
            na[width - 1] = 0;
        }
        if (w->groups) NAME(limit)(new_down, new_along, w->coupled, stride, width, bound, w->groups, length);
        for (int64_t i = 0; i < w->coupled && w->groups; i++) {
            int64_t plane = first + i, at_v = (plane * (height - 1) + row) * width, at_h = (plane * height + row) * (width - 1);
            const REAL *d = down[here] + i * stride, *a = along[here] + i * stride;
            if (row + 1 < height)
                NAME(keep)(width, d, new_down + i * stride, w->v[u] + at_v, w->v[next] + at_v, product);
            NAME(keep)(width - 1, a, new_along + i * stride, w->h[u] + at_h, w->h[next] + at_h, product);
        }
        sums[row] = NAME(total)(product, width) + (first % w->channels ? sums[row] : 0);
    }
}

/* All steps on one band of rows of a sample, while other threads process the other bands. */
static void NAME(fista_band)(const NAME(fista_work) *w, REAL *room, double *sums, int64_t sample, int64_t steps, int64_t band,
                             int64_t bands, counter *arrived) {
    int64_t width = w->width, height = w->height, stride = STRIDE(width), first = sample * w->channels;
    int64_t from = height * band / bands, to = height * (band + 1) / bands, u = steps % 2;
    REAL *ends = room, theta = w->theta[sample], momentum = 0, pull = 0;
    room = ends + (2 * w->channels + 1) * stride;
    for (int64_t step = 0; step < steps; step++) {
        double *sum = sums + step % 2 * height; /* other threads may still read the sums of the previous step */
        int64_t one = step ? step % 2 : 1; /* before the first step there is no momentum */
        const REAL *m = step ? &momentum : NULL;
        const double *n = NUMBERS(w, step, first, COLUMNS_FISTA);
        pull = (REAL)n[3];
        /* Values that depend on rows of other threads are computed before these change. */
        for (int64_t c = 0; c < w->channels && from < to; c++) {
            NAME(lone_row)(w, first + c, from, pull, one, m, room, ends + c * stride);
            if (to < height) NAME(lone_row)(w, first + c, to, pull, one, m, room, ends + (w->channels + c) * stride);
        }
        meet(arrived, bands * (2 * step + 1));
        for (int64_t c = 0; c < w->channels && from < to; c += w->coupled)
            NAME(fista_rows)(w, room, first + c, from, to, n, step % 2, one, m, ends, sum);
        meet(arrived, bands * (2 * step + 2));
        double against = 0;
        for (int64_t row = 0; row < height; row++) against += sum[row];
        REAL grown = (1 + ROOT(1 + 4 * theta * theta)) / 2;
        momentum = against > 0 ? 0 : (theta - 1) / grown;
        theta = against > 0 ? 1 : grown;
    }
    for (int64_t plane = first; plane < first + w->channels; plane++)
        for (int64_t row = from; row < to; row++) {
            NAME(lone_row)(w, plane, row, pull, u, NULL, room, w->x + (plane * height + row) * width);
            REAL *v = w->v[1 - u] + (plane * (height - 1) + row) * width;
            REAL *h = w->h[1 - u] + (plane * height + row) * (width - 1);
            if (row + 1 < height)
                NAME(extrapolate)(width, w->v[u] + (plane * (height - 1) + row) * width, v, &momentum, v);
            NAME(extrapolate)(width - 1, w->h[u] + (plane * height + row) * (width - 1), h, &momentum, h);
        }
    if (band == 0) w->theta[sample] = theta;
}

/* The part of all steps of one thread. */
static int NAME(fista_part)(const void *work, int mine, int all) {
    const NAME(fista_work) *w = work;
    REAL *room = w->room + mine * w->size;
    if (w->alone)
        for (int64_t sample = mine; sample < w->samples; sample += all)
            NAME(fista_band)(w, room, w->sums + mine * 2 * w->height, sample, w->steps, 0, 1, w->arrived + sample);
    else
        for (int64_t sample = 0; sample < w->samples; sample++)
            NAME(fista_band)(w, room, w->sums, sample, w->steps, mine, all, w->arrived + sample);
    return 0;
}

/* At least one step. With x(v) = clip(y - pull D^T v), and low and high of every plane,
     u' = limit(shrink (v + sigma D x(v))),    v' = u' + m (u' - u),    x' = x(u'),
   with m and theta as in FISTA, but m = 0 and theta = 1 if <v - u', u' - u> > 0. u = (v, h), (v_ahead, h_ahead) and theta
   are changed in place; after an odd number of steps the first two are swapped. The rest is as for amd_stencil. */
EXPORT int NAME(dual_fista)(int64_t planes, int64_t channels, int64_t coupled, int64_t height, int64_t width, REAL *x, REAL *v, REAL *h,
                     REAL *v_ahead, REAL *h_ahead, REAL *theta, const REAL *y, const REAL *low, const REAL *high,
                     const double *numbers, int64_t period, int64_t steps, int groups, int threads) {
    int64_t samples = planes / channels, size = (2 * channels + 1 + 8 * coupled + 3) * STRIDE(width);
    int alone = samples % threads == 0 || samples >= 4 * threads || channels * height * width < SMALL;
    REAL *room = allocate_aligned(threads * size * (int64_t)sizeof(REAL));
    double *sums = malloc((size_t)(threads * 2 * height) * sizeof(double));
    counter *arrived = calloc((size_t)samples, sizeof(counter));
    NAME(fista_work) work = {channels, coupled, height, width, planes, samples, period, x,
                             {v, v_ahead}, {h, h_ahead}, theta, y, low, high, numbers, groups,
                             steps, size, alone, room, sums, arrived};
    int failed = !room || !sums || !arrived;
    if (!failed) run_team(alone && samples < threads ? (int)samples : threads, NAME(fista_part), &work);
    free_aligned(room);
    free(sums);
    free(arrived);
    return failed;
}
