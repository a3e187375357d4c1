/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The quantisation kernels; what they compute is said in quant.h. Compiled by nvcc for the GPU and, through cpu.cc, by g++
 * for the executor.
 *
 * A block works on a tile of 128 lines × 128 columns; a thread holds a patch of it, 4 lines × 16 columns: eight patches side
 * by side, 32 below each other. 16 columns are one 128-bit store of FP8; a tile in either direction covers 128 × 4 blocks of
 * MXFP8, whose scales are one tile of 512 bytes.
 */
#include "interpose/exec/quant.h"

/* Deliberate faults for tests that must notice them (tests/exec); the product is built without. */
#define B200_BREAK_NONE 0
#define B200_BREAK_SATURATION 1
#define B200_BREAK_AXIS 2
#define B200_BREAK_STALE 3
#define B200_BREAK_SWIZZLE 4
#define B200_BREAK_PADDING 5
#define B200_BREAK_FMAXF 6
#ifndef B200_BREAK
#define B200_BREAK B200_BREAK_NONE
#endif
#define B200_BROKEN(what) (B200_BREAK == B200_BREAK_##what)

#ifdef __CUDACC__
#if B200_BREAK
#error "faults are for the executor only"
#endif
#include "interpose/exec/target_gpu.cuh"
#else
#include "interpose/exec/target_cpu.h"
#endif

