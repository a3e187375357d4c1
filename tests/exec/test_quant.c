/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels in the executor against definitions written here in double precision: every entry, odd sizes, leading
 * dimensions and addresses, poisoned destinations, sources that end where their memory ends (under a sanitizer a read beyond
 * is an error). B200_TEST_LONG=1: all sizes of what is sampled otherwise.
 */
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "interpose/exec/cpu.h"
#include "tests/unit/unit.h"

static bool is_long(void) {
  return getenv("B200_TEST_LONG") != NULL;
}

/* ck_assert_msg() writes to a file each time that it passes. */
#define CHECK(condition, ...)                                                                                               \
  do {                                                                                                                      \
    if (!(condition))                                                                                                       \
      ck_abort_msg(__VA_ARGS__);                                                                                            \
  } while (0)

/* Deterministic, the same on all machines. */
static uint64_t random_state = 1;
static uint32_t random_bits(void) {
  random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(random_state >> 32);
}

/* FP8 by its definition: value of a code without sign, then the nearest code, ties to the even one. */
static const struct format {
  int mantissa, bias, largest; /* largest: code of the largest finite value */
  double fp_max;
} formats[B200_NARROW_COUNT] = {
    [B200_NARROW_E4M3] = {.mantissa = 3, .bias = 7, .largest = 0x7e, .fp_max = 448},
    [B200_NARROW_E5M2] = {.mantissa = 2, .bias = 15, .largest = 0x7b, .fp_max = 57344},
};

static double code_value(const struct format *format, int code) {
  int exponent = code >> format->mantissa, fraction = code & ((1 << format->mantissa) - 1);
  if (exponent == 0)
    return ldexp(fraction, 1 - format->bias - format->mantissa);
  return ldexp((1 << format->mantissa) + fraction, exponent - format->bias - format->mantissa);
}

static uint8_t nearest_code(enum b200_narrow narrow, double value) {
  static double values[B200_NARROW_COUNT][128];
  int largest = formats[narrow].largest;
  for (int i = 0; values[narrow][largest] == 0 && i <= largest; i++)
    values[narrow][i] = code_value(&formats[narrow], i);
  if (isnan(value))
    return 0x7f;
  uint8_t sign = signbit(value) ? 0x80 : 0;
  double magnitude = fabs(value);
  int low = 0, high = largest; /* low: the last code whose value is not larger */
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (values[narrow][middle] <= magnitude)
      low = middle;
    else
      high = middle - 1;
  }
  if (low < largest) {
    double below = magnitude - values[narrow][low], above = values[narrow][low + 1] - magnitude;
    if (above < below || (above == below && low % 2 == 1))
      low++;
  }
  return (uint8_t)(low | sign);
}

static bool is_nan_code(enum b200_narrow narrow, uint8_t code) {
  return narrow == B200_NARROW_E4M3 ? (code & 0x7f) == 0x7f : (code & 0x7f) > 0x7c;
}

static float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* A matrix with its source: `lines` × `width`, in memory that ends with its last element. */
struct source {
  enum b200_source type;
  int64_t lines, width, ld;
  size_t size; /* of an element */
  unsigned char *memory;
  const unsigned char *start;
};

