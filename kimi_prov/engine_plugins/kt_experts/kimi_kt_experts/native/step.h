/* A decode step: all layers of a model for some requests with one new token each.
 *
 * The engine keeps the cache, of which each row is a position's latent (kv_rank values, bf16) and
 * its rotated key (rope values). Between two products values are rounded to bf16 where vLLM's own
 * path rounds them, so that both ways answer alike.
 */
#ifndef KIMI_STEP_H
#define KIMI_STEP_H

#include "experts.h"

/* What Python fills in, field by field (step.py). A matrix of dense weights is in int8 (dense.h); norms,
 * kv_b and router are bf16 in rows, bias and rotary float32. */
struct layer {
    const uint16_t *input_norm, *post_norm, *q_norm, *kv_norm;
    const uint8_t *qkv_a, *q_b, *o, *gate_up, *down;
    const uint16_t *kv_b;
    /* Of a layer with experts: its router, their weights. */
    const uint16_t *router;
    const float *bias;
    const uint8_t *experts;
    uint16_t *cache;
    int32_t width, expert_count, expert_width, top_k;
    float routed_scale;
    int32_t renormalise;
};

struct step {
    const struct layer *layers;
    const float *rotary;
    /* By token: bf16 in and out, and its place. `residual` is written only, for the norm at the end. */
    uint16_t *hidden, *residual;
    const int64_t *positions, *slots;
    const int32_t *blocks, *lengths;
    int64_t row_stride, block_stride, table_stride;
    int32_t layer_count, tokens, hidden_size, heads, q_rank, kv_rank, rope, nope, value, block_size;
    int32_t crossover, dense_crossover;
    float epsilon, scale;
};

/* Scratch of a step, of all threads: bf16 vectors by token, and sums. */
struct work {
    uint16_t *normed, *projected, *query, *attended, *inner, *shared, *routed;
    float *plain, *absorbed, *parts, *logits;
    float *shares;
    int64_t *ids;
    uint8_t *quantised;
    int splits;
};

enum { STEP_TOKENS = 64, HEADS_AT_ONCE = 8, SPLIT = 64, SPLITS = 16, EXPERTS_MOST = 1024 };

/* The parts of a layer between its products. */
struct step_build {
    void (*norm)(const struct step *, const struct layer *, struct work *, int token, int second);
    void (*latent)(const struct step *, const struct layer *, struct work *, int token);
    void (*absorb)(const struct step *, const struct layer *, struct work *, int token, int head);
    void (*attend)(const struct step *, const struct layer *, struct work *, int token, int heads, int split);
    void (*value)(const struct step *, const struct layer *, struct work *, int token, int head);
    void (*route)(const struct step *, const struct layer *, struct work *, int from, int to);
    void (*choose)(const struct step *, const struct layer *, struct work *, int token);
    void (*activate)(const struct layer *, struct work *, int token, int group);
};

/* How many parts a token's positions are cut into: of so many alone, whatever threads there are. */
static inline int splits_of(int length) {
    const int found = (length + SPLIT - 1) / SPLIT;
    return found < SPLITS ? found : SPLITS;
}

/* A part's sums: of each head the largest score, the weights' sum, kv_rank values. */
static inline float *part_at(const struct step *step, const struct work *work, int token, int head, int split) {
    const int64_t row = ((int64_t)token * step->heads + head) * work->splits + split;
    return work->parts + row * (step->kv_rank + 16);
}

#endif
