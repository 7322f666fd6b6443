/* y = x W^T (+ bias) in float32. W lies in panels of PANEL outputs, [n / PANEL][k][PANEL]: a panel is read once from
 * memory and serves all rows from the cache. Each sum runs over k in order. */
#include "kernels.h"

enum { AHEAD = 24 * PANEL, INPUT_BYTES = 1 << 20, LEAST_ROWS = 4 * ROWS, LINE = 64, PAGE = 4096, PARTS = 3 };

/* What will be read after this task, asked for page by page while it computes: with a dozen rows or more memory would
 * be idle, and attention would wait for it later. First the panel that this thread probably takes next, then this
 * task's share of keys and values. */
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
    int k, columns, add;
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
    float *y = b->y + row * b->y_stride;
    if (b->bias) v0 += load(b->bias), v1 += load(b->bias + LANES);
    if (b->columns == PANEL) {
        if (b->add) v0 += load(y), v1 += load(y + LANES);
        store(y, v0), store(y + LANES, v1);
        return;
    }
    float part[PANEL];
    store(part, v0), store(part + LANES, v1);
    for (int c = 0; c < b->columns; c++) y[c] = b->add ? y[c] + part[c] : part[c];
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

/* `o->window` says which part of layer `o->layer` is asked for during this product, 0 for none. */
static void look_ahead(ahead *a, const op *o, const step *s, int panel, int panels, int threads, int task) {
    const matrix *w = panel + threads < panels ? o->weight : o->after;
    const int next = panel + threads < panels ? panel + threads : panel + threads - panels;
    if (w && w->format == FORMAT_F32 && next < (w->n + PANEL - 1) / PANEL) {
        a->panel = (const char *)w->data + sizeof(float) * PANEL * w->k * next;
        a->panel_pages = (int)((sizeof(float) * PANEL * w->k + PAGE - 1) / PAGE);
    }
    if (!o->window || !s->num_single || task >= panels) return;
    const span *longest = s->spans + s->num_single - 1;
    const int blocks = longest->table + longest->start / s->shape.block_tokens + 1;
    a->s = s, a->layer = o->layer;
    a->block_pages = (int)((sizeof(float) * s->shape.block_tokens * s->shape.head_dim + PAGE - 1) / PAGE);
    const int64_t units = (int64_t)blocks * 2 * s->shape.kv_heads * a->block_pages;
    const int64_t begin = units * (o->window - 1) / PARTS, end = units * o->window / PARTS;
    a->unit = (int)(begin + (end - begin) * task / panels);
    a->end = (int)(begin + (end - begin) * (task + 1) / panels);
}

/* Tasks of one block of rows follow each other. */
void linear_f32_task(const op *o, const step *s, int rows, int threads, int task) {
    const matrix *w = o->weight;
    int blocks = row_blocks(w, rows, threads), panels = (w->n + PANEL - 1) / PANEL, panel = task % panels;
    int each = ((rows + blocks - 1) / blocks + ROWS - 1) / ROWS * ROWS;
    int first = task / panels * each, last = first + each < rows ? first + each : rows;
    int column = panel * PANEL;
    block b = {
        .w = (const float *)w->data + (size_t)panel * PANEL * w->k,
        .bias = w->bias ? w->bias + column : NULL,
        .x_stride = s->strides[o->in], .y_stride = s->strides[o->out],
        .k = w->k, .columns = w->n - column < PANEL ? w->n - column : PANEL, .add = o->flags & FLAG_ADD,
    };
    ahead next = {0};
    if (last - first > ROWS) look_ahead(&next, o, s, panel, panels, threads, task);
    b.ahead = &next;
    for (int row = first; row < last; row += ROWS) {
        b.x = s->buffers[o->in] + row * b.x_stride;
        b.y = s->buffers[o->out] + row * b.y_stride + column;
        some_rows(&b, last - row < ROWS ? last - row : ROWS);
    }
}

int millpond_panel(void) { return PANEL; }

/* Pack rows `first .. first + count` of a plain matrix [n][k] into panels of `to` (zeroed, n padded to PANEL). */
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
