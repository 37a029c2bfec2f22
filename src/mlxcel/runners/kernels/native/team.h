// A fixed team of threads that runs one function on all members at once, with barriers and a shared task counter.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace mlx {

class Team {
 public:
  // The calling thread is member 0 of every run; `members` - 1 threads are started.
  explicit Team(int members);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int members() const { return members_; }

  // Runs body(argument, member) on all members and returns when all are done.
  void run(void (*body)(void*, int), void* argument);

  // Inside a run: the next of `tasks` tasks for a member, -1 when none is left. A member goes through a range of its own in
  // order, which suits memory it streams through, and then helps the others out. barrier() makes all tasks new.
  int claim(int member, int tasks);

  // Inside a run: waits for all members.
  void barrier();

 private:
  void work(int member);

  const int members_;
  std::vector<std::thread> threads_;
  void (*body_)(void*, int) = nullptr;
  void* argument_ = nullptr;
  bool closing_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  int sleepers_ = 0;  // under mutex_
  alignas(64) std::atomic<unsigned> run_{0};
  struct alignas(64) Counter {
    std::atomic<int> taken{0};
  };
  std::vector<Counter> counters_;  // per member, tasks taken from its range
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
};

}  // namespace mlx
