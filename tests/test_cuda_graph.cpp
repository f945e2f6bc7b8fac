// SPDX-License-Identifier: MIT OR Apache-2.0
// What tandem_cuda.h promises about graph capture: forward and backward recorded into a graph, and replayed,
// give the bits that direct execution gives; and the library leaves the caller's current device alone.
// Needs a GPU; exit status 77 (skipped) where there is none.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tandem/tandem_cuda.h"

namespace {

void need(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "FAILED: %s: %s; %s\n", what, tandem_last_message(),
               cudaGetErrorString(cudaGetLastError()));
  std::exit(1);
}
void need(cudaError_t e, const char* what) { need(e == cudaSuccess, what); }
void need(tandem_status s, const char* what) { need(s == TANDEM_OK, what); }

constexpr size_t kCount = 1 * 2 * 200 * 64;  // elements of every tensor of the problem below
constexpr size_t kRows = 1 * 2 * 200;

struct Tensors {
  float* at[10] = {};  // q k v o d_o d_q d_k d_v, lse, workspace
  Tensors() {
    for (float*& p : at) {
      need(cudaMalloc(reinterpret_cast<void**>(&p), kCount * 4), "cudaMalloc");
      need(cudaMemset(p, 0xff, kCount * 4), "cudaMemset");
    }
  }
  ~Tensors() {
    for (float* p : at) cudaFree(p);
  }
  tandem_args args() const {
    tandem_args a = TANDEM_ARGS_INIT;
    tandem_buffer* to[] = {&a.q,   &a.k,   &a.v,   &a.o,   &a.d_o,
                           &a.d_q, &a.d_k, &a.d_v, &a.lse, &a.workspace};
    for (int i = 0; i < 10; ++i) *to[i] = tandem_cuda_buffer(at[i]);
    a.workspace_size = kCount * 4;
    return a;
  }
};

}  // namespace

int main() {
  tandem_device* device = nullptr;
  if (tandem_cuda_device_create(0, nullptr, &device) != TANDEM_OK) {
    std::printf("skipped: %s\n", tandem_last_message());
    return 77;
  }
  tandem_plan* plans[2] = {};
  const char* lines[2] = {"fwd f32 b1 hq2 sq200 d64 causal_top_left",
                          "bwd f32 b1 hq2 sq200 d64 causal_top_left"};
  for (int i = 0; i < 2; ++i) {
    tandem_problem problem;
    need(tandem_problem_parse(lines[i], &problem), "parse");
    need(tandem_plan_create(device, &problem, &plans[i]), "plan");
  }

  Tensors direct, replayed;
  std::vector<float> values(kCount);
  uint32_t state = 1;
  for (int tensor : {0, 1, 2, 4}) {
    for (float& x : values) {
      state = state * 1664525u + 1013904223u;
      x = float(state >> 8) / 16777216.0f - 0.5f;
    }
    for (const Tensors* t : {&direct, &replayed})
      need(cudaMemcpy(t->at[tensor], values.data(), kCount * 4, cudaMemcpyHostToDevice), "upload");
  }

  cudaStream_t stream;
  need(cudaStreamCreate(&stream), "stream");
  const tandem_args now = direct.args(), later = replayed.args();
  for (tandem_plan* plan : plans)
    need(tandem_execute(plan, tandem_cuda_stream(stream), &now), "direct execute");

  cudaGraph_t graph;
  cudaGraphExec_t ready;
  // The strictest mode: anything that synchronises or allocates anywhere in the process would fail.
  need(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
  for (tandem_plan* plan : plans)
    need(tandem_execute(plan, tandem_cuda_stream(stream), &later), "captured execute");
  need(cudaStreamEndCapture(stream, &graph), "end capture");
  need(cudaGraphInstantiate(&ready, graph, 0), "instantiate");
  for (int i = 0; i < 3; ++i) need(cudaGraphLaunch(ready, stream), "launch");
  need(cudaStreamSynchronize(stream), "synchronize");

  int current = -1;
  need(cudaGetDevice(&current), "current device");
  need(current == 0, "the current device is as it was");
  const char* names[] = {"q", "k", "v", "o", "d_o", "d_q", "d_k", "d_v", "lse"};
  for (int tensor : {3, 5, 6, 7, 8}) {
    const size_t n = tensor == 8 ? kRows : kCount;
    std::vector<uint32_t> a(n), b(n);
    need(cudaMemcpy(a.data(), direct.at[tensor], n * 4, cudaMemcpyDeviceToHost), "download");
    need(cudaMemcpy(b.data(), replayed.at[tensor], n * 4, cudaMemcpyDeviceToHost), "download");
    need(a == b, names[tensor]);
    size_t poison = 0;
    for (uint32_t x : a) poison += x == 0xffffffffu;
    need(poison == 0, "everything was written");
  }
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  for (tandem_plan* plan : plans) tandem_plan_destroy(plan);
  tandem_device_destroy(device);
  std::printf("a captured and replayed forward and backward give the bits of a direct one\n");
  return 0;
}
