// SPDX-License-Identifier: MIT OR Apache-2.0
#include "overlap.h"

#include <algorithm>

namespace tandem {
namespace {

// Extents beyond this are of no memory that exists; sums of a few of them stay within 64 bits.
constexpr uint64_t kLargestExtent = uint64_t(1) << 60;

// Whether sums of multiples of strides reach an interval. The multiples are below counts.
class Search {
 public:
  Search(const Footprint& a, const Footprint& b) {
    for (int n = 0; n < a.dims; ++n) add(a.dim[size_t(n)]);
    for (int n = 0; n < b.dims; ++n) add(b.dim[size_t(n)]);
    for (int n = dims_ - 1; n >= 0; --n) {
      Dim& d = dim_[n];
      const Dim* smaller = n + 1 < dims_ ? &dim_[n + 1] : nullptr;
      d.rest = smaller ? smaller->rest + smaller->stride * smaller->most : 0;
      d.divisor = d.stride;
      if (smaller)
        for (int64_t r = smaller->divisor; r != 0;) {
          const int64_t next = d.divisor % r;
          d.divisor = r;
          r = next;
        }
    }
  }

  bool reaches(int64_t low, int64_t high) { return reaches(0, low, high); }

 private:
  struct Dim {
    int64_t stride, most;  // most: the largest multiple
    int64_t rest;          // the largest sum of the smaller strides
    int64_t divisor;       // the greatest of this stride and the smaller ones
  };

  // Keeps the strides in descending order, each once.
  void add(const Footprint::Dim& given) {
    const auto stride = int64_t(given.stride), most = int64_t(given.count - 1);
    int at = dims_;
    while (at > 0 && dim_[at - 1].stride < stride) --at;
    if (at > 0 && dim_[at - 1].stride == stride) {
      dim_[at - 1].most += most;
      return;
    }
    for (int n = dims_++; n > at; --n) dim_[n] = dim_[n - 1];
    dim_[at] = {stride, most, 0, 0};
  }

  bool reaches(int n, int64_t low, int64_t high) {
    if (high < 0) return false;
    low = std::max<int64_t>(low, 0);
    if (n == dims_) return low == 0;
    const Dim& d = dim_[n];
    if (high / d.divisor * d.divisor < low) return false;
    const int64_t first = low > d.rest ? (low - d.rest + d.stride - 1) / d.stride : 0,
                  last = std::min(d.most, high / d.stride);
    if (n + 1 == dims_) return first <= last;
    for (int64_t m = first; m <= last; ++m) {
      if (--tries_ < 0) return false;
      if (reaches(n + 1, low - m * d.stride, high - m * d.stride)) return true;
    }
    return false;
  }

