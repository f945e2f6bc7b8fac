// SPDX-License-Identifier: MIT OR Apache-2.0
// The cheapest case of each kernel that no other case of the tier smoke reaches, on its path alone.
// A row that no case ran fails the suite (main.cpp); tests/CMakeLists.txt asks the same of recorded
// devices, by which cases were found.
#include "api/handles.h"
#include "parity.h"

using namespace parity;

namespace {

// Runs a problem on the targets of a path that `has` accepts. odd_o: rows of o with an odd stride.
struct RowCase {
  const char* path;
  bool odd_o = false;
  bool (*has)(const tandem::Caps&) = [](const tandem::Caps&) { return true; };

  void check(const std::function<std::string(const tandem::Caps&)>& line) const {
    for (Target& target : targets()) {
      const tandem::Caps& caps = target.session->device()->device->caps();
      if (target.path != path || !has(caps)) continue;
      tandem_problem p = parse(line(caps));
      if (odd_o) {
        tandem_tensor& o = tensor_of(p, Role::o);
        o.stride[2] = p.head_dim_v + 1;
        o.stride[1] = p.seq_q * o.stride[2];
        o.stride[0] = p.heads_q * o.stride[1];
      }
      Expect twice;
      twice.options.repeats = 2;
      Case test(p, seed_of(line(caps).c_str()), twice.options);
      check_on(target, test, twice);
    }
  }
  void check(const std::string& line) const {
    check([&](const tandem::Caps&) { return line; });
  }
};

// A problem with so many tiles of keys for each SM, one a head.
std::string with_tiles(const tandem::Caps& caps, int per_core, const std::string& rest) {
  const std::string heads = std::to_string(per_core * int(caps.cores) + 1);
  return "bwd bf16 b1 hq" + heads + " hk" + heads + " sq24 sk40 d40 dv32 " + rest;
}

}  // namespace

TEST_CASE("rows: sm90, bwd_dot without 16-byte loads") {
  const RowCase sm90{"sm90", true};
  sm90.check("bwd f16 b1 hq2 hk1 sq50 sk70 d136 dv136");                   // plain
  sm90.check("bwd bf16 b1 hq1 hk1 sq40 sk50 d136 dv136 sink grads=qkvs");  // full
  sm90.check("bwd f16 b1 hq2 hk1 sq50 sk70 d64 dv64");                     // zero
}

TEST_CASE("rows: sm90, a gradient of wide heads alone") {
  RowCase{"sm90"}.check("bwd f16 b1 hq2 hk1 sq70 sk90 d136 dv136 causal_top_left grads=q");
}

TEST_CASE("rows: sm90, persistent workgroups and bwd_dq_cast") {
  for (const char* rest : {"", "bias:f32:1x1x1"})
    RowCase{"sm90"}.check([&](const tandem::Caps& caps) { return with_tiles(caps, 4, rest); });
}

// In any order with a causal mask, where tiles of keys have unequal numbers of parts; and in a
// fixed order.
TEST_CASE("rows: sm90, workgroups that share a tile of keys") {
  const RowCase sm90{"sm90"};
  sm90.check("bwd bf16 b1 hq8 hk1 sq300 sk200 d40 dv40 causal_top_left");
  sm90.check("bwd f16 b1 hq2 hk1 sq260 sk77 d128 dv128 deterministic");
}

TEST_CASE("rows: sm90, bwd_head_sums as a launch") {
  RowCase{"sm90"}.check(
      [](const tandem::Caps& caps) { return with_tiles(caps, 1, "sink grads=qkvs"); });
}

TEST_CASE("rows: sm90, two-CTA clusters") {
  RowCase{"sm90", false, [](const tandem::Caps& caps) { return caps.early_launches; }}.check(
      "bwd bf16 b4 hq64 hk64 sq72 sk40 d64 dv64 bias:bf16:1x64x72 d_bias:f32 grads=qkvb");
}

TEST_CASE("rows: sm90, d_bias in slices of the batch") {
  RowCase{"sm90"}.check(
      "bwd bf16 b9 hq1 hk1 sq72 sk40 d64 dv64 bias:bf16:1x1x72 d_bias:bf16 grads=qkvb");
}

TEST_CASE("rows: sm90, a dense bias and a mask") {
  const RowCase sm90{"sm90"};
  sm90.check("fwd bf16 b2 hq1 hk1 sq70 sk136 d32 dv32 bias:bf16:1x1x70 keep:2x1x1");
  sm90.check(
      "bwd f16 b1 hq1 hk1 sq70 sk40 d64 dv64 bias:f16:1x1x70 d_bias:f32 grads=qkvb keep:1x1x70");
  sm90.check(
      "bwd bf16 b9 hq1 hk1 sq72 sk40 d32 dv32 bias:bf16:1x1x72 d_bias:bf16 grads=qkvb keep:9x1x1");
}

