// SPDX-License-Identifier: MIT OR Apache-2.0
// What tandem_cuda.h promises about graph capture: forward and backward recorded into a graph, and
// replayed, give the bits that direct execution gives, also after the contents of the buffers have
// changed, lengths among them; events of a timed execute are recorded by each replay; and the
// library leaves the caller's current device alone. Needs a GPU; exit status 77 (skipped) where
// there is none.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bias_chain.h"
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
constexpr size_t kWorkspace = size_t(1) << 20;

struct Tensors {
  float* at[11] = {};  // q k v o d_o d_q d_k d_v, lse, workspace, lengths_kv
  Tensors() {
    for (float*& p : at) {
      const size_t bytes = &p == &at[9] ? kWorkspace : kCount * 4;
      need(cudaMalloc(reinterpret_cast<void**>(&p), bytes), "cudaMalloc");
      need(cudaMemset(p, 0xff, bytes), "cudaMemset");
    }
  }
  ~Tensors() {
    for (float* p : at) cudaFree(p);
  }
  tandem_args args() const {
    tandem_args a = TANDEM_ARGS_INIT;
    tandem_buffer* to[] = {&a.q,   &a.k,   &a.v,   &a.o,         &a.d_o,       &a.d_q,
                           &a.d_k, &a.d_v, &a.lse, &a.workspace, &a.lengths_kv};
    for (int i = 0; i < 11; ++i) *to[i] = tandem_cuda_buffer(at[i]);
    a.workspace_size = kWorkspace;
    return a;
  }
};

// An execute in slices of a fifth of its work, of which there are several.
void execute_in_slices(const tandem_plan* plan, cudaStream_t stream, const tandem_args& args) {
  tandem_slices slices{};
  slices.struct_size = sizeof(slices);
  need(tandem_plan_get_slices(plan, 1e300, &slices), "slices");
  need(tandem_plan_get_slices(plan, slices.whole / 5, &slices), "slices");
  need(slices.count > 1, "there are several slices");
  for (uint32_t n = 0; n < slices.count; ++n)
    need(tandem_execute_slice(plan, tandem_cuda_stream(stream), &args, &slices, n), "a slice");
}

