/* Denoising of signals: the taut string for total variation, and an interior-point method for trend filtering.

   A signal has `length` entries. All numbers are computed in double precision. */

/* Arguments for a batch of signals. sizes has the radius of the tube, or of the dual variable, of every signal. */
typedef struct {
    int64_t length, steps;
    const REAL *y;
    const double *sizes;
    double tolerance;
    REAL *x, *u;
} NAME(series_work);

#ifndef SERIES
#define SERIES
#include <math.h>
#include <stdlib.h>

/* A corner of the string: a place and a height. */
typedef struct {
    int64_t place;
    double height;
} corner;

static inline double steepness(corner a, corner b) { return (b.height - a.height) / (double)(b.place - a.place); }

/* The shortest line from (0, 0) to (n, r_n) with |line_k - r_k| <= radius for 0 < k < n. string gets its heights at 0, ..., n.
   The funnel of lines from the last corner that is certain is bounded by two chains: above convex, below concave. Each place
   enters and leaves a chain once. chains has room for 2 (n + 1) corners. */
static void taut_string(int64_t n, const double *r, double radius, double *string, corner *chains) {
    corner *chain[2] = {chains, chains + n + 1}, apex = {0, 0};
    int64_t first[2] = {0, 0}, count[2] = {0, 0};
    string[0] = 0;
    for (int64_t k = 1; k <= n; k++)
        for (int side = 0; side < 2; side++) { /* 0 above, 1 below */
            double sign = side ? -1 : 1, room = k == n ? 0 : radius;
            corner new = {k, r[k] + sign * room};
            corner *own = chain[side], *other = chain[1 - side];
            int64_t *own_count = count + side, *other_first = first + 1 - side, *other_count = count + 1 - side;
            while (*own_count) {
                corner end = own[first[side] + *own_count - 1];
                corner before = *own_count > 1 ? own[first[side] + *own_count - 2] : apex;
                if (sign * steepness(end, new) > sign * steepness(before, end)) break;
                (*own_count)--;
            }
            if (!*own_count) {
                first[side] = 0;
                /* The line to the new corner may cross the other chain, whose corners are then part of the string. */
                while (*other_count && other[*other_first].place < k &&
                       sign * steepness(apex, new) < sign * steepness(apex, other[*other_first])) {
                    corner next = other[*other_first];
                    double slope = steepness(apex, next);
                    for (int64_t i = apex.place + 1; i < next.place; i++)
                        string[i] = apex.height + slope * (double)(i - apex.place);
                    string[next.place] = next.height;
                    apex = next;
                    (*other_first)++;
                    (*other_count)--;
                }
            }
            own[first[side] + (*own_count)++] = new;
        }
    /* Both chains end in (n, r_n), and one of them is a single line. */
    int side = count[0] > count[1] ? 0 : 1;
    for (int64_t c = 0; c < count[side]; c++) {
        corner next = chain[side][first[side] + c];
        double slope = steepness(apex, next);
        for (int64_t i = apex.place + 1; i < next.place; i++) string[i] = apex.height + slope * (double)(i - apex.place);
        string[next.place] = next.height;
        apex = next;
    }
}
#endif

/* Denoise one signal by the taut string. */
static int NAME(taut_series)(const void *work, int64_t series) {
    const NAME(series_work) *w = work;
    int64_t n = w->length;
    const REAL *y = w->y + series * n;
    REAL *x = w->x + series * n, *u = w->u + series * (n - 1);
    double *r = malloc((size_t)(2 * (n + 1)) * sizeof(double)), *string = r + n + 1;
    corner *chains = malloc((size_t)(2 * (n + 1)) * sizeof(corner));
    int failed = !r || !chains;
    if (!failed) {
        double mean = 0; /* so that sums stay small */
        for (int64_t i = 0; i < n; i++) mean += y[i];
        mean /= (double)n;
        r[0] = 0;
        for (int64_t i = 0; i < n; i++) r[i + 1] = r[i] + (y[i] - mean);
        taut_string(n, r, w->sizes[series], string, chains);
        for (int64_t i = 0; i < n; i++) x[i] = (REAL)(mean + (string[i + 1] - string[i]));
        for (int64_t i = 1; i < n; i++) u[i - 1] = (REAL)(string[i] - r[i]);
    }
    free(r);
    free(chains);
    return failed;
}