TEST_CASE("rows: sm90, a mask as bits and blocks") {
  RowCase{"sm90"}.check("fwd bf16 b1 hq1 hk1 sq1030 sk1024 d32 dv32 keep:1x1x1030");
}

TEST_CASE("rows: sm90, a dense bias of f32") {
  const RowCase sm90{"sm90"};
  sm90.check("fwd bf16 b2 hq1 hk1 sq70 sk136 d32 dv32 bias:f32:1x1x70 keep:2x1x1");
  sm90.check("fwd f16 b1 hq1 hk1 sq70 sk77 d96 dv96 bias:f32:1x1x70");  // pack_bias
  sm90.check("bwd f16 b1 hq1 hk1 sq70 sk40 d64 dv64 bias:f32:1x1x70 d_bias:f32 grads=qkvb");
  sm90.check("bwd bf16 b9 hq1 hk1 sq72 sk40 d128 dv32 bias:f32:1x1x72 d_bias:f32 grads=qkvb");
}

TEST_CASE("rows: sm90, bwd_sum_splits as a launch") {
  RowCase{"sm90"}.check(
      "bwd f16 b33 hq1 hk1 sq64 sk140 d64 dv64 causal_bottom_right elastic dist=64 grads=qkvdt");
}

TEST_CASE("rows: sm80, whole heads") {
  const RowCase sm80{"sm80"};
  sm80.check("fwd f16 b5 hq2 hk1 sq49 sk33 d32 dv32");
  sm80.check("bwd bf16 b5 hq1 hk1 sq24 sk49 d32 dv40 bias:bf16:1x1x24 d_bias:f32 grads=qkvb");
}

TEST_CASE("rows: sm80, few rows with lengths of keys, and key warps") {
  const RowCase sm80{"sm80"};
  sm80.check("fwd f16 b3 hq4 hk2 sq1 sk300 d64 dv64 kv_padded");
  sm80.check("fwd bf16 b3 hq4 hk2 sq2 sk170 d128 dv96 kv_padded causal_bottom_right");
  sm80.check("fwd bf16 b1 hq4 hk1 sq2 sk1100 d128 dv128 max_logit=1");
}

TEST_CASE("rows: simt, elastic softmax without wide loads") {
  RowCase{"simt"}.check("bwd f32 b1 hq1 hk1 sq40 sk50 d30 dv34 elastic dist=9 grads=qkvdt");
}

TEST_CASE("rows: simt and sm80, sums of biases without wide loads, and joined bwd_dq") {
  RowCase{"simt"}.check(
      "bwd f16 b1 hq1 hk1 sq40 sk50 d30 dv34 bias:f16:1x1x1 d_bias:f32 dist=9 grads=qkvbd");
  RowCase{"sm80"}.check(  // wide heads, whose d_bias simt's kernel sums
      "bwd f16 b1 hq1 hk1 sq40 sk50 d130 dv34 bias:f16:1x1x1 d_bias:f32 dist=9 grads=qkvbd");
  RowCase{"sm80"}.check("bwd f16 b1 hq1 hk1 sq40 sk50 d136 dv32 bias:f16:1x1x1 d_bias:f32 grads=b");
  RowCase{"sm80"}.check("bwd f16 b1 hq1 hk1 sq40 sk50 d64 dv64 sink dropout=0.2 grads=qkvs");
}

// Plain f32 in the tiles of trait::outer, which few workgroups do not take by themselves.
TEST_CASE("rows: simt, 8 x 8 elements a thread") {
  const RowCase simt{"simt", false, [](const tandem::Caps& caps) {
                       return caps.compute_major >= 8 && caps.shared_bytes >= 110000;
                     }};
  const auto check = [&](const std::string& rest) { simt.check(rest + " tile=128x64"); };
  check("bwd f32 b1 hq2 hk1 sq140 sk180 d64 dv40 causal_bottom_right");
  check("bwd f32 b1 hq2 hk1 sq70 sk140 d30 dv34");  // without wide loads
  if (!at_least(Tier::ci)) return;
  check("bwd f32 b1 hq2 hk1 sq300 sk261 d64 dv64");
  check("bwd f32 b1 hq2 hk1 sq261 sk300 d64 dv64 left=70 right=5");
  check("bwd f32 b1 hq2 hk1 sq250 sk260 d8 dv20 left=30 causal_top_left");
  check("bwd f32 b1 hq2 hk1 sq200 sk150 d52 dv64 causal_bottom_right");  // rows that see no key
  check("bwd f32 b1 hq2 hk1 sq1 sk129 d64 dv1");
  check("bwd f32 b2 hq6 hk2 sq130 sk200 d64 dv64 grads=q");
  check("bwd f32 b2 hq6 hk2 sq130 sk200 d64 dv64 grads=k");
  check("bwd f32 b2 hq6 hk2 sq130 sk200 d64 dv64 grads=v");
  check("fwd f32 b2 hq6 hk2 sq130 sk200 d64 dv64 max_logit=1");
}

