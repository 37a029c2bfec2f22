#include "memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace mlx {

namespace {

constexpr size_t kSlab = 32u << 20;

}  // namespace

Pages::Pages(size_t bytes) : bytes_(bytes) {
  if (!bytes) return;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
  flags |= MAP_NORESERVE;
#endif
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  data_ = (uint8_t*)p;
#ifdef MADV_HUGEPAGE
  constexpr size_t kHugePage = 2u << 20;
  if (bytes >= kHugePage) madvise(p, bytes, MADV_HUGEPAGE);
#endif
}

Pages::~Pages() {
  if (data_) munmap(data_, bytes_);
}

Pages::Pages(Pages&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

uint8_t* Arena::take(size_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  if (slabs_.empty() || offset_ + bytes > slabs_.back().bytes()) {
    slabs_.emplace_back(bytes > kSlab ? bytes : kSlab);
    offset_ = 0;
  }
  uint8_t* piece = slabs_.back().data() + offset_;
  offset_ += bytes;
  used_bytes_ += bytes;
  return piece;
}

}  // namespace mlx
