#include "model.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace mlx {

namespace {

#if defined(__x86_64__) || defined(__i386__)
struct Processor {
  bool avx2 = false, avx_vnni = false, avx512 = false, amx = false;
};

bool bit(unsigned value, int index) { return value >> index & 1; }

// Linux gives a process AMX's tile registers on request only.
bool grant_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Processor inspect() {
  Processor p;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) return p;  // no XGETBV: the system saves no wide registers
  const bool fma = bit(c, 12), f16c = bit(c, 29);
  unsigned saved, high;
  asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  const bool saves_avx = (saved & 0x6) == 0x6, saves_avx512 = (saved & 0xe6) == 0xe6, saves_tiles = (saved & 0x60000) == 0x60000;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return p;
  const bool avx512 = bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31) && bit(c, 11);  // F, DQ, BW, VL, VNNI
  const bool amx = bit(d, 22) && bit(d, 24) && bit(d, 25);                                  // BF16, TILE, INT8
  p.avx2 = saves_avx && bit(b, 5) && fma && f16c;
  p.avx512 = p.avx2 && saves_avx512 && avx512;
  unsigned subleaves = 0;
  __get_cpuid_count(7, 0, &subleaves, &b, &c, &d);
  if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
    p.avx_vnni = p.avx2 && bit(a, 4);
    p.amx = p.avx512 && saves_tiles && amx && bit(a, 5) && grant_tiles();  // 5: AVX512-BF16
  }
  return p;
}
#endif

bool runs(int level) {
  if (level == MLX_PORTABLE) return true;
#if defined(__x86_64__) || defined(__i386__)
  static const Processor processor = inspect();
  switch (level) {
    case MLX_AVX2:
      return processor.avx2;
    case MLX_AVX_VNNI:
      return processor.avx_vnni;
    case MLX_AVX512:
      return processor.avx512;
    case MLX_AMX:
      return processor.amx;
    default:
      return false;
  }
#elif defined(__aarch64__) && defined(__APPLE__)
  return level == MLX_NEON;  // every Apple silicon processor has the dot products
#elif defined(__aarch64__) && defined(__linux__)
  constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP
  return level == MLX_NEON && (getauxval(AT_HWCAP) & kDotProducts);
#else
  return false;
#endif
}

}  // namespace

const Kernels* kernels_of(int level) {
  switch (level) {
    case MLX_PORTABLE:
      return portable_kernels();
    case MLX_NEON:
      return neon_kernels();
    case MLX_AVX2:
      return avx2_kernels();
    case MLX_AVX_VNNI:
      return avx_vnni_kernels();
    case MLX_AVX512:
      return avx512_kernels();
    case MLX_AMX:
      return amx_kernels();
    default:
      return nullptr;
  }
}

bool level_available(int level) { return kernels_of(level) && runs(level); }

}  // namespace mlx
