// SPDX-License-Identifier: MIT OR Apache-2.0
// The functions of torch's stable C ABI that bindings/torch*.cpp call. They are declared here and
// looked up in the torch that the process has loaded. So the package is built without torch, and
// one build serves every torch from 2.10 on. Where torch's headers are at hand,
// python/tests/torch_shim.cpp holds these declarations against them.
#ifndef TANDEM_PYTHON_TORCH_SHIM_H
#define TANDEM_PYTHON_TORCH_SHIM_H
#include <cstddef>
#include <cstdint>

struct AtenTensorOpaque;
struct StableListOpaque;
struct TorchLibraryOpaque;

namespace tandem::python::shim {

// An argument or a result of an operator: a number or a Handle. An optional argument is a pointer
// to a Value, or 0. The operator deletes it.
using Value = uint64_t;
using Handle = AtenTensorOpaque*;
using Library = TorchLibraryOpaque*;
using List = StableListOpaque*;
using Kernel = void (*)(Value* stack, uint64_t inputs, uint64_t outputs);
using Status = int32_t;  // 0: done

// The convention of Value, as operators tell torch when they are registered: that of torch 2.10.
constexpr uint64_t kConvention = uint64_t{2} << 56 | uint64_t{10} << 48;

// X(library, result, name, arguments): library is the file that has the function.
#define TANDEM_TORCH_SHIMS(X)                                                         \
  X(cpu, int32_t, aoti_torch_device_type_cpu, ())                                     \
  X(cpu, int32_t, aoti_torch_device_type_cuda, ())                                    \
  X(cpu, int32_t, aoti_torch_dtype_float32, ())                                       \
  X(cpu, int32_t, aoti_torch_dtype_float16, ())                                       \
  X(cpu, int32_t, aoti_torch_dtype_bfloat16, ())                                      \
  X(cpu, int32_t, aoti_torch_dtype_float64, ())                                       \
  X(cpu, int32_t, aoti_torch_dtype_uint8, ())                                         \
  X(cpu, Status, aoti_torch_get_dim, (Handle, int64_t*))                              \
  X(cpu, Status, aoti_torch_get_sizes, (Handle, int64_t**))                           \
  X(cpu, Status, aoti_torch_get_strides, (Handle, int64_t**))                         \
  X(cpu, Status, aoti_torch_get_dtype, (Handle, int32_t*))                            \
  X(cpu, Status, aoti_torch_get_device_type, (Handle, int32_t*))                      \
  X(cpu, Status, aoti_torch_get_device_index, (Handle, int32_t*))                     \
  X(cpu, Status, aoti_torch_get_data_ptr, (Handle, void**))                           \
  X(cpu, Status, aoti_torch_empty_strided,                                            \
    (int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, Handle*))    \
  X(cpu, Status, aoti_torch_new_uninitialized_tensor, (Handle*))                      \
  X(cpu, Status, aoti_torch_delete_tensor_object, (Handle))                           \
  X(cpu, Status, aoti_torch_library_init_impl,                                        \
    (const char*, const char*, const char*, uint32_t, Library*))                      \
  X(cpu, Status, torch_library_impl, (Library, const char*, Kernel, uint64_t))        \
  X(cpu, Status, torch_call_dispatcher, (const char*, const char*, Value*, uint64_t)) \
  X(cpu, Status, torch_list_get_item, (List, size_t, Value*))                         \
  X(cpu, Status, torch_delete_list, (List))                                           \
  X(cpu, Status, aoti_torch_new_tensor_handle, (Handle, Handle*))                     \
  X(cpu, Status, aoti_torch_is_defined, (Handle, bool*))                              \
  X(cpu, bool, aoti_torch_grad_mode_is_enabled, ())                                   \
  X(cpu, Status, torch_get_num_threads, (uint32_t*))                                  \
  X(cuda, Status, aoti_torch_get_current_cuda_stream, (int32_t, void**))

}  // namespace tandem::python::shim
#endif
