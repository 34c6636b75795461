/* The arithmetic, for one set of instructions: compiled once for each (build.py). */
#include "experts.h"
#include "numbers.h"

/* Values of one group as int8, in the order of the weights' nibbles: a byte's low one, its high one.
 * A value that is no number, or no finite one, makes the group's scale one, and thus the output. */
INLINE void quantise_group(const float *x, struct row to, int group) {
    float most = 0;
    int32_t broken = 0, sum = 0;
    int32_t whole[GROUP];
    for (int i = 0; i < GROUP; i++) {
        union {
            float value;
            int32_t bits;
        } u = {x[i]};
        u.bits &= 0x7fffffff;
        broken |= 0x7f7fffff - u.bits;
        most = u.value > most ? u.value : most;
    }
    float inverse = most > 1e-30f ? 127.0f / most : 0.0f;
    for (int i = 0; i < GROUP; i++) {
        union {
            float value;
            int32_t bits;
        } u = {x[i] * inverse + 12582912.0f};
        whole[i] = u.bits - 0x4b400000;
    }
    int8_t *q = to.values + group * GROUP;
    for (int i = 0; i < GROUP; i++) {
        int32_t v = broken < 0 ? 0 : whole[i];
        sum += v;
        q[(i & ~7) | (i & 1) << 2 | (i & 6) >> 1] = (int8_t)v;
    }
    to.scales[group] = broken < 0 ? __builtin_nanf("") : most > 1e-30f ? most / 127.0f : 0.0f;
    to.sums[group] = -8 * sum;
}

static void quantise(const struct job *job, int token, int from, int to) {
    struct row row = row_at(job->inputs, token, job->hidden);
    const uint16_t *x = job->input + (int64_t)token * job->hidden;
    for (int g = from; g < to; g++) {
        float group[GROUP];
        for (int i = 0; i < GROUP; i++)
            group[i] = bf16(x[g * GROUP + i]);
        quantise_group(group, row, g);
    }
}

#ifdef __AVX512VNNI__

/* One block times some tokens, a compile-time number: out[token][row]. */
INLINE void times(const int tokens, const uint8_t *w, int groups, const struct row *x, float *out) {
    __m512 sum[8];
    const __m512i low = _mm512_set1_epi8(0x0f), flip = _mm512_set1_epi8(0x08);
    for (int t = 0; t < tokens; t++)
        sum[t] = _mm512_setzero_ps();
    for (int g = 0; g < groups; g++) {
        const int odd = g & 1, last = g + 1 == groups;
        const uint8_t *at = w + (int64_t)(g >> 1) * PAIR_BYTES;
        const uint8_t *lines = at + odd * LINES;
        const uint8_t *scales = at + (!odd && last ? LINES : 2 * LINES) + odd * 32;
        __m512i u[8];
        for (int p = 0; p < 4; p++) {
            __m512i v = _mm512_loadu_si512(lines + 64 * p);
            _mm_prefetch((const char *)lines + AHEAD + 64 * p, _MM_HINT_T0);
            u[2 * p] = _mm512_ternarylogic_epi32(v, low, flip, 0x6a);
            u[2 * p + 1] = _mm512_ternarylogic_epi32(_mm512_srli_epi16(v, 4), low, flip, 0x6a);
        }
        if (odd)
            _mm_prefetch((const char *)scales + AHEAD, _MM_HINT_T0);
        __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)scales)), 16));
        for (int t = 0; t < tokens; t++) {
            const int32_t *q = (const int32_t *)(x[t].values + g * GROUP);
            __m512i dot = _mm512_set1_epi32(x[t].sums[g]);
            for (int p = 0; p < 8; p++)
                dot = _mm512_dpbusd_epi32(dot, u[p], _mm512_set1_epi32(q[p]));
            sum[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot),
                                     _mm512_mul_ps(scale, _mm512_set1_ps(x[t].scales[g])), sum[t]);
        }
    }
    for (int t = 0; t < tokens; t++)
        _mm512_storeu_ps(out + t * ROWS, sum[t]);
}

#else /* AVX2 */

