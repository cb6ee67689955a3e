/* Dual points of total-variation problems, and the lower bounds that they prove. */
#ifndef BOUNDS
#define BOUNDS
#define PI 3.14159265358979323846
#define SETTLED 1e-2 /* tolerance, relative to the initial D^T u in the holes */

/* Relaxation factor and maximal number of sweeps over the holes, for holes of this depth. */
static double relaxation(int64_t depth) { return 2 / (1 + sin(PI / (4 * depth + 1))); }
static int64_t turns(int64_t depth) { return 20 + 8 * depth; }

/* A missing pixel: the positions of its differences down and right (those up and left are one row and one entry
   before), and flags for which of the four differences exist. */
typedef struct {
    unsigned down, along;
    unsigned char has[4];
} hole_pixel;
#endif

/* Depth of the holes of a plane: the largest distance of a missing pixel from an observed one, in steps to one of
   eight neighbours. */
static int64_t NAME(depth)(const REAL *mask, int64_t height, int64_t width, int64_t deepest, unsigned char *room) {
    unsigned char *seen = room, *next = seen + height * width, *column = next + height * width;
    int64_t missing = 0, depth = 0;
    column[0] = column[width + 1] = 0;
    for (int64_t j = 0; j < height * width; j++) missing += !(seen[j] = mask[j] > 0);
    for (; depth < deepest && missing; depth++) {
        missing = grown(height, width, seen, next, column);
        unsigned char *other = seen;
        seen = next;
        next = other;
    }
    return depth;
}

/* Project the groups of differences of one pixel of an image onto the bound, in all channels. */
static void NAME(limit_at)(REAL *v, REAL *h, int64_t coupled, int64_t height, int64_t width, int64_t p, REAL bound, int groups) {
    int64_t i = p / width, j = p % width, tall = (height - 1) * width, wide = height * (width - 1);
    int down = i + 1 < height, along = j + 1 < width;
    REAL *first = v + p, *second = h + i * (width - 1) + j, one = 0, other = 0;
    for (int64_t c = 0; c < coupled; c++) {
        if (down) one += first[c * tall] * first[c * tall];
        if (along) other += second[c * wide] * second[c * wide];
    }
    if (groups & ISOTROPIC) one = other = one + other;
    one = ROOT(one);
    other = ROOT(other);
    for (int64_t c = 0; c < coupled; c++) {
        if (down && one > bound) first[c * tall] *= bound / one;
        if (along && other > bound) second[c * wide] *= bound / other;
    }
}

/* Arguments of close_holes. */
typedef struct {
    int64_t planes, channels, coupled, height, width;
    REAL *v, *h;
    const REAL *mask;
    int64_t masks;
    const double *bounds;
    int64_t samples, deepest;
    int groups;
} NAME(close_work);

