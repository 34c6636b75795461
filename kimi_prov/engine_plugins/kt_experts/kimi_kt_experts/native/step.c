/* What a layer computes between its products, for one set of instructions (build.py). */
#include "step.h"
#include "numbers.h"

#include <math.h>

/* Sixteen numbers; the compiler makes one register of them, or two. */
typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t bits __attribute__((vector_size(64), aligned(4), may_alias, unused));
typedef uint16_t halves __attribute__((vector_size(32), aligned(2), may_alias, unused));
enum { LANES = 16 };

#define LOAD(at) (*(const vec *)(at))
#ifdef __AVX512F__ /* of which the compiler makes two halves and joins them */
#define WIDEN(at) \
    ((vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(at))), 16))
#else
#define WIDEN(at) ((vec)(__builtin_convertvector(*(const halves *)(at), bits) << 16))
#endif

INLINE float rounded(float value) { return bf16(to_bf16(value)); }

/* By halves, so that no sum waits for fifteen others. */
INLINE float add_up(const vec *x) {
    const float *at = (const float *)x;
    const __m256 eight = _mm256_add_ps(_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8));
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

/* The product of a row in bf16 and one in float32; a multiple of sixteen values. */
INLINE float times_row(const uint16_t *w, const float *x, int count) {
    vec even = {0}, odd = {0};
    int i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
        even += WIDEN(w + i) * LOAD(x + i);
        odd += WIDEN(w + i + LANES) * LOAD(x + i + LANES);
    }
    for (; i < count; i += LANES)
        even += WIDEN(w + i) * LOAD(x + i);
    even += odd;
    return add_up(&even);
}

/* The root-mean-square norm of float32, rounded before its weights as after them. */
INLINE void norm_row(const float *x, const uint16_t *weight, int count, float epsilon, uint16_t *out) {
    vec squares = {0};
    for (int i = 0; i < count; i += LANES)
        squares += LOAD(x + i) * LOAD(x + i);
    const float by = 1.0f / sqrtf(add_up(&squares) / (float)count + epsilon);
    for (int i = 0; i < count; i++)
        out[i] = to_bf16(rounded(x[i] * by) * bf16(weight[i]));
}

/* Before attention, and `second`, before the experts: the residual's sum and its norm. */
static void norm(const struct step *step, const struct layer *layer, struct work *work, int token, int second) {
    const int64_t at = (int64_t)token * step->hidden_size;
    float *plain = work->plain + at;
    uint16_t *hidden = step->hidden + at, *residual = step->residual + at;
    /* The first layer's input has no residual yet. */
    const int alone = !second && layer == step->layers;
    for (int i = 0; i < step->hidden_size; i++) {
        plain[i] = bf16(hidden[i]) + (alone ? 0.0f : bf16(residual[i]));
        residual[i] = to_bf16(plain[i]);
    }
    norm_row(plain, second ? layer->post_norm : layer->input_norm, step->hidden_size, step->epsilon,
             work->normed + at);
    if (second)
        for (int i = 0; i < step->hidden_size; i++)
            plain[i] = bf16(work->normed[at + i]);
}

/* Turn pairs of values by a position's angles: cosines, then sines. Each product is rounded, as in vLLM,
 * which wrote the rows before. */
INLINE void rotate(const struct step *step, int token, const uint16_t *x, uint16_t *out) {
    const float *angle = step->rotary + step->positions[token] * step->rope;
    for (int i = 0; i < step->rope / 2; i++) {
        const float cosine = angle[i], sine = angle[step->rope / 2 + i];
        const float one = bf16(x[2 * i]), other = bf16(x[2 * i + 1]);
        out[2 * i] = to_bf16(rounded(one * cosine) - rounded(other * sine));
        out[2 * i + 1] = to_bf16(rounded(other * cosine) + rounded(one * sine));
    }
}

/* The query's and the position's norms; the position goes into the cache. */
static void latent(const struct step *step, const struct layer *layer, struct work *work, int token) {
    const uint16_t *x = work->projected + (int64_t)token * (step->q_rank + step->kv_rank + step->rope);
    const int most = step->q_rank > step->kv_rank ? step->q_rank : step->kv_rank;
    float wide[most];
    for (int i = 0; i < step->q_rank; i++)
        wide[i] = bf16(x[i]);
    norm_row(wide, layer->q_norm, step->q_rank, step->epsilon, work->normed + (int64_t)token * step->q_rank);
    const int64_t slot = step->slots[token];
    if (slot < 0)
        return;
    uint16_t *row = layer->cache + slot / step->block_size * step->block_stride +
                    slot % step->block_size * step->row_stride;
    for (int i = 0; i < step->kv_rank; i++)
        wide[i] = bf16(x[step->q_rank + i]);
    norm_row(wide, layer->kv_norm, step->kv_rank, step->epsilon, row);
    rotate(step, token, x + step->q_rank + step->kv_rank, row + step->kv_rank);
}

