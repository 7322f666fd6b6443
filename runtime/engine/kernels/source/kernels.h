/* Shared by all kernels: the vector width of this machine, and the shape of a step.
 *
 * Rule that all files keep: what is computed for one row depends on that row alone, in one fixed order, whatever rows
 * are beside it. Results are therefore the same bit for bit in any batch.
 */
#ifndef MILLPOND_KERNELS_H
#define MILLPOND_KERNELS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#define ROWS 12 /* rows of one register block: 12 x 2 sums and 3 operands fill 32 registers */
#elif defined(__AVX2__)
#define LANES 8
#define ROWS 6
#else
#define LANES 4
#define ROWS 4
#endif
#define GROUP 192          /* quantized inputs that share a scale: three tiles deep */
#define PANEL (2 * LANES) /* output columns of a float32 panel */
#define PAIR 32           /* output columns that an 8-bit task computes */

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef float vec_u __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));

static inline vec load(const float *p) { return *(const vec_u *)p; }
static inline void store(float *p, vec v) { *(vec_u *)p = v; }
static inline vec splat(float x) { return x - (vec){0}; }
static inline vec choose(ivec where, vec a, vec b) { return (vec)(((ivec)a & where) | ((ivec)b & ~where)); }

enum { OP_EMBED, OP_NORM, OP_LINEAR, OP_ROPE, OP_ATTEND, OP_GATE, OP_QUANTIZE, OP_GATHER, OP_ARGMAX, OP_BEST };
enum { FORMAT_F32, FORMAT_I8 };
/* ADD: add to what is there. QUANTIZE: leave the row quantized as well. GATE: panels of float32 hold LANES gates and their
 * LANES ups; act(gate) * up is left. BEST: of each panel only the largest output is left, and its place: `panels_of`
 * numbers and as many places. */
enum { FLAG_ADD = 1, FLAG_QUANTIZE = 2, FLAG_GATE = 4, FLAG_BEST = 8 };
enum { ACT_SILU, ACT_GELU_TANH, ACT_GELU };

/* A packed matrix of `n` outputs and `k` inputs. I8: `scale` per output, `sums` per group and output, `k` padded to 64. */
typedef struct {
    int32_t format, n, k, padded;
    const void *data;
    const float *scale;
    const int32_t *sums;
    const float *bias;
} matrix;

/* One operation of a program. Buffers are numbers into `step.buffers`; what each field means stands with the kernel.
 * `after` is the matrix that the next product reads. While a product computes, its threads ask for the keys and values of
 * `layer`: for that share of what each will attend to that comes first. */
typedef struct {
    int32_t kind, in, out, flags;
    int32_t n, layer, window, act;
    float eps, scale;
    float share, unused;
    const matrix *weight;
    const float *norm, *key_norm;
    const matrix *after;
} op;

typedef struct {
    int32_t heads, kv_heads, head_dim, rotary_dim, block_tokens;
    int64_t slots; /* of one layer's keys */
    float *cache;  /* [layers][2][kv_heads][slots][head_dim]; keys of a block as [head_dim][block_tokens] */
    const float *cos, *sin; /* [positions][rotary_dim]; the first half of sin is negated */
} attention_shape;

typedef struct {
    int32_t first, start, count, table; /* rows first.., positions start.., blocks at tables[table..] */
} span;

/* One step. `quantized` has rows of `quantized_stride` bytes with one scale for each GROUP of them. */
typedef struct {
    int32_t rows, num_spans, num_single, num_picks; /* the first `num_single` spans have one row each */
    int32_t quantized_stride, unused;
    const int32_t *tokens, *positions, *row_span, *tables, *picks;
    const span *spans;
    float **buffers;
    const int32_t *strides;
    int8_t *quantized;
    float *quantized_scale;
    int32_t *argmax;
    uint8_t *finite;
    int64_t *nanoseconds; /* NULL, or where the time of each operation is added to */
    attention_shape shape;
} step;

/* Pieces of a row of outputs that FLAG_BEST tells the largest of. */
static inline int panels_of(const matrix *w) {
    const int columns = w->format == FORMAT_I8 ? PAIR : PANEL;
    return (w->n + columns - 1) / columns;
}

