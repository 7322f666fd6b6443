/* Paged attention: keys and values are read where they lie, block by block; nothing is gathered or padded.
 *
 * A block has its keys as [head_dim][block_tokens], so that one vector holds the same number of several keys, and its
 * values as [block_tokens][head_dim]. A task is one key head and up to QUERIES consecutive rows of one sequence, with
 * all query heads that share the key head. Keys come in tiles that begin at multiples of TILE positions, with a running
 * maximum and sum, so that a row meets the same tiles in the same order however the work around it is cut. */
#include "kernels.h"

#include <math.h>
#include <string.h>
#if LANES == 16
#include <immintrin.h>
#endif

enum { TILE = 64, QUERIES = 16, TOGETHER = 4, MANY = 8, VECS = TILE / LANES };

/* Number `d` of the keys of vector `v` lies at key[v] + d * stride. */
typedef struct {
    const float *key[VECS], *value[TILE];
    int count, vecs, stride;
} tile;

/* Key heads of one task: with many sequences all, so that the next one's keys are asked for in time. */
static int heads_together(const step *s) {
    return s->num_single >= MANY && s->num_single == s->num_spans ? s->shape.kv_heads : 1;
}

int attend_tasks(const step *s) {
    int total = s->num_single;
    for (int i = s->num_single; i < s->num_spans; i++) total += (s->spans[i].count + QUERIES - 1) / QUERIES;
    return total * (s->shape.kv_heads / heads_together(s));
}

/* Span, first row inside it and number of rows of the `piece`-th piece; single rows with the longest context first. */
static const span *find(const step *s, int piece, int *first, int *count) {
    *first = 0, *count = 1;
    if (piece < s->num_single) return s->spans + s->num_single - 1 - piece;
    piece -= s->num_single;
    for (int i = s->num_single;; i++) {
        int pieces = (s->spans[i].count + QUERIES - 1) / QUERIES;
        if (piece < pieces) {
            *first = piece * QUERIES;
            *count = s->spans[i].count - *first < QUERIES ? s->spans[i].count - *first : QUERIES;
            return s->spans + i;
        }
        piece -= pieces;
    }
}

/* `turned` has room for the keys of a tile, where blocks are no whole number of vectors. */
static void find_tile(const step *s, const span *mine, int layer, int head, int start, int end, float *turned, tile *t) {
    const attention_shape *a = &s->shape;
    const int size = a->block_tokens, dim = a->head_dim;
    const int32_t *table = s->tables + mine->table;
    const float *keys = a->cache + ((size_t)layer * 2 * a->kv_heads + head) * a->slots * dim;
    const float *values = keys + (size_t)a->kv_heads * a->slots * dim;
    t->count = end - start < TILE ? end - start : TILE;
    t->vecs = (t->count + LANES - 1) / LANES;
    for (int i = 0; i < t->count;) {
        int inside = (start + i) % size;
        size_t slot = (size_t)table[(start + i) / size] * size + inside;
        for (; inside < size && i < t->count; inside++, slot++, i++) t->value[i] = values + slot * dim;
    }
    t->stride = size % LANES ? TILE : size;
    for (int v = 0; v < t->vecs && size % LANES == 0; v++) {
        const int at = start + v * LANES;
        t->key[v] = keys + (size_t)table[at / size] * size * dim + at % size;
    }
    if (size % LANES == 0) return;
    for (int i = 0; i < t->vecs * LANES; i++) {
        const int at = i < t->count ? start + i : start; /* beyond the last: computed and masked */
        const float *key = keys + (size_t)table[at / size] * size * dim + at % size;
        for (int d = 0; d < dim; d++) turned[(size_t)d * TILE + i] = key[(size_t)d * size];
    }
    for (int v = 0; v < t->vecs; v++) t->key[v] = turned + v * LANES;
}

/* Memory is what attention waits for: while a tile is scored its values are asked for, while they are mixed the keys
 * of the next tile, line by line. */
static inline void ask_for_values(const tile *t, int d, int vecs) {
    for (int v = 0; v < vecs; v++) __builtin_prefetch(t->value[v * LANES] + (size_t)d * LANES);
}

static inline void ask_for_keys(const tile *next, int i, int dim) {
    for (int d = i * dim / TILE; d < (i + 1) * dim / TILE; d++)
        for (int v = 0; v < next->vecs; v++) __builtin_prefetch(next->key[v] + (size_t)d * next->stride);
}

