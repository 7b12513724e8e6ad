// The kernels of angles.cu as a library for the host: what tests compare with the package, with no GPU.
//
// One thread after the other. The hardware's five approximations are
// right here to the last digit, times one plus the error that a test asks for.

#include <cmath>
#include <cstdint>
#include <cstring>

#define HOST
#define INLINE inline
#define __global__
#define __shared__ static
#define __launch_bounds__(threads, blocks)
#define SYNCHRONISE()

struct Index {
  uint32_t x, y;
};
static Index threadIdx, blockIdx, blockDim, gridDim;
static float error_of_hardware = 0;

static float fused(float a, float b, float c) { return std::fma(a, b, c); }
static float bits_float(uint32_t x) {
  float y;
  std::memcpy(&y, &x, 4);
  return y;
}
static uint32_t float_bits(float x) {
  uint32_t y;
  std::memcpy(&y, &x, 4);
  return y;
}
static float from_int(uint32_t x) { return static_cast<float>(static_cast<int32_t>(x)); }
static float nearest(float x) { return std::nearbyint(x); }
static float wrong(double x) { return static_cast<float>(x * (1 + error_of_hardware)); }
static float square_root(float x) { return wrong(std::sqrt(static_cast<double>(x))); }
static float inverse_root(float x) { return wrong(1 / std::sqrt(static_cast<double>(x))); }
static float reciprocal(float x) { return wrong(1 / static_cast<double>(x)); }
static float exp2_of(float x) { return wrong(std::exp2(static_cast<double>(x))); }
static float log2_of(float x) { return wrong(std::log2(static_cast<double>(x))); }
static float smaller(float a, float b) { return std::isnan(a) || a < b ? a : b; }
static float larger(float a, float b) { return std::isnan(a) || a > b ? a : b; }
static uint32_t rotate_left(uint32_t x, int bits) { return x << bits | x >> (32 - bits); }
static uint32_t multiply_high(uint32_t a, uint32_t b) { return static_cast<uint64_t>(a) * b >> 32; }

// To the nearest, ties to even.
static uint32_t bfloat16(float x) {
  const uint32_t bits = float_bits(x);
  if (std::isnan(x)) return 0x7FFF;
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
static uint32_t float16(float x) {
  const uint32_t sign = float_bits(x) >> 16 & 0x8000;
  const double size = std::fabs(static_cast<double>(x));
  if (std::isnan(x)) return 0x7FFF;
  if (size < 0x1p-14) return sign | static_cast<uint32_t>(std::nearbyint(size * 0x1p24));
  int exponent;
  const double fraction = std::frexp(size, &exponent);  // in [1/2, 1)
  return sign | ((exponent + 13) << 10) + static_cast<uint32_t>(std::nearbyint(fraction * 0x1p11));
}
static uint32_t pair_bfloat16(float a, float b) { return bfloat16(a) | bfloat16(b) << 16; }
static uint32_t pair_float16(float a, float b) { return float16(a) | float16(b) << 16; }

#include SOURCE

extern "C" void set_error(float error) { error_of_hardware = error; }

typedef void Kernel(const uint32_t *, const uint32_t *, const uint32_t *, const float *, const float *, void *);

// Thread by thread. Those of a block fill a table together and draw from it after that: so all run twice, and what
// counts is the second time.
extern "C" void launch(Kernel *kernel, uint32_t grid_x, uint32_t grid_y, uint32_t block_x, uint32_t block_y,
                       const uint32_t *key, const uint32_t *start, const uint32_t *sizes, const float *concentration,
                       const float *loc, void *out) {
  blockDim = {block_x, block_y};
  gridDim = {grid_x, grid_y};
  for (int pass = block_x * block_y > 1 ? 0 : 1; pass < 2; pass++)
    for (blockIdx.y = 0; blockIdx.y < grid_y; blockIdx.y++)
      for (blockIdx.x = 0; blockIdx.x < grid_x; blockIdx.x++)
        for (threadIdx.y = 0; threadIdx.y < block_y; threadIdx.y++)
          for (threadIdx.x = 0; threadIdx.x < block_x; threadIdx.x++)
            kernel(key, start, sizes, concentration, loc, out);
}

// The words themselves, four to a group.
extern "C" void words(int cipher, const uint32_t *key, uint64_t group, uint64_t groups, uint32_t *out) {
  for (uint64_t v = 0; v < groups; v++, out += 4) {
    if (cipher == 0) Threefry2x32::words(key, group + v, out);
    if (cipher == 1) Threefry4x32::words(key, group + v, out);
    if (cipher == 2) Philox2x32::words(key, group + v, out);
    if (cipher == 3) Philox4x32::words(key, group + v, out);
  }
}
