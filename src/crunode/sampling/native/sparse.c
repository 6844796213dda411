/* Products with examples x of which most entries are zero, for several chains:
 *
 *   rows:     y = x w     each row of y is a sum of few rows of w,
 *   columns:  w = x' y    each row of y is added to few rows of w,
 *
 * with x (chain, row, column), w (chain, column, unit) and y (chain, row, unit). The non-zero entries of x are found
 * anew at each call, so that results are right whatever x holds. Units are treated LANES at a time, for which w lies
 * column by column in a block that the first-level cache holds.
 */
#ifndef REAL /* the file includes itself, once for each precision */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANES 64 /* the same in sparse.py */
#define TILE 4   /* rows and columns that are transposed in registers */
#define LOOK 32  /* entries that are passed over at once when all are zero */

typedef struct {
    size_t chains, rows, columns, units;
    size_t x_chain, x_row;            /* numbers from one to the next; columns of x lie next to each other */
    size_t w_chain, w_column, w_unit; /* one of the last two is 1 */
    size_t y_chain, y_row, y_unit;    /* as of w; the last is 1 where y is written */
    uint32_t *ends;                   /* (rows): number of entries up to the end of each row of x */
    uint32_t *entries;                /* (rows * columns): where these are in their row */
    void *block;                      /* (columns, LANES) */
    void *turned;                     /* (rows, LANES) */
} Job;

#define REAL float
#define NAME(name) name##_float32
#include __FILE__
#undef REAL
#undef NAME
#define REAL double
#define NAME(name) name##_float64
#include __FILE__

#else

typedef REAL NAME(Vector) __attribute__((vector_size(64), aligned(sizeof(REAL)), may_alias));
#define VECTOR NAME(Vector)
#define VECTORS (LANES * sizeof(REAL) / 64)

static void NAME(find)(const REAL *x, const Job *job) {
    uint32_t n = 0;
    for (size_t b = 0; b < job->rows; b++, x += job->x_row) {
        for (size_t d = 0; d < job->columns;) {
            const size_t end = d + LOOK <= job->columns ? d + LOOK : job->columns;
            if (end == d + LOOK) {
                int any = 0;
                for (size_t k = 0; k < LOOK; k++) any |= x[d + k] != 0;
                if (!any) d = end;
            }
            for (; d < end; d++) { /* without a branch, which nothing could predict */
                job->entries[n] = (uint32_t)d;
                n += x[d] != 0;
            }
        }
        job->ends[b] = n;
    }
}

/* to[j, i] = from[i, j] */
static void NAME(transpose)(const REAL *restrict from, size_t from_row, REAL *restrict to, size_t to_row, size_t rows,
                            size_t columns) {
    const size_t whole = rows / TILE * TILE;
    size_t j = 0;
    for (; j + TILE <= columns; j += TILE) {
        for (size_t i = 0; i < whole; i += TILE) {
            REAL tile[TILE][TILE];
            for (int a = 0; a < TILE; a++)
                for (int c = 0; c < TILE; c++) tile[c][a] = from[(i + a) * from_row + j + c];
            for (int c = 0; c < TILE; c++)
                for (int a = 0; a < TILE; a++) to[(j + c) * to_row + i + a] = tile[c][a];
        }
        for (size_t i = whole; i < rows; i++)
            for (int c = 0; c < TILE; c++) to[(j + c) * to_row + i] = from[i * from_row + j + c];
    }
    for (; j < columns; j++)
        for (size_t i = 0; i < rows; i++) to[j * to_row + i] = from[i * from_row + j];
}

void NAME(rows)(const REAL *x, const REAL *w, REAL *y, const Job *job) {
    for (size_t chain = 0; chain < job->chains; chain++, x += job->x_chain) {
        if (chain == 0 || job->x_chain) NAME(find)(x, job);
        for (size_t h = 0; h < job->units; h += LANES) {
            const size_t width = job->units - h < LANES ? job->units - h : LANES;
            const REAL *from = w + chain * job->w_chain + h * job->w_unit;
            REAL *to = y + chain * job->y_chain + h;
            const uint32_t *entry = job->entries;
            size_t stride = job->w_column;
            if (job->w_unit != 1) {
                NAME(transpose)(from, job->w_unit, job->block, LANES, width, job->columns);
                from = job->block;
                stride = LANES;
            }
            for (size_t b = 0; b < job->rows; b++, to += job->y_row) {
                const REAL *values = x + b * job->x_row;
                const uint32_t *end = job->entries + job->ends[b];
                if (width == LANES) {
                    VECTOR sums[VECTORS] = {0};
                    for (; entry < end; entry++) {
                        const REAL value = values[*entry];
                        const VECTOR *row = (const VECTOR *)(from + *entry * stride);
                        for (int k = 0; k < (int)VECTORS; k++) sums[k] += value * row[k];
                    }
                    for (int k = 0; k < (int)VECTORS; k++) ((VECTOR *)to)[k] = sums[k];
                } else {
                    memset(to, 0, width * sizeof(REAL));
                    for (; entry < end; entry++)
                        for (size_t k = 0; k < width; k++) to[k] += values[*entry] * from[*entry * stride + k];
                }
            }
        }
    }
}

void NAME(columns)(const REAL *x, REAL *w, const REAL *y, const Job *job) {
    for (size_t chain = 0; chain < job->chains; chain++, x += job->x_chain) {
        if (chain == 0 || job->x_chain) NAME(find)(x, job);
        for (size_t h = 0; h < job->units; h += LANES) {
            const size_t width = job->units - h < LANES ? job->units - h : LANES;
            const REAL *from = y + chain * job->y_chain + h * job->y_unit;
            REAL *to = w + chain * job->w_chain + h * job->w_unit;
            REAL *block = job->w_unit == 1 ? to : job->block;
            const size_t stride = job->w_unit == 1 ? job->w_column : LANES;
            const uint32_t *entry = job->entries;
            size_t next = job->y_row;
            if (job->y_unit != 1) {
                NAME(transpose)(from, job->y_unit, job->turned, LANES, width, job->rows);
                from = job->turned;
                next = LANES;
            }
            for (size_t d = 0; d < job->columns; d++) memset(block + d * stride, 0, width * sizeof(REAL));
            for (size_t b = 0; b < job->rows; b++, from += next) {
                const REAL *values = x + b * job->x_row;
                const uint32_t *end = job->entries + job->ends[b];
                if (width == LANES) {
                    for (; entry < end; entry++) {
                        const REAL value = values[*entry];
                        VECTOR *row = (VECTOR *)(block + *entry * stride);
                        for (int k = 0; k < (int)VECTORS; k++) row[k] += value * ((const VECTOR *)from)[k];
                    }
                } else {
                    for (; entry < end; entry++)
                        for (size_t k = 0; k < width; k++) block[*entry * stride + k] += values[*entry] * from[k];
                }
            }
            if (block != to) NAME(transpose)(block, LANES, to, job->w_unit, job->columns, width);
        }
    }
}
#undef VECTOR
#undef VECTORS
#endif
