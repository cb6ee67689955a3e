/* Primal-dual methods on total-variation problems: one step on one row, and many steps on many images. */

/* Arguments of the steps. numbers has COLUMNS_PD for every sample and step, and repeats after period steps. If the
   iterates x, v and h are relaxed, to_x, to_v and to_h get the points of the last step; else they are null. moves tells
   whether there is momentum. */
typedef struct {
    int64_t channels, coupled, height, width, masks, planes, samples, period, steps;
    REAL *to_x, *to_v, *to_h;
    const REAL *y, *mask, *ones, *low, *high;
    const double *numbers;
    int groups, moves;
} NAME(pd_work);

#ifndef COLUMNS_PD
#define COLUMNS_PD 10 /* tau, pull, shift, sigma, bound, side, shrink, relaxation, ahead, momentum */
enum { PD_X, PD_V, PD_H, PD_MOVE };
#define RELAXED 1 /* the iterates are relaxed */
#define KEPT 2    /* the points before the relaxation are stored */

/* Call a function whose last argument is a set of flags, which is constant for the compiler. */
#define WITH_CONSTANT_FLAGS(flags, function, ...)                            \
    do {                                                                     \
        if ((flags) == 0) function(__VA_ARGS__, 0);                          \
        else if ((flags) == RELAXED) function(__VA_ARGS__, RELAXED);         \
        else function(__VA_ARGS__, RELAXED | KEPT);                          \
    } while (0)
#endif

/* The numbers of a step on a plane. more is the relaxation - 1. */
typedef struct {
    REAL tau, pull, shift, sigma, bound, side, shrink, more, ahead, momentum, low, high;
} NAME(pd_numbers);

/* Relax an iterate towards a point, and store the point. */
static inline __attribute__((always_inline)) void NAME(relax)(REAL *x, REAL point, REAL more, REAL *to, int flags) {
    *x = flags & RELAXED ? point + more * (point - *x) : point;
    if (flags & KEPT) *to = point;
}

/* Move x to a point, and store the change and the point ahead of it. */
static inline __attribute__((always_inline)) void NAME(advance)(REAL *x, REAL point, const NAME(pd_numbers) *n, REAL *ahead,
                                                                REAL *move, int moves, REAL *to, int flags) {
    REAL before = *x;
    *ahead = point + n->ahead * (point - before);
    NAME(relax)(x, point, n->more, to, flags);
    if (moves) *move = *x - before;
}

/* One row of x' without a stencil. */
static inline __attribute__((always_inline)) void NAME(proximal_row)(int64_t whole, const NAME(pd_numbers) *n, REAL *x,
                                                                     const REAL *up, const REAL *v, const REAL *h,
                                                                     const REAL *y, const REAL *mask, REAL *ahead,
                                                                     REAL *move, REAL *to, int moves, int flags) {
    REAL tau = n->tau, pull = n->pull, shift = n->shift, low = n->low, high = n->high, momentum = n->momentum;
    REAL data_momentum = shift != 0 ? momentum : 0;
    NAME(pd_numbers) numbers = *n;
    VECTORS(j, whole) {
        REAL w = up[j] - v[j] + (h[j - 1] - h[j]), base = x[j], centre = x[j];
        if (moves) {
            base += momentum * move[j];
            centre += data_momentum * move[j];
        }
        REAL point = base - tau * w + pull * mask[j] * (y[j] - centre + shift * w);
        point = high < point ? high : point;
        point = low > point ? low : point;
        NAME(advance)(x + j, point, &numbers, ahead + j, move + j, moves, to + j, flags);
    }
}

/* One row of g = w + pull/tau m (x - y). */
static void NAME(slope_row)(int64_t whole, REAL fidelity, const REAL *x, const REAL *up, const REAL *v, const REAL *h,
                            const REAL *y, const REAL *mask, REAL *g) {
    VECTORS(j, whole) g[j] = up[j] - v[j] + (h[j - 1] - h[j]) + fidelity * mask[j] * (x[j] - y[j]);
}

