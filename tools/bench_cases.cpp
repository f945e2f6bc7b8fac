// SPDX-License-Identifier: MIT OR Apache-2.0
// The cases of `tandem bench` that have names. A preset is a list of problem lines; names are made
// from the lines, so that the same problem has the same name in every result file. The preset
// models is the table harness/models.inc, whose rows bring their names.
#include "bench_cases.h"

#include <fmt/core.h>

#include <cstring>

#include "host.h"
#include "models.h"
#include "session.h"

namespace tandem::tool {
namespace {

struct Preset {
  const char* name;
  std::vector<const char*> lines;
  bool by_batch = false;  // the names say the number of batch entries, and the bias
};

const std::vector<Preset>& presets() {
  static const std::vector<Preset> list = {
      // Seconds on any device, CPU drivers included.
      {"small",
       {"fwd f32 b1 hq4 hk4 sq512 sk512 d64 dv64",
        "fwd f32 b1 hq4 hk4 sq512 sk512 d64 dv64 causal_top_left"}},
      // One head size against PyTorch on the CPU.
      {"cpu",
       {"bwd f32 b1 hq8 hk8 sq1024 sk1024 d64 dv64",
        "bwd f32 b1 hq8 hk8 sq1024 sk1024 d64 dv64 causal_top_left",
        "bwd f32 b1 hq8 hk2 sq1024 sk1024 d64 dv64",
        "bwd f32 b1 hq8 hk8 sq1024 sk1024 d64 dv64 bias:f32:1x8x1024 d_bias:f32 grads=qkvb",
        "bwd f32 b1 hq8 hk8 sq1024 sk1024 d64 dv64 keep:1x1x1024",
        "bwd f32 b4 hq8 hk8 sq512 sk512 d64 dv64 keep:4x1x1",
        "bwd bf16 b1 hq8 hk8 sq1024 sk1024 d64 dv64",
        "bwd bf16 b1 hq8 hk8 sq1024 sk1024 d64 dv64 causal_top_left"}},
      // B Sq = 16,384 rows and Hq D = 2,048 features, as is usual for these tables.
      {"training",
       {"fwd f32 b4 hq32 hk32 sq4096 sk4096 d64 dv64",
        "fwd f32 b4 hq32 hk32 sq4096 sk4096 d64 dv64 causal_top_left",
        "fwd f16 b4 hq32 hk32 sq4096 sk4096 d64 dv64",
        "fwd f16 b4 hq32 hk32 sq4096 sk4096 d64 dv64 causal_top_left",
        "fwd bf16 b4 hq32 hk32 sq4096 sk4096 d64 dv64",
        "fwd bf16 b4 hq32 hk32 sq4096 sk4096 d64 dv64 causal_top_left",
        "fwd f32 b4 hq16 hk16 sq4096 sk4096 d128 dv128",
        "fwd f32 b4 hq16 hk16 sq4096 sk4096 d128 dv128 causal_top_left",
        "fwd f16 b4 hq16 hk16 sq4096 sk4096 d128 dv128",
        "fwd f16 b4 hq16 hk16 sq4096 sk4096 d128 dv128 causal_top_left",
        "fwd bf16 b4 hq16 hk16 sq4096 sk4096 d128 dv128",
        "fwd bf16 b4 hq16 hk16 sq4096 sk4096 d128 dv128 causal_top_left"}},
      // Masks of trees and documents (model_span()).
      {"masks",
       {"bwd bf16 b1 hq32 hk8 sq12288 sk12288 d128 dv128 spans=1:1x1",
        "bwd bf16 b1 hq32 hk8 sq12288 sk12288 d128 dv128 blocks=128x128:96+1:1x1",
        "bwd bf16 b1 hq32 hk8 sq12288 sk12288 d128 dv128 keep:1x1x12288",
        "bwd bf16 b1 hq16 hk16 sq9216 sk9216 d64 dv64 spans=1:1x1",
        "bwd bf16 b1 hq16 hk16 sq9216 sk9216 d64 dv64 keep:1x1x9216",
        "bwd bf16 b1 hq16 hk16 sq16384 sk16384 d128 dv128 spans=1:1x1",
        // A quarter of the blocks.
        "bwd bf16 b1 hq16 hk16 sq16384 sk16384 d128 dv128 blocks=128x128:32+0:1x1"}},
      // Trees beside a dense bias with its gradient.
      {"mask_bias",
       {"bwd bf16 b1 hq16 hk16 sq9216 sk9216 d64 dv64 bias:bf16:1x16x9216 spans=1:1x1 d_bias:bf16 "
        "grads=qkvb",
        "bwd bf16 b1 hq16 hk16 sq6144 sk6144 d128 dv128 bias:bf16:1x16x6144 spans=1:1x1 "
        "d_bias:bf16 grads=qkvb"}},
      // Heads over 256: Gemma 4's and MLA's, of autoencoders; decoding of the latter two.
      {"wide_heads",
       {"bwd bf16 b1 hq8 hk8 sq16384 sk16384 d512 dv512 causal_top_left",
        "bwd bf16 b1 hq16 hk16 sq4096 sk4096 d512 dv512",
        "bwd bf16 b1 hq16 hk16 sq4096 sk4096 d320 dv320 causal_top_left",
        "bwd bf16 b1 hq1 hk1 sq4096 sk4096 d512 dv512",
        "bwd bf16 b1 hq128 hk1 sq4096 sk4096 d576 dv512 causal_top_left",
        "fwd bf16 b1 hq128 hk1 sq1 sk32768 d576 dv512",
        "fwd bf16 b1 hq128 hk1 sq2 sk32768 d576 dv512",
        "fwd bf16 b64 hq128 hk1 sq1 sk2048 d576 dv512",
        "fwd bf16 b1 hq32 hk4 sq1 sk32768 d512 dv512"}},
      // A bias by a table and an index (model_index()), beside it dense: windows of Swin-T
      // and of SwinV2, buckets of T5-large, distances of Graphormer.
      {"tables",
       {"bwd f16 b4096 hq3 hk3 sq49 sk49 d32 dv32 table=169:u8:1 grads=qkvi",
        "bwd f16 b4096 hq3 hk3 sq49 sk49 d32 dv32 bias:f32:1x3x49 d_bias:f32 grads=qkvb",
        "bwd bf16 b256 hq12 hk12 sq256 sk256 d32 dv32 table=961:u16:1 grads=qkvi",
        "bwd bf16 b256 hq12 hk12 sq256 sk256 d32 dv32 bias:f32:1x12x256 d_bias:f32 grads=qkvb",
        "bwd bf16 b16 hq16 hk16 sq512 sk512 d64 dv64 scale=1 table=32:u8:1 grads=qkvi",
        "bwd bf16 b16 hq16 hk16 sq512 sk512 d64 dv64 scale=1 bias:f32:1x16x512 d_bias:f32 "
        "grads=qkvb",
        "bwd f16 b64 hq32 hk32 sq128 sk128 d24 dv24 table=512:u16:64 grads=qkvi",
        "bwd f16 b64 hq32 hk32 sq128 sk128 d24 dv24 bias:f32:64x32x128 d_bias:f32 grads=qkvb"},
       true},
      // The same rows and features by the length of the sequences.
      {"lengths",
       {"fwd bf16 b16 hq32 hk32 sq1024 sk1024 d64 dv64",
        "fwd bf16 b16 hq32 hk32 sq1024 sk1024 d64 dv64 causal_top_left",
        "fwd bf16 b4 hq32 hk32 sq4096 sk4096 d64 dv64",
        "fwd bf16 b4 hq32 hk32 sq4096 sk4096 d64 dv64 causal_top_left",
        "fwd bf16 b1 hq32 hk32 sq16384 sk16384 d64 dv64",
        "fwd bf16 b1 hq32 hk32 sq16384 sk16384 d64 dv64 causal_top_left",
        "fwd bf16 b16 hq16 hk16 sq1024 sk1024 d128 dv128",
        "fwd bf16 b16 hq16 hk16 sq1024 sk1024 d128 dv128 causal_top_left",
        "fwd bf16 b4 hq16 hk16 sq4096 sk4096 d128 dv128",
        "fwd bf16 b4 hq16 hk16 sq4096 sk4096 d128 dv128 causal_top_left",
        "fwd bf16 b1 hq16 hk16 sq16384 sk16384 d128 dv128",
        "fwd bf16 b1 hq16 hk16 sq16384 sk16384 d128 dv128 causal_top_left",
        "fwd bf16 b16 hq8 hk8 sq1024 sk1024 d256 dv256",
        "fwd bf16 b16 hq8 hk8 sq1024 sk1024 d256 dv256 causal_top_left",
        "fwd bf16 b4 hq8 hk8 sq4096 sk4096 d256 dv256",
        "fwd bf16 b4 hq8 hk8 sq4096 sk4096 d256 dv256 causal_top_left",
        "fwd bf16 b1 hq8 hk8 sq16384 sk16384 d256 dv256",
        "fwd bf16 b1 hq8 hk8 sq16384 sk16384 d256 dv256 causal_top_left"}},
      // Both 16-bit types, two head sizes, two lengths.
      {"half",
       {"fwd f16 b4 hq32 hk32 sq4096 sk4096 d64 dv64",
        "fwd f16 b4 hq32 hk32 sq4096 sk4096 d64 dv64 causal_top_left",
        "fwd f16 b1 hq32 hk32 sq16384 sk16384 d64 dv64",
        "fwd f16 b1 hq32 hk32 sq16384 sk16384 d64 dv64 causal_top_left",
        "fwd f16 b4 hq16 hk16 sq4096 sk4096 d128 dv128",
        "fwd f16 b4 hq16 hk16 sq4096 sk4096 d128 dv128 causal_top_left",
        "fwd f16 b1 hq16 hk16 sq16384 sk16384 d128 dv128",
        "fwd f16 b1 hq16 hk16 sq16384 sk16384 d128 dv128 causal_top_left",
        "fwd bf16 b4 hq32 hk32 sq4096 sk4096 d64 dv64",
        "fwd bf16 b4 hq32 hk32 sq4096 sk4096 d64 dv64 causal_top_left",
        "fwd bf16 b1 hq32 hk32 sq16384 sk16384 d64 dv64",
        "fwd bf16 b1 hq32 hk32 sq16384 sk16384 d64 dv64 causal_top_left",
        "fwd bf16 b4 hq16 hk16 sq4096 sk4096 d128 dv128",
        "fwd bf16 b4 hq16 hk16 sq4096 sk4096 d128 dv128 causal_top_left",
        "fwd bf16 b1 hq16 hk16 sq16384 sk16384 d128 dv128",
        "fwd bf16 b1 hq16 hk16 sq16384 sk16384 d128 dv128 causal_top_left"}},
      // A learned bias, of all batch entries or of each, beside the same problem without one.
      {"bias",
       {"bwd bf16 b8 hq16 hk16 sq2048 sk2048 d128 dv128",
        "bwd bf16 b8 hq16 hk16 sq2048 sk2048 d128 dv128 bias:bf16:1x16x2048 d_bias:bf16 grads=qkvb",
        "bwd bf16 b8 hq16 hk16 sq2048 sk2048 d128 dv128 bias:bf16:8x16x2048 d_bias:bf16 grads=qkvb",
        "bwd bf16 b2 hq16 hk16 sq2048 sk2048 d128 dv128",
        "bwd bf16 b2 hq16 hk16 sq2048 sk2048 d128 dv128 bias:bf16:2x16x2048 d_bias:bf16 grads=qkvb",
        "bwd bf16 b4 hq16 hk16 sq2048 sk2048 d128 dv128",
        "bwd bf16 b4 hq16 hk16 sq2048 sk2048 d128 dv128 bias:bf16:1x16x2048 d_bias:bf16 grads=qkvb",
        "bwd bf16 b4 hq16 hk16 sq4096 sk4096 d128 dv128",
        "bwd bf16 b4 hq16 hk16 sq4096 sk4096 d128 dv128 bias:bf16:1x16x4096 d_bias:bf16 "
        "grads=qkvb",
        "bwd bf16 b4 hq32 hk32 sq2048 sk2048 d64 dv64",
        "bwd bf16 b4 hq32 hk32 sq2048 sk2048 d64 dv64 bias:bf16:1x32x2048 d_bias:bf16 grads=qkvb",
        "bwd bf16 b4 hq32 hk32 sq4096 sk4096 d64 dv64",
        "bwd bf16 b4 hq32 hk32 sq4096 sk4096 d64 dv64 bias:bf16:1x32x4096 d_bias:bf16 grads=qkvb"},
       true},
      // A decoding step: one query a sequence, grouped heads, all the keys so far.
      {"decode",
       {"fwd f16 b1 hq32 hk8 sq1 sk8192 d128 dv128", "fwd f16 b1 hq32 hk8 sq1 sk32768 d128 dv128",
        "fwd f16 b1 hq32 hk8 sq1 sk131072 d128 dv128", "fwd f16 b4 hq32 hk8 sq1 sk8192 d128 dv128",
        "fwd f16 b4 hq32 hk8 sq1 sk32768 d128 dv128", "fwd f16 b8 hq32 hk8 sq1 sk8192 d128 dv128",
        "fwd f16 b8 hq32 hk8 sq1 sk32768 d128 dv128", "fwd bf16 b1 hq32 hk8 sq1 sk8192 d128 dv128",
        "fwd bf16 b1 hq32 hk8 sq1 sk131072 d128 dv128",
        "fwd bf16 b8 hq32 hk8 sq1 sk8192 d128 dv128"}},
      // Lazy Attention: elastic softmax with a window of distance biases, and all gradients.
      {"elastic",
       {"bwd bf16 b4 hq16 hk16 sq4096 sk4096 d64 dv64 causal_top_left elastic dist=512 grads=qkvdt",
        "bwd bf16 b4 hq16 hk16 sq4096 sk4096 d128 dv128 causal_top_left elastic dist=512 "
        "grads=qkvdt",
        "bwd bf16 b1 hq16 hk16 sq16384 sk16384 d128 dv128 causal_top_left elastic dist=512 "
        "grads=qkvdt"}},
      {"entmax",
       {"bwd bf16 b4 hq16 hk16 sq4096 sk4096 d64 dv64 causal_top_left entmax=1.5",
        "bwd bf16 b1 hq16 hk16 sq16384 sk16384 d64 dv64 causal_top_left entmax=1.5"}}};
  return list;
}

constexpr const char* kModels = "models";

std::vector<BenchCase> model_cases() {
  std::vector<BenchCase> cases;
  for (const harness::Model& m : harness::models()) {
    const tandem_problem problem = harness::parse(m.line);
    cases.push_back({m.name, problem, problem.direction == TANDEM_FORWARD, true});
  }
  return cases;
}

std::string bias_word(const tandem_problem& p) {
  const harness::Dims dims = harness::dims_of(p, harness::Role::bias);
  return fmt::format("-bias{}x{}", dims.b, dims.h);
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& p : presets()) names.push_back(p.name);
  names.push_back(kModels);
  return names;
}

std::vector<BenchCase> preset_cases(const std::string& preset) {
  if (preset == kModels) return model_cases();
  for (const Preset& p : presets()) {
    if (preset != p.name) continue;
    std::vector<BenchCase> cases;
    for (const char* line : p.lines) {
      const tandem_problem problem = harness::parse(line);
      const bool square = problem.seq_q == problem.seq_kv;
      cases.push_back(
          {fmt::format("{}-d{}-s{}{}{}-{}{}{}", std::string(line + 4, std::strcspn(line + 4, " ")),
                       problem.head_dim, problem.seq_q,
                       square ? "" : fmt::format("x{}", problem.seq_kv),
                       square && !p.by_batch ? "" : fmt::format("-b{}", problem.batch),
                       problem.mask == TANDEM_MASK_CAUSAL ? "causal" : "full",
                       problem.normalizer == TANDEM_ELASTIC  ? "-elastic"
                       : problem.normalizer == TANDEM_ENTMAX ? "-entmax"
                                                             : "",
                       p.by_batch && problem.bias.dtype ? bias_word(problem)
                       : problem.bias_table_size ? fmt::format("-table{}", problem.bias_table_size)
                                                 : ""),
           problem});
    }
    return cases;
  }
  throw harness::Error(TANDEM_ERROR_INVALID_ARGUMENT, "no preset is named '" + preset + "'");
}

}  // namespace tandem::tool
