/* What happens to one row by itself: lookup, norms, rotation, gates, arg-max. */
#include "kernels.h"

#include <math.h>
#include <string.h>

int linear_f32_tasks(const matrix *w, int rows, int threads);
void linear_f32_task(const op *o, const step *s, int rows, int threads, int task, const worker *w);
void unpack_row_f32(const matrix *w, int row, float *out);
int linear_i8_tasks(const matrix *w, int rows);
void linear_i8_task(const op *o, const step *s, int rows, int task);
void unpack_row_i8(const matrix *w, int row, float *out);

int linear_tasks(const matrix *w, int rows, int threads) {
    return w->format == FORMAT_I8 ? linear_i8_tasks(w, rows) : linear_f32_tasks(w, rows, threads);
}

void linear_task(const op *o, const step *s, int rows, int threads, int task, worker *w) {
    if (o->weight->format == FORMAT_I8)
        linear_i8_task(o, s, rows, task);
    else
        linear_f32_task(o, s, rows, threads, task, w);
}

static float *row_of(const step *s, int buffer, int row) {
    return s->buffers[buffer] + (size_t)row * s->strides[buffer];
}

static void quantize_if_wanted(const op *o, const step *s, int row, int n) {
    if (o->flags & FLAG_QUANTIZE)
        quantize_row(row_of(s, o->out, row), n, s->quantized_stride, s->quantized + (size_t)row * s->quantized_stride,
                     s->quantized_scale + (size_t)row * scales_of(s));
}

/* The row of a packed matrix for each token, times `scale` where that is not 0. */
void embed_row(const op *o, const step *s, int row) {
    const matrix *w = o->weight;
    float *out = row_of(s, o->out, row);
    int token = s->tokens[row];
    if (w->format == FORMAT_I8)
        unpack_row_i8(w, token, out);
    else
        unpack_row_f32(w, token, out);
    if (o->scale != 0.0f)
        for (int i = 0; i < w->k; i++) out[i] *= o->scale;
}

static void root_mean_square(const float *x, float *y, const float *weight, int n, float eps) {
    float part[16] = {0}, sum = 0.0f;
    int i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) part[j] += x[i + j] * x[i + j];
    for (; i < n; i++) sum += x[i] * x[i];
    for (int j = 0; j < 16; j++) sum += part[j];
    float factor = 1.0f / sqrtf(sum / (float)n + eps);
    for (i = 0; i < n; i++) y[i] = x[i] * factor * weight[i];
}

void norm_row(const op *o, const step *s, int row) {
    root_mean_square(row_of(s, o->in, row), row_of(s, o->out, row), o->norm, o->n, o->eps);
    quantize_if_wanted(o, s, row, o->n);
}

static void rotate(float *x, const float *cos, const float *sin, int dim) {
    const int half = dim / 2;
    int i = 0;
    for (; i + LANES <= half; i += LANES) {
        const vec a = load(x + i), b = load(x + half + i);
        store(x + i, a * load(cos + i) + b * load(sin + i));
        store(x + half + i, b * load(cos + half + i) + a * load(sin + half + i));
    }
    for (; i < half; i++) {
        const float a = x[i], b = x[half + i];
        x[i] = a * cos[i] + b * sin[i];
        x[half + i] = b * cos[half + i] + a * sin[half + i];
    }
}

/* Norm (where there is one) and rotate queries and keys in place, and put keys and values into the cache: of `count` key
 * heads and the query heads that share them. */
void rope_heads(const op *o, const step *s, int row, int first, int count) {
    const attention_shape *a = &s->shape;
    const int share = a->heads / a->kv_heads;
    const span *mine = s->spans + s->row_span[row];
    int position = s->positions[row], dim = a->head_dim;
    const float *cos = a->cos + (size_t)position * a->rotary_dim, *sin = a->sin + (size_t)position * a->rotary_dim;
    float *start = row_of(s, o->in, row), *q = start + first * share * dim;
    float *k = start + (a->heads + first) * dim, *v = k + a->kv_heads * dim;
    for (int h = 0; h < count * share; h++, q += dim) {
        if (o->norm) root_mean_square(q, q, o->norm, dim, o->eps);
        rotate(q, cos, sin, a->rotary_dim);
    }
    const size_t block = (size_t)s->tables[mine->table + position / a->block_tokens] * a->block_tokens * dim;
    const int inside = position % a->block_tokens;
    float *keys = a->cache + (size_t)o->layer * 2 * a->kv_heads * a->slots * dim;
    float *values = keys + (size_t)a->kv_heads * a->slots * dim;
    for (int h = first; h < first + count; h++, k += dim, v += dim) {
        if (o->key_norm) root_mean_square(k, k, o->key_norm, dim, o->eps);
        rotate(k, cos, sin, a->rotary_dim);
        const size_t at = (size_t)h * a->slots * dim + block;
        float *column = keys + at + inside;
        for (int d = 0; d < dim; d++) column[(size_t)d * a->block_tokens] = k[d];
        memcpy(values + at + (size_t)inside * dim, v, sizeof(float) * dim);
    }
}

/* Rows that are alone in their sequence are left to attention, which then finds them near. */
void rope_row(const op *o, const step *s, int row) { rope_heads(o, s, row, 0, s->shape.kv_heads); }

/* act(gate) * up of a row [gate, up] of 2 n; with ACT_GELU the exact error function. */
void gate_row(const op *o, const step *s, int row) {
    const float *gate = row_of(s, o->in, row), *up = gate + o->n;
    float *out = row_of(s, o->out, row);
    int i = 0;
    if (o->act == ACT_GELU)
        for (; i < o->n; i++) out[i] = 0.5f * gate[i] * (1.0f + erff(gate[i] * 0.70710678f)) * up[i];
    for (; i + LANES <= o->n; i += LANES) store(out + i, activate(load(gate + i), o->act) * load(up + i));
    for (; i < o->n; i++) out[i] = activate(splat(gate[i]), o->act)[0] * up[i];
    quantize_if_wanted(o, s, row, o->n);
}

void gather_row(const op *o, const step *s, int row) {
    memcpy(row_of(s, o->out, row), row_of(s, o->in, s->picks[row]), sizeof(float) * (size_t)o->n);
}

/* The first largest of `n` numbers, and whether all are finite. */
void argmax_row(const op *o, const step *s, int row) {
    const float *x = row_of(s, o->in, row);
    vec best = splat(-INFINITY), sum = (vec){0};
    int i = 0;
    for (; i + LANES <= o->n; i += LANES) {
        vec value = load(x + i);
        ivec more = value > best;
        best = (vec)(((ivec)value & more) | ((ivec)best & ~more));
        sum += value * 0.0f; /* stays 0 unless something is not finite */
    }
    float most = -INFINITY, rest = 0.0f;
    for (int j = 0; j < LANES; j++) most = best[j] > most ? best[j] : most, rest += sum[j];
    for (; i < o->n; i++) most = x[i] > most ? x[i] : most, rest += x[i] * 0.0f;
    s->finite[row] = rest == 0.0f;
    int at = 0;
    while (at < o->n - 1 && x[at] != most) at++;
    s->argmax[row] = at;
}

/* The best of what FLAG_BEST left of the row of a product with `o->weight`. */
void best_row(const op *o, const step *s, int row) {
    const op panels = {.in = o->in, .n = panels_of(o->weight)};
    argmax_row(&panels, s, row);
    const int32_t *places = (const int32_t *)(row_of(s, o->in, row) + panels.n);
    s->argmax[row] = places[s->argmax[row]];
}
