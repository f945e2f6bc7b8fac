// SPDX-License-Identifier: MIT OR Apache-2.0
// How many threads the CPU device takes, by what files of Linux say of a container's quota; and how
// many of them a job is given.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/usable_threads.h"
#include "cpu/pool.h"

using namespace tandem;

namespace {

double quota(const std::map<std::string, std::string>& files) {
  return control_group_quota([&](const char* path, String* text) {
    const auto file = files.find(path);
    if (file == files.end()) return false;
    *text = file->second.c_str();
    return true;
  });
}

const std::string kRootMount = "25 30 0:23 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n";

}  // namespace

TEST_CASE("usable threads: the quota of a control group, version 2") {
  const std::string mounts =
      kRootMount +
      "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 master:2 - cgroup2 cgroup2 rw,nsdelegate\n";
  // A container, which sees its own group as the root.
  std::map<std::string, std::string> files = {{"/proc/self/cgroup", "0::/\n"},
                                              {"/proc/self/mountinfo", mounts},
                                              {"/sys/fs/cgroup/cpu.max", "150000 100000\n"}};
  CHECK(quota(files) == 1.5);
  files["/sys/fs/cgroup/cpu.max"] = "max 100000\n";
  CHECK(quota(files) == 0);
  // The least of the group and those above it.
  files["/proc/self/cgroup"] = "0::/user.slice/job.scope\n";
  files["/sys/fs/cgroup/user.slice/job.scope/cpu.max"] = "800000 100000\n";
  CHECK(quota(files) == 8);
  files["/sys/fs/cgroup/user.slice/cpu.max"] = "400000 200000\n";
  CHECK(quota(files) == 2);
  files["/sys/fs/cgroup/user.slice/job.scope/cpu.max"] = "50000 100000\n";
  CHECK(quota(files) == 0.5);
  // A path outside of what is seen.
  files["/proc/self/cgroup"] = "0::/../other\n";
  CHECK(quota(files) == 0);
  files["/sys/fs/cgroup/cpu.max"] = "300000 100000";
  CHECK(quota(files) == 3);
  // Nothing, or nothing that means anything.
  for (const char* text : {"", "\n", "x", "-1 100000", "100000", "100000 0", "max"}) {
    CAPTURE(std::string(text));
    files["/sys/fs/cgroup/cpu.max"] = text;
    CHECK(quota(files) == 0);
  }
  files.erase("/proc/self/mountinfo");
  CHECK(quota(files) == 0);
  CHECK(quota({}) == 0);
}

TEST_CASE("usable threads: the quota of a control group, version 1") {
  const std::string mounts =
      kRootMount +
      "33 24 0:28 /docker/abc /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n"
      "34 24 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n";
  const std::string groups =
      "12:cpuset:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/x\n";
  const std::string folder = "/sys/fs/cgroup/cpu,cpuacct";
  std::map<std::string, std::string> files = {{"/proc/self/cgroup", groups},
                                              {"/proc/self/mountinfo", mounts},
                                              {folder + "/cpu.cfs_quota_us", "250000\n"},
                                              {folder + "/cpu.cfs_period_us", "100000\n"}};
  CHECK(quota(files) == 2.5);
  files[folder + "/cpu.cfs_quota_us"] = "-1\n";
  CHECK(quota(files) == 0);
  // A group below the container's.
  files["/proc/self/cgroup"] = "4:cpu,cpuacct:/docker/abc/job\n";
  files[folder + "/job/cpu.cfs_quota_us"] = "50000";
  CHECK(quota(files) == 0);  // no period
  files[folder + "/job/cpu.cfs_period_us"] = "50000";
  CHECK(quota(files) == 1);
  // One that has the container's as the beginning of its name is not below it.
  files["/proc/self/cgroup"] = "4:cpu,cpuacct:/docker/abcjob\n";
  CHECK(quota(files) == 0);
}

TEST_CASE("usable threads: at least one, at most the machine's") {
  CHECK(usable_threads() >= 1);
  if (std::thread::hardware_concurrency() > 0)
    CHECK(usable_threads() <= std::thread::hardware_concurrency());
}

TEST_CASE("pool: a job has no more threads than it is worth, and all of its units") {
  Pool pool(8);
  CHECK(pool.threads() == 8);
  for (const unsigned most : {1u, 2u, 5u, ~0u})
    for (const int64_t units : {1, 3, 64}) {
      CAPTURE(most);
      CAPTURE(units);
      std::mutex mutex;
      std::set<std::thread::id> threads;
      std::multiset<int64_t> done;
      std::set<void*> scratch;
      pool.run(
          units,
          [&](int64_t unit, void* own) {
            std::this_thread::sleep_for(std::chrono::microseconds(200));
            const std::lock_guard<std::mutex> lock(mutex);
            threads.insert(std::this_thread::get_id());
            scratch.insert(own);
            done.insert(unit);
          },
          most);
      CHECK(threads.size() <= most);
      CHECK(int64_t(threads.size()) <= units);
      CHECK(threads.size() <= 8);
      CHECK(int64_t(done.size()) == units);
      CHECK(std::set<int64_t>(done.begin(), done.end()).size() == done.size());
      CHECK(*done.rbegin() == units - 1);
      if (most == 1) CHECK(threads.count(std::this_thread::get_id()) == 1);
    }
}

TEST_CASE("pool: all threads join where the work takes long") {
  Pool pool(6);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  pool.run(6, [&](int64_t, void*) {  // ends when there are six
    std::unique_lock<std::mutex> lock(mutex);
    threads.insert(std::this_thread::get_id());
    while (threads.size() < 6 && std::chrono::steady_clock::now() < end) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      lock.lock();
    }
  });
  CHECK(threads.size() == 6);
}

TEST_CASE("pool: what a unit throws ends the job, and the next one runs") {
  Pool pool(4);
  for (int n = 0; n < 20; ++n) {
    CHECK_THROWS_AS(pool.run(100,
                             [&](int64_t unit, void*) {
                               if (unit == n) throw std::runtime_error("unit");
                             }),
                    std::runtime_error);
    std::atomic<int> done{0};
    pool.run(50, [&](int64_t, void*) { ++done; });
    CHECK(done == 50);
  }
}
