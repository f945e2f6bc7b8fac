// SPDX-License-Identifier: MIT OR Apache-2.0
// torch's plain eager calls: tandem::eager_forward and tandem::eager_backward, operators of the
// stable ABI. Each reads its tensors, finds their plan, allocates and executes on the current
// stream, without Python. What it has no plan for it declines: it returns undefined tensors. The
// caller, tandem_attention/torch/_eager.py, then calls the library from Python, which makes the
// plan or raises, and has the plan remembered here.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <unordered_map>

#include "device.h"
#include "torch_shim.h"
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
namespace {

using shim::Handle;
using shim::Kernel;
using shim::Library;
using shim::List;
using shim::Status;
using shim::Value;

// ---- torch's functions -----------------------------------------------------------------------

struct Torch {
#define TANDEM_TORCH_MEMBER(library, result, name, arguments) result(*name) arguments = nullptr;
  TANDEM_TORCH_SHIMS(TANDEM_TORCH_MEMBER)
#undef TANDEM_TORCH_MEMBER
  int32_t cpu = 0, cuda = 0;  // numbers of device types
  int32_t uint8 = 0;
};
Torch g_torch;

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

// ---- tensors ---------------------------------------------------------------------------------

constexpr int64_t kMostDims = 4;

// One tensor, and what a plan depends on. Owns the handle.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Handle handle) : handle_(handle) {}
  Tensor(Tensor&& other) noexcept { *this = std::move(other); }
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() {
    if (handle_) g_torch.aoti_torch_delete_tensor_object(handle_);
  }
  explicit operator bool() const { return handle_ != nullptr; }
  Handle get() const { return handle_; }
  Value release() { return Value(reinterpret_cast<uintptr_t>(std::exchange(handle_, nullptr))); }
  tandem_buffer buffer() const {
    void* address = nullptr;
    if (!handle_ || g_torch.aoti_torch_get_data_ptr(handle_, &address)) return {0, 0};
    return {uint64_t(reinterpret_cast<uintptr_t>(address)), 0};
  }

 private:
  Handle handle_ = nullptr;
};

Tensor take(Value value) { return Tensor(reinterpret_cast<Handle>(uintptr_t(value))); }

Tensor take_optional(Value value) {
  const std::unique_ptr<Value> inner(reinterpret_cast<Value*>(uintptr_t(value)));
  return inner ? take(*inner) : Tensor();
}

Value undefined() {
  Handle handle = nullptr;
  g_torch.aoti_torch_new_uninitialized_tensor(&handle);
  return Value(reinterpret_cast<uintptr_t>(handle));
}

// ---- plans by what they depend on ------------------------------------------------------------

// A view of some elements of an array.
template <typename T>
struct Some {
  T* data = nullptr;
  size_t count = 0;
  T* begin() const { return data; }
  T* end() const { return data + count; }
  T& operator[](size_t n) const { return data[n]; }
  size_t size() const { return count; }
};
using Words = Some<const int64_t>;
using Made = Some<Tensor>;

template <size_t kCount>
Made all_of(std::array<Tensor, kCount>& tensors) {
  return {tensors.data(), kCount};
}

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

constexpr size_t kMostOutputs = 4;

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
  std::atomic<uint64_t> forward = 0, backward = 0, declined = 0;
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

// What both directions read, and the numbers that go with it.
struct Inputs {
  Tensor q, k, v, bias, keep;
  int64_t options = 0;  // the number of the call's options
  uint64_t seed = 0;
  uint32_t offset = 0;
};

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

// Whether the elements of a row lie side by side: kernels for others are slow.
bool has_dense_rows(const Tensor& t) {
  int64_t dims = 0, *sizes = nullptr, *strides = nullptr;
  if (g_torch.aoti_torch_get_dim(t.get(), &dims) || dims < 1 ||
      g_torch.aoti_torch_get_sizes(t.get(), &sizes) ||
      g_torch.aoti_torch_get_strides(t.get(), &strides))
    return false;
  return strides[dims - 1] == 1 || sizes[dims - 1] == 1;
}

struct Outer {
  Tensor d_o, o, lse, d_lse;
  int64_t gradients = 0;
};

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

// Puts the results on the stack, or undefined tensors where the call is declined.
void give(bool served, std::atomic<uint64_t>& count, Made made, Value* stack) {
  ++(served ? count : g_store->declined);
  for (size_t n = 0; n < made.size(); ++n)
    stack[n] = served && made[n] ? made[n].release() : undefined();
}

// (q, k, v, bias, keep, options, seed, offset) -> (o, lse)
void forward_kernel(Value* stack, uint64_t, uint64_t) {
  const Inputs in = take_inputs(stack);
  std::array<Tensor, 2> made;
  give(forward(in, all_of(made)), g_store->forward, all_of(made), stack);
}

