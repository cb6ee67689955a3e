/* All kernels, for double and for single precision; bounds of single precision are computed in double.

   This file is compiled once for every level of the processor, with -DLEVEL=avx2 for instance. The level is part of every
   name: image_sums_float_avx2. */
#define JOIN_NAMES(name, precision, level) name##_##precision##_##level
#define NAME_OF(name, precision, level) JOIN_NAMES(name, precision, level)
#define IN_DOUBLE(name) NAME_OF(name, double, LEVEL)
#define REAL double
#define NAME(name) NAME_OF(name, double, LEVEL)
#include "all.h"
#undef REAL
#undef NAME
#define REAL float
#define NAME(name) NAME_OF(name, float, LEVEL)
#include "all.h"