namespace {

constexpr unsigned patch_lines = 4, patch_columns = 16, patches_wide = B200_TILE / patch_columns;
constexpr unsigned block_length = 32; /* elements that share a scale in MXFP8 */
constexpr unsigned blocks_deep = B200_TILE / block_length;
constexpr unsigned scale_tile_bytes = B200_TILE * blocks_deep;
constexpr uint32_t infinite = 0x7f800000;

static_assert(B200_TILE / patch_lines * patches_wide == B200_KERNEL_THREADS, "every thread has one patch");
static_assert(2 * patch_columns == block_length, "a block of a line is held by threads t and t ^ 1");

/* Source types: how many share a 32-bit word, and what is in it; quiet is the bit that makes a NaN of Inf. */
struct bf16 {
  typedef uint16_t bits;
  static constexpr unsigned per_word = 2;
  static constexpr uint32_t magnitudes = 0x7fff7fff, infinities = 0x7f807f80, quiet = 0x40;
  B200_METHOD static float to_float(uint32_t element) {
    return as_float(element << 16);
  }
};

struct f16 {
  typedef uint16_t bits;
  static constexpr unsigned per_word = 2;
  static constexpr uint32_t magnitudes = 0x7fff7fff, infinities = 0x7c007c00, quiet = 0x200;
  B200_METHOD static float to_float(uint32_t element) {
    return half_as_float(element);
  }
};

struct f32 {
  typedef uint32_t bits;
  static constexpr unsigned per_word = 1;
  static constexpr uint32_t magnitudes = 0x7fffffff, infinities = infinite, quiet = 0x400000;
  B200_METHOD static float to_float(uint32_t element) {
    return as_float(element);
  }
};

/* Sixteen elements of a line as they lie in memory. */
template <class S> struct vector {
  static constexpr unsigned words = patch_columns / S::per_word;
  uint32_t word[words];
};

template <class S> struct patch { vector<S> line[patch_lines]; };

template <class S> B200_FUNCTION uint32_t element(uint32_t word, unsigned place) {
  return S::per_word == 1 ? word : place ? word >> 16 : word & 0xffff;
}

template <class S> B200_FUNCTION void unpack(const vector<S> &in, float out[patch_columns]) {
#pragma unroll
  for (unsigned i = 0; i < vector<S>::words; i++)
#pragma unroll
    for (unsigned place = 0; place < S::per_word; place++)
      out[i * S::per_word + place] = S::to_float(element<S>(in.word[i], place));
}

/* Larger magnitude, element by element; a NaN is larger than all numbers because bits are compared. */
template <class S> B200_FUNCTION uint32_t larger_elements(uint32_t a, uint32_t b) {
  return S::per_word == 1 ? larger(a, b) : larger_halves(a, b);
}

template <class S> B200_FUNCTION uint32_t largest_element(uint32_t word) {
  return S::per_word == 1 ? word : larger(word & 0xffff, word >> 16);
}

/* The magnitudes in a word. */
template <class S> B200_FUNCTION uint32_t comparable(uint32_t word) {
  word &= S::magnitudes;
  if (B200_BROKEN(FMAXF))
    for (unsigned i = 0; i < S::per_word; i++) {
      float x = S::to_float(element<S>(word, i));
      word = x != x ? word & ~((S::per_word == 1 ? ~0u : 0xffffu) << 16 * i) : word;
    }
  return word;
}

template <class S> B200_FUNCTION uint32_t largest_magnitude(const vector<S> &in) {
  uint32_t peak = 0;
#pragma unroll
  for (unsigned i = 0; i < vector<S>::words; i++)
    peak = larger_elements<S>(peak, comparable<S>(in.word[i]));
  return largest_element<S>(peak);
}

/* Largest magnitude, column by column, of what was found so far and of a line's elements. */
template <class S> B200_FUNCTION vector<S> larger_vector(vector<S> peaks, const vector<S> &in) {
#pragma unroll
  for (unsigned i = 0; i < vector<S>::words; i++)
    peaks.word[i] = larger_elements<S>(peaks.word[i], comparable<S>(in.word[i]));
  return peaks;
}

/* FP32 bits of a magnitude of type S. */
template <class S> B200_FUNCTION uint32_t magnitude_bits(uint32_t magnitude) {
  return as_bits(S::to_float(magnitude));
}

/* Makes a NaN of every Inf, which saturation would hide. (In MXFP8 the block's scale does it.) */
template <class S> B200_FUNCTION void show_infinities(patch<S> &in) {
  constexpr uint32_t signs = ~S::magnitudes, distance = signs - S::infinities; /* sets the sign bit if added to Inf or NaN */
  uint32_t seen = 0;
#pragma unroll
  for (unsigned r = 0; r < patch_lines; r++)
#pragma unroll
    for (unsigned i = 0; i < vector<S>::words; i++)
      seen |= (in.line[r].word[i] & S::magnitudes) + distance;
  if (!(seen & signs))
    return;
#pragma unroll
  for (unsigned r = 0; r < patch_lines; r++)
#pragma unroll
    for (unsigned i = 0; i < vector<S>::words; i++) {
      uint32_t &word = in.line[r].word[i];
      uint32_t nonfinite = (((word & S::magnitudes) + distance) & signs) >> (32 / S::per_word - 1);
      word |= nonfinite * S::quiet;
    }
}

/* An operand as it lies in memory: `lines` of `width` contiguous elements, `ld` elements apart. */
struct matrix {
  const void *start;
  int64_t ld, lines, width;
};

B200_FUNCTION matrix by_lines(const b200_operand &in, bool k_fast) {
  return {in.src, in.ld, k_fast ? in.outer : in.k, k_fast ? in.k : in.outer};
}

B200_FUNCTION uint32_t tiles(int64_t elements) {
  return (uint32_t)((elements + B200_TILE - 1) / B200_TILE);
}

/* Where a tile or a patch starts. */
struct place {
  int64_t line, column;
};

B200_FUNCTION place tile_place(const matrix &m, uint32_t tile) {
  uint32_t wide = tiles(m.width);
  return {(int64_t)(tile / wide) * B200_TILE, (int64_t)(tile % wide) * B200_TILE};
}

B200_FUNCTION place patch_place(const place &tile, unsigned t) {
  return {tile.line + t / patches_wide * patch_lines, tile.column + t % patches_wide * patch_columns};
}

template <class S> B200_FUNCTION const typename S::bits *address(const matrix &m, int64_t line, int64_t column) {
  return static_cast<const typename S::bits *>(m.start) + line * m.ld + column;
}

template <class S> B200_FUNCTION void load_wide(block &block, const void *from, vector<S> &out) {
#pragma unroll
  for (unsigned i = 0; i < vector<S>::words; i += 4) {
    chunk c = load_chunk(block, static_cast<const uint32_t *>(from) + i);
#pragma unroll
    for (unsigned j = 0; j < 4; j++)
      out.word[i + j] = c.word[j];
  }
}

B200_FUNCTION bool is_aligned(const void *address) {
  return reinterpret_cast<uintptr_t>(address) % sizeof(chunk) == 0;
}

/* Sixteen elements from (line, column) on; what lies outside the matrix is zero. */
template <class S>
B200_FUNCTION void load_line(block &block, const matrix &m, int64_t line, int64_t column, vector<S> &out) {
  int64_t left = line < m.lines ? m.width - column : 0;
  const typename S::bits *from = address<S>(m, line, column);
  if (left >= patch_columns && is_aligned(from)) {
    load_wide(block, from, out);
    return;
  }
#pragma unroll
  for (unsigned i = 0; i < vector<S>::words; i++) {
    out.word[i] = 0;
#pragma unroll
    for (unsigned place = 0; place < S::per_word; place++)
      if (i * S::per_word + place < left)
        out.word[i] |= (uint32_t)load_one(block, from + i * S::per_word + place) << 16 * place;
  }
}

template <class S> B200_FUNCTION void load_patch(block &block, const matrix &m, const place &at, patch<S> &out) {
  bool whole = at.line + patch_lines <= m.lines && at.column + patch_columns <= m.width;
  if (whole && is_aligned(address<S>(m, at.line, at.column)) &&
      m.ld % (int64_t)(sizeof(chunk) / sizeof(typename S::bits)) == 0) {
#pragma unroll
    for (unsigned r = 0; r < patch_lines; r++)
      load_wide(block, address<S>(m, at.line + r, at.column), out.line[r]);
    return;
  }
#pragma unroll
  for (unsigned r = 0; r < patch_lines; r++)
    load_line(block, m, at.line + r, at.column, out.line[r]);
}

/* Scales of a patch: one for all of it, one for each line, or one for each column. of_line(r)[i] is that of an element. */
struct one_scale {
  float value;
  B200_METHOD one_scale of_line(unsigned) const {
    return *this;
  }
  B200_METHOD float operator[](unsigned) const {
    return value;
  }
};

struct line_scales {
  float value[patch_lines];
  B200_METHOD one_scale of_line(unsigned r) const {
    return {value[r]};
  }
};

struct column_scales {
  float value[patch_columns];
  B200_METHOD const column_scales &of_line(unsigned) const {
    return *this;
  }
  B200_METHOD float operator[](unsigned i) const {
    return value[i];
  }
};

template <b200_narrow N, class S, class Scale> B200_FUNCTION chunk quantise(const vector<S> &in, const Scale &scale) {
  float x[patch_columns];
  unpack(in, x);
  chunk out;
#pragma unroll
  for (unsigned i = 0; i < patch_columns; i++)
    x[i] *= scale[i];
#pragma unroll
  for (unsigned i = 0; i < 4; i++)
    out.word[i] = narrow4<N>(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
  return out;
}

/* Where a launch writes its lines. */
struct destination {
  void *start;
  int64_t ld;
};

B200_FUNCTION void store_line(block &block, const destination &to, const matrix &m, int64_t line, int64_t column,
                              const chunk &c) {
  if (line < m.lines && column < m.width)
    store_chunk(block, static_cast<unsigned char *>(to.start) + line * to.ld + column, c);
}

template <class S, class Scale>
B200_FUNCTION void store_patch(block &block, uint8_t narrow, const destination &to, const matrix &m, const place &at,
                               const patch<S> &in, const Scale &scale) {
#pragma unroll
  for (unsigned r = 0; r < patch_lines; r++)
    store_line(block, to, m, at.line + r, at.column,
               narrow == B200_NARROW_E4M3 ? quantise<B200_NARROW_E4M3>(in.line[r], scale.of_line(r))
                                          : quantise<B200_NARROW_E5M2>(in.line[r], scale.of_line(r)));
}

/* Column i of the patch as one word, its first line in the lowest byte. */
template <b200_narrow N, class S>
B200_FUNCTION void quantise_columns_as(const patch<S> &in, float scale, uint32_t out[patch_columns]) {
#pragma unroll
  for (unsigned i = 0; i < patch_columns; i++) {
    float x[patch_lines];
#pragma unroll
    for (unsigned r = 0; r < patch_lines; r++)
      x[r] = S::to_float(element<S>(in.line[r].word[i / S::per_word], i % S::per_word)) * scale;
    out[i] = narrow4<N>(x[0], x[1], x[2], x[3]);
  }
}

template <class S>
B200_FUNCTION void quantise_columns(uint8_t narrow, const patch<S> &in, float scale, uint32_t out[patch_columns]) {
  if (narrow == B200_NARROW_E4M3)
    quantise_columns_as<B200_NARROW_E4M3>(in, scale, out);
  else
    quantise_columns_as<B200_NARROW_E5M2>(in, scale, out);
}

/* E8M0 of a block whose largest magnitude has these FP32 bits. Adding to the bits before the exponent is taken is the
   rounding: RCEIL goes up beyond 1.75 · 2^n (448 = 1.75 · 2^8, 57344 = 1.75 · 2^15), EVEN from where the block's largest
   element itself would round up to the next power of two (as torchao has it). */
B200_FUNCTION uint32_t exponent_of(uint32_t magnitude, uint8_t narrow, uint8_t rounding) {
  uint32_t up = rounding == B200_MX_RCEIL    ? 0x1fffff
                : rounding == B200_MX_FLOOR  ? 0
                : narrow == B200_NARROW_E4M3 ? 0x80000
                                             : 0x100000;
  uint32_t emax = narrow == B200_NARROW_E4M3 ? 8 : 15;
  uint32_t exponent = (magnitude + up) >> 23;
  return magnitude >= infinite ? 0xff : exponent > emax ? exponent - emax : 0;
}

/* 2^(127 − e): 1 to 2^127; NaN for 0xff, which makes all of the block NaN. */
B200_FUNCTION float scale_of_exponent(uint32_t e) {
  return as_float(e == 0xff ? 0x7fc00000 : (254 - e) << 23);
}

/* Place of a scale within its tile: row `outer`, block `deep` along k. */
B200_FUNCTION unsigned scale_place(unsigned outer, unsigned deep) {
  if (B200_BROKEN(SWIZZLE))
    return outer * blocks_deep + deep;
  return outer % 32 * 16 + outer / 32 * 4 + deep;
}

/* The scales of the tile whose first row and element along k are these, all 512 bytes of them: those of rows and blocks
   outside the matrix are zero, as the elements there were. */
B200_FUNCTION void store_scales(block &block, const b200_mx_args &args, int64_t outer, int64_t k, int64_t all_k,
                                const uint8_t *scales, unsigned t) {
  uint8_t *to = args.scales + (outer / B200_TILE * tiles(all_k) + k / B200_TILE) * scale_tile_bytes;
  if (B200_BROKEN(PADDING)) {
    for (unsigned i = t; i < scale_tile_bytes; i += B200_KERNEL_THREADS)
      if (outer + i / blocks_deep < args.in.outer && k + i % blocks_deep * block_length < args.in.k)
        to[scale_place(i / blocks_deep, i % blocks_deep)] = scales[scale_place(i / blocks_deep, i % blocks_deep)];
    return;
  }
  if (t < scale_tile_bytes / sizeof(chunk))
    store_chunk(block, to + t * sizeof(chunk), reinterpret_cast<const chunk *>(scales)[t]);
}

/* Counts for the guard, in the order of struct b200_guard_counters. */
enum { BLOCKS, STARVED, NONFINITE, UNDERFLOWN, SATURATED, ELEMENTS, COUNTERS };

struct tally {
  uint32_t count[COUNTERS];
};

/* Magnitudes, as FP32 bits, that become zero (up to half of the smallest subnormal, which goes to even) and those that
   rounding takes beyond the largest value (above 464, where 464 goes to even; from 61440 on). */
B200_FUNCTION uint32_t vanishing(uint8_t narrow) {
  return narrow == B200_NARROW_E4M3 ? 0x3a800000 : 0x37000000;
}

B200_FUNCTION uint32_t last_unsaturated(uint8_t narrow) {
  return narrow == B200_NARROW_E4M3 ? 0x43e80000 : 0x476fffff;
}

template <class S, class Scale>
B200_FUNCTION void count_line(uint8_t narrow, const vector<S> &in, const Scale &scale, const matrix &m, int64_t line,
                              int64_t column, tally &out) {
  if (line >= m.lines || column >= m.width)
    return;
  float x[patch_columns];
  unpack(in, x);
  uint32_t nonfinite = 0, underflown = 0, saturated = 0;
#pragma unroll
  for (unsigned i = 0; i < patch_columns; i++) {
    uint32_t before = as_bits(x[i]) & 0x7fffffff, after = as_bits(x[i] * scale[i]) & 0x7fffffff;
    nonfinite += before >= infinite;
    underflown += before != 0 && after <= vanishing(narrow);
    saturated += before < infinite && after > last_unsaturated(narrow) && after <= infinite;
  }
  out.count[NONFINITE] += nonfinite;
  out.count[UNDERFLOWN] += underflown;
  out.count[SATURATED] += saturated;
  out.count[ELEMENTS] += (uint32_t)(m.width - column < patch_columns ? m.width - column : patch_columns);
}

/* One block of 32 along k with this largest magnitude (FP32 bits). */
B200_FUNCTION void count_block(uint8_t narrow, uint32_t magnitude, float scale, tally &out) {
  float starving = narrow == B200_NARROW_E4M3 ? 0x1p-4f : 0x1p-12f;
  out.count[BLOCKS] += magnitude != 0;
  out.count[STARVED] += magnitude != 0 && as_float(magnitude) * scale < starving;
}

/* Shared by a block: the largest magnitudes by column, a row for each thread's four lines. */
template <class S> struct column_peaks {
  static constexpr unsigned words = B200_TILE / S::per_word, shares = block_length / patch_lines;
  alignas(16) uint32_t peak[B200_TILE / patch_lines][words];

  B200_METHOD void put(unsigned t, const vector<S> &peaks) {
#pragma unroll
    for (unsigned i = 0; i < vector<S>::words; i++)
      peak[t / patches_wide][t % patches_wide * vector<S>::words + i] = peaks.word[i];
  }

  /* Of block `deep` of 32 lines, one word of columns. */
  B200_METHOD uint32_t of_block(unsigned deep, unsigned word) const {
    uint32_t out = 0;
#pragma unroll
    for (unsigned i = 0; i < shares; i++)
      out = larger_elements<S>(out, peak[deep * shares + i][word]);
    return out;
  }
};

/* The scales of line r of thread t's patch: the tensor's, or those of MXFP8's blocks, from their exponents. */
struct of_tensor {
  float scale;
  B200_METHOD one_scale operator()(unsigned, unsigned) const {
    return {scale};
  }
};

struct of_lines {
  const uint8_t *tile; /* 512 bytes as cuBLASLt has them */
  B200_METHOD one_scale operator()(unsigned t, unsigned r) const {
    return {scale_of_exponent(tile[scale_place(t / patches_wide * patch_lines + r, t % patches_wide / 2)])};
  }
};

struct of_columns {
  const uint8_t (*exponents)[B200_TILE]; /* by block of lines and column */
  B200_METHOD column_scales operator()(unsigned t, unsigned = 0) const {
    const uint8_t *e = exponents[t / patches_wide * patch_lines / block_length] + t % patches_wide * patch_columns;
    column_scales out;
#pragma unroll
    for (unsigned i = 0; i < patch_columns; i++)
      out.value[i] = scale_of_exponent(e[i]);
    return out;
  }
};

/*
 * What the guard wants to know of a tile. The tile is read again, from a cache as a rule, and line by line: calls that are
 * sampled pay for it, and the others do not keep it in registers. `scale`: of the tensor; Inf, with which nothing is
 * starved, in MXFP8.
 */
template <class S, bool ALONG_LINES, class Scales>
B200_FUNCTION void guard_tile(block &block, matrix m, const place &tile, uint8_t narrow, const Scales &scales, float scale,
                              b200_guard_counters *guard) {
  per_thread<tally> mine;
  per_thread<vector<S>> column;
  per_thread<uint32_t> peak;
  B200_SHARED column_peaks<S> peaks;
  B200_SHARED uint32_t counts[COUNTERS];
  hide(m.start);
  B200_THREADS(t) {
    mine[t] = tally();
    column[t] = vector<S>();
    if (t < COUNTERS)
      counts[t] = 0;
  }
#pragma unroll 1
  for (unsigned r = 0; r < patch_lines; r++) {
    B200_THREADS(t) {
      place at = patch_place(tile, t);
      vector<S> in;
      load_line(block, m, at.line + r, at.column, in);
      count_line(narrow, in, scales(t, r), m, at.line + r, at.column, mine[t]);
      peak[t] = largest_magnitude(in);
      column[t] = larger_vector(column[t], in);
    }
    if (ALONG_LINES)
      B200_THREADS(t) {
        uint32_t magnitude = larger(peak[t], B200_NEIGHBOUR(peak, t));
        if (t % 2 == 0)
          count_block(narrow, magnitude_bits<S>(magnitude), scale, mine[t]);
      }
  }
  if (!ALONG_LINES) {
    B200_THREADS(t) {
      peaks.put(t, column[t]);
    }
    B200_SYNC();
    B200_THREADS(t) {
      for (unsigned turn = 0; turn < blocks_deep * peaks.words / B200_KERNEL_THREADS; turn++) {
        unsigned item = t + turn * B200_KERNEL_THREADS;
        uint32_t word = peaks.of_block(item / peaks.words, item % peaks.words);
#pragma unroll
        for (unsigned i = 0; i < S::per_word; i++)
          count_block(narrow, magnitude_bits<S>(element<S>(word, i)), scale, mine[t]);
      }
    }
  }
  B200_SYNC();
  B200_THREADS(t) {
#pragma unroll
    for (unsigned i = 0; i < COUNTERS; i++)
      shared_add(counts + i, mine[t].count[i]);
  }
  B200_SYNC();
  B200_THREADS(t) {
    if (t < COUNTERS)
      global_add(reinterpret_cast<unsigned long long *>(guard) + t, (unsigned long long)counts[t]);
  }
}

B200_FUNCTION void finish_scale(const b200_amax_args &args, uint32_t magnitude) {
  if (B200_BROKEN(STALE) && args.scale->scale != 0)
    return;
  float scale = args.fp_max / as_float(magnitude);
  scale = magnitude >= infinite ? as_float(0x7fc00000) : magnitude == 0 ? 1 : scale > 0x1p126f ? 0x1p126f : scale;
  args.scale->scale = scale;
  args.scale->inverse = 1 / scale;
}

template <class S> B200_FUNCTION void amax(block &block, const b200_amax_args &args) {
  const matrix m = by_lines(args.in, args.in.major == B200_K_FAST);
  const uint32_t count = tiles(m.lines) * tiles(m.width);
  per_thread<uint32_t> peak;
  B200_SHARED uint32_t block_peak;
  B200_THREADS(t) {
    peak[t] = 0;
    if (t == 0)
      block_peak = 0;
  }
  for (uint32_t tile = block.index; tile < count; tile += block.count) {
    place at = tile_place(m, tile);
    B200_THREADS(t) {
      patch<S> in;
      load_patch(block, m, patch_place(at, t), in);
#pragma unroll
      for (unsigned r = 0; r < patch_lines; r++)
        peak[t] = larger(peak[t], largest_magnitude(in.line[r]));
    }
  }
  B200_SYNC();
  B200_THREADS(t) {
    shared_larger(&block_peak, peak[t]);
  }
  B200_SYNC();
  B200_THREADS(t) {
    uint32_t all;
    if (t == 0 && global_larger_last(&args.scale->amax_bits, &args.scale->done, block_peak, block.count, &all))
      finish_scale(args, magnitude_bits<S>(all));
  }
}

template <class S, bool K_FAST> B200_FUNCTION void cast(block &block, const b200_cast_args &args) {
  const matrix m = by_lines(args.in, K_FAST);
  const place tile = tile_place(m, block.index);
  const float scale = load_one(block, &args.scale->scale);
  B200_THREADS(t) {
    place at = patch_place(tile, t);
    patch<S> in;
    load_patch(block, m, at, in);
    show_infinities(in);
    store_patch(block, args.narrow, {args.dst, args.dst_ld}, m, at, in, one_scale{scale});
  }
  if (args.guard)
    guard_tile<S, K_FAST>(block, m, tile, args.narrow, of_tensor{scale}, scale, args.guard);
}

template <class S> B200_FUNCTION void cast_transpose(block &block, const b200_cast_args &args) {
  const matrix m = by_lines(args.in, false);
  const place tile = tile_place(m, block.index);
  const float scale = load_one(block, &args.scale->scale);
  constexpr unsigned chunks = B200_TILE / sizeof(chunk);
  /* A row for each column of the tile. Chunk q of row c is kept at q ^ (c / 16): a warp's words, and then its chunks, fall
     into different banks. */
  B200_SHARED alignas(16) uint32_t turned[B200_TILE][B200_TILE / patch_lines];
  B200_THREADS(t) {
    patch<S> in;
    uint32_t column[patch_columns];
    load_patch(block, m, patch_place(tile, t), in);
    show_infinities(in);
    quantise_columns(args.narrow, in, scale, column);
    unsigned group = t % patches_wide, word = t / patches_wide;
#pragma unroll
    for (unsigned i = 0; i < patch_columns; i++)
      turned[group * patch_columns + i][(word / 4 ^ group) * 4 + word % 4] = column[i];
  }
  B200_SYNC();
  B200_THREADS(t) {
#pragma unroll
    for (unsigned turn = 0; turn < B200_TILE * chunks / B200_KERNEL_THREADS; turn++) {
      unsigned item = t + turn * B200_KERNEL_THREADS;
      unsigned row = item / chunks, q = item % chunks;
      int64_t line = tile.column + row, column = tile.line + q * (unsigned)sizeof(chunk);
      if (line < m.width && column < m.lines)
        store_chunk(block, static_cast<unsigned char *>(args.dst) + line * args.dst_ld + column,
                    reinterpret_cast<const chunk *>(turned[row])[q ^ row / patch_columns]);
    }
  }
  if (args.guard)
    guard_tile<S, false>(block, m, tile, args.narrow, of_tensor{scale}, scale, args.guard);
}

/* MXFP8 with blocks of 32 columns of a line. */
template <class S> B200_FUNCTION void mx_along_lines(block &block, const b200_mx_args &args, const matrix &m) {
  const place tile = tile_place(m, block.index);
  per_thread<patch<S>> held;
  per_thread<uint32_t> peak[patch_lines];
  B200_SHARED alignas(16) uint8_t scales[scale_tile_bytes];
  B200_THREADS(t) {
    load_patch(block, m, patch_place(tile, t), held[t]);
#pragma unroll
    for (unsigned r = 0; r < patch_lines; r++)
      peak[r][t] = largest_magnitude(held[t].line[r]);
  }
  B200_THREADS(t) {
    line_scales scale;
#pragma unroll
    for (unsigned r = 0; r < patch_lines; r++) {
      uint32_t magnitude = larger(peak[r][t], B200_NEIGHBOUR(peak[r], t));
      uint32_t e = exponent_of(magnitude_bits<S>(magnitude), args.narrow, args.rounding);
      scale.value[r] = scale_of_exponent(e);
      if (t % 2 == 0)
        scales[scale_place(t / patches_wide * patch_lines + r, t % patches_wide / 2)] = (uint8_t)e;
    }
    store_patch(block, args.narrow, {args.dst, args.dst_ld}, m, patch_place(tile, t), held[t], scale);
  }
  B200_SYNC();
  B200_THREADS(t) {
    store_scales(block, args, tile.line, tile.column, m.width, scales, t);
  }
  if (args.guard)
    guard_tile<S, true>(block, m, tile, args.narrow, of_lines{scales}, as_float(infinite), args.guard);
}

/* MXFP8 with blocks of 32 lines of a column. */
template <class S> B200_FUNCTION void mx_across_lines(block &block, const b200_mx_args &args, const matrix &m) {
  const place tile = tile_place(m, block.index);
  per_thread<patch<S>> held;
  B200_SHARED column_peaks<S> peaks;
  B200_SHARED alignas(16) uint8_t exponents[blocks_deep][B200_TILE], scales[scale_tile_bytes];
  B200_THREADS(t) {
    load_patch(block, m, patch_place(tile, t), held[t]);
    vector<S> column = vector<S>();
#pragma unroll
    for (unsigned r = 0; r < patch_lines; r++)
      column = larger_vector(column, held[t].line[r]);
    peaks.put(t, column);
  }
  B200_SYNC();
  B200_THREADS(t) {
#pragma unroll
    for (unsigned turn = 0; turn < blocks_deep * peaks.words / B200_KERNEL_THREADS; turn++) {
      unsigned item = t + turn * B200_KERNEL_THREADS;
      unsigned deep = item / peaks.words, first = item % peaks.words * S::per_word;
      uint32_t word = peaks.of_block(deep, item % peaks.words);
#pragma unroll
      for (unsigned i = 0; i < S::per_word; i++) {
        uint32_t e = exponent_of(magnitude_bits<S>(element<S>(word, i)), args.narrow, args.rounding);
        exponents[deep][first + i] = (uint8_t)e;
        scales[scale_place(first + i, deep)] = (uint8_t)e;
      }
    }
  }
  B200_SYNC();
  B200_THREADS(t) {
    store_patch(block, args.narrow, {args.dst, args.dst_ld}, m, patch_place(tile, t), held[t], of_columns{exponents}(t));
    store_scales(block, args, tile.column, tile.line, m.lines, scales, t);
  }
  if (args.guard)
    guard_tile<S, false>(block, m, tile, args.narrow, of_columns{exponents}, as_float(infinite), args.guard);
}

template <class S, bool K_FAST> B200_FUNCTION void mx(block &block, const b200_mx_args &args) {
  const matrix m = by_lines(args.in, K_FAST);
  if (K_FAST != B200_BROKEN(AXIS))
    mx_along_lines<S>(block, args, m);
  else
    mx_across_lines<S>(block, args, m);
}

/* Squares and sums in FP64: those of FP32 elements overflow FP32. */
template <class S> B200_FUNCTION void error(block &block, const b200_error_args &args) {
  const matrix d = {args.d, args.ldd, args.n, args.m}, reference = {args.reference, args.ldr, args.n, args.m};
  const uint32_t count = tiles(args.n) * tiles(args.m);
  per_thread<double> difference, size;
  B200_SHARED double sums[2][B200_KERNEL_THREADS];
  B200_THREADS(t) {
    difference[t] = size[t] = 0;
  }
  for (uint32_t tile = block.index; tile < count; tile += block.count) {
    place start = tile_place(d, tile);
    B200_THREADS(t) {
      place at = patch_place(start, t);
#pragma unroll 1
      for (unsigned r = 0; r < patch_lines; r++) {
        vector<S> ours, theirs;
        float x[patch_columns], y[patch_columns];
        load_line(block, d, at.line + r, at.column, ours);
        load_line(block, reference, at.line + r, at.column, theirs);
        unpack(ours, x);
        unpack(theirs, y);
#pragma unroll
        for (unsigned i = 0; i < patch_columns; i++) {
          double apart = x[i] - y[i], y64 = y[i];
          difference[t] += apart * apart;
          size[t] += y64 * y64;
        }
      }
    }
  }
  B200_THREADS(t) {
    sums[0][t] = difference[t];
    sums[1][t] = size[t];
  }
  for (unsigned half = B200_KERNEL_THREADS / 2; half > 0; half /= 2) {
    B200_SYNC();
    B200_THREADS(t) {
      if (t < half)
        for (unsigned i = 0; i < 2; i++)
          sums[i][t] += sums[i][t + half];
    }
  }
  B200_THREADS(t) {
    if (t == 0)
      for (unsigned i = 0; i < 2; i++)
        global_add(args.sums + i, sums[i][0]);
  }
}

} // namespace

#define B200_ENTRIES(S)                                                                                                     \
  B200_ENTRY(b200_amax_##S, b200_amax_args, amax<S>)                                                                        \
  B200_ENTRY(b200_cast_##S##_kfast, b200_cast_args, (cast<S, true>))                                                        \
  B200_ENTRY(b200_cast_##S##_kslow, b200_cast_args, (cast<S, false>))                                                       \
  B200_ENTRY(b200_cast_transpose_##S, b200_cast_args, cast_transpose<S>)                                                    \
  B200_ENTRY(b200_mx_##S##_kfast, b200_mx_args, (mx<S, true>))                                                              \
  B200_ENTRY(b200_mx_##S##_kslow, b200_mx_args, (mx<S, false>))                                                             \
  B200_ENTRY(b200_error_##S, b200_error_args, error<S>)
B200_ENTRIES(bf16)
B200_ENTRIES(f16)
B200_ENTRIES(f32)
