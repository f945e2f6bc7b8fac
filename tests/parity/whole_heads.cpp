// SPDX-License-Identifier: MIT OR Apache-2.0
// Whole heads on cuda.sm80 (cuda/sm80/whole_head.cuh).
#include "api/handles.h"
#include "parity.h"

using namespace parity;

// Tiles of up to 64 queries and keys: a bias of all entries, of each, of one head and of one row,
// masks of each entry and of all, rows that see nothing, more entries than workgroups, one entry,
// strides of any kind, gradients alone.
TEST_CASE("regression: whole heads on cuda.sm80" * doctest::skip(!at_least(Tier::ci))) {
  Expect expect = sparse();
  expect.gpu_only = true;
  expect.takes = "sm80";
  int n = 0;
  for (int64_t batch : {1, 3, 70})
    for (int64_t width : {24, 32, 40, 64})
      for (int kind = 0; kind < 6; ++kind, ++n) {
        if (batch == 70 && kind % 2 != n / 6 % 2) continue;
        const int64_t rows = n % 3 == 0   ? 64
                             : n % 3 == 1 ? 49
                                          : 7,
                      keys = n % 5 == 0   ? 64
                             : n % 5 == 1 ? 1
                             : n % 5 == 2 ? 33
                                          : 49;
        for (tandem_direction pass : {TANDEM_FORWARD, TANDEM_BACKWARD}) {
          tandem_problem p = problem(pass, n % 2 ? TANDEM_BF16 : TANDEM_F16,
                                     {batch, 3, pass == TANDEM_FORWARD && n % 4 == 1 ? 1 : 3, rows,
                                      keys, width, n % 7 == 3 ? width / 2 : width},
                                     n % 4 == 2   ? kTopLeft
                                     : n % 4 == 3 ? kWindow
                                                  : kNone,
                                     n % 6 == 5   ? Layout::gapped
                                     : n % 6 == 1 ? Layout::bshd
                                                  : Layout::bhsd);
          const tandem_dtype own = tandem_dtype(p.q.dtype), of = n % 3 == 2 ? TANDEM_F32 : own;
          if (kind == 1) set_bias(p, of, 1, p.heads_q, p.seq_q, of);
          if (kind == 2) set_bias(p, own, p.batch, p.heads_q, p.seq_q, TANDEM_F32);
          if (kind == 3) set_bias(p, of, n % 2 ? p.batch : 1, 1, 1);
          if (kind == 4) set_keep(p, n % 2 ? p.batch : 1, 1, n % 3 ? p.seq_q : 1);
          if (kind == 5) {
            set_bias(p, own, 1, p.heads_q, p.seq_q);
            set_keep(p, p.batch, 1, p.seq_q);
          }
          if (pass == TANDEM_BACKWARD) {
            p.gradients = n % 8 == 7 ? TANDEM_GRAD_K : TANDEM_GRAD_QKV;
            if (kind == 1 || kind == 2 || kind == 5) p.gradients |= TANDEM_GRAD_BIAS;
          }
          check(p, seed_of("whole heads", uint64_t(n)), expect);
        }
      }
}

// Larger tiles, which take heads where each SM has two: each size at its edges, strides and biases
// that allow 16-byte copies and that do not, d_bias in the type of the problem and in others.
TEST_CASE("regression: larger whole heads on cuda.sm80" * doctest::skip(!at_least(Tier::ci))) {
  Expect expect = sparse();
  expect.gpu_only = true;
  expect.takes = "sm80";
  int64_t cores = 1;
  for (Target& target : targets())
    if (target.path == "sm80")
      cores = std::max<int64_t>(cores, target.session->device()->device->caps().cores);
  const struct {
    const char *line, *rest;  // before and behind the batch
  } cases[] = {
      {"fwd bf16", "hq2 sq64 sk64 d80"},
      {"fwd f16", "hq2 hk1 sq33 sk49 d128 dv72 causal_top_left"},
      {"fwd bf16", "hq2 sq49 sk64 d72 bias:f32:1x2x49 keep:1x1x1"},
      {"fwd f16", "hq2 sq77 sk77 d64 causal_top_left"},
      {"fwd bf16", "hq2 hk1 sq96 sk65 d40 left=9 right=3 keep:Bx2x96"},
      {"fwd f16", "hq2 sq65 sk96 d64 bias:f16:Bx2x65"},
      {"fwd bf16", "hq2 sq128 sk128 d32"},
      {"fwd f16", "hq2 sq97 sk113 d24 bias:f32:Bx1x97 layout=bshd"},
      {"fwd bf16", "hq2 sq32 sk128 d32 bias:bf16:Bx2x32"},
      {"fwd f16", "hq2 sq17 sk65 d16 bias:f16:1x2x1 keep:Bx1x1"},
      {"bwd bf16", "hq2 sq32 sk128 d32 bias:bf16:Bx2x32 grads=qkvb d_bias:bf16"},
      {"bwd f16", "hq2 sq31 sk67 d24 bias:f16:Bx2x31 grads=qkvb d_bias:f16"},
      {"bwd bf16", "hq2 sq16 sk72 d8 bias:f32:1x2x16 grads=qkvb d_bias:f32 keep:Bx1x16"},
      {"bwd f16", "hq2 sq128 sk128 d8 bias:f16:Bx2x128 grads=qkvb d_bias:f16"},
      {"bwd bf16", "hq2 sq128 sk128 d32"},
      {"bwd f16", "hq2 sq99 sk101 d32 causal_bottom_right bias:f32:Bx2x99 grads=qkvb d_bias:f32"},
      {"bwd bf16", "hq2 sq77 sk90 d16 bias:bf16:1x2x77 grads=qkvb d_bias:bf16 layout=bshd"},
      {"bwd f16", "hq2 sq65 sk128 d32 dv16 bias:f16:Bx2x1 keep:1x1x65 grads=kv"},
      {"bwd bf16", "hq2 sq128 sk65 d32 bias:bf16:Bx2x128 grads=b d_bias:bf16"},
      {"fwd bf16", "hq2 sq144 sk144 d64 keep:Bx1x144"},
      {"fwd f16", "hq2 sq130 sk7 d40 bias:f16:1x2x130"},
      {"bwd bf16", "hq2 sq144 sk144 d64 keep:Bx1x144"},
      {"bwd f16", "hq2 sq129 sk131 d40 bias:f16:Bx2x129 grads=qkvb d_bias:f32 layout=bshd"},
      {"bwd bf16", "hq2 sq77 sk77 d64 causal_top_left"},
      {"bwd f16", "hq2 sq96 sk66 d56 dv64 bias:f16:Bx2x96 grads=qkvb d_bias:f16"},
  };
  int n = 0;
  for (const auto& c : cases) {
    const std::string batch = std::to_string(cores + 1 + n % 3);
    std::string rest = c.rest;
    for (size_t at; (at = rest.find(":Bx")) != std::string::npos;) rest.replace(at + 1, 1, batch);
    check(parse(std::string(c.line) + " b" + batch + " " + rest),
          seed_of("larger whole heads", uint64_t(n++)), expect);
  }
}
