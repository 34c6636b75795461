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

#define TAKE(i, which) for (int turn_ = 0, i; (i = kimi_take(which, me, &turn_, &node)) >= 0;)

/* `count` things in pieces of `each`, cut over the nodes. */
static void share(const struct run *run, int which, int me, int count, int each) {
    int pieces[NODES];
    kimi_pieces(count, each, pieces);
    kimi_share(which, me, run->threads, pieces);
}

static struct dense_job product(const struct run *run, const uint8_t *weights, int rows, int columns,
                                const uint16_t *input, uint16_t *output) {
    const struct dense_job found = {columns, rows,  run->step->tokens,  weights,
                                    input,   output, run->work.quantised, run->step->dense_crossover};
    return found;
}

/* Each thread makes some groups of the tokens int8. */
static void quantise(const struct run *run, const struct dense_job *job, int me) {
    const int groups = dense_groups(job->columns);
    MINE(i, job->tokens *groups)
    kimi_build->dense->quantise(job, (int)(i / groups), (int)(i % groups), (int)(i % groups) + 1);
}

/* Blocks that stay near a core together where AMX takes them for many tokens. */
static int blocks_each(const struct run *run, const struct dense_job *job) {
    const int each = job->rows / 16 / (run->threads * 2);
    return job->tokens < job->crossover ? 1 : each > 8 ? 8 : each < 1 ? 1 : each;
}

static void share_blocks(const struct run *run, int which, int me, const struct dense_job *job) {
    share(run, which, me, job->rows / 16, blocks_each(run, job));
}

static void multiply(const struct run *run, int which, int me, const struct dense_job *job) {
    int node = 0;
    TAKE(piece, which) {
        const struct range some = kimi_range(job->rows / 16, blocks_each(run, job), node, piece);
        kimi_build->dense->blocks(job, some.begin, some.end);
    }
}

static void attention(struct run *run, const struct layer *layer, int me) {
    const struct step *step = run->step;
    const struct step_build *build = kimi_build->step;
    struct work *work = &run->work;
    const int tokens = step->tokens, hidden = step->hidden_size, heads = step->heads;
    const int groups = (heads + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE, values = heads * step->value;
    const int items = tokens * groups * work->splits;
    int node = 0;
    const struct dense_job qkv = product(run, layer->qkv_a, step->q_rank + step->kv_rank + step->rope, hidden,
                                         work->normed, work->projected);
    const struct dense_job q = product(run, layer->q_b, heads * (step->nope + step->rope), step->q_rank,
                                       work->normed, work->query);
    const struct dense_job o = product(run, layer->o, hidden, values, work->attended, step->hidden);

    MINE(t, tokens) build->norm(step, layer, work, (int)t, 0);
    kimi_meet(me, run->threads);
    quantise(run, &qkv, me);
    share_blocks(run, 0, me, &qkv);
    kimi_meet(me, run->threads);
    multiply(run, 0, me, &qkv);
    kimi_meet(me, run->threads);
    MINE(t, tokens) {
        build->latent(step, layer, work, (int)t);
        kimi_build->dense->quantise(&q, (int)t, 0, dense_groups(step->q_rank));
    }
    share_blocks(run, 1, me, &q);
    share(run, 2, me, heads, 1);
    share(run, 3, me, items, 1);
    share(run, 4, me, heads, 1);
    kimi_meet(me, run->threads);
    multiply(run, 1, me, &q);
    kimi_meet(me, run->threads);
    TAKE(piece, 2)
    for (int t = 0; t < tokens; t++)
        build->absorb(step, layer, work, t, kimi_cut(heads, node) + piece);
    kimi_meet(me, run->threads);
    TAKE(piece, 3) {
        const int item = kimi_cut(items, node) + piece, at = item / work->splits;
        build->attend(step, layer, work, at / groups, at % groups, item % work->splits);
    }
    kimi_meet(me, run->threads);
    TAKE(piece, 4)
    for (int t = 0; t < tokens; t++)
        build->value(step, layer, work, t, kimi_cut(heads, node) + piece);
    kimi_meet(me, run->threads);
    quantise(run, &o, me);
    share_blocks(run, 5, me, &o);
    kimi_meet(me, run->threads);
    multiply(run, 5, me, &o);
    kimi_meet(me, run->threads);
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
    struct slice slices[NODES];
    int pieces[NODES], node = 0;
    kimi_slices(layer->experts, layer->expert_count, hidden, layer->expert_width, slices);
    share_blocks(run, 8, me, down);
    kimi_meet(me, run->threads);
    if (!me)
        kimi_sort_places(&run->job, run->work.ids, run->first, run->place, run->active, run->fill);
    multiply(run, 8, me, down);
    kimi_meet(me, run->threads);
    struct job mine = run->job;
    mine.own = &own;
    /* Few tokens: small parts that spread evenly. Many: each brings a tile together once. */
    const int alone = mine.tokens * mine.top_k < 4 * mine.active_count;
    const int most = count / (run->threads * (alone ? 4 : 1)), each = most < 1 ? 1 : most;
    for (int k = 0; k < kimi_nodes.count; k++)
        pieces[k] = mine.active_count * (kimi_cut(units, k + 1) - kimi_cut(units, k));
    kimi_share(9, me, run->threads, pieces);
    share(run, 10, me, count, each);
    kimi_meet(me, run->threads);
    TAKE(piece, 9) kimi_gate_up(&mine, slices, units, node, piece);
    kimi_meet(me, run->threads);
    TAKE(piece, 10) {
        const struct range rows = kimi_range(count, each, node, piece);
        mine.slice = slices[node];
        kimi_build->down(&mine, rows.begin, rows.end);
        add_rows(run, layer, rows.begin * ROWS, rows.end * ROWS);
    }
    kimi_build->finish();
    kimi_meet(me, run->threads);
}

static void feed_forward(struct run *run, const struct layer *layer, int me) {
    const struct step *step = run->step;
    const struct step_build *build = kimi_build->step;
    struct work *work = &run->work;
    const int tokens = step->tokens, hidden = step->hidden_size, groups = dense_groups(layer->width);
    int node = 0;
    const struct dense_job up = product(run, layer->gate_up, 2 * layer->width, hidden, work->normed, work->projected);
    const struct dense_job down = product(run, layer->down, hidden, layer->width, work->inner,
                                          layer->experts ? work->shared : step->hidden);
    if (layer->experts) {
        if (!me) {
            run->job.experts = layer->expert_count, run->job.width = layer->expert_width;
            run->job.top_k = layer->top_k;
        }
        share(run, 7, me, layer->expert_count / ROWS, 1);
    }
    MINE(t, tokens) build->norm(step, layer, work, (int)t, 1);
    kimi_meet(me, run->threads);
    quantise(run, &up, me);
    if (layer->experts)
        MINE(i, tokens * (hidden / GROUP))
        kimi_build->quantise(&run->job, (int)(i / (hidden / GROUP)), (int)(i % (hidden / GROUP)),
                             (int)(i % (hidden / GROUP)) + 1);
    share_blocks(run, 6, me, &up);
    kimi_meet(me, run->threads);
    if (layer->experts)
        TAKE(piece, 7) {
            const int from = (kimi_cut(layer->expert_count / ROWS, node) + piece) * ROWS;
            build->route(step, layer, work, from, from + ROWS);
        }
    multiply(run, 6, me, &up);
    kimi_meet(me, run->threads);
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
    share_blocks(run, 8, me, &down);
    kimi_meet(me, run->threads);
    multiply(run, 8, me, &down);
    kimi_meet(me, run->threads);
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
    kimi_see_threads();
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
