// The vector vocabulary of the kernels for AVX-512 with VNNI. Every simd_*.h defines the same names.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace {

constexpr int L = 16;        // float lanes of a vector
constexpr int kRowTile = 8;  // rows that share a load of weights
constexpr int kWideVectors = 2, kNarrowVectors = 4;  // vectors of outputs at once, for full and for smaller row tiles
constexpr int kValueVectors = 4;                     // vectors of a value that attention sums at once

using F = __m512;
using I = __m512i;
using C = __m512i;  // 4 codes of each of L outputs

inline F zero() { return _mm512_setzero_ps(); }
inline F splat(float x) { return _mm512_set1_ps(x); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline F min(F a, F b) { return _mm512_min_ps(a, b); }
inline F abs(F a) { return _mm512_abs_ps(a); }
inline F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F times_power_of_two(F x, F n) { return _mm512_scalef_ps(x, n); }
inline float sum(F a) { return _mm512_reduce_add_ps(a); }
inline float maximum(F a) { return _mm512_reduce_max_ps(a); }

inline I no_dots() { return _mm512_setzero_si512(); }
inline F to_float(I a) { return _mm512_cvtepi32_ps(a); }
inline C load_codes(const uint8_t* p) { return _mm512_load_si512(p); }
inline C low_nibbles(C c) { return _mm512_and_si512(c, _mm512_set1_epi8(15)); }
inline C high_nibbles(C c) { return _mm512_and_si512(_mm512_srli_epi16(c, 4), _mm512_set1_epi8(15)); }
// Lane n gains the dot product of its four codes with the four signed bytes at x. kWide: codes reach 255 instead of 15.
// The sums of a unit's steps, from no_dots() on, become numbers by finish_dots().
template <bool kWide>
inline I dot4(I sums, C codes, const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(four));
}

template <bool kWide>
inline I finish_dots(I sums) {
  return sums;
}

inline F load_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
// 2 L interleaved bf16 values.
inline void load_pairs(const uint16_t* p, F& even, F& odd) {
  const __m512i both = _mm512_loadu_si512(p);
  even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000u)));
}
inline F load_int8(const int8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))); }
// To the nearest bf16, ties to even.
inline void store_bf16(uint16_t* p, F x) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x));
#else
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
#endif
}
// Rounds to the nearest integer; x lies within int8.
inline void store_int8(int8_t* p, F x) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x))); }
inline I round_to_int(F x) { return _mm512_cvtps_epi32(x); }
inline int32_t sum_int(I a) { return _mm512_reduce_add_epi32(a); }
inline I add_int(I a, I b) { return _mm512_add_epi32(a, b); }

}  // namespace
