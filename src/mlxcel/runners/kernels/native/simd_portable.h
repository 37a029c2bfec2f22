// The vector vocabulary of the kernels in plain C++ with the vector types of GCC and Clang: right everywhere, fast nowhere.
#pragma once

#include <stdint.h>

namespace {

constexpr int L = 4;
constexpr int kRowTile = 4;
constexpr int kWideVectors = 2, kNarrowVectors = 2;
constexpr int kValueVectors = 2;

typedef float F __attribute__((vector_size(16)));
typedef int32_t I __attribute__((vector_size(16)));
typedef uint8_t C __attribute__((vector_size(16)));

template <class T, class P>
inline T read(const P* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof(T));
  return value;
}
template <class Each>
inline F each(Each function) {
  return F{function(0), function(1), function(2), function(3)};
}

inline F splat(float x) { return F{x, x, x, x}; }
inline F zero() { return splat(0.0f); }
inline F load(const float* p) { return read<F>(p); }
inline void store(float* p, F x) { __builtin_memcpy(p, &x, sizeof(F)); }
inline F add(F a, F b) { return a + b; }
inline F sub(F a, F b) { return a - b; }
inline F mul(F a, F b) { return a * b; }
inline F div(F a, F b) { return a / b; }
inline F fma(F a, F b, F c) { return a * b + c; }
inline F max(F a, F b) {
  return each([&](int i) { return a[i] > b[i] ? a[i] : b[i]; });
}
inline F min(F a, F b) {
  return each([&](int i) { return a[i] < b[i] ? a[i] : b[i]; });
}
inline F abs(F a) {
  return each([&](int i) { return __builtin_fabsf(a[i]); });
}
// To the nearest integer, ties to even, for magnitudes below 2^22: adding 1.5 * 2^23 leaves no room for a fraction.
inline I round_to_int(F a) {
  const F shifted = a + splat(12582912.0f);
  return read<I>(&shifted) - I{0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000};
}
inline F to_float(I a) {
  return each([&](int i) { return (float)a[i]; });
}
inline F round(F a) { return to_float(round_to_int(a)); }
// n is a whole number of at most 127 and at least -126.
inline F times_power_of_two(F x, F n) {
  const I exponent = (round_to_int(n) + I{127, 127, 127, 127}) << 23;
  return x * read<F>(&exponent);
}
inline float sum(F a) { return (a[0] + a[1]) + (a[2] + a[3]); }
inline float maximum(F a) {
  const float first = a[0] > a[1] ? a[0] : a[1], second = a[2] > a[3] ? a[2] : a[3];
  return first > second ? first : second;
}

inline I no_dots() { return I{0, 0, 0, 0}; }
inline C load_codes(const uint8_t* p) { return read<C>(p); }
inline C low_nibbles(C c) { return c & 15; }
inline C high_nibbles(C c) { return c >> 4; }
template <bool kWide>
inline I dot4(I sums, C codes, const int8_t* x) {
  for (int lane = 0; lane < L; lane++)
    for (int i = 0; i < 4; i++) sums[lane] += (int32_t)codes[lane * 4 + i] * x[i];
  return sums;
}

template <bool kWide>
inline I finish_dots(I sums) {
  return sums;
}

inline float half_to_float(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
  if (rest < 0x400) {  // subnormal: units of 2^-24
    const float magnitude = (float)rest * 5.9604645e-8f;
    return sign ? -magnitude : magnitude;
  }
  const uint32_t bits = sign | ((rest << 13) + (rest < 0x7c00 ? 0x38000000u : 0x70000000u));  // infinities keep their exponent
  return read<float>(&bits);
}
inline F load_half(const uint16_t* p) {
  return each([&](int i) { return half_to_float(p[i]); });
}
inline void load_pairs(const uint16_t* p, F& even, F& odd) {
  const auto widen = [](uint16_t value) {
    const uint32_t bits = (uint32_t)value << 16;
    return read<float>(&bits);
  };
  even = each([&](int i) { return widen(p[2 * i]); });
  odd = each([&](int i) { return widen(p[2 * i + 1]); });
}
inline F load_int8(const int8_t* p) {
  return each([&](int i) { return (float)p[i]; });
}
inline void store_bf16(uint16_t* p, F x) {
  for (int i = 0; i < L; i++) {
    const float value = x[i];
    const uint32_t bits = read<uint32_t>(&value);
    p[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}
inline void store_int8(int8_t* p, F x) {
  const I whole = round_to_int(x);
  for (int i = 0; i < L; i++) p[i] = (int8_t)whole[i];
}
inline I add_int(I a, I b) { return a + b; }
inline int32_t sum_int(I a) { return a[0] + a[1] + a[2] + a[3]; }

}  // namespace
