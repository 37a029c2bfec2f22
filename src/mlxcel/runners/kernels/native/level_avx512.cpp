#include "layout.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#include "simd_avx512.h"
//
#include "kernels.h"

namespace mlx {
const Kernels* avx512_kernels() {
  static constexpr Kernels table = base_kernels();
  return &table;
}
}  // namespace mlx
#else
namespace mlx {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace mlx
#endif
