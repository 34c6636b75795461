/* Work and weights cut over NUMA nodes and threads, and the threads' scratch memory.
 *
 * A matrix's rows are cut over the nodes in proportion to their threads, and lie there; so are an
 * expert's inner columns, in groups of 32 that need not divide evenly, and its output's rows. Each value
 * is computed whole by one thread, so that any number of nodes gives the same bits; what crosses
 * between nodes are activations.
 */
#ifndef KIMI_SHARES_H
#define KIMI_SHARES_H

#include <stdint.h>

enum { THREADS = 1024, NODES = 64, SHARES = 11 };

/* The threads that weights were cut for: `of` which node, and in the order of nodes. */
struct nodes {
    int count, threads, fixed;
    int first[NODES + 1], system[NODES];
    int of[THREADS], order[THREADS], place[THREADS];
};
extern struct nodes kimi_nodes;

/* Where a node's part of `count` things begins; node `count` is the end. */
static inline int kimi_cut(int64_t count, int node) {
    return (int)(count * kimi_nodes.first[node] / kimi_nodes.threads);
}

/* By node, in how many pieces of `each` its part of `count` things is. */
static inline void kimi_pieces(int count, int each, int *pieces) {
    for (int k = 0; k < kimi_nodes.count; k++)
        pieces[k] = (kimi_cut(count, k + 1) - kimi_cut(count, k) + each - 1) / each;
}

struct range {
    int begin, end;
};

static inline struct range kimi_range(int count, int each, int node, int piece) {
    const int begin = kimi_cut(count, node) + piece * each, end = kimi_cut(count, node + 1);
    const struct range found = {begin, begin + each < end ? begin + each : end};
    return found;
}

/* Wait until all `threads` of the caller's have come here. Who waits long sleeps, so that others get the
 * core; unlike OpenMP's barrier, no system call is made where nobody does. */
void kimi_meet(int me, int threads);

/* One node for as many threads as the caller's OpenMP has, unless nodes were set. */
void kimi_see_threads(void);
/* Give each thread its share of its node's pieces: thread `me` of `threads` gives, and all have theirs
 * before one takes. */
void kimi_share(int which, int me, int threads, const int *pieces);
/* The next piece and its node for a thread; `turn` is 0 at first. Below zero: all is taken. Who is done
 * takes of its node's other threads, then of other nodes'. */
int kimi_take(int which, int me, int *turn, int *node);
/* Have memory lie on its nodes: `bytes` that are `count` things one after the other. */
void kimi_place(const void *from, int64_t bytes, int count);
/* The same for a node's own part. */
void kimi_place_on(const void *from, int64_t bytes, int node);

/* Scratch memory of at least so many bytes, or 0; what was there before is lost. */
uint8_t *kimi_scratch(int64_t wanted);

static inline uint8_t *cut(uint8_t **at, int64_t bytes) {
    uint8_t *found = *at;
    *at += (bytes + 127) & ~(int64_t)127;
    return found;
}

#endif
