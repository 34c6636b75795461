/* Dense weights (attention, shared experts, dense layers, head) in int8, with a scale for each row
 * and group of 128 columns.
 *
 * Sixteen rows of a matrix are a block: of each four columns a line of 64 bytes, four of each row,
 * and after a group's lines the sixteen scales (float32). Such a line is what VNNI multiplies, and
 * sixteen of them are a tile of AMX: 1.03125 bytes a weight, read as one stream. Activations are
 * int8 in the same groups. A matrix has a multiple of 16 rows and of 64 columns; its last group may
 * be half of one.
 */
#ifndef KIMI_DENSE_H
#define KIMI_DENSE_H

#include <stdint.h>

enum { DENSE_GROUP = 128, DENSE_LINES = 2048, DENSE_GROUP_BYTES = 2112, DENSE_TOKENS = 32 };

struct dense_job {
    int columns, rows, tokens;
    const uint8_t *weights;
    const uint16_t *input;
    uint16_t *output;
    /* Scratch: activations by token, whole tiles of them. */
    uint8_t *inputs;
    /* From so many tokens on AMX's tiles compute. */
    int crossover;
};

/* A token's activations: int8 values, and of each group scale and minus 128 times the sum. */
struct dense_row {
    int8_t *values;
    float *scales;
    int32_t *sums;
};

struct dense_build {
    void (*quantise)(const struct dense_job *, int token, int from, int to);
    void (*blocks)(const struct dense_job *, int from, int to);
};

static inline int dense_groups(int columns) { return (columns + DENSE_GROUP - 1) / DENSE_GROUP; }

static inline int64_t dense_block_bytes(int columns) {
    return (int64_t)columns * 16 + dense_groups(columns) * 64;
}

static inline int64_t dense_row_bytes(int columns) {
    return columns + (((int64_t)dense_groups(columns) * 8 + 63) & ~(int64_t)63);
}

static inline struct dense_row dense_row_at(const struct dense_job *job, int64_t token) {
    uint8_t *at = job->inputs + token * dense_row_bytes(job->columns);
    struct dense_row found = {(int8_t *)at, (float *)(at + job->columns),
                              (int32_t *)(at + job->columns + dense_groups(job->columns) * 4)};
    return found;
}

#endif
