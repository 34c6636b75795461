/* Work shared out over threads, and their scratch memory. */
#ifndef KIMI_SHARES_H
#define KIMI_SHARES_H

#include <stdint.h>

enum { THREADS = 1024, SHARES = 11 };

/* Each thread's share of some work; who is done takes of the others'. */
struct share {
    int next, end;
    char apart[120];
};
extern struct share kimi_shares[SHARES][THREADS];

/* Give a thread its share of `count` pieces; all have theirs before one takes. */
void kimi_share(struct share *of, int thread, int threads, int count);
/* The next piece for this thread; `from` is 0 at first. Below zero: all is taken. */
int kimi_take(struct share *of, int threads, int *from);

/* Scratch memory of at least so many bytes, or 0; what was there before is lost. */
uint8_t *kimi_scratch(int64_t wanted);

static inline uint8_t *cut(uint8_t **at, int64_t bytes) {
    uint8_t *found = *at;
    *at += (bytes + 127) & ~(int64_t)127;
    return found;
}

#endif