INLINE void times(const int tokens, const uint8_t *w, int groups, const struct row *x, float *out) {
    const __m256i low = _mm256_set1_epi8(0x0f), flip = _mm256_set1_epi8(0x08);
    const __m256i ones = _mm256_set1_epi16(1);
    for (int half = 0; half < 2; half++) {
        __m256 sum[8];
        for (int t = 0; t < tokens; t++)
            sum[t] = _mm256_setzero_ps();
        for (int g = 0; g < groups; g++) {
            const int odd = g & 1, last = g + 1 == groups;
            const uint8_t *at = w + (int64_t)(g >> 1) * PAIR_BYTES;
            const uint8_t *lines = at + odd * LINES + half * 32;
            const uint8_t *scales =
                at + (!odd && last ? LINES : 2 * LINES) + odd * 32 + half * 16;
            /* 8 products of at most 15 and 127 by two: 30480 at most, which 16 bits hold. */
            __m256i dot[8];
            for (int t = 0; t < tokens; t++)
                dot[t] = _mm256_setzero_si256();
            for (int p = 0; p < 4; p++) {
                __m256i v = _mm256_loadu_si256((const __m256i *)(lines + 64 * p));
                if (!half)
                    _mm_prefetch((const char *)lines + AHEAD + 64 * p, _MM_HINT_T0);
                __m256i a = _mm256_xor_si256(_mm256_and_si256(v, low), flip);
                __m256i b =
                    _mm256_xor_si256(_mm256_and_si256(_mm256_srli_epi16(v, 4), low), flip);
                for (int t = 0; t < tokens; t++) {
                    const int32_t *q = (const int32_t *)(x[t].values + g * GROUP + 8 * p);
                    dot[t] = _mm256_add_epi16(
                        dot[t],
                        _mm256_add_epi16(_mm256_maddubs_epi16(a, _mm256_set1_epi32(q[0])),
                                         _mm256_maddubs_epi16(b, _mm256_set1_epi32(q[1]))));
                }
            }
            __m256 scale = _mm256_castsi256_ps(_mm256_slli_epi32(
                _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)scales)), 16));
            for (int t = 0; t < tokens; t++) {
                __m256i whole = _mm256_add_epi32(_mm256_madd_epi16(dot[t], ones),
                                                 _mm256_set1_epi32(x[t].sums[g]));
                __m256 by = _mm256_mul_ps(scale, _mm256_set1_ps(x[t].scales[g]));
                sum[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), by, sum[t]);
            }
        }
        for (int t = 0; t < tokens; t++)
            _mm256_storeu_ps(out + t * ROWS + half * 8, sum[t]);
    }
}

#endif

static void times_1(const uint8_t *w, int g, const struct row *x, float *o) { times(1, w, g, x, o); }
static void times_2(const uint8_t *w, int g, const struct row *x, float *o) { times(2, w, g, x, o); }
static void times_3(const uint8_t *w, int g, const struct row *x, float *o) { times(3, w, g, x, o); }
static void times_4(const uint8_t *w, int g, const struct row *x, float *o) { times(4, w, g, x, o); }
#ifdef __AVX512VNNI__
static void times_5(const uint8_t *w, int g, const struct row *x, float *o) { times(5, w, g, x, o); }
static void times_6(const uint8_t *w, int g, const struct row *x, float *o) { times(6, w, g, x, o); }
static void times_7(const uint8_t *w, int g, const struct row *x, float *o) { times(7, w, g, x, o); }
static void times_8(const uint8_t *w, int g, const struct row *x, float *o) { times(8, w, g, x, o); }
#endif

/* A block times up to 16 tokens, some at once. */
static void block_alone(const uint8_t *w, int groups, const struct row *x, int tokens, float *out) {
    while (tokens > 0) {
#ifdef __AVX512VNNI__
        /* 9 to 16 in two halves. */
        int now = tokens > 8 ? (tokens + 1) / 2 : tokens;
#else
        int now = tokens > 4 ? 4 : tokens;
#endif
        switch (now) {
        case 1: times_1(w, groups, x, out); break;
        case 2: times_2(w, groups, x, out); break;
        case 3: times_3(w, groups, x, out); break;
        case 4: times_4(w, groups, x, out); break;
#ifdef __AVX512VNNI__
        case 5: times_5(w, groups, x, out); break;
        case 6: times_6(w, groups, x, out); break;
        case 7: times_7(w, groups, x, out); break;
        default: times_8(w, groups, x, out); break;
#endif
        }
        tokens -= now;
        x += now;
        out += now * ROWS;
    }
}