static double source_at(const struct source *s, int64_t line, int64_t column) {
  const unsigned char *at = s->start + (line * s->ld + column) * (int64_t)s->size;
  uint16_t bits;
  if (s->type == B200_SOURCE_F32) {
    float value;
    memcpy(&value, at, sizeof value);
    return (double)value;
  }
  memcpy(&bits, at, sizeof bits);
  if (s->type == B200_SOURCE_BF16)
    return (double)float_of_bits((uint32_t)bits << 16);
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                     : exponent == 0 ? ldexp(fraction, -24)
                                     : ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

enum kind { HEALTHY, WILD, NONFINITE, KINDS };

/* Bits of an element: HEALTHY within a few binades; WILD any finite number and many zeros; NONFINITE: some Inf and NaN. */
static uint32_t element_bits(enum b200_source type, enum kind kind) {
  static const struct {
    uint32_t mask, infinity, sign;
    int mantissa, bias;
  } types[] = {
      {0x7fff, 0x7f80, 0x8000, 7, 127}, {0x7fff, 0x7c00, 0x8000, 10, 15}, {0x7fffffff, 0x7f800000, 0x80000000, 23, 127}};
  uint32_t any = random_bits(), sign = random_bits() & types[type].sign, choice = random_bits() % 64;
  if (kind == NONFINITE && choice == 0)
    return sign | types[type].infinity | (any % 2 ? 0 : any & ((1u << types[type].mantissa) - 1));
  if (kind == HEALTHY || (kind == NONFINITE && choice < 60)) {
    uint32_t exponent = (uint32_t)types[type].bias - random_bits() % 8;
    return sign | exponent << types[type].mantissa | (any & ((1u << types[type].mantissa) - 1));
  }
  any &= types[type].mask;
  return choice < 16   ? sign
         : choice < 24 ? sign | (any & ((1u << types[type].mantissa) - 1))
                       : sign | (any < types[type].infinity ? any : types[type].infinity - 1);
}

static struct source source_make(enum b200_source type, int64_t lines, int64_t width, int64_t ld, size_t offset,
                                 enum kind kind) {
  struct source s = {.type = type, .lines = lines, .width = width, .ld = ld, .size = type == B200_SOURCE_F32 ? 4 : 2};
  size_t bytes = (size_t)((lines - 1) * ld + width) * s.size;
  /* malloc's blocks are aligned to 16: `offset` elements from there, and the end is the last element's. */
  s.memory = malloc(offset * s.size + bytes);
  ck_assert_ptr_nonnull(s.memory);
  s.start = s.memory + offset * s.size;
  for (size_t i = 0; i < bytes / s.size; i++) {
    uint32_t bits = element_bits(type, kind);
    memcpy(s.memory + (offset + i) * s.size, &bits, s.size);
  }
  return s;
}

static struct b200_operand operand_of(const struct source *s, enum b200_major major) {
  return (struct b200_operand){.src = s->start,
                               .ld = s->ld,
                               .outer = major == B200_K_FAST ? s->lines : s->width,
                               .k = major == B200_K_FAST ? s->width : s->lines,
                               .type = (uint8_t)s->type,
                               .major = (uint8_t)major};
}

/* Memory of a destination, aligned, poisoned, with a margin on either side. */
enum { MARGIN = 64 };
struct destination {
  uint8_t *memory, *start;
  size_t bytes;
  uint8_t poison;
};

static struct destination destination_make(size_t bytes, uint8_t poison) {
  struct destination d = {.bytes = bytes, .poison = poison};
  d.memory = aligned_alloc(64, (bytes + 2 * MARGIN + 63) / 64 * 64);
  ck_assert_ptr_nonnull(d.memory);
  d.start = d.memory + MARGIN;
  memset(d.memory, poison, bytes + 2 * MARGIN);
  return d;
}

static void destination_check_margins(const struct destination *d) {
  for (size_t i = 0; i < MARGIN; i++) {
    CHECK(d->memory[i] == d->poison, "byte %zu before the destination was written", MARGIN - i);
    CHECK(d->start[d->bytes + i] == d->poison, "byte %zu after the destination was written", i);
  }
}

static int64_t padded(int64_t n) {
  return (n + 15) / 16 * 16;
}

static void run(enum b200_kernel kernel, const void *args, struct b200_cpu_traffic *traffic) {
  ck_assert_int_lt(kernel, B200_KERNEL_COUNT);
  b200_cpu_run(kernel, args, b200_kernel_blocks(kernel, args, 3), traffic);
}

/* Reference of the guard's counters. */
struct watch {
  enum b200_narrow narrow;
  struct b200_guard_counters expected;
};

static void watch_element(struct watch *w, double x, float product) {
  const struct format *format = &formats[w->narrow];
  double half_of_last = code_value(format, 1) / 2;
  double edge = format->fp_max + (format->fp_max - code_value(format, format->largest - 1)) / 2;
  bool edge_saturates = format->largest % 2 == 1; /* a tie goes to the even code */
  double magnitude = fabs((double)product);
  w->expected.elements++;
  w->expected.nonfinite += isfinite(x) ? 0 : 1;
  w->expected.underflown += x != 0 && magnitude <= half_of_last;
  w->expected.saturated += isfinite(x) && (edge_saturates ? magnitude >= edge : magnitude > edge);
}

static void watch_check(const struct watch *w, const struct b200_guard_counters *seen) {
  ck_assert_uint_eq(seen->elements, w->expected.elements);
  ck_assert_uint_eq(seen->nonfinite, w->expected.nonfinite);
  ck_assert_uint_eq(seen->underflown, w->expected.underflown);
  ck_assert_uint_eq(seen->saturated, w->expected.saturated);
  ck_assert_uint_eq(seen->blocks, w->expected.blocks);
  ck_assert_uint_eq(seen->starved, w->expected.starved);
}

/* Element (outer, k) of an operand. */
static double operand_at(const struct source *s, enum b200_major major, int64_t outer, int64_t k) {
  return major == B200_K_FAST ? source_at(s, outer, k) : source_at(s, k, outer);
}

/* Largest magnitude of block `block` along k of row `outer`; NaN and Inf as Inf. */
static double block_amax(const struct source *s, enum b200_major major, int64_t outer, int64_t block) {
  int64_t k = major == B200_K_FAST ? s->width : s->lines;
  double amax = 0;
  for (int64_t i = block * 32; i < k && i < block * 32 + 32; i++) {
    double x = operand_at(s, major, outer, i);
    amax = isfinite(x) ? fmax(amax, fabs(x)) : INFINITY;
    if (!isfinite(x))
      break;
  }
  return amax;
}

static struct b200_tensor_scale scale_of(const struct source *s, enum b200_major major, enum b200_narrow narrow) {
  struct b200_tensor_scale scale = {0};
  struct b200_amax_args args = {.in = operand_of(s, major), .scale = &scale, .fp_max = (float)formats[narrow].fp_max};
  run(b200_kernel_amax(s->type), &args, NULL);
  return scale;
}

static void check_scale(const struct source *s, enum b200_narrow narrow, const struct b200_tensor_scale *scale) {
  double amax = 0;
  bool finite = true;
  for (int64_t i = 0; i < s->lines; i++)
    for (int64_t j = 0; j < s->width; j++) {
      double x = source_at(s, i, j);
      finite = finite && isfinite(x);
      amax = fmax(amax, fabs(x));
    }
  ck_assert_uint_eq(scale->amax_bits, 0);
  ck_assert_uint_eq(scale->done, 0);
  if (!finite) {
    ck_assert(isnan(scale->scale) && isnan(scale->inverse));
    return;
  }
  float expected = amax == 0 ? 1.0f : fminf((float)formats[narrow].fp_max / (float)amax, 0x1p126f);
  CHECK(scale->scale == expected, "amax %a: scale %a, not %a", amax, (double)scale->scale, (double)expected);
  ck_assert_float_eq(scale->inverse, 1.0f / expected);
}

/* Per-tensor FP8 of one source, with and without transposition, with its guard. */
static void check_cast(const struct source *s, enum b200_major from, enum b200_major to, enum b200_narrow narrow,
                       bool guarded) {
  enum b200_kernel kernel = b200_kernel_cast(s->type, from, to);
  if (from == B200_K_FAST && to == B200_K_SLOW) {
    ck_assert_int_eq(kernel, B200_KERNEL_COUNT);
    return;
  }
  struct b200_tensor_scale scale = scale_of(s, from, narrow);
  check_scale(s, narrow, &scale);
  bool turned = from != to;
  int64_t lines = turned ? s->width : s->lines, width = turned ? s->lines : s->width;
  int64_t ld = padded(width) + (random_bits() % 2 ? 32 : 0);
  struct destination dst = destination_make((size_t)(lines * ld), 0xa5);
  struct watch watch = {.narrow = narrow};
  struct b200_guard_counters counters = {0};
  struct b200_cast_args args = {.in = operand_of(s, from),
                                .dst = dst.start,
                                .dst_ld = ld,
                                .scale = &scale,
                                .guard = guarded ? &counters : NULL,
                                .narrow = (uint8_t)narrow};
  run(kernel, &args, NULL);
  for (int64_t i = 0; i < lines; i++)
    for (int64_t j = 0; j < ld; j++) {
      uint8_t seen = dst.start[i * ld + j];
      if (j >= padded(width)) {
        CHECK(seen == dst.poison, "%s wrote beyond a line's padding", b200_kernels[kernel].name);
      } else if (j >= width) {
        CHECK(seen == nearest_code(narrow, (double)(0 * scale.scale)), "%s: padding", b200_kernels[kernel].name);
      } else {
        double x = turned ? source_at(s, j, i) : source_at(s, i, j);
        float product = (float)x * scale.scale;
        if (guarded)
          watch_element(&watch, x, product);
        uint8_t expected = nearest_code(narrow, isfinite(x) ? (double)product : NAN);
        CHECK(seen == expected, "%s, %d: (%ld, %ld) %a: %02x, not %02x", b200_kernels[kernel].name, narrow, (long)i, (long)j,
              x, seen, expected);
      }
    }
  destination_check_margins(&dst);
  for (int64_t o = 0; guarded && o < args.in.outer; o++)
    for (int64_t b = 0; b < (args.in.k + 31) / 32; b++) {
      double amax = block_amax(s, from, o, b);
      watch.expected.blocks += amax != 0;
      watch.expected.starved += amax != 0 && isfinite(amax) && !isnan(scale.scale) &&
                                (float)amax * scale.scale < (narrow == B200_NARROW_E4M3 ? 0x1p-4f : 0x1p-12f);
    }
  if (guarded)
    watch_check(&watch, &counters);
  free(dst.memory);
}

/* Largest amax that exponent `e` is enough for. */
static double largest_amax(enum b200_narrow narrow, int e) {
  static double table[B200_NARROW_COUNT][255];
  for (int i = 0; table[narrow][254] == 0 && i < 255; i++)
    table[narrow][i] = ldexp(formats[narrow].fp_max, i - 127);
  return table[narrow][e];
}

/* E8M0 by its definitions. */
static uint8_t exponent_of(double amax, enum b200_narrow narrow, enum b200_mx_rounding rounding) {
  int exponent, emax = narrow == B200_NARROW_E4M3 ? 8 : 15, mantissa = formats[narrow].mantissa;
  if (!isfinite(amax))
    return 0xff;
  if (amax == 0)
    return 0;
  double fraction = frexp(amax, &exponent); /* amax = fraction · 2^exponent, fraction in [0.5, 1) */
  int e = exponent - 1 - emax + 127;
  if (rounding == B200_MX_RCEIL) {
    for (e = 0; e < 254 && amax > largest_amax(narrow, e);)
      e++;
  } else if (rounding == B200_MX_EVEN && fraction >= 1 - ldexp(1, -mantissa - 2)) {
    e++;
  }
  return (uint8_t)(e < 0 ? 0 : e > 254 ? 254 : e);
}

static void check_mx(const struct source *s, enum b200_major major, enum b200_narrow narrow, enum b200_mx_rounding rounding,
                     bool guarded) {
  enum b200_kernel kernel = b200_kernel_mx(s->type, major);
  struct b200_operand in = operand_of(s, major);
  int64_t ld = padded(s->width) + (random_bits() % 2 ? 16 : 0), blocks = b200_scale_blocks(in.k);
  struct destination dst = destination_make((size_t)(s->lines * ld), 0x5a);
  struct destination scales = destination_make((size_t)b200_scale_bytes(in.outer, in.k), 0xee);
  struct watch watch = {.narrow = narrow};
  struct b200_guard_counters counters = {0};
  struct b200_mx_args args = {.in = in,
                              .dst = dst.start,
                              .dst_ld = ld,
                              .scales = scales.start,
                              .guard = guarded ? &counters : NULL,
                              .narrow = (uint8_t)narrow,
                              .rounding = (uint8_t)rounding};
  run(kernel, &args, NULL);
  uint8_t *expected_scales = calloc(scales.bytes, 1);
  ck_assert_ptr_nonnull(expected_scales);
  for (int64_t o = 0; o < in.outer; o++)
    for (int64_t b = 0; b * 32 < in.k; b++) {
      double amax = block_amax(s, major, o, b);
      uint8_t e = exponent_of(amax, narrow, rounding);
      expected_scales[b200_scale_offset(o, b, blocks)] = e;
      watch.expected.blocks += amax != 0;
      float scale = e == 0xff ? NAN : (float)ldexp(1, 127 - e);
      for (int64_t i = b * 32; i < in.k && i < b * 32 + 32; i++) {
        double x = operand_at(s, major, o, i);
        float product = (float)x * scale;
        if (guarded)
          watch_element(&watch, x, product);
        uint8_t seen = dst.start[major == B200_K_FAST ? o * ld + i : i * ld + o],
                expected = nearest_code(narrow, (double)product);
        CHECK(seen == expected, "%s, %d, %d: (%ld, %ld) %a, e %02x: %02x, not %02x", b200_kernels[kernel].name, narrow,
              rounding, (long)o, (long)i, x, e, seen, expected);
      }
    }
  for (size_t i = 0; i < scales.bytes; i++)
    CHECK(scales.start[i] == expected_scales[i], "%s, %d × %d: scale byte %zu is %02x, not %02x", b200_kernels[kernel].name,
          (int)in.outer, (int)in.k, i, scales.start[i], expected_scales[i]);
  for (int64_t i = 0; i < s->lines; i++)
    for (int64_t j = padded(s->width); j < ld; j++)
      CHECK(dst.start[i * ld + j] == dst.poison, "%s wrote beyond a line's padding", b200_kernels[kernel].name);
  destination_check_margins(&dst);
  destination_check_margins(&scales);
  if (guarded)
    watch_check(&watch, &counters);
  free(expected_scales);
  free(dst.memory);
  free(scales.memory);
}

/* All conversions of one matrix. */
static void check_all(enum b200_source type, int64_t lines, int64_t width, int64_t ld, size_t offset, enum kind kind) {
  struct source s = source_make(type, lines, width, ld, offset, kind);
  for (int narrow = 0; narrow < B200_NARROW_COUNT; narrow++) {
    bool guarded = random_bits() % 2;
    check_cast(&s, B200_K_FAST, B200_K_FAST, (enum b200_narrow)narrow, guarded);
    check_cast(&s, B200_K_SLOW, B200_K_SLOW, (enum b200_narrow)narrow, guarded);
    check_cast(&s, B200_K_SLOW, B200_K_FAST, (enum b200_narrow)narrow, guarded);
    check_cast(&s, B200_K_FAST, B200_K_SLOW, (enum b200_narrow)narrow, guarded);
    for (int rounding = B200_MX_RCEIL; rounding <= B200_MX_EVEN; rounding++) {
      check_mx(&s, B200_K_FAST, (enum b200_narrow)narrow, (enum b200_mx_rounding)rounding, guarded);
      check_mx(&s, B200_K_SLOW, (enum b200_narrow)narrow, (enum b200_mx_rounding)rounding, guarded);
    }
  }
  free(s.memory);
}

static const int64_t sizes[] = {1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 161, 256, 259};
enum { SIZES = sizeof sizes / sizeof *sizes };

START_TEST(odd_sizes) {
  /* Sampled so that every size meets every type and kind in both places. */
  int step = is_long() ? 1 : 25, count = 0;
  for (int i = 0; i < SIZES; i++)
    for (int j = 0; j < SIZES; j++)
      for (int type = 0; type < B200_SOURCE_COUNT; type++)
        for (int kind = 0; kind < KINDS; kind++)
          if (count++ % step == 0)
            check_all((enum b200_source)type, sizes[i], sizes[j], sizes[j], 0, (enum kind)kind);
}
END_TEST

START_TEST(strides_and_alignments) {
  static const int64_t extra[] = {1, 3, 8, 13};
  for (int type = 0; type < B200_SOURCE_COUNT; type++)
    for (int i = 0; i < 4; i++)
      for (size_t offset = 0; offset < (is_long() ? 16u : 4u); offset++) {
        check_all((enum b200_source)type, 37, 50, 50 + extra[i], offset, WILD);
        check_all((enum b200_source)type, 130, 16, 16 + extra[i], offset, HEALTHY);
      }
}
END_TEST

START_TEST(zero_and_tiny_blocks) {
  for (int type = 0; type < B200_SOURCE_COUNT; type++) {
    struct source s = source_make((enum b200_source)type, 40, 96, 96, 0, HEALTHY);
    memset(s.memory, 0, 40 * 96 * s.size);
    for (int64_t i = 0; i < 40; i++) /* lines 0…19 zero, then one smallest subnormal each, negative zero beside it */
      if (i >= 20) {
        s.memory[(size_t)(i * 96 + i) * s.size] = 1;
        s.memory[(size_t)(i * 96 + i + 2) * s.size - 1] = 0x80;
      }
    for (int narrow = 0; narrow < B200_NARROW_COUNT; narrow++) {
      check_cast(&s, B200_K_FAST, B200_K_FAST, (enum b200_narrow)narrow, true);
      check_mx(&s, B200_K_FAST, (enum b200_narrow)narrow, B200_MX_RCEIL, true);
      check_mx(&s, B200_K_SLOW, (enum b200_narrow)narrow, B200_MX_RCEIL, true);
    }
    free(s.memory);
  }
}
END_TEST

/* Rows from, from + step, … */
static void check_layouts(int64_t from, int64_t step) {
  for (int64_t rows = from; rows <= 300; rows += step)
    for (int64_t k = 1; k <= 300; k += is_long() ? 1 : 11) {
      struct source s = source_make(B200_SOURCE_BF16, rows, k, k, 0, HEALTHY);
      check_mx(&s, B200_K_FAST, B200_NARROW_E4M3, B200_MX_RCEIL, false);
      free(s.memory);
      s = source_make(B200_SOURCE_BF16, k, rows, rows, 0, HEALTHY);
      check_mx(&s, B200_K_SLOW, B200_NARROW_E4M3, B200_MX_RCEIL, false);
      free(s.memory);
    }
}

/* Every (rows, k) up to 300: each scale where cuBLASLt reads it, and zeros around. In two processes. */
START_TEST(scale_layouts) {
  if (!is_long()) {
    check_layouts(1, 13);
    return;
  }
  pid_t child = fork();
  ck_assert_int_ge(child, 0);
  check_layouts(child == 0 ? 1 : 2, 2);
  if (child == 0)
    _exit(0);
  int status;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "odd rows: status %d", status);
}
END_TEST

