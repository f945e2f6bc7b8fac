// SPDX-License-Identifier: MIT OR Apache-2.0
// How many workgroups share the keys of a row in forward, what that costs in workspace, and that
// between them they visit every key tile exactly once.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>

#include "plan_fixture.h"

using namespace tandem;
using namespace plan_fixture;

namespace {

uint32_t splits_of(const std::string& line, const Caps& caps) {
  const Plan plan = plan_of(line, caps);
  CHECK((plan.find(Stem::fwd_combine) != nullptr) == (plan.launches[0].splits > 1));
  return plan.launches[0].splits;
}

}  // namespace

TEST_CASE("keys are split where few queries leave most of the device idle, and only there") {
  const Caps cuda = caps_of("h100_cuda_no_90a"), vulkan = caps_of("h100_vulkan");
  for (const Caps& caps : {cuda, vulkan})
    for (const char* dtype : {"f32", "f16", "bf16"}) {
      const std::string fwd = std::string("fwd ") + dtype + " d128 ";
      CAPTURE(fwd);
      // A decoding step: enough for three workgroups of 128 on each of the 132 cores, and not many
      // more.
      for (const char* sizes : {"b1 hq32 hk8 sq1 sk8192", "b2 hq32 hk8 sq1 sk131072",
                                "b1 hq8 hk8 sq16 sk32768", "b1 hq1 hk1 sq33 sk131072"}) {
        const Plan plan = plan_of(fwd + sizes, caps);
        const Launch& l = plan.launches[0];
        CAPTURE(std::string(sizes));
        int64_t room = 384 * 132 / l.invocations();
        if (l.as<Sm80Launch>())  // all of them at once
          room = std::min(room, int64_t(132 * (caps.shared_bytes / (l.shared_bytes + 1024))));
        if (l.as<MatrixLaunch>())
          room = std::min(room, int64_t(132 * (caps.shared_bytes / l.shared_bytes)));
        CHECK(l.splits > 1);
        CHECK(l.total <= room);
        const int64_t per_split = plan.problem.seq_kv / l.splits;
        // Parts are read again: cuda.sm80 has at most 48 where each core has two workgroups.
        const bool many = l.as<Sm80Launch>() && l.splits >= 48 && l.total >= 2 * 132;
        CHECK((int64_t(l.total) * 2 > room || per_split < 512 || many));
        CHECK(per_split >= 256);
      }
      // Enough workgroups without, or too few keys to share.
      CHECK(splits_of(fwd + "b128 hq32 hk8 sq1 sk8192", caps) == 1);
      CHECK(splits_of(fwd + "b4 hq16 sq4096 sk4096", caps) == 1);
      CHECK(splits_of(fwd + "b1 hq2 sq1 sk448", caps) == 1);
      CHECK(splits_of(fwd + "b1 hq2 sq1 sk512", caps) == 2);
      // What the row sees counts: a window, and the causal mask's top left corner.
      CHECK(splits_of(fwd + "b1 hq2 sq1 sk100000 causal_bottom_right left=200", caps) == 1);
      CHECK(splits_of(fwd + "b1 hq2 sq5 sk100000 causal_top_left", caps) == 1);
      CHECK(splits_of(fwd + "b1 hq2 sq5 sk100000 causal_bottom_right", caps) >= 66);
    }
  // One workgroup of a_fwd128k4 fits a core of 227 KiB, two of a_fwd128d one of 99 KiB, four of
  // a_fwd64m one of 227. Of 66 parts 48 are left, and 264 of 528 for one head, two a core.
  // Half as many workgroups with key warps as there are cores have no parts. With lengths six
  // workgroups of a_fwdl128d and a_fwdl64d fit; with four warps, as many as have registers.
  Caps small = cuda;
  small.shared_bytes = 99 << 10;
  CHECK(splits_of("fwd bf16 b1 hq32 hk8 sq1 sk131072 d128", cuda) == 16);
  CHECK(splits_of("fwd bf16 b1 hq4 hk1 sq1 sk1048576 d128", cuda) == 132);
  CHECK(splits_of("fwd bf16 b1 hq64 hk8 sq1 sk131072 d128", cuda) == 16);
  CHECK(splits_of("fwd bf16 b1 hq64 hk8 sq1 sk131072 d64", cuda) == 48);
  CHECK(splits_of("fwd bf16 b1 hq4 hk1 sq1 sk1048576 d64", cuda) == 264);
  CHECK(splits_of("fwd bf16 b8 hq32 hk8 sq1 sk8192 d128", cuda) == 1);
  CHECK(splits_of("fwd bf16 b1 hq32 hk8 sq1 sk131072 d128", small) == 33);
  CHECK(splits_of("fwd bf16 b32 hq8 hk1 sq1 sk8192 d128", cuda) == 4);
  CHECK(splits_of("fwd bf16 b32 hq8 hk1 sq1 sk8192 d128 kv_padded", cuda) == 24);
  CHECK(splits_of("fwd bf16 b32 hq8 hk1 sq1 sk131072 d64 kv_padded", cuda) == 24);
  CHECK(splits_of("fwd bf16 b8 hq4 hk1 sq17 sk8192 d128 kv_padded", cuda) == 8);
  // The number of cores is the device's own; one that does not tell counts as 32.
  Caps half = cuda, silent = cuda, thirty_two = cuda;
  half.cores = 66;
  silent.cores = 0;
  thirty_two.cores = 32;
  const std::string decode = "fwd f32 b1 hq32 sq1 sk65536 d64";
  CHECK(splits_of(decode, cuda) == 12);
  CHECK(splits_of("fwd f32 b1 hq32 hk8 sq1 sk65536 d64", cuda) == 48);  // of 8 heads
  CHECK(splits_of(decode, half) == 6);
  CHECK(splits_of(decode, silent) == 3);
  CHECK(splits_of(decode, thirty_two) == 3);
}

