/* Accelerated mirror descent on total-variation problems: one step on one row, and many steps on many images. */

/* Arguments of the steps. numbers has COLUMNS_AMD for every sample and step, and repeats after period steps. */
typedef struct {
    int64_t channels, coupled, height, width, masks, planes, samples, period;
    REAL *x, *z, *mean;
    const REAL *y, *mask;
    const double *numbers;
    int groups;
} NAME(amd_work);

#ifndef COLUMNS_AMD
#define COLUMNS_AMD 8 /* curvature, bound, fidelity, side, far, near, mixing, share */
#endif

/* One row of the gradient g of fidelity and rounded total variation, for all channels of an image and any groups. down
   has the fluxes from the row above on entry and those to the row below on return; along is a workspace for the fluxes
   along the row. */
static void NAME(gradient_rows)(const NAME(amd_work) *w, const REAL *x, const REAL *y, const REAL *const *mask, int64_t row,
                                const double *n, REAL *down, REAL *along, REAL *length, REAL *g) {
    int64_t width = w->width, plane = width * w->height, stride = STRIDE(width);
    REAL c = (REAL)n[0], fidelity = (REAL)n[2];
    for (int64_t i = 0; i < w->coupled; i++) {
        const REAL *xs = x + i * plane + row * width, *ys = y + i * plane + row * width;
        const REAL *next = xs + (row + 1 < w->height ? width : 0), *ms = mask[i] + (mask[i] ? row * width : 0);
        REAL *gs = g + i * stride, *d = down + i * stride, *a = along + i * stride;
        EACH(j, 0, width) {
            gs[j] = d[j] + fidelity * (mask[i] ? ms[j] : 1) * (xs[j] - ys[j]);
            d[j] = c * (next[j] - xs[j]); /* no flux out of the image */
        }
        EACH(j, 0, width - 1) a[j] = c * (xs[j + 1] - xs[j]);
        a[width - 1] = 0;
    }
    NAME(limit)(down, along, w->coupled, stride, width, (REAL)n[1], w->groups, length);
    for (int64_t i = 0; i < w->coupled; i++) {
        REAL *gs = g + i * stride, *d = down + i * stride, *a = along + i * stride;
        EACH(j, 0, width) gs[j] -= d[j] + a[j];
        EACH(j, 1, width) gs[j] += a[j - 1];
    }
}

/* The same for one channel whose differences are clipped one by one, and v = here + side (up - 2 here + g) with it. */
static inline __attribute__((always_inline)) void NAME(plain_row)(const REAL *x, const REAL *y, const REAL *mask, int64_t width, int masked, int last, int whole, REAL c,
                                   REAL bound, REAL fidelity, REAL side, REAL *down, REAL *g, const REAL *here,
                                   const REAL *up, REAL *v) {
    const REAL *next = x + (last ? 0 : width);
    REAL limit = bound / c, first = down[0], end = down[width - 1]; /* fluxes are clipped before they are scaled */
#define PIXEL(from_above, left, right)                                                                            \
    REAL below = NAME(clip)(next[j] - x[j], limit);                                                               \
    g[j] = fidelity * (masked ? mask[j] : 1) * (x[j] - y[j]) + c * ((from_above) - below + (left) - (right));       \
    v[j] = here[j] + side * (up[j] - 2 * here[j] + g[j]);                                                         \
    down[j] = below;
    /* It is faster to process whole vectors and to correct both ends afterwards: memory beyond a row is valid. */
    int64_t from = whole ? 0 : 1, to = whole ? width : width - 1;
    EACH(j, from, to) {
        PIXEL(down[j], NAME(clip)(x[j] - x[j - 1], limit), NAME(clip)(x[j + 1] - x[j], limit))
    }
    for (int64_t j = 0; j < width; j += width > 1 ? width - 1 : 1) {
        REAL left = j > 0 ? NAME(clip)(x[j] - x[j - 1], limit) : 0;
        REAL right = j + 1 < width ? NAME(clip)(x[j + 1] - x[j], limit) : 0;
        PIXEL(j ? end : first, left, right)
    }
#undef PIXEL
}

/* With g the gradient and S the stencil (side, 1 - 2 side, side), reflected at the border, in both directions:
     z' = z - far S g S,    x' = mixing z' + (1 - mixing) (x - near S g S),    mean' = mean + share (w - mean),
   where w is the part of g from the total variation. */
