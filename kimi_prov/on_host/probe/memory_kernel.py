"""The program that reads memory, in C: Python itself is slower than any memory."""

SOURCE = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/* read SECONDS BYTES CPU...: a thread on each CPU reads its own BYTES over and over.
   Each touches its memory first, so that it lies on the thread's own node. */

static double seconds;
static size_t words;
static pthread_barrier_t ready;

struct work { pthread_t thread; int cpu; double rate; uint64_t sum; int failed; };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *reader(void *argument) {
    struct work *work = argument;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(work->cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    uint64_t *data = mmap(NULL, words * 8, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        work->failed = 1;
    } else {
        madvise(data, words * 8, MADV_HUGEPAGE);
        for (size_t i = 0; i < words; i++) data[i] = i;
    }
    pthread_barrier_wait(&ready);
    if (work->failed) return NULL;
    double start = now(), end = start;
    double read = 0;
    uint64_t sum = 0;
    do {
        for (size_t from = 0; from + 4096 <= words; from += 1 << 20) {
            size_t to = from + (1 << 20) < words ? from + (1 << 20) : words;
            for (size_t i = from; i < to; i++) sum += data[i];
            read += (to - from) * 8.0;
            end = now();
            if (end - start >= seconds) break;
        }
    } while (end - start < seconds);
    work->sum = sum;
    work->rate = read / (end - start);
    munmap(data, words * 8);
    return NULL;
}

int main(int count, char **arguments) {
    int threads = count - 3;
    if (threads < 1) return 2;
    seconds = atof(arguments[1]);
    words = strtoull(arguments[2], NULL, 10) / 8;
    if (words < 1 << 16) return 2;
    struct work *work = calloc(threads, sizeof *work);
    pthread_barrier_init(&ready, NULL, threads);
    for (int i = 0; i < threads; i++) {
        work[i].cpu = atoi(arguments[3 + i]);
        if (pthread_create(&work[i].thread, NULL, reader, &work[i])) return 1;
    }
    double rate = 0;
    uint64_t sum = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(work[i].thread, NULL);
        if (work[i].failed) return 1;
        rate += work[i].rate;
        sum += work[i].sum;
    }
    fprintf(stderr, "%llu\n", (unsigned long long)sum); /* or the reads are optimised away */
    printf("%.0f\n", rate);
    return 0;
}
"""
