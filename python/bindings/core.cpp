// SPDX-License-Identifier: MIT OR Apache-2.0
// tandem_attention._core: devices, problems and plans of the C API for Python. The Python files
// beside it know shapes and frameworks; this file knows addresses.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdio>

#include "device.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tandem::python {
namespace {

using harness::Error;

// Modules of one domain share types. Where this function lies, so that each copy of the package has
// its own.
const char* domain() {
  static char place[64];
  std::snprintf(place, sizeof place, "tandem_attention %p", reinterpret_cast<void*>(&domain));
  return place;
}

// The exception that Python raises for a status. errors is the full name of the module _errors.
void translate(const std::exception_ptr& pointer, void* errors) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    const nb::object instance =
        nb::module_::import_(static_cast<const std::string*>(errors)->c_str())
            .attr("from_status")(int(error.code()), error.what());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(instance.ptr())), instance.ptr());
  }
}

// ---- problems --------------------------------------------------------------------------------

struct Problem {
  tandem_problem value;
  Problem() { tandem_problem_init(&value); }
};

using TensorMember = tandem_tensor tandem_problem::*;
struct NamedTensor {
  const char* name;
  TensorMember member;
};
constexpr NamedTensor kTensors[] = {{"q", &tandem_problem::q},
                                    {"k", &tandem_problem::k},
                                    {"v", &tandem_problem::v},
                                    {"o", &tandem_problem::o},
                                    {"d_o", &tandem_problem::d_o},
                                    {"d_q", &tandem_problem::d_q},
                                    {"d_k", &tandem_problem::d_k},
                                    {"d_v", &tandem_problem::d_v},
                                    {"bias", &tandem_problem::bias},
                                    {"d_bias", &tandem_problem::d_bias},
                                    {"keep", &tandem_problem::keep},
                                    {"part_o", &tandem_problem::part_o},
                                    {"d_part_o", &tandem_problem::d_part_o}};

void set_tensor(Problem& problem, const char* name, uint32_t dtype,
                const std::vector<int64_t>& strides) {
  for (const NamedTensor& t : kTensors) {
    if (std::string(name) != t.name) continue;
    if (strides.size() != 4)
      throw Error(TANDEM_ERROR_INVALID_ARGUMENT, std::string(name) + " takes four strides");
    tandem_tensor& tensor = problem.value.*t.member;
    tensor.dtype = dtype;
    for (int n = 0; n < 4; ++n) tensor.stride[n] = strides[size_t(n)];
    return;
  }
  throw Error(TANDEM_ERROR_INVALID_ARGUMENT, std::string("no tensor is named ") + name);
}

// ---- arrays of other frameworks --------------------------------------------------------------

using AnyArray = nb::ndarray<nb::ro>;

// Where an array lies, by DLPack or the buffer protocol. It keeps the array's memory.
struct View {
  AnyArray array;
};

const char* dtype_name(nb::dlpack::dtype type) {
  using Code = nb::dlpack::dtype_code;
  if (type.lanes != 1) return "";
  if (type.code == uint8_t(Code::Float) && type.bits == 32) return "float32";
  if (type.code == uint8_t(Code::Float) && type.bits == 16) return "float16";
  if (type.code == uint8_t(Code::Float) && type.bits == 64) return "float64";
  if (type.code == uint8_t(Code::Bfloat) && type.bits == 16) return "bfloat16";
  if (type.code == uint8_t(Code::Bool) && type.bits == 8) return "bool";
  if (type.code == uint8_t(Code::UInt) && type.bits == 8) return "uint8";
  if (type.code == uint8_t(Code::Int) && type.bits == 32) return "int32";
  if (type.code == uint8_t(Code::Int) && type.bits == 64) return "int64";
  return "";
}

nb::tuple shape_of(const View& view) {
  nb::list sizes;
  for (size_t n = 0; n < view.array.ndim(); ++n) sizes.append(view.array.shape(n));
  return nb::tuple(sizes);
}
nb::tuple strides_of(const View& view) {
  nb::list strides;
  for (size_t n = 0; n < view.array.ndim(); ++n) strides.append(view.array.stride(n));
  return nb::tuple(strides);
}

// ---- plans -----------------------------------------------------------------------------------

void check_count(size_t count) {
  if (count != kBufferCount)
    throw Error(TANDEM_ERROR_INVALID_ARGUMENT,
                "a call has " + std::to_string(kBufferCount) + " buffers");
}

// Device memory as it lies: addresses in the order of kBuffers, 0 for what is absent.
void execute(const Plan& plan, uint64_t stream, const nb::tuple& addresses, uint64_t workspace_size,
             uint64_t seed, uint32_t offset) {
  check_count(addresses.size());
  tandem_args args = TANDEM_ARGS_INIT;
  for (size_t n = 0; n < kBufferCount; ++n)
    (args.*kBuffers[n].member).handle = nb::cast<uint64_t>(addresses[n]);
  args.workspace_size = workspace_size;
  args.dropout_seed = seed;
  args.dropout_offset = offset;
  if (!plan.device->on_host()) {  // it returns at once: no other thread waits for the interpreter
    harness::check(tandem_execute(plan.plan, {stream}, &args));
    return;
  }
  const nb::gil_scoped_release release;
  harness::check(tandem_execute(plan.plan, {stream}, &args));
}

