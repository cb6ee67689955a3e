/* Running means of gradients and of squares, and steps along them, on lists of tensors. torch needs one call and one pass
   over memory for every operation and tensor. Pieces and threads are those of optimiser.h, ROOT is that of sweep.h. */

/* m <- b m + a g,  v <- b m + a g. Written without differences, so that a = 1 removes the old m exactly. */
static inline void NAME(mix)(int64_t n, REAL *restrict m, const REAL *restrict g, REAL *restrict v, REAL b, REAL a) {
    for (int64_t j = 0; j < n; j++) {
        REAL mean = b * m[j] + a * g[j];
        m[j] = mean;
        v[j] = b * mean + a * g[j];
    }
}

/* Arguments of momenta and adapted. */
typedef struct {
    REAL **m, **g, **v, **x, **n, **w, **u;
    const double *steps;
    REAL b, a, keep, tiny;
} NAME(moment_work);

PIECES_OF(momenta_piece) {
    const NAME(moment_work) *l = work;
    (void)piece;
    NAME(mix)(to - from, l->m[i] + from, l->g[i] + from, l->v[i] + from, l->b, l->a);
}

/* Running means m of gradients g with weight 1 - beta of the newest, and v, which looks one step ahead. */
EXPORT void NAME(momenta)(int64_t count, const int64_t *sizes, REAL **m, REAL **g, REAL **v, double beta, int threads) {
    NAME(moment_work) work = {.m = m, .g = g, .v = v, .b = (REAL)beta, .a = (REAL)(1 - beta)};
    for_pieces(count, sizes, NAME(momenta_piece), &work, threads);
}

/* n <- b n + a u^2,  x <- keep x - step u/(sqrt(n) + tiny). */
static inline void NAME(adapt)(int64_t count, REAL *restrict x, REAL *restrict n, const REAL *restrict u, REAL b, REAL a,
                               REAL keep, REAL step, REAL tiny) {
    for (int64_t j = 0; j < count; j++) {
        REAL mean = b * n[j] + a * (u[j] * u[j]);
        n[j] = mean;
        x[j] = keep * x[j] - step * (u[j] / (ROOT(mean) + tiny));
    }
}

PIECES_OF(adapted_piece) {
    const NAME(moment_work) *l = work;
    REAL step = (REAL)l->steps[i] * ROOT(*l->w[i]);
    (void)piece;
    NAME(adapt)(to - from, l->x[i] + from, l->n[i] + from, l->u[i] + from, l->b, l->a, l->keep, step, l->tiny);
}

/* Steps of the given lengths along u, divided by the root of the running means n of squares with total weights w. */
EXPORT void NAME(adapted)(int64_t count, const int64_t *sizes, REAL **x, REAL **n, REAL **w, REAL **u,
                          const double *steps, double second, double keep, double tiny, int threads) {
    NAME(moment_work) work = {.x = x, .n = n, .w = w, .u = u, .steps = steps, .b = (REAL)second,
                              .a = (REAL)(1 - second), .keep = (REAL)keep, .tiny = (REAL)tiny};
    for (int64_t i = 0; i < count; i++) *w[i] = work.b * *w[i] + work.a;
    for_pieces(count, sizes, NAME(adapted_piece), &work, threads);
}