/* Close the holes of one image. */
static int NAME(close_image)(const void *work, int64_t image) {
    const NAME(close_work) *w = work;
    int64_t planes = w->planes, coupled = w->coupled, height = w->height, width = w->width, masks = w->masks;
    int64_t plane = height * width, tall = (height - 1) * width, wide = height * (width - 1);
    const REAL *mask = w->mask;
    int groups = w->groups;
    int64_t first = image * coupled, missing = 0, count = 0, ends[2], touched = 0, depth = 0;
    REAL *vs = w->v + first * tall, *hs = w->h + first * wide;
    REAL bound = (REAL)w->bounds[w->samples == 1 ? 0 : first / w->channels];
    unsigned char *room = malloc((size_t)(2 * plane + width + 2));
    for (int64_t c = 0; c < coupled && room; c++) {
        const REAL *m = MASKED(mask, masks, first + c, planes, height, width);
        int64_t deep = NAME(depth)(m, height, width, w->deepest, room);
        if (deep > depth) depth = deep;
        for (int64_t p = 0; p < plane; p++) missing += !(m[p] > 0);
    }
    hole_pixel *pixels = malloc((missing + 1) * sizeof(hole_pixel));
    unsigned *near = malloc((groups ? plane : 1) * sizeof(unsigned));
    if (!pixels || !room || !near) {
        free(pixels);
        free(room);
        free(near);
        return 1;
    }
    for (int64_t p = 0; p < plane; p++) room[p] = 0;
    for (int colour = 0; colour < 2; colour++) {
        for (int64_t c = 0; c < coupled; c++) {
            const REAL *m = MASKED(mask, masks, first + c, planes, height, width);
            for (int64_t i = 0; i < height; i++)
                for (int64_t j = (i + colour) % 2; j < width; j += 2) {
                    int64_t p = i * width + j;
                    if (m[p] > 0) continue;
                    hole_pixel found = {(unsigned)(c * tall + p), (unsigned)(c * wide + i * (width - 1) + j),
                                        {i > 0, i + 1 < height, j > 0, j + 1 < width}};
                    pixels[count++] = found;
                    room[p] = 1; /* pixels whose differences change: missing ones, and those left of or above one */
                    if (i) room[p - width] = 1;
                    if (j) room[p - 1] = 1;
                }
        }
        ends[colour] = count;
    }
    for (int64_t p = 0; p < plane && groups; p++)
        if (room[p]) near[touched++] = (unsigned)p;
    REAL relax = (REAL)relaxation(depth);
    double begun = 0;
    for (int64_t turn = 0; turn < turns(depth) && count; turn++) {
        double left = 0;
        for (int colour = 0; colour < 2; colour++) {
            for (int64_t e = colour ? ends[0] : 0; e < ends[colour]; e++) {
                const hole_pixel *p = pixels + e;
                REAL *down = vs + p->down, *up = down - width, *along = hs + p->along, *back = along - 1;
                int n = p->has[0] + p->has[1] + p->has[2] + p->has[3];
                if (n == 4 && !groups) { /* the general case below, without branches */
                    REAL r = *up - *down + *back - *along, move = relax / 4 * r;
                    left += r < 0 ? -r : r;
                    *up = NAME(clip)(*up - move, bound);
                    *down = NAME(clip)(*down + move, bound);
                    *back = NAME(clip)(*back - move, bound);
                    *along = NAME(clip)(*along + move, bound);
                    continue;
                }
                REAL r = (p->has[0] ? *up : 0) - (p->has[1] ? *down : 0) + (p->has[2] ? *back : 0) - (p->has[3] ? *along : 0);
                REAL move = n ? relax / n * r : 0;
                left += r < 0 ? -r : r;
                if (p->has[0]) *up = groups ? *up - move : NAME(clip)(*up - move, bound);
                if (p->has[1]) *down = groups ? *down + move : NAME(clip)(*down + move, bound);
                if (p->has[2]) *back = groups ? *back - move : NAME(clip)(*back - move, bound);
                if (p->has[3]) *along = groups ? *along + move : NAME(clip)(*along + move, bound);
            }
            for (int64_t e = 0; e < touched; e++) NAME(limit_at)(vs, hs, coupled, height, width, near[e], bound, groups);
        }
        if (turn == 0) begun = left;
        if (!(left > SETTLED * begun)) break;
    }
    free(pixels);
    free(room);
    free(near);
    return 0;
}

/* Move D^T u towards 0 at missing pixels, within the bound (one for all samples or one for each). For every missing
   pixel p, with n neighbours and the relaxation r,
     u -> limit(u - r/n (D^T u)_p D e_p),
   first for one colour of a checkerboard, then for the other, because pixels of one colour share no difference, until
   D^T u is small. v and h are changed in place. An image has at most 2^32 pixels and channels.
   Returns 0, or 1 if memory cannot be allocated. */
EXPORT int NAME(close_holes)(int64_t planes, int64_t channels, int64_t coupled, int64_t height, int64_t width, REAL *v,
                             REAL *h, const REAL *mask, int64_t masks, const double *bounds, int64_t samples,
                             int64_t deepest, int groups, int threads) {
    NAME(close_work) work = {planes, channels, coupled, height, width, v, h, mask, masks, bounds, samples, deepest, groups};
    return for_each(planes / coupled, NAME(close_image), &work, threads);
}

/* Arguments of dual_value. */
typedef struct {
    int64_t planes, channels, coupled, height, width;
    const REAL *v, *h, *given, *y, *mask;
    int64_t masks;
    const REAL *low, *high;
    const double *numbers;
    int64_t samples;
    int groups;
    double *sums;
} NAME(dual_value_work);

