/* Kimi's routed experts on processors: INT4 in groups of 32 with bf16 scales.
 *
 * Sixteen rows of a matrix are a block. Of each group of 32 columns a block has four lines of 64
 * bytes: eight columns (four bytes, as the checkpoint packs them, in two's complement) of each of
 * the sixteen rows; and sixteen scales. Two groups' lines are followed by their scales, so that a
 * block is one stream of 288 bytes a group: 0.5625 bytes a weight, as in the checkpoint.
 *
 * Such a line is what VNNI multiplies with one token and, its nibbles made bytes, two rows of a
 * tile of AMX. Activations are int8 in the same groups of 32.
 */
#ifndef KIMI_EXPERTS_H
#define KIMI_EXPERTS_H

#include "dense.h"

#include <stdint.h>

enum { GROUP = 32, ROWS = 16, LINES = 256, GROUP_BYTES = 288, PAIR_BYTES = 576, UNIT = 32 };

/* A matrix's row of activations: int8 values, and of each group scale and minus 8 times the sum. */
struct row {
    int8_t *values;
    float *scales;
    int32_t *sums;
};

/* A thread's own: tiles of tokens brought together, of which expert, and for how many rows AMX is
 * configured. */
struct own {
    uint8_t *tiles;
    int expert, rows;
};

/* A node's part of a layer: of each expert some units of gate and up, then some blocks of down. */
struct slice {
    const uint8_t *weights;
    int64_t expert_bytes, skip;
    int first_unit, first_block;
};

struct job {
    int hidden, width, experts;
    int tokens, top_k;
    struct slice slice;
    const uint16_t *input;
    uint16_t *output;
    /* The tokens of an expert: `place` and `share` from `first[expert]` to `first[expert + 1]`. */
    const int32_t *first, *place;
    const float *share;
    const int32_t *active;
    int active_count, crossover;
    /* Scratch: activations by token, the experts' inner ones by place, sums of output. */
    uint8_t *inputs, *inner;
    float *sums;
    struct own *own;
};

struct step_build;

/* What a build for some instructions offers. */
struct build {
    const char *name;
    void (*quantise)(const struct job *, int token, int from, int to);
    void (*gate_up)(const struct job *, int expert, int unit);
    void (*down)(const struct job *, int from, int to);
    void (*finish)(void);
    const struct dense_build *dense;
    const struct step_build *step;
};

/* The build that computes now. */
extern const struct build *kimi_build;

/* By node where its part of a layer is. */
void kimi_slices(const uint8_t *weights, int experts, int hidden, int width, struct slice *found);
/* A node's piece of gate and up: of one expert's units. */
void kimi_gate_up(struct job *, const struct slice *slices, int units, int node, int piece);
/* Sort a job's places by expert: fills `first`, `place`, `active`, `active_count`; `fill` is scratch. */
void kimi_sort_places(struct job *, const int64_t *ids, int32_t *first, int32_t *place, int32_t *active,
                      int32_t *fill);

static inline int64_t row_bytes(int columns) { return columns + columns / GROUP * 8; }

static inline struct row row_at(uint8_t *base, int64_t index, int columns) {
    uint8_t *at = base + index * row_bytes(columns);
    struct row found = {(int8_t *)at, (float *)(at + columns),
                        (int32_t *)(at + columns + columns / GROUP * 4)};
    return found;
}

static inline int64_t block_bytes(int columns) { return (int64_t)(columns / GROUP) * GROUP_BYTES; }

/* A tile of 16 tokens by group, and how many of them a thread keeps. */
enum { TILES = 8 };
static inline int64_t tile_bytes(int columns) { return (int64_t)columns * 16 + columns / GROUP * 64; }

#endif