/* The minimisers x of 1/2 |x - y|^2 + radius |Dx|_1 for signals, and the dual points u with x = y - D^T u. sizes has the
   radius of every signal. Returns 0, or 1 if memory cannot be allocated. */
EXPORT int NAME(taut_strings)(int64_t count, int64_t length, const REAL *y, const double *sizes, REAL *x, REAL *u, int threads) {
    NAME(series_work) work = {length, 0, y, sizes, 0, x, u};
    return for_each(count, NAME(taut_series), &work, threads);
}

#ifndef TRENDS
#define TRENDS
/* v <- D y with second differences: m = n - 2 entries. */
static void second_differences(int64_t m, const double *y, double *v) {
    for (int64_t i = 0; i < m; i++) v[i] = (y[i] - y[i + 1]) - (y[i + 1] - y[i + 2]);
}

/* v <- D D^T z, whose rows are 1, -4, 6, -4, 1. */
static void apply_gram(int64_t m, const double *z, double *v) {
    for (int64_t i = 0; i < m; i++) {
        double sum = 6 * z[i];
        if (i > 0) sum -= 4 * z[i - 1];
        if (i + 1 < m) sum -= 4 * z[i + 1];
        if (i > 1) sum += z[i - 2];
        if (i + 2 < m) sum += z[i + 2];
        v[i] = sum;
    }
}

/* Solve (D D^T + diag(d)) v = b by an L D L^T decomposition. one and two get the bands of L, and b is changed. */
static void solve_gram(int64_t m, const double *d, double *b, double *one, double *two, double *pivots, double *v) {
    for (int64_t i = 0; i < m; i++) {
        double p = 6 + d[i], second = i > 1 ? 1 / pivots[i - 2] : 0, first = 0;
        if (i > 0) {
            double coupled = -4 - (i > 1 ? second * pivots[i - 2] * one[i - 1] : 0);
            first = coupled / pivots[i - 1];
            p -= first * first * pivots[i - 1];
        }
        if (i > 1) p -= second * second * pivots[i - 2];
        one[i] = first;
        two[i] = second;
        pivots[i] = p;
        if (i > 0) b[i] -= first * b[i - 1];
        if (i > 1) b[i] -= second * b[i - 2];
    }
    for (int64_t i = m - 1; i >= 0; i--) {
        v[i] = b[i] / pivots[i];
        if (i + 1 < m) v[i] -= one[i + 1] * v[i + 1];
        if (i + 2 < m) v[i] -= two[i + 2] * v[i + 2];
    }
}
#endif

