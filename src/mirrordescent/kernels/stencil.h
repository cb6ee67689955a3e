/* Accelerated mirror descent on total-variation problems, in one pass over the images. */
#include <stdlib.h>

#ifndef BAND
#define BAND 64 /* rows that a thread takes at a time; the rows above and below are computed twice */
#endif

static inline REAL NAME(clip)(REAL v, REAL bound) { return v < -bound ? -bound : v > bound ? bound : v; }

/* One row of the gradient of fidelity and rounded total variation, with a mask or none (null), into g. vertical has the
   fluxes from the row above, and those to the row below afterwards; horizontal has room for width + 1 entries. */
static void NAME(gradient_row)(const REAL *restrict x, const REAL *restrict y, const REAL *restrict mask, long row,
                               long height, long width, REAL fidelity, REAL curvature, REAL bound,
                               REAL *restrict vertical, REAL *restrict horizontal, REAL *restrict g) {
    const REAL *xs = x + row * width, *ys = y + row * width, *ms = mask + (mask ? row * width : 0);
    const REAL *next = row + 1 < height ? xs + width : xs; /* no flux out of the image */
    horizontal[0] = horizontal[width] = 0;
    for (long j = 0; j + 1 < width; j++) horizontal[j + 1] = NAME(clip)(curvature * (xs[j + 1] - xs[j]), bound);
    for (long j = 0; j < width; j++) {
        REAL below = NAME(clip)(curvature * (next[j] - xs[j]), bound), seen = mask ? ms[j] : 1;
        g[j] = fidelity * seen * (xs[j] - ys[j]) + (horizontal[j] - horizontal[j + 1]) + (vertical[j] - below);
        vertical[j] = below;
    }
}

/* One row of a mean of what the gradient g is without the fidelity. */
static void NAME(mean_row)(const REAL *restrict x, const REAL *restrict y, const REAL *restrict mask,
                           const REAL *restrict g, long width, REAL fidelity, REAL share, const REAL *restrict mean,
                           REAL *restrict mean_new) {
    for (long j = 0; j < width; j++) {
        REAL seen = mask ? mask[j] : 1, w = g[j] - fidelity * seen * (x[j] - y[j]), old = mean ? mean[j] : w;
        mean_new[j] = old + share * (w - old);
    }
}

/* With g the gradient and S the stencil (side, 1 - 2 side, side), reflected at the border, in both directions:
     z' = z - far S g S,    x' = mixing z' + (1 - mixing) (x - near S g S).
   masks is the number of planes of the mask, 0 for none; if there are fewer than images, neighbours share one. Unless
   mean_new is null, it becomes mean + share (w - mean), or w if mean is null, with w the part of g that is due to the
   total variation. Returns 0, or 1 if there is no memory. */
int NAME(amd_stencil)(long planes, long height, long width, const REAL *x, const REAL *z, const REAL *y,
                      const REAL *mask, long masks, REAL *x_new, REAL *z_new, const REAL *mean, REAL *mean_new,
                      double share, double fidelity, double curvature, double bound, double side, double far_step,
                      double near_step, double mixing, int threads) {
    long bands = (height + BAND - 1) / BAND;
    int failed = 0;
    REAL s = (REAL)side, far = (REAL)far_step, near = (REAL)near_step, lambda = (REAL)mixing;
    REAL f = (REAL)fidelity, c = (REAL)curvature, b = (REAL)bound, part = (REAL)share;
#pragma omp parallel num_threads(threads)
    {
        REAL *memory = malloc((6 * width + 3) * sizeof(REAL));
        if (!memory) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(static)
        for (long unit = 0; unit < planes * bands; unit++) {
            if (!memory) continue;
            long plane = unit / bands, first = unit % bands * BAND;
            long last = first + BAND < height ? first + BAND : height, at = plane * height * width;
            const REAL *xp = x + at, *yp = y + at;
            const REAL *mp = masks == 0 ? NULL : mask + plane / (planes / masks) * height * width;
            REAL *above = memory, *here = above + width, *below = here + width, *vertical = below + width;
            REAL *horizontal = vertical + width, *v = horizontal + width + 2; /* v[-1] and v[width] are the border */
            const REAL *top = xp + (first > 1 ? first - 1 : 0) * width;
            for (long j = 0; j < width; j++) vertical[j] = first > 1 ? NAME(clip)(c * (top[j] - top[j - width]), b) : 0;
            if (first > 0)
                NAME(gradient_row)(xp, yp, mp, first - 1, height, width, f, c, b, vertical, horizontal, above);
            NAME(gradient_row)(xp, yp, mp, first, height, width, f, c, b, vertical, horizontal, here);
            for (long row = first; row < last; row++) {
                const REAL *up = row > 0 ? above : here, *down = row + 1 < height ? below : here;
                if (row + 1 < height)
                    NAME(gradient_row)(xp, yp, mp, row + 1, height, width, f, c, b, vertical, horizontal, below);
                for (long j = 0; j < width; j++) v[j] = here[j] + s * (up[j] - 2 * here[j] + down[j]);
                v[-1] = v[0];
                v[width] = v[width - 1];
                const REAL *restrict xs = xp + row * width, *restrict zs = z + at + row * width;
                if (mean_new)
                    NAME(mean_row)(xs, yp + row * width, mp ? mp + row * width : NULL, here, width, f, part,
                                   mean ? mean + at + row * width : NULL, mean_new + at + row * width);
                REAL *restrict xn = x_new + at + row * width, *restrict zn = z_new + at + row * width;
                for (long j = 0; j < width; j++) {
                    REAL step = v[j] + s * (v[j - 1] - 2 * v[j] + v[j + 1]);
                    REAL mirrored = zs[j] - far * step, corrected = xs[j] - near * step;
                    zn[j] = mirrored;
                    xn[j] = corrected + lambda * (mirrored - corrected);
                }
                REAL *freed = above;
                above = here;
                here = below;
                below = freed;
            }
        }
        free(memory);
    }
    return failed;
}