START_TEST(nonfinite_shows) {
  static const uint32_t specials[B200_SOURCE_COUNT][4] = {
      {0x7f80, 0xff80, 0x7fc0, 0xff81}, {0x7c00, 0xfc00, 0x7e00, 0xfc01}, {0x7f800000, 0xff800000, 0x7fc00000, 0xff800001}};
  for (int type = 0; type < B200_SOURCE_COUNT; type++)
    for (int i = 0; i < 4; i++)
      for (int64_t at = 0; at < 64 * 64; at += 331) {
        struct source s = source_make((enum b200_source)type, 64, 64, 64, 0, HEALTHY);
        memcpy(s.memory + (size_t)at * s.size, &specials[type][i], s.size);
        check_cast(&s, B200_K_FAST, B200_K_FAST, B200_NARROW_E4M3, false);
        check_mx(&s, B200_K_FAST, B200_NARROW_E4M3, B200_MX_RCEIL, false);
        check_mx(&s, B200_K_SLOW, B200_NARROW_E4M3, B200_MX_RCEIL, false);
        /* With a scale that is older than the element, the element itself shows it. */
        struct b200_tensor_scale scale = {.scale = 2, .inverse = 0.5f};
        struct destination dst = destination_make(64 * 64, 0);
        struct b200_cast_args args = {.in = operand_of(&s, B200_K_FAST), .dst = dst.start, .dst_ld = 64, .scale = &scale};
        run(b200_kernel_cast(s.type, B200_K_FAST, B200_K_FAST), &args, NULL);
        ck_assert(is_nan_code(B200_NARROW_E4M3, dst.start[at]));
        args.in.major = B200_K_SLOW;
        run(b200_kernel_cast(s.type, B200_K_SLOW, B200_K_FAST), &args, NULL);
        ck_assert(is_nan_code(B200_NARROW_E4M3, dst.start[at % 64 * 64 + at / 64]));
        free(dst.memory);
        free(s.memory);
      }
}
END_TEST

