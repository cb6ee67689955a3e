/* Primal-dual methods on total-variation problems: one step on one row, and many steps on many images. */

/* Arguments of the steps. numbers has COLUMNS_PD for every sample and step, and repeats after period steps. If the
   iterates x, v and h are relaxed, to_x, to_v and to_h get the points of the last step; else they are null. move is the
   last change of x, or null if there is no momentum. */
typedef struct {
    int64_t channels, coupled, height, width, masks, planes, samples, period, steps;
    REAL *x, *v, *h, *to_x, *to_v, *to_h, *move;
    const REAL *y, *mask, *low, *high;
    const double *numbers;
    int groups;
} NAME(pd_work);

#ifndef COLUMNS_PD
#define COLUMNS_PD 10 /* tau, pull, shift, sigma, bound, side, shrink, relaxation, ahead, momentum */
#endif

/* Relax a row, x += rho (to - x), and copy to to last unless that is null. */
static void NAME(relax_row)(int64_t width, REAL rho, REAL *x, const REAL *to, REAL *last) {
    EACH(j, 0, width) x[j] += rho * (to[j] - x[j]);
    if (last) EACH(j, 0, width) last[j] = to[j];
}

/* One row of w = D^T u, plus pull/tau m (x - y) if that is requested. */
static void NAME(adjoint_row)(const NAME(pd_work) *w, int64_t plane, int64_t row, const REAL *mask, REAL fidelity,
                              REAL *g) {
    int64_t width = w->width, height = w->height;
    const REAL *v = w->v + plane * (height - 1) * width, *h = w->h + (plane * height + row) * (width - 1);
    const REAL *up = v + (row > 0 ? (row - 1) * width : 0), *down = v + row * width;
    REAL from = row > 0, to = row + 1 < height; /* no flux through the border */
    if (!from) up = down;
    if (!to) down = up;
    if (height == 1)
        EACH(j, 0, width) g[j] = 0;
    else
        EACH(j, 0, width) g[j] = from * up[j] - to * down[j];
    EACH(j, 0, width - 1) g[j] -= h[j];
    EACH(j, 1, width) g[j] += h[j - 1];
    if (fidelity != 0) {
        const REAL *x = w->x + (plane * height + row) * width, *y = w->y + (plane * height + row) * width;
        if (mask)
            EACH(j, 0, width) g[j] += fidelity * mask[row * width + j] * (x[j] - y[j]);
        else
            EACH(j, 0, width) g[j] += fidelity * (x[j] - y[j]);
    }
}

/* One row of u' for all channels of an image: u + sigma D(ahead), shrunk, projected and relaxed. next is the next row or
   null. */
static void NAME(dual_rows)(const NAME(pd_work) *w, int64_t first, int64_t step, int64_t row, const double *n, const REAL *ahead,
                            const REAL *next, int64_t stride, REAL *down, REAL *along, REAL *length) {
    int64_t width = w->width, height = w->height;
    REAL sigma = (REAL)n[3], shrink = (REAL)n[6], rho = (REAL)n[7];
    REAL bound = (REAL)n[4];
    int relaxed = w->to_x != NULL, last = step + 1 == w->steps;
    for (int64_t i = 0; i < w->coupled; i++) {
        const REAL *a = ahead + i * stride, *b = next + (next ? i * stride : 0);
        REAL *v = w->v + ((first + i) * (height - 1) + row) * width, *h = w->h + ((first + i) * height + row) * (width - 1);
        REAL *d = down + i * stride, *l = along + i * stride;
        if (!w->groups && !relaxed) {
            if (next) EACH(j, 0, width) v[j] = NAME(clip)(shrink * (v[j] + sigma * (b[j] - a[j])), bound);
            EACH(j, 0, width - 1) h[j] = NAME(clip)(shrink * (h[j] + sigma * (a[j + 1] - a[j])), bound);
            continue;
        }
        if (next)
            EACH(j, 0, width) d[j] = shrink * (v[j] + sigma * (b[j] - a[j]));
        else
            EACH(j, 0, width) d[j] = 0;
        EACH(j, 0, width - 1) l[j] = shrink * (h[j] + sigma * (a[j + 1] - a[j]));
        l[width - 1] = 0;
    }
    if (!w->groups && !relaxed) return;
    if (w->groups)
        NAME(limit)(down, along, w->coupled, stride, width, bound, w->groups, length);
    else
        EACH(j, 0, width) {
            down[j] = NAME(clip)(down[j], bound);
            along[j] = NAME(clip)(along[j], bound);
        }
    for (int64_t i = 0; i < w->coupled; i++) {
        int64_t at_v = ((first + i) * (height - 1) + row) * width, at_h = ((first + i) * height + row) * (width - 1);
        REAL *v = w->v + at_v, *h = w->h + at_h;
        const REAL *d = down + i * stride, *l = along + i * stride;
        if (relaxed) {
            if (next) NAME(relax_row)(width, rho, v, d, last ? w->to_v + at_v : NULL);
            NAME(relax_row)(width - 1, rho, h, l, last ? w->to_h + at_h : NULL);
            continue;
        }
        if (next) EACH(j, 0, width) v[j] = d[j];
        EACH(j, 0, width - 1) h[j] = l[j];
    }
}