/* Sixteens of columns that are summed at once: as many registers as there are. */
#ifdef __AVX512F__
enum { COLUMNS = 16 };
#else
enum { COLUMNS = 4 };
#endif

/* A head's query in the cache's terms. */
static void absorb(const struct step *step, const struct layer *layer, struct work *work, int token, int head) {
    const int rank = step->kv_rank, size = step->nope + step->rope;
    const uint16_t *q = work->query + ((int64_t)token * step->heads + head) * size;
    const uint16_t *w = layer->kv_b + (int64_t)head * (step->nope + step->value) * rank;
    float *out = work->absorbed + ((int64_t)token * step->heads + head) * (rank + step->rope);
    uint16_t turned[step->rope];
    for (int at = 0; at < rank;) {
        vec sum[COLUMNS] = {{0}};
        const int count = (rank - at) / LANES < COLUMNS ? (rank - at) / LANES : COLUMNS;
        if (count == COLUMNS)
            for (int p = 0; p < step->nope; p++) {
                const float by = bf16(q[p]);
                const uint16_t *row = w + (int64_t)p * rank + at;
                for (int i = 0; i < COLUMNS; i += 2)
                    __builtin_prefetch(row + 8 * rank + i * LANES);
                for (int i = 0; i < COLUMNS; i++)
                    sum[i] += by * WIDEN(row + i * LANES);
            }
        else
            for (int p = 0; p < step->nope; p++) {
                const float by = bf16(q[p]);
                for (int i = 0; i < count; i++)
                    sum[i] += by * WIDEN(w + (int64_t)p * rank + at + i * LANES);
            }
        for (int i = 0; i < count; i++)
            for (int j = 0; j < LANES; j++)
                out[at + i * LANES + j] = rounded(sum[i][j]);
        at += count * LANES;
    }
    rotate(step, token, q + step->nope, turned);
    for (int i = 0; i < step->rope; i++)
        out[rank + i] = bf16(turned[i]);
}

/* Positions whose keys stay near a core, and those whose scores are summed at once. */
enum { POSITIONS = 16, SCORES = 4 };

/* Some heads of a token over a part of its positions. */
static void attend(const struct step *step, const struct layer *layer, struct work *work, int token, int heads,
                   int split) {
    const int rank = step->kv_rank, size = rank + step->rope, length = step->lengths[token];
    const int splits = splits_of(length), first = heads * HEADS_AT_ONCE;
    const int count = step->heads - first < HEADS_AT_ONCE ? step->heads - first : HEADS_AT_ONCE;
    if (split >= splits)
        return;
    const int begin = (int)((int64_t)length * split / splits), end = (int)((int64_t)length * (split + 1) / splits);
    const int32_t *table = step->blocks + token * step->table_stride;
    float keys[POSITIONS][size] __attribute__((aligned(64)));
    for (int h = 0; h < count; h++) {
        float *part = part_at(step, work, token, first + h, split);
        part[0] = -INFINITY;
        for (int i = 1; i < rank + 16; i++)
            part[i] = 0;
    }
    for (int from = begin; from < end; from += POSITIONS) {
        const int some = end - from < POSITIONS ? end - from : POSITIONS;
        for (int j = 0; j < some; j++) {
            const int at = from + j;
            const uint16_t *row = layer->cache + table[at / step->block_size] * step->block_stride +
                                  at % step->block_size * step->row_stride;
            for (int i = 0; i < size; i += LANES)
                *(vec *)(keys[j] + i) = WIDEN(row + i);
        }
        for (int h = 0; h < count; h++) {
            const float *q = work->absorbed + ((int64_t)token * step->heads + first + h) * size;
            float *part = part_at(step, work, token, first + h, split);
            float score[POSITIONS], most = part[0];
            for (int j = 0; j < some; j += SCORES) {
                vec sum[SCORES] = {{0}};
                for (int i = 0; i < size; i += LANES)
                    for (int k = 0; k < SCORES; k++)
                        sum[k] += LOAD(q + i) * LOAD(keys[j + k] + i);
                for (int k = 0; k < SCORES; k++)
                    score[j + k] = add_up(&sum[k]) * step->scale;
            }
            for (int j = 0; j < some; j++)
                most = score[j] > most ? score[j] : most;
            if (most > part[0]) {
                const float by = exp_of(part[0] - most);
                for (int i = 1; i < rank + 16; i++)
                    part[i] *= by;
                part[0] = most;
            }
            for (int j = 0; j < some; j++) {
                score[j] = exp_of(score[j] - most);
                part[1] += score[j];
            }
            for (int i = 0; i < rank; i += LANES) {
                vec sum = LOAD(part + 16 + i);
                for (int j = 0; j < some; j++)
                    sum += score[j] * LOAD(keys[j] + i);
                *(vec *)(part + 16 + i) = sum;
            }
        }
    }
}

