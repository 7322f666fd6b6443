/* y = x W^T (+ bias) with 8-bit integers: weights with one scale per output, inputs with one scale per row and GROUP
 * values, taken when the row is there; a few large values then cost their neighbours precision, and not the whole row.
 * Sums of a group are exact integers and groups are added in order, so no row can feel another one.
 *
 * W lies as [n / 16][padded / 4][16][4]: what both AMX tiles and VNNI registers want. Rows are padded to 64 with
 * zeros. A bias must be padded to 32 outputs, as scale and sums are. */
#include "kernels.h"

#include <math.h>
#include <string.h>

#if defined(__AMX_INT8__)
#include <immintrin.h>
#endif
#if defined(__linux__) && defined(__AMX_INT8__) && defined(__AMX_TILE__)
#define HAS_AMX 1
#include <sys/syscall.h>
#include <unistd.h>
#else
#define HAS_AMX 0
#endif

enum { TILE = 16, DEPTH = 64, I8_BLOCK = 128 };

int millpond_group(void) { return GROUP; }

#if HAS_AMX
enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };

int amx_usable(void) {
    static int known; /* 0 unasked, 1 yes, 2 no; asking twice does no harm */
    if (!known) known = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) ? 2 : 1;
    return known == 1;
}

void amx_enter(void) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    if (!amx_usable()) return;
    for (int i = 0; i < 8; i++) config.bytes[i] = 64, config.rows[i] = 16;
    __asm__ volatile("" : : "r"(&config) : "memory"); /* the compiler does not see that all of it is read */
    _tile_loadconfig(&config);
}

void amx_leave(void) {
    if (amx_usable()) _tile_release();
}

/* 16 or 32 rows times 32 outputs over `depth` inputs into `sums` [32][32]. Rows beyond the last are computed, too. */
static void amx_sums(const int8_t *x, size_t stride, const int8_t *w, int padded, int depth, int rows, int32_t *sums) {
    const int8_t *w1 = w + (size_t)TILE * padded, *x1 = x + TILE * stride;
    const size_t ahead = (size_t)PAIR * padded;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int k = 0; k < depth; k += DEPTH) {
        for (int line = 0; line < 1024; line += 64) {
            __builtin_prefetch(w + ahead + (size_t)k * TILE + line);
            __builtin_prefetch(w1 + ahead + (size_t)k * TILE + line);
        }
        _tile_loadd(6, w + (size_t)k * TILE, 64);
        _tile_loadd(7, w1 + (size_t)k * TILE, 64);
        _tile_loadd(4, x + k, stride);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        if (rows > TILE) {
            _tile_loadd(5, x1 + k, stride);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        }
    }
    _tile_stored(0, sums, PAIR * 4);
    _tile_stored(1, sums + TILE, PAIR * 4);
    if (rows > TILE) {
        _tile_stored(2, sums + TILE * PAIR, PAIR * 4);
        _tile_stored(3, sums + TILE * PAIR + TILE, PAIR * 4);
    }
}
#else
int amx_usable(void) { return 0; }
void amx_enter(void) {}
void amx_leave(void) {}
static void amx_sums(const int8_t *x, size_t stride, const int8_t *w, int padded, int depth, int rows, int32_t *sums) {
    (void)x, (void)stride, (void)w, (void)padded, (void)depth, (void)rows, (void)sums;
}
#endif