static inline __attribute__((always_inline)) void score(const float *const *q, const tile *t, int dim, float scale,
                                                        float *out, const int count, const int vecs, const tile *ask) {
    vec sum[TOGETHER][VECS];
    const size_t stride = t->stride;
    const float *from[VECS];
    for (int v = 0; v < vecs; v++) from[v] = t->key[v];
    for (int g = 0; g < count; g++)
        for (int v = 0; v < vecs; v++) sum[g][v] = (vec){0};
    for (int d = 0; d < dim; d++) {
        vec key[VECS];
        if (ask) ask_for_values(ask, d, vecs);
        for (int v = 0; v < vecs; v++) key[v] = load(from[v] + d * stride);
        for (int g = 0; g < count; g++) {
            vec value = splat(q[g][d]);
            for (int v = 0; v < vecs; v++) sum[g][v] += key[v] * value;
        }
    }
    for (int g = 0; g < count; g++)
        for (int v = 0; v < vecs; v++) store(out + g * TILE + v * LANES, sum[g][v] * scale);
}

static inline __attribute__((always_inline)) void mix(const tile *t, const float *p, int dim, float *acc,
                                                      const int count, const tile *next) {
    int d = 0;
    for (; d + 4 * LANES <= dim; d += 4 * LANES) {
        vec sum[TOGETHER][4];
        for (int g = 0; g < count; g++)
            for (int v = 0; v < 4; v++) sum[g][v] = load(acc + (size_t)g * dim + d + v * LANES);
        for (int i = 0; i < t->count; i++) {
            if (next && d == 0) ask_for_keys(next, i, dim);
            for (int g = 0; g < count; g++) {
                vec value = splat(p[g * TILE + i]);
                for (int v = 0; v < 4; v++) sum[g][v] += load(t->value[i] + d + v * LANES) * value;
            }
        }
        for (int g = 0; g < count; g++)
            for (int v = 0; v < 4; v++) store(acc + (size_t)g * dim + d + v * LANES, sum[g][v]);
    }
    for (; d < dim; d += LANES)
        for (int g = 0; g < count; g++) {
            vec sum = load(acc + (size_t)g * dim + d);
            for (int i = 0; i < t->count; i++) sum += load(t->value[i] + d) * splat(p[g * TILE + i]);
            store(acc + (size_t)g * dim + d, sum);
        }
}

/* Halves are put together until one number is left: the same order on every machine with these lanes. */
static inline float largest(vec x) {
#if LANES == 16
    return _mm512_reduce_max_ps((__m512)x);
#else
    float top = x[0];
    for (int j = 1; j < LANES; j++) top = x[j] > top ? x[j] : top;
    return top;
#endif
}

static inline float total(vec x) {
#if LANES == 16
    return _mm512_reduce_add_ps((__m512)x);
#else
    float sum = x[0];
    for (int j = 1; j < LANES; j++) sum += x[j];
    return sum;
#endif
}

static inline vec choose(ivec where, vec a, vec b) { return (vec)(((ivec)a & where) | ((ivec)b & ~where)); }

/* Scores of one row to weights: mask, new maximum, weights, new sum; what was summed so far is scaled to it. */
static void weigh(float *p, int vecs, int low, int high, float *most, float *sum, float *acc, int dim) {
    if (low >= high) {
        memset(p, 0, sizeof(float) * LANES * (size_t)vecs);
        return;
    }
    const vec never = splat(-INFINITY);
    if (low > 0 || high < vecs * LANES)
        for (int v = 0; v < vecs; v++) {
            ivec place;
            for (int j = 0; j < LANES; j++) place[j] = v * LANES + j;
            store(p + v * LANES, choose((place >= low) & (place < high), load(p + v * LANES), never));
        }
    vec highest = load(p);
    for (int v = 1; v < vecs; v++) {
        const vec more = load(p + v * LANES);
        highest = choose(more > highest, more, highest);
    }
    const float top = largest(highest);
    if (top > *most) {
        if (*most != -INFINITY) {
            const vec factor = vector_exp(splat(*most - top));
            *sum *= factor[0];
            for (int d = 0; d < dim; d += LANES) store(acc + d, load(acc + d) * factor);
        }
        *most = top;
    }
    vec weights = (vec){0};
    for (int v = 0; v < vecs; v++) {
        const vec weight = vector_exp(load(p + v * LANES) - *most);
        store(p + v * LANES, weight);
        weights += weight;
    }
    *sum += total(weights);
}

static void score_tile(const float *const *q, int rows, int dim, float scale, const tile *t, float *p) {
    for (int g = 0; g < rows; g += TOGETHER, q += TOGETHER, p += TOGETHER * TILE) {
        const tile *ask = g ? NULL : t;
        switch ((rows - g < TOGETHER ? rows - g : TOGETHER) * 2 + (t->vecs == VECS)) {
#define CASE(n) \
        case 2 * n: \
            for (int v = 0; v < t->vecs; v++) { \
                const tile one = {.key = {t->key[v]}, .value = {t->value[v * LANES]}, .stride = t->stride}; \
                score(q, &one, dim, scale, p + v * LANES, n, 1, ask ? &one : NULL); \
            } \
            break; \
        case 2 * n + 1: score(q, t, dim, scale, p, n, VECS, ask); break;
            CASE(1) CASE(2) CASE(3) CASE(4)
#undef CASE
        }
    }
}