/* A head's parts brought together, and its values. */
static void value(const struct step *step, const struct layer *layer, struct work *work, int token, int head) {
    const int rank = step->kv_rank, splits = splits_of(step->lengths[token]);
    const uint16_t *w = layer->kv_b + ((int64_t)head * (step->nope + step->value) + step->nope) * rank;
    uint16_t *out = work->attended + ((int64_t)token * step->heads + head) * step->value;
    float sums[rank], most = -INFINITY, total = 0;
    for (int s = 0; s < splits; s++) {
        const float mine = part_at(step, work, token, head, s)[0];
        most = mine > most ? mine : most;
    }
    for (int i = 0; i < rank; i++)
        sums[i] = 0;
    for (int s = 0; s < splits; s++) {
        const float *part = part_at(step, work, token, head, s);
        const float by = exp_of(part[0] - most);
        total += by * part[1];
        for (int i = 0; i < rank; i++)
            sums[i] += by * part[16 + i];
    }
    for (int i = 0; i < rank; i++)
        sums[i] = rounded(sums[i] / total);
    for (int v = 0; v < step->value; v++) {
        for (int i = 0; i < rank; i += 2 * LANES)
            __builtin_prefetch(w + (int64_t)(v + 8) * rank + i);
        out[v] = to_bf16(times_row(w + (int64_t)v * rank, sums, rank));
    }
}

/* The router's products for some experts and all tokens. */
static void route(const struct step *step, const struct layer *layer, struct work *work, int from, int to) {
    for (int e = from; e < to; e++)
        for (int t = 0; t < step->tokens; t++) {
            const int64_t at = (int64_t)t * step->hidden_size;
            const float sum =
                times_row(layer->router + (int64_t)e * step->hidden_size, work->plain + at, step->hidden_size);
            work->logits[t * layer->expert_count + e] = rounded(sum);
        }
}

/* A token's experts: those with the largest biased scores; of equal ones the first. What is no number
 * counts as the smallest, so that every token has as many experts as another. */
static void choose(const struct step *step, const struct layer *layer, struct work *work, int token) {
    (void)step;
    float biased[EXPERTS_MOST], *logits = work->logits + token * layer->expert_count;
    int64_t *ids = work->ids + token * layer->top_k;
    float *shares = work->shares + token * layer->top_k, total = 0;
    for (int e = 0; e < layer->expert_count; e++) {
        logits[e] = 1.0f / (1.0f + exp_of(-logits[e]));
        const float score = logits[e] + (layer->bias ? layer->bias[e] : 0.0f);
        biased[e] = score == score ? score : -INFINITY;
    }
    for (int k = 0; k < layer->top_k; k++) {
        int best = -1;
        for (int e = 0; e < layer->expert_count; e++)
            if (biased[e] == biased[e] && (best < 0 || biased[e] > biased[best]))
                best = e;
        ids[k] = best;
        biased[best] = __builtin_nanf("");
        shares[k] = logits[best];
        total += shares[k];
    }
    for (int k = 0; k < layer->top_k; k++)
        shares[k] = layer->renormalise ? shares[k] / total : shares[k];
}

/* A group of the inner values of a dense layer or a shared expert. */
static void activate(const struct layer *layer, struct work *work, int token, int group) {
    const int64_t at = (int64_t)token * layer->width;
    const uint16_t *gate = work->projected + 2 * at, *up = gate + layer->width;
    const int start = group * DENSE_GROUP;
    const int end = layer->width - start < DENSE_GROUP ? layer->width : start + DENSE_GROUP;
    for (int i = start; i < end; i++)
        work->inner[at + i] = to_bf16(rounded(silu(bf16(gate[i]))) * bf16(up[i]));
}

extern const struct step_build JOIN(kimi_step_, BUILD);
const struct step_build JOIN(kimi_step_, BUILD) = {norm, latent, absorb, attend, value, route, choose, activate};
