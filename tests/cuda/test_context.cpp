// SPDX-License-Identifier: MIT OR Apache-2.0
// What tandem_cuda.h promises an application that uses the driver API alone: its own contexts, also
// several of one GPU, every GPU of the machine, from as many threads, the current context left as
// it was, a time for each kernel.
//   tandem_cuda_context [several]
// Exit status 77 (skipped) where there is no GPU; with `several`, where there is one alone.
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cuda_driver.h"
#include "tandem/tandem_cuda.h"

namespace {

using namespace cuda_driver;

constexpr int kTensors = 10;
constexpr const char* kNames[kTensors] = {"q",   "k",   "v",   "o",   "d_o",
                                          "d_q", "d_k", "d_v", "lse", "workspace"};
constexpr size_t kCount = 2 * 2 * 200 * 64, kRows = 2 * 2 * 200;  // of the problems below
constexpr size_t kWorkspace = size_t(1) << 20;
struct Lines {
  const char *forward, *backward;
  size_t element;
};
constexpr Lines kLines[] = {
    {"fwd f32 b2 hq2 sq200 d64 causal_top_left", "bwd f32 b2 hq2 sq200 d64 causal_top_left", 4},
    {"fwd bf16 b2 hq2 sq200 d64 causal_top_left",
     "bwd bf16 b2 hq2 sq200 d64 causal_top_left deterministic", 2}};

// What is current on this thread still is after a call of the library.
class Unmoved {
 public:
  explicit Unmoved(const char* call) : call_(call) { NEED(cu.cuCtxGetCurrent(&before_)); }
  ~Unmoved() {
    CUcontext after = nullptr;
    NEED(cu.cuCtxGetCurrent(&after));
    if (after != before_) fail(call_, "the current context is another one");
  }

 private:
  const char* call_;
  CUcontext before_ = nullptr;
};

// A tandem_device in a context, with a stream and buffers there.
struct Place {
  std::string name;
  CUcontext context = nullptr;
  tandem_device* device = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr at[kTensors] = {};