static void mix_tile(const tile *t, const float *p, int rows, int dim, float *acc, const tile *next) {
    for (int g = 0; g < rows; g += TOGETHER, p += TOGETHER * TILE, acc += (size_t)TOGETHER * dim, next = NULL)
        switch (rows - g) {
        case 1: mix(t, p, dim, acc, 1, next); break;
        case 2: mix(t, p, dim, acc, 2, next); break;
        case 3: mix(t, p, dim, acc, 3, next); break;
        default: mix(t, p, dim, acc, 4, next);
        }
}

/* One key head of a piece of work: `tiles[*now]` is its first tile, and is the first one of `head` + 1 afterwards. */
typedef struct {
    const op *o;
    const step *s;
    const span *mine;
    int first, count, begin, end, head, last_head, now;
    float *turned, *p, *acc, *most, *sum;
    const float **q;
    tile tiles[2];
} piece;

static tile *tile_of(piece *c, int which, int head, int at) {
    const int room = TILE * c->s->shape.head_dim;
    find_tile(c->s, c->mine, c->o->layer, head, at, c->end, c->turned + which * room, &c->tiles[which]);
    return &c->tiles[which];
}

static void attend_head(piece *c) {
    const attention_shape *a = &c->s->shape;
    const op *o = c->o;
    const int dim = a->head_dim, share = a->heads / a->kv_heads, rows = c->count * share, start = c->end - c->count;
    for (int r = 0; r < rows; r++) {
        c->q[r] = c->s->buffers[o->in] + (size_t)(c->mine->first + c->first + r / share) * c->s->strides[o->in] +
                  (c->head * share + r % share) * dim;
        c->most[r] = -INFINITY, c->sum[r] = 0.0f;
    }
    memset(c->acc, 0, sizeof(float) * (size_t)rows * dim);
    for (int at = c->begin; at < c->end; at += TILE, c->now ^= 1) {
        const tile *t = &c->tiles[c->now], *next = NULL;
        score_tile(c->q, rows, dim, o->scale, t, c->p);
        if (at + TILE < c->end)
            next = tile_of(c, c->now ^ 1, c->head, at + TILE);
        else if (c->head < c->last_head)
            next = tile_of(c, c->now ^ 1, c->head + 1, c->begin);
        for (int r = 0; r < rows; r++) {
            const int position = start + r / share, low = o->window ? position - o->window + 1 - at : 0;
            const int high = position + 1 - at < t->count ? position + 1 - at : t->count;
            weigh(c->p + r * TILE, t->vecs, low > 0 ? low : 0, high, c->most + r, c->sum + r, c->acc + (size_t)r * dim, dim);
        }
        mix_tile(t, c->p, rows, dim, c->acc, next);
    }
    for (int r = 0; r < rows; r++) {
        float *out = c->s->buffers[o->out] + (size_t)(c->mine->first + c->first + r / share) * c->s->strides[o->out] +
                     (c->head * share + r % share) * dim;
        const vec factor = splat(1.0f / c->sum[r]);
        for (int d = 0; d < dim; d += LANES) store(out + d, load(c->acc + (size_t)r * dim + d) * factor);
    }
}

void attend_task(const op *o, const step *s, int task, worker *w) {
    const attention_shape *a = &s->shape;
    const int dim = a->head_dim, together = heads_together(s), per = a->kv_heads / together;
    piece c = {.o = o, .s = s, .head = task % per * together};
    c.last_head = c.head + together - 1;
    c.mine = find(s, task / per, &c.first, &c.count);
    const int rows = c.count * (a->heads / a->kv_heads), start = c.mine->start + c.first;
    c.turned = worker_scratch(w, sizeof(float) * ((size_t)TILE * dim * 2 + (size_t)rows * (TILE + dim + 2)) +
                                     sizeof(float *) * (size_t)rows + 64);
    c.p = c.turned + (size_t)TILE * dim * 2, c.acc = c.p + (size_t)rows * TILE, c.most = c.acc + (size_t)rows * dim;
    c.sum = c.most + rows;
    c.q = (const float **)(((uintptr_t)(c.sum + rows) + 15) & ~(uintptr_t)15);
    c.end = start + c.count;
    c.begin = (o->window && start - o->window + 1 > 0 ? start - o->window + 1 : 0) / TILE * TILE;
    tile_of(&c, 0, c.head, c.begin);
    for (; c.head <= c.last_head; c.head++) attend_head(&c);
}
