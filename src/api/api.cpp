// SPDX-License-Identifier: MIT OR Apache-2.0
// The C API around problems, plans and executes: checks structs, arguments and cache blobs, shares
// plans, and keeps the last message.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>

#include "base/environment.h"
#include "base/number.h"
#include "base/structs.h"
#include "border.h"
#include "handles.h"
#include "kernels/args.h"
#include "plan/cost/cost.h"
#include "verbose.h"

using namespace tandem;

namespace {

thread_local char last_message[8192];  // belongs to no device, so it does not use a device's memory

// Copies a text out, as much of it as fits; returns the bytes needed with the final NUL.
size_t copy_text(const String& s, char* out, size_t capacity) {
  if (out && capacity > 0) {
    const size_t n = std::min(s.size(), capacity - 1);
    std::memcpy(out, s.data(), n);
    out[n] = '\0';
  }
  return s.size() + 1;
}

// No name is cut off.
#define TANDEM_STEM(Name, name) \
  static_assert(sizeof(#name) <= sizeof(tandem_kernel_info::stem), #name);
#include "kernels/stems.inc"

template <size_t N>
void copy_name(const String& s, char (&out)[N]) {
  copy_text(s, out, N);
}

Status check_not_null(const char* what, const void* pointer) {
  return pointer ? Status() : fail(TANDEM_ERROR_INVALID_ARGUMENT, "%s is NULL", what);
}

Status check_options(const tandem_device_options* options, tandem_device_options* checked) {
  *checked = TANDEM_DEVICE_OPTIONS_INIT;
  if (!options) return Status();
  TANDEM_TRY(read_struct("options", options, checked));
  if (checked->next) return fail(TANDEM_ERROR_INVALID_STRUCT, "options.next is not NULL");
  if (checked->threads > 1024)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "options.threads is %u, at most 1024",
                checked->threads);
  if (!checked->allocate != !checked->release)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "options.%s is NULL, but options.%s is not",
                checked->allocate ? "release" : "allocate",
                checked->allocate ? "allocate" : "release");
  return Status();
}

// The parts of the options that need memory.
Status read_options(const tandem_device_options& given, DeviceOptions* options) {
  options->log = Logger(given);
  options->threads = given.threads;
  TANDEM_TRY(parse_disabled(given.disable, &options->disabled));
  String room;
  return parse_disabled(environment_value("TANDEM_DISABLE", &room), &options->disabled);
}

// Whether a shorter struct, of an older version, can hold this problem.
Status check_fits(const tandem_problem& whole, size_t size) {
  const char* bytes = reinterpret_cast<const char*>(&whole);
  for (size_t i = size; i < sizeof(whole); ++i)
    if (bytes[i] != 0)
      return fail(TANDEM_ERROR_INVALID_STRUCT,
                  "problem.struct_size is %zu, too small for what the line has: %zu is this "
                  "version's",
                  size, sizeof(whole));
  return Status();
}

// Makes a program shared, for the plans of one problem.
std::shared_ptr<const Program> share(std::unique_ptr<Program> program) {
  return std::shared_ptr<const Program>(program.release(), std::default_delete<const Program>(),
                                        HostAllocator<char>());
}

// Tells once a device and reason that a nearby problem would be much faster.
void warn_if_slow(tandem_device& device, const NamedPlan& plan) {
  const Logger& log = device.device->log();
  if (!log) return;
  const Slow slow = find_slow(plan, device.device->caps());
  if (!slow.reason.empty() && device.warned.tells(slow.reason))
    log(TANDEM_LOG_WARN, slow.sentence + " | " + plan.full_name);
}

// Makes a plan that is not in the device's cache.
Status make_shared_plan(tandem_device& device, const tandem_problem& problem, SharedPlan* shared) {
  Problem checked;
  TANDEM_TRY(make_problem(&problem, &checked));
  const auto plan = make_host_shared<NamedPlan>();
  TANDEM_TRY(make_plan(checked, device.device->caps(), plan.get()));
  plan->full_name = plan->name() + " | " + print_problem(problem);
  if (const Estimate e = estimate(*plan, device.device->caps()); e.inside)
    plan->estimated_ms = e.ms;
  std::unique_ptr<Program> program;
  TANDEM_TRY(device.device->build(*plan, &program));
  warn_if_slow(device, *plan);
  plan->overlap = OverlapCheck(*plan);
  if (plan->problem.slices) plan->slicing = Slicing(*plan);
  plan->refusals = {};  // not needed any more
  *shared = {plan, share(std::move(program))};
  return Status();
}

Status slices_of(const NamedPlan& plan, double operations, tandem_slices* slices) {
  if (!plan.problem.slices)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "the plan is of a problem without TANDEM_FLAG_SLICES, and is not cut into slices");
  if (!(operations > 0))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "operations is %s, must be more than 0",
                short_text(float(operations)).c_str());
  const Slicing::Sizes sizes = plan.slicing.sizes(operations);
  if (sizes.count > 0xffffffffu)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "operations is %s, which cuts the execute into %llu slices, beyond 2^32 - 1",
                short_text(float(operations)).c_str(), (unsigned long long)sizes.count);
  slices->count = uint32_t(sizes.count);
  slices->operations = operations;
  slices->largest = sizes.largest;
  slices->whole = sizes.whole;
  return Status();
}