// Host memory: a tuple (address, bytes, read, written) for each buffer, None for what is absent.
// The workspace is the device's own.
void execute_staged(const Plan& plan, const nb::tuple& buffers, uint64_t seed, uint32_t offset) {
  check_count(buffers.size());
  HostBuffers host;
  for (size_t n = 0; n < kBufferCount; ++n) {
    if (buffers[n].is_none()) continue;
    const nb::tuple of = nb::cast<nb::tuple>(buffers[n]);
    host[n] = {nb::cast<uint64_t>(of[0]), nb::cast<size_t>(of[1]), nb::cast<bool>(of[2]),
               nb::cast<bool>(of[3])};
  }
  const nb::gil_scoped_release release;
  plan.device->run_staged(plan.plan, host, {seed, offset});
}

std::vector<std::string> kernels_of(const Plan& plan) {
  const tandem_plan_info& info = plan.plan.info();
  std::vector<std::string> names;
  for (uint32_t n = 0; n < info.kernel_count; ++n) {
    tandem_kernel_info kernel{};
    kernel.struct_size = sizeof(kernel);
    harness::check(tandem_kernel_get(info.kernels[n], &kernel));
    names.push_back(harness::kernel_name(kernel));
  }
  return names;
}

}  // namespace
}  // namespace tandem::python