static void NAME(amd_row)(const void *work, char *scratch, int64_t image, int64_t step, int64_t row) {
    const NAME(amd_work) *w = work;
    int64_t width = w->width, height = w->height, stride = STRIDE(width), many = w->coupled * stride, plane = width * height;
    int64_t first = image * w->coupled; /* plane of the image */
    const double *n = NUMBERS(w, step, first, COLUMNS_AMD);
    REAL *g = (REAL *)scratch, *down = g + 4 * many, *along = down + many, *length = along + many;
    REAL *v = length + 2 * stride, *x = w->x + first * plane;
    const REAL *y = w->y + first * plane, *mask[w->coupled];
    for (int64_t i = 0; i < w->coupled; i++)
        mask[i] = MASK(w, first + i);
    REAL c = (REAL)n[0], bound = (REAL)n[1], fidelity = (REAL)n[2], s = (REAL)n[3];
    REAL *here = g + row % 4 * many, *up = row > 0 ? g + (row + 3) % 4 * many : here;
    REAL *below = row + 1 < height ? g + (row + 1) % 4 * many : here;
    if (row == 0) {
        EACH(j, 0, many) down[j] = 0;
        if (w->groups)
            NAME(gradient_rows)(w, x, y, mask, 0, n, down, along, length, here);
        else
            NAME(plain_row)(x, y, mask[0], width, mask[0] != NULL, height == 1, 0, c, bound, fidelity, s, down, here, here, here, v);
    }
    if (row + 1 < height && w->groups) NAME(gradient_rows)(w, x, y, mask, row + 1, n, down, along, length, below);
    if (row + 1 < height && !w->groups) {
        const REAL *xs = x + (row + 1) * width, *ys = y + (row + 1) * width;
        int last = row + 2 == height, whole = !last || first + 1 < w->planes;
        if (mask[0])
            NAME(plain_row)(xs, ys, mask[0] + (row + 1) * width, width, 1, last, whole, c, bound, fidelity, s, down, below,
                            here, up, v);
        else
            NAME(plain_row)(xs, ys, NULL, width, 0, last, whole, c, bound, fidelity, s, down, below, here, up, v);
    }
    REAL far = (REAL)n[4], near = (REAL)n[5], lambda = (REAL)n[6], share = (REAL)n[7];
    for (int64_t i = 0; i < w->coupled; i++, here += stride, up += stride, below += stride) {
        int64_t at = i * plane + row * width;
        REAL *xs = x + at, *zs = w->z + first * plane + at;
        if (w->mean) {
            REAL *mean = w->mean + first * plane + at;
            const REAL *ys = y + at, *ms = mask[i] + (mask[i] ? row * width : 0);
            EACH(j, 0, width) {
                REAL seen = mask[i] ? ms[j] : 1;
                mean[j] += share * (here[j] - fidelity * seen * (xs[j] - ys[j]) - mean[j]);
            }
        }
        if (w->groups || row + 1 == height)
            EACH(j, 0, width) v[j] = here[j] + s * (up[j] - 2 * here[j] + below[j]);
        v[-1] = v[0];
        v[width] = v[width - 1];
        EACH(j, 0, width) {
            REAL move = v[j] + s * (v[j - 1] - 2 * v[j] + v[j + 1]);
            REAL mirrored = zs[j] - far * move, corrected = xs[j] - near * move;
            zs[j] = mirrored;
            xs[j] = corrected + lambda * (mirrored - corrected);
        }
    }
}

/* Several steps. x, z and mean (or null) are changed in place. coupled is the number of channels that are projected
   together, 1 or all. masks is the number of planes of the mask, 0 for none; if there are fewer than planes of images,
   consecutive planes share one. Returns 0, or 1 if memory cannot be allocated. */
EXPORT int NAME(amd_stencil)(int64_t planes, int64_t channels, int64_t coupled, int64_t height, int64_t width, REAL *x, REAL *z, const REAL *y,
                      const REAL *mask, int64_t masks, REAL *mean, const double *numbers, int64_t period, int64_t steps,
                      int groups, int threads) {
    NAME(amd_work) work = {channels, coupled, height, width,   masks,  planes, planes / channels, period,
                           x,        z,       mean,   y,       mask,   numbers, groups};
    int64_t size = (6 * coupled + 4) * STRIDE(width) * sizeof(REAL);
    return sweep(NAME(amd_row), &work, size, planes / coupled, height, steps, threads);
}
