/* A decode step in one call: every layer's work shared out over the caller's OpenMP threads, which wait
 * for each other at barriers and go back to their pool when the step is over. */
#include "numbers.h"
#include "shares.h"
#include "step.h"

extern int omp_get_thread_num(void), omp_get_num_threads(void), omp_get_max_threads(void);

/* All that one layer's threads share. */
struct run {
    const struct step *step;
    struct work work;
    struct job job;
    int32_t *first, *place, *active, *fill;
    uint8_t *owns;
    int64_t own;
    int threads;
};

/* The calling thread's part of `count` things that all take as long. */
#define MINE(i, count)                                                                                     \
    for (int64_t i = (int64_t)(count) * me / run->threads, end_ = (int64_t)(count) * (me + 1) / run->threads; \
         i < end_; i++)

#define TAKE(i, which)                                                                                     \
    for (int from_ = 0, i; (i = kimi_take(kimi_shares[which], run->threads, &from_)) >= 0;)

#define SHARE(which, count) kimi_share(kimi_shares[which], me, run->threads, count)

static struct dense_job product(const struct run *run, const uint8_t *weights, int rows, int columns,
                                const uint16_t *input, uint16_t *output) {
    const struct dense_job found = {columns, rows,  run->step->tokens,  weights,
                                    input,   output, run->work.quantised, run->step->dense_crossover};
    return found;
}

static void quantise_token(const struct dense_job *job, int token) {
    kimi_build->dense->quantise(job, token, 0, dense_groups(job->columns));
}

/* Blocks that stay near a core together where AMX takes them for many tokens. */
static int blocks_each(const struct run *run, const struct dense_job *job) {
    const int each = job->rows / 16 / (run->threads * 2);
    return job->tokens < job->crossover ? 1 : each > 8 ? 8 : each < 1 ? 1 : each;
}

static int parts_of(const struct run *run, const struct dense_job *job) {
    const int each = blocks_each(run, job);
    return (job->rows / 16 + each - 1) / each;
}

static void blocks(const struct run *run, const struct dense_job *job, int part) {
    const int each = blocks_each(run, job), count = job->rows / 16, begin = part * each;
    kimi_build->dense->blocks(job, begin, begin + each < count ? begin + each : count);
}