/* A slot is used again for other data, as an arena does it. */
START_TEST(scale_follows_the_data) {
  struct b200_tensor_scale scale = {0};
  for (int i = 0; i < 20; i++) {
    struct source s = source_make(B200_SOURCE_BF16, 1 + i * 40, 130, 130, 0, i % 2 ? WILD : HEALTHY);
    struct b200_amax_args args = {.in = operand_of(&s, B200_K_FAST), .scale = &scale, .fp_max = 448};
    run(b200_kernel_amax(s.type), &args, NULL);
    check_scale(&s, B200_NARROW_E4M3, &scale);
    free(s.memory);
  }
}
END_TEST

START_TEST(saturates) {
  struct source s = source_make(B200_SOURCE_BF16, 16, 16, 16, 0, HEALTHY);
  for (int narrow = 0; narrow < B200_NARROW_COUNT; narrow++) {
    struct b200_tensor_scale scale = {.scale = 0x1p60f};
    struct destination dst = destination_make(256, 0);
    struct b200_cast_args args = {
        .in = operand_of(&s, B200_K_FAST), .dst = dst.start, .dst_ld = 16, .scale = &scale, .narrow = (uint8_t)narrow};
    run(b200_kernel_cast(s.type, B200_K_FAST, B200_K_FAST), &args, NULL);
    for (int i = 0; i < 256; i++)
      ck_assert_int_eq(dst.start[i] & 0x7f, formats[narrow].largest);
    free(dst.memory);
  }
  free(s.memory);
}
END_TEST

