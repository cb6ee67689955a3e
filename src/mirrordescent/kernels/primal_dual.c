/* Primal-dual methods on total-variation problems, in one pass over the images. */
#define REAL float
#define NAME(name) name##_float
#include "primal_dual.h"
#undef REAL
#undef NAME
#define REAL double
#define NAME(name) name##_double
#include "primal_dual.h"