TEST_CASE("cuda.sm90 splits keys of heads over 256 where clusters would have no work") {
  const Caps caps = caps_of("h100_cuda");
  const struct {
    const char *line, *tile;
    uint32_t splits;
  } rows[] = {
      // MLA's latent, whose 128 heads are rows of one cluster; decoding, and two queries.
      {"fwd bf16 hq128 hk1 sq1 sk32768 d576 dv512", "h576", 64},
      {"fwd bf16 hq128 hk1 sq2 sk32768 d576 dv512", "h576", 32},
      {"fwd bf16 b64 hq128 hk1 sq1 sk2048 d576 dv512", "h576", 1},
      // At most 64 rows: workgroups alone.
      {"fwd bf16 hq32 hk4 sq1 sk32768 d512", "h512s", 32},
      {"fwd bf16 b64 hq32 hk4 sq1 sk2048 d512", "h512s", 1},
      {"fwd bf16 hq16 hk1 sq1 sk512 d512", "h512s", 1},
      // The same with lengths.
      {"fwd bf16 b2 hq128 hk1 sq1 sk32768 d576 dv512 kv_padded", "h576", 32},
      {"fwd bf16 b2 hq32 hk4 sq1 sk32768 d512 kv_packed=40000", "h512s", 16},
      // One head: 32 tiles of 66 clusters.
      {"fwd bf16 hq1 sq4096 d512", "h512", 2},
      {"fwd bf16 hq1 sq16384 d512", "h512", 1},
      // What the rows see counts.
      {"fwd bf16 hq1 sq1 sk100000 d512 causal_bottom_right left=200", "h512s", 1},
      {"fwd bf16 hq128 hk1 sq1 sk32768 d576 dv512 splits=3", "h576", 3},
      {"fwd bf16 hq128 hk1 sq1 sk32768 d576 dv512 batch_invariant", "h576", 1},
  };
  for (const auto& row : rows) {
    CAPTURE(std::string(row.line));
    const Plan plan = plan_of(row.line, caps);
    if (std::string(row.line).find("batch_invariant") != std::string::npos) {
      CHECK(plan.launches[0].splits == 1);
      continue;
    }
    CHECK(std::string(plan.path) == "sm90");
    CHECK(std::string(plan.tile().name) == row.tile);
    CHECK(splits_of(row.line, caps) == row.splits);
    const Launch& l = plan.launches[0];
    CHECK(l.total == l.tiles * plan.problem.heads_q * plan.problem.batch * l.splits);
  }
  // With less workspace fewer parts.
  const std::string line = "fwd bf16 hq128 hk1 sq1 sk32768 d576 dv512 ";
  const Plan whole = plan_of(line, caps);
  const Plan half = plan_of(line + "workspace=" + std::to_string(whole.workspace_size - 1), caps);
  CHECK(half.launches[0].splits == 32);
  CHECK(half.workspace_size < whole.workspace_size);
  // The plan for addresses that TMA does not accept has as many.
  const auto* own = std::get_if<Sm90Plan>(&whole.of_path);
  REQUIRE(own != nullptr);
  REQUIRE(bool(own->unaligned));
  CHECK(own->unaligned->launches[0].splits == 64);
}