START_TEST(errors_add_up) {
  for (int type = 0; type < B200_SOURCE_COUNT; type++)
    for (int i = 0; i < SIZES; i += 2) {
      struct source d = source_make((enum b200_source)type, 131, sizes[i], sizes[i] + 3, 0, HEALTHY);
      struct source r = source_make((enum b200_source)type, 131, sizes[i], sizes[i], 1, HEALTHY);
      double difference = 0, size = 0, sums[2] = {1, 2};
      for (int64_t n = 0; n < 131; n++)
        for (int64_t m = 0; m < sizes[i]; m++) {
          double apart = (double)((float)source_at(&d, n, m) - (float)source_at(&r, n, m)), y = source_at(&r, n, m);
          difference += apart * apart;
          size += y * y;
        }
      struct b200_error_args args = {.d = d.start,
                                     .reference = r.start,
                                     .m = sizes[i],
                                     .n = 131,
                                     .ldd = d.ld,
                                     .ldr = r.ld,
                                     .sums = sums,
                                     .type = (uint8_t)type};
      run(b200_kernel_error((enum b200_source)type), &args, NULL);
      ck_assert_double_eq_tol(sums[0] - 1, difference, 1e-9 * difference + 1e-12);
      ck_assert_double_eq_tol(sums[1] - 2, size, 1e-9 * size);
      free(d.memory);
      free(r.memory);
    }
}
END_TEST

