/* What Python calls: which build, how a layer is laid out in memory, and a layer's work shared out
 * over the caller's OpenMP threads. */
#include "experts.h"
#include "numbers.h"
#include "shares.h"

#include <cpuid.h>
#include <immintrin.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

extern int omp_get_thread_num(void), omp_get_num_threads(void), omp_get_max_threads(void);

extern const struct build kimi_build_avx2, kimi_build_avx512, kimi_build_amx;
static const struct build *const builds[] = {&kimi_build_amx, &kimi_build_avx512, &kimi_build_avx2};
const struct build *kimi_build;

enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 };

/* Linux keeps the tiles' state for a process that asked for it, and for no other. */
static int tiles_allowed(void) {
#ifdef MODEL_OF_TILES /* a test's, in plain C */
    return 1;
#else
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 3) == 3 &&
           syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
#endif
}

static int runs_here(const struct build *build) {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return 0;
    if (build == &kimi_build_avx2)
        return 1;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vnni"))
        return 0;
    return build == &kimi_build_avx512 || tiles_allowed();
}

/* Choose the named build, or with "" the best; returns its name, or none where it cannot run. */
const char *kimi_experts_choose(const char *name) {
    for (unsigned i = 0; i < sizeof builds / sizeof *builds; i++)
        if ((!*name || !strcmp(name, builds[i]->name)) && runs_here(builds[i])) {
            kimi_build = builds[i];
            return kimi_build->name;
        }
    return 0;
}

/* Threads that a layer is computed by: as many as the caller's OpenMP has. */
int kimi_experts_threads(void) { return omp_get_max_threads(); }

int64_t kimi_expert_bytes(int hidden, int width) {
    return (int64_t)width / UNIT * 4 * block_bytes(hidden) + (int64_t)hidden / ROWS * block_bytes(width);
}

int64_t kimi_experts_bytes(int experts, int hidden, int width) {
    return experts * kimi_expert_bytes(hidden, width);
}

/* One block: sixteen rows, from the checkpoint's order. */
static void pack_block(uint8_t *to, const uint8_t *from, int64_t row_size, const uint8_t *scales,
                       int64_t scales_size, int groups) {
    for (int g = 0; g < groups; g++) {
        uint8_t *at = to + (int64_t)(g >> 1) * PAIR_BYTES, *lines = at + (g & 1) * LINES;
        uint8_t *scale = at + ((g & 1) || g + 1 < groups ? 2 * LINES : LINES) + (g & 1) * 32;
        for (int r = 0; r < ROWS; r++) {
            uint32_t eight[4];
            memcpy(eight, from + r * row_size + g * 16, 16);
            for (int p = 0; p < 4; p++) {
                eight[p] ^= 0x88888888u;
                memcpy(lines + 64 * p + 4 * r, &eight[p], 4);
            }
            memcpy(scale + 2 * r, scales + r * scales_size + g * 2, 2);
        }
    }
}

/* Lay a layer out. `from`: addresses of each expert's gate, up, down and of their scales, in the
 * checkpoint's order; of `whole` columns an expert is wide, `width` from `offset` on are taken. */
