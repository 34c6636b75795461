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

/* Bytes that are asked for before they are needed. */
#ifndef AHEAD
#define AHEAD 8192
#endif

#define TEXT2(a) #a
#define TEXT(a) TEXT2(a)

#endif