/* A tile of up to 16 tokens: `of[token]`, and for AMX their values and scales by group. */
struct tile {
    int tokens;
    struct row of[16];
    int8_t *values; /* [group][16][32] */
    float *scales;  /* [group][16], of weights times 16 */
};

#ifdef __AMX_INT8__

/* Weights of a group as bytes: 16 times their value. */
INLINE void widen(const uint8_t *lines, uint8_t *tile) {
    const __m512i high = _mm512_set1_epi8((char)0xf0);
    for (int p = 0; p < 4; p++) {
        __m512i v = _mm512_loadu_si512(lines + 64 * p);
        _mm_prefetch((const char *)lines + AHEAD + 64 * p, _MM_HINT_T0);
        _mm512_store_si512(tile + 128 * p, _mm512_and_si512(_mm512_slli_epi16(v, 4), high));
        _mm512_store_si512(tile + 128 * p + 64, _mm512_and_si512(v, high));
    }
}

INLINE __m512 scales_at(const uint8_t *at) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)at)), 16));
}

/* Add a group's integers, scaled. */
INLINE void settle(const int rows, const int32_t *whole, __m512 scale, const float *by, __m512 *sum) {
    for (int t = 0; t < rows; t++)
        sum[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(whole + 16 * t)),
                                 _mm512_mul_ps(scale, _mm512_set1_ps(by[t])), sum[t]);
}

/* Lines of a group, and its scales: after the second of two, or after one that is alone. */
INLINE const uint8_t *lines_at(const uint8_t *w, int g) {
    return w + (int64_t)(g >> 1) * PAIR_BYTES + (g & 1) * LINES;
}

INLINE const uint8_t *scale_at(const uint8_t *w, int g, int groups) {
    return w + (int64_t)(g >> 1) * PAIR_BYTES + ((g & 1) || g + 1 < groups ? 2 * LINES : LINES) + (g & 1) * 32;
}

INLINE void settle_some(const int rows, const int count, const uint8_t *w, int g, int groups,
                        const struct tile *x, const int32_t *whole, __m512 *sum) {
    for (int i = 0; i < count; i++)
        settle(rows, whole + 256 * i, scales_at(scale_at(w, g + i, groups)), x->scales + (g + i) * 16, sum);
}

INLINE void widen_some(const uint8_t *w, int g, int count, uint8_t *wide) {
    for (int i = 0; i < count; i++)
        widen(lines_at(w, g + i), wide + 512 * i);
    _mm_prefetch((const char *)lines_at(w, g) + AHEAD + 2 * LINES, _MM_HINT_T0);
    _mm_prefetch((const char *)lines_at(w, g) + AHEAD + 2 * LINES + PAIR_BYTES, _MM_HINT_T0);
}

#define MULTIPLY(i, a, b)                                                                          \
    if (count > i) {                                                                               \
        _tile_zero(i);                                                                             \
        _tile_loadd(a, x->values + (g + i) * 512, 32);                                             \
        _tile_loadd(b, wide[turn] + 512 * i, 64);                                                  \
        _tile_dpbssd(i, a, b);                                                                     \
    }
#define STORE(i)                                                                                   \
    if (count > i)                                                                                 \
    _tile_stored(i, whole[turn] + 256 * i, 64)

/* Four groups at once. While the tiles multiply them, the next four are made bytes, and the
 * integers of the four before are scaled and added. */
