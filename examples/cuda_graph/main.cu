// SPDX-License-Identifier: MIT OR Apache-2.0
// A training step as a CUDA graph. A hidden bias was added to the scores of an attention; we see
// queries, keys, values and what came out, and find the bias by gradient descent: forward, loss,
// gradient of the loss, backward with d_bias alone, update. The step is captured once and replayed,
// and ends up with the very bits of the same steps without graph.
//
//   cuda_graph [STEPS]          exit status 77 where there is no CUDA device
#include <cuda_runtime.h>
#include <tandem/tandem_cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

// ---- the problem: small, so that launching is a part of a step's time ---------------------------

constexpr int kBatch = 8, kHeads = 2, kSeq = 64, kDim = 32;
constexpr int kTensor = kBatch * kHeads * kSeq * kDim;  // elements of q, k, v, o, ...
constexpr int kBias = kHeads * kSeq * kSeq;             // of the bias, which all of the batch share
constexpr int kRows = kBatch * kHeads * kSeq;
constexpr float kRate = 0.1f;
constexpr const char* kForward = "fwd f32 b8 hq2 sq64 d32 causal_top_left bias:f32:1x2x64";
constexpr const char* kBackward =
    "bwd f32 b8 hq2 sq64 d32 causal_top_left bias:f32:1x2x64 grads=b d_bias:f32 deterministic";

// ---- errors -------------------------------------------------------------------------------------

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "cuda_graph: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
void check(tandem_status status, const char* what) {
  if (status == TANDEM_OK) return;
  std::fprintf(stderr, "cuda_graph: %s: %s: %s\n", what, tandem_status_string(status),
               tandem_last_message());
  std::exit(1);
}
#define CHECK(call) check(call, #call)

// ---- our own kernels ----------------------------------------------------------------------------

// loss = 1/2 mean (o - target)^2 into losses[*step], d_o = o - target. One block, and a fixed order
// of the sum: the same bits each time.
__global__ void loss_kernel(const float* o, const float* target, float* d_o, float* losses,
                            const int* step) {
  __shared__ float sums[1024];
  float sum = 0;
  for (int i = int(threadIdx.x); i < kTensor; i += 1024) {
    const float d = o[i] - target[i];
    d_o[i] = d;
    sum += 0.5f * d * d;
  }
  sums[threadIdx.x] = sum;
  for (unsigned half = 512; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) losses[*step] = sums[0] / float(kTensor);
}

// A graph keeps its arguments, so whatever changes from step to step lies in memory: here, the step
// itself.
__global__ void update_kernel(float* bias, const float* d_bias, int* step) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < kBias) bias[i] -= kRate * d_bias[i];
  if (i == 0) ++*step;
}

// ---- memory: all of it is ours, none of it is allocated while we train --------------------------

template <typename T>
T* device_array(size_t count) {
  void* p = nullptr;
  CHECK(cudaMalloc(&p, std::max<size_t>(count, 1) * sizeof(T)));
  CHECK(cudaMemset(p, 0, count * sizeof(T)));
  return static_cast<T*>(p);
}

std::vector<float> download(const float* from, size_t count) {
  std::vector<float> host(count);
  CHECK(cudaMemcpy(host.data(), from, count * sizeof(float), cudaMemcpyDeviceToHost));
  return host;
}

void upload_random(float* to, size_t count, float range, uint32_t seed) {
  std::vector<float> host(count);
  uint32_t state = seed;
  for (float& x : host) {
    state = state * 1664525u + 1013904223u;
    x = range * (float(state >> 8) / 16777216.0f - 0.5f);
  }
  CHECK(cudaMemcpy(to, host.data(), count * sizeof(float), cudaMemcpyHostToDevice));
}

// ---- the training -------------------------------------------------------------------------------

