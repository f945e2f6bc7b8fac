// SPDX-License-Identifier: MIT OR Apache-2.0
// Which problems the path cuda.sm90 takes, and which tiles (hopper_tiles.inc) they get.
#include <algorithm>

#include "hopper_tiles.h"
#include "number.h"
#include "planner.h"

namespace tandem {
namespace {

// Why TMA cannot read a tensor; "" if it can. TMA needs contiguous features, and strides that are
// multiples of 16 bytes.
String tensor_map_refusal(const char* name, const Strides& s, int64_t batch, int64_t heads,
                          int64_t rows, int64_t features) {
  const struct {
    int64_t size, stride;
    const char* what;
  } steps[] = {{rows, s.s, "rows"}, {heads, s.h, "heads"}, {batch, s.b, "batch entries"}};
  if (s.d != 1) return text("the features of %s are not side by side", name);
  if (features % 8 != 0)
    return text("%s has %lld features, TMA needs a multiple of 8", name, (long long)features);
  for (const auto& step : steps) {
    if (step.size == 1) continue;
    if (step.stride % 8 != 0 || step.stride == 0)
      return text("the %s of %s are %lld elements apart, TMA needs a multiple of 8", step.what,
                  name, (long long)step.stride);
    if (step.stride >= int64_t(1) << 39)
      return text("the %s of %s are %lld elements apart, beyond 2^39", step.what, name,
                  (long long)step.stride);
  }
  return "";
}

String forced(const Problem& p, int br, int bc) {
  if ((p.tile_rows == 0 || p.tile_rows == br) && (p.tile_cols == 0 || p.tile_cols == bc)) return "";
  return text("%dx%d is not the tile %dx%d that the problem asks for", br, bc, p.tile_rows,
              p.tile_cols);
}

String too_wide(const char* what, int64_t size, int most) {
  return size <= most ? "" : text("%s %lld is beyond its %d", what, (long long)size, most);
}

String no_room(const Caps& caps, int shared, int invocations) {
  if (uint32_t(shared) > caps.shared_bytes)
    return text("needs %d bytes of shared memory, the device has %u", shared, caps.shared_bytes);
  if (uint32_t(invocations) > caps.max_invocations)
    return text("needs workgroups of %d, the device has %u", invocations, caps.max_invocations);
  return "";
}

FwdTile sm90_fwd_tile(const Problem& p, int row) {
  return hopper_variant(p) == HopperVariant::masked ? fwd_masked_tile(kFwdTiles[row])
                                                    : kFwdTiles[row];
}

// Optional inputs that change scores, or in backward what their gradients need.
constexpr uint32_t kScores = kHasSoftcap | kHasAlibi | kHasDistBias;

// Whether the decoupled warpgroups have elastic softmax (cuda/sm90/fwd/elastic_decoupled.cuh). They
// need a causal mask whose diagonal lies along blocks of 64 rows and keys, and a scale that
// multiplies a score after its bias.
bool on_blocks(const Problem& p) {
  return p.band.right == 0 && p.band.left == TANDEM_BAND_OPEN && p.band.off % 64 == 0 &&
         p.seq_q - 1 + p.band.off < p.seq_kv && p.scale > kPlainScale;
}

// Bytes of shared memory of fwd; 0: there is no kernel.
int sm90_fwd_bytes(const Problem& p, const FwdTile& t) {
  const HopperVariant set = hopper_variant(p);
  if (t.decoupled && set != HopperVariant::plain &&
      !(set == HopperVariant::elastic && on_blocks(p)))
    return 0;
  if (t.bias && set != HopperVariant::bias) return 0;
  switch (set) {
    case HopperVariant::bias:
      return fwd_bias_shared_bytes(t);
    case HopperVariant::elastic:
      return fwd_elastic_shared_bytes(t);
    case HopperVariant::entmax:
      return fwd_entmax_shared_bytes(t);
    case HopperVariant::varlen:
    case HopperVariant::softcap_alibi:
      return fwd_varlen_shared_bytes(t);
    case HopperVariant::masked:
      return fwd_masked_shared_bytes(t);
    default:
      return fwd_plain_shared_bytes(t);
  }
}
int sm90_bwd_bytes(const Problem& p, const BwdShape& s) {
  switch (hopper_variant(p)) {
    case HopperVariant::bias:
      return bwd_bias_shared_bytes(s);
    case HopperVariant::elastic:
      return bwd_elastic_shared_bytes(s);
    case HopperVariant::varlen:
      return bwd_varlen_shared_bytes(s);
    case HopperVariant::softcap_alibi:
      return has_softcap_alibi_kernel(s) ? bwd_varlen_shared_bytes(s) : 0;
    case HopperVariant::masked:
      return has_masked_scores(s) || p.extras(~kScores).empty() ? bwd_masked_shared_bytes(s) : 0;
    default:
      return bwd_plain_shared_bytes(s);
  }
}

// Row of kDqShapes. The last row has all head sizes that wide tiles have.
int dq_row(const Problem& p) {
  return std::max(p.head_dim, p.head_dim_v) <= kDqShapes[0].d ? 0 : 1;
}

// Why a tile for heads of d does not take the alpha of entmax; "" if it does. An alpha other than
// 1.5 has kernels for heads of 128 alone.
String alpha_refusal(const Problem& p, int d) {
  if (p.normalizer != Normalizer::entmax || p.alpha == 1.5f || d == 128) return "";
  return text("entmax with alpha %s takes the tiles for heads of 128", short_text(p.alpha).c_str());
}

// Smallest number of tiles for each SM with which the larger tiles for a bias are taken. They were
// timed with 5.3 and 10.7, but not with fewer and not with a mask.
constexpr int64_t kManyTiles = 4;

String row_refusal(const Problem& p, const Caps& caps, const FwdTile& t) {
  if (is_disabled(caps, t.name)) return kDisabled;
  for (const String& why :
       {too_wide("head_dim", p.head_dim, t.d), too_wide("head_dim_v", p.head_dim_v, t.dv),
        forced(p, t.rows(), t.bc), alpha_refusal(p, t.d)})
    if (!why.empty()) return why;
  if (sm90_fwd_bytes(p, t) == 0)
    return t.decoupled
               ? "its kernels have softmax alone, or elastic softmax with a causal mask whose "
                 "diagonal goes "
                 "along blocks of 64 rows and keys"
           : t.bias                             ? "its kernels have a dense bias"
           : p.bias                             ? "it has no room for tiles of the bias"
           : p.normalizer == Normalizer::entmax ? "it has no room for candidates"
                                                : "it has no kernel with lengths";
  if (hopper_variant(p) == HopperVariant::plain && p.tile_rows == 0 && p.tile_cols == 0 &&
      (p.seq_kv < t.from || (t.to > 0 && !p.banded() && p.seq_kv > t.to)))
    return text("for %lld keys another tile is faster", (long long)p.seq_kv);
  if (t.bias && p.tile_rows == 0 && p.tile_cols == 0) {
    if (p.banded()) return "it is taken without a mask alone";
    const int64_t tiles = p.batch * p.heads_q * ((p.seq_q + t.rows() - 1) / t.rows());
    if (tiles < kManyTiles * int64_t(caps.cores))
      return text("it is taken from %lld tiles an SM on, here are %lld for %lld",
                  (long long)kManyTiles, (long long)tiles, (long long)caps.cores);
  }
  return no_room(caps, sm90_fwd_bytes(p, t), t.threads());
}

String row_refusal(const Problem& p, const Caps& caps, const BwdShape& s) {
  if (is_disabled(caps, s.name)) return kDisabled;
  for (const String& why :
       {too_wide("head_dim", p.head_dim, s.d), too_wide("head_dim_v", p.head_dim_v, s.d),
        forced(p, s.br, s.bc), alpha_refusal(p, s.d)})
    if (!why.empty()) return why;
  if (s.wide && std::max(p.head_dim, p.head_dim_v) <= kMaxFusedHeadDim)
    return text("it is for heads over %d", kMaxFusedHeadDim);
  if (sm90_bwd_bytes(p, s) == 0) return "its registers do not suffice for " + p.extras();
  const int dq = s.wide ? dq_shared_bytes(kDqShapes[dq_row(p)]) : 0;
  return no_room(caps, std::max(sm90_bwd_bytes(p, s), dq), kBwdThreads);
}

// The first row that is taken; -1: none is.
template <typename Row>
int first_row(const Row& row, int count, const Problem& p, const Caps& caps, const String& name,
              const Refuse& refuse) {
  for (int n = 0; n < count; ++n) {
    const String why = row_refusal(p, caps, row(n));
    if (why.empty()) return n;
    refuse(name + " " + row(n).name, why);
  }
  refuse(name, "no row of its tiles does");
  return -1;
}

// Why the kernels with a dense bias do not take a problem; "" if they do.
String bias_refusal(const Problem& p) {
  const Overlay& b = p.bias;
  const String more = p.extras(kHasBias);
  if (!more.empty()) return "beside the dense bias, this problem has " + more;
  if (p.backward && (p.head_dim > 128 || p.head_dim_v > 128))
    return "with a dense bias, head sizes go up to 128";
  if (!p.backward && !(p.scale > kPlainScale))
    return text("with a dense bias, the scale is over %s, here it is %s",
                short_text(kPlainScale).c_str(), short_text(p.scale).c_str());
  if (b.dtype != p.dtype)
    return text("its bias is of the tensors' type, this one of %s", dtype_name(b.dtype));
  if (b.rows != p.seq_q) return "its bias has a row for each query";
  if (b.batch != p.batch && b.batch != 1) return "its bias is of one batch entry or of all";
  const String why = tensor_map_refusal("bias", b.strides, b.batch, b.heads, b.rows, 8);
  if (!why.empty()) return why;
  if (!p.wants(TANDEM_GRAD_BIAS)) return "";
  if (b.heads != p.heads_q) return "d_bias, it sums over the batch, not over heads";
  if (b.batch != p.batch && p.batch > kMaxCluster)
    return text("d_bias, it sums over up to %d batch entries, not %lld", kMaxCluster,
                (long long)p.batch);
  return "";
}

// Why the kernels of elastic softmax do not take a problem; "" if they do.
String elastic_refusal(const Problem& p) {
  const String more = p.extras(kHasElastic | kHasDistBias);
  if (!more.empty()) return "beside elastic softmax and a distance bias, this problem has " + more;
  const int most = p.backward ? kFusedWindow : kFwdDistWindow;
  if (p.dist_window > most)
    return text("a distance bias has up to %d entries, this one %lld", most,
                (long long)p.dist_window);
  if (!p.backward) return "";
  if (p.head_dim > 128 || p.head_dim_v > 128)
    return "with elastic softmax, head sizes go up to 128";
  if (!p.wants(TANDEM_GRAD_Q) || !p.wants(TANDEM_GRAD_K))
    return "with elastic softmax, it forms d_q and d_k, not one alone";
  if (p.tile_rows || p.tile_cols)
    return "with elastic softmax, its two kernels have different tiles";
  return "";
}

// Why the kernels of entmax do not take a problem; "" if they do.
String entmax_refusal(const Problem& p) {
  const String more = p.extras(kHasEntmax);
  if (!more.empty()) return "beside entmax, this problem has " + more;
  if (p.head_dim > 128 || p.head_dim_v > 128) return "with entmax, head sizes go up to 128";
  if (p.backward && (p.tile_rows || p.tile_cols))
    return "with entmax, its kernels of the backward have different tiles";
  return "";
}

// Why the kernels of softmax with optional inputs do not take a problem; "" if they do.
String full_refusal(const Problem& p) {
  if (p.wants(TANDEM_GRAD_DIST_BIAS)) return "it forms d_dist_bias with elastic softmax alone";
  const HopperVariant set = hopper_variant(p);
  if (set != HopperVariant::plain && (p.backward || set == HopperVariant::masked) &&
      (p.head_dim > 128 || p.head_dim_v > 128))
    return "with " + p.extras() + ", head sizes go up to 128" + (p.backward ? " in backward" : "");
  return "";
}

constexpr int64_t kFewRows = 32, kManyKeys = 512;

// Cooperative dQ postprocess, by all workgroups of a head, if all workgroups run at once: up to
// kCooperativeBytes of the accumulator for each. With a mask few workgroups are left when the last
// one ends, so the limit is lower. kBwdKeys: keys of a tile.
constexpr int64_t kBwdKeys = 128, kCooperativeBytes = 1 << 17, kMaskedCooperativeBytes = 1 << 16;
// From so many tiles of keys for each SM on, workgroups are persistent and leave the dQ postprocess
// to bwd_dq_cast.
constexpr int64_t kPersistentTilesPerSm = 4;
constexpr bool all_have(int64_t keys) {
  for (const BwdShape& s : kBwdShapes)
    if (!s.wide && s.bc != keys) return false;
  return true;
}
static_assert(all_have(kBwdKeys), "tiles of bwd_dkv_dq");

// Whether the last workgroup of a head converts less of the dQ accumulator, as it is short of
// registers.
bool is_few(const Problem& p) {
  const HopperVariant set = hopper_variant(p);
  return set == HopperVariant::bias || set == HopperVariant::masked;
}

}  // namespace

HopperVariant hopper_variant(const Problem& p) {
  if (p.bias) return HopperVariant::bias;
  if (p.normalizer == Normalizer::elastic) return HopperVariant::elastic;
  if (p.normalizer == Normalizer::entmax) return HopperVariant::entmax;
  // In backward lse already holds the sink.
  const uint32_t sink = kHasSink;
  if (p.extras(p.backward ? sink : 0).empty()) return HopperVariant::plain;
  const bool wide = p.head_dim > 128 || p.head_dim_v > 128;
  if (p.extras(sink | kHasLengths).empty() && !wide) return HopperVariant::varlen;
  return p.extras(sink | kHasLengths | kHasSoftcap | kHasAlibi).empty()
             ? HopperVariant::softcap_alibi
             : HopperVariant::masked;
}

bool is_persistent(const Problem& p, int64_t cores) {
  const int64_t tiles = (p.seq_kv + kBwdKeys - 1) / kBwdKeys;
  return hopper_variant(p) == HopperVariant::plain && p.head_dim <= kMaxFusedHeadDim &&
         p.head_dim_v <= kMaxFusedHeadDim && p.wants(TANDEM_GRAD_Q) &&
         p.wants(TANDEM_GRAD_K | TANDEM_GRAD_V) && cores > 0 &&
         tiles * p.heads_kv * p.batch >= kPersistentTilesPerSm * cores;
}

bool fuses_dq_postprocess(const Problem& p, int64_t cores) {
  if (is_persistent(p, cores)) return false;
  const int64_t bytes = p.heads_q * p.seq_q * p.head_dim * 4;
  const bool few = is_few(p);
  return p.wants(TANDEM_GRAD_Q) &&
         ((bytes <= (few ? kFewPostprocessBytes : kPostprocessBytes) * p.heads_kv &&
           (!few || p.batch * bytes <= kAllPostprocessBytes)) ||
          uses_cooperative_postprocess(p, cores));
}

bool uses_cooperative_postprocess(const Problem& p, int64_t cores) {
  const int64_t tiles = (p.seq_kv + kBwdKeys - 1) / kBwdKeys, heads = p.heads_kv * p.batch;
  return p.wants(TANDEM_GRAD_Q) && hopper_variant(p) != HopperVariant::bias &&
         tiles * heads <= cores &&
         p.group() * p.seq_q * p.head_dim * 4 <=
             std::max(tiles * (p.banded() ? kMaskedCooperativeBytes : kCooperativeBytes),
                      kPostprocessBytes);
}

int64_t eager_zero_heads(const Problem& p, int64_t cores, int64_t tiles,
                         int64_t interleaved_heads) {
  const HopperVariant set = hopper_variant(p);
  const bool plain = set == HopperVariant::plain && p.wants(TANDEM_GRAD_Q);
  if (!plain && set != HopperVariant::varlen && set != HopperVariant::softcap_alibi) return 0;
  if (p.lengths_q == Lengths::packed || tiles == 0) return 0;
  // One head more than run at a time, so that a slice is zero long before a workgroup adds to it.
  const int64_t heads = std::max((cores + tiles - 1) / tiles, interleaved_heads) + 1;
  return heads < p.heads_kv * p.batch ? heads : 0;
}

int64_t eager_zero_heads_per_entry(const Problem& p, int64_t cores, int64_t tiles) {
  // One head more than run at a time.
  const int64_t heads = (cores + tiles * p.batch - 1) / (tiles * p.batch) + 1;
  return heads < p.heads_kv ? heads : 0;
}

bool reduces_dbias_in_clusters(const Problem& p) {
  return p.bias && p.bias.batch == 1 && p.batch > 1 && p.wants(TANDEM_GRAD_BIAS);
}

bool uses_two_cta_clusters(const Problem& p, int64_t kv_tiles) {
  return reduces_dbias_in_clusters(p) && !p.deterministic && p.batch >= 4 && p.batch % 2 == 0 &&
         kv_tiles >= 64 && !fuses_dq_postprocess(p, 0);
}

String sm90_refusal(const Problem& p, const Caps& caps) {
  const bool packed_q = p.lengths_q == Lengths::packed, packed_kv = p.lengths_kv == Lengths::packed;
  const int64_t batch_q = packed_q ? 1 : p.batch, batch_kv = packed_kv ? 1 : p.batch;
  const int64_t rows_q = packed_q ? p.total_q : p.seq_q,
                rows_kv = packed_kv ? p.total_kv : p.seq_kv;
  if (p.dtype == TANDEM_F32) return "its operands are f16 or bf16";
  if (p.bias) {
    const String why = bias_refusal(p);
    if (!why.empty()) return why;
  } else if (p.normalizer == Normalizer::elastic) {
    const String why = elastic_refusal(p);
    if (!why.empty()) return why;
  } else if (p.normalizer == Normalizer::entmax) {
    const String why = entmax_refusal(p);
    if (!why.empty()) return why;
  } else {
    const String why = full_refusal(p);
    if (!why.empty()) return why;
  }
  if (p.splits > 1) return text("it does not split keys, the problem asks for %d parts", p.splits);
  if (p.is_empty() || (packed_q && p.total_q == 0) || (packed_kv && p.total_kv == 0))
    return "a size is 0";
  // One workgroup reads all keys of a head, so few heads are better split. (H100, 4 rows, D 128, Sk
  // 8192: 32 heads take 0.060 ms on sm80 and 0.081 here, 56 heads 0.095 and 0.085. At D 64 sm80 is
  // faster up to some 80 heads.)
  if (!p.backward && p.splits == 0 && p.seq_q <= kFewRows && p.seq_kv >= kManyKeys &&
      p.batch * p.heads_q * 3 <= caps.cores)
    return text(
        "%lld rows of %lld heads would leave most of the device idle, and it does not split keys",
        (long long)p.seq_q, (long long)(p.batch * p.heads_q));
  for (const String& why :
       {tensor_map_refusal("q", p.q, batch_q, p.heads_q, rows_q, p.head_dim),
        tensor_map_refusal("k", p.k, batch_kv, p.heads_kv, rows_kv, p.head_dim),
        tensor_map_refusal("v", p.v, batch_kv, p.heads_kv, rows_kv, p.head_dim_v),
        p.backward ? tensor_map_refusal("d_o", p.d_o, batch_q, p.heads_q, rows_q, p.head_dim_v)
                   : ""})
    if (!why.empty()) return why;
  return "";
}

bool choose_sm90_tiles(const Problem& p, const Caps& caps, const PathRow& row, const Refuse& refuse,
                       Form* form) {
  const String name = candidate(row);
  if (!p.backward) {
    const int fwd =
        first_row([&](int n) { return sm90_fwd_tile(p, n); }, kFwdTileCount, p, caps, name, refuse);
    if (fwd < 0) return false;
    *form = [fwd, &p](Launch* launch) {
      const FwdTile t = sm90_fwd_tile(p, fwd);
      launch->hopper = fwd;
      launch->tile = Tile{t.name, t.rows(), t.bc, t.warpgroups + 1, 128, 0, 0, t.d, TileOn::cuda};
      launch->shared_bytes = uint32_t(sm90_fwd_bytes(p, t));
    };
    return true;
  }
  const int bwd =
      first_row([](int n) { return kBwdShapes[n]; }, kBwdShapeCount, p, caps, name, refuse);
  if (bwd < 0) return false;
  *form = [bwd, &p](Launch* launch) {
    const BwdShape& s = kBwdShapes[bwd];
    launch->hopper = bwd;
    if (launch->stem == Stem::bwd_dq_cast) return;
    if (launch->stem == Stem::bwd_row_dq) {
      const int shape = std::max(p.head_dim, p.head_dim_v) <= kRowShapes[0].d ? 0 : 1;
      const RowShape& r = kRowShapes[shape];
      launch->hopper = shape;
      launch->tile = Tile{"", r.br, r.bc, kBwdThreads / 128, 128, 0, 0, r.d, TileOn::cuda};
      launch->shared_bytes = uint32_t(row_shared_bytes(r));
      return;
    }
    if (launch->stem == Stem::bwd_dq) {
      const DqShape& r = kDqShapes[dq_row(p)];
      launch->hopper = dq_row(p);
      launch->tile = Tile{s.name, r.br, r.bc, kBwdThreads / 128, 128, 0, 0, r.d, TileOn::cuda};
      launch->shared_bytes = uint32_t(dq_shared_bytes(r));
      return;
    }
    if (launch->stem == Stem::bwd_row) {
      const int shape = std::max(p.head_dim, p.head_dim_v) <= kSupportShapes[0].d &&
                                alpha_refusal(p, kSupportShapes[0].d).empty()
                            ? 0
                            : 1;
      const SupportShape& r = kSupportShapes[shape];
      launch->hopper = shape;
      launch->tile = Tile{"", r.br(), r.bc, r.threads() / 128, 128, 0, 0, r.d, TileOn::cuda};
      launch->shared_bytes = uint32_t(support_shared_bytes(r));
      return;
    }
    launch->tile = Tile{s.name, s.br, s.bc, kBwdThreads / 128, 128, 0, 0, s.d, TileOn::cuda};
    launch->shared_bytes = uint32_t(sm90_bwd_bytes(p, s));
    launch->stores_d_bias = p.wants(TANDEM_GRAD_BIAS);
  };
  return true;
}

}  // namespace tandem