INLINE void tiles(const int rows, const uint8_t *w, int groups, const struct tile *x, float *out) {
    uint8_t wide[2][2048] __attribute__((aligned(64)));
    int32_t whole[2][1024] __attribute__((aligned(64)));
    __m512 sum[16];
    int turn = 0, g = 0;
    for (int t = 0; t < rows; t++)
        sum[t] = _mm512_setzero_ps();
    widen_some(w, 0, groups < 4 ? groups : 4, wide[0]);
    for (; g + 4 <= groups; g += 4, turn ^= 1) {
        const int count = 4;
        WRITTEN(wide);
        MULTIPLY(0, 4, 6) MULTIPLY(1, 5, 7) MULTIPLY(2, 4, 6) MULTIPLY(3, 5, 7)
        if (g + 8 <= groups)
            widen_some(w, g + 4, 4, wide[turn ^ 1]);
        else
            widen_some(w, g + 4, groups - g - 4, wide[turn ^ 1]);
        if (g)
            settle_some(rows, 4, w, g - 4, groups, x, whole[turn ^ 1], sum);
        STORE(0);
        STORE(1);
        STORE(2);
        STORE(3);
    }
    if (g)
        settle_some(rows, 4, w, g - 4, groups, x, whole[turn ^ 1], sum);
    if (g < groups) {
        const int count = groups - g;
        WRITTEN(wide);
        MULTIPLY(0, 4, 6) MULTIPLY(1, 5, 7) MULTIPLY(2, 4, 6)
        STORE(0);
        STORE(1);
        STORE(2);
        settle_some(rows, count, w, g, groups, x, whole[turn], sum);
    }
    for (int t = 0; t < rows; t++)
        _mm512_storeu_ps(out + t * ROWS, sum[t]);
}

static void tiles_4(const uint8_t *w, int g, const struct tile *x, float *o) { tiles(4, w, g, x, o); }
static void tiles_8(const uint8_t *w, int g, const struct tile *x, float *o) { tiles(8, w, g, x, o); }
static void tiles_12(const uint8_t *w, int g, const struct tile *x, float *o) { tiles(12, w, g, x, o); }
static void tiles_16(const uint8_t *w, int g, const struct tile *x, float *o) { tiles(16, w, g, x, o); }

INLINE int padded(int tokens) { return (tokens + 3) & ~3; }

static void configure(int rows) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t columns[16];
        uint8_t rows[16];
    } config = {1, 0, {0}, {64, 64, 64, 64, 32, 32, 64, 64}, {0}};
    for (int i = 0; i < 6; i++)
        config.rows[i] = (uint8_t)rows;
    config.rows[6] = config.rows[7] = 8;
    WRITTEN(&config);
    _tile_loadconfig(&config);
}

/* Bring the tokens' groups together. */
static void gather(struct tile *x, int groups) {
    const int rows = padded(x->tokens);
    for (int t = 0; t < rows; t++) {
        if (t >= x->tokens) {
            for (int g = 0; g < groups; g++) {
                _mm256_storeu_si256((__m256i *)(x->values + g * 512 + t * 32),
                                    _mm256_setzero_si256());
                x->scales[g * 16 + t] = 0;
            }
            continue;
        }
        for (int g = 0; g < groups; g++) {
            _mm256_storeu_si256(
                (__m256i *)(x->values + g * 512 + t * 32),
                _mm256_loadu_si256((const __m256i *)(x->of[t].values + g * GROUP)));
            x->scales[g * 16 + t] = x->of[t].scales[g] * 0.0625f;
        }
    }
}

#endif

/* Whether a tile of tokens goes through AMX. */
INLINE int in_tiles(const struct job *job, int tokens) {
#ifdef __AMX_INT8__
    return tokens >= job->crossover;
#else
    (void)job, (void)tokens;
    return 0;
#endif
}

INLINE void block(const struct job *job, const uint8_t *w, int groups, const struct tile *x, float *out) {
#ifdef __AMX_INT8__
    if (in_tiles(job, x->tokens)) {
        switch (padded(x->tokens)) {
        case 4: tiles_4(w, groups, x, out); return;
        case 8: tiles_8(w, groups, x, out); return;
        case 12: tiles_12(w, groups, x, out); return;
        default: tiles_16(w, groups, x, out); return;
        }
    }
#endif
    (void)job;
    block_alone(w, groups, x->of, x->tokens, out);
}

/* Bring a tile of tokens together where AMX takes it, as number `slot` of those kept; `kept`: it is
 * there already. */
INLINE void prepare(const struct job *job, struct tile *x, int groups, int slot, int kept) {
#ifdef __AMX_INT8__
    if (in_tiles(job, x->tokens)) {
        uint8_t *own = job->own->tiles + slot * tile_bytes(groups * GROUP);
        x->values = (int8_t *)own;
        x->scales = (float *)(own + (int64_t)groups * 512);
        if (!kept)
            gather(x, groups);
        if (job->own->rows != padded(x->tokens))
            configure(job->own->rows = padded(x->tokens));
    }
#endif
    (void)job, (void)x, (void)groups, (void)slot, (void)kept;
}

