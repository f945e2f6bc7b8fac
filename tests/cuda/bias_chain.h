// SPDX-License-Identifier: MIT OR Apache-2.0
// Executes of a forward whose bias is what the one before wrote, o, read as it does not lie in
// memory, so that on cuda.sm90 pack_bias copies it, or the forward reads its one row. Each kernel
// may begin before the one before it has ended: pack_bias or the forward may read o too early, or
// pack_bias may write the copy while the forward before still reads it, and the forward may read
// the copy too early. For a GPU (test_graph.cpp) and for the emulator (emulated/test_chain.cpp).
#ifndef TANDEM_TESTS_CUDA_BIAS_CHAIN_H
#define TANDEM_TESTS_CUDA_BIAS_CHAIN_H
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tandem/tandem_cuda.h"

namespace bias_chain {

// heads: of line, a bf16 forward of one batch entry, 72 queries, keys and features of v, 64 of q
// and k. Returns "" or what is wrong.
inline std::string run(tandem_device* device, const char* line, size_t heads) {
  constexpr int kLinks = 6;
  const size_t out = heads * 72 * 72, in = heads * 72 * 64;  // elements
  tandem_problem problem;
  tandem_plan* plan = nullptr;
  if (tandem_problem_parse(line, &problem) != TANDEM_OK ||
      tandem_plan_create(device, &problem, &plan) != TANDEM_OK)
    return tandem_last_message();
  tandem_plan_info info{};
  info.struct_size = sizeof info;
  tandem_plan_get_info(plan, &info);
  // q, k, v, the first bias, an o of each link, workspace
  constexpr int kBuffers = 4 + kLinks + 1;
  void* at[kBuffers];
  std::string wrong;
  uint32_t state = 1;
  for (int i = 0; i < kBuffers; ++i) {
    std::vector<uint16_t> values(i < 2 ? in : i + 1 < kBuffers ? out : info.workspace_size / 2 + 8);
    for (uint16_t& x : values) {
      state = state * 1664525u + 1013904223u;
      // From 1/8 to 1/2 of either sign; of v to 8, so that the next weights differ.
      x = uint16_t(state >> 31 << 15 | ((i == 2 ? 0x4000 : 0x3e00) + (state >> 16 & 0xff)));
    }
    if (cudaMalloc(&at[i], 2 * values.size()) != cudaSuccess ||
        cudaMemcpy(at[i], values.data(), 2 * values.size(), cudaMemcpyHostToDevice) != cudaSuccess)
      return "no memory";
  }
  cudaStream_t stream;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return "no stream";
  tandem_args args = TANDEM_ARGS_INIT;
  args.q = tandem_cuda_buffer(at[0]), args.k = tandem_cuda_buffer(at[1]);
  args.v = tandem_cuda_buffer(at[2]), args.workspace = tandem_cuda_buffer(at[kBuffers - 1]);
  args.workspace_size = info.workspace_size;
  // Runs the chain, with or without a wait between its links.
  const auto chain = [&](bool waits) {
    std::vector<uint16_t> all(kLinks * out);
    for (int n = 0; n < kLinks; ++n) cudaMemset(at[4 + n], 0xff, 2 * out);
    cudaDeviceSynchronize();
    for (int n = 0; n < kLinks; ++n) {
      args.bias = tandem_cuda_buffer(at[3 + n]), args.o = tandem_cuda_buffer(at[4 + n]);
      if (tandem_execute(plan, tandem_cuda_stream(stream), &args) != TANDEM_OK)
        wrong = tandem_last_message();
      if (waits) cudaStreamSynchronize(stream);
    }
    if (cudaStreamSynchronize(stream) != cudaSuccess) wrong = "the stream fails";
    for (int n = 0; n < kLinks; ++n)
      cudaMemcpy(all.data() + size_t(n) * out, at[4 + n], 2 * out, cudaMemcpyDeviceToHost);
    return all;
  };
  const std::vector<uint16_t> want = chain(true);
  for (int n = 1; n < kLinks; ++n)
    if (std::equal(want.begin(), want.begin() + out, want.begin() + n * out))
      wrong = "a link gives what the first one did: the chain shows nothing";
  for (int round = 0; round < 8 && wrong.empty(); ++round)
    if (chain(false) != want) wrong = std::string(line) + ": a kernel did not wait for another";
  for (void* p : at) cudaFree(p);
  cudaStreamDestroy(stream);
  tandem_plan_destroy(plan);
  return wrong;
}

// "" or what is wrong. A bias in rows, and one with one row for all queries, which is not copied.
// One head is copied by a few workgroups, beside which the forward may begin.
inline std::string run(tandem_device* device) {
  for (const char* heads : {"1", "9"})
    for (const char* rows : {"x72 bias=0,5184,1,72", "x1 bias=0,5184,0,72"}) {
      const std::string line =
          std::string("fwd bf16 b1 sq72 sk72 d64 dv72 hq") + heads + " bias:bf16:1x" + heads + rows;
      const std::string wrong = run(device, line.c_str(), size_t(heads[0] - '0'));
      if (!wrong.empty()) return wrong;
    }
  return "";
}

}  // namespace bias_chain
#endif
