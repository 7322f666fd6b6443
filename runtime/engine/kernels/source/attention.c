/* Paged attention: keys and values are read where they lie, block by block; nothing is gathered or padded.
 *
 * A block has its keys as [head_dim][block_tokens], so that one vector holds the same number of several keys, and its
 * values as [block_tokens][head_dim]. A task is one key head (or all of them) and up to QUERIES consecutive rows of one
 * sequence, with all query heads that share the key head; a row that is alone is rotated and stored here. Keys come in tiles that begin at multiples of TILE positions,
 * with a running maximum and sum, so that a row meets the same tiles in the same order however the work around it is
 * cut. Inside a tile every sum runs over numbers, or over keys, in order. */
#include "kernels.h"

#include <string.h>

#if LANES == 16
enum { TOGETHER = 6 }; /* query rows of one register block: 6 x 4 sums, 4 operands */
#else
enum { TOGETHER = 3 };
#endif
enum { TILE = 256, QUERIES = 16, MANY = 8, VECS = 4, SPAN = VECS * LANES };

/* Number `d` of the keys of vector `v` lies at key[v] + d * stride, the value of its key `j` at value[v] + j * dim. */
typedef struct {
    const float *key[TILE / LANES], *value[TILE / LANES];
    int count, vecs, stride;
} tile;

/* What is wanted next: line `i` of each vector is asked for while something else computes. */
typedef struct {
    const float *from[VECS];
    size_t stride;
} wish;

/* Key heads of one task: with many sequences all, so that the next one's keys are asked for in time. */
static int heads_together(const step *s) {
    return s->num_single >= MANY && s->num_single == s->num_spans ? s->shape.kv_heads : 1;
}

int attend_tasks(const step *s) {
    int total = s->num_single;
    for (int i = s->num_single; i < s->num_spans; i++) total += (s->spans[i].count + QUERIES - 1) / QUERIES;
    return total * (s->shape.kv_heads / heads_together(s));
}