/* Rows `unit * 32` to + 31 of gate and up for an expert's tokens, and what they come to, as int8. */
static void gate_up(const struct job *job, int expert, int unit) {
    const int groups = job->hidden / GROUP;
    const int64_t bytes = block_bytes(job->hidden);
    const struct slice *slice = &job->slice;
    const uint8_t *w = slice->weights + expert * slice->expert_bytes + (unit - slice->first_unit) * 4 * bytes;
    float out[4][16 * ROWS] __attribute__((aligned(64)));
    const int start = job->first[expert], end = job->first[expert + 1];
    /* A thread's next part is mostly of the same expert, and so of the same tokens. */
    const int few = end - start <= 16 * TILES, kept = few && job->own->expert == expert;
    for (int begin = start; begin < end; begin += 16) {
        struct tile x;
        x.tokens = end - begin < 16 ? end - begin : 16;
        for (int t = 0; t < x.tokens; t++)
            x.of[t] = row_at(job->inputs, job->place[begin + t] / job->top_k, job->hidden);
        prepare(job, &x, groups, few ? (begin - start) / 16 : 0, kept);
        for (int part = 0; part < 4; part++)
            block(job, w + part * bytes, groups, &x, out[part]);
        for (int t = 0; t < x.tokens; t++) {
            float inner[UNIT];
            for (int half = 0; half < 2; half++)
                for (int i = 0; i < ROWS; i++)
                    inner[half * ROWS + i] =
                        silu(out[half][t * ROWS + i]) * out[2 + half][t * ROWS + i];
            quantise_group(inner, row_at(job->inner, begin + t, job->width), unit);
        }
    }
    job->own->expert = few ? expert : -1;
}

/* Blocks of rows of down for all experts and tokens: their weighted sums, as bf16. */
static void down(const struct job *job, int from, int to) {
    const int groups = job->width / GROUP, rows = (to - from) * ROWS;
    const int64_t bytes = block_bytes(job->width);
    const struct slice *slice = &job->slice;
    float out[16 * ROWS] __attribute__((aligned(64)));
    for (int t = 0; t < job->tokens; t++) {
        float *sums = job->sums + (int64_t)t * job->hidden + from * ROWS;
        for (int i = 0; i < rows; i++)
            sums[i] = 0;
    }
    for (int a = 0; a < job->active_count; a++) {
        const int expert = job->active[a], end = job->first[expert + 1];
        const uint8_t *w = slice->weights + expert * slice->expert_bytes + slice->skip;
        for (int begin = job->first[expert]; begin < end; begin += 16) {
            struct tile x;
            x.tokens = end - begin < 16 ? end - begin : 16;
            for (int t = 0; t < x.tokens; t++)
                x.of[t] = row_at(job->inner, begin + t, job->width);
            prepare(job, &x, groups, 0, 0);
            for (int n = from; n < to; n++) {
                block(job, w + (n - slice->first_block) * bytes, groups, &x, out);
                for (int t = 0; t < x.tokens; t++) {
                    const int place = job->place[begin + t];
                    float *sums =
                        job->sums + (int64_t)(place / job->top_k) * job->hidden + n * ROWS;
                    const float share = job->share[place];
                    for (int i = 0; i < ROWS; i++)
                        sums[i] += share * out[t * ROWS + i];
                }
            }
        }
    }
    for (int t = 0; t < job->tokens; t++) {
        const float *sums = job->sums + (int64_t)t * job->hidden + from * ROWS;
        uint16_t *to_ = job->output + (int64_t)t * job->hidden + from * ROWS;
        for (int i = 0; i < rows; i++)
            to_[i] = to_bf16(sums[i]);
    }
}

static void finish(void) {
#ifdef __AMX_INT8__
    _tile_release();
#endif
}

extern const struct dense_build JOIN(kimi_dense_, BUILD);
extern const struct step_build JOIN(kimi_step_, BUILD);
const struct build JOIN(kimi_build_, BUILD) = {TEXT(BUILD), quantise, gate_up, down, finish,
                                               &JOIN(kimi_dense_, BUILD), &JOIN(kimi_step_, BUILD)};