bool given(const tandem_buffer& b) { return b.handle != 0 || b.offset != 0; }

// Checks that all tensors that the plan accesses are given, that the workspace is large enough, and
// that no output shares memory. On Vulkan VulkanProgram checks the latter, which knows addresses.
Status check_args(const NamedPlan& plan, const tandem_args& args) {
  if (args.reserved != 0)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "args.reserved is %u, must be 0", args.reserved);
  if (args.reserved2 != 0)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "args.reserved2 is %u, must be 0", args.reserved2);
  if (plan.launches.empty()) return Status();
  for (const ArgUse& t : arg_uses(plan)) {
    const tandem_buffer& buffer = args.*t.buffer;
    if (!t.needed && !t.optional) continue;  // never accessed, so not checked
    const bool workspace = t.buffer == &tandem_args::workspace;
    const tandem_status status = workspace ? TANDEM_ERROR_WORKSPACE : TANDEM_ERROR_INVALID_ARGUMENT;
    if (t.needed && !given(buffer))
      return fail(status, "args.%s is not given, this plan needs it", t.name);
    // A Vulkan handle is no address, so only the offset can be checked.
    const uint64_t visible =
        plan.backend == Backend::vulkan ? buffer.offset : buffer.handle + buffer.offset;
    if (given(buffer) && visible % t.alignment != 0)
      return fail(status, "args.%s lies at 0x%llx, not a multiple of %llu", t.name,
                  (unsigned long long)visible, (unsigned long long)t.alignment);
  }
  if (args.workspace_size < plan.workspace_size)
    return fail(TANDEM_ERROR_WORKSPACE, "args.workspace_size is %llu, this plan needs %llu",
                (unsigned long long)args.workspace_size, (unsigned long long)plan.workspace_size);
  if (plan.backend == Backend::vulkan) return Status();
  return plan.overlap.check([&](const OverlapCheck::Arg& arg) {
    const tandem_buffer& buffer = args.*arg.buffer;
    return buffer.handle + buffer.offset;
  });
}

// ---- cache blobs ----
// A header of our own before the backend's bytes, so that no foreign, truncated or changed blob
// reaches a driver.
struct BlobHeader {
  char magic[8];
  uint32_t version, reserved;  // 0
  uint64_t key, size, sum;     // sum: of the header before it and the body
};
static_assert(sizeof(BlobHeader) == 40 && offsetof(BlobHeader, sum) == 32, "without gaps");
constexpr char kBlobMagic[8] = {'T', 'A', 'N', 'D', 'E', 'M', 'C', '2'};

