// The vector vocabulary of the kernels for 64-bit Arm with the dot products of Armv8.2.
#pragma once

#include <arm_neon.h>
#include <stdint.h>

namespace {

constexpr int L = 4;
constexpr int kRowTile = 4;
constexpr int kWideVectors = 4, kNarrowVectors = 4;
constexpr int kValueVectors = 4;

using F = float32x4_t;
using I = int32x4_t;
using C = uint8x16_t;

inline F zero() { return vdupq_n_f32(0.0f); }
inline F splat(float x) { return vdupq_n_f32(x); }
inline F load(const float* p) { return vld1q_f32(p); }
inline void store(float* p, F x) { vst1q_f32(p, x); }
inline F add(F a, F b) { return vaddq_f32(a, b); }
inline F sub(F a, F b) { return vsubq_f32(a, b); }
inline F mul(F a, F b) { return vmulq_f32(a, b); }
inline F div(F a, F b) { return vdivq_f32(a, b); }
inline F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
inline F max(F a, F b) { return vmaxq_f32(a, b); }
inline F min(F a, F b) { return vminq_f32(a, b); }
inline F abs(F a) { return vabsq_f32(a); }
inline F round(F a) { return vrndnq_f32(a); }
// n is a whole number of at most 127 and at least -126.
inline F times_power_of_two(F x, F n) {
  const int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
  return mul(x, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
}
inline float sum(F a) { return vaddvq_f32(a); }
inline float maximum(F a) { return vmaxvq_f32(a); }

inline I no_dots() { return vdupq_n_s32(0); }
inline F to_float(I a) { return vcvtq_f32_s32(a); }
inline C load_codes(const uint8_t* p) { return vld1q_u8(p); }
inline C low_nibbles(C c) { return vandq_u8(c, vdupq_n_u8(15)); }
inline C high_nibbles(C c) { return vshrq_n_u8(c, 4); }
template <bool kWide>
inline I dot4(I sums, C codes, const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  const int8x16_t values = vreinterpretq_s8_s32(vdupq_n_s32(four));
  if constexpr (kWide) {
    // The instruction wants signed codes: code = (code - 128) + 64 + 64.
    sums = vdotq_s32(sums, vreinterpretq_s8_u8(veorq_u8(codes, vdupq_n_u8(0x80))), values);
    sums = vdotq_s32(sums, vdupq_n_s8(64), values);
    return vdotq_s32(sums, vdupq_n_s8(64), values);
  }
  return vdotq_s32(sums, vreinterpretq_s8_u8(codes), values);
}

template <bool kWide>
inline I finish_dots(I sums) {
  return sums;
}

inline F load_half(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline void load_pairs(const uint16_t* p, F& even, F& odd) {
  const uint32x4_t both = vreinterpretq_u32_u16(vld1q_u16(p));
  even = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
  odd = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff0000u)));
}
inline F load_int8(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  const int16x8_t words = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(words)));
}
inline void store_bf16(uint16_t* p, F x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  vst1_u16(p, vshrn_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16));
}
inline I round_to_int(F x) { return vcvtnq_s32_f32(x); }
inline void store_int8(int8_t* p, F x) {
  const int16x4_t words = vqmovn_s32(round_to_int(x));
  const int32_t four = vget_lane_s32(vreinterpret_s32_s8(vqmovn_s16(vcombine_s16(words, words))), 0);
  __builtin_memcpy(p, &four, 4);
}
inline I add_int(I a, I b) { return vaddq_s32(a, b); }
inline int32_t sum_int(I a) { return vaddvq_s32(a); }

}  // namespace
