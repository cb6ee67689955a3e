/* Running means of gradients and of squares, and the steps they lead to, on lists of tensors: what is in torch a pass over
   memory and a call for every operation and tensor. Pieces and threads are those of optimiser.h,
   and the root is that of sweep.h. */

/* m <- m + a (g - m),  v <- m + a (g - m). */
static inline void NAME(mix)(long n, REAL *restrict m, const REAL *restrict g, REAL *restrict v, REAL a) {
    for (long j = 0; j < n; j++) {
        REAL mean = m[j] + a * (g[j] - m[j]);
        m[j] = mean;
        v[j] = mean + a * (g[j] - mean);
    }
}

/* Means m of gradients g with the weight 1 - beta of the newest, and v, which look one step ahead. */
void NAME(momenta)(long count, const long *sizes, REAL **m, REAL **g, REAL **v, double beta, int threads) {
    REAL a = (REAL)(1 - beta);
    FOR_PIECES(NAME(mix)(to - from, m[i] + from, g[i] + from, v[i] + from, a);)
}

/* n <- n + a (u^2 - n),  x <- keep x - step u/(sqrt(n) + tiny). */
static inline void NAME(adapt)(long count, REAL *restrict x, REAL *restrict n, const REAL *restrict u, REAL a, REAL keep,
                               REAL step, REAL tiny) {
    for (long j = 0; j < count; j++) {
        REAL mean = n[j] + a * (u[j] * u[j] - n[j]);
        n[j] = mean;
        x[j] = keep * x[j] - step * (u[j] / (ROOT(mean) + tiny));
    }
}

/* Steps along u, each with a length of its own: divided by the root of the means n of squares. */
void NAME(adapted)(long count, const long *sizes, REAL **x, REAL **n, REAL **u, const double *steps, double second,
                   double keep, double tiny, int threads) {
    REAL a = (REAL)(1 - second);
    FOR_PIECES(NAME(adapt)(to - from, x[i] + from, n[i] + from, u[i] + from, a, (REAL)keep, (REAL)steps[i], (REAL)tiny);)
}