/* One row of x' with a stencil, from filtered rows of g. */
static inline __attribute__((always_inline)) void NAME(preconditioned_row)(int64_t whole, const NAME(pd_numbers) *n, REAL *x,
                                                                           const REAL *up, const REAL *here,
                                                                           const REAL *below, REAL *ahead, REAL *move,
                                                                           REAL *to, int moves, int flags) {
    REAL tau = n->tau, side = n->side, momentum = n->momentum;
    NAME(pd_numbers) numbers = *n;
    VECTORS(j, whole) {
        REAL base = moves ? x[j] + momentum * move[j] : x[j];
        REAL point = base - tau * (here[j] + side * (up[j] - 2 * here[j] + below[j]));
        NAME(advance)(x + j, point, &numbers, ahead + j, move + j, moves, to + j, flags);
    }
}

/* One row of u' whose entries are clipped one by one. a is ahead, b the row below it. */
static inline __attribute__((always_inline)) void NAME(clipped_dual)(int64_t whole, const NAME(pd_numbers) *n, const REAL *a,
                                                                     const REAL *b, REAL *v, REAL *h, REAL *to_v,
                                                                     REAL *to_h, int flags) {
    REAL sigma = n->sigma, bound = n->bound, shrink = n->shrink, more = n->more;
    VECTORS(j, whole) {
        REAL down = NAME(clip)(shrink * (v[j] + sigma * (b[j] - a[j])), bound);
        REAL along = NAME(clip)(shrink * (h[j] + sigma * (a[j + 1] - a[j])), bound);
        NAME(relax)(v + j, down, more, to_v + j, flags);
        NAME(relax)(h + j, along, more, to_h + j, flags);
    }
}

/* One row of shrink (u + sigma D(ahead)). */
static void NAME(ascent_row)(int64_t whole, const NAME(pd_numbers) *n, const REAL *a, const REAL *b, const REAL *v,
                             const REAL *h, REAL *down, REAL *along) {
    REAL sigma = n->sigma, shrink = n->shrink;
    VECTORS(j, whole) {
        down[j] = shrink * (v[j] + sigma * (b[j] - a[j]));
        along[j] = shrink * (h[j] + sigma * (a[j + 1] - a[j]));
    }
}

/* One row of u', from such a row and the factors of its groups. */
static inline __attribute__((always_inline)) void NAME(grouped_dual)(int64_t whole, const NAME(pd_numbers) *n, const REAL *down,
                                                                     const REAL *along, const REAL *down_factor,
                                                                     const REAL *along_factor, REAL *v, REAL *h, REAL *to_v,
                                                                     REAL *to_h, int flags) {
    REAL more = n->more;
    VECTORS(j, whole) {
        NAME(relax)(v + j, down[j] * down_factor[j], more, to_v + j, flags);
        NAME(relax)(h + j, along[j] * along_factor[j], more, to_h + j, flags);
    }
}

/* Copy a row of points to an array of planes of this size, if it has such a row. */
static void NAME(keep_row)(const REAL *from, REAL *to, int64_t plane, int64_t height, int64_t row, int64_t width) {
    if (row < height) memcpy(to + (plane * height + row) * width, from, (size_t)width * sizeof(REAL));
}

/* A step on a row, and the rows of workspace of one channel or of all. */
typedef struct {
    const NAME(pd_work) *w;
    const NAME(window) *at;
    NAME(pd_numbers) n;
    REAL fidelity;      /* pull/tau */
    int64_t first, row; /* first plane of the image */
    int flags;
    REAL *zeros, *last_y, *last_mask, *to, *to_other, *factor, *gradients, *filtered, *ahead, *down, *along;
} NAME(pd_place);