/* The blocks in `step.tables` that a thread will read when it attends to single rows, from the last to the first. */
void attend_blocks(const step *s, const worker *w, int *first, int *last) {
    const int per = s->shape.kv_heads / heads_together(s), total = attend_tasks(s), mine = w->index % w->segments;
    int begin = segment_begin(total, mine, w->segments) / per, end = (segment_begin(total, mine + 1, w->segments) + per - 1) / per;
    *first = *last = 0;
    if (end > s->num_single) end = s->num_single;
    if (begin >= end) return;
    const span *longest = s->spans + s->num_single - 1 - begin;
    *first = s->spans[s->num_single - end].table;
    *last = longest->table + longest->start / s->shape.block_tokens + 1;
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

/* One key head of a piece of work. `turned` has room for a tile's keys and values, where blocks are no whole number of
 * vectors. */
typedef struct {
    const op *o;
    const step *s;
    const span *mine, *after; /* `after`: whose turn is next, where that is known */
    int first, count, begin, end, head, last_head;
    float *turned, *p, *acc, *most, *sum;
    const float **q;
    tile tile;
} piece;

static const float *keys_of(const piece *c, int head) {
    const attention_shape *a = &c->s->shape;
    return a->cache + ((size_t)c->o->layer * 2 * a->kv_heads + head) * a->slots * a->head_dim;
}

/* Keys and values one after another where their blocks do not let a vector be loaded. */
static void turn(piece *c, const float *keys, const float *values, int start) {
    const int size = c->s->shape.block_tokens, dim = c->s->shape.head_dim;
    const int32_t *table = c->s->tables + c->mine->table;
    tile *t = &c->tile;
    float *rows = c->turned + (size_t)TILE * dim;
    for (int i = 0; i < t->vecs * LANES; i++) {
        const int at = i < t->count ? start + i : start; /* beyond the last: computed and masked */
        const size_t block = (size_t)table[at / size] * size * dim;
        for (int d = 0; d < dim; d++) c->turned[(size_t)d * TILE + i] = keys[block + (size_t)d * size + at % size];
        memcpy(rows + (size_t)i * dim, values + block + (size_t)(at % size) * dim, sizeof(float) * (size_t)dim);
    }
    t->stride = TILE;
    for (int v = 0; v < t->vecs; v++) t->key[v] = c->turned + v * LANES, t->value[v] = rows + (size_t)v * LANES * dim;
}

static void find_tile(piece *c, int start) {
    const attention_shape *a = &c->s->shape;
    const int size = a->block_tokens, dim = a->head_dim;
    const int32_t *table = c->s->tables + c->mine->table;
    const float *keys = keys_of(c, c->head), *values = keys + (size_t)a->kv_heads * a->slots * dim;
    tile *t = &c->tile;
    t->count = c->end - start < TILE ? c->end - start : TILE;
    t->vecs = (t->count + LANES - 1) / LANES;
    t->stride = size;
    if (size % LANES) {
        turn(c, keys, values, start);
        return;
    }
    for (int v = 0, block = start / size, inside = start % size; v < t->vecs; v++) {
        const size_t at = (size_t)table[block] * size * dim;
        t->key[v] = keys + at + inside;
        t->value[v] = values + at + (size_t)inside * dim;
        inside += LANES;
        if (inside == size) block++, inside = 0;
    }
}

/* Memory is what attention waits for: while a few vectors are scored or mixed, the next few are asked for. */
static void wish_nothing(wish *w, const piece *c) {
    w->stride = 0;
    for (int v = 0; v < VECS; v++) w->from[v] = c->p;
}

static void wish_for(wish *w, const piece *c, const float *const *from, int vecs, size_t stride) {
    w->stride = stride;
    for (int v = 0; v < VECS; v++) w->from[v] = vecs > 0 ? from[v < vecs ? v : vecs - 1] : c->p;
}

static int first_tile(const op *o, int start) {
    return (o->window && start - o->window + 1 > 0 ? start - o->window + 1 : 0) / TILE * TILE;
}

/* The first keys of the tile at `start`, which is the next one. */
static void wish_for_tile(wish *w, const piece *c, const span *whose, int head, int start, int end) {
    const int size = c->s->shape.block_tokens, dim = c->s->shape.head_dim;
    const int32_t *table = c->s->tables + whose->table;
    const float *keys = keys_of(c, head), *from[VECS];
    int vecs = 0;
    if (size % LANES == 0)
        for (; vecs < VECS && start + vecs * LANES < end; vecs++) {
            const int at = start + vecs * LANES;
            from[vecs] = keys + (size_t)table[at / size] * size * dim + at % size;
        }
    wish_for(w, c, from, vecs, (size_t)size);
}

static inline __attribute__((always_inline)) void ask(const wish *w, int line) {
    for (int v = 0; v < VECS; v++) __builtin_prefetch(w->from[v] + line * w->stride);
}

/* Keeps a vector that several products share in a register: else it would be loaded for each of them. */
static inline vec held(vec x) {
#if LANES == 16
    __asm__("" : "+v"(x));
#endif
    return x;
}

/* `count` and `vecs` are constants wherever these two are called, so that all sums live in registers. Of the vectors only
 * `there` are keys: what is scored beyond them is never looked at. */
static inline __attribute__((always_inline)) void score(const float *const *q, const float *const *key, size_t stride,
                                                        int dim, float scale, float *out, const wish *next, int there,
                                                        const int count, const int vecs) {
    vec sum[TOGETHER][VECS];
    const float *from[VECS], *row[TOGETHER];
    const wish w = *next;
    for (int v = 0; v < vecs; v++) from[v] = key[v < there ? v : there - 1];
    for (int g = 0; g < count; g++) {
        row[g] = q[g];
        for (int v = 0; v < vecs; v++) sum[g][v] = (vec){0};
    }
    for (int d = 0; d < dim; d++) {
        vec k[VECS];
        ask(&w, d);
        for (int v = 0; v < vecs; v++) k[v] = held(load(from[v] + d * stride));
#pragma GCC unroll 8
        for (int g = 0; g < count; g++) {
            const vec value = splat(row[g][d]);
            for (int v = 0; v < vecs; v++) sum[g][v] += k[v] * value;
        }
    }
    for (int g = 0; g < count; g++)
        for (int v = 0; v < vecs; v++) store(out + g * TILE + v * LANES, sum[g][v] * scale);
}

/* The values that begin at value[0], LANES to a vector and `keys` in all, times their weights. */
static inline __attribute__((always_inline)) void mix(const float *const *value, const float *p, int keys, int dim,
                                                      float *acc, const wish *next, const int count, const int vecs) {
    const wish w = *next;
    for (int d = 0; d < dim; d += vecs * LANES) {
        vec sum[TOGETHER][VECS];
        for (int g = 0; g < count; g++)
            for (int v = 0; v < vecs; v++) sum[g][v] = load(acc + (size_t)g * dim + d + v * LANES);
        for (int first = 0; first < keys; first += LANES) {
            const float *at = value[first / LANES] + d, *weights = p + first;
            const int last = keys - first < LANES ? keys - first : LANES;
            for (int i = 0; i < last; i++, at += dim) {
                vec x[VECS];
                ask(&w, d + first + i);
                for (int v = 0; v < vecs; v++) x[v] = held(load(at + v * LANES));
#pragma GCC unroll 8
                for (int g = 0; g < count; g++) {
                    const vec weight = splat(weights[g * TILE + i]);
                    for (int v = 0; v < vecs; v++) sum[g][v] += x[v] * weight;
                }
            }
        }
        for (int g = 0; g < count; g++)
            for (int v = 0; v < vecs; v++) store(acc + (size_t)g * dim + d + v * LANES, sum[g][v]);
    }
}

static void score_rows(const float *const *q, int rows, const float *const *key, int vecs, const tile *t, int dim,
                       float scale, float *p, const wish *next) {
    switch (rows * 2 + (vecs > 2)) { /* one vector more than there is costs less than code for every number */
#define CASES(n) \
    case n * 2: score(q, key, t->stride, dim, scale, p, next, vecs, n, 2); break; \
    case n * 2 + 1: score(q, key, t->stride, dim, scale, p, next, vecs, n, VECS); break;
        CASES(1) CASES(2) CASES(3)
#if LANES == 16
        CASES(4) CASES(5) CASES(6)
#endif
#undef CASES
    }
}

static void mix_rows(const float *const *value, const float *p, int keys, int rows, int dim, float *acc,
                     const wish *next) {
    const int whole = dim % (VECS * LANES) == 0;
    switch (rows * 2 + whole) {
#define CASE(n) \
    case n * 2: mix(value, p, keys, dim, acc, next, n, 1); break; \
    case n * 2 + 1: mix(value, p, keys, dim, acc, next, n, VECS); break;
        CASE(1) CASE(2) CASE(3)
#if LANES == 16
        CASE(4) CASE(5) CASE(6)
#endif
#undef CASE
    }
}

/* Halves are put together until one number is left: the same order on every machine with these lanes. */
static inline float total(vec x) {
#if LANES == 16
    return _mm512_reduce_add_ps((__m512)x);
#else
    float sum = x[0];
    for (int j = 1; j < LANES; j++) sum += x[j];
    return sum;
#endif
}

/* Scores of one row to weights: mask, new maximum, weights, new sum; what was summed so far is scaled to it. */
static void weigh(float *p, int vecs, int low, int high, float *most, float *sum, float *acc, int dim) {
    if (low >= high) {
        memset(p, 0, sizeof(float) * LANES * (size_t)vecs);
        return;
    }
    const vec never = splat(-INFINITY);
    ivec place;
    for (int j = 0; j < LANES; j++) place[j] = j;
    for (int v = 0; v < vecs; v++)
        if (v * LANES < low || (v + 1) * LANES > high) {
            const ivec at = place + v * LANES;
            store(p + v * LANES, choose((at >= low) & (at < high), load(p + v * LANES), never));
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

/* All rows meet a tile: a few of its vectors at a time, which then stay in the nearest cache. */
static void score_tile(piece *c, int rows) {
    const tile *t = &c->tile;
    const int dim = c->s->shape.head_dim;
    wish next, nothing;
    wish_nothing(&nothing, c);
    for (int v = 0; v < t->vecs; v += VECS) {
        const int vecs = t->vecs - v < VECS ? t->vecs - v : VECS, left = t->vecs - v - VECS;
        if (left > 0)
            wish_for(&next, c, t->key + v + VECS, left, (size_t)t->stride);
        else
            wish_for(&next, c, t->value, t->vecs, LANES);
        for (int g = 0; g < rows; g += TOGETHER)
            score_rows(c->q + g, rows - g < TOGETHER ? rows - g : TOGETHER, t->key + v, vecs, t, dim, c->o->scale,
                       c->p + (size_t)g * TILE + v * LANES, g ? &nothing : &next);
    }
}

static void mix_tile(piece *c, int rows, const wish *afterwards) {
    const tile *t = &c->tile;
    const int dim = c->s->shape.head_dim;
    wish next, nothing;
    wish_nothing(&nothing, c);
    for (int v = 0; v < t->vecs; v += VECS) {
        const int keys = t->count - v * LANES < SPAN ? t->count - v * LANES : SPAN, left = t->vecs - v - VECS;
        if (left > 0)
            wish_for(&next, c, t->value + v + VECS, left, LANES);
        else
            next = *afterwards;
        for (int g = 0; g < rows; g += TOGETHER)
            mix_rows(t->value + v, c->p + (size_t)g * TILE + v * LANES, keys,
                     rows - g < TOGETHER ? rows - g : TOGETHER, dim, c->acc + (size_t)g * dim, g ? &nothing : &next);
    }
}

static float *row_of(const piece *c, int buffer, int row) {
    const attention_shape *a = &c->s->shape;
    const int share = a->heads / a->kv_heads;
    return c->s->buffers[buffer] + (size_t)(c->mine->first + c->first + row / share) * c->s->strides[buffer] +
           (c->head * share + row % share) * a->head_dim;
}

static void attend_head(piece *c) {
    const attention_shape *a = &c->s->shape;
    const int dim = a->head_dim, share = a->heads / a->kv_heads, rows = c->count * share, start = c->end - c->count;
    for (int r = 0; r < rows; r++) c->q[r] = row_of(c, c->o->in, r), c->most[r] = -INFINITY, c->sum[r] = 0.0f;
    memset(c->acc, 0, sizeof(float) * (size_t)rows * dim);
    for (int at = c->begin; at < c->end; at += TILE) {
        wish next;
        find_tile(c, at);
        if (at + TILE < c->end)
            wish_for_tile(&next, c, c->mine, c->head, at + TILE, c->end);
        else if (c->head < c->last_head)
            wish_for_tile(&next, c, c->mine, c->head + 1, c->begin, c->end);
        else if (c->after)
            wish_for_tile(&next, c, c->after, 0, first_tile(c->o, c->after->start), c->after->start + 1);
        else
            wish_nothing(&next, c);
        score_tile(c, rows);
        for (int r = 0; r < rows; r++) {
            const int position = start + r / share, low = c->o->window ? position - c->o->window + 1 - at : 0;
            const int high = position + 1 - at < c->tile.count ? position + 1 - at : c->tile.count;
            weigh(c->p + (size_t)r * TILE, c->tile.vecs, low > 0 ? low : 0, high, c->most + r, c->sum + r,
                  c->acc + (size_t)r * dim, dim);
        }
        mix_tile(c, rows, &next);
    }
    for (int r = 0; r < rows; r++) {
        float *out = row_of(c, c->o->out, r);
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
    const size_t turned = a->block_tokens % LANES ? (size_t)TILE * dim * 2 : 0;
    c.p = worker_scratch(w, sizeof(float) * (turned + (size_t)rows * (TILE + dim + 2)) + sizeof(float *) * (size_t)rows + 64);
    c.acc = c.p + (size_t)rows * TILE, c.turned = c.acc + (size_t)rows * dim;
    c.most = c.turned + turned, c.sum = c.most + rows;
    c.q = (const float **)(((uintptr_t)(c.sum + rows) + 15) & ~(uintptr_t)15);
    c.end = start + c.count;
    c.begin = first_tile(o, start);
    if (c.mine - s->spans < s->num_single) {
        rope_heads(o, s, c.mine->first, c.head, together);
        if (per == 1 && c.mine != s->spans) c.after = c.mine - 1;
    }
    for (; c.head <= c.last_head; c.head++) attend_head(&c);
}
