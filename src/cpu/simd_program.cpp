// SPDX-License-Identifier: MIT OR Apache-2.0
// Path cpu.simd: splits a launch into units (a tile of one head), divides the scratch of the unit's
// thread, and calls the kernel. A unit owns its outputs and sums in a fixed order, so the bits do
// not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <limits>

#include "problem/far_row.h"
#include "program.h"
#include "simd.h"

namespace tandem {
namespace {

constexpr int kDefaultTile = 64;  // tile of a launch that names none
static_assert(kSimdMaxFeatures == kMaxHeadDim, "rows of every head fit");
constexpr int kDotBlock = 256;          // rows of a bwd_dot unit
constexpr double kFlopsOfThread = 1e6;  // with fewer a thread takes longer to wake than to work

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Allocates parts of a thread's scratch. With a null base it only counts.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<char*>(base)) {}
  float* take(int64_t rows, int64_t columns) {
    char* piece = base_ ? base_ + used_ : nullptr;
    used_ += size_t(round_up(rows * columns * int64_t(sizeof(float)), 64));
    return reinterpret_cast<float*>(piece);
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

class SimdProgram final : public Program {
 public:
  SimdProgram(const Plan& plan, Pool& pool, const SimdKernels& kernels)
      : plan_(plan), pool_(pool), kernels_(kernels) {
    size_t bytes = 0;
    for (const Launch& launch : plan.launches) {
      Carver carver(nullptr);
      switch (launch.stem) {
        case Stem::fwd:
          scratch(launch, carver, SimdFwd());
          break;
        case Stem::bwd_dq:
          scratch(launch, carver, SimdBwdDq());
          break;
        case Stem::bwd_dkv:
          scratch(launch, carver, SimdBwdDkv());
          break;
        default:
          break;
      }
      bytes = std::max(bytes, carver.used());
    }
    if (plan.problem.backward) {
      Carver carver(nullptr);
      scratch(Launch(), carver, SimdBwdOrigin());
      bytes = std::max(bytes, carver.used());
    }
    pool_.reserve(bytes);
  }

  Status record(tandem_stream, const tandem_args& args) const override {
    FarRows far;
    if (plan_.problem.backward) {
      // In this order, as delta of a far row is not bwd_dot's.
      if (plan_.find(Stem::bwd_dot)) bwd_dot(args);
      bwd_origin(args, &far);
    }
    for (const Launch& launch : plan_.launches) {
      switch (launch.stem) {
        case Stem::fwd:
          fwd(launch, args);
          break;
        case Stem::bwd_dkv:
          bwd_dkv(launch, args, far);
          break;
        case Stem::bwd_dq:
          bwd_dq(launch, args, far);
          break;
        default:  // bwd_dot; no other has a row in the registry
          break;
      }
    }
    return Status();
  }

 private:
  // If some row is far, [B,Hq,Sq]: the origins of scores, and lse relative to them; else empty.
  struct FarRows {
    Vec<float> origin, lse;
    const float* origin_of(int64_t row) const {
      return origin.empty() ? nullptr : &origin[size_t(row)];
    }
    const float* lse_of(const tandem_args& args, int64_t row) const {
      return origin.empty() ? address<const float>(args.lse) + row : &lse[size_t(row)];
    }
  };

  static int br(const Launch& launch) { return launch.tile.br > 0 ? launch.tile.br : kDefaultTile; }
  static int bc(const Launch& launch) { return launch.tile.bc > 0 ? launch.tile.bc : kDefaultTile; }

  // Tiles are not larger than the axis.
  int rows_of(const Launch& launch) const {
    return int(std::min<int64_t>(br(launch), plan_.problem.seq_q));
  }
  int cols_of(const Launch& launch) const {
    return int(std::min<int64_t>(bc(launch), plan_.problem.seq_kv));
  }

  // The shapes of the scratch arrays, first to count bytes, then for each unit.
  SimdFwd scratch(const Launch& launch, Carver& carver, SimdFwd t) const {
    const int64_t D = plan_.problem.head_dim, Dv = plan_.problem.head_dim_v, bc = cols_of(launch);
    t.pitch = round_up(rows_of(launch), kSimdMaxLanes);
    t.qt = carver.take(D, t.pitch), t.ot = carver.take(Dv, t.pitch);
    t.s = carver.take(bc, t.pitch);
    t.k_staged = carver.take(bc, D), t.v_staged = carver.take(bc, Dv);
    t.m = carver.take(1, t.pitch), t.l = carver.take(1, t.pitch),
    t.factor = carver.take(1, t.pitch);
    return t;
  }
  SimdBwdDq scratch(const Launch& launch, Carver& carver, SimdBwdDq t) const {
    const int64_t D = plan_.problem.head_dim, Dv = plan_.problem.head_dim_v, bc = cols_of(launch);
    t.pitch = round_up(rows_of(launch), kSimdMaxLanes);
    t.qt = carver.take(D, t.pitch), t.d_ot = carver.take(Dv, t.pitch);
    t.d_qt = carver.take(D, t.pitch);
    t.s = carver.take(bc, t.pitch), t.dp = carver.take(bc, t.pitch);
    t.k_staged = carver.take(bc, D), t.v_staged = carver.take(bc, Dv);
    t.lse_lanes = carver.take(1, t.pitch), t.delta_lanes = carver.take(1, t.pitch);
    t.origin_lanes = carver.take(1, t.pitch);
    return t;
  }
  SimdBwdOrigin scratch(const Launch& launch, Carver& carver, SimdBwdOrigin t) const {
    const int64_t D = plan_.problem.head_dim, Dv = plan_.problem.head_dim_v, bc = cols_of(launch);
    t.pitch = round_up(rows_of(launch), kSimdMaxLanes);
    t.qt = carver.take(D, t.pitch), t.d_ot = carver.take(Dv, t.pitch);
    t.s = carver.take(bc, t.pitch), t.dp = carver.take(bc, t.pitch);
    t.k_staged = carver.take(bc, D), t.v_staged = carver.take(bc, Dv);
    t.m = carver.take(1, t.pitch), t.l = carver.take(1, t.pitch);
    t.factor = carver.take(1, t.pitch), t.delta = carver.take(1, t.pitch);
    return t;
  }
  SimdBwdDkv scratch(const Launch& launch, Carver& carver, SimdBwdDkv t) const {
    const int64_t D = plan_.problem.head_dim, Dv = plan_.problem.head_dim_v, br = rows_of(launch);
    t.pitch = round_up(cols_of(launch), kSimdMaxLanes);
    t.kt = carver.take(D, t.pitch), t.vt = carver.take(Dv, t.pitch);
    t.d_kt = carver.take(D, t.pitch), t.d_vt = carver.take(Dv, t.pitch);
    t.s = carver.take(br, t.pitch), t.dp = carver.take(br, t.pitch);
    t.q_staged = carver.take(br, D), t.d_o_staged = carver.take(br, Dv);
    return t;
  }

  SimdRows rows(const tandem_buffer& buffer, const Strides& t, int64_t b, int64_t h) const {
    const int64_t at = (b * t.b + h * t.h) * plan_.problem.element_size();
    char* base = address<char>(buffer);
    return {base ? base + at : nullptr, t.s, t.d, plan_.problem.dtype};
  }

  // Sets what all kernels that own query rows have: the rows of a tile, and the keys that they see.
  template <typename Task>
  void set_query_tile(const tandem_args& args, int64_t b, int64_t h, int tile, int br, int bc,
                      Task* t) const {
    const Problem& p = plan_.problem;
    const int Sq = int(p.seq_q), Sk = int(p.seq_kv);
    const int64_t kv = h / p.group();
    t->q = rows(args.q, p.q, b, h), t->k = rows(args.k, p.k, b, kv);
    t->v = rows(args.v, p.v, b, kv);
    t->row0 = tile * br, t->rows = std::min(br, Sq - t->row0);
    t->head_dim = p.head_dim, t->head_dim_v = p.head_dim_v;
    t->scale = p.scale, t->band = p.band, t->seq_kv = Sk, t->bc = bc;
    t->tiles = tandem_key_tiles(p.band, t->row0, br, bc, Sq, Sk);
  }

  // Calls body(b, h, tile, scratch) for every tile of every head. The longest tiles of a causal
  // problem go first, so that no thread starts one when the others have ended.
  template <typename Body>
  void for_each_tile(int64_t heads, int64_t tiles, bool last_first, const Body& body) const {
    pool_.run(
        plan_.problem.batch * heads * tiles,
        [&](int64_t unit, void* scratch) {
          const int64_t n = unit % tiles, head = unit / tiles;
          body(head / heads, head % heads, int(last_first ? tiles - 1 - n : n), scratch);
        },
        threads_);
  }

  void fwd(const Launch& launch, const tandem_args& args) const {
    const Problem& p = plan_.problem;
    const int Sq = int(p.seq_q), Br = rows_of(launch), Bc = std::max(cols_of(launch), 1),
              tiles = (Sq + Br - 1) / Br;
    MaxLogits largest(p, tiles);
    for_each_tile(p.heads_q, tiles, true, [&](int64_t b, int64_t h, int tile, void* memory) {
      Carver carver(memory);
      SimdFwd t = scratch(launch, carver, SimdFwd());
      set_query_tile(args, b, h, tile, Br, Bc, &t);
      t.o = rows(args.o, p.o, b, h);
      float* lse = address<float>(args.lse);
      t.lse = lse ? lse + (b * p.heads_q + h) * Sq + t.row0 : nullptr;
      t.top = largest.of(b, h, tile);
      kernels_.fwd(t);
    });
    largest.raise(p, address<float>(args.max_logit));
  }

  void bwd_dot(const tandem_args& args) const {
    const Problem& p = plan_.problem;
    const int Sq = int(p.seq_q);
    for_each_tile(p.heads_q, (Sq + kDotBlock - 1) / kDotBlock, false,
                  [&](int64_t b, int64_t h, int block, void*) {
                    SimdBwdDot t;
                    t.o = rows(args.o, p.o, b, h), t.d_o = rows(args.d_o, p.d_o, b, h);
                    t.head_dim_v = p.head_dim_v;
                    t.row0 = block * kDotBlock, t.rows = std::min(kDotBlock, Sq - t.row0);
                    const int64_t row = (b * p.heads_q + h) * Sq + t.row0;
                    t.delta = delta_of(plan_, args) + row;
                    t.lse = address<const float>(args.lse) + row;
                    t.d_lse = p.d_lse ? address<const float>(args.d_lse) + row : nullptr;
                    kernels_.bwd_dot(t);
                  });
  }

  // A part of a row's keys, whose own lse is m + l, or whose l is infinite, as it sees none: takes
  // the whole row's lse where that tells (far_row.h).
  void take_whole(float lse, float* m, float* l) const {
    const Problem& p = plan_.problem;
    if (std::isinf(*l)) {
      *m = lse, *l = 0;
      return;
    }
    const float slack = tandem_part_slack(int(p.head_dim), p.dtype == TANDEM_F32), whole = lse - *m;
    if (whole > *l + slack * std::fabs(lse))
      *l = std::min(whole, std::numeric_limits<float>::max());
  }

  // Leaves far empty unless a row is far; the delta of far rows is then overwritten as well.
  void bwd_origin(const tandem_args& args, FarRows* far) const {
    const Problem& p = plan_.problem;
    const int64_t count = p.batch * p.heads_q * p.seq_q;
    const float* lse = address<const float>(args.lse);
    if (p.heads_kv * p.seq_kv == 0 || std::none_of(lse, lse + count, tandem_is_far)) return;
    far->lse.assign(lse, lse + count);
    far->origin.resize(size_t(count));
    const bool want_delta = plan_.find(Stem::bwd_dot) != nullptr && !p.part_of_keys;
    const Launch launch;
    const int Sq = int(p.seq_q), Br = rows_of(launch), Bc = cols_of(launch);
    for_each_tile(p.heads_q, (Sq + Br - 1) / Br, true,
                  [&](int64_t b, int64_t h, int tile, void* memory) {
                    Carver carver(memory);
                    SimdBwdOrigin t = scratch(launch, carver, SimdBwdOrigin());
                    set_query_tile(args, b, h, tile, Br, Bc, &t);
                    const int64_t row = (b * p.heads_q + h) * Sq + t.row0;
                    if (std::none_of(lse + row, lse + row + t.rows, tandem_is_far)) return;
                    t.d_o = rows(args.d_o, p.d_o, b, h), t.want_delta = want_delta;
                    kernels_.bwd_origin(t);
                    for (int r = 0; r < t.rows; ++r) {
                      if (!tandem_is_far(lse[row + r])) continue;
                      if (p.part_of_keys) take_whole(lse[row + r], &t.m[r], &t.l[r]);
                      far->origin[size_t(row + r)] = t.m[r];
                      far->lse[size_t(row + r)] = t.l[r];
                      if (!want_delta) continue;
                      // Where no key is visible, although lse says that one is, l is infinite.
                      const bool takes = p.d_lse && std::isfinite(t.l[r]);
                      delta_of(plan_, args)[row + r] =
                          t.delta[r] - (takes ? address<const float>(args.d_lse)[row + r] : 0.f);
                    }
                  });
  }

  void bwd_dq(const Launch& launch, const tandem_args& args, const FarRows& far) const {
    const Problem& p = plan_.problem;
    const int Sq = int(p.seq_q), Br = rows_of(launch), Bc = std::max(cols_of(launch), 1);
    for_each_tile(p.heads_q, (Sq + Br - 1) / Br, true,
                  [&](int64_t b, int64_t h, int tile, void* memory) {
                    Carver carver(memory);
                    SimdBwdDq t = scratch(launch, carver, SimdBwdDq());
                    set_query_tile(args, b, h, tile, Br, Bc, &t);
                    t.d_o = rows(args.d_o, p.d_o, b, h), t.d_q = rows(args.d_q, p.d_q, b, h);
                    const int64_t row = (b * p.heads_q + h) * Sq + t.row0;
                    t.lse = far.lse_of(args, row), t.origin = far.origin_of(row);
                    t.delta = delta_of(plan_, args) + row;
                    kernels_.bwd_dq(t);
                  });
  }

  void bwd_dkv(const Launch& launch, const tandem_args& args, const FarRows& far) const {
    const Problem& p = plan_.problem;
    const int Sq = int(p.seq_q), Sk = int(p.seq_kv), Br = std::max(rows_of(launch), 1),
              Bc = cols_of(launch);
    for_each_tile(p.heads_kv, (Sk + Bc - 1) / Bc, false,
                  [&](int64_t b, int64_t h, int tile, void* memory) {
                    Carver carver(memory);
                    SimdBwdDkv t = scratch(launch, carver, SimdBwdDkv());
                    const int64_t first = h * p.group();
                    t.q = rows(args.q, p.q, b, first), t.d_o = rows(args.d_o, p.d_o, b, first);
                    t.q_head = p.q.h, t.d_o_head = p.d_o.h, t.group = int(p.group());
                    t.k = rows(args.k, p.k, b, h), t.v = rows(args.v, p.v, b, h);
                    t.d_k = rows(args.d_k, p.d_k, b, h), t.d_v = rows(args.d_v, p.d_v, b, h);
                    t.want_k = p.wants(TANDEM_GRAD_K), t.want_v = p.wants(TANDEM_GRAD_V);
                    t.col0 = tile * Bc, t.cols = std::min(Bc, Sk - t.col0);
                    const int64_t row = (b * p.heads_q + first) * Sq;
                    t.lse = far.lse_of(args, row), t.origin = far.origin_of(row);
                    t.delta = t.want_k ? delta_of(plan_, args) + row : nullptr;
                    t.head_dim = p.head_dim, t.head_dim_v = p.head_dim_v;
                    t.scale = p.scale, t.band = p.band, t.seq_q = Sq, t.br = Br;
                    t.tiles = tandem_query_tiles(p.band, t.col0, Bc, Br, Sq, Sk);
                    kernels_.bwd_dkv(t);
                  });
  }

  const Plan plan_;
  Pool& pool_;
  const SimdKernels& kernels_;
  const unsigned threads_ = worth_threads(plan_.problem, kFlopsOfThread);
};

}  // namespace

std::unique_ptr<Program> make_simd_program(const Plan& plan, Pool& pool,
                                           const SimdKernels& kernels) {
  return std::make_unique<SimdProgram>(plan, pool, kernels);
}

}  // namespace tandem
