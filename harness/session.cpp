// SPDX-License-Identifier: MIT OR Apache-2.0
#include "session.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <thread>
#include <utility>

#include "backends.h"
#include "files.h"
#include "guard_pages.h"

namespace tandem::harness {
namespace {

constexpr uint8_t kGuard = 0xff;  // NaN in every format: reading a guard shows in the results too
constexpr size_t kAlignment = 4096;  // of CPU memory: more than any workspace asks for

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class CpuMemory : public HostMemory {
 public:
  explicit CpuMemory(size_t bytes) : storage_(bytes + kAlignment) {
    base_ = storage_.data() +
            (kAlignment - reinterpret_cast<uintptr_t>(storage_.data()) % kAlignment) % kAlignment;
  }
  tandem_buffer handle(size_t offset) const override {
    return {uint64_t(reinterpret_cast<uintptr_t>(base_)), offset};
  }
  tandem_buffer address(size_t offset) const override { return handle(offset); }

 private:
  std::vector<uint8_t> storage_;
};

class CpuSession : public Session {
 public:
  explicit CpuSession(const SessionOptions& options) {
    name_ = "cpu";
    on_cpu_ = takes_host_memory_ = true;
    const tandem_device_options o = device_options(options);
    tandem_device* device = nullptr;
    check(tandem_cpu_device_create(&o, &device));
    adopt(device, options);
  }
  ~CpuSession() override { close(); }
  void submit(const std::function<void(tandem_stream)>& record) override { record({0}); }

 protected:
  std::unique_ptr<Memory> allocate(size_t bytes) override {
    return std::make_unique<CpuMemory>(bytes);
  }
  double measure(const std::function<void(tandem_stream)>& record, int times) override {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) record({0});
    return seconds_since(start);
  }
  const char* clock() const override { return "wall"; }
};

template <typename Call>
std::string sized_text(Call call) {
  std::string text(call(nullptr, 0), '\0');
  if (text.empty()) return text;
  call(&text[0], text.size());
  text.resize(std::strlen(text.c_str()));
  return text;
}

}  // namespace

void check(tandem_status status) {
  if (status == TANDEM_OK) return;
  throw Error(status, std::string(tandem_status_string(status)) + ": " + tandem_last_message());
}

tandem_device_options device_options(const SessionOptions& options) {
  tandem_device_options o = TANDEM_DEVICE_OPTIONS_INIT;
  o.threads = options.threads;
  o.log = options.log;
  o.user = options.user;
  o.disable = options.disable.empty() ? nullptr : options.disable.c_str();
  return o;
}

std::vector<DeviceName> list_devices() {
  std::vector<DeviceName> devices;
  DeviceName cpu;
  cpu.name = "cpu";
  cpu.human = std::to_string(std::thread::hardware_concurrency()) + " processors";
  devices.push_back(cpu);
  list_vulkan(&devices);
  list_cuda(&devices);
  return devices;
}

std::vector<std::string> usable_devices() {
  std::vector<std::string> names;
  for (const DeviceName& d : list_devices())
    if (d.usable()) names.push_back(d.name);
  return names;
}

std::vector<std::string> paths_of(const std::string& device) {
  const std::string backend = device.substr(0, device.find_first_of(":/"));
  std::vector<std::string> paths;
  for (const tandem_kernel_info& k : registry())
    if (backend == k.backend && k.built &&
        std::find(paths.begin(), paths.end(), k.path) == paths.end())
      paths.push_back(k.path);
  return paths;
}

// ---- Buffer -------------------------------------------------------------------------------------

Buffer::Buffer(std::unique_ptr<Memory> memory, size_t bytes, size_t front, size_t back)
    : memory_(std::move(memory)), bytes_(bytes), front_(front), back_(back) {
  if (front_) memory_->set(kGuard, front_, 0);
  // The end of the data need not lie on a whole word: the few bytes up to there are set by hand.
  const std::vector<uint8_t> edge(std::min(back_, (bytes + 3) / 4 * 4 - bytes), kGuard);
  memory_->write(edge.data(), edge.size(), front_ + bytes);
  const size_t words = back_ - edge.size();
  if (words) memory_->set(kGuard, words, front_ + bytes + edge.size());
}

