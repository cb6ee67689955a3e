/* All kernels, for double and for single precision; bounds of single precision are computed in double. */
#define REAL double
#define NAME(name) name##_double
#include "optimiser.h"
#include "sweep.h"
#include "moments.h"
#include "powers.h"
#include "primal_dual.h"
#include "dual_fista.h"
#include "stencil.h"
#include "sums.h"
#include "bounds.h"
#include "matrices.h"
#undef REAL
#undef NAME
#define REAL float
#define NAME(name) name##_float
#include "optimiser.h"
#include "sweep.h"
#include "moments.h"
#include "powers.h"
#include "primal_dual.h"
#include "dual_fista.h"
#include "stencil.h"
#include "sums.h"
#include "bounds.h"
#include "matrices.h"