/* Filter one signal. */
static int NAME(trend_series)(const void *work, int64_t series) {
    const NAME(series_work) *w = work;
    int64_t n = w->length, m = n - 2;
    const REAL *given = w->y + series * n;
    REAL *x = w->x + series * n, *u = w->u + series * (m > 0 ? m : 0);
    double radius = w->sizes[series];
    for (int64_t i = 0; i < n && m < 1; i++) x[i] = given[i];
    if (m < 1) return 0;
    double *room = malloc((size_t)(2 * n + 14 * m) * sizeof(double));
    if (!room) return 1;
    double *y = room, *p = y + n, *b = p + n, *z = b + m, *q = z + m, *upper = q + m, *lower = upper + m, *d = lower + m, *r = d + m;
    double *one = r + m, *two = one + m, *pivots = two + m, *dz = pivots + m, *at = dz + m, *gram = at + m, *residual = gram + m;
    /* In units of the radius: min 1/2 |D^T z|^2 - <z, D y> over |z| <= 1, with multipliers of both bounds. */
    for (int64_t i = 0; i < n; i++) y[i] = ((double)given[i] - (double)given[0]) / radius;
    second_differences(m, y, b);
    for (int64_t i = 0; i < m; i++) {
        z[i] = 0;
        upper[i] = lower[i] = 1;
    }
    double t = 1e-10, step = 1;
    for (int64_t turn = 0; turn < w->steps; turn++) {
        apply_gram(m, z, gram);
        double quadratic = 0, linear = 0, sum = 0, complementary = 0;
        for (int64_t i = 0; i < m; i++) {
            quadratic += z[i] * gram[i];
            linear += z[i] * b[i];
            sum += fabs(b[i] - gram[i]);
            complementary += upper[i] * (1 - z[i]) + lower[i] * (1 + z[i]);
        }
        double gap = quadratic / 2 + sum - (linear - quadratic / 2);
        if (!(gap > w->tolerance * (quadratic / 2 + sum))) break;
        double barrier = complementary > gap ? complementary : gap;
        if (step >= 0.2) {
            double next = 4 * (double)m / barrier;
            t = next > 1.2 * t ? next : 1.2 * t;
        }
        for (int64_t i = 0; i < m; i++) {
            d[i] = upper[i] / (1 - z[i]) + lower[i] / (1 + z[i]);
            r[i] = b[i] - gram[i] - 1 / (t * (1 - z[i])) + 1 / (t * (1 + z[i]));
        }
        solve_gram(m, d, r, one, two, pivots, dz);
        /* The steps of the multipliers, and the longest step that keeps them positive. */
        step = 1;
        double before = 0;
        for (int64_t i = 0; i < m; i++) {
            double above = 1 - z[i], below = 1 + z[i];
            double dual = gram[i] - b[i] + upper[i] - lower[i], first = upper[i] * above - 1 / t, second = lower[i] * below - 1 / t;
            before += dual * dual + first * first + second * second;
            residual[i] = (1 / t + dz[i] * upper[i]) / above - upper[i];
            at[i] = (1 / t - dz[i] * lower[i]) / below - lower[i];
            if (residual[i] < 0 && -0.99 * upper[i] / residual[i] < step) step = -0.99 * upper[i] / residual[i];
            if (at[i] < 0 && -0.99 * lower[i] / at[i] < step) step = -0.99 * lower[i] / at[i];
            if (dz[i] > 0 && 0.99 * above / dz[i] < step) step = 0.99 * above / dz[i];
            if (dz[i] < 0 && -0.99 * below / dz[i] < step) step = -0.99 * below / dz[i];
        }
        for (int search = 0; search < 20; search++, step /= 2) {
            double after = 0;
            for (int64_t i = 0; i < m; i++) q[i] = z[i] + step * dz[i];
            apply_gram(m, q, gram);
            for (int64_t i = 0; i < m; i++) {
                double up = upper[i] + step * residual[i], down = lower[i] + step * at[i];
                double dual = gram[i] - b[i] + up - down, first = up * (1 - q[i]) - 1 / t, second = down * (1 + q[i]) - 1 / t;
                after += dual * dual + first * first + second * second;
            }
            if (sqrt(after) <= (1 - 0.01 * step) * sqrt(before)) break;
        }
        for (int64_t i = 0; i < m; i++) {
            z[i] += step * dz[i];
            upper[i] += step * residual[i];
            lower[i] += step * at[i];
        }
    }
    for (int64_t i = 0; i < n; i++) p[i] = (double)given[i];
    for (int64_t i = 0; i < m; i++) {
        u[i] = (REAL)(radius * z[i]);
        p[i] -= radius * z[i];
        p[i + 1] += 2 * radius * z[i];
        p[i + 2] -= radius * z[i];
    }
    for (int64_t i = 0; i < n; i++) x[i] = (REAL)p[i];
    free(room);
    return 0;
}

/* The minimisers x of 1/2 |x - y|^2 + radius |D^2 x|_1 for signals, and dual points u with x = y - (D^2)^T u, by the
   primal-dual interior-point method of Kim et al. sizes has the radius of every signal. A signal ends at a relative duality gap
   of `tolerance`, or after `steps` Newton steps. Returns 0, or 1 if memory cannot be allocated. */
EXPORT int NAME(trend_filters)(int64_t count, int64_t length, const REAL *y, const double *sizes, double tolerance, int64_t steps,
                               REAL *x, REAL *u, int threads) {
    NAME(series_work) work = {length, steps, y, sizes, tolerance, x, u};
    return for_each(count, NAME(trend_series), &work, threads);
}