void Buffer::upload(const void* data, size_t bytes, size_t offset) {
  if (bytes > bytes_ || offset > bytes_ - bytes)
    throw Error(TANDEM_ERROR_INVALID_ARGUMENT, "an upload past the end of a buffer");
  if (bytes) memory_->write(data, bytes, front_ + offset);
}

void Buffer::download(void* data, size_t bytes, size_t offset) const {
  if (bytes > bytes_ || offset > bytes_ - bytes)
    throw Error(TANDEM_ERROR_INVALID_ARGUMENT, "a download past the end of a buffer");
  if (bytes) memory_->read(data, bytes, front_ + offset);
}

void Buffer::fill(uint8_t byte) {
  const size_t words = bytes_ / 4 * 4;
  if (words) memory_->set(byte, words, front_);
  const std::vector<uint8_t> rest(bytes_ - words, byte);
  if (!rest.empty()) memory_->write(rest.data(), rest.size(), front_ + words);
}

tandem_buffer Buffer::handle(size_t offset) const {
  return memory_ ? memory_->handle(front_ + offset) : tandem_buffer{0, 0};
}

tandem_buffer Buffer::address(size_t offset) const {
  return memory_ ? memory_->address(front_ + offset) : tandem_buffer{0, 0};
}

std::string Buffer::broken_guard() const {
  if (!memory_) return {};
  std::vector<uint8_t> zone(std::max(front_, back_));
  memory_->read(zone.data(), front_, 0);
  for (size_t i = front_; i-- > 0;)
    if (zone[i] != kGuard)
      return "byte " + std::to_string(front_ - i) + " before the buffer was written";
  memory_->read(zone.data(), back_, front_ + bytes_);
  for (size_t i = 0; i < back_; ++i)
    if (zone[i] != kGuard)
      return "byte " + std::to_string(i) + " after the buffer's " + std::to_string(bytes_) +
             " bytes was written";
  return {};
}

// ---- Session ------------------------------------------------------------------------------------

std::unique_ptr<Session> Session::open(const std::string& name, const SessionOptions& options) {
  SessionOptions used = options;
  used.aligned &= name.rfind("vulkan", 0) == 0;
  if (used.aligned) used.disable += used.disable.empty() ? "unaligned" : ",unaligned";
  std::unique_ptr<Session> session = open_as(name, used);
  session->opened_as_ = name;
  session->options_ = options;
  session->options_.aligned = used.aligned;
  return session;
}

Session& Session::for_addresses(bool aligned) {
  if (aligned || !options_.aligned) return *this;
  if (!any_address_) {
    SessionOptions any = options_;
    any.aligned = false;
    any_address_ = open(opened_as_, any);
  }
  return *any_address_;
}

std::unique_ptr<Session> Session::open_as(const std::string& name, const SessionOptions& options) {
  if (const size_t slash = name.find('/'); slash != std::string::npos) {
    const std::string path = name.substr(slash + 1),
                      backend = name.substr(0, name.find_first_of(":/"));
    SessionOptions only = options;
    bool known = false;
    for (const std::string& other : paths_of(name)) {
      known |= other == path;
      if (other != path) only.disable += (only.disable.empty() ? "" : ",") + backend + "." + other;
    }
    if (!known)
      throw Error(TANDEM_ERROR_INVALID_ARGUMENT,
                  "'" + name + "': " + backend + " has no path '" + path + "' in this build");
    std::unique_ptr<Session> session = open_as(name.substr(0, slash), only);
    session->name_ += "/" + path;
    return session;
  }
  const size_t colon = name.find(':');
  const std::string backend = name.substr(0, colon);
  int index = 0;
  if (colon != std::string::npos) {
    char* end = nullptr;
    const std::string digits = name.substr(colon + 1);
    index = int(std::strtol(digits.c_str(), &end, 10));
    if (digits.empty() || *end != '\0' || index < 0)
      throw Error(TANDEM_ERROR_INVALID_ARGUMENT, "'" + name + "' has no device number behind ':'");
  }
  if (backend == "cpu" && index == 0) return std::make_unique<CpuSession>(options);
  if (backend == "vulkan") return open_vulkan(index, options);
  if (backend == "cuda") return open_cuda(index, options);
  throw Error(TANDEM_ERROR_INVALID_ARGUMENT,
              "no device is named '" + name + "'; names are cpu, vulkan:N and cuda:N");
}

