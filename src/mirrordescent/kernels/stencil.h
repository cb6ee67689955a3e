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

/* h <- S g along a row. */
static void NAME(filter_row)(int64_t whole, int64_t width, REAL s, REAL *g, REAL *h) {
    g[-1] = g[0];
    g[width] = g[width - 1];
    VECTORS(j, whole) h[j] = g[j] + s * (g[j - 1] - 2 * g[j] + g[j + 1]);
}

/* With g the gradient and S the stencil (side, 1 - 2 side, side), reflected at the border, in both directions:
     z' = z - far S g S,    x' = mixing z' + (1 - mixing) (x - near S g S),    mean' = mean + share (w - mean),
   where w is the part of g from the total variation. The gradient of a row is computed first, then the row above it is
   changed. */
static void NAME(amd_row)(const void *work, const NAME(window) *at, REAL *room, int64_t image, int64_t step, int64_t row) {
    const NAME(amd_work) *w = work;
    int64_t width = w->width, height = w->height, stride = at->stride, whole = at->whole, coupled = w->coupled;
    int64_t first = image * coupled; /* plane of the image */
    const double *n = NUMBERS(w, step, first, COLUMNS_AMD);
    REAL c = (REAL)n[0], bound = (REAL)n[1], fidelity = (REAL)n[2], s = (REAL)n[3];
    REAL far = (REAL)n[4], near = (REAL)n[5], mixing = (REAL)n[6], share = (REAL)n[7];
    REAL *g = room + 16, *last_y = g + stride, *last_mask = last_y + stride, *filtered = last_mask + stride;
    REAL *along = filtered + 4 * coupled * stride, *down = along + coupled * stride, *factor = down + 2 * coupled * stride;
    REAL *here = down + row % 2 * coupled * stride, *before = down + (row + 1) % 2 * coupled * stride;
    if (row < height && w->groups) {
        for (int64_t i = 0; i < coupled; i++)
            NAME(flux_row)(whole, NAME(row_of)(at, AMD_X, i, row), NAME(row_of)(at, AMD_X, i, row + (row + 1 < height)), c,
                           here + i * stride, along + i * stride);
        NAME(factors)(here, along, coupled, stride, whole, bound, w->groups, factor, factor + stride);
        if (row == 0) memset(before, 0, (size_t)(coupled * stride) * sizeof(REAL));
    }
    for (int64_t i = 0; i < coupled; i++) {
        REAL *h = filtered + 4 * i * stride, *next = h + row % 4 * stride;
        if (row < height) {
            const REAL *x = NAME(row_of)(at, AMD_X, i, row), *above = NAME(row_of)(at, AMD_X, i, row - (row > 0));
            const REAL *below = NAME(row_of)(at, AMD_X, i, row + (row + 1 < height));
            int64_t end = w->planes * height * width, start = ((first + i) * height + row) * width;
            const REAL *y = NAME(padded)(w->y + start, w->y + end, width, whole, last_y), *mask = w->ones;
            if (w->masks) {
                mask = MASK(w, first + i) + row * width;
                mask = NAME(padded)(mask, w->mask + w->masks * height * width, width, whole, last_mask);
            }
            REAL *mean = w->averages ? NAME(row_of)(at, AMD_MEAN, i, row) : NULL;
            REAL *d = here + i * stride, *a = along + i * stride, *f = factor + (w->groups & ISOTROPIC ? 0 : stride);
            if (w->groups)
                w->averages ? NAME(grouped_gradient)(whole, before + i * stride, d, a, factor, f, x, y, mask, fidelity, share, 1, mean, g)
                            : NAME(grouped_gradient)(whole, before + i * stride, d, a, factor, f, x, y, mask, fidelity, share, 0, mean, g);
            else
                w->averages ? NAME(clipped_gradient)(whole, above, x, below, y, mask, c, bound / c, fidelity, share, 1, mean, g)
                            : NAME(clipped_gradient)(whole, above, x, below, y, mask, c, bound / c, fidelity, share, 0, mean, g);
            NAME(filter_row)(whole, width, s, g, next);
        }
        if (row == 0) continue;
        const REAL *middle = h + (row + 3) % 4 * stride, *up = row > 1 ? h + (row + 2) % 4 * stride : middle;
        REAL *x = NAME(row_of)(at, AMD_X, i, row - 1), *z = NAME(row_of)(at, AMD_Z, i, row - 1);
        if (row == height) next = h + (row + 3) % 4 * stride;
        VECTORS(j, whole) {
            REAL move = middle[j] + s * (up[j] - 2 * middle[j] + next[j]);
            REAL mirrored = z[j] - far * move, corrected = x[j] - near * move;
            z[j] = mirrored;
            x[j] = corrected + mixing * (mirrored - corrected);
        }
        x[-1] = x[0];
        x[width] = x[width - 1];
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
    sweep_shape shape = {planes / coupled, coupled, height, width, steps, 1, (7 * coupled + 6) * (WHOLE(width) + 16),
                         mean ? 3 : 2};
    int failed = NAME(sweep)(NAME(amd_row), &work, shape, fields, threads);
    free_aligned(ones);
    return failed;
}
