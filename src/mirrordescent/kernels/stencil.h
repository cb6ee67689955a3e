/* Accelerated mirror descent on total-variation problems: one step on one row, and many steps on many images. */

/* Arguments of the steps. numbers has COLUMNS_AMD for every sample and step, and repeats after period steps. */
typedef struct {
    int64_t channels, coupled, height, width, masks, planes, samples, period;
    const REAL *y, *mask, *ones;
    const double *numbers;
    int groups, averages;
} NAME(amd_work);

#ifndef COLUMNS_AMD
#define COLUMNS_AMD 8 /* curvature, bound, fidelity, side, far, near, mixing, share */
enum { AMD_X, AMD_Z, AMD_MEAN };
#endif

/* Store the gradient fidelity m (x - y) + variation at one pixel, and the mean of its part from the total variation. */
static inline __attribute__((always_inline)) void NAME(store_gradient)(REAL variation, REAL data, REAL share, int averages,
                                                                       REAL *mean, REAL *g) {
    *g = data + variation;
    if (averages) *mean += share * (variation - *mean);
}

/* One row of the gradient if differences are clipped one by one. Every flux is computed twice, which is faster than to
   store it. Differences are clipped before they are multiplied by the curvature c. */
static inline __attribute__((always_inline)) void NAME(clipped_gradient)(
    int64_t whole, const REAL *above, const REAL *x, const REAL *below, const REAL *y, const REAL *mask, REAL c, REAL limit,
    REAL fidelity, REAL share, int averages, REAL *mean, REAL *g) {
    VECTORS(j, whole) {
        REAL up = NAME(clip)(x[j] - above[j], limit), down = NAME(clip)(below[j] - x[j], limit);
        REAL left = NAME(clip)(x[j] - x[j - 1], limit), right = NAME(clip)(x[j + 1] - x[j], limit);
        NAME(store_gradient)(c * (up - down + (left - right)), fidelity * mask[j] * (x[j] - y[j]), share, averages, mean + j,
                             g + j);
    }
}

/* One row of the gradient from fluxes that are multiplied by factors: up and left have their factors already. */
static inline __attribute__((always_inline)) void NAME(grouped_gradient)(
    int64_t whole, const REAL *up, REAL *down, REAL *along, const REAL *down_factor, const REAL *along_factor, const REAL *x,
    const REAL *y, const REAL *mask, REAL fidelity, REAL share, int averages, REAL *mean, REAL *g) {
    VECTORS(j, whole) {
        REAL below = down[j] * down_factor[j], left = along[j - 1] * along_factor[j - 1], right = along[j] * along_factor[j];
        NAME(store_gradient)(up[j] - below + (left - right), fidelity * mask[j] * (x[j] - y[j]), share, averages, mean + j,
                             g + j);
        down[j] = below;
    }
}

/* One row of c Dx. */
static void NAME(flux_row)(int64_t whole, const REAL *x, const REAL *below, REAL c, REAL *down, REAL *along) {
    VECTORS(j, whole) {
        down[j] = c * (below[j] - x[j]);
        along[j] = c * (x[j + 1] - x[j]);
    }
}

/* Repeat the first and the last entry of a row beyond its ends. */
static inline void NAME(reflect)(REAL *row, int64_t width) {
    row[-1] = row[0];
    row[width] = row[width - 1];
}

/* h <- S g along a row. */
static void NAME(filter_row)(int64_t whole, REAL s, const REAL *g, REAL *h) {
    VECTORS(j, whole) h[j] = g[j] + s * (g[j - 1] - 2 * g[j] + g[j + 1]);
}

/* A step on a row, and the rows of workspace of one channel or of all. */
typedef struct {
    const NAME(amd_work) *w;
    const NAME(window) *at;
    const double *numbers;
    int64_t first, row; /* first plane of the image */
    REAL *last_y, *last_mask, *factor, *gradients, *filtered, *along, *down, *before;
} NAME(amd_place);

/* The fluxes of a row for all channels, and the factors of their groups. */
static NOINLINE void NAME(amd_fluxes)(const NAME(amd_place) *p) {
    int64_t row = p->row, stride = p->at->stride, coupled = p->w->coupled, below = row + (row + 1 < p->w->height);
    for (int64_t i = 0; i < coupled; i++)
        NAME(flux_row)(p->at->whole, NAME(row_of)(p->at, AMD_X, i, row), NAME(row_of)(p->at, AMD_X, i, below),
                       (REAL)p->numbers[0], p->down + i * stride, p->along + i * stride);
    NAME(factors)(p->down, p->along, coupled, stride, p->at->whole, (REAL)p->numbers[1], p->w->groups, p->factor,
                  p->factor + stride);
    if (row == 0) memset(p->before, 0, (size_t)(coupled * stride) * sizeof(REAL));
}