/* One row times 16 outputs. */
#if defined(__AVX512VNNI__)
static void row_sums(const int8_t *x, const int8_t *w, const int32_t *weight_sums, int depth, int32_t *sums) {
    __m512i total = _mm512_setzero_si512(), more = total;
    const __m512i shift = _mm512_set1_epi8((char)0x80); /* the instruction wants one side without sign */
    for (int k = 0; k < depth; k += 8) {
        int32_t four, next;
        memcpy(&four, x + k, 4), memcpy(&next, x + k + 4, 4);
        __m512i value = _mm512_xor_si512(_mm512_set1_epi32(four), shift);
        __m512i second = _mm512_xor_si512(_mm512_set1_epi32(next), shift);
        total = _mm512_dpbusd_epi32(total, value, _mm512_loadu_si512(w + (size_t)k * TILE));
        more = _mm512_dpbusd_epi32(more, second, _mm512_loadu_si512(w + (size_t)(k + 4) * TILE));
        __builtin_prefetch(w + (size_t)k * TILE + 4096);
        __builtin_prefetch(w + (size_t)k * TILE + 4160);
    }
    __m512i excess = _mm512_slli_epi32(_mm512_loadu_si512(weight_sums), 7);
    _mm512_storeu_si512(sums, _mm512_sub_epi32(_mm512_add_epi32(total, more), excess));
}
#else
static void row_sums(const int8_t *x, const int8_t *w, const int32_t *weight_sums, int depth, int32_t *sums) {
    int32_t total[TILE] = {0};
    (void)weight_sums;
    for (int k = 0; k < depth; k += 4, w += 4 * TILE)
        for (int c = 0; c < TILE; c++)
            total[c] += x[k] * w[4 * c] + x[k + 1] * w[4 * c + 1] + x[k + 2] * w[4 * c + 2] + x[k + 3] * w[4 * c + 3];
    memcpy(sums, total, sizeof total);
}
#endif

static void finish(const op *o, const step *s, int row, int column, const float *sums) {
    const matrix *w = o->weight;
    float *out = s->buffers[o->out] + (size_t)row * s->strides[o->out], *y = out + column, part[PAIR];
    for (int c = 0; c < PAIR; c++) part[c] = sums[c] * w->scale[column + c];
    if (w->bias)
        for (int c = 0; c < PAIR; c++) part[c] += w->bias[column + c];
    int columns = w->n - column < PAIR ? w->n - column : PAIR;
    if (o->flags & FLAG_BEST) {
        vec whole[PAIR / LANES];
        for (int i = 0; i < PAIR / LANES; i++) whole[i] = load(part + i * LANES);
        const int panel = column / PAIR;
        best_of(whole, PAIR / LANES, column, columns, out + panel, (int32_t *)(out + panels_of(w)) + panel);
    } else if (o->flags & FLAG_ADD)
        for (int c = 0; c < columns; c++) y[c] += part[c];
    else
        memcpy(y, part, sizeof(float) * (size_t)columns);
}

/* total += sums * scale, for the 32 outputs of one row. */
static inline void add_scaled(float *total, const int32_t *sums, float scale) {
    for (int c = 0; c < PAIR; c += LANES) {
        ivec whole;
        memcpy(&whole, sums + c, sizeof whole);
        store(total + c, load(total + c) + __builtin_convertvector(whole, vec) * scale);
    }
}

int linear_i8_tasks(const matrix *w, int rows) {
    return (w->n + PAIR - 1) / PAIR * ((rows + I8_BLOCK - 1) / I8_BLOCK);
}

/* `count` rows times 32 outputs into `total` [32][32]. */
static void pair_of_panels(const matrix *w, const step *s, int row, int count, int column, float *total) {
    const int8_t *panel = (const int8_t *)w->data + (size_t)column * w->padded;
    const size_t stride = s->quantized_stride, scales = (size_t)scales_of(s);
    const int outputs = (w->n + PAIR - 1) / PAIR * PAIR;
    int32_t sums[PAIR * PAIR] __attribute__((aligned(64)));
    memset(total, 0, sizeof(float) * PAIR * (size_t)count);
    for (int k = 0, group = 0; k < w->padded; k += GROUP, group++) {
        const int depth = w->padded - k < GROUP ? w->padded - k : GROUP;
        const int8_t *x = s->quantized + row * stride + k, *tiles = panel + (size_t)k * TILE;
        const float *scale = s->quantized_scale + row * scales + group;
        const int32_t *weight_sums = w->sums + (size_t)group * outputs + column;
        if (amx_usable()) amx_sums(x, stride, tiles, w->padded, depth, count, sums);
        for (int r = 0; r < count; r++) {
            int32_t *mine = sums + r * PAIR;
            if (!amx_usable()) {
                row_sums(x + r * stride, tiles, weight_sums, depth, mine);
                row_sums(x + r * stride, tiles + (size_t)TILE * w->padded, weight_sums + TILE, depth, mine + TILE);
            }
            add_scaled(total + r * PAIR, mine, scale[r * scales]);
        }
    }
}

