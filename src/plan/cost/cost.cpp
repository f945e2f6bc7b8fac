// SPDX-License-Identifier: MIT OR Apache-2.0
// From quantities to times, and what follows for the order of paths.
#include "cost.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/number.h"
#include "plan/planner.h"

namespace tandem {
namespace {

constexpr CostDevice kCostDevices[] = {
#define TANDEM_COST_DEVICE(name, backend, compute, vendor, cores, clock, gbps, evidence) \
  {#name, Backend::backend, compute, vendor, cores, clock, gbps, evidence},
#define TANDEM_COST_FIT(...)
#include "fits.inc"
};

enum DeviceRow : int {
#define TANDEM_COST_DEVICE(name, ...) name,
#define TANDEM_COST_FIT(...)
#include "fits.inc"
};

constexpr CostFit kCostFits[] = {
#define TANDEM_COST_DEVICE(...)
#define TANDEM_COST_FIT(device, path, backward, size, rows, error, margin, least, most, narrowest, \
                        widest, loop, fill, fitted, ...)                                           \
  {device, #path,     backward, size, rows, error,  margin,       least,                           \
   most,   narrowest, widest,   loop, fill, fitted, {__VA_ARGS__}},
#include "fits.inc"
};

constexpr uint32_t bit(CostTerm term) { return 1u << uint32_t(term); }

const CostFit* find_fit(const CostDevice& device, const char* path, bool backward, int size) {
  for (const CostFit& f : kCostFits)
    if (&kCostDevices[f.device] == &device && std::strcmp(f.path, path) == 0 &&
        f.backward == backward && f.element_size == size)
      return &f;
  return nullptr;
}

// How far beyond the measured times and shapes a fit is trusted.
constexpr double kReach = 1.5;

// A measured device's speed over this one's. 1: this one's is not known.
double speed_ratio(uint32_t measured, uint32_t speed) {
  return speed ? double(measured) / speed : 1;
}

// Speeds over half and below twice those of the measured device.
constexpr double kMostScale = 2;
bool near_one(double ratio) { return ratio < kMostScale && ratio * kMostScale > 1; }

bool is_scaled(const CostDevice& device, const Caps& caps) {
  return caps.cores && caps.clock_mhz && caps.memory_gbps &&
         near_one(speed_ratio(device.clock_mhz, caps.clock_mhz)) &&
         near_one(speed_ratio(device.memory_gbps, caps.memory_gbps)) &&
         near_one(speed_ratio(device.cores, caps.cores));
}

}  // namespace

const CostDevice* cost_device(const Caps& caps) {
  for (const CostDevice& d : kCostDevices)
    if (d.backend == caps.backend &&
        (d.backend == Backend::cuda ? d.compute == 10 * caps.compute_major + caps.compute_minor
                                    : d.vendor_id == caps.vendor_id && d.cores == caps.cores))
      return &d;
  return nullptr;
}

String Estimate::words() const {
  if (ms <= 0) return "";
  char digits[32];
  return text("about %s ms%s",
              fixed_text(digits, ms,
                         ms < 0.1  ? 4
                         : ms < 10 ? 3
                                   : 1),
              at_least ? " or more"
              : inside ? ""
                       : ", unlike any measured problem");
}

Estimate estimate_terms(const CostTerms& terms, const Problem& p, const Caps& caps,
                        const char* path) {
  Estimate e;
  const CostDevice* device = cost_device(caps);
  if (!device) return e;
  const int size = int(p.element_size());
  const CostFit* fit = find_fit(*device, path, p.backward, size);
  if (!fit) return e;
  // A term that the fit does not have may be known of the other size of elements.
  const CostFit* sibling = find_fit(*device, path, p.backward, 6 - size);
  // No fit knows tiles that a mask map skips, or the launches of a table.
  bool misses = p.spans || p.table, borrows = false;
  double before = 0, products = 0, memory = 0;
  for (int n = 0; n < kCostTerms; ++n) {
    if (terms.of[n] <= 0) continue;
    const CostFit* of = fit;
    if ((fit->fitted & 1u << n) == 0 && n != int(CostTerm::bytes)) {
      misses = true;
      if (sibling && (sibling->fitted & 1u << n) != 0) of = sibling, borrows = true;
    }
    const auto term = CostTerm(n);
    const double time = terms.of[n] * of->picoseconds[n];
    (term == CostTerm::launches || term == CostTerm::aux_bytes ? before
     : term == CostTerm::bytes                                 ? memory
                                                               : products) += time;
  }
  e.scaled = is_scaled(*device, caps);
  const double slower_memory = speed_ratio(device->memory_gbps, caps.memory_gbps);
  products *= speed_ratio(device->clock_mhz, caps.clock_mhz);
  memory *= slower_memory;
  const double aux = terms[CostTerm::aux_bytes] * fit->picoseconds[int(CostTerm::aux_bytes)];
  e.ms = 1e-9 * (before + aux * (slower_memory - 1) + std::max(products, memory));
  const bool knows_memory = memory <= products || (fit->fitted & bit(CostTerm::bytes)) != 0;
  e.margin = fit->margin;
  const bool like = knows_memory && terms.width >= fit->narrowest && terms.width <= fit->widest &&
                    terms.loop * kReach >= fit->least_loop &&
                    terms.fill * kReach >= fit->least_fill && e.ms * kReach >= fit->least_ms &&
                    e.ms <= fit->most_ms * kReach;
  e.inside = like && !misses;
  e.at_least = like && misses && !borrows;
  return e;
}

Estimate estimate(const Plan& plan, const Caps& caps) {
  CostTerms terms;
  if (plan.problem.parts || !cost_device(caps) || !cost_terms(plan, caps, &terms)) return {};
  return estimate_terms(terms, plan.problem, caps, plan.path);
}

double least_ms(const Problem& p, const Caps& caps, const char* path) {
  const CostDevice* device = cost_device(caps);
  if (!device || p.is_empty() || p.parts) return 0;  // merges were not timed
  // Lengths that are not known may be small.
  const double share = p.has_lengths() ? 0.5 : 1;
  const double scores = share * visible_pairs(p) / double(cores_of(caps));
  const auto d = double(p.head_dim), dv = double(p.head_dim_v);
  const double features = p.backward ? 3 * d + 2 * dv : d + dv;
  const double bytes =
      share * double(p.batch) * double(p.element_size()) * (d + dv) *
      (double(p.heads_q) * double(p.seq_q) + double(p.heads_kv) * double(p.seq_kv));
  double least = 0;
  for (const CostFit& f : kCostFits) {
    if (&kCostDevices[f.device] != device || f.backward != p.backward ||
        f.element_size != p.element_size() || (path && std::strcmp(path, f.path) != 0))
      continue;
    const auto of = [&](CostTerm term) { return double(f.picoseconds[int(term)]); };
    double score = of(CostTerm::elements) + features * of(CostTerm::products);
    if ((f.fitted & bit(CostTerm::windows)) != 0) score = std::min(score, of(CostTerm::windows));
    const double ms =
        1e-9 * (of(CostTerm::launches) +
                std::max(scores * score * speed_ratio(device->clock_mhz, caps.clock_mhz),
                         bytes * of(CostTerm::bytes) *
                             speed_ratio(device->memory_gbps, caps.memory_gbps)));
    least = least == 0 ? ms : std::min(least, ms);
  }
  return least;
}

bool may_rank(const Problem& p, const Caps& caps) {
  const CostDevice* device = cost_device(caps);
  return device && is_scaled(*device, caps) && !p.is_empty() && !p.parts && !p.visit_all &&
         p.tile_rows == 0 && p.tile_cols == 0 && p.splits == 0;
}

bool is_surely_faster(const Estimate& other, const Estimate& first) {
  // Errors of two fits are taken as independent.
  const double both = std::exp(std::hypot(std::log(first.margin), std::log(other.margin)));
  return other.inside && first.inside && other.scaled && first.scaled &&
         first.ms > other.ms * std::max(kRankMargin, both);
}

}  // namespace tandem
