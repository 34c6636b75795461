/* Which thread computes what, and where memory lies. */
#define _GNU_SOURCE
#include "shares.h"

#include <immintrin.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern int omp_get_thread_num(void), omp_get_max_threads(void);

enum { HUGE = 2 << 20, PREFERRED = 1, MOVE = 2 };

struct nodes kimi_nodes;

/* Each thread's share of some work. */
static struct share {
    int next, end;
    char apart[120];
} shares[SHARES][THREADS];

/* Memory that is laid out now: how the nodes are cut must not change under it. */
static int64_t held;

static void order_threads(struct nodes *all) {
    int at = 0;
    for (int k = 0; k < all->count; k++) {
        all->first[k] = at;
        for (int t = 0; t < all->threads; t++)
            if (all->of[t] == k) {
                all->place[t] = at;
                all->order[at++] = t;
            }
    }
    all->first[all->count] = at;
}

void kimi_see_threads(void) {
    const int most = omp_get_max_threads(), threads = most < THREADS ? most : THREADS;
    if (kimi_nodes.fixed || kimi_nodes.threads == threads)
        return;
    memset(&kimi_nodes, 0, sizeof kimi_nodes);
    kimi_nodes.count = 1, kimi_nodes.threads = threads, kimi_nodes.system[0] = -1;
    order_threads(&kimi_nodes);
}

/* Cut what is laid out from now on over nodes: `of` each thread its node, `system` by node the machine's
 * number, or below zero to leave memory where it comes. No threads: one node again. Returns 0, or 1
 * where that cannot be, or weights are there already. */
int kimi_experts_nodes(int threads, const int32_t *of, int count, const int32_t *system) {
    struct nodes all = {.count = count, .threads = threads, .fixed = threads > 0};
    if (held || threads < 0 || threads > THREADS || count < 1 || count > NODES)
        return 1;
    for (int t = 0; t < threads; t++) {
        if (of[t] < 0 || of[t] >= count)
            return 1;
        all.of[t] = of[t];
    }
    memcpy(all.system, system, count * sizeof *system);
    order_threads(&all);
    for (int k = 0; k < count && threads; k++)
        if (all.first[k] == all.first[k + 1])
            return 1;
    kimi_nodes = all;
    kimi_see_threads();
    return 0;
}

/* By thread the NUMA node of the one CPU that it is bound to; below zero where it is not bound to one. */
void kimi_experts_where(int32_t *found) {
#pragma omp parallel
    {
        cpu_set_t set;
        unsigned cpu = 0, node = 0;
        const int bound = !sched_getaffinity(0, sizeof set, &set) && CPU_COUNT(&set) == 1;
        found[omp_get_thread_num()] = bound && !syscall(SYS_getcpu, &cpu, &node, 0) ? (int32_t)node : -1;
    }
}

/* Bind each thread to its CPU, but not the first: that is the program's own, which starts others. */
void kimi_experts_bind(const int32_t *cpus) {
#pragma omp parallel
    {
        const int me = omp_get_thread_num();
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpus[me], &set);
        if (me)
            sched_setaffinity(0, sizeof set, &set);
    }
}

/* Few threads count at one place, and the last of them for all at the next: no place is everybody's. */
/* Some hundred microseconds, in turns of waiting: longer than a layer's threads ever differ. */
enum { TOGETHER = 8, PATIENCE = 20000 };
static struct meeting {
    int count;
    char apart[124];
} meetings[THREADS / TOGETHER], all_meetings, turn, asleep;

void kimi_meet(int me, int threads) {
    const int before = __atomic_load_n(&turn.count, __ATOMIC_RELAXED), at = me / TOGETHER;
    const int groups = (threads + TOGETHER - 1) / TOGETHER, left = threads - at * TOGETHER;
    if (__atomic_add_fetch(&meetings[at].count, 1, __ATOMIC_ACQ_REL) == (left < TOGETHER ? left : TOGETHER)) {
        __atomic_store_n(&meetings[at].count, 0, __ATOMIC_RELAXED);
        if (__atomic_add_fetch(&all_meetings.count, 1, __ATOMIC_ACQ_REL) == groups) {
            __atomic_store_n(&all_meetings.count, 0, __ATOMIC_RELAXED);
            __atomic_store_n(&turn.count, before + 1, __ATOMIC_SEQ_CST);
            if (__atomic_load_n(&asleep.count, __ATOMIC_SEQ_CST))
                syscall(SYS_futex, &turn.count, FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0);
            return;
        }
    }
    for (int i = 0; i < PATIENCE; i++) {
        if (__atomic_load_n(&turn.count, __ATOMIC_ACQUIRE) != before)
            return;
        _mm_pause();
    }
    __atomic_fetch_add(&asleep.count, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&turn.count, __ATOMIC_ACQUIRE) == before)
        syscall(SYS_futex, &turn.count, FUTEX_WAIT_PRIVATE, before, 0, 0, 0);
    __atomic_fetch_sub(&asleep.count, 1, __ATOMIC_SEQ_CST);
}

