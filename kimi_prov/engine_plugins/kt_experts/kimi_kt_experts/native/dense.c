/* Products with dense weights in int8, for one set of instructions: compiled once for each (build.py). */
#include "dense.h"
#include "numbers.h"

/* One group of a token as int8. A value that is no number, or no finite one, makes the group's
 * scale one, and thus the token's output. */
static void quantise(const struct dense_job *job, int token, int from, int to) {
    const struct dense_row row = dense_row_at(job, token);
    for (int g = from; g < to; g++) {
        const int start = g * DENSE_GROUP;
        const int n = job->columns - start < DENSE_GROUP ? 64 : DENSE_GROUP;
        const uint16_t *x = job->input + (int64_t)token * job->columns + start;
        int32_t most = 0, sum = 0;
        for (int i = 0; i < n; i++) {
            const int32_t size = (int32_t)(x[i] & 0x7fff);
            most = size > most ? size : most;
        }
        /* 0x7f80 and above are infinity and what is no number; below 0x0e00 it is as good as zero. */
        const int broken = most >= 0x7f80, nothing = most < 0x0e00;
        const float inverse = broken || nothing ? 0.0f : 127.0f / bf16((uint16_t)most);
        int8_t *q = row.values + start;
        for (int i = 0; i < n; i++) {
            union {
                float value;
                int32_t bits;
            } u = {(broken ? 0.0f : bf16(x[i])) * inverse + 12582912.0f};
            const int32_t whole = u.bits - 0x4b400000;
            q[i] = (int8_t)whole;
            sum += whole;
        }
        row.scales[g] = broken ? __builtin_nanf("") : nothing ? 0.0f : bf16((uint16_t)most) / 127.0f;
        row.sums[g] = -128 * sum;
    }
}

#ifdef __AVX512VNNI__

enum { AT_ONCE = 8 };

/* One block times some tokens, a compile-time number: out[token][row]. */
INLINE void times(const int tokens, const uint8_t *w, int columns, const struct dense_row *x, float *out) {
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    __m512 sum[AT_ONCE];
    for (int t = 0; t < tokens; t++)
        sum[t] = _mm512_setzero_ps();
    for (int g = 0, start = 0; start < columns; g++, start += DENSE_GROUP) {
        const int lines = (columns - start < DENSE_GROUP ? 64 : DENSE_GROUP) / 4;
        __m512i even[AT_ONCE], odd[AT_ONCE];
        for (int t = 0; t < tokens; t++) {
            even[t] = _mm512_set1_epi32(x[t].sums[g]);
            odd[t] = _mm512_setzero_si512();
        }
        for (int p = 0; p < lines; p += 2, w += 128) {
            const __m512i a = _mm512_xor_si512(_mm512_loadu_si512(w), flip);
            const __m512i b = _mm512_xor_si512(_mm512_loadu_si512(w + 64), flip);
            _mm_prefetch((const char *)w + AHEAD, _MM_HINT_T0);
            _mm_prefetch((const char *)w + AHEAD + 64, _MM_HINT_T0);
            for (int t = 0; t < tokens; t++) {
                const int32_t *q = (const int32_t *)(x[t].values + start) + p;
                even[t] = _mm512_dpbusd_epi32(even[t], a, _mm512_set1_epi32(q[0]));
                odd[t] = _mm512_dpbusd_epi32(odd[t], b, _mm512_set1_epi32(q[1]));
            }
        }
        const __m512 scale = _mm512_loadu_ps(w);
        w += 64;
        for (int t = 0; t < tokens; t++)
            sum[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(even[t], odd[t])),
                                     _mm512_mul_ps(scale, _mm512_set1_ps(x[t].scales[g])), sum[t]);
    }
    for (int t = 0; t < tokens; t++)
        _mm512_storeu_ps(out + t * 16, sum[t]);
}

#else /* AVX2 */

enum { AT_ONCE = 4 };