/* Bytes moved are the compulsory ones, in 128-bit accesses, where sizes and addresses are aligned; each block reads the
 * scale. */
START_TEST(moves_compulsory_bytes) {
  for (int type = 0; type < B200_SOURCE_COUNT; type++) {
    struct source s = source_make((enum b200_source)type, 256, 512, 512, 0, HEALTHY);
    uint64_t elements = 256 * 512, bytes = elements * s.size, blocks = elements / (B200_TILE * B200_TILE);
    struct destination dst = destination_make(elements, 0), scales = destination_make(elements / 32, 0);
    struct b200_tensor_scale scale = {0};
    for (int major = B200_K_FAST; major <= B200_K_SLOW; major++) {
      struct b200_operand in = operand_of(&s, (enum b200_major)major);
      struct b200_cpu_traffic amax = {0}, cast = {0}, turned = {0}, mx = {0};
      run(b200_kernel_amax(s.type), &(struct b200_amax_args){.in = in, .scale = &scale, .fp_max = 448}, &amax);
      ck_assert_uint_eq(amax.loaded, bytes);
      ck_assert_uint_eq(amax.stored, 0);
      ck_assert_uint_eq(amax.narrow_loads, 0);
      struct b200_cast_args args = {.in = in, .dst = dst.start, .dst_ld = 512, .scale = &scale};
      run(b200_kernel_cast(s.type, (enum b200_major)major, (enum b200_major)major), &args, &cast);
      ck_assert_uint_eq(cast.loaded, bytes + 4 * blocks);
      ck_assert_uint_eq(cast.stored, elements);
      ck_assert_uint_eq(cast.narrow_loads, blocks);
      if (major == B200_K_SLOW) {
        args.dst_ld = 256;
        run(b200_kernel_cast(s.type, B200_K_SLOW, B200_K_FAST), &args, &turned);
        ck_assert_uint_eq(turned.loaded, bytes + 4 * blocks);
        ck_assert_uint_eq(turned.stored, elements);
        ck_assert_uint_eq(turned.narrow_loads, blocks);
      }
      run(b200_kernel_mx(s.type, (enum b200_major)major),
          &(struct b200_mx_args){.in = in, .dst = dst.start, .dst_ld = 512, .scales = scales.start}, &mx);
      ck_assert_uint_eq(mx.loaded, bytes);
      ck_assert_uint_eq(mx.stored, elements + elements / 32);
      ck_assert_uint_eq(mx.narrow_loads, 0);
    }
    free(dst.memory);
    free(scales.memory);
    free(s.memory);
  }
}
END_TEST