  Dim dim_[8];
  int dims_ = 0;
  int tries_ = 1000;  // a few microseconds; layouts in use need less than ten
};

}  // namespace

Footprint footprint(uint64_t element_size, const std::array<int64_t, 4>& size,
                    const std::array<int64_t, 4>& stride) {
  Footprint f;
  std::array<Footprint::Dim, 4> dims{};  // by their strides
  int count = 0;
  for (size_t n = 0; n < 4; ++n) {
    if (size[n] == 0) return f;
    if (size[n] == 1 || stride[n] == 0) continue;
    const Footprint::Dim d{uint64_t(stride[n]) * element_size, uint64_t(size[n])};
    int at = count++;
    for (; at > 0 && dims[size_t(at - 1)].stride > d.stride; --at)
      dims[size_t(at)] = dims[size_t(at - 1)];
    dims[size_t(at)] = d;
  }
  f.run = f.extent = element_size;
  for (int n = 0; n < count; ++n) {
    const Footprint::Dim& d = dims[size_t(n)];
    f.extent += d.stride * (d.count - 1);
    if (d.stride <= f.run && f.dims == 0) {
      f.run += d.stride * (d.count - 1);
      continue;
    }
    Footprint::Dim* last = f.dims > 0 ? &f.dim[size_t(f.dims - 1)] : nullptr;
    if (last && d.stride % last->stride == 0 && d.stride / last->stride <= last->count)
      last->count += d.stride / last->stride * (d.count - 1);
    else
      f.dim[size_t(f.dims++)] = d;
  }
  return f;
}

bool share_memory(const Footprint& a, uint64_t at_a, const Footprint& b, uint64_t at_b) {
  // Differences, so that addresses at the end of the space do no harm.
  if (at_b - at_a >= a.extent && at_a - at_b >= b.extent) return false;
  if (a.extent > kLargestExtent || b.extent > kLargestExtent) return false;
  if (a.dims == 0 && b.dims == 0) return true;
  // A byte of a less a byte of b is 0. With b's multiples counted from their largest, all terms
  // have one sign.
  const int64_t distance =
      int64_t(at_b - at_a) + int64_t(b.extent - b.run);  // of b's last run from a's first one
  return Search(a, b).reaches(distance - int64_t(a.run - 1), distance + int64_t(b.run - 1));
}

OverlapCheck::OverlapCheck(const Plan& plan) {
  if (plan.launches.empty()) return;
  const Problem& p = plan.problem;
  const bool packed_q = is_packed(p.lengths_q), packed_kv = is_packed(p.lengths_kv);
  const auto array = [](uint64_t element_size, int64_t count) {
    return footprint(element_size, {1, 1, 1, count}, {0, 0, 0, 1});
  };
  const auto strided = [](uint64_t element_size, const std::array<int64_t, 4>& size,
                          const Strides& t) {
    return footprint(element_size, size, {t.b, t.h, t.s, t.d});
  };
  const auto queries = [&](const Strides& t, int64_t features) {
    return strided(uint64_t(p.element_size()),
                   {packed_q ? 1 : p.batch, p.heads_q, packed_q ? p.total_q : p.seq_q, features},
                   t);
  };
  // A footprint has four dimensions. Where parts need a fifth one, it is the span of them all.
  const auto parts = [&](const Strides& t, int64_t step) {
    const auto size = uint64_t(p.parts.element_size());
    const int64_t count = p.parts.count;
    if (count == 0 || p.batch * p.heads_q * p.seq_q == 0) return Footprint();
    if (count == 1) return strided(size, {p.batch, p.heads_q, p.seq_q, p.head_dim_v}, t);
    if (p.batch == 1)
      return strided(size, {count, p.heads_q, p.seq_q, p.head_dim_v}, {step, t.h, t.s, t.d});
    if (step == t.b * p.batch)
      return strided(size, {count * p.batch, p.heads_q, p.seq_q, p.head_dim_v}, t);
    return array(size, 1 + (count - 1) * step + (p.batch - 1) * t.b + (p.heads_q - 1) * t.h +
                           (p.seq_q - 1) * t.s + (p.head_dim_v - 1) * t.d);
  };
  const auto keys = [&](const Strides& t, int64_t features) {
    return strided(
        uint64_t(p.element_size()),
        {packed_kv ? 1 : p.batch, p.heads_kv, packed_kv ? p.total_kv : p.seq_kv, features}, t);
  };
  const auto overlay = [&](const Overlay& o, const Strides& t, tandem_dtype dtype) {
    return strided(dtype_size(dtype), {o.batch, o.heads, o.rows, p.seq_kv}, t);
  };
  const auto lengths = [&](Lengths mode) {
    return array(4, p.batch + (mode == Lengths::packed ? 1 : 0));
  };
  const int64_t D = p.head_dim, Dv = p.head_dim_v;
  const auto side = [&](int64_t count) { return array(uint64_t(p.side_size()), count); };
  const Footprint per_head = side(p.heads_q), slopes = side(p.slopes_batch * p.heads_q),
                  sinks = side(p.sinks_batch * p.heads_q),
                  distances = side(p.heads_q * p.dist_window),
                  part_lse = side(int64_t(p.parts.count) * p.batch * p.heads_q * p.seq_q),
                  table = side(p.heads_q * p.table.size);

  using A = tandem_args;
  const struct {
    tandem_buffer A::*buffer;
    bool output;
    Footprint footprint;
  } all[] = {
      {&A::workspace, true, array(1, int64_t(plan.workspace_size))},
      {&A::q, false, queries(p.q, D)},
      {&A::k, false, keys(p.k, D)},
      {&A::v, false, keys(p.v, Dv)},
      {&A::o, !p.backward, queries(p.o, Dv)},
      {&A::lse, !p.backward, side(p.batch * p.heads_q * p.seq_q)},
      {&A::d_o, false, queries(p.d_o, Dv)},
      {&A::d_q, true, queries(p.d_q, D)},
      {&A::d_k, true, keys(p.d_k, D)},
      {&A::d_v, true, keys(p.d_v, Dv)},
      {&A::bias, false, overlay(p.bias, p.bias.strides, p.bias.dtype)},
      {&A::keep, false, overlay(p.keep, p.keep.strides, p.keep.dtype)},
      {&A::spans, false, array(4, p.spans.batch * p.spans.heads * p.seq_kv * 2 * p.spans.count)},
      {&A::blocks, false,
       array(4, p.blocks ? p.blocks.batch * p.blocks.heads * p.blocks.numbers(p.seq_q) : 0)},
      {&A::block_bits, false,
       array(4, p.blocks ? p.blocks.batch * p.blocks.heads * p.blocks.words(p.seq_q) : 0)},
      {&A::bias_table, false, table},
      {&A::bias_index, false,
       array(uint64_t(p.table.index_bytes()), p.table.batch * p.seq_q * p.seq_kv)},
      {&A::dist_bias, false, distances},
      {&A::slope, false, slopes},
      {&A::tau, false, per_head},
      {&A::sink, false, sinks},
      {&A::lengths_q, false, lengths(p.lengths_q)},
      {&A::lengths_kv, false, lengths(p.lengths_kv)},
      {&A::d_bias, true, overlay(p.bias, p.d_bias, p.d_bias_dtype)},
      {&A::d_dist_bias, true, distances},
      {&A::d_slope, true, slopes},
      {&A::d_tau, true, per_head},
      {&A::d_sink, true, sinks},
      {&A::d_bias_table, true, table},
      {&A::d_lse, false, side(p.batch * p.heads_q * p.seq_q)},
      {&A::max_logit, true, array(4, p.max_logit_batch * p.heads_q)},
      {&A::offsets_q, false, array(4, p.batch)},
      {&A::offsets_kv, false, array(4, p.batch)},
      {&A::part_o, false, parts(p.part_o, p.parts.stride)},
      {&A::part_lse, false, part_lse},
      {&A::d_part_o, true, parts(p.d_part_o, p.parts.d_stride)},
      {&A::d_part_lse, true, part_lse}};
  static_assert(sizeof(all) / sizeof(all[0]) == kArgCount, "a buffer is missing here");
  for (const bool output : {true, false})
    for (const ArgUse& use : arg_uses(plan)) {
      if (!use.needed && !use.optional) continue;
      for (const auto& tensor : all)
        if (tensor.buffer == use.buffer && tensor.output == output && tensor.footprint.run > 0) {
          args_[size_t(count_++)] = {use.name, use.buffer, use.address, tensor.footprint};
          outputs_ += output;
        }
    }
}

Status OverlapCheck::compare(const std::array<uint64_t, kArgCount>& at) const {
  for (int x = 0; x < outputs_; ++x) {
    const Arg& a = args_[size_t(x)];
    if (at[size_t(x)] == 0) continue;
    for (int y = x + 1; y < count_; ++y) {
      const Arg& b = args_[size_t(y)];
      if (at[size_t(y)] == 0 ||
          !share_memory(a.footprint, at[size_t(x)], b.footprint, at[size_t(y)]))
        continue;
      const auto is_workspace = [](const Arg& arg) {
        return arg.buffer == &tandem_args::workspace;
      };
      const auto last = [&](const Arg& arg, int n) {
        return (unsigned long long)(at[size_t(n)] + arg.footprint.extent - 1);
      };
      return fail(is_workspace(a) || is_workspace(b) ? TANDEM_ERROR_WORKSPACE
                                                     : TANDEM_ERROR_INVALID_ARGUMENT,
                  "args.%s, at 0x%llx to 0x%llx, shares memory with args.%s, at 0x%llx to 0x%llx: "
                  "an output or the workspace may share none with another tensor",
                  a.name, (unsigned long long)at[size_t(x)], last(a, x), b.name,
                  (unsigned long long)at[size_t(y)], last(b, y));
    }
  }
  return Status();
}

}  // namespace tandem
