/* One step of SGLD or SGHMC for several chains in a single pass over their parameters:
 *
 *   move = - (eps/2) (g + gamma (w - c)) + root x,   distance2 = |w - c|^2 at the position left,
 *   SGLD: w <- w + move,   SGHMC: v <- keep v + move, w <- w + v,
 *
 * with grid noise x = a v + b v^3. The odd whole numbers v are those of crunode.core.rng, bit for bit: numpy's SFC64,
 * seeded by numpy's SeedSequence.
 */
#include <stddef.h>
#include <stdint.h>

#define GROUP 64    /* numbers treated together: eight words of random bits */
#define AHEAD 2     /* groups whose bits are drawn before they are needed, so that drawing and arithmetic overlap */
#define FLUSH 65536 /* numbers after which partial sums are moved on to double precision */
#define ODD UINT64_C(0x0101010101010101)

typedef struct {
    const uint32_t *pools; /* (chain, 4): SeedSequence's pool before the number of the block is mixed in */
    uint32_t constant;     /* SeedSequence's hash constant at that point */
    uint32_t block;        /* number of the block of noise */
    const int8_t *drawn;   /* (chain, row): numbers drawn beforehand, or NULL to draw them here */
    size_t row;            /* numbers from one chain to the next in `drawn` */
} Noise;

static inline uint64_t next(uint64_t s[4]) {
    uint64_t sum = s[0] + s[1] + s[3]++;
    s[0] = s[1] ^ (s[1] >> 11);
    s[1] = s[2] + (s[2] << 3);
    s[2] = ((s[2] << 24) | (s[2] >> 40)) + sum;
    return sum;
}

static inline void draw(uint64_t s[4], uint64_t *out, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = next(s) | ODD;
}

/* SeedSequence(seed, spawn_key=(..., block)).generate_state(3, uint64), then SFC64's start. */
static void seed(uint64_t s[4], const Noise *noise, size_t chain) {
    uint32_t pool[4], words[6], a = noise->constant, b = UINT32_C(0x8b51f9dd);
    for (int i = 0; i < 4; i++) {
        uint32_t value = noise->block ^ a;
        a *= UINT32_C(0x931e8875);
        value *= a;
        value ^= value >> 16;
        value = UINT32_C(0xca01f9dd) * noise->pools[4 * chain + i] - UINT32_C(0x4973f715) * value;
        pool[i] = value ^ (value >> 16);
    }
    for (int i = 0; i < 6; i++) {
        uint32_t value = pool[i % 4] ^ b;
        b *= UINT32_C(0x58f38ded);
        value *= b;
        words[i] = value ^ (value >> 16);
    }
    for (int i = 0; i < 3; i++) s[i] = words[2 * i] | (uint64_t)words[2 * i + 1] << 32;
    s[3] = 1;
    for (int i = 0; i < 12; i++) next(s);
}

/* One number: its offset from the center, its share of the distance, its move. */
#define MOVE(REAL, APPLY, i, lane, odd)                                                                             \
    {                                                                                                               \
        const REAL x = (odd), offset = p[i] - c[i];                                                                 \
        sums[lane] += offset * offset;                                                                              \
        APPLY(i, x * (linear + cubic * (x * x)) - half * (g[i] + gamma * offset))                                   \
    }

#define STRAIGHT(i, move) p[i] += move;
#define WITH_MOMENTUM(i, move) p[i] += v[i] = keep * v[i] + move;

/* `velocity` and `keep` are not looked at without momentum. */
#define STEP(NAME, REAL, APPLY)                                                                                     \
    void NAME(REAL *w, REAL *velocity, const REAL *gradient, const REAL *center, size_t chains, size_t dim,         \
              const REAL *step, const REAL *root, const REAL *precision, double kept, const double *grid,           \
              const Noise *noise, REAL *distance2) {                                                                \
        union { uint64_t words[4][GROUP / 8]; int8_t odd[4][GROUP]; } ring;                                         \
        const REAL keep = (REAL)kept;                                                                               \
        (void)keep;                                                                                                 \
        for (size_t chain = 0; chain < chains; chain++) {                                                           \
            const REAL half = step[chain] / 2, gamma = precision[chain];                                            \
            const REAL linear = root[chain] * (REAL)grid[0], cubic = root[chain] * (REAL)grid[1];                   \
            const REAL *restrict g = gradient + chain * dim, *restrict c = center;                                  \
            REAL *restrict p = w + chain * dim, *restrict v = velocity + chain * dim;                               \
            (void)v;                                                                                                \
            double total = 0;                                                                                       \
            uint64_t state[4];                                                                                      \
            seed(state, noise, chain);                                                                              \
            for (int k = 0; k < AHEAD; k++) draw(state, ring.words[k], GROUP / 8);                                  \
            for (size_t i = 0; i < dim;) {                                                                          \
                const size_t end = dim - i < FLUSH ? dim : i + FLUSH;                                               \
                REAL sums[GROUP] = {0};                                                                             \
                if (noise->drawn) {                                                                                 \
                    const int8_t *restrict odd = noise->drawn + chain * noise->row;                                 \
                    for (; i + GROUP <= end; i += GROUP)                                                            \
                        for (size_t k = 0; k < GROUP; k++) MOVE(REAL, APPLY, i + k, k, odd[i + k])                  \
                    for (; i < end; i++) MOVE(REAL, APPLY, i, 0, odd[i])                                            \
                }                                                                                                   \
                for (; i + GROUP <= end; i += GROUP) {                                                              \
                    const int8_t *restrict odd = ring.odd[i / GROUP % 4];                                           \
                    draw(state, ring.words[(i / GROUP + AHEAD) % 4], GROUP / 8);                                    \
                    for (size_t k = 0; k < GROUP; k++) MOVE(REAL, APPLY, i + k, k, odd[k])                          \
                }                                                                                                   \
                for (; i < end; i++) MOVE(REAL, APPLY, i, 0, ring.odd[i / GROUP % 4][i % GROUP])                    \
                for (int k = 0; k < GROUP; k++) total += sums[k];                                                   \
            }                                                                                                       \
            distance2[chain] = (REAL)total;                                                                         \
        }                                                                                                           \
    }

STEP(step_float32, float, STRAIGHT)
STEP(step_float64, double, STRAIGHT)
STEP(momentum_float32, float, WITH_MOMENTUM)
STEP(momentum_float64, double, WITH_MOMENTUM)
