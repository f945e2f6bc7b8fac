// SPDX-License-Identifier: MIT OR Apache-2.0
#include "usable_threads.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#elif defined(_WIN32)
#include <windows.h>
#endif

namespace tandem {
namespace {

// The words between separators; empty ones, too, where there is one separator alone.
Vec<String> split(const String& text, char at) {
  Vec<String> words;
  for (size_t from = 0; from <= text.size();) {
    const size_t to = std::min(text.find(at, from), text.size());
    words.push_back(text.substr(from, to - from));
    from = to + 1;
  }
  return words;
}

bool has(const Vec<String>& words, const char* word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// The process's path in the hierarchy of a version: a line "0::PATH", or "N:cpu,cpuacct:PATH".
bool find_path(const String& groups, bool second, String* path) {
  for (const String& line : split(groups, '\n')) {
    const size_t one = line.find(':'), two = line.find(':', one + 1);
    if (one == String::npos || two == String::npos) continue;
    const String controllers = line.substr(one + 1, two - one - 1);
    if (second ? !controllers.empty() : !has(split(controllers, ','), "cpu")) continue;
    *path = line.substr(two + 1);
    return true;
  }
  return false;
}

// Where that hierarchy is mounted, and which of its groups is what one sees there. A line of
// mountinfo: id, parent, device, root, mount point, options, ..., "-", type, source, options.
bool find_mount(const String& mounts, bool second, String* root, String* point) {
  for (const String& line : split(mounts, '\n')) {
    const Vec<String> words = split(line, ' ');
    const size_t dash = size_t(std::find(words.begin(), words.end(), "-") - words.begin());
    if (dash < 5 || dash + 3 >= words.size()) continue;
    if (words[dash + 1] != (second ? "cgroup2" : "cgroup")) continue;
    if (!second && !has(split(words[dash + 3], ','), "cpu")) continue;
    *root = words[3];
    *point = words[4];
    return true;
  }
  return false;
}

// What the files of one group say; 0: no quota.
double quota_of(const String& group, bool second, const ReadFile& read) {
  String text;
  double quota = 0, period = 0;
  if (second) {  // "max 100000", "150000 100000"
    if (!read((group + "/cpu.max").c_str(), &text)) return 0;
    char* end = nullptr;
    quota = std::strtoll(text.c_str(), &end, 10);
    period = std::strtoll(end, nullptr, 10);
  } else {  // -1: no quota
    if (!read((group + "/cpu.cfs_quota_us").c_str(), &text)) return 0;
    quota = std::strtoll(text.c_str(), nullptr, 10);
    text.clear();
    if (!read((group + "/cpu.cfs_period_us").c_str(), &text)) return 0;
    period = std::strtoll(text.c_str(), nullptr, 10);
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

bool read_file(const char* path, String* text) {
  std::FILE* file = std::fopen(path, "r");
  if (!file) return false;
  char part[4096];
  for (size_t n; (n = std::fread(part, 1, sizeof part, file)) > 0;) text->append(part, n);
  std::fclose(file);
  return true;
}

unsigned allowed_processors() {
#if defined(__linux__)
  unsigned long mask[1024] = {};  // of 65,536 processors; a smaller one may be refused
  if (sched_getaffinity(0, sizeof mask, reinterpret_cast<cpu_set_t*>(mask)) == 0)
    return unsigned(CPU_COUNT_S(sizeof mask, reinterpret_cast<cpu_set_t*>(mask)));
#elif defined(_WIN32)
  DWORD_PTR mine = 0, all = 0;  // of one group of 64; both are 0 for a process on several groups
  if (GetProcessAffinityMask(GetCurrentProcess(), &mine, &all) && mine != all) {
    unsigned count = 0;
    for (; mine; mine &= mine - 1) ++count;
    return count;
  }
#endif
  return std::thread::hardware_concurrency();
}

}  // namespace

double control_group_quota(const ReadFile& read) {
  String groups, mounts;
  if (!read("/proc/self/cgroup", &groups) || !read("/proc/self/mountinfo", &mounts)) return 0;
  double least = 0;
  for (const bool second : {true, false}) {
    String path, root, point;
    if (!find_path(groups, second, &path) || !find_mount(mounts, second, &root, &point)) continue;
    // Below the mount point are the groups below root. In a container the path may be one of the
    // host's, which is not seen there: then the mount point is the container's own group.
    if (root != "/" && (path + "/").compare(0, root.size() + 1, root + "/") == 0)
      path.erase(0, root.size());
    if (path.find("..") != String::npos) path.clear();
    while (!path.empty() && path.back() == '/') path.pop_back();
    for (;;) {
      const double quota = quota_of(point + path, second, read);
      if (quota > 0 && (least == 0 || quota < least)) least = quota;
      if (path.empty()) break;
      path.erase(path.rfind('/'));
    }
  }
  return least;
}

unsigned usable_threads() {
  unsigned threads = std::max(1u, allowed_processors());
  const auto read = [](const char* path, String* text) { return read_file(path, text); };
  if (const double quota = control_group_quota(read); quota > 0 && quota < threads)
    threads = std::max(1u, unsigned(std::ceil(quota)));
  return threads;
}

}  // namespace tandem
