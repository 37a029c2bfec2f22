// Page-aligned memory: weights in large slabs, the KV pool as one reservation that costs memory only where it is written.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <vector>

namespace mlx {

// Anonymous zeroed pages; throws std::bad_alloc.
class Pages {
 public:
  Pages() = default;
  explicit Pages(size_t bytes);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

// Hands out 64-byte aligned pieces that live as long as the arena.
class Arena {
 public:
  uint8_t* take(size_t bytes);
  size_t used_bytes() const { return used_bytes_; }

 private:
  std::vector<Pages> slabs_;
  size_t offset_ = 0;
  size_t used_bytes_ = 0;
};

// A buffer that keeps its memory between steps and grows when a step needs more.
template <class T>
class Buffer {
 public:
  T* reserve(size_t count) {
    if (count * sizeof(T) > pages_.bytes()) {
      pages_ = Pages();  // the old memory goes first
      pages_ = Pages(count * sizeof(T));
    }
    return (T*)pages_.data();
  }
  T* get() const { return (T*)pages_.data(); }

 private:
  Pages pages_;
};

}  // namespace mlx
