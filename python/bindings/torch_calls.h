// SPDX-License-Identifier: MIT OR Apache-2.0
// What the operators of torch have in common (torch.cpp): torch's functions, its tensors as the
// stable ABI hands them over, and the two calls, which find their plan and execute it.
#ifndef TANDEM_PYTHON_TORCH_CALLS_H
#define TANDEM_PYTHON_TORCH_CALLS_H
#include <array>
#include <atomic>
#include <memory>
#include <utility>

#include "device.h"
#include "torch_shim.h"

namespace tandem::python::torch {

using shim::Handle;
using shim::Kernel;
using shim::Library;
using shim::List;
using shim::Status;
using shim::Value;

struct Torch {
#define TANDEM_TORCH_MEMBER(library, result, name, arguments) result(*name) arguments = nullptr;
  TANDEM_TORCH_SHIMS(TANDEM_TORCH_MEMBER)
#undef TANDEM_TORCH_MEMBER
  int32_t cpu = 0, cuda = 0;  // numbers of device types
  int32_t uint8 = 0;
  void (*raise)(const char*) = nullptr;
};
extern Torch g_torch;
// The namespace of this copy's operators.
extern std::string g_space;

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

inline Tensor take(Value value) { return Tensor(reinterpret_cast<Handle>(uintptr_t(value))); }

inline Tensor take_optional(Value value) {
  const std::unique_ptr<Value> inner(reinterpret_cast<Value*>(uintptr_t(value)));
  return inner ? take(*inner) : Tensor();
}

inline Value undefined() {
  Handle handle = nullptr;
  g_torch.aoti_torch_new_uninitialized_tensor(&handle);
  return Value(reinterpret_cast<uintptr_t>(handle));
}

inline Value optional(Tensor& tensor) {
  if (!tensor) return 0;
  return Value(reinterpret_cast<uintptr_t>(new Value(tensor.release())));
}

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
using Made = Some<Tensor>;

template <size_t kCount>
inline Made all_of(std::array<Tensor, kCount>& tensors) {
  return {tensors.data(), kCount};
}

constexpr size_t kMostOutputs = 4;

// What both directions read, and the numbers that go with it.
struct Inputs {
  Tensor q, k, v, bias, keep;
  int64_t options = 0;  // the number of the call's options
  uint64_t seed = 0;
  uint32_t offset = 0;
};

struct Outer {
  Tensor d_o, o, lse, d_lse;
  int64_t gradients = 0;
};

// o and lse; d_q, d_k, d_v and d_bias. False: there is no plan for the call, or it failed.
bool forward(const Inputs& in, Made made);
bool backward(const Outer& outer, const Inputs& in, Made made);
// The calls of this process by who has served them.
struct Calls {
  std::atomic<uint64_t> forward = 0, backward = 0, declined = 0;
};
extern Calls g_calls;
// Puts the results on the stack, or undefined tensors where the call is declined; counts it.
void give(bool served, std::atomic<uint64_t>& count, Made made, Value* stack);
// As if this thread's last call had had a plan.
void forget_missed();

// What a call throws, as text; null: it returned.
[[gnu::noinline]] const char* thrown_by(void (*call)(Value*), Value* stack);
// A kernel that throws what torch can catch. A wheel has a C++ library of its own inside, and torch
// cannot unwind a frame with destructors or handlers of that: this one has none.
template <void (*kCall)(Value*)>
void kernel(Value* stack, uint64_t, uint64_t) {
  if (const char* const problem = thrown_by(kCall, stack)) g_torch.raise(problem);
}
// Registers the kernel of an operator for a dispatch key; "" or why torch does not take it.
std::string implement(const char* space, const char* key, const char* name, Kernel kernel);

}  // namespace tandem::python::torch
#endif
