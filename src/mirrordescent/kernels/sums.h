/* What a problem has to know of its images, in one pass. */

/* For every sample into sums: the number of observed pixels, the sums of y - c and of its square over them, with c the
   first of them, and the sum of |Dx| over all differences. masks is as for amd_stencil. */
void NAME(image_sums)(long samples, long channels, long height, long width, const REAL *y, const REAL *mask, long masks,
                      const REAL *x, double *sums, int threads) {
    long plane = height * width, planes = samples * channels;
#pragma omp parallel for num_threads(threads)
    for (long sample = 0; sample < samples; sample++) {
        double *all = sums + 4 * sample;
        REAL c = 0;
        int found = 0;
        all[0] = all[1] = all[2] = all[3] = 0;
        for (long p = sample * channels; p < (sample + 1) * channels; p++) {
            const REAL *ys = y + p * plane, *xs = x + p * plane, *ms = masks ? mask + p * masks / planes * plane : NULL;
            for (long j = 0; j < plane && !found; j++)
                if (!ms || ms[j] > 0) {
                    c = ys[j];
                    found = 1;
                }
            for (long row = 0; row < height; row++, ys += width, xs += width, ms += ms ? width : 0) {
                REAL count = 0, first = 0, second = 0, rough = 0;
#pragma omp simd reduction(+ : count, first, second)
                for (long j = 0; j < width; j++) {
                    REAL seen = ms ? ms[j] : 1, d = ys[j] - c;
                    count += seen;
                    first += seen * d;
                    second += seen * d * d;
                }
#pragma omp simd reduction(+ : rough)
                for (long j = 0; j < width - 1; j++) rough += xs[j + 1] > xs[j] ? xs[j + 1] - xs[j] : xs[j] - xs[j + 1];
                if (row + 1 < height) {
#pragma omp simd reduction(+ : rough)
                    for (long j = 0; j < width; j++)
                        rough += xs[j + width] > xs[j] ? xs[j + width] - xs[j] : xs[j] - xs[j + width];
                }
                all[0] += count;
                all[1] += first;
                all[2] += second;
                all[3] += rough;
            }
        }
    }
}