TEST_CASE(
    "one query a head: heads that share keys are rows of one tile where nothing tells them apart") {
  const auto rows = [](const std::string& words, const char* id) {
    const Plan plan = plan_of("fwd f16 b3 hq32 hk8 sq1 sk5000 d64 " + words, caps_of(id));
    CHECK(plan.problem.heads_q * plan.problem.seq_q == 32);
    return plan.problem.seq_q;
  };
  for (const char* id : {"h100_cuda", "h100_cuda_no_90a", "h100_vulkan", "lavapipe", "minimum"}) {
    CAPTURE(std::string(id));
    for (const char* words : {"", "causal_bottom_right", "right=3 bottom_right", "softcap=5",
                              "splits=3", "kv_padded", "kv_padded causal_bottom_right"})
      CHECK(rows(words, id) == 4);
    // The query does not see every key, or heads have numbers of their own.
    for (const char* words :
         {"causal_top_left", "left=4999 bottom_right", "causal_top_left kv_padded",
          "q_padded kv_padded", "alibi", "bias:f16:1x8x1", "dropout=0.1", "keep:1x1x1", "dist=4",
          "elastic", "entmax=1.5", "elastic sink"})
      CHECK(rows(words, id) == 1);
    // Kernels take a sink for each row.
    const bool cuda = std::string(id).find("cuda") != std::string::npos;
    for (const char* words : {"sink", "sink kv_padded", "sink softcap=5 splits=3"}) {
      CHECK(rows(words, id) == 4);
      const Plan plan = plan_of("fwd f16 b3 hq32 hk8 sq1 sk5000 d64 " + std::string(words), id);
      CHECK(plan.problem.sink_of_rows);
      if (cuda) CHECK(std::string(plan.path) == "sm80");
    }
  }
  CHECK(plan_of("fwd f32 hq32 hk8 sq1 sk5000 d64 sink").problem.seq_q == 1);
  Caps without = caps_of("h100_cuda");
  REQUIRE(parse_disabled("cuda.sm80", &without.disabled).ok());
  CHECK(plan_of("fwd f16 hq32 hk8 sq1 sk5000 d64 sink", without).problem.seq_q == 1);
  REQUIRE(parse_disabled("cuda.sm80,cuda.sm90", &without.disabled).ok());
  CHECK(plan_of("fwd f16 hq32 hk8 sq1 sk5000 d64 sink", without).problem.seq_q == 4);
  CHECK(rows("", "cpu") == 1);
  CHECK(plan_of("bwd f16 hq32 hk8 sq1 sk5000 d64").problem.seq_q == 1);
  // A few queries: those of two heads are as far apart as those of one, and see every key.
  CHECK(plan_of("fwd f16 b3 hq32 hk8 sq2 sk5000 d64").problem.seq_q == 8);
  CHECK(plan_of("fwd f16 hq32 hk8 sq3 sk5000 d64 right=2 bottom_right kv_padded").problem.seq_q ==
        12);
  CHECK(plan_of("fwd f16 hq32 hk8 sq3 sk5000 d64 right=1 bottom_right").problem.seq_q == 3);
  CHECK(plan_of("fwd f16 hq32 hk8 sq2 sk5000 d64 layout=bshd").problem.seq_q == 2);
  CHECK(plan_of("fwd f16 hq32 hk8 sq2 sk5000 d64 sink").problem.seq_q == 2);
  CHECK(plan_of("fwd f16 hq32 hk8 sq5 sk5000 d64").problem.seq_q == 5);
  CHECK(plan_of("fwd f16 hq8 hk8 sq1 sk5000 d64").problem.seq_q == 1);
  CHECK(plan_of("fwd f16 hq0 hk0 sq1 sk5000 d64").problem.heads_q == 0);
  const auto says = [](const char* line) {
    return explain(problem_of(line), caps_of("h100_cuda")).find("the 4 heads that share keys") !=
           std::string::npos;
  };
  CHECK(says("fwd f16 hq32 hk8 sq1 sk5000 d64"));
  CHECK(says("fwd f16 hq32 hk8 sq1 sk5000 d64 sink"));
  CHECK(!says("fwd f16 hq32 hk8 sq1 sk5000 d64 alibi"));
  // One head of keys, and strides near the end of their range.
  const Problem p =
      plan_of("fwd f32 b1 hq4 hk1 sq1 sk600 d64 q=0,300000000000000000,64,1", "h100_cuda").problem;
  CHECK(p.seq_q == 4);
  CHECK(p.q.s == 300000000000000000);
}