/* With D the differences down the columns (v) and along the rows (h), u = (v, h), w = D^T u and m the mask:
     b  = x + momentum move,                                           c = b if shift != 0, else x;
     x' = clip(b - tau w + pull m (y - c + shift w)),                  if side = 0,
     x' = b - tau S(w + pull/tau m (x - y)),                           S the stencil (side, 1 - 2 side, side), else;
     u' = limit(shrink (u + sigma D(x' + ahead (x' - x)))).
   x' is clipped to [low, high] of its plane, or not clipped if low and high are null. Then x += relaxation (x' - x) and
   u += relaxation (u' - u), and move is the change of x. */
static void NAME(pd_row)(const void *work, char *scratch, int64_t image, int64_t step, int64_t row) {
    const NAME(pd_work) *w = work;
    int64_t width = w->width, height = w->height, stride = STRIDE(width), many = w->coupled * stride;
    int64_t first = image * w->coupled;
    const double *n = NUMBERS(w, step, first, COLUMNS_PD);
    REAL tau = (REAL)n[0], pull = (REAL)n[1], shift = (REAL)n[2], side = (REAL)n[5];
    REAL rho = (REAL)n[7], far = (REAL)n[8], momentum = (REAL)n[9];
    REAL *g = (REAL *)scratch, *ahead = g + 4 * many, *down = ahead + 2 * many, *along = down + many;
    REAL *length = along + many, *s = length + 2 * stride, *base = length + 3 * stride;
    for (int64_t i = 0; i < w->coupled; i++) {
        int64_t plane = first + i, at = (plane * height + row) * width;
        const REAL *mask = MASK(w, plane);
        REAL *x = w->x + at, *a = ahead + row % 2 * many + i * stride;
        REAL *here = g + row % 4 * many + i * stride;
        REAL *to = w->to_x || w->move ? length : x;
        const REAL *b = x;
        if (w->move) {
            const REAL *move = w->move + at;
            EACH(j, 0, width) base[j] = x[j] + momentum * move[j];
            b = base;
        }
        if (side != 0) {
            REAL fidelity = (REAL)(n[1] / n[0]);
            REAL *below = row + 1 < height ? g + (row + 1) % 4 * many + i * stride : here;
            REAL *up = row > 0 ? g + (row + 3) % 4 * many + i * stride : here;
            if (row == 0) NAME(adjoint_row)(w, plane, 0, mask, fidelity, here);
            if (row + 1 < height) NAME(adjoint_row)(w, plane, row + 1, mask, fidelity, below);
            EACH(j, 0, width) s[j] = here[j] + side * (up[j] - 2 * here[j] + below[j]);
            s[-1] = s[0];
            s[width] = s[width - 1];
            EACH(j, 0, width) {
                REAL moved = b[j] - tau * (s[j] + side * (s[j - 1] - 2 * s[j] + s[j + 1]));
                a[j] = (1 + far) * moved - far * x[j];
                to[j] = moved;
            }
        } else {
            const REAL *y = w->y + at, *c = shift != 0 ? b : x;
            REAL low = w->low ? w->low[plane] : -INFINITY, high = w->high ? w->high[plane] : INFINITY;
            NAME(adjoint_row)(w, plane, row, mask, 0, here);
            EACH(j, 0, width) {
                REAL seen = mask ? mask[row * width + j] : 1;
                REAL moved = b[j] - tau * here[j] + pull * seen * (y[j] - c[j] + shift * here[j]);
                moved = moved < low ? low : moved > high ? high : moved;
                a[j] = (1 + far) * moved - far * x[j];
                to[j] = moved;
            }
        }
        if (w->move) EACH(j, 0, width) w->move[at + j] = (w->to_x ? rho : 1) * (to[j] - x[j]);
        if (w->to_x)
            NAME(relax_row)(width, rho, x, to, step + 1 == w->steps ? w->to_x + at : NULL);
        else if (w->move)
            EACH(j, 0, width) x[j] = to[j];
    }
    REAL *now = ahead + row % 2 * many, *before = ahead + (row + 1) % 2 * many;
    if (row > 0) NAME(dual_rows)(w, first, step, row - 1, n, before, now, stride, down, along, length);
    if (row + 1 == height) NAME(dual_rows)(w, first, step, row, n, now, NULL, stride, down, along, length);
}

/* Several steps. x, v, h and move are changed in place. If to_x is not null, steps are relaxed, and to_x, to_v and to_h
   get the points before the last relaxation. masks, coupled, numbers and the result are as for amd_stencil. */
EXPORT int NAME(primal_dual)(int64_t planes, int64_t channels, int64_t coupled, int64_t height, int64_t width, REAL *x, REAL *v, REAL *h,
                      REAL *to_x, REAL *to_v, REAL *to_h, REAL *move, const REAL *y, const REAL *mask, int64_t masks,
                      const REAL *low, const REAL *high, const double *numbers, int64_t period, int64_t steps, int groups,
                      int threads) {
    NAME(pd_work) work = {channels, coupled, height, width, masks, planes, planes / channels, period, steps,
                          x, v, h, to_x, to_v, to_h, move, y, mask, low, high, numbers, groups};
    int64_t size = (8 * coupled + 4) * STRIDE(width) * sizeof(REAL);
    return sweep(NAME(pd_row), &work, size, planes / coupled, height, steps, threads);
}