void kimi_experts_pack(uint8_t *to, int experts, int hidden, int width, int whole, int offset,
                       const uint64_t *from) {
    const int64_t across = block_bytes(hidden), back = block_bytes(width);
    const int units = width / UNIT, blocks = hidden / ROWS;
    struct slice slices[NODES];
    kimi_see_threads();
    kimi_slices(to, experts, hidden, width, slices);
    for (int k = 0; k < kimi_nodes.count; k++)
        kimi_place_on(slices[k].weights, experts * slices[k].expert_bytes, k);
#pragma omp parallel for collapse(2) schedule(dynamic, 1)
    for (int e = 0; e < experts; e++)
        for (int part = 0; part < 16; part++) {
            const uint64_t *at = from + (int64_t)e * 6;
            int k = 0;
            for (int u = units * part / 16; u < units * (part + 1) / 16; u++) {
                while (u >= kimi_cut(units, k + 1))
                    k++;
                uint8_t *into = (uint8_t *)slices[k].weights + e * slices[k].expert_bytes;
                for (int m = 0; m < 4; m++) {
                    const int64_t row = offset + u * UNIT + (m & 1) * ROWS;
                    pack_block(into + ((u - slices[k].first_unit) * 4 + m) * across,
                               (const uint8_t *)at[m / 2] + row * (hidden / 2), hidden / 2,
                               (const uint8_t *)at[3 + m / 2] + row * (hidden / GROUP * 2),
                               hidden / GROUP * 2, hidden / GROUP);
                }
            }
            k = 0;
            for (int n = blocks * part / 16; n < blocks * (part + 1) / 16; n++) {
                while (n >= kimi_cut(blocks, k + 1))
                    k++;
                uint8_t *into = (uint8_t *)slices[k].weights + e * slices[k].expert_bytes + slices[k].skip;
                pack_block(into + (n - slices[k].first_block) * back,
                           (const uint8_t *)at[2] + (int64_t)n * ROWS * (whole / 2) + offset / 2, whole / 2,
                           (const uint8_t *)at[5] + (int64_t)n * ROWS * (whole / GROUP * 2) + offset / GROUP * 2,
                           whole / GROUP * 2, width / GROUP);
            }
        }
}

void kimi_slices(const uint8_t *weights, int experts, int hidden, int width, struct slice *found) {
    const int units = width / UNIT, blocks = hidden / ROWS;
    for (int k = 0; k < kimi_nodes.count; k++) {
        struct slice *one = &found[k];
        one->weights = weights;
        one->first_unit = kimi_cut(units, k), one->first_block = kimi_cut(blocks, k);
        one->skip = (int64_t)(kimi_cut(units, k + 1) - one->first_unit) * 4 * block_bytes(hidden);
        one->expert_bytes = one->skip + (int64_t)(kimi_cut(blocks, k + 1) - one->first_block) * block_bytes(width);
        weights += experts * one->expert_bytes;
    }
}

void kimi_gate_up(struct job *job, const struct slice *slices, int units, int node, int piece) {
    const int here = kimi_cut(units, node + 1) - kimi_cut(units, node);
    job->slice = slices[node];
    kimi_build->gate_up(job, job->active[piece / here], job->slice.first_unit + piece % here);
}

void kimi_sort_places(struct job *job, const int64_t *ids, int32_t *first, int32_t *place, int32_t *active,
                      int32_t *fill) {
    const int64_t places = (int64_t)job->tokens * job->top_k;
    job->first = first, job->place = place, job->active = active, job->active_count = 0;
    memset(fill, 0, job->experts * 4);
    for (int64_t i = 0; i < places; i++)
        if (ids[i] >= 0 && ids[i] < job->experts)
            fill[ids[i]]++;
    first[0] = 0;
    for (int e = 0; e < job->experts; e++) {
        if (fill[e])
            active[job->active_count++] = e;
        first[e + 1] = first[e] + fill[e];
        fill[e] = first[e];
    }
    for (int64_t i = 0; i < places; i++)
        if (ids[i] >= 0 && ids[i] < job->experts)
            place[fill[ids[i]]++] = (int32_t)i;
}

/* Compute a layer: output (bf16) is each token's weighted sum of its experts. `ids` are int64; one
 * that is no expert's is left out. Returns 0, or 1 where memory is short. */
