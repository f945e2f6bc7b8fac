// SPDX-License-Identifier: MIT OR Apache-2.0
// Several GPUs in one process, on a runtime that has two: each call launches in its device's
// context, on kernels that were loaded there, and leaves the thread as it found it. The emulated
// driver refuses a function or a stream of another context.
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "include/cuda_runtime.h"
#include "tandem/tandem_cuda.h"

namespace {

constexpr int64_t kQ = 2 * 20 * 16, kK = 23 * 16;  // elements of the tensors of these
constexpr const char* kForward = "fwd f32 b1 hq2 hk1 sq20 sk23 d16 dv16 causal_bottom_right";
constexpr const char* kBackward = "bwd f32 b1 hq2 hk1 sq20 sk23 d16 dv16 causal_bottom_right";

struct TwoGpus {
  TwoGpus() { simt::devices() = 2; }
  ~TwoGpus() { simt::devices() = 1; }
};

// Buffers of one who executes.
struct Room {
  std::vector<float> q, k, v, o, d_o, d_q, d_k, d_v, lse;
  std::vector<float> workspace_memory;
  tandem_args args = TANDEM_ARGS_INIT;

  explicit Room(uint64_t workspace_size) : workspace_memory(workspace_size / 4 + 64) {
    const auto give = [](std::vector<float>* x, int64_t count, float first) {
      for (int64_t n = 0; n < count; ++n)
        x->push_back(first == 0 ? NAN : first * float((n * 37 + 11) % 64 - 32) / 64);
      return tandem_cuda_buffer(x->data());
    };
    args.q = give(&q, kQ, 1), args.k = give(&k, kK, 2), args.v = give(&v, kK, 3);
    args.d_o = give(&d_o, kQ, 4), args.o = give(&o, kQ, 0), args.lse = give(&lse, 2 * 20, 0);
    args.d_q = give(&d_q, kQ, 0), args.d_k = give(&d_k, kK, 0), args.d_v = give(&d_v, kK, 0);
    args.workspace.handle = (uint64_t(uintptr_t(workspace_memory.data())) + 255) / 256 * 256;
    args.workspace_size = workspace_size;
  }
  std::vector<float> results() const {
    std::vector<float> all;
    for (const auto* x : {&o, &lse, &d_q, &d_k, &d_v}) all.insert(all.end(), x->begin(), x->end());
    return all;
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A tandem_device in a context, with plans.
struct Place {
  int gpu;
  CUcontext context;
  tandem_device* device = nullptr;
  tandem_plan *forward = nullptr, *backward = nullptr;
  uint64_t workspace_size = 0;

  void plan() {
    for (auto [line, to] : {std::pair(kForward, &forward), std::pair(kBackward, &backward)}) {
      tandem_problem problem;
      REQUIRE(tandem_problem_parse(line, &problem) == TANDEM_OK);
      REQUIRE(tandem_plan_create(device, &problem, to) == TANDEM_OK);
      tandem_plan_info info{};
      info.struct_size = sizeof info;
      REQUIRE(tandem_plan_get_info(*to, &info) == TANDEM_OK);
      workspace_size = std::max(workspace_size, info.workspace_size);
    }
  }
  // Forward and backward on a stream of the context. "" or what went wrong.
  std::string run(Room* room) const {
    const tandem_stream stream = tandem_cuda_stream(simt::stream_of(context));
    for (const tandem_plan* p : {forward, backward})
      if (tandem_execute(p, stream, &room->args) != TANDEM_OK) return tandem_last_message();
    return "";
  }
};

std::vector<Place> open_places() {
  std::vector<Place> places;
  for (int gpu : {0, 1}) {
    places.push_back({gpu, simt::primary(gpu)});
    REQUIRE(tandem_cuda_device_create(gpu, nullptr, &places.back().device) == TANDEM_OK);
    places.push_back({gpu, simt::context_of(gpu, 77)});  // of the application's own
    tandem_cuda_device_desc desc = TANDEM_CUDA_DEVICE_DESC_INIT;
    desc.context = places.back().context;
    desc.ordinal = 1 - gpu;
    tandem_device* none = nullptr;
    CHECK(tandem_cuda_device_create_with(&desc, nullptr, &none) == TANDEM_ERROR_INVALID_ARGUMENT);
    CHECK(none == nullptr);
    desc.ordinal = -1;
    REQUIRE(tandem_cuda_device_create_with(&desc, nullptr, &places.back().device) == TANDEM_OK);
  }
  for (Place& place : places) place.plan();
  return places;
}

void close_places(std::vector<Place>* places) {
  for (Place& place : *places) {
    tandem_plan_destroy(place.forward);
    tandem_plan_destroy(place.backward);
    tandem_device_destroy(place.device);
  }
}

}  // namespace

TEST_CASE("two GPUs: a device for each and a context of one's own on each") {
  const TwoGpus two;
  tandem_device* none = nullptr;
  CHECK(tandem_cuda_device_create(2, nullptr, &none) == TANDEM_ERROR_NO_DEVICE);
  const simt::Contexts before = simt::contexts();
  std::vector<Place> places = open_places();
  CHECK(simt::contexts() == before);
  CHECK(simt::retained(0) == 1);
  CHECK(simt::retained(1) == 1);

  Room first(places[0].workspace_size);
  REQUIRE(places[0].run(&first) == "");
  for (const Place& place : places)
    for (const Place& other : places) {  // whose context the caller has
      simt::contexts() = {other.context};
      Room room(place.workspace_size);
      const int here = simt::launches(place.gpu), there = simt::launches(1 - place.gpu);
      REQUIRE(place.run(&room) == "");
      CHECK(same_bits(room.results(), first.results()));
      CHECK(simt::launches(place.gpu) > here);
      CHECK(simt::launches(1 - place.gpu) == there);
      CHECK(simt::contexts() == simt::Contexts{other.context});
      if (other.context == place.context) continue;
      CHECK(tandem_execute(place.forward, tandem_cuda_stream(simt::stream_of(other.context)),
                           &room.args) == TANDEM_ERROR_INVALID_ARGUMENT);
      CHECK(std::strstr(tandem_last_message(), "context") != nullptr);
      CHECK(simt::contexts() == simt::Contexts{other.context});
    }
  simt::contexts() = before;
  close_places(&places);
  CHECK(simt::contexts() == before);
  CHECK(simt::retained(0) == 0);
  CHECK(simt::retained(1) == 0);
}

TEST_CASE("two GPUs: plans of both from many threads, made and executed side by side") {
  const TwoGpus two;
  std::vector<Place> places = open_places();
  Room first(places[0].workspace_size);
  REQUIRE(places[0].run(&first) == "");
  constexpr int kThreads = 6, kRounds = 4;
  std::vector<std::string> wrong(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      // Half of them have a context, and not the one that they use first.
      if (t % 2) simt::contexts() = {places[size_t(t + 1) % places.size()].context};
      const simt::Contexts before = simt::contexts();
      for (int n = 0; n < kRounds; ++n) {
        const Place& place = places[size_t(t + n) % places.size()];
        Room room(place.workspace_size);
        wrong[size_t(t)] += place.run(&room);
        if (!same_bits(room.results(), first.results())) wrong[size_t(t)] += "other bits; ";
        tandem_problem problem;
        tandem_plan* plan = nullptr;
        if (tandem_problem_parse(kForward, &problem) != TANDEM_OK) wrong[size_t(t)] += "parse; ";
        problem.scale = 1 + float(t * kRounds + n) / 64;  // a new plan
        if (tandem_plan_create(place.device, &problem, &plan) != TANDEM_OK ||
            tandem_execute(plan, tandem_cuda_stream(simt::stream_of(place.context)), &room.args) !=
                TANDEM_OK)
          wrong[size_t(t)] += tandem_last_message();
        tandem_plan_destroy(plan);
        if (!(simt::contexts() == before)) wrong[size_t(t)] += "another context is current; ";
      }
    });
  for (std::thread& t : threads) t.join();
  for (const std::string& w : wrong) CHECK(w == "");
  close_places(&places);
  CHECK(simt::retained(0) == 0);
  CHECK(simt::retained(1) == 0);
}
