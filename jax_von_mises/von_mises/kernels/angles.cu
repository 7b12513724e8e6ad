// Angles of the von Mises distribution in one pass: words, sign and tail probability, quantile, direction, wrap.
//
// The functions are those of sampling/counter.py and transform.py and of the modules of numerics, with the same names;
// the constants come from numerics/coefficients.py. `python -m tools.make_kernels` compiles this file into the shipped
// angles.ptx, and `make test-kernels` executes that on a CPU.
//
// A thread draws the four angles of one group of words, 4 g to 4 g + 3 of the stream: two blocks of a cipher of two
// words, or one of four.
//
// Every multiply-add is explicit and the compiler may contract no others, so that the arithmetic does not depend on the
// compiler. The five hardware approximations come first.

#include <cstdint>
#define INLINE __device__ __forceinline__
INLINE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
INLINE float bits_float(uint32_t x) { return __uint_as_float(x); }
INLINE uint32_t float_bits(float x) { return __float_as_uint(x); }
INLINE float from_int(uint32_t x) { return __int2float_rn(static_cast<int32_t>(x)); }
INLINE float nearest(float x) { return rintf(x); }
INLINE float square_root(float x) { float y; asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
INLINE float inverse_root(float x) { float y; asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
INLINE float reciprocal(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
INLINE float exp2_of(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
INLINE float log2_of(float x) { float y; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
// NaN stays NaN.
INLINE float smaller(float a, float b) { float y; asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
INLINE float larger(float a, float b) { float y; asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); return y; }
INLINE uint32_t rotate_left(uint32_t x, int bits) { return __funnelshift_l(x, x, bits); }
// Two numbers rounded to 16 bits each, the first in the lower half.
INLINE uint32_t pair_bfloat16(float a, float b) {
  uint32_t y; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(b), "f"(a)); return y;
}
INLINE uint32_t pair_float16(float a, float b) {
  uint32_t y; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(b), "f"(a)); return y;
}
#include "tables.h"

// ---------------------------------------------------------------------------------------------------- words

struct Threefry2x32 {
  static const int KEY = 2;
  static INLINE void encrypt(const uint32_t *key, uint32_t &x0, uint32_t &x1) {
    const uint32_t schedule[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAu};
    constexpr int rotations[8] = {13, 15, 26, 6, 17, 29, 16, 24};
    x0 += schedule[0];
    x1 += schedule[1];
#pragma unroll
    for (int r = 0; r < 20; r++) {
      x0 += x1;
      x1 = rotate_left(x1, rotations[r % 8]) ^ x0;
      if (r % 4 == 3) {
        const int s = r / 4 + 1;
        x0 += schedule[s % 3];
        x1 += schedule[(s + 1) % 3] + s;
      }
    }
  }
  static INLINE void words(const uint32_t *key, uint64_t group, uint32_t *out) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
      const uint64_t block = 2 * group + j;
      out[2 * j] = static_cast<uint32_t>(block >> 32);
      out[2 * j + 1] = static_cast<uint32_t>(block);
      encrypt(key, out[2 * j], out[2 * j + 1]);
    }
  }
};

struct Threefry4x32 {
  static const int KEY = 4;
  static INLINE void words(const uint32_t *key, uint64_t group, uint32_t *out) {
    const uint32_t schedule[5] = {key[0], key[1], key[2], key[3], key[0] ^ key[1] ^ key[2] ^ key[3] ^ 0x1BD11BDAu};
    constexpr int rotations[8][2] = {{10, 26}, {11, 21}, {13, 27}, {23, 5}, {6, 20}, {17, 11}, {25, 10}, {18, 20}};
    out[0] = static_cast<uint32_t>(group >> 32) + schedule[0];
    out[1] = static_cast<uint32_t>(group) + schedule[1];
    out[2] = schedule[2];
    out[3] = schedule[3];
#pragma unroll
    for (int r = 0; r < 20; r++) {
      const int a = r % 2 == 0 ? 1 : 3, b = 4 - a;
      out[0] += out[a];
      out[a] = rotate_left(out[a], rotations[r % 8][0]) ^ out[0];
      out[2] += out[b];
      out[b] = rotate_left(out[b], rotations[r % 8][1]) ^ out[2];
      if (r % 4 == 3) {
        const int s = r / 4 + 1;
#pragma unroll
        for (int j = 0; j < 4; j++) out[j] += schedule[(s + j) % 5];
        out[3] += s;
      }
    }
  }
};

// ------------------------------------------------------------------------------- from words to angles about 0

#define LARGEST bits_float(0x40490FDAu)  // below pi

// The tail probability of the upper 31 bits of a word, in (0, 1/2].
INLINE float tail_of(uint32_t bits) { return fused(from_int(bits), 0x1p-32f, 0x1p-33f); }

// |x| with the sign of the word's lowest bit.
INLINE float with_sign(float x, uint32_t word) { return bits_float((float_bits(x) & 0x7FFFFFFFu) | (word << 31)); }

template <int N> INLINE float polynomial(const float (&c)[N], float x, int terms = N) {
  float sum = c[terms - 1];
#pragma unroll
  for (int j = N - 2; j >= 0; j--)
    if (j < terms - 1) sum = fused(sum, x, c[j]);
  return sum;
}

template <int N, int M> INLINE float polynomial2(const float (&c)[N][M], float x, float y) {
  float sum = polynomial(c[N - 1], y);
#pragma unroll
  for (int j = N - 2; j >= 0; j--) sum = fused(sum, x, polynomial(c[j], y));
  return sum;
}

// Any concentrations: `half_quantile`, with hardware functions where the error bound allows them.
struct Direct {
  // The start of a step of `refine`.
  struct Start {
    float x, sin, cos, first, rest, span, square, along, across, sum;
    bool upper, centre;
  };

  static INLINE float guess(float t, float kappa, float inverse, float root) {
    constexpr float low_table[][GUESS_LOW_COLUMNS] = GUESS_LOW;
    constexpr float high_table[][GUESS_HIGH_COLUMNS] = GUESS_HIGH;
    const float floor = exp2_of(-2 * LOG2_E * kappa);
    const float level = log2_of(1 + floor) - log2_of(fused(2, t, floor));
    float x;
    if (kappa < GUESS_SWITCH) {
      const float shrink = reciprocal(2 + kappa), y = level * shrink;
      x = y * polynomial2(low_table, y, shrink);
    } else {
      x = level * root * polynomial2(high_table, level, inverse);
    }
    return smaller(x, LARGEST);
  }

  // n and s with N(kappa) = n e^-s.
  static INLINE float norm(float kappa, float inverse, float root, float &shift) {
    constexpr float near[] = I0_SMALL, far[] = NORM_LARGE;
    if (kappa < 5) {
      shift = kappa;
      return 2 * PI * polynomial(near, 0.25f * kappa * kappa);
    }
    shift = 0;
    return polynomial(far, inverse) * root;
  }

  // exp(2 kappa (whole + first + rest) - shift)
  static INLINE float exp_product(float kappa, float whole, float first, float rest, float shift) {
    constexpr float exp_table[] = EXP;
    const float total = whole + first + rest, missing = whole - total + first + rest;
    const float twice = 2 * kappa, large = twice * total;
    const float small = fused(twice, missing, fused(twice, total, -large));
    const float shifted = fused(LOG2_E, large - shift, 0x1.8p23f), turns = shifted - 0x1.8p23f;
    const float f = fused(-turns, LN2_TAIL, fused(-turns, LN2_HEAD, large) - shift) + small;
    return bits_float(float_bits(polynomial(exp_table, f)) + (float_bits(shifted) << 23));
  }

  static INLINE Start start(float x, float kappa, float inverse) {
    constexpr float square_table[] = SINE_SQUARE, cut_table[] = CUT;
    Start s;
    // Half the angle, measured from the other end beyond a right angle; see `HalfAngle`.
    const float angle = 0.5f * x, to_pole = (HALF_PI - angle) + HALF_PI_REST;
    s.x = x;
    s.upper = angle > 0.5f * HALF_PI;
    const float psi = s.upper ? to_pole : angle;
    s.first = psi * psi;
    s.rest = fused(s.first * s.first, polynomial(square_table, s.first), fused(psi, psi, -s.first));
    const float sine2 = s.first + s.rest, other = 1 - sine2, s0 = s.upper ? other : sine2;
    const float near_cos = fused(-2, sine2, 1);
    s.sin = 2 * square_root(sine2 * other);
    s.cos = s.upper ? -near_cos : near_cos;
    // The integral, from the angle to its end; see `integrals`.
    s.centre = s0 * (1 + kappa) < 0.5f * CENTRE;
    const float s1 = smaller(s0 + smaller(0.5f * RULE_DEPTH * inverse, 2), 1);
    const float end = square_root(s1) * polynomial(cut_table, 1 - s1);
    s.span = s.centre ? -angle : (s1 < 1 ? end - angle : to_pole);
    s.square = s.span * s.span;
    s.along = kappa * s.sin * s.span;
    s.across = kappa * s.cos * s.square;
    s.sum = 0;
    return s;
  }

  // The quadrature for four angles at once, which share the constants in registers.
  static INLINE void integrate(Start *s) {
    constexpr float along_table[] = SIN_COS, across_table[] = SIN_SIN;
    constexpr float nodes[] = RULE_NODES, weights[] = RULE_WEIGHTS;
#pragma unroll
    for (int j = 0; j < static_cast<int>(sizeof(nodes) / sizeof(nodes[0])); j++) {
      // Near the start of the span the later terms of the series are below 2e-8 of the others.
      const int terms = nodes[j] < 0.02f ? 2 : nodes[j] < 0.06f ? 3 : nodes[j] < 0.15f ? 4 : nodes[j] < 0.3f ? 5 : 6;
      float a[6], b[6], power = nodes[j];
#pragma unroll
      for (int i = 0; i < 6; i++) {
        a[i] = -2 * LOG2_E * along_table[i] * power;
        power *= nodes[j];
        b[i] = -2 * LOG2_E * across_table[i] * power;
        power *= nodes[j];
      }
#pragma unroll
      for (int l = 0; l < 4; l++) {
        const float rise = s[l].across * polynomial(b, s[l].square, terms);
        const float exponent = fused(s[l].along, polynomial(a, s[l].square, terms), rise);
        s[l].sum = fused(2 * weights[j], exp2_of(exponent), s[l].sum);
      }
    }
  }

  // The step itself: the inverse function's series.
  static INLINE float refined(const Start &s, float t, float c, float kappa, float inverse, float root) {
    float shift;
    const float n = norm(kappa, inverse, root, shift), mass = (s.centre ? -c : t) * n;
    const float first = s.upper ? -s.first : s.first, rest = s.upper ? -s.rest : s.rest;
    const float u = fused(-mass, exp_product(kappa, s.upper ? 1 : 0, first, rest, shift), s.span * s.sum);
    const float u2 = u * u, d = kappa * s.sin * u, e = kappa * s.cos * u2, d2 = d * d;
    const float third = fused(1.f / 3, d2, 1.f / 6 * e);
    const float fourth = d * fused(0.25f, d2, fused(7.f / 24, e, -1.f / 24 * u2));
    const float fifth_d = fused(0.2f, d2, fused(46.f / 120, e, -11.f / 120 * u2));
    const float fifth_e = fused(7.f / 120, e, -1.f / 120 * u2);
    const float series = fused(0.5f, d, third) + fused(d2, fifth_d, fused(e, fifth_e, fourth));
    return smaller(s.x + fused(u, series, u), LARGEST);
  }

  // kappa^-1/2, by the hardware and one step of Newton's method.
  static INLINE float root_of(float kappa) {
    const float root = inverse_root(kappa);
    return fused(root, fused(-0.5f * kappa * root, root, 0.5f), root);
  }

  static INLINE void angles(const uint32_t *words, const float *kappa, float *x) {
    Start starts[4];
    float k[4], root[4], inverse[4];
#pragma unroll
    for (int l = 0; l < 4; l++) {
      k[l] = larger(smaller(kappa[l], KAPPA_MAX), KAPPA_MIN);
      root[l] = root_of(k[l]);
      inverse[l] = root[l] * root[l];
      starts[l] = start(guess(tail_of(words[l] >> 1), k[l], inverse[l], root[l]), k[l], inverse[l]);
    }
    integrate(starts);
#pragma unroll
    for (int l = 0; l < 4; l++) {
      const uint32_t bits = words[l] >> 1;
      x[l] = refined(starts[l], tail_of(bits), tail_of(bits ^ 0x7FFFFFFFu), k[l], inverse[l], root[l]);
      // For larger kappa, the scaling of the normal distribution; 0 at infinity.
      if (kappa[l] > KAPPA_MAX) x[l] *= float_bits(kappa[l]) == 0x7F800000u ? 0 : root_of(kappa[l]) * ROOT_KAPPA_MAX;
      if (!(kappa[l] >= 0)) x[l] = bits_float(0x7FC00000u);
      x[l] = with_sign(x[l], words[l]);
    }
  }
};

// ------------------------------------------------------------------------------------------------- direction

// `loc`, reduced to one turn.
INLINE float reduce_turns(float loc) {
  const float turns = nearest(loc * (1 / TWO_PI));
  const float reduced = fused(-turns, TURN_2, fused(-turns, TURN_1, fused(-turns, TURN_0, loc)));
  return (float_bits(loc) & 0x7FFFFFFFu) <= 0x4B800000u ? reduced : bits_float(0x7FC00000u);  // 2^24
}

// x + loc in [-pi, pi). A sum too large to hold fractions rounds to full turns, which avoids the busiest units.
INLINE float wrap(float x, float loc) {
  const float total = x + loc, turn = fused(total, 1 / TWO_PI, 0x1.8p23f) - 0x1.8p23f;
  return larger(smaller(fused(-turn, TWO_PI, total), LARGEST), -LARGEST);
}

// ----------------------------------------------------------------------------------------------------- result

struct alignas(16) Four {
  float value[4];
};
struct alignas(8) FourHalves {
  uint32_t value[2];
};

enum Kind { FLOAT32, BFLOAT16, FLOAT16 };
// Flags for operands that have an element for each angle.
enum { CONCENTRATIONS = 1, LOCS = 2 };

INLINE uint32_t rounded_pair(int kind, float a, float b) {
  return kind == BFLOAT16 ? pair_bfloat16(a, b) : pair_float16(a, b);
}

INLINE void write_one(int kind, void *to, int64_t at, float x) {
  if (kind == FLOAT32) static_cast<float *>(to)[at] = x;
  else static_cast<uint16_t *>(to)[at] = static_cast<uint16_t>(rounded_pair(kind, x, x));
}

// Store four values in one instruction.
INLINE void write_four(int kind, void *to, int64_t group, const float *x) {
  if (kind == FLOAT32) static_cast<Four *>(to)[group] = {{x[0], x[1], x[2], x[3]}};
  else static_cast<FourHalves *>(to)[group] = {{rounded_pair(kind, x[0], x[1]), rounded_pair(kind, x[2], x[3])}};
}

// Load the first `count` of the four elements of a group, all of them in one instruction.
INLINE void read_four(const float *from, int64_t group, int count, float *to) {
  if (count == 4) {
    const Four four = reinterpret_cast<const Four *>(from)[group];
#pragma unroll
    for (int j = 0; j < 4; j++) to[j] = four.value[j];
  } else {
#pragma unroll
    for (int j = 0; j < 4; j++) to[j] = j < count ? from[4 * group + j] : 0.5f;
  }
}

// Draw the angles of a stream from its beginning. `sizes` has their number (low, high), flags and a `Kind`. XLA aligns
// all arrays to 16 bytes.
template <class Cipher>
INLINE void angles(const uint32_t *key_words, const uint32_t *sizes, const float *kappas, const float *locs, void *out) {
  const int64_t count = static_cast<int64_t>(sizes[0] | static_cast<uint64_t>(sizes[1]) << 32);
  const bool many_kappas = sizes[2] & CONCENTRATIONS, many_locs = sizes[2] & LOCS;
  const int kind = static_cast<int>(sizes[3]);
  uint32_t key[Cipher::KEY];
#pragma unroll
  for (int j = 0; j < Cipher::KEY; j++) key[j] = key_words[j];
  const float one_kappa = kappas[0], one_loc = many_locs ? 0 : reduce_turns(locs[0]);
  const bool moved = many_locs || !(one_loc == 0);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t group = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; 4 * group < count; group += step) {
    const int64_t left = count - 4 * group;
    const int here = left < 4 ? static_cast<int>(left) : 4;
    uint32_t words[4];
    Cipher::words(key, group, words);
    float x[4], kappa[4] = {one_kappa, one_kappa, one_kappa, one_kappa}, loc[4] = {one_loc, one_loc, one_loc, one_loc};
    if (many_kappas) read_four(kappas, group, here, kappa);
    Direct::angles(words, kappa, x);
    if (moved) {
      if (many_locs) {
        read_four(locs, group, here, loc);
#pragma unroll
        for (int j = 0; j < 4; j++) loc[j] = reduce_turns(loc[j]);
      }
#pragma unroll
      for (int j = 0; j < 4; j++) x[j] = wrap(x[j], loc[j]);
    }
    if (here == 4) {
      write_four(kind, out, group, x);
    } else {
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (j < here) write_one(kind, out, 4 * group + j, x[j]);
    }
  }
}

#define KERNEL(name, Cipher)                                                                             \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                   \
      name(const uint32_t *key, const uint32_t *sizes, const float *kappa, const float *loc, void *out) { \
    angles<Cipher>(key, sizes, kappa, loc, out);                                                         \
  }

KERNEL(threefry2x32_direct, Threefry2x32)
KERNEL(threefry4x32_direct, Threefry4x32)
