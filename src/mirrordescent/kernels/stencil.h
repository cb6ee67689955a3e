/* Compiled once for float and once for double. */
#include <stdlib.h>

#ifndef BAND
#define BAND 64 /* rows that a thread takes at a time; the rows above and below are computed twice */
#endif

static inline REAL NAME(clip)(REAL v, REAL bound) { return v < -bound ? -bound : v > bound ? bound : v; }

/* One row of the gradient of fidelity and rounded total variation, with a mask or none (null), into g.
   flux has room for width + 1 entries. */
static void NAME(gradient_row)(const REAL *restrict x, const REAL *restrict y, const REAL *restrict mask, long row,
                               long height, long width, REAL fidelity, REAL curvature, REAL bound, REAL *restrict flux,
                               REAL *restrict g) {
    const REAL *xs = x + row * width, *ys = y + row * width;
    if (mask)
        for (long j = 0; j < width; j++) g[j] = fidelity * mask[row * width + j] * (xs[j] - ys[j]);
    else
        for (long j = 0; j < width; j++) g[j] = fidelity * (xs[j] - ys[j]);
    flux[0] = flux[width] = 0;
    for (long j = 0; j + 1 < width; j++) flux[j + 1] = NAME(clip)(curvature * (xs[j + 1] - xs[j]), bound);
    for (long j = 0; j < width; j++) g[j] += flux[j] - flux[j + 1];
    if (row > 0)
        for (long j = 0; j < width; j++) g[j] += NAME(clip)(curvature * (xs[j] - xs[j - width]), bound);
    if (row + 1 < height)
        for (long j = 0; j < width; j++) g[j] -= NAME(clip)(curvature * (xs[j + width] - xs[j]), bound);
}

/* With g the gradient and S the stencil (side, 1 - 2 side, side), reflected at the border, in both directions:
     z' = z - far S g S,    x' = mixing z' + (1 - mixing) (x - near S g S).
   masks is the number of planes of the mask: 0 for none, 1 for one that all share, or one for each plane. Returns 0,
   or 1 if there is no memory. */
int NAME(amd_stencil)(long planes, long height, long width, const REAL *x, const REAL *z, const REAL *y,
                      const REAL *mask, long masks, REAL *x_new, REAL *z_new, double fidelity, double curvature,
                      double bound, double side, double far_step, double near_step, double mixing, int threads) {
    long bands = (height + BAND - 1) / BAND;
    int failed = 0;
    REAL s = (REAL)side, far = (REAL)far_step, near = (REAL)near_step, lambda = (REAL)mixing;
    REAL f = (REAL)fidelity, c = (REAL)curvature, b = (REAL)bound;
#pragma omp parallel num_threads(threads)
    {
        REAL *memory = malloc((5 * width + 1) * sizeof(REAL));
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
            const REAL *mp = masks == 0 ? NULL : masks == 1 ? mask : mask + at;
            REAL *above = memory, *here = above + width, *below = here + width, *v = below + width, *flux = v + width;
            if (first > 0) NAME(gradient_row)(xp, yp, mp, first - 1, height, width, f, c, b, flux, above);
            NAME(gradient_row)(xp, yp, mp, first, height, width, f, c, b, flux, here);
            for (long row = first; row < last; row++) {
                const REAL *up = row > 0 ? above : here, *down = row + 1 < height ? below : here;
                if (row + 1 < height)
                    NAME(gradient_row)(xp, yp, mp, row + 1, height, width, f, c, b, flux, below);
                for (long j = 0; j < width; j++) v[j] = here[j] + s * (up[j] - 2 * here[j] + down[j]);
                const REAL *restrict xs = xp + row * width, *restrict zs = z + at + row * width;
                REAL *restrict xn = x_new + at + row * width, *restrict zn = z_new + at + row * width;
                flux[0] = flux[width] = 0;
                for (long j = 0; j + 1 < width; j++) flux[j + 1] = s * (v[j + 1] - v[j]);
                for (long j = 0; j < width; j++) {
                    REAL step = v[j] + flux[j + 1] - flux[j];
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
