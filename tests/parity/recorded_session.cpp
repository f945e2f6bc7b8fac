// SPDX-License-Identifier: MIT OR Apache-2.0
#include "recorded_session.h"

#include <cstring>

#include "../plan/plan_fixture.h"
#include "api/device.h"
#include "api/handles.h"
#include "harness/backends.h"

namespace tandem::harness {

void (*recorded_limits)(const tandem::Plan&, const Caps&) = nullptr;
std::function<void(const tandem::Problem&, const tandem_args&)> recorded_execute;

namespace {

const plan_fixture::Profile* find_profile(const std::string& id) {
  static const std::vector<plan_fixture::Profile> all = plan_fixture::profiles();
  for (const plan_fixture::Profile& p : all)
    if (p.id == id) return &p;
  return nullptr;
}

class RecordedProgram final : public Program {
 public:
  explicit RecordedProgram(const tandem::Problem& problem) : problem_(problem) {}
  Status record(tandem_stream, const tandem_args& args) const override {
    if (recorded_execute) recorded_execute(problem_, args);
    return Status();
  }

 private:
  const tandem::Problem problem_;
};

class RecordedDevice final : public Device {
 public:
  RecordedDevice(const Caps& caps, const DeviceOptions& options) {
    caps_ = caps;
    caps_.disabled = options.disabled;
    log_ = options.log;
  }
  Status build(const tandem::Plan& plan, std::unique_ptr<Program>* program) override {
    if (recorded_limits && caps_.backend == Backend::vulkan) recorded_limits(plan, caps_);
    *program = std::make_unique<RecordedProgram>(plan.problem);
    return Status();
  }
};

Status open_device(const DeviceOptions& options, const void* caps,
                   std::unique_ptr<Device>* device) {
  *device = std::make_unique<RecordedDevice>(*static_cast<const Caps*>(caps), options);
  return Status();
}

class HostBytes final : public Memory {
 public:
  explicit HostBytes(size_t bytes) : room_(bytes + 256) {
    data_ = room_.data() + (256 - reinterpret_cast<uintptr_t>(room_.data()) % 256) % 256;
  }
  void write(const void* data, size_t bytes, size_t offset) override {
    if (bytes > 0) std::memcpy(data_ + offset, data, bytes);
  }
  void read(void* data, size_t bytes, size_t offset) override {
    if (bytes > 0) std::memcpy(data, data_ + offset, bytes);
  }
  void set(uint8_t byte, size_t bytes, size_t offset) override {
    if (bytes > 0) std::memset(data_ + offset, byte, bytes);
  }
  tandem_buffer handle(size_t offset) const override { return address(offset); }
  // As Vulkan's {0, device address}, which the other backends take, too.
  tandem_buffer address(size_t offset) const override {
    return {0, uint64_t(reinterpret_cast<uintptr_t>(data_ + offset))};
  }

 private:
  std::vector<uint8_t> room_;
  uint8_t* data_;
};

class RecordedSession final : public Session {
 public:
  RecordedSession(const std::string& id, const Caps& caps, const SessionOptions& options) {
    name_ = "recorded:" + id;
    const tandem_device_options o = device_options(options);
    tandem_device* device = nullptr;
    if (create_device(&o, &device, open_device, &caps) != TANDEM_OK)
      throw Error(TANDEM_ERROR_INVALID_ARGUMENT, tandem_last_message());
    SessionOptions without = options;
    without.cache = false;  // it makes no pipelines
    adopt(device, without);
  }
  ~RecordedSession() override { close(); }
  void submit(const std::function<void(tandem_stream)>& record) override { record({0}); }
  Session& for_addresses(bool aligned) override { return aligned || !any ? *this : *any; }

  std::unique_ptr<Session> any;  // for_addresses(false); null: this one

 protected:
  std::unique_ptr<Memory> allocate(size_t bytes) override {
    return std::make_unique<HostBytes>(bytes);
  }
  double measure(const std::function<void(tandem_stream)>&, int) override { return 0; }
  const char* clock() const override { return "none"; }
};

}  // namespace

std::set<std::string>& recorded_faults() {
  static std::set<std::string> faults;
  return faults;
}

std::string recorded_backend(const std::string& profile) {
  const plan_fixture::Profile* p = find_profile(profile);
  return p ? backend_name(p->caps.backend) : "";
}

std::unique_ptr<Session> open_recorded(const std::string& profile, const SessionOptions& options) {
  const plan_fixture::Profile* p = find_profile(profile);
  if (!p) throw Error(TANDEM_ERROR_INVALID_ARGUMENT, "no device '" + profile + "' was recorded");
  return std::make_unique<RecordedSession>(profile, p->caps, options);
}

std::unique_ptr<Session> open_twin(Session& session, const Planned& planned) {
  const Caps& caps = session.device()->device->caps();
  SessionOptions options;
  for (const tandem::String& word : caps.disabled)
    options.disable += (options.disable.empty() ? "" : ",") + std::string(word.c_str());
  auto twin = std::make_unique<RecordedSession>(session.name(), caps, options);
  twin->on_plan = [&session, planned](const tandem_problem& p) { planned(session.device(), p); };
  twin->any = std::make_unique<RecordedSession>(session.name(), caps, options);
  twin->any->on_plan = [&session, planned](const tandem_problem& p) {
    planned(session.for_addresses(false).device(), p);
  };
  return twin;
}

}  // namespace tandem::harness
