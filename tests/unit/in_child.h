// SPDX-License-Identifier: MIT OR Apache-2.0
// A piece of a test in a child of fork(), which may hang.
#ifndef TANDEM_TESTS_UNIT_IN_CHILD_H
#define TANDEM_TESTS_UNIT_IN_CHILD_H
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

// ThreadSanitizer ends a child that starts threads.
#if defined(__SANITIZE_THREAD__)
#define TANDEM_FORK_TESTS 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TANDEM_FORK_TESTS 0
#endif
#endif
#ifndef TANDEM_FORK_TESTS
#define TANDEM_FORK_TESTS 1
#endif

constexpr int kHangs = -1, kDies = -2;

// What body() returns in a child of this process, 0 to 100, or how it ended else. It may use no
// macro of doctest.
template <typename Body>
int in_child(Body body, int seconds = 60) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  if (child < 0) return kDies;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  for (;;) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child)
      return WIFEXITED(status) && WEXITSTATUS(status) <= 100 ? WEXITSTATUS(status) : kDies;
    if (std::chrono::steady_clock::now() > end) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return kHangs;
}

#endif