void linear_i8_task(const op *o, const step *s, int rows, int task) {
    int blocks = (rows + I8_BLOCK - 1) / I8_BLOCK, column = task / blocks * PAIR;
    int first = task % blocks * I8_BLOCK, last = first + I8_BLOCK < rows ? first + I8_BLOCK : rows;
    float total[PAIR * PAIR] __attribute__((aligned(64)));
    for (int row = first; row < last; row += PAIR) {
        int count = last - row < PAIR ? last - row : PAIR;
        pair_of_panels(o->weight, s, row, count, column, total);
        for (int r = 0; r < count; r++) finish(o, s, row + r, column, total + r * PAIR);
    }
}

/* To the nearest integer, for |x| below 2^22: the sum's last bits are the integer. */
static inline ivec nearest(vec x) {
    const float shift = 12582912.0f;
    return (ivec)(x + shift) - (ivec)splat(shift);
}

/* `n` numbers to integers of -127..127 and the scale that turns them back. */
static void quantize_group(const float *x, int n, int8_t *out, float *scale) {
    typedef int8_t bytes __attribute__((vector_size(LANES)));
    const int whole = n / LANES * LANES;
    vec high = (vec){0}, sum = (vec){0};
    float most = 0.0f, rest = 0.0f;
    for (int i = 0; i < whole; i += LANES) {
        vec size = (vec)((ivec)load(x + i) & INT32_MAX);
        ivec more = size > high;
        high = (vec)(((ivec)size & more) | ((ivec)high & ~more));
        sum += size * 0.0f; /* stays 0 unless something is not finite */
    }
    for (int j = 0; j < LANES; j++) most = high[j] > most ? high[j] : most, rest += sum[j];
    for (int i = whole; i < n; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most, rest += x[i] * 0.0f;
    if (rest != 0.0f) {
        memset(out, 0, (size_t)n);
        *scale = NAN; /* what is not a number stays none: the sampler finds it */
        return;
    }
    const float factor = most > 0.0f ? 127.0f / most : 0.0f;
    for (int i = 0; i < whole; i += LANES) {
        bytes narrow = __builtin_convertvector(nearest(load(x + i) * factor), bytes);
        memcpy(out + i, &narrow, LANES);
    }
    for (int i = whole; i < n; i++) out[i] = (int8_t)nearest(splat(x[i] * factor))[0];
    *scale = most / 127.0f;
}

/* A row, group by group; zeros up to `padded`. */
void quantize_row(const float *x, int n, int padded, int8_t *out, float *scale) {
    for (int k = 0; k < n; k += GROUP) quantize_group(x + k, n - k < GROUP ? n - k : GROUP, out + k, scale++);
    memset(out + n, 0, (size_t)(padded - n));
}

/* Pack a plain matrix [n][k] into `to` (zeroed); `sums` [groups][n padded to 32] are of each group's weights. */
void millpond_pack_i8(int8_t *to, float *scale, int32_t *sums, const float *from, int n, int k) {
    const int padded = (k + DEPTH - 1) / DEPTH * DEPTH, outputs = (n + PAIR - 1) / PAIR * PAIR;
    int8_t line[padded];
    memset(line, 0, sizeof line);
    for (int row = 0; row < n; row++, from += k) {
        quantize_group(from, k, line, scale + row);
        int8_t *tile = to + (size_t)(row / TILE) * TILE * padded + row % TILE * 4;
        for (int i = 0; i < padded; i += 4) memcpy(tile + (size_t)i * TILE, line + i, 4);
        for (int i = 0; i < k; i++) sums[(size_t)(i / GROUP) * outputs + row] += line[i];
    }
}

void unpack_row_i8(const matrix *w, int row, float *out) {
    const int8_t *tile = (const int8_t *)w->data + (size_t)(row / TILE) * TILE * w->padded + row % TILE * 4;
    for (int i = 0; i < w->k; i++) out[i] = (float)tile[(size_t)(i & ~3) * TILE + (i & 3)] * w->scale[row];
}