uint64_t fnv1a(const void* data, size_t size, uint64_t hash = 0xcbf29ce484222325u) {
  const unsigned char* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return hash;
}

uint64_t blob_sum(const BlobHeader& header, const void* body, size_t size) {
  return fnv1a(body, size, fnv1a(&header, offsetof(BlobHeader, sum)));
}

uint64_t blob_key(const Device& device) {
  const Caps& caps = device.caps();
  const String id = text("%s|%s|%s|%u|%u|%u|%llx", backend_name(caps.backend), caps.name.c_str(),
                         caps.driver.c_str(), caps.vendor_id, caps.device_id, caps.driver_version,
                         (unsigned long long)device.code_hash());
  return fnv1a(id.data(), id.size());
}

}  // namespace

namespace tandem {

namespace {
void tell(tandem_status code) noexcept {
  if (!verbose(Verbose::error)) return;
  char name[64];
  std::snprintf(name, sizeof name, "%s: ", tandem_status_string(code));
  verbose_line(Verbose::error, "", -1, name, tandem_last_message());
}
}  // namespace

tandem_status report(tandem_status code, const char* sentence) noexcept {
  const size_t room = sizeof(last_message) - 1, size = std::strlen(sentence);
  std::memcpy(last_message, sentence, std::min(size, room));
  last_message[std::min(size, room)] = '\0';
  if (size > room) std::memcpy(last_message + room - 3, "...", 3);
  tell(code);
  return code;
}

tandem_status report(const Status& status) noexcept {
  return status.ok() ? TANDEM_OK : report(status.code(), status.message().c_str());
}

tandem_status create_device(const tandem_device_options* options, tandem_device** device,
                            Status (*open)(const DeviceOptions&, const void*,
                                           std::unique_ptr<Device>*),
                            const void* context) {
  return border([&]() -> Status {
    TANDEM_TRY(check_not_null("device", device));
    TANDEM_TRY(verbose_status());
    const VerboseClock clock(Verbose::device);
    tandem_device_options given;
    TANDEM_TRY(check_options(options, &given));
    const HostMemory memory(given);
    const HostScope scope(memory);
    watch_forks();
    DeviceOptions checked;
    TANDEM_TRY(read_options(given, &checked));
    std::unique_ptr<tandem_device> made(new tandem_device);
    made->memory = memory;
    TANDEM_TRY(open(checked, context, &made->device));
    made->device->log()(
        TANDEM_LOG_INFO,
        text("device %s: %s (%s)", backend_name(made->device->caps().backend),
             made->device->caps().name.c_str(), made->device->caps().driver.c_str()));
    if (clock.on()) {
      const Caps& caps = made->device->caps();
      verbose_line(Verbose::device, backend_name(caps.backend), clock.us(),
                   text("%s | %s | Tandem %d.%d.%d", caps.name.c_str(), caps.driver.c_str(),
                        TANDEM_VERSION_MAJOR, TANDEM_VERSION_MINOR, TANDEM_VERSION_PATCH)
                       .c_str());
    }
    add_handle(made.get());
    *device = made.release();
    return Status();
  });
}

tandem_status execute(const tandem_plan* plan, const Backend* backend, const tandem_args* args,
                      Status (*record)(const Plan&, const Program&, const tandem_args&,
                                       const void*),
                      const void* context) {
  return border([&]() -> Status {
    TANDEM_TRY(check_handle("plan", plan));
    const HostScope scope(plan->memory);
    TANDEM_TRY(check_process("plan", *plan));
    if (!plan->program)
      return fail(TANDEM_ERROR_INVALID_ARGUMENT, "plan has no device: that was destroyed before");
    const NamedPlan& p = *plan->plan;
    if (backend && p.backend != *backend)
      return fail(TANDEM_ERROR_INVALID_ARGUMENT, "plan is for %s, this call is for %s",
                  backend_name(p.backend), backend_name(*backend));
    tandem_args whole;
    TANDEM_TRY(read_struct("args", args, &whole));
    TANDEM_TRY(check_args(p, whole));
    const VerboseClock clock(Verbose::execute);
    TANDEM_TRY(record(p, *plan->program, whole, context));
    if (clock.on() && !p.launches.empty())
      verbose_line(Verbose::execute, backend_name(p.backend), clock.us(), p.full_name.c_str());
    return Status();
  });
}

}  // namespace tandem

