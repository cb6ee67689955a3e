/* Steps of optimisers on lists of tensors, in one pass over memory. */
#define REAL float
#define NAME(name) name##_float
#include "optimiser.h"
#undef REAL
#undef NAME
#define REAL double
#define NAME(name) name##_double
#include "optimiser.h"
