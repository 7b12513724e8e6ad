// The machine that a translated kernel runs on: memory that checks each access, threads of a block that wait for each
// other, and the hardware's approximations, with errors as large as NVIDIA allows. `machine.py` appends a kernel.

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

typedef struct {
  uint32_t x, y;
} Pair;
// A buffer: its addresses on the device, and its bytes here; `written` counts writes to each byte, NULL forbids any.
typedef struct {
  uint64_t first, end;
  uint8_t *bytes, *written;
} Buffer;
// The arguments of a launch, except for the blocks to run.
typedef struct {
  const Buffer *buffers;
  int32_t buffer_count;
  Pair grid, block;
  double least_error, most_error;  // of approximations, as fractions of the allowed error
} Launch;
typedef struct {
  Pair tid, ntid, ctaid, nctaid;
} Place;

// ------------------------------------------------------------------------------------------------------- faults

enum { NONE, OUTSIDE, MISALIGNED, TWICE, SHARED_OUTSIDE, SHARED_UNSET, SHARED_RACE, BARRIER, DIVISION, ENDLESS };
// The first fault, and its line in the kernel's text.
static int fault, fault_line;
static int fail(int what, int line) {
  if (!fault) fault = what, fault_line = line;
  return 0;
}

// Return whether a thread must end at a branch: after a fault, or if it seems to loop for ever.
enum { MOST_BRANCHES = 1 << 24 };
static int branches;
static int stop(int line) {
  if (++branches > MOST_BRANCHES) fail(ENDLESS, line);
  return fault;
}

// ------------------------------------------------------------------------------------------------------- memory

static Launch job;
static uint8_t nowhere[64];

static void *global(uint64_t address, uint64_t size, int writes, int line) {
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

// Shared memory, in units of four bytes, each with its last writer and reader since the block's start, and the number
// of barriers that had passed then.
enum { SHARED_BYTES = 48 << 10, UNITS = SHARED_BYTES / 4, NOBODY = -1, SEVERAL = -2 };
uint8_t shared_bytes[SHARED_BYTES] __attribute__((aligned(16)));  // after a launch, those of its last block
static struct {
  int32_t writer, written_at, reader, read_at;
} units[UNITS];
static int32_t running, barriers;

static void *shared(uint32_t address, uint32_t size, int writes, int line) {
  if (address % size || address + size > SHARED_BYTES || size < 4) {
    fail(SHARED_OUTSIDE, line);
    return nowhere;
  }
  for (uint32_t j = address / 4; j < (address + size) / 4; j++) {
    if (units[j].writer != NOBODY && units[j].writer != running && units[j].written_at == barriers)
      fail(SHARED_RACE, line);
    if (writes) {
      if (units[j].reader != NOBODY && units[j].reader != running && units[j].read_at == barriers)
        fail(SHARED_RACE, line);
      units[j].writer = running, units[j].written_at = barriers;
    } else {
      if (units[j].writer == NOBODY) fail(SHARED_UNSET, line);
      const int again = units[j].read_at == barriers && units[j].reader != NOBODY && units[j].reader != running;
      units[j].reader = again ? SEVERAL : running, units[j].read_at = barriers;
    }
  }
  return shared_bytes + address;
}

// --------------------------------------------------------------------------------------------------- arithmetic

static uint64_t noise = 88172645463325252ull;
static uint64_t random_bits(void) {
  noise ^= noise << 13;
  noise ^= noise >> 7;
  return noise ^= noise << 17;
}

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
static float larger(float a, float b) {
  if (isnan(a) || isnan(b)) return NAN;
  return a > b || (a == b && !signbit(a)) ? a : b;
}
static uint32_t divide(uint32_t a, uint32_t b, int line) { return b ? a / b : (uint32_t)fail(DIVISION, line); }
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
static uint32_t pair(uint32_t high, uint32_t low) { return high << 16 | low; }

// ------------------------------------------------------------------------------------------------------ threads

typedef void Kernel(const uint64_t *param, Place place);

enum { THREADS = 1024, STACK = 64 << 10, ENDED = -1 };
static ucontext_t scheduler, threads[THREADS];
static char *stacks;
// The line of the barrier at which each thread waits.
static int waits_at[THREADS];
static Kernel *kernel;
static const uint64_t *params;
static Place places[THREADS];

static void barrier(int line) {
  const int self = running;
  waits_at[self] = line;
  swapcontext(threads + self, &scheduler);
  running = self;
}

static void run_thread(void) {
  kernel(params, places[running]);
  waits_at[running] = ENDED;
}

// Run all threads of a block, each in turn up to its next barrier, in an order that varies.
static void run_block(int count) {
  for (int t = 0; t < count; t++) {
    getcontext(threads + t);
    threads[t].uc_stack.ss_sp = stacks + (size_t)t * STACK;
    threads[t].uc_stack.ss_size = STACK;
    threads[t].uc_link = &scheduler;
    makecontext(threads + t, run_thread, 0);
  }
  for (int ended = 0; !ended && !fault; barriers++) {
    const int first = random_bits() % count, backwards = random_bits() & 1;
    for (int i = 0; i < count; i++) {
      running = (first + (backwards ? count - i : i)) % count;
      swapcontext(&scheduler, threads + running);
    }
    for (int t = 1; t < count; t++)
      if (waits_at[t] != waits_at[0]) fail(BARRIER, waits_at[t] == ENDED ? waits_at[0] : waits_at[t]);
    ended = waits_at[0] == ENDED;
  }
}

// Run the blocks from `from` up to, but not including, `to`, along x and y. Return the fault, with its line.
static int run(Kernel *of, const Launch *launch, const uint64_t *given, Pair from, Pair to, int *line) {
  job = *launch;
  kernel = of;
  params = given;
  fault = fault_line = 0;
  const int count = job.block.x * job.block.y;
  if (!stacks) stacks = malloc((size_t)THREADS * STACK);
  for (uint32_t y = from.y; y < to.y; y++)
    for (uint32_t x = from.x; x < to.x && !fault; x++) {
      memset(shared_bytes, 0xFF, sizeof shared_bytes);
      memset(units, 0xFF, sizeof units);
      for (int t = 0; t < count; t++)
        places[t] = (Place){{t % job.block.x, t / job.block.x}, job.block, {x, y}, job.grid};
      barriers = branches = 0;
      run_block(count);
    }
  *line = fault_line;
  return fault;
}
