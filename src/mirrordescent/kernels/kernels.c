/* All kernels, for single and for double precision. */
#define REAL float
#define NAME(name) name##_float
#include "optimiser.h"
#include "sweep.h"
#include "primal_dual.h"
#include "dual_fista.h"
#include "stencil.h"
#include "sums.h"
#undef REAL
#undef NAME
#define REAL double
#define NAME(name) name##_double
#include "optimiser.h"
#include "sweep.h"
#include "primal_dual.h"
#include "dual_fista.h"
#include "stencil.h"
#include "sums.h"
