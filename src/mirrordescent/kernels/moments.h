/* Running means of gradients and of squares, and steps along them, on lists of tensors. torch needs one call and one pass
   over memory for every operation and tensor. Pieces and threads are those of optimiser.h, ROOT is that of sweep.h. */

/* m <- b m + a g,  v <- b m + a g. Written without differences, so that a = 1 removes the old m exactly. */
static inline void NAME(mix)(long n, REAL *restrict m, const REAL *restrict g, REAL *restrict v, REAL b, REAL a) {
    for (long j = 0; j < n; j++) {
        REAL mean = b * m[j] + a * g[j];
        m[j] = mean;
        v[j] = b * mean + a * g[j];
    }
}

/* Running means m of gradients g with weight 1 - beta of the newest, and v, which looks one step ahead. */
void NAME(momenta)(long count, const long *sizes, REAL **m, REAL **g, REAL **v, double beta, int threads) {
    REAL b = (REAL)beta, a = (REAL)(1 - beta);
    FOR_PIECES(NAME(mix)(to - from, m[i] + from, g[i] + from, v[i] + from, b, a);)
}

/* n <- b n + a u^2,  x <- keep x - step u/(sqrt(n) + tiny). */
static inline void NAME(adapt)(long count, REAL *restrict x, REAL *restrict n, const REAL *restrict u, REAL b, REAL a,
                               REAL keep, REAL step, REAL tiny) {
    for (long j = 0; j < count; j++) {
        REAL mean = b * n[j] + a * (u[j] * u[j]);
        n[j] = mean;
        x[j] = keep * x[j] - step * (u[j] / (ROOT(mean) + tiny));
    }
}

/* Steps of the given lengths along u, divided by the root of the running means n of squares with total weights w. */
void NAME(adapted)(long count, const long *sizes, REAL **x, REAL **n, REAL **w, REAL **u, const double *steps,
                   double second, double keep, double tiny, int threads) {
    REAL b = (REAL)second, a = (REAL)(1 - second);
    for (long i = 0; i < count; i++) *w[i] = b * *w[i] + a;
    FOR_PIECES(REAL step = (REAL)steps[i] * ROOT(*w[i]); NAME(adapt)(
        to - from, x[i] + from, n[i] + from, u[i] + from, b, a, (REAL)keep, step, (REAL)tiny);)
}