class Training {
 public:
  Training(tandem_device* device, int steps) : steps_(steps) {
    forward_ = make_plan(device, kForward);
    backward_ = make_plan(device, kBackward);
    q_ = device_array<float>(kTensor);
    k_ = device_array<float>(kTensor);
    v_ = device_array<float>(kTensor);
    o_ = device_array<float>(kTensor);
    d_o_ = device_array<float>(kTensor);
    target_ = device_array<float>(kTensor);
    lse_ = device_array<float>(kRows);
    bias_ = device_array<float>(kBias);
    d_bias_ = device_array<float>(kBias);
    losses_ = device_array<float>(size_t(steps));
    step_ = device_array<int>(1);
    workspace_ = device_array<char>(workspace_size_);
    CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));

    upload_random(q_, kTensor, 2, 1);
    upload_random(k_, kTensor, 2, 2);
    upload_random(v_, kTensor, 2, 3);
    upload_random(bias_, kBias, 4, 4);  // the hidden one
    CHECK(cudaDeviceSynchronize());     // the uploads; our stream does not wait for the default one
    attend(target_);
    CHECK(cudaStreamSynchronize(stream_));
  }

  ~Training() {
    for (void* p :
         {static_cast<void*>(q_), static_cast<void*>(k_), static_cast<void*>(v_),
          static_cast<void*>(o_), static_cast<void*>(d_o_), static_cast<void*>(target_),
          static_cast<void*>(lse_), static_cast<void*>(bias_), static_cast<void*>(d_bias_),
          static_cast<void*>(losses_), static_cast<void*>(step_), static_cast<void*>(workspace_)})
      cudaFree(p);
    cudaStreamDestroy(stream_);
    tandem_plan_destroy(forward_);
    tandem_plan_destroy(backward_);
  }

  // From a bias of zeros again.
  void reset() {
    CHECK(cudaMemset(bias_, 0, kBias * sizeof(float)));
    CHECK(cudaMemset(step_, 0, sizeof(int)));
    CHECK(cudaDeviceSynchronize());
  }

  // Everything of one step, into the stream. Nothing here waits or allocates, so it can be
  // captured.
  void step() {
    attend(o_);
    loss_kernel<<<1, 1024, 0, stream_>>>(o_, target_, d_o_, losses_, step_);
    tandem_args args = arguments(o_);
    args.d_o = tandem_cuda_buffer(d_o_);
    args.d_bias = tandem_cuda_buffer(d_bias_);
    CHECK(tandem_execute(backward_, tandem_cuda_stream(stream_), &args));
    update_kernel<<<(kBias + 255) / 256, 256, 0, stream_>>>(bias_, d_bias_, step_);
    CHECK(cudaGetLastError());
  }

  cudaGraphExec_t capture() {
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    step();
    CHECK(cudaStreamEndCapture(stream_, &graph));
    CHECK(cudaGraphInstantiate(&ready, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    return ready;
  }

  // Runs enqueue() once a step and waits. Microseconds a step.
  template <typename Enqueue>
  double run(Enqueue enqueue) {
    reset();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < steps_; ++i) enqueue();
    CHECK(cudaStreamSynchronize(stream_));
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    return took.count() / steps_;
  }

  cudaStream_t stream() const { return stream_; }
  std::vector<float> bias() const { return download(bias_, kBias); }
  std::vector<float> losses() const { return download(losses_, size_t(steps_)); }

 private:
  tandem_plan* make_plan(tandem_device* device, const char* line) {
    tandem_problem problem;
    tandem_plan* plan = nullptr;
    tandem_plan_info info{};
    info.struct_size = sizeof(info);
    CHECK(tandem_problem_parse(line, &problem));
    CHECK(tandem_plan_create(device, &problem, &plan));
    CHECK(tandem_plan_get_info(plan, &info));
    std::printf("%s\n", info.name);
    workspace_size_ = std::max(workspace_size_, size_t(info.workspace_size));
    return plan;
  }

  tandem_args arguments(float* o) const {
    tandem_args args = TANDEM_ARGS_INIT;
    args.q = tandem_cuda_buffer(q_);
    args.k = tandem_cuda_buffer(k_);
    args.v = tandem_cuda_buffer(v_);
    args.o = tandem_cuda_buffer(o);
    args.lse = tandem_cuda_buffer(lse_);
    args.bias = tandem_cuda_buffer(bias_);
    args.workspace = tandem_cuda_buffer(workspace_);
    args.workspace_size = workspace_size_;
    return args;
  }

  void attend(float* o) {
    const tandem_args args = arguments(o);
    CHECK(tandem_execute(forward_, tandem_cuda_stream(stream_), &args));
  }

  int steps_;
  tandem_plan *forward_ = nullptr, *backward_ = nullptr;
  size_t workspace_size_ = 0;
  cudaStream_t stream_ = nullptr;
  float *q_, *k_, *v_, *o_, *d_o_, *target_, *lse_, *bias_, *d_bias_, *losses_;
  int* step_;
  char* workspace_;
};

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 200;
  if (steps < 50) return std::fprintf(stderr, "cuda_graph [STEPS], at least 50\n"), 2;
  tandem_device* device = nullptr;
  const tandem_status status = tandem_cuda_device_create(0, nullptr, &device);
  if (status == TANDEM_ERROR_NO_BACKEND || status == TANDEM_ERROR_NO_DEVICE) {
    std::printf("skipped: %s\n", tandem_last_message());
    return 77;
  }
  check(status, "tandem_cuda_device_create");

  int failures = 0;
  {
    Training training(device, steps);
    training.run([&] { training.step(); });  // warms up
    const double plain_us = training.run([&] { training.step(); });
    const std::vector<float> plain_bias = training.bias(), plain_losses = training.losses();

    const cudaGraphExec_t graph = training.capture();
    const double graph_us = training.run([&] { CHECK(cudaGraphLaunch(graph, training.stream())); });
    const std::vector<float> bias = training.bias(), losses = training.losses();
    CHECK(cudaGraphExecDestroy(graph));

    for (int i = 0; i < steps; i += steps / 5)
      std::printf("step %4d  loss %.6f\n", i, double(losses[size_t(i)]));
    std::printf("step %4d  loss %.6f\n", steps - 1, double(losses.back()));
    std::printf("a step takes %.1f us, replayed %.1f us\n", plain_us, graph_us);
    const bool learnt = losses.back() < 0.2f * losses.front();
    const bool same = bias == plain_bias && losses == plain_losses;
    std::printf("the loss %s; with graph and without: %s\n", learnt ? "falls" : "DOES NOT FALL",
                same ? "the same bits" : "OTHER BITS");
    failures = !learnt + !same;
  }
  tandem_device_destroy(device);
  return failures ? 1 : 0;
}
