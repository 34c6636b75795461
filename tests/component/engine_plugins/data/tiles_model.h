/* AMX's tiles in plain C, by the manual's description: for processors that have none. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd
#undef _tile_release
#define _tile_loadconfig model_config
#define _tile_loadd model_load
#define _tile_stored model_store
#define _tile_zero model_zero
#define _tile_dpbssd model_multiply
#define _tile_release()

static _Thread_local uint8_t model_tiles[8][16][64];
static _Thread_local int model_rows[8], model_columns[8];

static void model_config(const void *from) {
    uint8_t raw[64];
    memcpy(raw, from, 64);
    for (int t = 0; t < 8; t++) {
        model_columns[t] = raw[16 + 2 * t] | raw[17 + 2 * t] << 8;
        model_rows[t] = raw[48 + t];
    }
    memset(model_tiles, 0, sizeof model_tiles);
}

static void model_zero(int t) { memset(model_tiles[t], 0, sizeof model_tiles[t]); }

static void model_load(int t, const void *from, long stride) {
    model_zero(t);
    for (int r = 0; r < model_rows[t]; r++)
        memcpy(model_tiles[t][r], (const uint8_t *)from + r * stride, model_columns[t]);
}

static void model_store(int t, void *to, long stride) {
    for (int r = 0; r < model_rows[t]; r++)
        memcpy((uint8_t *)to + r * stride, model_tiles[t][r], model_columns[t]);
}

static void model_multiply(int to, int a, int b) {
    for (int m = 0; m < model_rows[to]; m++)
        for (int k = 0; k < model_columns[a] / 4; k++)
            for (int n = 0; n < model_columns[to] / 4; n++) {
                int32_t sum;
                memcpy(&sum, &model_tiles[to][m][4 * n], 4);
                for (int i = 0; i < 4; i++)
                    sum += (int8_t)model_tiles[a][m][4 * k + i] * (int8_t)model_tiles[b][k][4 * n + i];
                memcpy(&model_tiles[to][m][4 * n], &sum, 4);
            }
}