int kimi_experts_run(const uint8_t *weights, int experts, int hidden, int width, int tokens, int top_k,
                     const uint16_t *input, const int64_t *ids, const float *share, uint16_t *output,
                     int crossover) {
    struct job job = {0};
    kimi_see_threads();
    const int available = omp_get_max_threads(), threads_most = available < THREADS ? available : THREADS;
    const int64_t places = (int64_t)tokens * top_k;
    const int64_t own = TILES * tile_bytes(hidden > width ? hidden : width);
    const int64_t wanted = (experts * 3 + 2 + places) * 4 + tokens * (row_bytes(hidden) + hidden * 4) +
                           places * row_bytes(width) + threads_most * (own + 128) + (1 << 16);
    uint8_t *at = kimi_scratch(wanted);
    if (!at)
        return 1;
    int32_t *first = (int32_t *)cut(&at, (experts + 1) * 4);
    int32_t *active = (int32_t *)cut(&at, experts * 4);
    int32_t *fill = (int32_t *)cut(&at, experts * 4);
    int32_t *place = (int32_t *)cut(&at, places * 4);
    job.hidden = hidden, job.width = width, job.experts = experts;
    job.tokens = tokens, job.top_k = top_k;
    job.input = input, job.output = output, job.share = share;
    job.crossover = crossover;
    job.inputs = cut(&at, tokens * row_bytes(hidden));
    job.inner = cut(&at, places * row_bytes(width));
    job.sums = (float *)cut(&at, (int64_t)tokens * hidden * 4);
    uint8_t *owns = at;

    kimi_sort_places(&job, ids, first, place, active, fill);
    struct slice slices[NODES];
    kimi_slices(weights, experts, hidden, width, slices);
    const int units = width / UNIT, blocks = hidden / ROWS;
    /* Few tokens: small parts that spread evenly. Many: each brings a tile together once. */
    const int most = blocks / (threads_most * (places < 4 * (int64_t)job.active_count ? 4 : 1));
    const int each = most < 1 ? 1 : most;
#pragma omp parallel num_threads(threads_most)
    {
        struct job mine = job;
        const int me = omp_get_thread_num(), threads = omp_get_num_threads();
        struct own mine_own = {owns + me * ((own + 127) & ~(int64_t)127), -1, 0};
        int pieces[NODES], node = 0;
        mine.own = &mine_own;
        for (int k = 0; k < kimi_nodes.count; k++)
            pieces[k] = job.active_count * (kimi_cut(units, k + 1) - kimi_cut(units, k));
        kimi_share(0, me, threads, pieces);
        kimi_pieces(blocks, each, pieces);
        kimi_share(1, me, threads, pieces);
        const int64_t groups = hidden / GROUP, all = groups * tokens;
        for (int64_t g = all * me / threads, end = all * (me + 1) / threads; g < end;) {
            int64_t token = g / groups, stop = (token + 1) * groups < end ? (token + 1) * groups : end;
            kimi_build->quantise(&mine, (int)token, (int)(g - token * groups), (int)(stop - token * groups));
            g = stop;
        }
#pragma omp barrier
        for (int turn = 0, piece; (piece = kimi_take(0, me, &turn, &node)) >= 0;)
            kimi_gate_up(&mine, slices, units, node, piece);
#pragma omp barrier
        for (int turn = 0, piece; (piece = kimi_take(1, me, &turn, &node)) >= 0;) {
            const struct range rows = kimi_range(blocks, each, node, piece);
            mine.slice = slices[node];
            kimi_build->down(&mine, rows.begin, rows.end);
        }
        kimi_build->finish();
    }
    return 0;
}

int64_t kimi_experts_dense_bytes(int rows, int columns) { return rows / 16 * dense_block_bytes(columns); }