/* The slope of a row of channel i with a stencil; without one, x' two rows above. */
static NOINLINE void NAME(pd_slope)(NAME(pd_place) *p, int64_t i) {
    const NAME(pd_work) *w = p->w;
    const NAME(window) *at = p->at;
    int64_t width = w->width, height = w->height, whole = at->whole, stride = at->stride, plane = p->first + i;
    int64_t row = p->n.side != 0 ? p->row : p->row - 2, start = (plane * height + row) * width;
    if (row < 0 || row >= height) return;
    const REAL *up = row > 0 ? NAME(row_of)(at, PD_V, i, row - 1) : p->zeros, *v = NAME(row_of)(at, PD_V, i, row);
    const REAL *h = NAME(row_of)(at, PD_H, i, row), *mask = w->ones;
    const REAL *y = NAME(padded)(w->y + start, w->y + w->planes * height * width, width, whole, p->last_y);
    REAL *x = NAME(row_of)(at, PD_X, i, row), *g = p->gradients + (2 * i + p->row % 2) * stride;
    if (w->masks)
        mask = NAME(padded)(MASK(w, plane) + row * width, w->mask + w->masks * height * width, width, whole, p->last_mask);
    if (p->n.side != 0) {
        NAME(slope_row)(whole, p->fidelity, x, up, v, h, y, mask, g);
        NAME(reflect)(g, width);
        return;
    }
    REAL *ahead = p->ahead + (2 * i + p->row % 2) * stride, *move = w->moves ? NAME(row_of)(at, PD_MOVE, i, row) : NULL;
    if (w->low) p->n.low = w->low[plane];
    if (w->high) p->n.high = w->high[plane];
    if (w->moves)
        WITH_CONSTANT_FLAGS(p->flags, NAME(proximal_row), whole, &p->n, x, up, v, h, y, mask, ahead, move, p->to, 1);
    else
        WITH_CONSTANT_FLAGS(p->flags, NAME(proximal_row), whole, &p->n, x, up, v, h, y, mask, ahead, move, p->to, 0);
}

/* With a stencil, filter the slope of the previous row of channel i, and compute x' on the row above that. */
static NOINLINE void NAME(pd_change)(const NAME(pd_place) *p, int64_t i) {
    int64_t row = p->row, height = p->w->height, stride = p->at->stride, whole = p->at->whole;
    REAL *filtered = p->filtered + 4 * i * stride, *below = filtered + (row + 3) % 4 * stride;
    if (row > 0 && row <= height) NAME(filter_row)(whole, p->n.side, p->gradients + (2 * i + (row + 1) % 2) * stride, below);
    if (row < 2 || row > height + 1) return;
    const REAL *here = filtered + (row + 2) % 4 * stride, *up = row > 2 ? filtered + (row + 1) % 4 * stride : here;
    const REAL *down = row <= height ? below : here;
    REAL *x = NAME(row_of)(p->at, PD_X, i, row - 2), *ahead = p->ahead + (2 * i + row % 2) * stride;
    REAL *move = p->w->moves ? NAME(row_of)(p->at, PD_MOVE, i, row - 2) : NULL;
    if (p->w->moves)
        WITH_CONSTANT_FLAGS(p->flags, NAME(preconditioned_row), whole, &p->n, x, up, here, down, ahead, move, p->to, 1);
    else
        WITH_CONSTANT_FLAGS(p->flags, NAME(preconditioned_row), whole, &p->n, x, up, here, down, ahead, move, p->to, 0);
}

/* u' of all channels, on the row three above. */
static NOINLINE void NAME(pd_dual)(const NAME(pd_place) *p) {
    const NAME(pd_work) *w = p->w;
    int64_t row = p->row - 3, height = w->height, width = w->width, stride = p->at->stride, whole = p->at->whole;
    for (int64_t pass = w->groups ? 0 : 1; pass < 2; pass++) {
        for (int64_t i = 0; i < w->coupled; i++) {
            const REAL *a = p->ahead + (2 * i + (p->row + 1) % 2) * stride;
            const REAL *b = row + 1 < height ? p->ahead + (2 * i + p->row % 2) * stride : a;
            REAL *v = NAME(row_of)(p->at, PD_V, i, row), *h = NAME(row_of)(p->at, PD_H, i, row);
            REAL *down = p->down + i * stride, *along = p->along + i * stride;
            if (pass == 0) {
                NAME(ascent_row)(whole, &p->n, a, b, v, h, down, along);
                continue;
            }
            if (w->groups)
                WITH_CONSTANT_FLAGS(p->flags, NAME(grouped_dual), whole, &p->n, down, along, p->factor,
                                    p->factor + (w->groups & ISOTROPIC ? 0 : stride), v, h, p->to, p->to_other);
            else
                WITH_CONSTANT_FLAGS(p->flags, NAME(clipped_dual), whole, &p->n, a, b, v, h, p->to, p->to_other);
            if (!(p->flags & KEPT)) continue;
            NAME(keep_row)(p->to, w->to_v, p->first + i, height - 1, row, width);
            NAME(keep_row)(p->to_other, w->to_h, p->first + i, height, row, width - 1);
        }
        if (pass == 0)
            NAME(factors)(p->down, p->along, w->coupled, stride, whole, p->n.bound, w->groups, p->factor, p->factor + stride);
    }
}