INLINE void times(const int tokens, const uint8_t *w, int columns, const struct dense_row *x, float *out) {
    for (int half = 0; half < 2; half++) {
        const uint8_t *at = w + half * 32;
        __m256 sum[AT_ONCE];
        for (int t = 0; t < tokens; t++)
            sum[t] = _mm256_setzero_ps();
        for (int g = 0, start = 0; start < columns; g++, start += DENSE_GROUP) {
            const int lines = (columns - start < DENSE_GROUP ? 64 : DENSE_GROUP) / 4;
            /* A row's two halves of its four products, rows 0 to 3 and 4 to 7. */
            __m256i low[AT_ONCE], high[AT_ONCE];
            for (int t = 0; t < tokens; t++)
                low[t] = high[t] = _mm256_setzero_si256();
            for (int p = 0; p < lines; p++, at += 64) {
                const __m256i a = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)at));
                const __m256i b = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(at + 16)));
                if (!half)
                    _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T0);
                for (int t = 0; t < tokens; t++) {
                    const int32_t *q = (const int32_t *)(x[t].values + start) + p;
                    const __m256i y = _mm256_cvtepi8_epi16(_mm_set1_epi32(*q));
                    low[t] = _mm256_add_epi32(low[t], _mm256_madd_epi16(a, y));
                    high[t] = _mm256_add_epi32(high[t], _mm256_madd_epi16(b, y));
                }
            }
            const __m256 scale = _mm256_loadu_ps((const float *)at);
            at += 64;
            for (int t = 0; t < tokens; t++) {
                const __m256i whole =
                    _mm256_permute4x64_epi64(_mm256_hadd_epi32(low[t], high[t]), 0xd8);
                sum[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole),
                                         _mm256_mul_ps(scale, _mm256_set1_ps(x[t].scales[g])), sum[t]);
            }
        }
        for (int t = 0; t < tokens; t++)
            _mm256_storeu_ps(out + t * 16 + half * 8, sum[t]);
    }
}

#endif

static void times_1(const uint8_t *w, int n, const struct dense_row *x, float *o) { times(1, w, n, x, o); }
static void times_2(const uint8_t *w, int n, const struct dense_row *x, float *o) { times(2, w, n, x, o); }
static void times_4(const uint8_t *w, int n, const struct dense_row *x, float *o) { times(4, w, n, x, o); }
#ifdef __AVX512VNNI__
static void times_8(const uint8_t *w, int n, const struct dense_row *x, float *o) { times(8, w, n, x, o); }
#endif

INLINE void put(const struct dense_job *job, const float *sums, int token, int block) {
    uint16_t *to = job->output + (int64_t)token * job->rows + block * 16;
    for (int i = 0; i < 16; i++)
        to[i] = to_bf16(sums[i]);
}

/* A block times all tokens, some at once. */
static void block_alone(const struct dense_job *job, int block) {
    const uint8_t *w = job->weights + block * dense_block_bytes(job->columns);
    float out[AT_ONCE * 16] __attribute__((aligned(64)));
    for (int token = 0; token < job->tokens;) {
        const int left = job->tokens - token;
        struct dense_row x[AT_ONCE];
        int now = AT_ONCE;
        while (now > left)
            now /= 2;
        for (int t = 0; t < now; t++)
            x[t] = dense_row_at(job, token + t);
        switch (now) {
        case 1: times_1(w, job->columns, x, out); break;
        case 2: times_2(w, job->columns, x, out); break;
#ifdef __AVX512VNNI__
        case 4: times_4(w, job->columns, x, out); break;
        default: times_8(w, job->columns, x, out); break;
#else
        default: times_4(w, job->columns, x, out); break;
#endif
        }
        for (int t = 0; t < now; t++)
            put(job, out + t * 16, token + t, block);
        token += now;
    }
}

#ifdef __AMX_INT8__

static void configure(void) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t columns[16];
        uint8_t rows[16];
    } config = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    WRITTEN(&config);
    _tile_loadconfig(&config);
}

/* Add a group's integers, scaled: of a tile of tokens and one of rows. */
INLINE void settle(const struct dense_row *x, int64_t stride, int g, const uint8_t *scales,
                   const int32_t *whole, float *sums) {
    const __m512 scale = _mm512_loadu_ps(scales);
    const uint8_t *by = (const uint8_t *)(x->scales + g);
    for (int t = 0; t < 16; t++) {
        const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(*(const float *)(by + t * stride)));
        const __m512 found = _mm512_cvtepi32_ps(_mm512_load_si512(whole + 16 * t));
        _mm512_store_ps(sums + 16 * t, _mm512_fmadd_ps(found, both, _mm512_load_ps(sums + 16 * t)));
    }
}

/* `halves` tiles of 16 tokens times `count` blocks, both one or two. While the tiles multiply a
 * group, the integers of the one before are scaled and added. */
