// SPDX-License-Identifier: MIT OR Apache-2.0
// Estimated times of plans. Each path has a function that counts what its launches do (terms.inc);
// fits.inc has what a unit of each takes, fitted to measured times by scripts/fit-cost.
#ifndef TANDEM_SRC_PLAN_COST_COST_H
#define TANDEM_SRC_PLAN_COST_COST_H
#include <cstdint>

#include "plan/plan.h"

namespace tandem {

enum class CostTerm : uint8_t {
#define TANDEM_COST_TERM(name, unit) name,
#include "terms.inc"
};
constexpr const char* kCostTermNames[] = {
#define TANDEM_COST_TERM(name, unit) #name,
#include "terms.inc"
};
constexpr int kCostTerms = int(sizeof(kCostTermNames) / sizeof(kCostTermNames[0]));

// Quantities of a plan, a number for each term.
struct CostTerms {
  double of[kCostTerms] = {};
  int width = 0;  // widest product, in features: a tile's, or that of a path without tiles
  // Of the kernel with most products: scores of a workgroup, workgroups a SM.
  double loop = 0, fill = 0, most_products = 0;
  double& operator[](CostTerm term) { return of[int(term)]; }
  double operator[](CostTerm term) const { return of[int(term)]; }
};

// Counts a plan of a path that has a function. false: its path has none.
bool cost_terms(const Plan& plan, const Caps& caps, CostTerms* terms);

// A GPU whose times are fitted.
struct CostDevice {
  const char* name;
  Backend backend;
  int compute;         // CUDA: 10 times the compute capability; a device of the same one is alike
  uint32_t vendor_id;  // Vulkan: with the number of cores what a device is known by
  uint32_t cores, clock_mhz, memory_gbps;
  const char* evidence;
};

// What a path takes on a measured GPU, forward or backward, with elements of a size.
struct CostFit {
  int device;  // row of kCostDevices
  const char* path;
  bool backward;
  int element_size;
  int rows;             // measured times that it is fitted to
  float error, margin;  // predicted over measured, or the inverse: median, 90th percentile
  float least_ms, most_ms;
  int narrowest, widest;         // CostTerms::width
  float least_loop, least_fill;  // CostTerms::loop, fill
  // Bits of CostTerm: terms that some measured problem had; bytes: which bounded its time.
  uint32_t fitted;
  float picoseconds[kCostTerms];
};

// An estimated time.
struct Estimate {
  double ms = 0;        // 0: there is none
  bool inside = false;  // the problem is like those that the fit knows, by its inputs and its size
  // The same, but for a term that no measured problem had. ms is without it, so too small.
  bool at_least = false;
  bool scaled = false;  // to the clocks of a device that reports them
  double margin = 1;    // 90th percentile of the fit's error
  explicit operator bool() const { return ms > 0; }
  String words() const;  // "about 0.379 ms"
};

const CostDevice* cost_device(const Caps& caps);  // nullptr: no GPU like it was measured
Estimate estimate_terms(const CostTerms& terms, const Problem& p, const Caps& caps,
                        const char* path);
Estimate estimate(const Plan& plan, const Caps& caps);

// The least that any path with a fit, or a given one, could take for a problem; 0: there is none.
double least_ms(const Problem& p, const Caps& caps, const char* path = nullptr);

// How much faster a later path has to be than the first that takes a problem: more where 90 % of
// the predictions of the two fits are not that good.
constexpr double kRankMargin = 1.3;
// Whether estimates may change the order of paths for a problem on a device.
bool may_rank(const Problem& p, const Caps& caps);
// Whether `other` surely is faster.
bool is_surely_faster(const Estimate& other, const Estimate& first);

// A plan that takes more than kSlow times what that of a nearby problem would: one with other
// strides, another type of bias, a head size rounded up.
constexpr double kSlow = 2;
struct Slow {
  String reason;    // what is in the way, in words; "": the plan is not slow, or nothing is known
  String sentence;  // with both times, and with the refusal of the faster path
};
Slow find_slow(const Plan& plan, const Caps& caps);

}  // namespace tandem
#endif
