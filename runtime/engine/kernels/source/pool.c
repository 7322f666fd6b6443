/* Threads that share a program, and the interpreter that walks through it.
 *
 * Every thread walks through all operations. It takes tasks of its own segment of an operation until none is left, then
 * those of others; it waits until those that others took are done, and goes on. Segments are what a thread can foresee:
 * it asks memory for what it will read itself. Waiting spins for some microseconds and then sleeps in the kernel: a spinning
 * thread beside a busy neighbour would take the processor that the work needs.
 */
#include "kernels.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_THREADS = 64, MAX_OPS = 4096, SPINS = 1500, RUNS = 8, CHUNK = 16, MAX_SEGMENTS = 8 };

typedef struct {
    atomic_int next[MAX_SEGMENTS], done;
} counter;

/* One run of a program. A thread that comes late finds every counter at its end and touches nothing else, so nobody
 * waits for it; the place is used again when no thread is left in it. */
typedef struct {
    atomic_int users;
    const op *ops;
    const step *step;
    int count, threads;
    int32_t rows[MAX_OPS], total[MAX_OPS];
    counter counters[MAX_OPS];
} run;

static run runs[RUNS];
static atomic_int generation, sleepers, started;
static pthread_mutex_t run_lock = PTHREAD_MUTEX_INITIALIZER;
static worker workers[MAX_THREADS];

static void futex_wait(atomic_int *word, int value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(atomic_int *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, MAX_THREADS, NULL, NULL, 0); }

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void *worker_scratch(worker *w, size_t bytes) {
    if (w->scratch_bytes < bytes) {
        free(w->scratch);
        w->scratch = aligned_alloc(64, (bytes + 4095) / 4096 * 4096);
        if (!w->scratch) abort(); /* a few hundred KiB: with those gone the process is lost */
        w->scratch_bytes = (bytes + 4095) / 4096 * 4096;
    }
    return w->scratch;
}

/* Rows of one task where each row is by itself. With many rows neighbours stay together: they share keys' lines. */
static int rows_together(int rows, int threads) { return rows >= 2 * CHUNK * threads ? CHUNK : 1; }

static int tasks_of(const op *o, const step *s, int rows, int threads) {
    if (o->kind == OP_LINEAR) return linear_tasks(o->weight, rows, threads);
    if (o->kind == OP_ATTEND) return attend_tasks(s);
    if (o->kind == OP_ROPE) rows -= s->num_single;
    const int together = rows_together(rows, threads);
    return (rows + together - 1) / together;
}

static void run_row(const op *o, const step *s, int row) {
    switch (o->kind) {
    case OP_EMBED: embed_row(o, s, row); break;
    case OP_NORM: norm_row(o, s, row); break;
    case OP_ROPE: rope_row(o, s, row); break;
    case OP_GATE: gate_row(o, s, row); break;
    case OP_GATHER: gather_row(o, s, row); break;
    case OP_ARGMAX: argmax_row(o, s, row); break;
    case OP_BEST: best_row(o, s, row); break;
    case OP_QUANTIZE:
        quantize_row(s->buffers[o->in] + (size_t)row * s->strides[o->in], o->n, s->quantized_stride,
                     s->quantized + (size_t)row * s->quantized_stride, s->quantized_scale + (size_t)row * scales_of(s));
        break;
    }
}

static void run_task(const op *o, const step *s, int rows, int threads, int task, worker *w) {
    if (o->kind == OP_LINEAR) {
        linear_task(o, s, rows, threads, task, w);
    } else if (o->kind == OP_ATTEND) {
        attend_task(o, s, task, w);
    } else {
        const int skipped = o->kind == OP_ROPE ? s->num_single : 0, together = rows_together(rows - skipped, threads);
        const int first = skipped + task * together;
        for (int row = first; row < first + together && row < rows; row++) run_row(o, s, row);
    }
}

static void wait_done(atomic_int *done, int total) {
    for (int spin = 0; spin < SPINS; spin++) {
        if (atomic_load_explicit(done, memory_order_acquire) == total) return;
        relax();
    }
    atomic_fetch_add(&sleepers, 1);
    for (int value; (value = atomic_load(done)) != total;) futex_wait(done, value);
    atomic_fetch_sub(&sleepers, 1);
}

static int64_t nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void walk(run *r, worker *w) {
    int64_t *times = w->index ? NULL : r->step->nanoseconds, begun = times ? nanoseconds() : 0;
    amx_enter();
    w->segments = r->threads < MAX_SEGMENTS ? r->threads : MAX_SEGMENTS;
    for (int i = 0; i < r->count; i++) {
        counter *c = r->counters + i;
        const int total = r->total[i];
        int mine = 0;
        for (int turn = 0; turn < w->segments; turn++) {
            const int segment = (w->index + turn) % w->segments, begin = segment_begin(total, segment, w->segments);
            const int size = segment_begin(total, segment + 1, w->segments) - begin;
            for (int task; (task = atomic_fetch_add_explicit(&c->next[segment], 1, memory_order_relaxed)) < size; mine++)
                run_task(r->ops + i, r->step, r->rows[i], r->threads, begin + task, w);
        }
        if (mine && atomic_fetch_add(&c->done, mine) + mine == total && atomic_load(&sleepers)) futex_wake(&c->done);
        wait_done(&c->done, total);
        if (times) {
            const int64_t ended = nanoseconds();
            times[i] += ended - begun, begun = ended;
        }
    }
    amx_leave();
}

static void *serve(void *argument) {
    worker *w = argument;
    for (int seen = 0;;) {
        int now = atomic_load(&generation);
        for (int spin = 0; now == seen && spin < SPINS; spin++) {
            relax();
            now = atomic_load(&generation);
        }
        if (now == seen) {
            futex_wait(&generation, seen);
            continue;
        }
        seen = now;
        run *r = runs + (unsigned)seen % RUNS;
        atomic_fetch_add(&r->users, 1);
        if (atomic_load(&generation) == seen && w->index < r->threads) walk(r, w);
        atomic_fetch_sub(&r->users, 1);
    }
    return NULL;
}

static void start_workers(int threads) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are Python's: its own threads handle them */
    for (int i = atomic_load(&started) + 1; i < threads; i++) {
        pthread_t thread;
        workers[i].index = i;
        if (pthread_create(&thread, NULL, serve, &workers[i])) break; /* fewer threads do the same work */
        pthread_detach(thread);
        atomic_store(&started, i);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Run `count` operations on one step with up to `threads` threads. Returns 0, or -1 when the program is too long.
 * After OP_GATHER, operations work on the picked rows alone. */
int millpond_run(const op *ops, int count, const step *s, int threads) {
    if (count > MAX_OPS) return -1;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    pthread_mutex_lock(&run_lock);
    start_workers(threads);
    int mine = atomic_load(&generation) + 1, rows = s->rows;
    run *r = runs + (unsigned)mine % RUNS;
    while (atomic_load(&r->users)) relax(); /* seven runs ago, and still there: it only has to leave */
    r->ops = ops, r->step = s, r->count = count, r->threads = threads;
    memset(r->counters, 0, sizeof(counter) * (size_t)count);
    for (int i = 0; i < count; i++) {
        if (ops[i].kind == OP_GATHER) rows = s->num_picks;
        r->rows[i] = rows;
        r->total[i] = tasks_of(ops + i, s, rows, threads);
    }
    atomic_store(&generation, mine);
    if (threads > 1) futex_wake(&generation);
    walk(r, &workers[0]);
    pthread_mutex_unlock(&run_lock);
    return 0;
}
