// SPDX-License-Identifier: MIT OR Apache-2.0
// The parity suite: what its files share. Every kernel path of every device at hand is a target; a
// case is run on all targets and judged against the reference in double (harness/compare.h).
//   TANDEM_DEVICE  comma list of devices, as "cpu,vulkan:0", or of one path each, as "cpu/ref";
//                  default: all that can be used. "recorded:h100_cuda/sm90" is a device of
//                  profiles.inc that is not there: its kernels are counted, and nothing is judged
//   TANDEM_TIER    smoke (default, under a minute on a CPU driver), ci, device (a real GPU)
//   TANDEM_SEED    another set of random numbers
//   TANDEM_AHEAD   0: pipelines are made when a case asks for them, as on drivers that run on the
//                  CPU; 1: before, on all processors (harness/ahead.h)
//   TANDEM_CACHE   a folder that keeps pipelines between runs (harness/session.h)
//   TANDEM_SHARD   i/n: the i-th of n parts of the cases, counted from 0. One that runs no kernel
//                  fails, unless TANDEM_SHARD_EMPTY is set
#ifndef TANDEM_TESTS_PARITY_PARITY_H
#define TANDEM_TESTS_PARITY_PARITY_H
#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "harness/ahead.h"
#include "harness/compare.h"
#include "harness/host.h"
#include "harness/session.h"

namespace parity {

using namespace tandem::harness;

enum class Tier { smoke, ci, device };
Tier tier();
inline bool at_least(Tier t) { return int(tier()) >= int(t); }

// One kernel path on one device: a session in which every other path of the backend is disabled.
struct Target {
  std::string name;  // "vulkan.scalar on vulkan:0"
  std::string backend, path;
  std::unique_ptr<Session> session;
  // Every problem is asked of it; what cpu.simd lacks, lacks() knows.
  bool general = true;
  bool recorded = false;
};
std::vector<Target>& targets();

// Whether the problem is one for this path at all: those that are not general may refuse it, as the
// matrix paths do f32. What a tile refuses does not count.
bool takes(const Target& target, const tandem_problem& problem);
// The same problem in f16, which every path takes; cases that a path does not take in their own
// type run on it in this one.
tandem_problem in_f16(tandem_problem problem);

// Opens what TANDEM_DEVICE names, but for paths that a device cannot run; a sentence when one of
// them cannot be had.
std::string open_targets();
void close_targets();
// Begins to make the plans that the cases will ask for, in their order, and goes on while the
// result lives, which must be shorter than the targets do. run_cases: runs all cases; while it is
// called there are twins of the targets, which only tell their plans (open_twin()). Null: no target
// is worth it (harness/ahead.h).
std::unique_ptr<PlansAhead> plan_ahead(const std::function<void()>& run_cases);

// How many cases each registry row ran; prints them, and returns the rows that should have and did
// not: those that a device of this run can run. by_stem: a row counts for all of its stem and path.
void count(const std::vector<uint32_t>& kernels);
std::vector<std::string> report_counts(bool by_stem);
// Whether there is a recorded target, so that nothing is judged.
bool any_recorded();
bool ran_any();

// What the suites found wrong, for the programs with a broken kernel: there failures are the goal.
// suite: "exact" or "ratio"; tensor: "o", "lse", "d_q", ...
void blame(const Target& target, const std::string& suite, const std::string& tensor);
// The stem in TANDEM_EXPECT_BROKEN must have been caught on every target but the reference, by both
// suites or, as STEM:SUITE, by one, and no tensor blamed that it has no part in. "" or what was
// missed.
std::string check_blame(const std::string& expected);

uint64_t seed_of(const char* text, uint64_t n = 0);  // of a test's name, TANDEM_SEED mixed in

// ---- problems ----
struct Mask {
  const char* name;
  uint32_t mask, align;
  int64_t left, right;
};
constexpr int64_t kOpen = TANDEM_UNBOUNDED;
constexpr Mask kNone = {"none", TANDEM_MASK_NONE, TANDEM_TOP_LEFT, kOpen, kOpen};
constexpr Mask kTopLeft = {"causal top left", TANDEM_MASK_CAUSAL, TANDEM_TOP_LEFT, kOpen, kOpen};
constexpr Mask kBottomRight = {"causal bottom right", TANDEM_MASK_CAUSAL, TANDEM_BOTTOM_RIGHT,
                               kOpen, kOpen};
constexpr Mask kWindow = {"window", TANDEM_MASK_NONE, TANDEM_TOP_LEFT, 19, 5};
constexpr Mask kWindowRight = {"window bottom right", TANDEM_MASK_NONE, TANDEM_BOTTOM_RIGHT, 40, 0};
constexpr Mask kCausalWindow = {"causal window", TANDEM_MASK_CAUSAL, TANDEM_BOTTOM_RIGHT, 33,
                                kOpen};
constexpr Mask kMasks[] = {kNone, kTopLeft, kBottomRight, kWindow, kWindowRight, kCausalWindow};

constexpr tandem_dtype kDtypes[] = {TANDEM_F32, TANDEM_F16, TANDEM_BF16};

struct Shape {
  int64_t b, hq, hk, sq, sk, d, dv;
};
tandem_problem problem(tandem_direction direction, tandem_dtype dtype, const Shape& shape,
                       const Mask& mask = kNone, Layout layout = Layout::bhsd);

// Whether a problem is for this process: TANDEM_SHARD=i/n shares the cases out. Problems with the
// same kernels go to the same process, as kernels may take longer to compile than to run; large
// ones go anywhere.
bool mine(const tandem_problem& problem);
bool sharded();

// Overwrites lengths; packed ones are added up.
void set_lengths_of(Case& test, bool kv, const std::vector<int64_t>& lengths);
void set_heads(Case& test, Role role, double value);  // every element the same

// Visible keys of a row, both ends included; first > last when it sees none.
struct Span {
  int64_t first, last;
  bool empty() const { return first > last; }
};
Span visible(const tandem_problem& problem, int64_t row);

// ---- running ----
struct Expect {
  bool may_refuse = false;  // a forced tile that a device may lack
  bool sparse = false;      // most of an output is rightly zero: rows or keys that see nothing
  const char* takes = "";   // a path that the case is about: it may not refuse it
  bool gpu_only = false;    // leave out targets that run on the CPU, if there are others
  CaseOptions options;
};
inline Expect sparse() {
  Expect e;
  e.sparse = true;
  return e;
}
// The case on every target: judged, guards, gaps and workspace checked, run twice for equal bits,
// counted.
void check(const tandem_problem& problem, uint64_t seed, const Expect& expect = {});
// Many large ones. The time goes into their references, so those of a batch are computed side by
// side.
void check_many(const std::vector<tandem_problem>& problems, const char* name,
                const Expect& expect);
void check_case(Case& test, const Expect& expect);  // a case that was made with expect.options
// Problem lines whose outputs are sparse, on every target, executed `repeats` times in one session.
void check_lines(std::initializer_list<const char*> lines, int repeats = 1);
// The same on one target. Returns the number of failures.
int check_on(Target& target, Case& test, const Expect& expect = {}, Outputs* outputs = nullptr);

// Whether the problem is beyond the path: optional inputs on the CPU's vectors, and what takes()
// says.
bool lacks(const Target& target, const tandem_problem& problem);

// "" or what is wrong: more than half of an output zero or not finite.
std::string vacuous(const Outputs& outputs);

}  // namespace parity
#endif
