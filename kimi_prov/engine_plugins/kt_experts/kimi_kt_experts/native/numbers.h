/* What the arithmetic of experts and of dense weights share: compiled for one set of instructions. */
#ifndef KIMI_NUMBERS_H
#define KIMI_NUMBERS_H

#include <immintrin.h>
#include <stdint.h>

/* GCC's tile intrinsics do not say what memory they read. */
#define WRITTEN(at) __asm__ volatile("" ::"r"(at) : "memory")
#define INLINE static inline __attribute__((always_inline))
#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)

INLINE float bf16(uint16_t half) {
    union {
        uint32_t bits;
        float value;
    } u = {(uint32_t)half << 16};
    return u.value;
}

INLINE uint16_t to_bf16(float value) {
    union {
        float value;
        uint32_t bits;
    } u = {value};
    if (value != value)
        return 0x7fc0;
    return (uint16_t)((u.bits + 0x7fff + ((u.bits >> 16) & 1)) >> 16);
}

/* e to a number's power as 2^whole times a polynomial of the rest; 4e-7 off at most, and below e^-87
 * as good as zero. */
INLINE float exp_of(float x) {
    float t = x * 1.44269504f;
    t = t > 126.0f ? 126.0f : t;
    t = t < -126.0f ? -126.0f : t;
    union {
        float value;
        int32_t bits;
    } whole = {t + 12582912.0f}, power;
    float r = t - (whole.value - 12582912.0f);
    power.bits = (int32_t)((uint32_t)(whole.bits - 0x4b400000 + 127) << 23);
    float p = 1.5403530e-4f;
    p = p * r + 1.3333558e-3f;
    p = p * r + 9.6181291e-3f;
    p = p * r + 5.5504109e-2f;
    p = p * r + 2.4022651e-1f;
    p = p * r + 6.9314718e-1f;
    p = p * r + 1.0f;
    return p * power.value;
}

INLINE float silu(float x) { return x / (1.0f + exp_of(-x)); }

/* Bytes that are asked for before they are needed. */
#ifndef AHEAD
#define AHEAD 8192
#endif

#define TEXT2(a) #a
#define TEXT(a) TEXT2(a)

#endif