/* Marks the bytes of `memory` that lie in ranges of the wanted kind. */
static void mark(const struct b200_range *ranges, int count, uint32_t write, const uint8_t *memory, size_t bytes,
                 uint8_t *out) {
  memset(out, 0, bytes);
  for (int i = 0; i < count; i++)
    for (int64_t row = 0; ranges[i].write == write && row < ranges[i].rows; row++)
      for (int64_t byte = 0; byte < ranges[i].row_bytes; byte++) {
        const uint8_t *at = (const uint8_t *)ranges[i].start + row * ranges[i].pitch + byte;
        if (at >= memory && at < memory + bytes)
          out[at - memory] = 1;
      }
}

/* What b200_kernel_accesses() says is what a launch writes: two runs over different poison differ exactly elsewhere. */
START_TEST(accesses_are_what_is_touched) {
  struct source s = source_make(B200_SOURCE_BF16, 45, 70, 75, 1, HEALTHY);
  struct b200_tensor_scale scale = {.scale = 3};
  for (int form = 0; form < 5; form++) {
    enum b200_major from = form == 0 || form == 3 ? B200_K_FAST : B200_K_SLOW;
    enum b200_kernel kernel = form == 0   ? b200_kernel_cast(s.type, from, B200_K_FAST)
                              : form == 1 ? b200_kernel_cast(s.type, from, B200_K_SLOW)
                              : form == 2 ? b200_kernel_cast(s.type, from, B200_K_FAST)
                                          : b200_kernel_mx(s.type, from);
    struct destination dst[2] = {destination_make(70 * 112, 0x33), destination_make(70 * 112, 0xcc)};
    struct destination scales[2] = {destination_make(512, 0x33), destination_make(512, 0xcc)};
    static uint8_t data_marks[70 * 112], scale_marks[512];
    for (int i = 0; i < 2; i++) {
      struct b200_range ranges[B200_RANGES_MAX];
      struct b200_cast_args cast = {.in = operand_of(&s, from), .dst = dst[i].start, .dst_ld = 112, .scale = &scale};
      struct b200_mx_args mx = {.in = cast.in, .dst = dst[i].start, .dst_ld = 112, .scales = scales[i].start};
      const void *args = form < 3 ? (const void *)&cast : &mx;
      run(kernel, args, NULL);
      int count = b200_kernel_accesses(kernel, args, ranges);
      ck_assert_int_le(count, B200_RANGES_MAX);
      ck_assert_ptr_eq(ranges[0].start, s.start);
      ck_assert_int_eq(ranges[0].rows, 45);
      ck_assert_int_eq(ranges[0].row_bytes, 140);
      ck_assert_int_eq(ranges[0].pitch, 150);
      mark(ranges, count, 1, dst[i].start, sizeof data_marks, data_marks);
      mark(ranges, count, 1, scales[i].start, sizeof scale_marks, scale_marks);
    }
    for (size_t i = 0; i < sizeof data_marks; i++)
      CHECK((dst[0].start[i] == dst[1].start[i]) == data_marks[i], "%s: byte %zu", b200_kernels[kernel].name, i);
    for (size_t i = 0; i < sizeof scale_marks; i++)
      ck_assert_int_eq(scales[0].start[i] == scales[1].start[i], scale_marks[i]);
    for (int i = 0; i < 2; i++) {
      free(dst[i].memory);
      free(scales[i].memory);
    }
  }
  free(s.memory);
}
END_TEST