extern "C" {

const char* tandem_status_string(tandem_status status) {
  switch (status) {
#define TANDEM_NAME(name) \
  case name:              \
    return #name;
    TANDEM_NAME(TANDEM_OK)
    TANDEM_NAME(TANDEM_ERROR_INVALID_ARGUMENT)
    TANDEM_NAME(TANDEM_ERROR_UNSUPPORTED)
    TANDEM_NAME(TANDEM_ERROR_OUT_OF_MEMORY)
    TANDEM_NAME(TANDEM_ERROR_INVALID_STRUCT)
    TANDEM_NAME(TANDEM_ERROR_INVALID_LAYOUT)
    TANDEM_NAME(TANDEM_ERROR_NO_BACKEND)
    TANDEM_NAME(TANDEM_ERROR_NO_DEVICE)
    TANDEM_NAME(TANDEM_ERROR_MISSING_FEATURE)
    TANDEM_NAME(TANDEM_ERROR_WORKSPACE)
    TANDEM_NAME(TANDEM_ERROR_CACHE)
    TANDEM_NAME(TANDEM_ERROR_BACKEND)
    TANDEM_NAME(TANDEM_ERROR_DEVICE_LOST)
    TANDEM_NAME(TANDEM_ERROR_DEVICE_OUT_OF_MEMORY)
#undef TANDEM_NAME
    case TANDEM_STATUS_FORCE_INT:
      break;
  }
  return "unknown tandem_status";
}

const char* tandem_last_message(void) { return last_message; }

uint32_t tandem_version(void) {
  return uint32_t(TANDEM_VERSION_MAJOR) << 22 | uint32_t(TANDEM_VERSION_MINOR) << 12 |
         uint32_t(TANDEM_VERSION_PATCH);
}

tandem_status tandem_cpu_device_create(const tandem_device_options* options,
                                       tandem_device** device) {
  return create_device(options, device, open_cpu_device, nullptr);
}

void tandem_device_destroy(tandem_device* device) {
  if (!device) return;
  border([&]() -> Status {
    TANDEM_TRY(check_handle("device", device));
    const HostMemory memory = device->memory;  // outlives the device
    const HostScope scope(memory);
    remove_handle(device);
    if (left_behind(*device)) return Status();
    const std::unique_ptr<tandem_device> gone(device);
    const int plans = orphan_plans(device);
    if (plans == 0) return Status();
    const Status early =
        fail(TANDEM_ERROR_INVALID_ARGUMENT,
             "tandem_device_destroy: %d plan%s of this device %s alive; destroy plans before their "
             "device. Now they can be destroyed, but not executed",
             plans, plans == 1 ? "" : "s", plans == 1 ? "is" : "are");
    device->device->log()(TANDEM_LOG_ERROR, early.message());
    return early;
  });
}

tandem_status tandem_device_get_info(const tandem_device* device, tandem_device_info* info) {
  return border([&]() -> Status {
    TANDEM_TRY(check_handle("device", device));
    const HostScope scope(device->memory);
    TANDEM_TRY(check_size_of("info", info));
    const Caps& caps = device->device->caps();
    tandem_device_info whole{};
    whole.shared_bytes = caps.shared_bytes;
    copy_name(backend_name(caps.backend), whole.backend);
    copy_name(caps.name, whole.name);
    copy_name(caps.driver, whole.driver);
    write_struct(whole, info);
    return Status();
  });
}

size_t tandem_device_describe(const tandem_device* device, char* out, size_t capacity) {
  size_t size = 0;
  border([&]() -> Status {
    TANDEM_TRY(check_handle("device", device));
    const HostScope scope(device->memory);
    size = copy_text(describe_caps(device->device->caps()), out, capacity);
    return Status();
  });
  return size;
}

tandem_status tandem_device_get_cache(tandem_device* device, size_t* size, void* data) {
  return border([&]() -> Status {
    TANDEM_TRY(check_handle("device", device));
    const HostScope scope(device->memory);
    TANDEM_TRY(check_process("device", *device));
    TANDEM_TRY(check_not_null("size", size));
    Vec<uint8_t> body;
    TANDEM_TRY(device->device->cache_get(&body));
    const size_t needed = sizeof(BlobHeader) + body.size();
    if (data) {
      if (*size < needed)
        return fail(TANDEM_ERROR_INVALID_ARGUMENT, "size is %zu, the cache has %zu bytes", *size,
                    needed);
      BlobHeader header{};
      std::memcpy(header.magic, kBlobMagic, sizeof(kBlobMagic));
      header.version = tandem_version();
      header.key = blob_key(*device->device);
      header.size = body.size();
      header.sum = blob_sum(header, body.data(), body.size());
      std::memcpy(data, &header, sizeof(header));
      if (!body.empty())
        std::memcpy(static_cast<char*>(data) + sizeof(header), body.data(), body.size());
    }
    *size = needed;
    return Status();
  });
}

tandem_status tandem_device_set_cache(tandem_device* device, size_t size, const void* data) {
  return border([&]() -> Status {
    TANDEM_TRY(check_handle("device", device));
    const HostScope scope(device->memory);
    TANDEM_TRY(check_process("device", *device));
    TANDEM_TRY(check_not_null("data", data));
    BlobHeader header;
    if (size < sizeof(header))
      return fail(TANDEM_ERROR_CACHE, "cache blob of %zu bytes is shorter than its header", size);
    std::memcpy(&header, data, sizeof(header));
    if (std::memcmp(header.magic, kBlobMagic, sizeof(kBlobMagic)) != 0)
      return fail(TANDEM_ERROR_CACHE, "cache blob does not begin with TANDEMC2");
    if (header.version != tandem_version())
      return fail(TANDEM_ERROR_CACHE, "cache blob is of library version 0x%x, this is 0x%x",
                  header.version, tandem_version());
    if (header.key != blob_key(*device->device))
      return fail(TANDEM_ERROR_CACHE,
                  "cache blob is of another build, device or driver than %s (%s)",
                  device->device->caps().name.c_str(), device->device->caps().driver.c_str());
    const uint8_t* body = static_cast<const uint8_t*>(data) + sizeof(header);
    if (header.size != size - sizeof(header))
      return fail(TANDEM_ERROR_CACHE, "cache blob has %zu bytes, its header says %llu", size,
                  (unsigned long long)(header.size + sizeof(header)));
    if (header.reserved != 0)
      return fail(TANDEM_ERROR_CACHE, "cache blob is corrupted: its bytes 12 to 15 are not 0");
    if (header.sum != blob_sum(header, body, size_t(header.size)))
      return fail(TANDEM_ERROR_CACHE, "cache blob is corrupted: its checksum differs");
    return device->device->cache_set(body, size_t(header.size));
  });
}

void tandem_problem_init_sized(tandem_problem* problem, uint32_t struct_size) {
  if (!problem || !is_size_of<tandem_problem>(struct_size)) return;
  std::memset(static_cast<void*>(problem), 0, struct_size);
  problem->struct_size = struct_size;
  problem->direction = TANDEM_FORWARD;
  problem->scale = std::nanf("");
  problem->gradients = TANDEM_GRAD_QKV;
  problem->window_left = problem->window_right = TANDEM_UNBOUNDED;
  tandem_problem_contiguous(problem, TANDEM_F32);
}

void(tandem_problem_init)(tandem_problem* problem) {
  tandem_problem_init_sized(problem, kFirstSize<tandem_problem>);
}

size_t tandem_problem_print(const tandem_problem* problem, char* out, size_t capacity) {
  size_t size = 0;
  border([&]() -> Status {
    tandem_problem whole;
    TANDEM_TRY(read_struct("problem", problem, &whole));
    size = copy_text(print_problem(whole), out, capacity);
    return Status();
  });
  return size;
}

tandem_status tandem_problem_parse_sized(const char* line, tandem_problem* problem,
                                         uint32_t struct_size) {
  return border([&]() -> Status {
    TANDEM_TRY(check_not_null("problem", problem));
    tandem_problem whole{};
    whole.struct_size = struct_size;
    TANDEM_TRY(check_size_of("problem", &whole));
    TANDEM_TRY(parse_problem(line, &whole));
    TANDEM_TRY(check_fits(whole, struct_size));
    tandem_problem_init_sized(problem, struct_size);
    write_struct(whole, problem);
    return Status();
  });
}

tandem_status(tandem_problem_parse)(const char* line, tandem_problem* problem) {
  return tandem_problem_parse_sized(line, problem, kFirstSize<tandem_problem>);
}

tandem_status tandem_plan_create(tandem_device* device, const tandem_problem* problem,
                                 tandem_plan** plan) {
  return border([&]() -> Status {
    TANDEM_TRY(check_handle("device", device));
    const HostScope scope(device->memory);
    TANDEM_TRY(check_process("device", *device));
    TANDEM_TRY(check_not_null("plan", plan));
    const VerboseClock clock(Verbose::plan);
    tandem_problem whole;
    TANDEM_TRY(read_struct("problem", problem, &whole));
    std::unique_ptr<tandem_plan> made(new tandem_plan);
    made->memory = device->memory;
    SharedPlan shared = device->cache.find(whole);
    const bool cached = shared.plan != nullptr;
    if (!cached) TANDEM_TRY(make_shared_plan(*device, whole, &shared));
    if (device->device->log())
      device->device->log()(TANDEM_LOG_DEBUG, "plan " + shared.plan->full_name);
    // Adding to the cache is the last allocation, so a call that fails leaves nothing in the cache.
    if (!cached) shared = device->cache.add(whole, shared);
    made->plan = shared.plan;
    made->program = shared.program;
    if (clock.on())
      verbose_line(Verbose::plan, backend_name(made->plan->backend), clock.us(),
                   made->plan->full_name.c_str());
    add_handle(made.get());
    join_device(made.get(), device);
    *plan = made.release();
    return Status();
  });
}

void tandem_plan_destroy(tandem_plan* plan) {
  if (!plan) return;
  border([&]() -> Status {
    TANDEM_TRY(check_handle("plan", plan));
    remove_handle(plan);
    if (left_behind(*plan)) return Status();
    leave_device(plan);
    delete plan;
    return Status();
  });
}

tandem_status tandem_plan_get_info(const tandem_plan* plan, tandem_plan_info* info) {
  return border([&]() -> Status {
    TANDEM_TRY(check_handle("plan", plan));
    TANDEM_TRY(check_size_of("info", info));
    const HostScope scope(plan->memory);
    tandem_plan_info whole{};
    const NamedPlan& p = *plan->plan;
    whole.kernel_count = uint32_t(std::min<size_t>(p.launches.size(), TANDEM_MAX_KERNELS));
    for (size_t i = 0; i < whole.kernel_count; ++i)
      whole.kernels[i] = uint32_t(p.launches[i].kernel);
    whole.workspace_size = p.workspace_size;
    whole.workspace_alignment = kWorkspaceAlignment;
    whole.flops = problem_flops(p.problem);
    whole.unordered = p.unordered();
    whole.estimated_ms = p.estimated_ms;
    whole.tile_rows = uint32_t(p.tile().br);
    whole.tile_cols = uint32_t(p.tile().bc);
    copy_name(backend_name(p.backend), whole.backend);
    copy_name(p.path, whole.path);
    copy_name(p.full_name, whole.name);
    write_struct(whole, info);
    return Status();
  });
}

tandem_status tandem_least_workspace(const tandem_device* device, const tandem_problem* problem,
                                     uint64_t* bytes) {
  return border([&]() -> Status {
    TANDEM_TRY(check_handle("device", device));
    const HostScope scope(device->memory);
    TANDEM_TRY(check_not_null("bytes", bytes));
    Problem checked;
    TANDEM_TRY(make_problem(problem, &checked));
    return find_least_workspace(checked, device->device->caps(), bytes);
  });
}

size_t tandem_explain(const tandem_device* device, const tandem_problem* problem, char* out,
                      size_t capacity) {
  size_t size = 0;
  border([&]() -> Status {
    TANDEM_TRY(check_handle("device", device));
    const HostScope scope(device->memory);
    Problem checked;
    const Status status = make_problem(problem, &checked);
    size = copy_text(status.ok() ? explain(checked, device->device->caps())
                                 : "invalid: " + status.message() + "\n",
                     out, capacity);
    return Status();
  });
  return size;
}

uint32_t tandem_kernel_count(void) { return uint32_t(kKernelCount); }

tandem_status tandem_kernel_get(uint32_t index, tandem_kernel_info* info) {
  return border([&]() -> Status {
    TANDEM_TRY(check_size_of("info", info));
    if (index >= uint32_t(kKernelCount))
      return fail(TANDEM_ERROR_INVALID_ARGUMENT, "kernel index is %u, there are %d", index,
                  kKernelCount);
    tandem_kernel_info whole{};
    const KernelRow& row = kKernels[index];
    whole.built = kernel_built(row);
    copy_name(stem_name(row.stem), whole.stem);
    copy_name(backend_name(row.backend), whole.backend);
    copy_name(row.path, whole.path);
    if (std::strcmp(row.variant, kOnlyVariant) != 0) copy_name(row.variant, whole.variant);
    write_struct(whole, info);
    return Status();
  });
}

tandem_status tandem_execute(const tandem_plan* plan, tandem_stream stream,
                             const tandem_args* args) {
  return execute(
      plan, nullptr, args,
      [](const Plan& p, const Program& program, const tandem_args& a, const void* context) {
        if (p.launches.empty()) return Status();
        return program.record(*static_cast<const tandem_stream*>(context), a);
      },
      &stream);
}

tandem_status tandem_plan_get_slices(const tandem_plan* plan, double operations,
                                     tandem_slices* slices) {
  return border([&]() -> Status {
    TANDEM_TRY(check_handle("plan", plan));
    const HostScope scope(plan->memory);
    TANDEM_TRY(check_size_of("slices", slices));
    tandem_slices whole{};
    TANDEM_TRY(slices_of(*plan->plan, operations, &whole));
    write_struct(whole, slices);
    return Status();
  });
}

tandem_status tandem_execute_slice(const tandem_plan* plan, tandem_stream stream,
                                   const tandem_args* args, const tandem_slices* slices,
                                   uint32_t index) {
  struct Call {
    tandem_stream stream;
    const tandem_slices* slices;
    uint32_t index;
  } const call{stream, slices, index};
  return execute(
      plan, nullptr, args,
      [](const Plan& p, const Program& program, const tandem_args& a, const void* context) {
        const Call& c = *static_cast<const Call*>(context);
        const NamedPlan& named = static_cast<const NamedPlan&>(p);
        tandem_slices given, own{};
        TANDEM_TRY(read_struct("slices", c.slices, &given));
        TANDEM_TRY(slices_of(named, given.operations, &own));
        if (given.count != own.count)
          return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                      "slices.count is %u, but this plan has %u slices of %s operations: "
                      "tandem_plan_get_slices() fills it in",
                      given.count, own.count, short_text(float(given.operations)).c_str());
        if (c.index >= own.count)
          return fail(TANDEM_ERROR_INVALID_ARGUMENT, "index is %u, there are %u slices", c.index,
                      own.count);
        return program.record_slice(c.stream, a, {named.slicing, given.operations, c.index});
      },
      &call);
}

}  // extern "C"