TEST_CASE("the CPU, the other normalisers and backward have no splits") {
  CHECK(splits_of("fwd f32 b1 hq1 sq1 sk65536 d64", caps_of("cpu")) == 1);
  CHECK(splits_of("fwd f32 b1 hq1 sq1 sk65536 d64 splits=9", caps_of("cpu")) == 1);
  for (const char* id : {"h100_cuda", "h100_vulkan", "lavapipe"})
    for (const char* words : {"elastic", "entmax=1.5"}) {
      const std::string line = std::string("fwd f16 b1 hq1 sq1 sk65536 d64 ") + words;
      CAPTURE(line);
      CHECK(splits_of(line, caps_of(id)) == 1);
      CHECK(splits_of(line + " splits=1", caps_of(id)) == 1);
      Plan plan;
      const Status status = make_plan(problem_of(line + " splits=4"), caps_of(id), &plan);
      CHECK(status.code() == TANDEM_ERROR_UNSUPPORTED);
      CHECK(status.message().find("asks for 4") != std::string::npos);
    }
  const Plan bwd = plan_of("bwd f16 b1 hq1 sq1 sk65536 d64 splits=4", caps_of("h100_cuda"));
  CHECK(bwd.find(Stem::fwd_combine) == nullptr);
}

TEST_CASE("a forced number of splits is the one that runs, and the plan says so") {
  for (const char* id : {"h100_cuda", "h100_vulkan", "lavapipe", "minimum"})
    for (const char* splits : {"1", "2", "7", "1000"}) {
      const Problem p =
          problem_of(std::string("fwd f32 b2 hq6 hk2 sq70 sk300 d64 dv40 splits=") + splits);
      const Caps caps = caps_of(id);
      Plan plan;
      REQUIRE(make_plan(p, caps, &plan).ok());
      CHECK(std::to_string(plan.launches[0].splits) == splits);
      const bool one = std::string(splits) == "1";
      CHECK((explain(p, caps).find(std::string(splits) + " splits") == std::string::npos) == one);
      CHECK((plan.workspace_size == 0) == one);
      if (!one) {
        CHECK(!plan.launches[0].waits);
        CHECK(plan.launches[1].waits);
        CHECK(std::to_string(plan.launches[1].splits) == splits);
      }
    }
  // More workgroups than a device can number.
  Plan plan;
  const Status status = make_plan(problem_of("fwd f32 b64 hq64 hk1 sq4096 sk64 d64 splits=65535"),
                                  caps_of("h100_cuda"), &plan);
  CHECK(status.code() == TANDEM_ERROR_UNSUPPORTED);
  CHECK(status.message().find("workgroups") != std::string::npos);
}

