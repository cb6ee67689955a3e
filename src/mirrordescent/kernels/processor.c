/* Which of the compiled levels the processor supports, and which sources this library was compiled from. */
#include "portable.h"
#include <string.h>

/* The hash of the sources. Python compares it with that of the sources in the package. */
EXPORT const char *kernel_sources(void) { return SOURCES; }

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>

/* The registers that the system saves when it switches between threads. */
static unsigned saved_registers(void) {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* Whether all bits of a mask are set. */
static int has(unsigned value, unsigned mask) { return (value & mask) == mask; }

/* Whether the processor supports a level: 1 or 0. The features are those of x86-64-v3 and x86-64-v4. */
EXPORT int kernel_level_supported(const char *level) {
    unsigned a, b, c, d, b7, unused;
    if (!strcmp(level, "baseline")) return 1;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    if (!has(c, bit_FMA | bit_SSE4_2 | bit_POPCNT | bit_MOVBE | bit_F16C | bit_OSXSAVE | bit_AVX)) return 0;
    if (!has(saved_registers(), 0x06) || !__get_cpuid_count(7, 0, &a, &b7, &c, &d)) return 0;
    if (!has(b7, bit_AVX2 | bit_BMI | bit_BMI2)) return 0;
    if (!__get_cpuid(0x80000001, &a, &unused, &c, &d) || !has(c, bit_LZCNT)) return 0;
    if (!strcmp(level, "avx2")) return 1;
    if (strcmp(level, "avx512") || !has(saved_registers(), 0xe6)) return 0;
    return has(b7, bit_AVX512F | bit_AVX512DQ | bit_AVX512CD | bit_AVX512BW | bit_AVX512VL);
}
#else
EXPORT int kernel_level_supported(const char *level) { return !strcmp(level, "baseline"); }
#endif
