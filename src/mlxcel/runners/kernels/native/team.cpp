#include "team.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace mlx {

namespace {

// Between two steps a member polls this often (some 20 microseconds) before it sleeps: longer would take the processor
// from whoever prepares the next step.
constexpr int kIdlePolls = 500;
// Inside a step waits are short unless a member lost its processor; then polling on would only keep it from coming back.
constexpr int kBarrierPolls = 2000;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Team::Team(int members) : members_(members), counters_(members) {
  for (int member = 1; member < members; member++) threads_.emplace_back([this, member] { work(member); });
}

Team::~Team() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    run_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(void (*body)(void*, int), void* argument) {
  body_ = body;
  argument_ = argument;
  bool sleeping;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    run_.fetch_add(1, std::memory_order_release);
    sleeping = sleepers_ > 0;
  }
  if (sleeping) wake_.notify_all();
  body(argument, 0);
  barrier();
}

void Team::work(int member) {
  unsigned seen = 0;
  for (;;) {
    for (int poll = 0; poll < kIdlePolls && run_.load(std::memory_order_acquire) == seen; poll++) pause();
    if (run_.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(mutex_);
      sleepers_++;
      wake_.wait(lock, [&] { return run_.load(std::memory_order_acquire) != seen; });
      sleepers_--;
    }
    seen = run_.load(std::memory_order_acquire);
    if (closing_) return;
    body_(argument_, member);
    barrier();
  }
}

int Team::claim(int member, int tasks) {
  for (int i = 0; i < members_; i++) {
    const int owner = (member + i) % members_;
    const int begin = (int)((long)tasks * owner / members_), end = (int)((long)tasks * (owner + 1) / members_);
    std::atomic<int>& taken = counters_[owner].taken;
    if (begin + taken.load(std::memory_order_relaxed) >= end) continue;
    const int task = begin + taken.fetch_add(1, std::memory_order_relaxed);
    if (task < end) return task;
  }
  return -1;
}

void Team::barrier() {
  const unsigned phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == members_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    for (Counter& counter : counters_) counter.taken.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int poll = 0; phase_.load(std::memory_order_acquire) == phase; poll++) {
    if (poll < kBarrierPolls) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace mlx