TEST_CASE("the workgroups of splits visit each key tile of each query tile exactly once") {
  long tiles = 0, wrong = 0, empty = 0;
  for (const char* id : {"h100_cuda", "h100_vulkan", "lavapipe"})
    for (const char* dtype : {"f32", "f16"})
      for (const char* sizes : {"sq1 sk5000", "sq7 sk300", "sq70 sk1000", "sq100 sk64"})
        for (const char* rest :
             {"", "causal_bottom_right", "causal_top_left", "left=90 right=20 bottom_right"})
          for (const char* splits : {"", " splits=2", " splits=3", " splits=16", " splits=100"}) {
            const std::string line =
                std::string("fwd ") + dtype + " b3 hq4 hk2 d64 " + sizes + " " + rest + splits;
            CAPTURE(line);
            const Plan plan = plan_of(line, caps_of(id));
            const Launch& l = plan.launches[0];
            const FwdBlock block = fwd_block(plan, l);
            CHECK(block.splits == int(l.splits));
            CHECK(fwd_spec(plan, l).SPLIT == (l.splits > 1));
            const int br = l.tile.br, bc = l.tile.bc;
            const auto seen = [&](int tile) {
              return tandem_key_tiles({block.band_left, block.band_right, block.band_off},
                                      tile * br, br, bc, block.seq_q, block.seq_kv);
            };
            // Place by place, as the kernels find theirs: batch, head, query tile, key tile.
            std::map<std::tuple<int, int, int, int>, int> visits;
            for (uint32_t index = 0; index < block.total; ++index) {
              const int tile = int(block.tiles - 1 - index % block.tiles);
              const int head = int(index / block.tiles) % block.heads_q;
              const int part = int(index / block.tiles) / block.heads_q;
              const TandemTiles t =
                  tandem_split_tiles(seen(tile), part % block.splits, block.splits);
              empty += t.begin == t.end;
              for (int n = t.begin; n < t.end; ++n) ++visits[{part / block.splits, head, tile, n}];
            }
            const int queries = std::atoi(sizes + 2);  // behind "sq"
            CHECK(block.heads_q * block.seq_q == 4 * queries);
            long expected = 0;
            for (int tile = 0; tile < int(block.tiles); ++tile)
              expected += 3 * block.heads_q * (seen(tile).end - seen(tile).begin);
            for (const auto& v : visits) wrong += v.second != 1;
            wrong += long(visits.size()) != expected;
            tiles += expected;
          }
  CHECK(wrong == 0);
  CHECK(tiles > 10000);
  CHECK(empty > 1000);
}

TEST_CASE(
    "the workgroups of the combine have a lane for every feature and a slice for every split") {
  for (uint32_t splits : {2u, 3u, 4u, 8u, 17u, 528u, 65535u})
    for (int64_t dv = 1; dv <= 256; ++dv) {
      const CombineShape s(splits, dv);
      CHECK(s.lanes * 4 >= dv);
      CHECK((s.lanes == 1 || s.lanes * 2 < dv));
      CHECK(s.rows() >= 1);
      CHECK(s.rows() * s.lanes * s.slices == kCombineGroup);
      CHECK((s.slices == 1 || uint32_t(s.slices) * 2 <= splits));
      CHECK(part_pitch(dv) % 8 == 0);
      CHECK(part_pitch(dv) >= dv);
      CHECK(part_pitch(dv) - dv < 8);
    }
}
