// The vector vocabulary of the kernels for AVX2 with FMA and F16C; with AVX-VNNI where the compiler's flags allow it.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace {

constexpr int L = 8;
constexpr int kRowTile = 4;
constexpr int kWideVectors = 2, kNarrowVectors = 4;
constexpr int kValueVectors = 2;

using F = __m256;
using I = __m256i;
using C = __m256i;

inline F zero() { return _mm256_setzero_ps(); }
inline F splat(float x) { return _mm256_set1_ps(x); }
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }
inline F min(F a, F b) { return _mm256_min_ps(a, b); }
inline F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline F round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// n is a whole number of at most 127 and at least -126.
inline F times_power_of_two(F x, F n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return mul(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
inline float sum(F a) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
inline float maximum(F a) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

inline I no_dots() { return _mm256_setzero_si256(); }
inline F to_float(I a) { return _mm256_cvtepi32_ps(a); }
inline C load_codes(const uint8_t* p) { return _mm256_load_si256((const __m256i*)p); }
inline C low_nibbles(C c) { return _mm256_and_si256(c, _mm256_set1_epi8(15)); }
inline C high_nibbles(C c) { return _mm256_and_si256(_mm256_srli_epi16(c, 4), _mm256_set1_epi8(15)); }
#if defined(__AVXVNNI__)
template <bool kWide>
inline I dot4(I sums, C codes, const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return _mm256_dpbusd_avx_epi32(sums, codes, _mm256_set1_epi32(four));
}
template <bool kWide>
inline I finish_dots(I sums) {
  return sums;
}
#else
// 4-bit codes: the sums stay in pairs of 16 bits, which hold the eight steps of a unit (8 * 2 * 15 * 127 = 30480).
// 8-bit codes: pairs of products would saturate at 16 bits, so their nibbles are multiplied apart.
template <bool kWide>
inline I dot4(I sums, C codes, const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  const __m256i values = _mm256_set1_epi32(four), ones = _mm256_set1_epi16(1);
  if constexpr (!kWide) return _mm256_add_epi16(sums, _mm256_maddubs_epi16(codes, values));
  const __m256i low = _mm256_madd_epi16(_mm256_maddubs_epi16(low_nibbles(codes), values), ones);
  const __m256i high = _mm256_madd_epi16(_mm256_maddubs_epi16(high_nibbles(codes), values), ones);
  return _mm256_add_epi32(sums, _mm256_add_epi32(low, _mm256_slli_epi32(high, 4)));
}
template <bool kWide>
inline I finish_dots(I sums) {
  return kWide ? sums : _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
}
#endif

inline F load_half(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
inline void load_pairs(const uint16_t* p, F& even, F& odd) {
  const __m256i both = _mm256_loadu_si256((const __m256i*)p);
  even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
  odd = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000u)));
}
inline F load_int8(const int8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))); }
inline void store_bf16(uint16_t* p, F x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
  _mm_storeu_si128((__m128i*)p, packed);
}
inline I round_to_int(F x) { return _mm256_cvtps_epi32(x); }
inline void store_int8(int8_t* p, F x) {
  const __m256i whole = round_to_int(x);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(words, words));
}
inline I add_int(I a, I b) { return _mm256_add_epi32(a, b); }
inline int32_t sum_int(I a) {
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}

}  // namespace
