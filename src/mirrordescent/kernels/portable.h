/* Differences between compilers and systems, in one place. */
#ifndef PORTABLE
#define PORTABLE
#include <stdint.h>
#include <stdlib.h>

/* In front of every function that Python calls; all other symbols stay inside the library. */
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* In front of a loop whose iterations are independent, of one that is worth unrolling, and of one with a long chain of
   dependent operations, of which several are computed at once. */
#ifdef __clang__
#define INTERLEAVE(n) PORTABLE_PRAGMA(clang loop interleave_count(n))
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define UNROLL(n) PORTABLE_PRAGMA(clang loop unroll_count(n))
#else
#define INTERLEAVE(n)
#define INDEPENDENT _Pragma("GCC ivdep")
#define UNROLL(n) PORTABLE_PRAGMA(GCC unroll n)
#endif
/* In front of a function that is not worth inlining: the compiler would compute the addresses of all of them at once. */
#define NOINLINE __attribute__((noinline))
#define PORTABLE_PRAGMA(...) _Pragma(#__VA_ARGS__)

/* Memory aligned to cache lines, or null. It is freed by free_aligned. */
#ifdef _WIN32
#include <malloc.h>
static inline void *allocate_aligned(int64_t bytes) { return _aligned_malloc((size_t)bytes, 64); }
static inline void free_aligned(void *memory) { _aligned_free(memory); }
#else
static inline void *allocate_aligned(int64_t bytes) {
    void *memory = NULL;
    return posix_memalign(&memory, 64, (size_t)bytes) ? NULL : memory;
}
static inline void free_aligned(void *memory) { free(memory); }
#endif
#endif
