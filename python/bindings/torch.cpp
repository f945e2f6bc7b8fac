// SPDX-License-Identifier: MIT OR Apache-2.0
// torch's plain eager calls: eager_forward and eager_backward, operators of the stable ABI. Each
// reads its tensors, finds their plan, allocates and executes on the current stream, without
// Python. What it has no plan for it declines: it returns undefined tensors. The caller,
// tandem_attention/torch/_eager.py, then calls the library from Python, which makes the plan or
// raises, and has the plan remembered here.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <unordered_map>

#include "torch_calls.h"
#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#define TANDEM_TORCH_LOOKUP 1
#else
#define TANDEM_TORCH_LOOKUP 0
#endif
#if TANDEM_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace tandem::python {
namespace torch {

Torch g_torch;
std::string g_space;
Calls g_calls;

namespace {

// ---- torch's functions -----------------------------------------------------------------------

void raise_here(const char* problem) { throw std::runtime_error(problem); }

#if TANDEM_TORCH_LOOKUP
// Finds all functions, or says which one is not there.
std::string look_up(const std::string& folder) {
#ifdef __APPLE__
  const std::string suffix = ".dylib";
#else
  const std::string suffix = ".so";
#endif
  const auto open = [&](const char* name) {
    return dlopen((folder + "/" + name + suffix).c_str(), RTLD_LAZY | RTLD_NOLOAD);
  };
  void* const cpu = open("libtorch_cpu");
  void* const cuda = open("libtorch_cuda");
  if (!cpu) return "this torch has no libtorch_cpu in " + folder;
#define TANDEM_TORCH_FIND(library, result, name, arguments)                                \
  g_torch.name =                                                                           \
      library ? reinterpret_cast<decltype(g_torch.name)>(dlsym(library, #name)) : nullptr; \
  if (library && !g_torch.name) return "this torch has no " #name;
  TANDEM_TORCH_SHIMS(TANDEM_TORCH_FIND)
#undef TANDEM_TORCH_FIND
  g_torch.cpu = g_torch.aoti_torch_device_type_cpu();
  g_torch.cuda = g_torch.aoti_torch_device_type_cuda();
  g_torch.uint8 = g_torch.aoti_torch_dtype_uint8();
  g_torch.raise = raise_here;
  if (void* const library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD))
    if (void* const found = dlsym(library, "_ZSt21__throw_runtime_errorPKc"))
      g_torch.raise = reinterpret_cast<decltype(g_torch.raise)>(found);
  return {};
}
#else
std::string look_up(const std::string&) { return "the operators need a system with dlopen()"; }
#endif

int32_t dtype_code(const std::string& name) {
  if (name == "float32") return g_torch.aoti_torch_dtype_float32();
  if (name == "float16") return g_torch.aoti_torch_dtype_float16();
  if (name == "bfloat16") return g_torch.aoti_torch_dtype_bfloat16();
  if (name == "float64") return g_torch.aoti_torch_dtype_float64();
  throw harness::Error(TANDEM_ERROR_INVALID_ARGUMENT, "no operator makes arrays of " + name);
}

// ---- plans by what they depend on ------------------------------------------------------------

constexpr int64_t kMostDims = 4;

using Words = Some<const int64_t>;

uint64_t hash_of(Words words) {
  uint64_t h = 0x9e3779b97f4a7c15u;
  for (const int64_t word : words) {
    h = (h ^ uint64_t(word)) * 0xff51afd7ed558ccdu;
    h ^= h >> 32;
  }
  return h;
}

struct Output {
  int32_t dtype = -1;  // -1: not made
  int64_t dims = 0;
  std::array<int64_t, kMostDims> sizes{}, strides{};
};

struct Known {
  std::vector<int64_t> key;
  std::shared_ptr<Plan> plan;
  std::array<Output, kMostOutputs> outputs;
  size_t workspace = 0, alignment = 1;
  std::atomic<bool> captured = false;  // a graph replays it: it may not be destroyed
};

struct Store {
  std::mutex mutex;
  std::unordered_multimap<uint64_t, std::shared_ptr<Known>> known;  // by the hash of the key
  std::vector<std::shared_ptr<Known>> captured;
};
// Never destroyed: at the end of the process drivers may be gone before it.
Store* g_store = new Store;

thread_local std::vector<int64_t> t_missed;

// What a call's plan depends on, as it is put together. Where a tensor cannot be part of a key, the
// key is void.
class Key {
 public:
  void add(int64_t word) { words_[count_++] = word; }
  void add(const Tensor& tensor) {
    int64_t dims = 0, *sizes = nullptr, *strides = nullptr;
    int32_t dtype = 0, device = 0, index = 0;
    if (!tensor) return add(-1);
    const Handle h = tensor.get();
    if (g_torch.aoti_torch_get_dim(h, &dims) || dims > kMostDims ||
        g_torch.aoti_torch_get_sizes(h, &sizes) || g_torch.aoti_torch_get_strides(h, &strides) ||
        g_torch.aoti_torch_get_dtype(h, &dtype) || g_torch.aoti_torch_get_device_type(h, &device) ||
        g_torch.aoti_torch_get_device_index(h, &index)) {
      is_void_ = true;
      return;
    }
    add(dims << 48 | int64_t(dtype) << 32 | int64_t(device) << 16 | int64_t(uint16_t(index)));
    for (int64_t n = 0; n < dims; ++n) add(sizes[n]);
    for (int64_t n = 0; n < dims; ++n) add(strides[n]);
  }
  bool is_void() const { return is_void_; }
  Words words() const { return {words_.data(), count_}; }

 private:
  static constexpr size_t kMostTensors = 9, kMostNumbers = 4;
  std::array<int64_t, kMostTensors*(1 + 2 * kMostDims) + kMostNumbers> words_;
  size_t count_ = 0;
  bool is_void_ = false;
};

struct Place {
  int32_t type = 0, index = 0;
  bool on_cpu = false;
};

bool place_of(const Tensor& q, Place* place) {
  if (g_torch.aoti_torch_get_device_type(q.get(), &place->type) ||
      g_torch.aoti_torch_get_device_index(q.get(), &place->index))
    return false;
  place->on_cpu = place->type == g_torch.cpu;
  return place->on_cpu ||
         (place->type == g_torch.cuda && g_torch.aoti_torch_get_current_cuda_stream);
}

std::shared_ptr<Known> find_locked(const Store& store, Words key) {
  const auto [first, last] = store.known.equal_range(hash_of(key));
  for (auto at = first; at != last; ++at) {
    const std::vector<int64_t>& other = at->second->key;
    if (std::equal(key.begin(), key.end(), other.begin(), other.end())) return at->second;
  }
  return nullptr;
}

std::shared_ptr<Known> find(const Key& key) {
  if (key.is_void()) return nullptr;
  Store& store = *g_store;
  const std::lock_guard<std::mutex> lock(store.mutex);
  std::shared_ptr<Known> known = find_locked(store, key.words());
  if (!known) t_missed.assign(key.words().begin(), key.words().end());
  return known;
}

Tensor make(const Output& output, const Place& place) {
  Handle handle = nullptr;
  g_torch.aoti_torch_empty_strided(output.dims, output.sizes.data(), output.strides.data(),
                                   output.dtype, place.type, place.index, &handle);
  return Tensor(handle);
}

Tensor make_bytes(size_t bytes, const Place& place) {
  const int64_t size = int64_t(bytes), one = 1;
  Handle handle = nullptr;
  g_torch.aoti_torch_empty_strided(1, &size, &one, g_torch.uint8, place.type, place.index, &handle);
  return Tensor(handle);
}

// The outputs of a call, in their order; false: the device has no memory for them.
bool make_outputs(const Known& known, const Place& place, Made outputs) {
  for (size_t n = 0; n < outputs.size(); ++n) {
    if (known.outputs[n].dtype < 0) continue;
    outputs[n] = make(known.outputs[n], place);
    if (!outputs[n]) return false;
  }
  return true;
}

bool stream_of(const std::shared_ptr<Known>& known, const Place& place, tandem_stream* stream) {
  stream->handle = 0;
  if (place.on_cpu) return true;
  void* current = nullptr;
  if (g_torch.aoti_torch_get_current_cuda_stream(place.index, &current)) return false;
  stream->handle = uint64_t(reinterpret_cast<uintptr_t>(current));
#if TANDEM_WITH_CUDA
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(static_cast<cudaStream_t>(current), &status) != cudaSuccess)
    return false;
  if (status != cudaStreamCaptureStatusNone && !known->captured.exchange(true)) {
    const std::lock_guard<std::mutex> lock(g_store->mutex);
    g_store->captured.push_back(known);
  }
#endif
  return true;
}

bool execute(const std::shared_ptr<Known>& known, const Place& place, tandem_args& args) {
  Tensor space;  // from the tensors' own allocator, for the current stream
  if (known->workspace) {
    space = make_bytes(known->workspace, place);
    uint64_t address = space.buffer().handle;
    if (address % known->alignment) {
      space = make_bytes(known->workspace + known->alignment, place);
      address =
          (space.buffer().handle + known->alignment - 1) / known->alignment * known->alignment;
    }
    if (!address) return false;
    args.workspace.handle = address;
    args.workspace_size = known->workspace;
  }
  tandem_stream stream{};
  if (!stream_of(known, place, &stream)) return false;
  return tandem_execute(known->plan->plan, stream, &args) == TANDEM_OK;
}

Inputs take_inputs(const Value* stack) {
  Inputs in;
  in.q = take(stack[0]);
  in.k = take(stack[1]);
  in.v = take(stack[2]);
  in.bias = take_optional(stack[3]);
  in.keep = take_optional(stack[4]);
  in.options = int64_t(stack[5]);
  in.seed = stack[6];
  in.offset = uint32_t(stack[7]);
  return in;
}

bool start(const Inputs& in, int64_t gradients, Place* place, Key* key) {
  t_missed.clear();
  uint32_t threads = 0;
  if (!place_of(in.q, place)) return false;
  if (place->on_cpu && g_torch.torch_get_num_threads(&threads)) return false;
  key->add(gradients);
  key->add(in.options);
  key->add(threads);
  for (const Tensor* t : {&in.q, &in.k, &in.v, &in.bias, &in.keep}) key->add(*t);
  return true;
}

void fill(const Inputs& in, tandem_args& args) {
  args.q = in.q.buffer();
  args.k = in.k.buffer();
  args.v = in.v.buffer();
  args.bias = in.bias.buffer();
  args.keep = in.keep.buffer();
  args.dropout_seed = in.seed;
  args.dropout_offset = in.offset;
}

}  // namespace

bool forward(const Inputs& in, Made made) {
  Place place;
  Key key;
  if (!start(in, -1, &place, &key)) return false;
  const std::shared_ptr<Known> known = find(key);
  if (!known || !make_outputs(*known, place, made)) return false;
  tandem_args args = TANDEM_ARGS_INIT;
  fill(in, args);
  args.o = made[0].buffer();
  args.lse = made[1].buffer();
  return execute(known, place, args);
}

bool backward(const Outer& outer, const Inputs& in, Made made) {
  Place place;
  Key key;
  if (!start(in, outer.gradients, &place, &key)) return false;
  for (const Tensor* t : {&outer.d_o, &outer.o, &outer.lse, &outer.d_lse}) key.add(*t);
  const std::shared_ptr<Known> known = find(key);
  if (!known || !make_outputs(*known, place, made)) return false;
  tandem_args args = TANDEM_ARGS_INIT;
  fill(in, args);
  args.d_o = outer.d_o.buffer();
  args.o = outer.o.buffer();
  args.lse = outer.lse.buffer();
  args.d_lse = outer.d_lse.buffer();
  args.d_q = made[0].buffer();
  args.d_k = made[1].buffer();
  args.d_v = made[2].buffer();
  args.d_bias = made[3].buffer();
  return execute(known, place, args);
}

void give(bool served, std::atomic<uint64_t>& count, Made made, Value* stack) {
  ++(served ? count : g_calls.declined);
  for (size_t n = 0; n < made.size(); ++n)
    stack[n] = served && made[n] ? made[n].release() : undefined();
}

void forget_missed() { t_missed.clear(); }

const char* thrown_by(void (*call)(Value*), Value* stack) {
  thread_local std::string text;
  try {
    call(stack);
    return nullptr;
  } catch (const std::exception& error) {
    text = error.what();
  }
  return text.c_str();
}

std::string implement(const char* space, const char* key, const char* name, Kernel kernel) {
  Library library = nullptr;  // kept for ever, as the operators are
  if (g_torch.aoti_torch_library_init_impl(space, key, __FILE__, __LINE__, &library) ||
      g_torch.torch_library_impl(library, name, kernel, shim::kConvention))
    return std::string("torch takes no kernel of ") + name + " for " + key;
  return {};
}

namespace {

// (q, k, v, bias, keep, options, seed, offset) -> (o, lse)
void call_forward(Value* stack) {
  const Inputs in = take_inputs(stack);
  std::array<Tensor, 2> made;
  give(forward(in, all_of(made)), g_calls.forward, all_of(made), stack);
}

// (d_o, o, lse, d_lse, gradients, q, k, v, bias, keep, options, seed, offset) -> (d_q, d_k, d_v,
// d_bias)
void call_backward(Value* stack) {
  Outer outer;
  outer.d_o = take(stack[0]);
  outer.o = take(stack[1]);
  outer.lse = take(stack[2]);
  outer.d_lse = take_optional(stack[3]);
  outer.gradients = int64_t(stack[4]);
  const Inputs in = take_inputs(stack + 5);
  std::array<Tensor, kMostOutputs> made;
  give(backward(outer, in, all_of(made)), g_calls.backward, all_of(made), stack);
}

std::vector<int64_t> words_of(const std::string& key) {
  std::vector<int64_t> words(key.size() / sizeof(int64_t));
  std::memcpy(words.data(), key.data(), words.size() * sizeof(int64_t));
  return words;
}

}  // namespace
}  // namespace torch

