/* y = x W^T (+ bias) in float32. W lies in panels of PANEL outputs, [n / PANEL][k][PANEL]: a panel is read once from
 * memory and serves all rows from the cache. Each sum runs over k in order. */
#include "kernels.h"

enum { AHEAD = 24 * PANEL, INPUT_BYTES = 1 << 20, LEAST_ROWS = 4 * ROWS, LINE = 64, PAGE = 4096 };

/* What will be read after this task, asked for page by page while it computes: with a dozen rows or more memory would
 * be idle, and attention would wait for it later. First the panel that this thread probably takes next, then this
 * task's share of the keys and values that this thread will attend to. */
typedef struct {
    const char *panel;
    int panel_pages;
    const step *s;
    int layer, block_pages, unit, end;
} ahead;

typedef struct {
    const float *x, *w, *bias;
    float *y;
    size_t x_stride, y_stride;
    int k, column, columns, flags, act, panel, panels;
    ahead *ahead;
} block;

static const char *next_page(ahead *a, const void *otherwise) {
    if (a->panel_pages) {
        const char *page = a->panel;
        return a->panel += PAGE, a->panel_pages--, page;
    }
    if (a->unit >= a->end) return otherwise; /* near, so that asking for it costs nothing */
    const attention_shape *shape = &a->s->shape;
    const int page = a->unit % a->block_pages, part = a->unit / a->block_pages, kinds = 2 * shape->kv_heads;
    const size_t slot = (size_t)a->s->tables[part / kinds] * shape->block_tokens;
    a->unit++;
    return (const char *)(shape->cache + (((size_t)a->layer * kinds + part % kinds) * shape->slots + slot) * shape->head_dim) +
           (size_t)page * PAGE;
}

static inline void finish(const block *b, int row, vec v0, vec v1) {
    float *y = b->y + row * b->y_stride + b->column;
    const int add = b->flags & FLAG_ADD;
    if (b->columns == PANEL) {
        if (add) v0 += load(y), v1 += load(y + LANES);
        store(y, v0), store(y + LANES, v1);
        return;
    }
    float part[PANEL];
    store(part, v0), store(part + LANES, v1);
    for (int c = 0; c < b->columns; c++) y[c] = add ? y[c] + part[c] : part[c];
}

/* What FLAG_GATE or FLAG_BEST leaves of the sums of some rows. */
static __attribute__((noinline)) void condense(const block *b, const vec *sums, int count) {
    float *y = b->y;
    for (int r = 0; r < count; r++, y += b->y_stride, sums += 2) {
        if (b->flags & FLAG_GATE)
            store(y + b->column / 2, activate(sums[0], b->act) * sums[1]);
        else
            best_of(sums, 2, b->column, b->columns, y + b->panel, (int32_t *)(y + b->panels) + b->panel);
    }
}

/* `count` is a constant wherever this is called, so that all sums live in registers. */
static inline __attribute__((always_inline)) void rows_times_panel(const block *b, const int count) {
    vec s0[ROWS], s1[ROWS];
    for (int r = 0; r < count; r++) s0[r] = s1[r] = (vec){0};
    const size_t stride = b->x_stride;
    const float *x = b->x, *w = b->w;
    for (int left = b->k; left > 0; left -= PAGE / LINE) {
        const char *far = next_page(b->ahead, w);
        for (int k = left < PAGE / LINE ? left : PAGE / LINE; k > 0; k--, x++, w += PANEL, far += LINE) {
            vec w0 = load(w), w1 = load(w + LANES);
            __builtin_prefetch(w + AHEAD);
            __builtin_prefetch(w + AHEAD + LANES);
            __builtin_prefetch(far, 0, 2);
#pragma GCC unroll 16
            for (int r = 0; r < count; r++) {
                vec value = splat(x[r * stride]);
                s0[r] += w0 * value;
                s1[r] += w1 * value;
            }
        }
    }
    if (b->bias)
        for (int r = 0; r < count; r++) s0[r] += load(b->bias), s1[r] += load(b->bias + LANES);
    if (b->flags & (FLAG_GATE | FLAG_BEST)) {
        vec sums[2 * ROWS];
        for (int r = 0; r < count; r++) sums[2 * r] = s0[r], sums[2 * r + 1] = s1[r];
        condense(b, sums, count);
        return;
    }
    for (int r = 0; r < count; r++) finish(b, r, s0[r], s1[r]);
}

static void some_rows(const block *b, int count) {
    switch (count) {
#define CASE(n) \
    case n: rows_times_panel(b, n); break;
        CASE(1) CASE(2) CASE(3) CASE(4)
#if ROWS > 4
        CASE(5) CASE(6)
#endif
#if ROWS > 6
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
#undef CASE
    }
}