TEST_CASE("rows: coopmat2, tensor addressing") {
  RowCase{"coopmat2", false, [](const tandem::Caps& caps) { return caps.coopmat_tensors; }}.check(
      "fwd f16 b1 hq2 hk1 sq70 sk60 d256 dv256");
}

// What has no tensor addressing, and rows of o that it does not take.
TEST_CASE("rows: coopmat2 and coopmat, rows by strips of features") {
  RowCase{"coopmat2", true}.check("fwd f16 b1 hq2 hk1 sq70 sk60 d136 dv24");
  RowCase{"coopmat"}.check("fwd f16 b1 hq2 hk1 sq70 sk60 d136 dv24");
}

// Partial sums of d_k and d_v: 4 tiles of query rows a head, of one kv head.
TEST_CASE("rows: coopmat2 and coopmat, workgroups that share a tile of keys") {
  for (const char* path : {"coopmat2", "coopmat"})
    RowCase{path}.check("bwd f16 b1 hq11 hk1 sq136 sk128 d16 dv32 causal_top_left");
}

// The plain loop of fwd, with all that it takes: one set of staging registers and two,
// masks and ends, and score inputs between the products and the exponentials. A CPU driver takes
// minutes to compile these, and has some in other cases.
TEST_CASE("rows: coopmat2 and coopmat, the loop of products and exponentials") {
  for (const char* line :
       {"fwd f16 b1 hq2 hk1 sq200 d128 causal_top_left", "fwd f16 b1 hq2 hk1 sq200 d128 softcap=3",
        "fwd f16 b2 hq2 sq150 sk140 d64 causal_bottom_right alibi softcap=2",
        "fwd f16 b3 hq2 sq150 d128 left=70 q_padded kv_padded",
        "fwd f16 b3 hq2 sq150 d64 causal_top_left q_packed=300 kv_packed=310 sink",
        "fwd f16 b1 hq2 sq130 d192 dv128 causal_top_left softcap=4",
        "fwd f16 b1 hq2 sq192 d256 causal_top_left alibi",
        "fwd f16 b2 hq4 hk1 sq1 sk300 d128 kv_padded splits=3"})
    for (const char* path : {"coopmat2", "coopmat"})
      RowCase{path, false, [](const tandem::Caps& caps) { return caps.subgroup_size > 8; }}.check(
          line);
}

// Copies of tiles that leave half of the invocations out (LEAVES_HALF in shaders/coopmat), with
// matrices of 16 columns: forwards, and backwards by pairs of subgroups.
TEST_CASE("rows: coopmat2 and coopmat, copies by half of the invocations") {
  for (const char* line : {"fwd f16 b1 hq2 hk1 sq70 sk150 d80 causal_top_left",
                           "fwd f16 b1 hq2 sq150 sk70 d112 dv80", "bwd f16 b1 hq2 sq40 sk50 d192"})
    for (const char* path : {"coopmat2", "coopmat"})
      RowCase{path, false, [](const tandem::Caps& caps) { return caps.subgroup_size > 8; }}.check(
          line);
}

// Subgroups whose rows move their origins in different tiles: in one a score exceeds a row's m by
// more than the slack, in the others none does. lavapipe's barriers of a subgroup, which the row
// maximum has, are those of the workgroup.
TEST_CASE("rows: coopmat2 and coopmat, origins that move in different tiles") {
  for (const char* path : {"coopmat2", "coopmat"})
    RowCase{path}.check("fwd f16 b1 hq2 hk1 sq70 sk201 d16 scale=4");
}

// Heads that have no tiles but those of pairs, on any driver.
TEST_CASE("rows: coopmat2 and coopmat, pairs of subgroups") {
  for (const char* path : {"coopmat2", "coopmat"}) {
    RowCase{path}.check("bwd f16 b1 hq2 hk1 sq70 sk60 d136 dv24 causal_top_left");  // and shared dS
    RowCase{path}.check("bwd f16 b1 hq1 hk1 sq40 sk50 d24 dv136 keep:1x1x40");
  }
}