static struct source shared_source;
static struct b200_guard_counters shared_counters;

static void *cast_once(void *unused) {
  (void)unused;
  static _Thread_local uint8_t dst[300 * 304] __attribute__((aligned(16)));
  struct b200_tensor_scale scale = {.scale = 1};
  struct b200_cast_args args = {
      .in = operand_of(&shared_source, B200_K_FAST), .dst = dst, .dst_ld = 304, .scale = &scale, .guard = &shared_counters};
  b200_cpu_run(b200_kernel_cast(shared_source.type, B200_K_FAST, B200_K_FAST), &args,
               b200_kernel_blocks(b200_kernel_cast(shared_source.type, B200_K_FAST, B200_K_FAST), &args, 1), NULL);
  return NULL;
}

START_TEST(threads_share_counters) {
  pthread_t threads[4];
  shared_source = source_make(B200_SOURCE_F16, 300, 301, 301, 0, WILD);
  for (int i = 0; i < 4; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, cast_once, NULL), 0);
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  ck_assert_uint_eq(shared_counters.elements, 4 * 300 * 301);
  ck_assert_uint_eq(shared_counters.blocks % 4, 0);
  free(shared_source.memory);
}
END_TEST

START_TEST(subnormals_survive_the_callers_mode) {
#ifdef __SSE__
  unsigned mode = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(mode |
                         0x8040); /* flush to zero, subnormals are zero: as torch.set_flush_denormal(True) sets them */
  uint32_t tiny = 0x00000123, bits;
  uint8_t dst[16] __attribute__((aligned(16)));
  uint8_t scales[512] __attribute__((aligned(16)));
  struct b200_mx_args args = {.in = {.src = &tiny, .ld = 1, .outer = 1, .k = 1, .type = B200_SOURCE_F32},
                              .dst = dst,
                              .dst_ld = 16,
                              .scales = scales};
  b200_cpu_run(B200_KERNEL_MX_F32_KFAST, &args, 1, NULL);
  bits = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(mode);
  ck_assert_uint_eq(bits & 0x8040, 0x8040);
  ck_assert_uint_eq(dst[0], nearest_code(B200_NARROW_E4M3, ldexp(0x123, -149 + 127)));
#endif
}
END_TEST

START_TEST(every_kernel_has_a_name) {
  for (int i = 0; i < B200_KERNEL_COUNT; i++) {
    ck_assert_int_eq(b200_kernel_find(b200_kernels[i].name), i);
    ck_assert_uint_eq(b200_kernels[i].threads, B200_KERNEL_THREADS);
    ck_assert_uint_eq(b200_kernels[i].args_bytes % 8, 0);
  }
  ck_assert_int_eq(b200_kernel_find("b200_none"), B200_KERNEL_COUNT);
  ck_assert_str_eq(b200_kernels[b200_kernel_cast(B200_SOURCE_F16, B200_K_SLOW, B200_K_FAST)].name,
                   "b200_cast_transpose_f16");
}
END_TEST

/* clang-format off */
#define CASES(X) \
  X(every_kernel_has_a_name) \
  X(odd_sizes) \
  X(strides_and_alignments) \
  X(zero_and_tiny_blocks) \
  X(scale_layouts) \
  X(nonfinite_shows) \
  X(scale_follows_the_data) \
  X(saturates) \
  X(errors_add_up) \
  X(moves_compulsory_bytes) \
  X(accesses_are_what_is_touched) \
  X(threads_share_counters) \
  X(subnormals_survive_the_callers_mode)
/* clang-format on */
UNIT_MAIN("quant", CASES)