/* Rows that are worked on together: what they read stays in the second-level cache while all panels pass by. */
static int row_blocks(const matrix *w, int rows, int threads) {
    const int panels = (w->n + PANEL - 1) / PANEL, least = (rows + LEAST_ROWS - 1) / LEAST_ROWS;
    int most = INPUT_BYTES / (4 * w->k) / ROWS * ROWS;
    if (most < LEAST_ROWS) most = LEAST_ROWS;
    int blocks = (rows + most - 1) / most;
    while (blocks < least && blocks * panels < 4 * threads) blocks++; /* everybody gets something */
    return blocks;
}

int linear_f32_tasks(const matrix *w, int rows, int threads) {
    return (w->n + PANEL - 1) / PANEL * row_blocks(w, rows, threads);
}

static void look_ahead(ahead *a, const op *o, const step *s, int rows, int threads, int task, const worker *w) {
    const int total = linear_f32_tasks(o->weight, rows, threads), mine = w->index % w->segments;
    const int first = segment_begin(total, mine, w->segments), end = segment_begin(total, mine + 1, w->segments);
    const matrix *m = task + 1 < end ? o->weight : o->after;
    if (m && m->format == FORMAT_F32) {
        const int panels = (m->n + PANEL - 1) / PANEL;
        const int next = task + 1 < end ? task + 1 : segment_begin(linear_f32_tasks(m, rows, threads), mine, w->segments);
        a->panel = (const char *)m->data + sizeof(float) * PANEL * m->k * (next % panels);
        a->panel_pages = (int)((sizeof(float) * PANEL * m->k + PAGE - 1) / PAGE);
    }
    if (o->share == 0.0f || task < first || task >= end) return;
    int oldest, newest;
    attend_blocks(s, w, &oldest, &newest);
    a->s = s, a->layer = o->layer;
    a->block_pages = (int)((sizeof(float) * s->shape.block_tokens * s->shape.head_dim + PAGE - 1) / PAGE);
    const int each = 2 * s->shape.kv_heads * a->block_pages;
    const float units = (float)(newest - oldest) * (float)each, size = units * o->share;
    const float begin = (float)oldest * (float)each + units - size;
    a->unit = (int)(begin + size * (float)(task - first) / (float)(end - first));
    a->end = (int)(begin + size * (float)(task - first + 1) / (float)(end - first));
}

/* Tasks of one block of rows follow each other. */
void linear_f32_task(const op *o, const step *s, int rows, int threads, int task, const worker *mine) {
    const matrix *w = o->weight;
    int blocks = row_blocks(w, rows, threads), panels = (w->n + PANEL - 1) / PANEL, panel = task % panels;
    int each = ((rows + blocks - 1) / blocks + ROWS - 1) / ROWS * ROWS;
    int first = task / panels * each, last = first + each < rows ? first + each : rows;
    int column = panel * PANEL;
    block b = {
        .w = (const float *)w->data + (size_t)panel * PANEL * w->k,
        .bias = w->bias ? w->bias + column : NULL,
        .x_stride = s->strides[o->in], .y_stride = s->strides[o->out],
        .k = w->k, .column = column, .columns = w->n - column < PANEL ? w->n - column : PANEL,
        .flags = o->flags, .act = o->act, .panel = panel, .panels = panels,
    };
    ahead next = {0};
    if (last - first > ROWS) look_ahead(&next, o, s, rows, threads, task, mine);
    b.ahead = &next;
    for (int row = first; row < last; row += ROWS) {
        b.x = s->buffers[o->in] + row * b.x_stride;
        b.y = s->buffers[o->out] + row * b.y_stride;
        some_rows(&b, last - row < ROWS ? last - row : ROWS);
    }
}

int millpond_panel(void) { return PANEL; }

/* Pack `count` rows of a plain matrix [..][k] as outputs `first` and on into panels of `to` (zeroed, padded to PANEL). */
void millpond_pack_f32(float *to, const float *from, int first, int count, int k) {
    for (int row = first; row < first + count; row++, from += k) {
        float *panel = to + (size_t)(row / PANEL) * PANEL * k + row % PANEL;
        for (int i = 0; i < k; i++) panel[(size_t)i * PANEL] = from[i];
    }
}

/* One row of a packed matrix: how a tied head serves as the embedding, too. */
void unpack_row_f32(const matrix *w, int row, float *out) {
    const float *panel = (const float *)w->data + (size_t)(row / PANEL) * PANEL * w->k + row % PANEL;
    for (int i = 0; i < w->k; i++) out[i] = panel[(size_t)i * PANEL];
}