// The problem in 4 or 2 bytes an element: by whatever path the device prefers for them. With
// slices it is captured in slices.
void check(tandem_device* device, const char* fwd, const char* bwd, size_t size) {
  tandem_plan* plans[2] = {};
  tandem_plan_info info{};
  info.struct_size = sizeof(info);
  bool sliced = false;
  for (int i = 0; i < 2; ++i) {
    tandem_problem problem;
    need(tandem_problem_parse(i == 0 ? fwd : bwd, &problem), "parse");
    need(tandem_plan_create(device, &problem, &plans[i]), "plan");
    need(tandem_plan_get_info(plans[i], &info), "plan info");
    need(info.workspace_size <= kWorkspace, "the workspace is large enough");
    sliced = (problem.flags & TANDEM_FLAG_SLICES) != 0;
  }

  Tensors direct, replayed;
  const auto fill = [&](uint32_t state, int32_t length) {
    std::vector<float> values(kCount);
    for (int tensor : {0, 1, 2, 4}) {
      for (float& x : values) {
        state = state * 1664525u + 1013904223u;
        x = float(state >> 8) / 16777216.0f - 0.5f;
      }
      std::vector<uint16_t> halves(2 * kCount);  // as bf16: the upper ones
      std::memcpy(halves.data(), values.data(), kCount * 4);
      for (size_t i = 0; i < kCount; ++i) halves[i] = halves[2 * i + 1];
      const void* from = size == 4 ? static_cast<const void*>(values.data()) : halves.data();
      for (const Tensors* t : {&direct, &replayed})
        need(cudaMemcpy(t->at[tensor], from, kCount * size, cudaMemcpyHostToDevice), "upload");
    }
    for (const Tensors* t : {&direct, &replayed}) {
      for (int tensor : {3, 5, 6, 7, 8})
        need(cudaMemset(t->at[tensor], 0xff, kCount * 4), "nothing of the last time");
      need(cudaMemcpy(t->at[10], &length, sizeof length, cudaMemcpyHostToDevice), "upload");
    }
    need(cudaDeviceSynchronize(), "uploads");
  };

  cudaStream_t stream;
  need(cudaStreamCreate(&stream), "stream");
  const tandem_args now = direct.args(), later = replayed.args();
  std::vector<cudaEvent_t> events(info.kernel_count + 1);
  for (cudaEvent_t& e : events) need(cudaEventCreate(&e), "event");

  cudaGraph_t graph;
  cudaGraphExec_t ready;
  // The strictest mode: anything that synchronises or allocates anywhere in the process would fail.
  need(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
  if (sliced) {
    for (tandem_plan* plan : plans) execute_in_slices(plan, stream, later);
  } else {
    need(tandem_execute(plans[0], tandem_cuda_stream(stream), &later), "captured execute");
    need(tandem_cuda_execute_timed(plans[1], stream, &later, events.data(), info.kernel_count + 1),
         "captured timed execute");
  }
  need(cudaStreamEndCapture(stream, &graph), "end capture");
  need(cudaGraphInstantiate(&ready, graph, 0), "instantiate");

  std::vector<uint32_t> before;
  for (uint32_t round : {1u, 2u, 3u}) {
    fill(round, int32_t(220 - 40 * round));
    for (tandem_plan* plan : plans)
      need(tandem_execute(plan, tandem_cuda_stream(stream), &now), "direct execute");
    for (int i = 0; i < 3; ++i) need(cudaGraphLaunch(ready, stream), "launch");
    need(cudaStreamSynchronize(stream), "synchronize");
    for (uint32_t i = 0; i < (sliced ? 0 : info.kernel_count); ++i) {
      float ms = 0;
      need(cudaEventElapsedTime(&ms, events[i], events[i + 1]), "a replayed event");
      need(ms > 0, "a kernel of a replay takes time");
    }
    const char* names[] = {"q", "k", "v", "o", "d_o", "d_q", "d_k", "d_v", "lse"};
    for (int tensor : {3, 5, 6, 7, 8}) {
      const size_t n = tensor == 8 ? kRows : kCount * size / 4;
      std::vector<uint32_t> a(n), b(n);
      need(cudaMemcpy(a.data(), direct.at[tensor], n * 4, cudaMemcpyDeviceToHost), "download");
      need(cudaMemcpy(b.data(), replayed.at[tensor], n * 4, cudaMemcpyDeviceToHost), "download");
      need(a == b, names[tensor]);
      size_t poison = 0;
      for (uint32_t x : a) poison += x == 0xffffffffu;
      need(poison == 0, "everything was written");
      if (tensor == 3) need(a != before, "other inputs, another result"), before = a;
    }
  }
  int current = -1;
  need(cudaGetDevice(&current), "current device");
  need(current == 0, "the current device is as it was");
  for (cudaEvent_t e : events) cudaEventDestroy(e);
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  for (tandem_plan* plan : plans) tandem_plan_destroy(plan);
  std::printf(
      "%s: a captured and replayed forward and backward give the bits of a direct one, for three "
      "contents of its buffers\n",
      info.path);
}

// Kernels that begin before the one before them has ended, as with a dense bias and its gradient on
// sm90, in a graph, and with events between them: what a bf16 backward leaves is what a direct one
// does, d_q but for the order of its sums.
void check_early(tandem_device* device, const char* line, size_t count, size_t rows, size_t bias) {
  tandem_problem problem;
  tandem_plan* plan = nullptr;
  need(tandem_problem_parse(line, &problem), "parse");
  if (tandem_plan_create(device, &problem, &plan) != TANDEM_OK) {
    std::printf("left out: %s\n", tandem_last_message());
    return;
  }
  tandem_plan_info info{};
  info.struct_size = sizeof(info);
  need(tandem_plan_get_info(plan, &info), "plan info");
  tandem_args args = TANDEM_ARGS_INIT;
  tandem_buffer* const to[] = {&args.q,   &args.k,    &args.v,      &args.o,
                               &args.d_o, &args.bias, &args.lse,    &args.d_q,
                               &args.d_k, &args.d_v,  &args.d_bias, &args.workspace};
  const size_t sizes[] = {2 * count, 2 * count, 2 * count, 2 * count,
                          2 * count, 2 * bias,  4 * rows,  2 * count,
                          2 * count, 2 * count, 2 * bias,  size_t(info.workspace_size)};
  void* at[12];
  uint32_t state = 1;
  for (int i = 0; i < 12; ++i) {
    need(cudaMalloc(&at[i], sizes[i]), "cudaMalloc");
    *to[i] = tandem_cuda_buffer(at[i]);
    std::vector<uint16_t> values(sizes[i] / 2);
    for (size_t n = 0; n < values.size(); ++n) {
      state = state * 1664525u + 1013904223u;
      // Numbers from 1/8 to 1/2 of either sign; of lse, 6.
      values[n] = i == 6 ? uint16_t(n % 2 ? 0x40c0 : 0)
                         : uint16_t(state >> 31 << 15 | (0x3e00 + (state >> 16 & 0xff)));
    }
    if (i < 7) need(cudaMemcpy(at[i], values.data(), sizes[i], cudaMemcpyHostToDevice), "upload");
  }
  args.workspace_size = info.workspace_size;
  cudaStream_t stream;
  need(cudaStreamCreate(&stream), "stream");
  std::vector<cudaEvent_t> events(info.kernel_count + 1);
  for (cudaEvent_t& e : events) need(cudaEventCreate(&e), "event");
  std::vector<uint16_t> direct[4];
  for (int form = 0; form < 3; ++form) {  // direct, a graph, a graph with events
    for (int i = 7; i < 12; ++i) need(cudaMemset(at[i], 0xff, sizes[i]), "poison");
    if (form == 0) {
      for (int n = 0; n < 3; ++n)
        need(tandem_execute(plan, tandem_cuda_stream(stream), &args), "direct execute");
    } else {
      cudaGraph_t graph;
      cudaGraphExec_t ready;
      need(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
      if (form == 1)
        for (int n = 0; n < 2; ++n)
          need(tandem_execute(plan, tandem_cuda_stream(stream), &args), "captured execute");
      else
        need(tandem_cuda_execute_timed(plan, stream, &args, events.data(), info.kernel_count + 1),
             "captured timed execute");
      need(cudaStreamEndCapture(stream, &graph), "end capture");
      need(cudaGraphInstantiate(&ready, graph, 0), "instantiate");
      for (int n = 0; n < 3; ++n) need(cudaGraphLaunch(ready, stream), "launch");
      need(cudaStreamSynchronize(stream), "synchronize");
      cudaGraphExecDestroy(ready);
      cudaGraphDestroy(graph);
    }
    need(cudaStreamSynchronize(stream), "synchronize");
    for (int i = 0; i < 4; ++i) {
      std::vector<uint16_t> now(sizes[7 + i] / 2);
      need(cudaMemcpy(now.data(), at[7 + i], sizes[7 + i], cudaMemcpyDeviceToHost), "download");
      if (form == 0) direct[i] = now;
      size_t far = 0;
      for (size_t n = 0; n < now.size(); ++n) {
        const auto number = [](uint16_t x) {
          const uint32_t word = uint32_t(x) << 16;
          float y;
          std::memcpy(&y, &word, 4);
          return y;
        };
        const float x = number(now[n]), y = number(direct[i][n]), apart = x > y ? x - y : y - x;
        const bool near = apart <= 1e-3f + 0.01f * (y > 0 ? y : -y);  // not NaN
        far += i == 0 ? !near : now[n] != direct[i][n] || x != x;
      }
      need(far == 0, "gradients of a graph");
    }
  }
  for (void* p : at) cudaFree(p);
  for (cudaEvent_t e : events) cudaEventDestroy(e);
  cudaStreamDestroy(stream);
  tandem_plan_destroy(plan);
  std::printf("%s: %s: direct, captured and captured with events, all the same\n", info.path, line);
}

// Plans that share a kernel and not its shared memory: whichever was made last, both run.
void check_shared_kernel(tandem_device* device, const char* more, const char* less) {
  const Tensors tensors;
  const tandem_args args = tensors.args();
  tandem_plan* plans[2] = {};
  for (int i = 0; i < 2; ++i) {
    tandem_problem problem;
    need(tandem_problem_parse(i == 0 ? more : less, &problem), "parse");
    need(tandem_plan_create(device, &problem, &plans[i]), "plan");
  }
  for (tandem_plan* plan : plans)
    need(tandem_execute(plan, tandem_cuda_stream(0), &args), "execute");
  need(cudaDeviceSynchronize(), "synchronize");
  for (tandem_plan* plan : plans) tandem_plan_destroy(plan);
  std::printf("%s, then %s: both run\n", more, less);
}

// Tiles that two workgroups share, with numbers in the workspace that say who was first: of
// garbage, of earlier executes, and of the replay before, which had the same numbers.
void check_shared_tiles(tandem_device* device, const char* line) {
  constexpr size_t kBytes = size_t(16) << 20, kQueries = size_t(2) * 72 * 128;
  tandem_problem problem;
  tandem_plan* plan = nullptr;
  tandem_plan_info info{};
  info.struct_size = sizeof(info);
  need(tandem_problem_parse(line, &problem), "parse");
  need(tandem_plan_create(device, &problem, &plan), "plan");
  need(tandem_plan_get_info(plan, &info), "plan info");
  need(info.workspace_size <= kBytes, "the workspace is large enough");
  unsigned char* at[7] = {};  // q k v bias o lse workspace
  uint32_t state = 1;
  for (unsigned char*& p : at) {
    need(cudaMalloc(reinterpret_cast<void**>(&p), kBytes), "cudaMalloc");
    std::vector<uint16_t> halves(kBytes / 2, 0xffff);
    if (&p < &at[4])
      for (uint16_t& x : halves) {
        state = state * 1664525u + 1013904223u;
        x = uint16_t((state >> 31 << 15) | 0x3c00 |
                     (state >> 20 & 0x1ff));  // bf16, up to 1 / 8 to both sides
      }
    need(cudaMemcpy(p, halves.data(), kBytes, cudaMemcpyHostToDevice), "upload");
  }
  tandem_args args = TANDEM_ARGS_INIT;
  tandem_buffer* to[] = {&args.q, &args.k,   &args.v,        &args.bias,
                         &args.o, &args.lse, &args.workspace};
  for (int i = 0; i < 7; ++i) *to[i] = tandem_cuda_buffer(at[i]);
  args.workspace_size = kBytes;
  cudaStream_t stream;
  need(cudaStreamCreate(&stream), "stream");
  std::vector<uint16_t> o(kQueries * 64), again(o.size());
  std::vector<uint32_t> lse(kQueries), lse_again(kQueries);
  const auto download = [&](std::vector<uint16_t>& o_to, std::vector<uint32_t>& lse_to) {
    need(cudaStreamSynchronize(stream), "synchronize");
    need(cudaMemcpy(o_to.data(), at[4], o_to.size() * 2, cudaMemcpyDeviceToHost), "download");
    need(cudaMemcpy(lse_to.data(), at[5], lse_to.size() * 4, cudaMemcpyDeviceToHost), "download");
    need(cudaMemset(at[4], 0xff, o_to.size() * 2), "nothing of the last time");
    need(cudaMemset(at[5], 0xff, lse_to.size() * 4), "nothing of the last time");
  };
  const auto same = [&](const char* what) {
    download(again, lse_again);
    need(o == again && lse == lse_again, what);
  };
  need(tandem_execute(plan, tandem_cuda_stream(stream), &args), "execute");
  download(o, lse);
  size_t poison = 0;
  for (uint16_t x : o) poison += x == 0xffff;
  need(poison == 0, "everything was written");
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  need(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
  need(tandem_execute(plan, tandem_cuda_stream(stream), &args), "captured execute");
  need(cudaStreamEndCapture(stream, &graph), "end capture");
  need(cudaGraphInstantiate(&ready, graph, 0), "instantiate");
  for (int round = 0; round < 20; ++round) {
    need(cudaGraphLaunch(ready, stream), "launch");
    same("a replay");
    need(tandem_execute(plan, tandem_cuda_stream(stream), &args), "execute");
    same("an execute between replays");
    need(cudaMemset(at[6], round % 2 ? 0 : 0xff, kBytes), "garbage");
  }
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  for (unsigned char* p : at) cudaFree(p);
  tandem_plan_destroy(plan);
  std::printf("%s: %s, %llu bytes of workspace: the same bits by executes and replays in turns\n",
              info.path, line, (unsigned long long)info.workspace_size);
}

// Executes of which each reads what the one before it wrote, and may begin before that has ended: o
// becomes the next v. The bias makes row i see key (7 i + 3) % kRows alone, so that what comes out
// is known.
void check_chain(tandem_device* device) {
  constexpr size_t kRows = 640, kHeads = 2 * 72, kSize = kHeads * kRows * 64;
  constexpr int kLinks = 7;
  tandem_problem problem;
  tandem_plan* plan = nullptr;
  tandem_plan_info info{};
  info.struct_size = sizeof(info);
  need(tandem_problem_parse("fwd bf16 b2 hq72 sq640 d64 bias:bf16:1x1x640", &problem), "parse");
  need(tandem_plan_create(device, &problem, &plan), "plan");
  need(tandem_plan_get_info(plan, &info), "plan info");
  std::vector<uint16_t> values(kSize), bias(kRows * kRows), now(kSize);
  uint32_t state = 1;
  for (uint16_t& x : values) {
    state = state * 1664525u + 1013904223u;
    x = uint16_t(state >> 31 << 15 | (0x3e00 + (state >> 16 & 0xff)));
  }
  for (size_t i = 0; i < kRows; ++i) bias[i * kRows + (7 * i + 3) % kRows] = 0x4300;  // 128
  const size_t sizes[] = {2 * kSize, 2 * kSize, 2 * kSize, 2 * bias.size(),
                          size_t(info.workspace_size) + 16};
  void* at[5];  // q and k, two for v and o, bias, workspace
  for (int i = 0; i < 5; ++i) need(cudaMalloc(&at[i], sizes[i]), "cudaMalloc");
  need(cudaMemcpy(at[0], values.data(), sizes[0], cudaMemcpyHostToDevice), "upload");
  need(cudaMemcpy(at[3], bias.data(), sizes[3], cudaMemcpyHostToDevice), "upload");
  tandem_args args = TANDEM_ARGS_INIT;
  args.q = args.k = tandem_cuda_buffer(at[0]);
  args.bias = tandem_cuda_buffer(at[3]);
  args.workspace = tandem_cuda_buffer(at[4]);
  args.workspace_size = info.workspace_size;
  cudaStream_t stream;
  need(cudaStreamCreate(&stream), "stream");
  const auto chain = [&] {
    for (int n = 0; n < kLinks; ++n) {
      args.v = tandem_cuda_buffer(at[1 + n % 2]), args.o = tandem_cuda_buffer(at[2 - n % 2]);
      need(tandem_execute(plan, tandem_cuda_stream(stream), &args), "execute");
    }
  };
  size_t from[kRows];
  for (size_t i = 0; i < kRows; ++i) {
    from[i] = i;
    for (int n = 0; n < kLinks; ++n) from[i] = (7 * from[i] + 3) % kRows;
  }
  const auto run = [&](const char* what, cudaGraphExec_t graph) {
    need(cudaMemcpy(at[1], values.data(), sizes[1], cudaMemcpyHostToDevice), "upload");
    if (graph)
      need(cudaGraphLaunch(graph, stream), "launch");
    else
      chain();
    need(cudaStreamSynchronize(stream), "synchronize");
    need(cudaMemcpy(now.data(), at[1 + kLinks % 2], sizes[1], cudaMemcpyDeviceToHost), "download");
    size_t wrong = 0;
    for (size_t n = 0; n < kSize; ++n) {
      const size_t head = n / (kRows * 64), row = n / 64 % kRows;
      wrong += now[n] != values[(head * kRows + from[row]) * 64 + n % 64];
    }
    need(wrong == 0, what);
  };
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  need(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
  chain();
  need(cudaStreamEndCapture(stream, &graph), "end capture");
  need(cudaGraphInstantiate(&ready, graph, 0), "instantiate");
  for (int round = 0; round < 5; ++round) {
    run("a chain of executes", nullptr);
    run("a chain in a graph", ready);
  }
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  for (void* p : at) cudaFree(p);
  tandem_plan_destroy(plan);
  std::printf("%s: %d executes that read what the one before wrote, in a stream and in a graph\n",
              info.path, kLinks);
}

}  // namespace

int main() {
  tandem_device* device = nullptr;
  if (tandem_cuda_device_create(0, nullptr, &device) != TANDEM_OK) {
    std::printf("skipped: %s\n", tandem_last_message());
    return 77;
  }
  check(device, "fwd f32 b1 hq2 sq200 d64 causal_top_left",
        "bwd f32 b1 hq2 sq200 d64 causal_top_left", 4);
  check(device, "fwd bf16 b1 hq2 sq200 d64 causal_top_left",
        "bwd bf16 b1 hq2 sq200 d64 causal_top_left deterministic", 2);
  check(device, "fwd f32 b1 hq2 sq200 d64 kv_padded",
        "bwd f32 b1 hq2 sq200 d64 kv_padded deterministic", 4);
  check(device, "fwd bf16 b1 hq2 sq200 d64 causal_top_left slices",
        "bwd bf16 b1 hq2 sq200 d64 causal_top_left deterministic slices", 2);
  for (const char* more : {"", " deterministic"})
    check_early(
        device,
        (std::string("bwd bf16 b4 hq16 sq512 d128 bias:bf16:1x16x512 d_bias:bf16 grads=qkvb") +
         more)
            .c_str(),
        size_t(4) * 16 * 512 * 128, size_t(4) * 16 * 512, size_t(16) * 512 * 512);
  check_shared_kernel(device, "bwd bf16 b1 hq2 sq64 d192", "bwd bf16 b1 hq2 sq64 d192 grads=q");
  check_shared_kernel(device, "fwd f16 b1 hq2 sq64 d192 entmax=1.5 softcap=2",
                      "fwd f16 b1 hq2 sq64 d192 entmax=1.5 softcap=2 visit_all");
  check_shared_tiles(device, "fwd bf16 b2 hq72 sq128 sk512 d64 bias:bf16:1x72x128");
  check_chain(device);
  const std::string wrong = bias_chain::run(device);
  need(wrong.empty(), wrong.c_str());
  std::printf("executes whose bias is what the one before wrote: each waits for it\n");
  tandem_device_destroy(device);
  return 0;
}