#undef NB_DOMAIN_STR
#define NB_DOMAIN_STR tandem::python::domain()
NB_MODULE(_core, m) {
  using namespace tandem::python;
  namespace harness = tandem::harness;
  static std::string errors = nb::cast<std::string>(m.attr("__name__"));
  errors.replace(errors.rfind('.') + 1, std::string::npos, "_errors");
  nb::register_exception_translator(translate, &errors);

  m.attr("VERSION") = std::to_string(TANDEM_VERSION_MAJOR) + "." +
                      std::to_string(TANDEM_VERSION_MINOR) + "." +
                      std::to_string(TANDEM_VERSION_PATCH);
  nb::list buffers;
  for (const NamedBuffer& b : kBuffers) buffers.append(nb::str(b.name.data(), b.name.size()));
  m.attr("BUFFERS") = nb::tuple(buffers);

#define FIELD(name)                                         \
  .def_prop_rw(                                             \
      #name, [](const Problem& p) { return p.value.name; }, \
      [](Problem& p, decltype(tandem_problem::name) x) { p.value.name = x; })
  nb::class_<Problem>(m, "Problem")
      .def(nb::init<>())
      .def_static("parse",
                  [](const std::string& line) {
                    Problem p;
                    p.value = harness::parse(line);
                    return p;
                  })
      .def("__str__", [](const Problem& p) { return harness::print(p.value); })
      .def("set_tensor", set_tensor)
      .def("contiguous",
           [](Problem& p, uint32_t dtype) {
             tandem_problem_contiguous(&p.value, tandem_dtype(dtype));
           })
      // clang-format off
      FIELD(direction) FIELD(batch) FIELD(heads_q) FIELD(heads_kv) FIELD(seq_q) FIELD(seq_kv)
      FIELD(head_dim) FIELD(head_dim_v) FIELD(scale) FIELD(mask) FIELD(align) FIELD(gradients)
      FIELD(window_left) FIELD(window_right) FIELD(flags) FIELD(normalizer) FIELD(entmax_alpha)
      FIELD(softcap) FIELD(dropout) FIELD(alibi) FIELD(sink) FIELD(dist_window)
      FIELD(bias_batch) FIELD(bias_heads) FIELD(bias_rows)
      FIELD(keep_batch) FIELD(keep_heads) FIELD(keep_rows)
      FIELD(spans) FIELD(spans_batch) FIELD(spans_heads)
      FIELD(block_q) FIELD(block_kv) FIELD(block_width)
      FIELD(block_bits) FIELD(block_batch) FIELD(block_heads)
      FIELD(slopes_batch) FIELD(sinks_batch)
      FIELD(bias_table_size) FIELD(bias_index_batch) FIELD(bias_index_dtype) FIELD(d_lse)
      FIELD(max_logit_batch)
      FIELD(workspace_limit)
      FIELD(parts) FIELD(part_stride) FIELD(d_part_stride) FIELD(merge_into)
      FIELD(lengths_q) FIELD(lengths_kv) FIELD(total_q) FIELD(total_kv);
  // clang-format on
#undef FIELD

  nb::class_<View>(m, "View")
      .def("__init__", [](View* self, AnyArray array) { new (self) View{std::move(array)}; })
      .def_prop_ro(
          "address",
          [](const View& v) { return uint64_t(reinterpret_cast<uintptr_t>(v.array.data())); })
      .def_prop_ro("shape", shape_of)
      .def_prop_ro("strides", strides_of)
      .def_prop_ro("dtype", [](const View& v) { return dtype_name(v.array.dtype()); })
      .def_prop_ro("device_type", [](const View& v) { return v.array.device_type(); })
      .def_prop_ro("device_id", [](const View& v) { return v.array.device_id(); });

  nb::class_<Device>(m, "Device")
      .def(nb::new_([](const std::string& name, const std::string& disable, uint32_t threads) {
             const nb::gil_scoped_release release;
             return std::make_shared<Device>(name, disable, threads);
           }),
           "name"_a, "disable"_a = "", "threads"_a = 0)
      .def_prop_ro("name", [](Device& d) { return d.session().name(); })
      .def_prop_ro("backend", [](Device& d) { return d.session().backend(); })
      .def_prop_ro("human", [](Device& d) { return std::string(d.session().info().name); })
      .def_prop_ro("driver", [](Device& d) { return std::string(d.session().info().driver); })
      .def_prop_ro("on_host", &Device::on_host)
      .def_prop_ro("buffer_bytes", &Device::buffer_bytes)
      .def("release_buffers", &Device::release_buffers)
      .def("describe", [](Device& d) { return harness::describe(d.session().device()); })
      .def("explain", [](Device& d, const Problem& p) {
        return harness::explain(d.session().device(), p.value);
      });

  nb::class_<Plan>(m, "Plan")
      .def("__init__",
           [](Plan* self, std::shared_ptr<Device> device, const Problem& problem) {
             const nb::gil_scoped_release release;
             new (self) Plan(std::move(device), problem.value);
           })
      .def("execute", execute)
      .def("execute_staged", execute_staged)
      .def_prop_ro("workspace_size", [](const Plan& p) { return p.plan.info().workspace_size; })
      .def_prop_ro("workspace_alignment",
                   [](const Plan& p) { return p.plan.info().workspace_alignment; })
      .def_prop_ro("flops", [](const Plan& p) { return p.plan.info().flops; })
      .def_prop_ro("estimated_ms", [](const Plan& p) { return p.plan.info().estimated_ms; })
      .def_prop_ro("tile_rows", [](const Plan& p) { return p.plan.info().tile_rows; })
      .def_prop_ro("tile_cols", [](const Plan& p) { return p.plan.info().tile_cols; })
      .def_prop_ro("backend", [](const Plan& p) { return std::string(p.plan.info().backend); })
      .def_prop_ro("path", [](const Plan& p) { return std::string(p.plan.info().path); })
      .def_prop_ro("name", [](const Plan& p) { return std::string(p.plan.info().name); })
      .def_prop_ro("unordered", [](const Plan& p) { return p.plan.info().unordered; })
      .def_prop_ro("kernels", kernels_of);

  m.def("shared_device", [](const std::string& name) {
    const nb::gil_scoped_release release;
    return shared_device(name);
  });
  m.def("abandon_devices", abandon_devices);

  m.def("torch_connect", torch_connect);
  m.def("torch_override", torch_override);
  m.def("torch_missed", [] {
    const std::string key = torch_missed();
    return nb::bytes(key.data(), key.size());
  });
  m.def("torch_remember",
        [](const nb::bytes& key, std::shared_ptr<Plan> plan,
           const std::vector<std::tuple<std::string, std::vector<int64_t>, std::vector<int64_t>>>&
               outputs) {
          std::vector<TorchOutput> made;
          for (const auto& [dtype, sizes, strides] : outputs)
            made.push_back({dtype, sizes, strides});
          return torch_remember(std::string(key.c_str(), key.size()), std::move(plan), made);
        });
  m.def("torch_forget", torch_forget, "captured"_a = false);
  m.def("torch_abandon", torch_abandon);
  m.def("torch_calls", [] {
    const TorchCalls calls = torch_calls();
    return nb::make_tuple(calls.forward, calls.backward, calls.declined);
  });
#if TANDEM_PYTHON_JAX
  m.def("jax_handlers", [] {
    nb::dict handlers;
    handlers["cpu"] = nb::capsule(jax_cpu_handler());
    handlers["CUDA"] = nb::capsule(jax_cuda_handler());
    return handlers;
  });
#endif

  // (name, human, reason why it cannot be used or "", runs on the CPU)
  m.def("list_devices", [] {
    std::vector<harness::DeviceName> devices;
    {
      const nb::gil_scoped_release release;
      devices = harness::list_devices();
    }
    nb::list rows;
    for (const harness::DeviceName& d : devices)
      rows.append(nb::make_tuple(d.name, d.human, d.reason, d.cpu_driver || d.name == "cpu"));
    return rows;
  });
}