void Session::adopt(tandem_device* device, const SessionOptions& options) {
  device_ = device;
  info_.struct_size = sizeof(info_);
  check(tandem_device_get_info(device_, &info_));
  const std::string caps = describe(device_), word = "denormals";
  const size_t at = caps.find(word), end = caps.find('\n', at);
  loses_denormals_ =
      at != std::string::npos &&
      caps.substr(at + word.size(), end - at - word.size()).find("no") != std::string::npos;
  const char* folder = std::getenv("TANDEM_CACHE");
  if (!options.cache || !folder || !*folder || backend() != "vulkan") return;
  if (!make_folder(folder))
    throw Error(TANDEM_ERROR_CACHE, "TANDEM_CACHE names no folder, and none can be made there");
  // A file for each device and what it does without, as those that run the paths one by one do.
  const char* disable = std::getenv("TANDEM_DISABLE");
  uint64_t hash = 0xcbf29ce484222325u;
  for (const std::string& part : {std::string(info_.name), std::string(info_.driver),
                                  options.disable, std::string(disable ? disable : "")})
    for (const char c : part + "\n") hash = (hash ^ uint8_t(c)) * 0x100000001b3u;
  char name[64];
  std::snprintf(name, sizeof(name), "/tandem-%016llx.cache", (unsigned long long)hash);
  cache_file_ = folder + std::string(name);
  load_cache();
}

void Session::load_cache() {
  std::ifstream file(cache_file_, std::ios::binary);
  if (!file) return;
  const std::vector<char> blob{std::istreambuf_iterator<char>(file), {}};
  const tandem_status status = tandem_device_set_cache(device_, blob.size(), blob.data());
  if (status == TANDEM_ERROR_CACHE) return;  // of another build, driver or device
  check(status);
  cache_loaded_ = blob.size();
}

// Whole or not at all, as other processes may read it.
void Session::save_cache() const {
  size_t size = 0;
  check(tandem_device_get_cache(device_, &size, nullptr));
  std::vector<char> blob(size);
  check(tandem_device_get_cache(device_, &size, blob.data()));
  if (size == cache_loaded_) return;
  const std::string part = cache_file_ + "." + std::to_string(std::random_device{}()) + ".part";
  std::ofstream file(part, std::ios::binary);
  file.write(blob.data(), std::streamsize(size));
  file.close();
  if (!file || !replace_file(part, cache_file_)) {
    std::remove(part.c_str());
    throw Error(TANDEM_ERROR_CACHE, "the pipelines could not be written into TANDEM_CACHE");
  }
}

void Session::close() {
  if (device_ && !cache_file_.empty()) {
    try {
      save_cache();
    } catch (const std::exception& e) {  // destructors call this
      std::fprintf(stderr, "tandem: %s\n", e.what());
    }
  }
  tandem_device_destroy(device_);
  device_ = nullptr;
}