static inline int scales_of(const step *s) { return (s->quantized_stride + GROUP - 1) / GROUP; }

typedef struct {
    char *scratch;
    size_t scratch_bytes;
    int index, segments;
} worker;

/* First task of one of the parts that threads have of `total` tasks. */
static inline int segment_begin(int total, int segment, int segments) { return (int)((int64_t)total * segment / segments); }

void *worker_scratch(worker *w, size_t bytes);
void amx_enter(void);
void amx_leave(void);
int amx_usable(void);

int linear_tasks(const matrix *w, int rows, int threads);
void linear_task(const op *o, const step *s, int rows, int threads, int task, worker *w);
void quantize_row(const float *x, int n, int padded, int8_t *out, float *scale);
void embed_row(const op *o, const step *s, int row);
void norm_row(const op *o, const step *s, int row);
void gate_row(const op *o, const step *s, int row);
void rope_row(const op *o, const step *s, int row);
void rope_heads(const op *o, const step *s, int row, int first, int count);
void gather_row(const op *o, const step *s, int row);
void argmax_row(const op *o, const step *s, int row);
void best_row(const op *o, const step *s, int row);
int attend_tasks(const step *s);
void attend_blocks(const step *s, const worker *w, int *first, int *last);
void attend_task(const op *o, const step *s, int task, worker *w);

static inline float largest(vec x) {
#if LANES == 16
    return _mm512_reduce_max_ps((__m512)x);
#else
    float top = x[0];
    for (int j = 1; j < LANES; j++) top = x[j] > top ? x[j] : top;
    return top;
#endif
}

/* The first largest of `count` vectors of outputs, of which the last `beyond` numbers are none, becomes `value` and
 * `place`; a value that is no number says that one of them is not finite. */
static inline void best_of(const vec *x, int count, int column, int columns, float *value, int32_t *place) {
    float part[PAIR], top = -INFINITY, rest = 0.0f;
    vec sum = (vec){0}, high = splat(-INFINITY);
    for (int i = 0; i < count; i++) {
        sum += x[i] * 0.0f; /* stays 0 unless something is not finite */
        store(part + i * LANES, x[i]);
    }
    for (int c = columns; c < count * LANES; c++) part[c] = -INFINITY;
    for (int i = 0; i < count; i++) {
        const vec more = columns == count * LANES ? x[i] : load(part + i * LANES);
        high = choose(more > high, more, high);
    }
    top = largest(high);
    for (int j = 0; j < LANES; j++) rest += sum[j];
    int at = 0;
#if LANES == 16
    for (int i = count; i-- > 0;) {
        const __mmask16 same = _mm512_cmpeq_ps_mask(_mm512_loadu_ps(part + i * LANES), _mm512_set1_ps(top));
        if (same) at = i * LANES + __builtin_ctz(same);
    }
#else
    while (at < columns - 1 && part[at] != top) at++;
#endif
    *value = rest == 0.0f ? top : NAN;
    *place = column + at;
}

/* e^x, to within about one unit in the last place, for x <= 88; 0 far below. */
static inline vec vector_exp(vec x) {
    const vec low = splat(-87.0f);
    ivec tiny = x < low;
    x = (vec)(((ivec)x & ~tiny) | ((ivec)low & tiny));
    vec n = x * 1.44269504088896341f;
    ivec whole = __builtin_convertvector(n + (vec)(((ivec)splat(0.5f)) | ((ivec)n & INT32_MIN)), ivec);
    n = __builtin_convertvector(whole, vec);
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    vec power = (vec)((whole + 127) << 23);
    return (vec)((ivec)(p * power) & ~tiny);
}

static inline vec clamp(vec x, float limit) {
    ivec over = x > limit, under = x < -limit;
    ivec kept = (ivec)x & ~over & ~under;
    return (vec)(kept | ((ivec)splat(limit) & over) | ((ivec)splat(-limit) & under));
}

static inline vec activate(vec x, int kind) {
    vec inner = kind == ACT_SILU ? x : 1.5957691216f * (x + 0.044715f * x * x * x); /* gelu(x) = x sigmoid(2 u) */
    return x / (1.0f + vector_exp(clamp(-inner, 87.0f)));
}

#endif