/* The gradient of a row of channel i. */
static NOINLINE void NAME(amd_gradient)(const NAME(amd_place) *p, int64_t i) {
    const NAME(amd_work) *w = p->w;
    const NAME(window) *at = p->at;
    int64_t row = p->row, width = w->width, height = w->height, whole = at->whole, stride = at->stride;
    REAL c = (REAL)p->numbers[0], bound = (REAL)p->numbers[1], fidelity = (REAL)p->numbers[2], share = (REAL)p->numbers[7];
    int64_t end = w->planes * height * width, start = ((p->first + i) * height + row) * width;
    const REAL *y = NAME(padded)(w->y + start, w->y + end, width, whole, p->last_y), *mask = w->ones;
    const REAL *x = NAME(row_of)(at, AMD_X, i, row), *above = NAME(row_of)(at, AMD_X, i, row - (row > 0));
    const REAL *below = NAME(row_of)(at, AMD_X, i, row + (row + 1 < height));
    REAL *g = p->gradients + (2 * i + row % 2) * stride, *mean = w->averages ? NAME(row_of)(at, AMD_MEAN, i, row) : NULL;
    REAL *up = p->before + i * stride, *down = p->down + i * stride, *along = p->along + i * stride;
    const REAL *along_factor = p->factor + (w->groups & ISOTROPIC ? 0 : stride);
    if (w->masks)
        mask = NAME(padded)(MASK(w, p->first + i) + row * width, w->mask + w->masks * height * width, width, whole, p->last_mask);
    if (w->groups && mean)
        NAME(grouped_gradient)(whole, up, down, along, p->factor, along_factor, x, y, mask, fidelity, share, 1, mean, g);
    else if (w->groups)
        NAME(grouped_gradient)(whole, up, down, along, p->factor, along_factor, x, y, mask, fidelity, share, 0, mean, g);
    else if (mean)
        NAME(clipped_gradient)(whole, above, x, below, y, mask, c, bound / c, fidelity, share, 1, mean, g);
    else
        NAME(clipped_gradient)(whole, above, x, below, y, mask, c, bound / c, fidelity, share, 0, mean, g);
    NAME(reflect)(g, width);
}

/* Filter the gradient of the previous row of channel i, and change the row above that. */
static NOINLINE void NAME(amd_change)(const NAME(amd_place) *p, int64_t i) {
    int64_t row = p->row, height = p->w->height, stride = p->at->stride, whole = p->at->whole;
    REAL s = (REAL)p->numbers[3], far = (REAL)p->numbers[4], near = (REAL)p->numbers[5], mixing = (REAL)p->numbers[6];
    REAL *filtered = p->filtered + 4 * i * stride, *below = filtered + (row + 3) % 4 * stride;
    if (row > 0 && row <= height) NAME(filter_row)(whole, s, p->gradients + (2 * i + (row + 1) % 2) * stride, below);
    if (row < 2) return;
    const REAL *here = filtered + (row + 2) % 4 * stride, *up = row > 2 ? filtered + (row + 1) % 4 * stride : here;
    const REAL *down = row <= height ? below : here;
    REAL *x = NAME(row_of)(p->at, AMD_X, i, row - 2), *z = NAME(row_of)(p->at, AMD_Z, i, row - 2);
    VECTORS(j, whole) {
        REAL move = here[j] + s * (up[j] - 2 * here[j] + down[j]);
        REAL mirrored = z[j] - far * move, corrected = x[j] - near * move;
        z[j] = mirrored;
        x[j] = corrected + mixing * (mirrored - corrected);
    }
    NAME(reflect)(x, p->w->width);
}

/* With g the gradient and S the stencil (side, 1 - 2 side, side), reflected at the border, in both directions:
     z' = z - far S g S,    x' = mixing z' + (1 - mixing) (x - near S g S),    mean' = mean + share (w - mean),
   where w is the part of g from the total variation. The gradient of a row is computed while the row above it is filtered
   and the row above that is changed: vectors that were stored a moment ago, and are read shifted by one entry, would stall
   the processor. */
static void NAME(amd_row)(const void *work, const NAME(window) *at, REAL *room, int64_t image, int64_t step, int64_t row) {
    const NAME(amd_work) *w = work;
    int64_t stride = at->stride, many = w->coupled * stride, first = image * w->coupled;
    REAL *rows = room + 16, *gradients = rows + 4 * stride, *filtered = gradients + 2 * many, *along = filtered + 4 * many;
    REAL *down = along + many, *other = down + many;
    NAME(amd_place) place = {w, at, NUMBERS(w, step, first, COLUMNS_AMD), first, row,
                             rows, rows + stride, rows + 2 * stride, gradients, filtered, along,
                             row % 2 ? down : other, row % 2 ? other : down};
    if (row < w->height && w->groups) NAME(amd_fluxes)(&place);
    for (int64_t i = 0; i < w->coupled; i++) {
        if (row < w->height) NAME(amd_gradient)(&place, i);
        NAME(amd_change)(&place, i);
    }
}

/* Several steps. x, z and mean (or null) are changed in place. coupled is the number of channels that are projected
   together, 1 or all. masks is the number of planes of the mask, 0 for none; if there are fewer than planes of images,
   consecutive planes share one. Returns 0, or 1 if memory cannot be allocated. */
EXPORT int NAME(amd_stencil)(int64_t planes, int64_t channels, int64_t coupled, int64_t height, int64_t width, REAL *x, REAL *z, const REAL *y,
                      const REAL *mask, int64_t masks, REAL *mean, const double *numbers, int64_t period, int64_t steps,
                      int groups, int threads) {
    REAL *ones = NAME(row_of_ones)(width);
    if (!ones) return 1;
    NAME(amd_work) work = {channels, coupled, height, width, masks, planes, planes / channels, period, y, mask, ones,
                           numbers,  groups,  mean != NULL};
    NAME(field) fields[] = {{x, x, height, width, 1}, {z, z, height, width, 0}, {mean, mean, height, width, 0}};
    sweep_shape shape = {planes / coupled, coupled, height, width, steps, 2, (9 * coupled + 5) * (WHOLE(width) + 16),
                         mean ? 3 : 2};
    int failed = NAME(sweep)(NAME(amd_row), &work, shape, fields, threads);
    free_aligned(ones);
    return failed;
}