  void fill() {
    const In in(context);
    NEED(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (CUdeviceptr& p : at) {
      const size_t bytes = &p == &at[9] ? kWorkspace : kCount * 4;
      NEED(cu.cuMemAlloc(&p, bytes));
    }
  }
  void upload(size_t element) {
    const In in(context);
    uint32_t state = 1;
    for (int t = 0; t < kTensors; ++t) {
      std::vector<uint8_t> bytes(t == 9 ? kWorkspace : kCount * 4, 0xff);
      if (t < 3 || t == 4)
        for (size_t i = 0; i < kCount; ++i) {
          state = state * 1664525u + 1013904223u;
          const float x = float(state >> 8) / 16777216.0f - 0.5f;
          uint8_t whole[4];
          std::memcpy(whole, &x, 4);
          std::memcpy(&bytes[i * element], whole + 4 - element, element);  // bf16: the upper half
        }
      NEED(cu.cuMemcpyHtoD(at[t], bytes.data(), bytes.size()));
    }
  }
  tandem_args args() const {
    tandem_args a = TANDEM_ARGS_INIT;
    tandem_buffer* to[] = {&a.q,   &a.k,   &a.v,   &a.o,   &a.d_o,
                           &a.d_q, &a.d_k, &a.d_v, &a.lse, &a.workspace};
    for (int i = 0; i < kTensors; ++i) *to[i] = {uint64_t(at[i]), 0};
    a.workspace_size = kWorkspace;
    return a;
  }
  // What forward and backward wrote, one after the other.
  std::vector<uint32_t> results(size_t element) const {
    const In in(context);
    NEED(cu.cuStreamSynchronize(stream));
    std::vector<uint32_t> all;
    for (int t : {3, 5, 6, 7, 8}) {
      std::vector<uint32_t> words(t == 8 ? kRows : kCount * element / 4);
      NEED(cu.cuMemcpyDtoH(words.data(), at[t], words.size() * 4));
      for (uint32_t w : words)
        if (w == 0xffffffffu) fail(kNames[t], "holds what was there before");
      all.insert(all.end(), words.begin(), words.end());
    }
    return all;
  }
  void empty() {
    {
      const In in(context);
      for (CUdeviceptr p : at) cu.cuMemFree(p);
      cu.cuStreamDestroy(stream);
    }
    tandem_device_destroy(device);
  }
};

tandem_plan* make_plan(const Place& place, const char* line) {
  tandem_problem problem;
  NEED(tandem_problem_parse(line, &problem));
  const Unmoved unmoved("tandem_plan_create");
  tandem_plan* plan = nullptr;
  NEED(tandem_plan_create(place.device, &problem, &plan));
  return plan;
}

void execute(const Place& place, const tandem_plan* plan) {
  const Unmoved unmoved("tandem_execute");
  const tandem_args args = place.args();
  NEED(tandem_execute(plan, tandem_cuda_stream(place.stream), &args));
}

std::vector<uint32_t> run(Place& place, const Lines& lines) {
  place.upload(lines.element);
  tandem_plan* plans[] = {make_plan(place, lines.forward), make_plan(place, lines.backward)};
  for (const tandem_plan* plan : plans) execute(place, plan);
  std::vector<uint32_t> results = place.results(lines.element);
  for (tandem_plan* plan : plans) tandem_plan_destroy(plan);
  return results;
}

// A stream of another GPU. (One of another context of the same GPU is the driver's to judge: some
// run it.)
void wrong_stream(Place& place, const Place& other) {
  tandem_plan* plan = make_plan(place, kLines[0].forward);
  const tandem_args args = place.args();
  const tandem_status status = tandem_execute(plan, tandem_cuda_stream(other.stream), &args);
  std::printf("a stream of another GPU: %s: %s\n", tandem_status_string(status),
              tandem_last_message());
  need(status == TANDEM_ERROR_INVALID_ARGUMENT, "a stream of another GPU is refused");
  tandem_plan_destroy(plan);
  run(place, kLines[0]);  // and no harm is done
}

void timed(Place& place, const Lines& lines) {
  tandem_plan* plan = make_plan(place, lines.backward);
  tandem_plan_info info{};
  info.struct_size = sizeof(info);
  NEED(tandem_plan_get_info(plan, &info));
  std::vector<CUevent> events(info.kernel_count + 1);
  const tandem_args args = place.args();
  {
    const In in(place.context);
    for (CUevent& e : events) NEED(cu.cuEventCreate(&e, CU_EVENT_DEFAULT));
  }
  for (int i = 0; i < 2; ++i) {  // the first warms up
    const Unmoved unmoved("tandem_cuda_execute_timed");
    NEED(tandem_cuda_execute_timed(plan, place.stream, &args, events.data(),
                                   uint32_t(events.size())));
  }
  need(tandem_cuda_execute_timed(plan, place.stream, &args, events.data(),
                                 uint32_t(events.size()) - 1) == TANDEM_ERROR_INVALID_ARGUMENT,
       "an event too few is refused");
  const In in(place.context);
  NEED(cu.cuStreamSynchronize(place.stream));
  std::printf("  %.40s:", info.name);
  for (uint32_t i = 0; i < info.kernel_count; ++i) {
    tandem_kernel_info kernel{};
    kernel.struct_size = sizeof(kernel);
    NEED(tandem_kernel_get(info.kernels[i], &kernel));
    float ms = 0;
    NEED(cu.cuEventElapsedTime(&ms, events[i], events[i + 1]));
    std::printf(" %s %.1f us", kernel.stem, 1e3 * double(ms));
    need(ms > 0 && ms < 100, "a kernel takes time");
  }
  std::printf("\n");
  for (CUevent e : events) cu.cuEventDestroy(e);
  tandem_plan_destroy(plan);
}

}  // namespace

int main(int argc, char** argv) {
  const char* reason = "";
  const int gpus = cu.open(&reason);
  if (gpus == 0) return std::printf("skipped: %s\n", reason), 77;
  if (argc > 1 && std::strcmp(argv[1], "several") == 0 && gpus < 2)
    return std::printf("skipped: several GPUs in one process: this machine has one\n"), 77;

  // Of each GPU the primary context, and two of the application's own.
  std::vector<Place> places;
  std::vector<CUcontext> own;
  for (int ordinal = 0; ordinal < gpus; ++ordinal) {
    CUdevice gpu = 0;
    char name[64];
    NEED(cu.cuDeviceGet(&gpu, ordinal));
    NEED(cu.cuDeviceGetName(name, sizeof name, gpu));
    for (int n = 0; n < 3; ++n) {
      Place place;
      place.name = std::string(name) + " " + std::to_string(ordinal) +
                   (n == 0   ? ", primary context"
                    : n == 1 ? ", own context"
                             : ", another one");
      const Unmoved unmoved("creating a device");
      if (n == 0) {
        NEED(tandem_cuda_device_create(ordinal, nullptr, &place.device));
        NEED(cu.cuDevicePrimaryCtxRetain(&place.context, gpu));
      } else {
        NEED(cu.create_context(&place.context, 0, gpu));
        NEED(cu.cuCtxPopCurrent(&place.context));
        own.push_back(place.context);
        tandem_cuda_device_desc desc = TANDEM_CUDA_DEVICE_DESC_INIT;
        desc.context = place.context;
        if (n == 2) desc.ordinal = ordinal;
        NEED(tandem_cuda_device_create_with(&desc, nullptr, &place.device));
        desc.ordinal = gpus > 1 ? (ordinal + 1) % gpus : 1;
        tandem_device* none = nullptr;
        need(tandem_cuda_device_create_with(&desc, nullptr, &none) ==
                 (gpus > 1 ? TANDEM_ERROR_INVALID_ARGUMENT : TANDEM_ERROR_NO_DEVICE),
             "a context of another GPU is refused");
      }
      place.fill();
      places.push_back(place);
    }
  }

  // One after the other, another's context current: the bits of the first on every GPU of its kind.
  for (const Lines& lines : kLines) {
    std::vector<std::vector<uint32_t>> results;
    for (size_t i = 0; i < places.size(); ++i) {
      const In in(places[(i + 1) % places.size()].context);
      results.push_back(run(places[i], lines));
      if (places[i].name.substr(0, 10) == places[0].name.substr(0, 10))
        need(results[i] == results[0], places[i].name.c_str());
    }
    // All at once, a thread each, none with a current context.
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (size_t i = 0; i < places.size(); ++i)
      threads.emplace_back([&, i] {
        for (int n = 0; n < 5; ++n) wrong += run(places[i], lines) != results[i];
      });
    for (std::thread& t : threads) t.join();
    need(wrong == 0, "the same bits from threads side by side");
    std::printf("%s: the same bits in %zu contexts of %d GPU%s, one by one and side by side\n",
                lines.backward, places.size(), gpus, gpus > 1 ? "s" : "");
    timed(places[1], lines);
  }
  if (gpus > 1) wrong_stream(places[0], places[3]);

  for (Place& place : places) {
    std::printf("ran: %s\n", place.name.c_str());
    place.empty();
  }
  for (CUcontext context : own) NEED(cu.cuCtxDestroy(context));
  for (int i = 0; i < gpus; ++i) NEED(cu.cuDevicePrimaryCtxRelease(i));
  CUcontext none = nullptr;
  NEED(cu.cuCtxGetCurrent(&none));
  need(none == nullptr, "no context is current in the end");
  return 0;
}
