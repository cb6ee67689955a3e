/* Primal-dual methods on total-variation problems, in one pass over the images. */
#include <math.h>
#include <stdlib.h>

#ifndef BAND
#define BAND 64 /* rows that a thread takes at a time; the first row of the next band is computed twice */
#endif

static inline REAL NAME(between)(REAL v, REAL low, REAL high) { return v < low ? low : v > high ? high : v; }

/* One row of x_new, and of 2 x_new - x. above, below and across are rows of the dual variable, above and below null at
   the border; flux has room for width + 1 entries. */
static void NAME(primal_row)(const REAL *restrict x, const REAL *restrict y, const REAL *restrict mask,
                             const REAL *restrict above, const REAL *restrict below, const REAL *restrict across,
                             long width, REAL tau, REAL pull, REAL shift, REAL low, REAL high, REAL *restrict flux,
                             REAL *restrict x_new, REAL *restrict ahead) {
    flux[0] = flux[width] = 0;
    for (long j = 0; j + 1 < width; j++) flux[j + 1] = across[j];
    for (long j = 0; j < width; j++) ahead[j] = flux[j] - flux[j + 1];
    if (above)
        for (long j = 0; j < width; j++) ahead[j] += above[j];
    if (below)
        for (long j = 0; j < width; j++) ahead[j] -= below[j];
    for (long j = 0; j < width; j++) {
        REAL w = ahead[j], seen = mask ? mask[j] : 1;
        REAL moved = x[j] - tau * w + pull * seen * (y[j] - x[j] + shift * w);
        x_new[j] = NAME(between)(moved, low, high);
        ahead[j] = 2 * x_new[j] - x[j];
    }
}

/* With D the differences down the columns (v) and along the rows (h), u = (v, h), w = D^T u and m the mask:
     x' = clip(x - tau w + pull m (y - x + shift w)),    u' = clip(u + sigma D(2 x' - x)).
   x' is clipped to [low, high], one of each for every plane, or not at all (null), and u' to [-bound, bound]. masks is
   the number of planes of the mask, 0 for none; if there are fewer than images, neighbours share one. Returns 0, or 1
   if there is no memory. */
int NAME(primal_dual)(long planes, long height, long width, const REAL *x, const REAL *v, const REAL *h, const REAL *y,
                      const REAL *mask, long masks, const REAL *low, const REAL *high, REAL *x_new, REAL *v_new,
                      REAL *h_new, double tau, double pull, double shift, double sigma, double bound, int threads) {
    long bands = (height + BAND - 1) / BAND;
    int failed = 0;
    REAL t = (REAL)tau, p = (REAL)pull, back = (REAL)shift, s = (REAL)sigma, b = (REAL)bound;
#pragma omp parallel num_threads(threads)
    {
        REAL *memory = malloc((4 * width + 1) * sizeof(REAL));
        if (!memory) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(static)
        for (long unit = 0; unit < planes * bands; unit++) {
            if (!memory) continue;
            long plane = unit / bands, first = unit % bands * BAND;
            long last = first + BAND < height ? first + BAND : height;
            long at = plane * height * width, at_v = plane * (height - 1) * width, at_h = plane * height * (width - 1);
            const REAL *mp = masks == 0 ? NULL : mask + plane / (planes / masks) * height * width;
            REAL least = low ? low[plane] : -INFINITY, most = high ? high[plane] : INFINITY;
            REAL *before = memory, *ahead = before + width, *spare = ahead + width, *flux = spare + width;
            for (long row = first; row <= last && row < height; row++) {
                long pixel = at + row * width;
                const REAL *up = row > 0 ? v + at_v + (row - 1) * width : NULL;
                const REAL *down = row + 1 < height ? v + at_v + row * width : NULL;
                const REAL *old = h + at_h + row * (width - 1);
                NAME(primal_row)(x + pixel, y + pixel, mp ? mp + row * width : NULL, up, down, old, width, t, p, back,
                                 least, most, flux, row < last ? x_new + pixel : spare, ahead);
                if (row < last) {
                    REAL *restrict new = h_new + at_h + row * (width - 1);
                    for (long j = 0; j + 1 < width; j++)
                        new[j] = NAME(between)(old[j] + s * (ahead[j + 1] - ahead[j]), -b, b);
                }
                if (row > first) {
                    REAL *restrict new = v_new + at_v + (row - 1) * width;
                    for (long j = 0; j < width; j++) new[j] = NAME(between)(up[j] + s * (ahead[j] - before[j]), -b, b);
                }
                REAL *freed = before;
                before = ahead;
                ahead = freed;
            }
        }
        free(memory);
    }
    return failed;
}