void kimi_share(int which, int me, int threads, const int *pieces) {
    for (int t = me; t < kimi_nodes.threads; t += threads) {
        const int node = kimi_nodes.of[t], first = kimi_nodes.first[node];
        const int64_t rank = kimi_nodes.place[t] - first, all = kimi_nodes.first[node + 1] - first;
        shares[which][t].next = (int)(pieces[node] * rank / all);
        shares[which][t].end = (int)(pieces[node] * (rank + 1) / all);
    }
}

int kimi_take(int which, int me, int *turn, int *node) {
    const int mine = me % kimi_nodes.threads, home = kimi_nodes.of[mine];
    const int first = kimi_nodes.first[home], end = kimi_nodes.first[home + 1];
    for (; *turn < kimi_nodes.threads; ++*turn) {
        const int away = *turn - (end - first);
        const int at = away < 0 ? first + (kimi_nodes.place[mine] - first + *turn) % (end - first)
                                : (end + away) % kimi_nodes.threads;
        struct share *one = &shares[which][kimi_nodes.order[at]];
        if (__atomic_load_n(&one->next, __ATOMIC_RELAXED) < one->end) {
            const int found = __atomic_fetch_add(&one->next, 1, __ATOMIC_RELAXED);
            if (found < one->end) {
                *node = kimi_nodes.of[kimi_nodes.order[at]];
                return found;
            }
        }
    }
    return -1;
}

void kimi_place_on(const void *from, int64_t bytes, int node) {
    /* A page that two nodes share is the first one's. */
    const uintptr_t begin = ((uintptr_t)from + HUGE - 1) & ~(uintptr_t)(HUGE - 1);
    const uintptr_t end = ((uintptr_t)from + bytes + HUGE - 1) & ~(uintptr_t)(HUGE - 1);
    unsigned long mask[16] = {0};
    const int system = kimi_nodes.system[node];
    if (system < 0 || system >= (int)sizeof mask * 8 || end <= begin)
        return;
    mask[system / (8 * sizeof *mask)] = 1UL << system % (8 * sizeof *mask);
    /* Preferred: where the node is full, memory of another one is slower, and no process ends. */
    syscall(SYS_mbind, begin, end - begin, PREFERRED, mask, sizeof mask * 8, MOVE);
}

void kimi_place(const void *from, int64_t bytes, int count) {
    for (int k = 0; k < kimi_nodes.count; k++) {
        const int64_t begin = bytes / count * kimi_cut(count, k), end = bytes / count * kimi_cut(count, k + 1);
        kimi_place_on((const uint8_t *)from + begin, end - begin, k);
    }
}

static int64_t whole_pages(int64_t bytes) { return (bytes + HUGE - 1) & ~(int64_t)(HUGE - 1); }

static uint8_t *map_pages(int64_t bytes) {
    const int64_t whole = whole_pages(bytes);
    uint8_t *raw = mmap(0, whole + HUGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return 0;
    uint8_t *found = (uint8_t *)(((uintptr_t)raw + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    if (found != raw)
        munmap(raw, found - raw);
    if (found + whole != raw + whole + HUGE)
        munmap(found + whole, raw + HUGE - found);
    madvise(found, whole, MADV_HUGEPAGE);
    return found;
}

/* Memory for weights, in huge pages where the kernel gives them; 0 where there is none. */
void *kimi_experts_new(int64_t bytes) {
    void *found = map_pages(bytes);
    held += found != 0;
    return found;
}

void kimi_experts_free(void *found, int64_t bytes) {
    munmap(found, whole_pages(bytes));
    held--;
}

/* Copy `count` things of the same size to where their nodes are. */
void kimi_experts_copy(void *to, const void *from, int64_t bytes, int count) {
    kimi_see_threads();
    kimi_place(to, bytes, count);
    memcpy(to, from, bytes);
}

uint8_t *kimi_scratch(int64_t wanted) {
    static uint8_t *scratch;
    static int64_t size;
    if (wanted > size) {
        if (scratch)
            munmap(scratch, whole_pages(size));
        scratch = map_pages(wanted);
        size = scratch ? wanted : 0;
    }
    return scratch;
}