Buffer Session::buffer(size_t bytes, bool guarded, const char* name, size_t alignment) {
  if (const GuardPages pages = guard_pages(); pages != GuardPages::off) {
    if (!takes_host_memory_)
      throw Error(TANDEM_ERROR_UNSUPPORTED,
                  "TANDEM_GUARD_PAGES is for devices that take the host's memory, which " + name_ +
                      " does not");
    if (alignment == 0) alignment = bytes == 0 ? 16 : std::min<size_t>(bytes & (0 - bytes), 16);
    const size_t aligned = (bytes + alignment - 1) / alignment * alignment,
                 room = whole_pages(aligned),
                 front = pages == GuardPages::last ? room - aligned : 0;
    return Buffer(memory_between_pages(room, name, front, bytes), bytes, front,
                  room - front - bytes);
  }
  const size_t aligned = (bytes + 15) / 16 * 16, around = guarded ? kGuardBytes : 0;
  return Buffer(allocate(std::max<size_t>(aligned + 2 * around, 16)), bytes, around,
                guarded ? aligned - bytes + around : 0);
}

void Session::run(const tandem_plan* plan, const tandem_args& args) {
  submit([&](tandem_stream stream) { check(tandem_execute(plan, stream, &args)); });
}

void Session::run_in_slices(const tandem_plan* plan, const tandem_args& args, double part) {
  tandem_slices slices{};
  slices.struct_size = sizeof slices;
  check(tandem_plan_get_slices(plan, 1e300, &slices));
  if (slices.whole > 0) check(tandem_plan_get_slices(plan, slices.whole / part, &slices));
  for (uint32_t n = 0; n < slices.count; ++n)
    submit([&](tandem_stream stream) {
      check(tandem_execute_slice(plan, stream, &args, &slices, n));
    });
}

Timing Session::time(const tandem_plan* plan, const tandem_args& args, const TimeOptions& options) {
  return time([&](tandem_stream stream) { check(tandem_execute(plan, stream, &args)); }, options);
}

Timing Session::time(const std::function<void(tandem_stream)>& record, const TimeOptions& options) {
  return time_in_turns({record}, options)[0];
}