// (d_o, o, lse, d_lse, gradients, q, k, v, bias, keep, options, seed, offset) -> (d_q, d_k, d_v,
// d_bias)
void backward_kernel(Value* stack, uint64_t, uint64_t) {
  Outer outer;
  outer.d_o = take(stack[0]);
  outer.o = take(stack[1]);
  outer.lse = take(stack[2]);
  outer.d_lse = take_optional(stack[3]);
  outer.gradients = int64_t(stack[4]);
  const Inputs in = take_inputs(stack + 5);
  std::array<Tensor, kMostOutputs> made;
  give(backward(outer, in, all_of(made)), g_store->backward, all_of(made), stack);
}

// ---- with a formula in C++ -------------------------------------------------------------------
// The stable ABI registers kernels, not formulas. But ATen has an operator of attention that is
// made to be overridden: a formula, and no kernel for CPU and CUDA. These are its kernels for calls
// of q, k, v and bias. The number of the options travels as its dropout, below 0 where the call is
// ours.

constexpr char kFormula[] = "_scaled_dot_product_fused_attention_overrideable";
constexpr char kFormulaBackward[] = "_scaled_dot_product_fused_attention_overrideable_backward";

double as_double(Value value) {
  double number = 0;
  std::memcpy(&number, &value, sizeof(number));
  return number;
}

// The number of our options in the operator's dropout.
int64_t options_of(Value dropout) {
  const double tag = as_double(dropout);
  if (!(tag < 0)) throw std::runtime_error("this operator is overridden by tandem_attention alone");
  return int64_t(-tag) - 1;
}

void drop(Value value) { take(value); }

bool is_defined(const Tensor& tensor) {
  bool defined = false;
  return tensor && !g_torch.aoti_torch_is_defined(tensor.get(), &defined) && defined;
}

Value optional(Tensor& tensor) {
  if (!tensor) return 0;
  return Value(reinterpret_cast<uintptr_t>(new Value(tensor.release())));
}

// What Python gives in place of results that it could not make has two dimensions.
bool has_failed(Value mark) {
  int64_t dims = 0;
  return g_torch.aoti_torch_get_dim(take(mark).get(), &dims) || dims != 1;
}

// What the operator declines. It stays one call of ATen's operator, so that a checkpoint which
// repeats it saves the same tensors. Undefined tensors: Python has kept the error.
void forward_in_python(Inputs& in, Value* made) {
  Value stack[5] = {in.q.release(), in.k.release(), in.v.release(), optional(in.bias),
                    Value(in.options)};
  bool failed = g_torch.torch_call_dispatcher("tandem::eager_forward_in_python", "", stack,
                                              shim::kConvention) != 0;
  if (!failed) failed = has_failed(stack[2]);
  for (size_t n = 0; n < 2; ++n) made[n] = failed ? undefined() : stack[n];
}

// (query, key, value, attn_bias, dropout_p, is_causal, return_debug_mask, scale) -> (output,
// logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, philox_seed, philox_offset, debug_attn_mask)
void formula_kernel(Value* stack, uint64_t, uint64_t) {
  Inputs in;
  in.q = take(stack[0]);
  in.k = take(stack[1]);
  in.v = take(stack[2]);
  in.bias = take_optional(stack[3]);
  delete reinterpret_cast<Value*>(uintptr_t(stack[7]));
  in.options = options_of(stack[4]);
  std::array<Tensor, 2> made;
  if (forward(in, all_of(made))) {
    give(true, g_store->forward, all_of(made), stack);
  } else {
    ++g_store->declined;
    forward_in_python(in, stack);
  }
  for (const size_t n : {2, 3, 6, 7, 8}) stack[n] = undefined();
  stack[4] = stack[5] = 0;
}

// Whether a derivative of forward mode goes along: it is refused, by Python.
bool has_tangent(const Tensor& t) {
  Handle copy = nullptr;
  if (g_torch.aoti_torch_new_tensor_handle(t.get(), &copy)) return true;
  Value stack[2] = {Value(reinterpret_cast<uintptr_t>(copy)), 0};
  if (g_torch.torch_call_dispatcher("aten::_unpack_dual", "", stack, shim::kConvention))
    return true;
  drop(stack[0]);
  return is_defined(take(stack[1]));
}

