/* Shared by all kernels: the vector width of this machine, and the shape of a step.
 *
 * Rule that all files keep: what is computed for one row depends on that row alone, in one fixed order, whatever rows
 * are beside it. Results are therefore the same bit for bit in any batch.
 */
#ifndef MILLPOND_KERNELS_H
#define MILLPOND_KERNELS_H

#include <stddef.h>
#include <stdint.h>

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

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef float vec_u __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));

static inline vec load(const float *p) { return *(const vec_u *)p; }
static inline void store(float *p, vec v) { *(vec_u *)p = v; }
static inline vec splat(float x) { return x - (vec){0}; }

enum { OP_EMBED, OP_NORM, OP_LINEAR, OP_ROPE, OP_ATTEND, OP_GATE, OP_QUANTIZE, OP_GATHER, OP_ARGMAX };
enum { FORMAT_F32, FORMAT_I8 };
enum { FLAG_ADD = 1, FLAG_QUANTIZE = 2 }; /* add to what is there; leave the row quantized as well */
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
 * `after` is the matrix that the next product reads. */
typedef struct {
    int32_t kind, in, out, flags;
    int32_t n, layer, window, act;
    float eps, scale;
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

static inline int scales_of(const step *s) { return (s->quantized_stride + GROUP - 1) / GROUP; }

typedef struct {
    char *scratch;
    size_t scratch_bytes;
    int index;
} worker;

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
void gather_row(const op *o, const step *s, int row);
void argmax_row(const op *o, const step *s, int row);
int attend_tasks(const step *s);
void attend_task(const op *o, const step *s, int task, worker *w);

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

#endif
