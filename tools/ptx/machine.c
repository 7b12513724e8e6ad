// The machine that a translated kernel runs on: memory that checks each access, and the hardware's approximations, with
// errors as large as NVIDIA allows. `machine.py` appends a kernel.

#include <math.h>
#include <stdint.h>
#include <string.h>

// A part of an array: its addresses on the device, and its bytes here; `written` counts writes to each byte, NULL
// forbids any.
typedef struct {
  uint64_t first, end;
  uint8_t *bytes, *written;
} Buffer;
typedef struct {
  const Buffer *buffers;
  int32_t buffer_count;
  uint32_t blocks, threads;
  double least_error, most_error;  // of approximations, as fractions of the allowed error
} Launch;

static Launch job;
// The place of the running thread.
static uint32_t tid, ctaid;

// ------------------------------------------------------------------------------------------------------- faults

// `FAULTS` in machine.py.
enum { NONE, OUTSIDE, MISALIGNED, TWICE, ENDLESS };
// The first fault, and its line in the kernel's text.
static int fault, fault_line;
static void fail(int what, int line) {
  if (!fault) fault = what, fault_line = line;
}

// Return whether a thread must end at a branch: after a fault, or if it seems to loop for ever.
enum { MOST_BRANCHES = 1 << 24 };
static int branches;
static int stop(int line) {
  if (++branches > MOST_BRANCHES) fail(ENDLESS, line);
  return fault;
}

// ------------------------------------------------------------------------------------------------------- memory

static void *global(uint64_t address, uint64_t size, int writes, int line) {
  static uint8_t nowhere[16];
  for (int i = 0; i < job.buffer_count; i++) {
    const Buffer b = job.buffers[i];
    if (address < b.first || address + size > b.end || (writes && !b.written)) continue;
    if (address % size) fail(MISALIGNED, line);
    const uint64_t at = address - b.first;
    for (uint64_t j = 0; writes && j < size; j++)
      if (b.written[at + j]++) fail(TWICE, line);
    return b.bytes + at;
  }
  fail(OUTSIDE, line);
  return nowhere;
}

// --------------------------------------------------------------------------------------------------- arithmetic

static float bits_float(uint32_t x) {
  float y;
  memcpy(&y, &x, 4);
  return y;
}
static uint32_t float_bits(float x) {
  uint32_t y;
  memcpy(&y, &x, 4);
  return y;
}
static float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

// Approximations of x are exact values with an error of up to the maximum that "PTX ISA", 9.7.3, states. The error is
// pseudo-random, but always the same for one x.
static float off_by(float x, double right, double most) {
  uint64_t hash = float_bits(x) * 0x9E3779B97F4A7C15ull;
  hash = (hash ^ hash >> 29) * 0xBF58476D1CE4E5B9ull;
  const double share = job.least_error + (hash >> 11) * 0x1p-53 * (job.most_error - job.least_error);
  return flushed((float)(isfinite(right) ? right + share * most : right));
}
static float approximate_ex2(float x) {
  const double right = exp2(flushed(x));
  return off_by(x, right, right * 0x1p-22);
}
static float approximate_lg2(float x) {
  const double right = log2(flushed(x));
  return off_by(x, right, fmax(x > 0.5f && x < 2 ? 1 : 0, fabs(right)) * 0x1p-22);
}
static float approximate_rsqrt(float x) {
  const double right = 1 / sqrt(flushed(x));
  return off_by(x, right, right * 0x1p-22);
}
static float approximate_sqrt(float x) {
  const double right = sqrt(flushed(x));
  return off_by(x, right, right * 0x1p-22);
}
static float approximate_rcp(float x) {
  const double right = 1 / (double)flushed(x);
  return off_by(x, right, fabs(right) * 0x1p-23);
}

static float smaller(float a, float b) {
  if (isnan(a) || isnan(b)) return NAN;
  return a < b || (a == b && signbit(a)) ? a : b;
}
static float larger(float a, float b) { return -smaller(-a, -b); }
static uint64_t insert(uint64_t a, uint64_t b, uint32_t place, uint32_t length) {
  const uint64_t mask = (length > 63 ? ~0ull : (1ull << length) - 1) << place;
  return (b & ~mask) | ((a << place) & mask);
}

// Round to nearest, ties to even.
static uint32_t bfloat16(float x) {
  const uint32_t bits = float_bits(x);
  return isnan(x) ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
static uint32_t float16(float x) {
  const uint32_t sign = float_bits(x) >> 16 & 0x8000;
  const double size = fabs((double)x);
  if (isnan(x)) return 0x7FFF;
  if (size >= 65520) return sign | 0x7C00;
  if (size < 0x1p-14) return sign | (uint32_t)nearbyint(size * 0x1p24);
  int exponent;
  const double fraction = frexp(size, &exponent);  // in [1/2, 1)
  return sign | (((exponent + 13) << 10) + (uint32_t)nearbyint(fraction * 0x1p11));
}

// ------------------------------------------------------------------------------------------------------ threads

static void kernel(const uint64_t *param);

// Run the blocks from `from` up to, but not including, `to`. Return the fault, with its line.
int run(const Launch *launch, const uint64_t *param, uint32_t from, uint32_t to, int *line) {
  job = *launch;
  fault = fault_line = 0;
  for (ctaid = from; ctaid < to; ctaid++)
    for (tid = 0; tid < job.threads && !fault; tid++) {
      branches = 0;
      kernel(param);
    }
  *line = fault_line;
  return fault;
}

