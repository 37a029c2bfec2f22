#include "layout.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__)
#include "simd_avx512.h"
//
#include "kernels.h"
//
#include "amx.h"
//
#include "amx_attention.h"

namespace mlx {

namespace {

constexpr Kernels amx_table() {
  Kernels table = base_kernels();
  table.operand_form = amx_operand_form;
  table.load_panel = load_panel;
  table.linear = amx_linear;
  table.attend = amx_attend;
  table.end = release_tiles;
  return table;
}

}  // namespace

const Kernels* amx_kernels() {
  static constexpr Kernels table = amx_table();
  return &table;
}

}  // namespace mlx
#else
namespace mlx {
const Kernels* amx_kernels() { return nullptr; }
}  // namespace mlx
#endif