std::vector<Timing> Session::time_in_turns(
    const std::vector<std::function<void(tandem_stream)>>& records, const TimeOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const double warmup =
      options.warmup_seconds >= 0 ? options.warmup_seconds : (on_cpu_ ? 0.1 : 1.0);
  const double round_seconds =
      options.round_seconds >= 0 ? options.round_seconds : (on_cpu_ ? 0.0 : 0.6);
  const size_t count = records.size();
  const auto repeats = [&](double one) {
    return int(
        std::clamp(std::ceil(options.min_sample_seconds / std::max(one, 1e-7)), 1.0, 1000.0));
  };
  // Idle GPUs run at a fraction of their clock and take up to a second of work to speed up; only
  // then is it known how many executes fill a sample.
  std::vector<double> one(count);
  for (size_t i = 0; i < count; ++i) one[i] = measure(records[i], 1);
  const auto warm_start = std::chrono::steady_clock::now();
  do {
    for (size_t i = 0; i < count; ++i) {
      const int n = repeats(one[i]);
      one[i] = measure(records[i], n) / n;
    }
  } while (seconds_since(warm_start) < warmup);

  std::vector<Timing> times(count);
  for (size_t i = 0; i < count; ++i) {
    times[i].executes = repeats(one[i]);
    times[i].clock = clock();
  }
  std::vector<std::vector<double>> before(count), round(count);
  const auto median = [](std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v.size() % 2 ? v[v.size() / 2] : 0.5 * (v[v.size() / 2 - 1] + v[v.size() / 2]);
  };
  // A clock follows the load of some milliseconds before, so no item always follows the same one.
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t(0));
  std::mt19937 random;
  const auto shuffle = [&] {
    for (size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  };
  bool late = false;
  for (bool agreed = count == 0; !late && !agreed;) {
    if (!round[0].empty()) before = std::move(round);
    round.assign(count, {});
    const auto round_start = std::chrono::steady_clock::now();
    const auto more = [&](int turn) {
      return turn < options.min_reps || seconds_since(round_start) < round_seconds;
    };
    for (int turn = 0; turn == 0 || (!late && more(turn)); ++turn) {
      shuffle();
      for (size_t i : order)
        round[i].push_back(1e3 * measure(records[i], times[i].executes) / times[i].executes);
      late = seconds_since(start) > options.max_seconds * double(count);
    }
    agreed = true;
    for (size_t i = 0; i < count; ++i) {
      const double last = before[i].empty() ? 0 : median(before[i]);
      times[i].agreed =
          !before[i].empty() && std::fabs(median(round[i]) - last) <= options.agree * last;
      agreed &= times[i].agreed;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    Timing& t = times[i];
    round[i].insert(round[i].end(), before[i].begin(), before[i].end());
    t.median_ms = median(round[i]);
    t.min_ms = *std::min_element(round[i].begin(), round[i].end());
    t.max_ms = *std::max_element(round[i].begin(), round[i].end());
    t.spread = t.median_ms > 0 ? (t.max_ms - t.min_ms) / t.median_ms : 0;
    t.reps = int(round[i].size());
  }
  return times;
}

// ---- Plan and texts -----------------------------------------------------------------------------

Plan::Plan(const Session& session, const tandem_problem& problem) {
  if (session.on_plan) session.on_plan(problem);
  check(tandem_plan_create(session.device(), &problem, &plan_));
  info_.struct_size = sizeof(info_);
  check(tandem_plan_get_info(plan_, &info_));
}

Plan::Plan(Plan&& other) noexcept : plan_(other.plan_), info_(other.info_) {
  other.plan_ = nullptr;
}

Plan& Plan::operator=(Plan&& other) noexcept {
  std::swap(plan_, other.plan_);
  std::swap(info_, other.info_);
  return *this;
}

std::string without_numbers(const std::string& message) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  std::string plain;
  bool name = false;  // in a word that begins with a letter
  for (size_t at = 0; at < message.size(); ++at) {
    const char c = message[at];
    // A dot parts numbers, as in 0.5, and holds names together, as in cuda.sm80.
    const bool dot =
        c == '.' && at > 0 && at + 1 < message.size() &&
        (name ? letter(message[at + 1]) : digit(message[at - 1]) && digit(message[at + 1]));
    if (name && (digit(c) || dot)) {
      plain += c;
    } else if (digit(c) || dot) {
      if (plain.empty() || plain.back() != '#') plain += '#';
    } else {
      plain += c;
      name = letter(c) && (name || at == 0 || !digit(message[at - 1]));
    }
  }
  return plain;
}

std::string print(const tandem_problem& problem) {
  return sized_text([&](char* text, size_t n) { return tandem_problem_print(&problem, text, n); });
}

tandem_problem parse(const std::string& line) {
  tandem_problem problem;
  tandem_problem_init(&problem);
  check(tandem_problem_parse(line.c_str(), &problem));
  return problem;
}

std::string explain(const tandem_device* device, const tandem_problem& problem) {
  return sized_text(
      [&](char* text, size_t n) { return tandem_explain(device, &problem, text, n); });
}

std::string describe(const tandem_device* device) {
  return sized_text([&](char* text, size_t n) { return tandem_device_describe(device, text, n); });
}

std::string short_kernel_name(const tandem_kernel_info& k) {
  return std::string(k.stem) + (*k.variant ? "." : "") + k.variant;
}

std::string kernel_name(const tandem_kernel_info& k) {
  return std::string(k.backend) + "." + k.path + "." + short_kernel_name(k);
}

std::vector<tandem_kernel_info> registry() {
  std::vector<tandem_kernel_info> kernels(tandem_kernel_count());
  for (uint32_t i = 0; i < kernels.size(); ++i) {
    kernels[i].struct_size = sizeof(kernels[i]);
    check(tandem_kernel_get(i, &kernels[i]));
  }
  return kernels;
}

}  // namespace tandem::harness