/* Lay a dense matrix out in int8, from bf16 in rows. */
void kimi_experts_dense_pack(uint8_t *to, int rows, int columns, const uint16_t *from) {
    kimi_see_threads();
    kimi_place(to, kimi_experts_dense_bytes(rows, columns), rows / 16);
#pragma omp parallel for schedule(dynamic, 1)
    for (int block = 0; block < rows / 16; block++) {
        uint8_t *at = to + block * dense_block_bytes(columns);
        for (int start = 0; start < columns; start += DENSE_GROUP) {
            const int n = columns - start < DENSE_GROUP ? 64 : DENSE_GROUP;
            float *scales = (float *)(at + n * 16);
            for (int r = 0; r < 16; r++) {
                const uint16_t *x = from + (int64_t)(block * 16 + r) * columns + start;
                int most = 0;
                for (int i = 0; i < n; i++)
                    most = (x[i] & 0x7fff) > most ? (x[i] & 0x7fff) : most;
                const int broken = most >= 0x7f80, nothing = most < 0x0e00;
                const float size = bf16((uint16_t)most), inverse = broken || nothing ? 0.0f : 127.0f / size;
                for (int i = 0; i < n; i++)
                    at[i / 4 * 64 + r * 4 + i % 4] = (uint8_t)(int8_t)__builtin_lrintf(
                        broken ? 0.0f : bf16(x[i]) * inverse);
                scales[r] = broken ? __builtin_nanf("") : nothing ? 0.0f : size / 127.0f;
            }
            at += n * 16 + 64;
        }
    }
}

/* Multiply tokens (bf16) with a dense matrix. Returns 0, or 1 where memory is short. */
int kimi_experts_dense_run(const uint8_t *weights, int rows, int columns, int tokens, const uint16_t *input,
                           uint16_t *output, int crossover) {
    struct dense_job job = {columns, rows, tokens, weights, input, output, 0, crossover};
    kimi_see_threads();
    const int available = omp_get_max_threads(), threads_most = available < THREADS ? available : THREADS;
    /* Whole tiles of tokens are read; what comes of the places that nobody has is left. */
    const int64_t places = (tokens + DENSE_TOKENS - 1) / DENSE_TOKENS * DENSE_TOKENS;
    job.inputs = kimi_scratch(places * dense_row_bytes(columns) + 64);
    if (!job.inputs)
        return 1;
    const int count = rows / 16, groups = dense_groups(columns);
    /* Many tokens: some blocks stay near a core while the tokens pass by. */
    const int most = tokens >= crossover ? count / (threads_most * 2) : 1;
    const int each = most > 8 ? 8 : most < 1 ? 1 : most;
#pragma omp parallel num_threads(threads_most)
    {
        const int me = omp_get_thread_num(), threads = omp_get_num_threads();
        int pieces[NODES], node = 0;
        kimi_pieces(count, each, pieces);
        kimi_share(0, me, threads, pieces);
        const int64_t all = (int64_t)groups * tokens;
        for (int64_t g = all * me / threads, end = all * (me + 1) / threads; g < end;) {
            const int64_t token = g / groups, next = (token + 1) * groups, stop = next < end ? next : end;
            kimi_build->dense->quantise(&job, (int)token, (int)(g - token * groups),
                                    (int)(stop - token * groups));
            g = stop;
        }
#pragma omp barrier
        for (int turn = 0, piece; (piece = kimi_take(0, me, &turn, &node)) >= 0;) {
            const struct range some = kimi_range(count, each, node, piece);
            kimi_build->dense->blocks(&job, some.begin, some.end);
        }
    }
    return 0;
}

/* Read memory by the same threads: what a layer's speed is held against. Who is done takes more, as
 * where weights are computed. */
int64_t kimi_experts_read(const uint8_t *from, int64_t bytes) {
    enum { PIECE = 1 << 18 };
    int64_t found = 0;
#pragma omp parallel for schedule(dynamic, 1) reduction(+ : found)
    for (int64_t begin = 0; begin < bytes; begin += PIECE) {
        const int64_t *at = (const int64_t *)(from + begin);
        const int64_t lines = (bytes - begin < PIECE ? bytes - begin : PIECE) / 256;
        int64_t sums[32] = {0};
        for (int64_t i = 0; i < lines; i++, at += 32) {
            __builtin_prefetch(at + 1024);
            __builtin_prefetch(at + 1032);
            __builtin_prefetch(at + 1040);
            __builtin_prefetch(at + 1048);
            for (int j = 0; j < 32; j++)
                sums[j] ^= at[j];
        }
        for (int j = 0; j < 32; j++)
            found += sums[j];
    }
    return found;
}