// What the C++ operator declines; graphs of derivatives, and batches of gradients.
bool backward_in_python(Outer& outer, Inputs& in, Value* made) {
  Value stack[9] = {outer.d_o.release(), outer.o.release(), outer.lse.release(),
                    in.q.release(),      in.k.release(),    in.v.release()};
  stack[6] = optional(in.bias);
  stack[7] = Value(outer.gradients);
  stack[8] = Value(in.options);
  if (g_torch.torch_call_dispatcher("tandem::eager_backward_in_python", "", stack,
                                    shim::kConvention))
    return false;
  const bool failed = has_failed(stack[kMostOutputs]);  // Python raises at the end of the backward
  for (size_t n = 0; n < kMostOutputs; ++n) {
    Tensor gradient = take(stack[n]);
    made[n] = failed || !(outer.gradients >> n & 1) ? undefined() : gradient.release();
  }
  return true;
}

// (grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k,
// max_q, max_k, dropout_p, is_causal, philox_seed, philox_offset, scale) -> (grad_query, grad_key,
// grad_value, grad_attn_bias)
void formula_backward(Value* stack, bool to_python, bool above_autograd) {
  t_missed.clear();
  Outer outer;
  Inputs in;
  outer.d_o = take(stack[0]);
  in.q = take(stack[1]);
  in.k = take(stack[2]);
  in.v = take(stack[3]);
  in.bias = take(stack[4]);
  if (!is_defined(in.bias)) in.bias = Tensor();
  const auto wanted = reinterpret_cast<List>(uintptr_t(stack[5]));
  for (size_t n = 0; n < kMostOutputs; ++n) {
    Value bit = 0;
    g_torch.torch_list_get_item(wanted, n, &bit);
    outer.gradients |= int64_t(bit & 1) << n;
  }
  g_torch.torch_delete_list(wanted);
  outer.o = take(stack[6]);
  outer.lse = take(stack[7]);
  for (const size_t n : {8, 9, 14, 15}) drop(stack[n]);
  delete reinterpret_cast<Value*>(uintptr_t(stack[16]));
  in.options = options_of(stack[12]);
  std::array<Tensor, kMostOutputs> made;
  to_python = to_python || !has_dense_rows(outer.d_o) || (above_autograd && has_tangent(outer.d_o));
  if (!to_python && backward(outer, in, all_of(made))) {
    give(true, g_store->backward, all_of(made), stack);
    return;
  }
  ++g_store->declined;
  if (!backward_in_python(outer, in, stack))
    throw std::runtime_error("the backward of attention failed");
}

void formula_backward_kernel(Value* stack, uint64_t, uint64_t) {
  formula_backward(stack, false, false);
}
void formula_backward_autograd(Value* stack, uint64_t, uint64_t) {
  formula_backward(stack, g_torch.aoti_torch_grad_mode_is_enabled(), true);
}
void formula_backward_batched(Value* stack, uint64_t, uint64_t) {
  formula_backward(stack, true, false);
}

std::vector<int64_t> words_of(const std::string& key) {
  std::vector<int64_t> words(key.size() / sizeof(int64_t));
  std::memcpy(words.data(), key.data(), words.size() * sizeof(int64_t));
  return words;
}

}  // namespace

std::string torch_connect(const std::string& folder) {
  if (std::string missing = look_up(folder); !missing.empty()) return missing;
  for (const char* device : {"CPU", "CUDA"}) {
    Library library = nullptr;  // kept for ever, as the operators are
    if (g_torch.aoti_torch_library_init_impl("tandem", device, __FILE__, __LINE__, &library) ||
        g_torch.torch_library_impl(library, "eager_forward", forward_kernel, shim::kConvention) ||
        g_torch.torch_library_impl(library, "eager_backward", backward_kernel, shim::kConvention))
      return std::string("torch takes no operators for ") + device;
  }
  return {};
}

std::string torch_override() {
  const struct {
    const char* key;
    const char* name;
    Kernel kernel;
  } rows[] = {{"CPU", kFormula, formula_kernel},
              {"CUDA", kFormula, formula_kernel},
              {"CPU", kFormulaBackward, formula_backward_kernel},
              {"CUDA", kFormulaBackward, formula_backward_kernel},
              {"AutogradCPU", kFormulaBackward, formula_backward_autograd},
              {"AutogradCUDA", kFormulaBackward, formula_backward_autograd},
              {"Batched", kFormulaBackward, formula_backward_batched},
              {"FuncTorchBatched", kFormulaBackward, formula_backward_batched}};
  for (const auto& row : rows) {
    Library library = nullptr;
    if (g_torch.aoti_torch_library_init_impl("aten", row.key, __FILE__, __LINE__, &library) ||
        g_torch.torch_library_impl(library, row.name, row.kernel, shim::kConvention))
      return std::string("torch takes no kernel for ") + row.key;
  }
  return {};
}

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

void torch_abandon() { g_store = new Store; }

TorchCalls torch_calls() { return {g_store->forward, g_store->backward, g_store->declined}; }

}  // namespace tandem::python