/* The sums of the planes of one image. */
static int NAME(image_value)(const void *work, int64_t image) {
    const NAME(dual_value_work) *all = work;
    int64_t planes = all->planes, coupled = all->coupled, height = all->height, width = all->width, masks = all->masks;
    int64_t tall = (height - 1) * width, wide = height * (width - 1);
    const REAL *given = all->given, *mask = all->mask;
    int groups = all->groups;
    int64_t first = image * coupled;
    const double *n = all->numbers + (all->samples == 1 ? 0 : first / all->channels) * 2;
    double scale = n[0], bound = n[1];
    int64_t stride = width + 1; /* each row of differences is preceded by a zero */
    double *room = calloc((3 * coupled + 4) * stride, sizeof(double));
    if (!room) return 1;
    double *up = room, *down = up + coupled * stride, *along = down + coupled * stride + 1;
    double *length = along + coupled * stride, *w = length + stride, *seen = w + stride;
    for (int64_t e = 4 * first; e < 4 * (first + coupled); e++) all->sums[e] = 0;
    for (int64_t row = 0; row < height; row++) {
        for (int64_t c = 0; c < coupled && !given; c++) {
            const REAL *vs = all->v + (first + c) * tall + row * width;
            const REAL *hs = all->h + (first + c) * wide + row * (width - 1);
            double *d = down + c * stride, *a = along + c * stride;
            if (row + 1 < height)
                EACH(j, 0, width) d[j] = vs[j];
            else
                EACH(j, 0, width) d[j] = 0;
            EACH(j, 0, width - 1) a[j] = hs[j];
            a[width - 1] = 0;
            if (groups) continue;
            EACH(j, 0, width) d[j] = IN_DOUBLE(clip)(d[j], bound);
            EACH(j, 0, width) a[j] = IN_DOUBLE(clip)(a[j], bound);
        }
        if (groups && !given) IN_DOUBLE(limit)(down, along, coupled, stride, width, bound, groups, length);
        for (int64_t c = 0; c < coupled; c++) {
            int64_t plane = first + c, at = (plane * height + row) * width;
            const REAL *ys = all->y + at, *m = MASKED(mask, masks, plane, planes, height, width);
            double *u = up + c * stride, *d = down + c * stride, *a = along + c * stride;
            double from = all->low[plane], to = all->high[plane], half = 1 / (2 * scale);
            double least = 0, size = 0, extent = 0, squares = 0;
            if (given)
                EACH(j, 0, width) w[j] = given[at + j];
            else
                EACH(j, 0, width) w[j] = u[j] - d[j] + a[j - 1] - a[j];
            if (m)
                EACH(j, 0, width) seen[j] = m[row * width + j];
            else
                EACH(j, 0, width) seen[j] = 1;
#pragma omp simd reduction(+ : least, size, extent, squares)
            for (int64_t j = 0; j < width; j++) {
                /* t = x - y, so that rounding is relative to the width of the box */
                double t = -half * w[j], lowest = from - ys[j], highest = to - ys[j];
                t = t < lowest ? lowest : t;
                t = t > highest ? highest : t;
                double offset = seen[j] > 0 ? t - lowest : w[j] > 0 ? 0 : to - from;
                double fidelity = scale * seen[j] * t * t, linear = w[j] * offset;
                least += fidelity + linear;
                size += fidelity + fabs(linear);
                extent += offset;
                squares += d[j] * d[j] + a[j] * a[j];
            }
            double *sums = all->sums + 4 * plane;
            sums[0] += least;
            sums[1] += size;
            sums[2] += extent;
            sums[3] += squares;
            EACH(j, 0, width) u[j] = d[j];
        }
    }
    free(room);
    return 0;
}

/* Minimise, pixel by pixel over the box of every plane and in double precision,
     s m (x - y)^2 + w (x - low),
   where w is given, or w = D^T u with u projected onto its bound if given is null. For every plane, sums gets the sums
   of these minima, of the sizes of their terms, of x - low, and of the squares of u. numbers has s and the bound, for
   all samples or for each. Returns 0, or 1 if memory cannot be allocated. */
EXPORT int NAME(dual_value)(int64_t planes, int64_t channels, int64_t coupled, int64_t height, int64_t width,
                            const REAL *v, const REAL *h, const REAL *given, const REAL *y, const REAL *mask,
                            int64_t masks, const REAL *low, const REAL *high, const double *numbers, int64_t samples,
                            int groups, double *sums, int threads) {
    NAME(dual_value_work) work = {planes, channels, coupled, height, width, v, h, given, y, mask,
                                  masks, low, high, numbers, samples, groups, sums};
    return for_each(planes / coupled, NAME(image_value), &work, threads);
}