INLINE void tiles(const int halves, const int count, const struct dense_job *job, int token, int block) {
    const int64_t size = dense_block_bytes(job->columns), stride = dense_row_bytes(job->columns);
    const uint8_t *w = job->weights + block * size;
    const struct dense_row x[2] = {dense_row_at(job, token), dense_row_at(job, token + 16)};
    const int groups = dense_groups(job->columns);
    int32_t whole[2][4][256] __attribute__((aligned(64)));
    float sums[4][256] __attribute__((aligned(64)));
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 256; j++)
            sums[i][j] = 0;
    for (int g = 0; g <= groups; g++) {
        if (g < groups) {
            const int start = g * DENSE_GROUP, end = job->columns - start < DENSE_GROUP ? 64 : DENSE_GROUP;
            const uint8_t *at = w + (int64_t)g * DENSE_GROUP_BYTES;
            _tile_zero(0);
            if (count > 1)
                _tile_zero(1);
            if (halves > 1)
                _tile_zero(2);
            if (halves > 1 && count > 1)
                _tile_zero(3);
            for (int k = 0; k < end; k += 64) {
                _tile_loadd(4, x[0].values + start + k, stride);
                _tile_loadd(6, at + k * 16, 64);
                _tile_dpbssd(0, 4, 6);
                if (count > 1) {
                    _tile_loadd(7, at + size + k * 16, 64);
                    _tile_dpbssd(1, 4, 7);
                }
                if (halves > 1) {
                    _tile_loadd(5, x[1].values + start + k, stride);
                    _tile_dpbssd(2, 5, 6);
                }
                if (halves > 1 && count > 1)
                    _tile_dpbssd(3, 5, 7);
            }
        }
        if (g > 0) {
            const int before = g - 1;
            const int columns = job->columns - before * DENSE_GROUP < DENSE_GROUP ? 64 : DENSE_GROUP;
            const uint8_t *scales = w + (int64_t)before * DENSE_GROUP_BYTES + columns * 16;
            for (int h = 0; h < halves; h++)
                for (int c = 0; c < count; c++)
                    settle(&x[h], stride, before, scales + c * size, whole[before & 1][2 * h + c],
                           sums[2 * h + c]);
        }
        if (g < groups) {
            _tile_stored(0, whole[g & 1][0], 64);
            if (count > 1)
                _tile_stored(1, whole[g & 1][1], 64);
            if (halves > 1)
                _tile_stored(2, whole[g & 1][2], 64);
            if (halves > 1 && count > 1)
                _tile_stored(3, whole[g & 1][3], 64);
            WRITTEN(whole);
        }
    }
    for (int h = 0; h < halves; h++)
        for (int t = 0; t < 16 && token + h * 16 + t < job->tokens; t++)
            for (int c = 0; c < count; c++)
                put(job, sums[2 * h + c] + 16 * t, token + h * 16 + t, block + c);
}

static void tiles_11(const struct dense_job *job, int token, int block) { tiles(1, 1, job, token, block); }
static void tiles_12(const struct dense_job *job, int token, int block) { tiles(1, 2, job, token, block); }
static void tiles_21(const struct dense_job *job, int token, int block) { tiles(2, 1, job, token, block); }
static void tiles_22(const struct dense_job *job, int token, int block) { tiles(2, 2, job, token, block); }

/* The blocks stay near the core, while tiles of tokens pass by. */
static void blocks_in_tiles(const struct dense_job *job, int from, int to) {
    configure();
    for (int token = 0; token < job->tokens; token += DENSE_TOKENS)
        for (int block = from; block < to; block += 2) {
            const int pair = block + 1 < to;
            if (job->tokens - token > 16)
                (pair ? tiles_22 : tiles_21)(job, token, block);
            else
                (pair ? tiles_12 : tiles_11)(job, token, block);
        }
    _tile_release();
}

#endif

/* Blocks of rows for all tokens. */
static void blocks(const struct dense_job *job, int from, int to) {
#ifdef __AMX_INT8__
    if (job->tokens >= job->crossover) {
        blocks_in_tiles(job, from, to);
        return;
    }
#endif
    for (int block = from; block < to; block++)
        block_alone(job, block);
}

extern const struct dense_build JOIN(kimi_dense_, BUILD);
const struct dense_build JOIN(kimi_dense_, BUILD) = {quantise, blocks};