/* With D the differences down the columns (v) and along the rows (h), u = (v, h), w = D^T u and m the mask:
     b  = x + momentum move,                                           c = b if shift != 0, else x;
     x' = clip(b - tau w + pull m (y - c + shift w)),                  if side = 0,
     x' = b - tau S(w + pull/tau m (x - y)),                           S the stencil (side, 1 - 2 side, side), else;
     u' = limit(shrink (u + sigma D(x' + ahead (x' - x)))).
   x' is clipped to [low, high] of its plane, or not clipped if low and high are null. Then x += relaxation (x' - x) and
   u += relaxation (u' - u), and move is the change of x. With a stencil, the slope of a row is computed while the row
   above it is filtered. x' follows on the row above that, and u' on the one above x'. */
static void NAME(pd_row)(const void *work, const NAME(window) *at, REAL *room, int64_t image, int64_t step, int64_t row) {
    const NAME(pd_work) *w = work;
    int64_t stride = at->stride, many = w->coupled * stride, first = image * w->coupled;
    const double *d = NUMBERS(w, step, first, COLUMNS_PD);
    NAME(pd_numbers) n = {(REAL)d[0], (REAL)d[1], (REAL)d[2], (REAL)d[3], (REAL)d[4], (REAL)d[5], (REAL)d[6],
                          (REAL)(d[7] - 1), (REAL)d[8], (REAL)d[9], -INFINITY, INFINITY};
    REAL *rows = room + 16, *gradients = rows + 7 * stride, *filtered = gradients + 2 * many, *ahead = filtered + 4 * many;
    NAME(pd_place) place = {w, at, n, n.side != 0 ? (REAL)(d[1] / d[0]) : 0, first, row,
                            w->to_x ? RELAXED | (step + 1 == w->steps ? KEPT : 0) : 0,
                            rows, rows + stride, rows + 2 * stride, rows + 3 * stride, rows + 4 * stride, rows + 5 * stride,
                            gradients, filtered, ahead, ahead + 2 * many, ahead + 3 * many};
    for (int64_t i = 0; i < w->coupled; i++) {
        NAME(pd_slope)(&place, i);
        if (n.side != 0) NAME(pd_change)(&place, i);
        if (row < 2 || row > w->height + 1) continue;
        REAL *last = ahead + (2 * i + row % 2) * stride + w->width;
        last[0] = last[-1];
        if (place.flags & KEPT) NAME(keep_row)(place.to, w->to_x, first + i, w->height, row - 2, w->width);
    }
    if (row > 2) NAME(pd_dual)(&place);
}

/* Several steps. x, v, h and move are changed in place. If to_x is not null, steps are relaxed, and to_x, to_v and to_h
   get the points before the last relaxation. masks, coupled, numbers and the result are as for amd_stencil. */
EXPORT int NAME(primal_dual)(int64_t planes, int64_t channels, int64_t coupled, int64_t height, int64_t width, REAL *x, REAL *v, REAL *h,
                      REAL *to_x, REAL *to_v, REAL *to_h, REAL *move, const REAL *y, const REAL *mask, int64_t masks,
                      const REAL *low, const REAL *high, const double *numbers, int64_t period, int64_t steps, int groups,
                      int threads) {
    REAL *ones = NAME(row_of_ones)(width);
    if (!ones) return 1;
    NAME(pd_work) work = {channels, coupled, height, width, masks, planes, planes / channels, period, steps, to_x, to_v, to_h,
                          y, mask, ones, low, high, numbers, groups, move != NULL};
    NAME(field) fields[] = {
        {x, x, height, width, 0}, {v, v, height - 1, width, 0}, {h, h, height, width - 1, 0}, {move, move, height, width, 0}};
    sweep_shape shape = {planes / coupled, coupled, height, width, steps, 3, (10 * coupled + 9) * (WHOLE(width) + 16), move ? 4 : 3};
    int failed = NAME(sweep)(NAME(pd_row), &work, shape, fields, threads);
    free_aligned(ones);
    return failed;
}