static void attention(struct run *run, const struct layer *layer, int me) {
    const struct step *step = run->step;
    const struct step_build *build = kimi_build->step;
    struct work *work = &run->work;
    const int tokens = step->tokens, hidden = step->hidden_size, heads = step->heads;
    const int groups = (heads + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE, values = heads * step->value;
    const struct dense_job qkv = product(run, layer->qkv_a, step->q_rank + step->kv_rank + step->rope, hidden,
                                         work->normed, work->projected);
    const struct dense_job q = product(run, layer->q_b, heads * (step->nope + step->rope), step->q_rank,
                                       work->normed, work->query);
    const struct dense_job o = product(run, layer->o, hidden, values, work->attended, step->hidden);

    MINE(t, tokens) {
        build->norm(step, layer, work, (int)t, 0);
        quantise_token(&qkv, (int)t);
    }
    SHARE(0, parts_of(run, &qkv));
#pragma omp barrier
    TAKE(part, 0) blocks(run, &qkv, part);
#pragma omp barrier
    MINE(t, tokens) {
        build->latent(step, layer, work, (int)t);
        quantise_token(&q, (int)t);
    }
    SHARE(1, parts_of(run, &q));
    SHARE(2, heads);
    SHARE(3, tokens * groups * work->splits);
    SHARE(4, heads);
#pragma omp barrier
    TAKE(part, 1) blocks(run, &q, part);
#pragma omp barrier
    TAKE(head, 2)
    for (int t = 0; t < tokens; t++)
        build->absorb(step, layer, work, t, head);
#pragma omp barrier
    TAKE(item, 3)
    build->attend(step, layer, work, item / work->splits / groups, item / work->splits % groups,
                  item % work->splits);
#pragma omp barrier
    TAKE(head, 4)
    for (int t = 0; t < tokens; t++)
        build->value(step, layer, work, t, head);
#pragma omp barrier
    MINE(i, tokens * dense_groups(values))
    kimi_build->dense->quantise(&o, (int)(i / dense_groups(values)), (int)(i % dense_groups(values)),
                                (int)(i % dense_groups(values)) + 1);
    SHARE(5, parts_of(run, &o));
#pragma omp barrier
    TAKE(part, 5) blocks(run, &o, part);
#pragma omp barrier
}

/* Add the shared expert's rows and the routed ones', rounded as vLLM's own path rounds them. */
static void add_rows(const struct run *run, const struct layer *layer, int begin, int end) {
    const struct step *step = run->step;
    for (int t = 0; t < step->tokens; t++)
        for (int64_t i = (int64_t)t * step->hidden_size + begin; i < (int64_t)t * step->hidden_size + end; i++) {
            const float routed = bf16(run->work.routed[i]);
            const float scaled = layer->routed_scale == 1.0f ? routed : bf16(to_bf16(routed * layer->routed_scale));
            step->hidden[i] = to_bf16(bf16(run->work.shared[i]) + scaled);
        }
}

/* The routed experts, the shared one's inner values being there. */
static void experts(struct run *run, const struct layer *layer, const struct dense_job *down, int me) {
    const int hidden = run->step->hidden_size, units = layer->expert_width / UNIT, count = hidden / ROWS;
    struct own own = {run->owns + me * run->own, -1, 0};
    SHARE(8, parts_of(run, down));
#pragma omp barrier
    if (!me)
        kimi_sort_places(&run->job, run->work.ids, run->first, run->place, run->active, run->fill);
    TAKE(part, 8) blocks(run, down, part);
#pragma omp barrier
    struct job mine = run->job;
    mine.own = &own;
    /* Few tokens: small parts that spread evenly. Many: each brings a tile together once. */
    const int alone = mine.tokens * mine.top_k < 4 * mine.active_count;
    const int most = count / (run->threads * (alone ? 4 : 1)), each = most < 1 ? 1 : most;
    SHARE(9, mine.active_count * units);
    SHARE(10, (count + each - 1) / each);
#pragma omp barrier
    TAKE(unit, 9) kimi_build->gate_up(&mine, mine.active[unit / units], unit % units);
#pragma omp barrier
    TAKE(part, 10) {
        const int begin = part * each, end = begin + each < count ? begin + each : count;
        kimi_build->down(&mine, begin, end);
        add_rows(run, layer, begin * ROWS, end * ROWS);
    }
    kimi_build->finish();
#pragma omp barrier
}

static void feed_forward(struct run *run, const struct layer *layer, int me) {
    const struct step *step = run->step;
    const struct step_build *build = kimi_build->step;
    struct work *work = &run->work;
    const int tokens = step->tokens, hidden = step->hidden_size, groups = dense_groups(layer->width);
    const struct dense_job up = product(run, layer->gate_up, 2 * layer->width, hidden, work->normed, work->projected);
    const struct dense_job down = product(run, layer->down, hidden, layer->width, work->inner,
                                          layer->experts ? work->shared : step->hidden);
    if (layer->experts) {
        if (!me) {
            run->job.experts = layer->expert_count, run->job.width = layer->expert_width;
            run->job.top_k = layer->top_k, run->job.weights = layer->experts;
            run->job.expert_bytes = kimi_expert_bytes(hidden, layer->expert_width);
        }
        SHARE(7, layer->expert_count / ROWS);
#pragma omp barrier
    }
    MINE(t, tokens) {
        build->norm(step, layer, work, (int)t, 1);
        quantise_token(&up, (int)t);
        if (layer->experts)
            kimi_build->quantise(&run->job, (int)t, 0, hidden / GROUP);
    }
    SHARE(6, parts_of(run, &up));
#pragma omp barrier
    if (layer->experts)
        TAKE(part, 7) build->route(step, layer, work, part * ROWS, part * ROWS + ROWS);
    TAKE(part, 6) blocks(run, &up, part);
#pragma omp barrier
    /* The dense products share one place for their inputs: those of `up` have been read. */
    MINE(i, tokens * groups) {
        build->activate(layer, work, (int)(i / groups), (int)(i % groups));
        kimi_build->dense->quantise(&down, (int)(i / groups), (int)(i % groups), (int)(i % groups) + 1);
    }
    if (layer->experts) {
        MINE(t, tokens) build->choose(step, layer, work, (int)t);
        experts(run, layer, &down, me);
        return;
    }
    SHARE(8, parts_of(run, &down));
#pragma omp barrier
    TAKE(part, 8) blocks(run, &down, part);
#pragma omp barrier
}

static int64_t largest(int64_t a, int64_t b) { return a > b ? a : b; }

/* Scratch for a step; returns whether there is memory. */
static int prepare(struct run *run) {
    const struct step *step = run->step;
    const int64_t tokens = step->tokens, hidden = step->hidden_size, heads = step->heads;
    const int64_t places_of_tiles = (tokens + DENSE_TOKENS - 1) / DENSE_TOKENS * DENSE_TOKENS;
    const int64_t size = step->kv_rank + step->rope, latent = step->q_rank + size;
    int64_t width = 0, experts = 0, top_k = 0, expert_width = 0;
    for (int i = 0; i < step->layer_count; i++) {
        const struct layer *one = step->layers + i;
        width = largest(width, one->width);
        experts = largest(experts, one->experts ? one->expert_count : 0);
        top_k = largest(top_k, one->experts ? one->top_k : 0);
        expert_width = largest(expert_width, one->experts ? one->expert_width : 0);
    }
    run->work.splits = 1;
    for (int t = 0; t < tokens; t++)
        run->work.splits = (int)largest(run->work.splits, splits_of(step->lengths[t]));
    const int64_t columns = largest(largest(hidden, width), largest(step->q_rank, heads * step->value));
    run->own = (TILES * tile_bytes((int)largest(hidden, expert_width)) + 127) & ~(int64_t)127;
    const int64_t sizes[] = {
        tokens * largest(hidden, step->q_rank) * 2, tokens * largest(latent, 2 * width) * 2,
        tokens * heads * (step->nope + step->rope) * 2, tokens * heads * step->value * 2, tokens * width * 2,
        tokens * hidden * 2, tokens * hidden * 2, tokens * hidden * 4, tokens * heads * size * 4,
        tokens * heads * run->work.splits * (step->kv_rank + 16) * 4, tokens * experts * 4, tokens * top_k * 4,
        tokens * top_k * 8, places_of_tiles * dense_row_bytes((int)columns) + 64, tokens * row_bytes((int)hidden),
        tokens * top_k * row_bytes((int)expert_width), tokens * hidden * 4, (experts + 1) * 4, tokens * top_k * 4,
        experts * 4, experts * 4, run->threads * run->own};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    int64_t all = 0;
    for (int i = 0; i < COUNT; i++)
        all += sizes[i] + 128;
    uint8_t *at = kimi_scratch(all), *parts[COUNT];
    if (!at)
        return 0;
    for (int i = 0; i < COUNT; i++)
        parts[i] = cut(&at, sizes[i]);
    const struct work work = {
        (uint16_t *)parts[0], (uint16_t *)parts[1], (uint16_t *)parts[2], (uint16_t *)parts[3],
        (uint16_t *)parts[4], (uint16_t *)parts[5], (uint16_t *)parts[6], (float *)parts[7],
        (float *)parts[8], (float *)parts[9], (float *)parts[10], (float *)parts[11],
        (int64_t *)parts[12], parts[13], run->work.splits};
    run->work = work;
    run->job.hidden = (int)hidden, run->job.tokens = (int)tokens, run->job.crossover = step->crossover;
    run->job.input = work.normed, run->job.output = work.routed, run->job.share = work.shares;
    run->job.inputs = parts[14], run->job.inner = parts[15], run->job.sums = (float *)parts[16];
    run->first = (int32_t *)parts[17], run->place = (int32_t *)parts[18];
    run->active = (int32_t *)parts[19], run->fill = (int32_t *)parts[20], run->owns = parts[21];
    return 1;
}

/* Compute a step in place: `hidden` becomes the last layer's output, `residual` what is added to it.
 * Returns 0, or 1 where memory is short. */
int kimi_experts_step(const struct step *step) {
    struct run all = {.step = step};
    const int most = omp_get_max_threads();
    all.threads = most < THREADS ? most : THREADS;
    if (!prepare(&all))
        return 1;
    struct run *run = &all;
#pragma omp parallel num_threads(all.threads)
    {
        const int me = omp_get_thread_num();
        if (!me)
            run->threads = omp_get_num_threads();
#pragma omp barrier
        for (int i = 0; i < step->layer_count; i++) {
            attention(run, step->layers + i, me);
            feed_forward(run, step->layers + i, me);
        }
    }
    return 0;
}