std::string torch_connect(const std::string& folder, const std::string& space) {
  torch::g_space = space;
  std::string problem = torch::look_up(folder);
  for (const char* device : {"CPU", "CUDA"}) {
    if (problem.empty())
      problem = torch::implement(space.c_str(), device, "eager_forward",
                                 torch::kernel<torch::call_forward>);
    if (problem.empty())
      problem = torch::implement(space.c_str(), device, "eager_backward",
                                 torch::kernel<torch::call_backward>);
  }
  return problem;
}

using namespace torch;

std::string torch_missed() {
  return {reinterpret_cast<const char*>(t_missed.data()), t_missed.size() * sizeof(int64_t)};
}

size_t torch_remember(const std::string& key, std::shared_ptr<Plan> plan,
                      const std::vector<TorchOutput>& outputs) {
  auto known = std::make_shared<Known>();
  known->key = words_of(key);
  known->workspace = plan->plan.info().workspace_size;
  known->alignment = std::max<size_t>(1, plan->plan.info().workspace_alignment);
  known->plan = std::move(plan);
  for (size_t n = 0; n < std::min(outputs.size(), kMostOutputs); ++n) {
    const TorchOutput& from = outputs[n];
    if (from.dtype.empty()) continue;
    if (from.sizes.size() > size_t(kMostDims) || from.sizes.size() != from.strides.size())
      throw harness::Error(TANDEM_ERROR_INVALID_ARGUMENT, "an output has too many dimensions");
    Output& to = known->outputs[n];
    to.dtype = dtype_code(from.dtype);
    to.dims = int64_t(from.sizes.size());
    std::copy(from.sizes.begin(), from.sizes.end(), to.sizes.begin());
    std::copy(from.strides.begin(), from.strides.end(), to.strides.begin());
  }
  const std::lock_guard<std::mutex> lock(g_store->mutex);
  const Words words{known->key.data(), known->key.size()};
  if (!find_locked(*g_store, words)) g_store->known.emplace(hash_of(words), std::move(known));
  return g_store->known.size();
}

void torch_forget(bool captured) {
  // Destroyed behind the lock.
  std::unordered_multimap<uint64_t, std::shared_ptr<Known>> known;
  std::vector<std::shared_ptr<Known>> kept;
  const std::lock_guard<std::mutex> lock(g_store->mutex);
  known.swap(g_store->known);
  if (captured) kept.swap(g_store->captured);
}

void torch_abandon() {
  g_store = new Store;
  for (auto* count : {&g_calls.forward, &g_calls.backward, &g_calls.declined}) *count = 0;
}

TorchCalls torch_calls() { return {g_calls.forward, g_calls.backward, g_calls.declined}; }

}  // namespace tandem::python
