// SPDX-License-Identifier: MIT OR Apache-2.0
// A device and its memory, whatever the backend: for tools, tests, bench and examples. Not part of
// the library, not installed. It uses tandem's public API and, for memory and clocks, Vulkan and
// CUDA themselves, as an application would.
//
// Everything here throws Error when it fails. Nothing here is thread-safe per session; different
// sessions may live on different threads.
#ifndef TANDEM_HARNESS_SESSION_H
#define TANDEM_HARNESS_SESSION_H
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tandem/tandem.h"

namespace tandem::harness {

class Error : public std::runtime_error {
 public:
  Error(tandem_status code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  tandem_status code() const { return code_; }

 private:
  tandem_status code_;
};

// Throws Error with tandem_last_message() unless status is TANDEM_OK.
void check(tandem_status status);

// ---- devices
// --------------------------------------------------------------------------------------

struct DeviceName {
  std::string name;    // "cpu", "vulkan:0", "cuda:0": what Session::open() takes
  std::string human;   // as the driver says it
  std::string reason;  // why it cannot be used: no driver, not in this build, ...; empty: usable
  bool cpu_driver = false;  // a Vulkan driver that runs on the CPU (lavapipe, SwiftShader)
  bool usable() const { return reason.empty(); }
};

// All devices of the machine. A backend without any device is one entry ("vulkan", "cuda") with the
// reason. Never throws for a missing driver.
std::vector<DeviceName> list_devices();

// The usable names among them, "cpu" first.
std::vector<std::string> usable_devices();

// The paths that this build has on the backend of a device name: "cpu" gives "ref", "simd".
std::vector<std::string> paths_of(const std::string& device);

// ---- memory
// ---------------------------------------------------------------------------------------

constexpr size_t kGuardBytes = 4096;

// A backend's piece of device memory; Buffer is its face.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual void write(const void* data, size_t bytes, size_t offset) = 0;
  virtual void read(void* data, size_t bytes, size_t offset) = 0;
  virtual void set(uint8_t byte, size_t bytes, size_t offset) = 0;  // multiples of 4
  virtual tandem_buffer handle(size_t offset) const = 0;
  virtual tandem_buffer address(size_t offset) const = 0;
};

// Memory that the host reaches, from base_ on.
class HostMemory : public Memory {
 public:
  void write(const void* data, size_t bytes, size_t offset) override {
    if (bytes) std::memcpy(base_ + offset, data, bytes);
  }
  void read(void* data, size_t bytes, size_t offset) override {
    if (bytes) std::memcpy(data, base_ + offset, bytes);
  }
  void set(uint8_t byte, size_t bytes, size_t offset) override {
    std::memset(base_ + offset, byte, bytes);
  }

 protected:
  uint8_t* base_ = nullptr;
};

// Device memory. With guards, kGuardBytes before and after it hold a pattern that must not
// change, or all that there is up to pages that must not be touched (guard_pages.h). Destroy
// buffers before their session.
class Buffer {
 public:
  Buffer() = default;
  // front, back: bytes of the memory before and behind the buffer that hold the pattern.
  Buffer(std::unique_ptr<Memory> memory, size_t bytes, size_t front, size_t back);
  explicit operator bool() const { return memory_ != nullptr; }
  size_t size() const { return bytes_; }

  void upload(const void* data, size_t bytes, size_t offset = 0);
  void download(void* data, size_t bytes, size_t offset = 0) const;
  void fill(uint8_t byte);  // every byte; 0xff makes every f32, f16, bf16 and f64 a NaN

  template <typename T>
  void upload(const std::vector<T>& data) {
    upload(data.data(), data.size() * sizeof(T));
  }
  template <typename T>
  std::vector<T> download_as() const {
    std::vector<T> data(bytes_ / sizeof(T));
    download(data.data(), data.size() * sizeof(T));
    return data;
  }

  // For tandem_args; {0, 0} for an empty Buffer. address(): on Vulkan the {0, device address} form,
  // elsewhere the same as handle().
  tandem_buffer handle(size_t offset = 0) const;
  tandem_buffer address(size_t offset = 0) const;

  // "" while the guards are untouched, else where the first changed byte lies. "" without guards.
  std::string broken_guard() const;
  bool guards_intact() const { return broken_guard().empty(); }

 private:
  std::unique_ptr<Memory> memory_;
  size_t bytes_ = 0, front_ = 0, back_ = 0;  // back_: 0 without guards, or at a page
};

// ---- sessions
// -------------------------------------------------------------------------------------

struct SessionOptions {
  std::string disable;   // tandem_device_options.disable
  uint32_t threads = 0;  // CPU device
  void (*log)(void* user, tandem_log_level level, const char* message) = nullptr;
  void* user = nullptr;
  // Vulkan: buffers above this many bytes are bound sparsely in pieces; 0: above what one
  // allocation can hold.
  uint64_t piece_bytes = 0;
  bool cache = true;  // false: as if TANDEM_CACHE were not set
  // Vulkan: a device that takes addresses of multiples of 16 alone, which has half the pipelines to
  // compile; for_addresses() opens another one for the rest.
  bool aligned = false;
};

struct TimeOptions {
  double warmup_seconds = -1;        // of continuous work; < 0: 1 on a GPU, 0.1 on a CPU
  int min_reps = 7;                  // samples of a round
  double min_sample_seconds = 0.02;  // executes are repeated within a sample up to this
  // Least time of a round, of all that are timed together; < 0: 0.6 on a GPU, 0 on a CPU. At its
  // power limit an H100 slows down by up to 13 % for 0.2 s about every 1.1 s, the first time a
  // second after work begins: two rounds hold one slow time.
  double round_seconds = -1;
  double max_seconds = 10;  // no new sample after this much time, for each that is timed
  double agree = 0.02;      // done when two successive rounds' medians differ by less
};

struct Timing {
  double median_ms = 0, min_ms = 0, max_ms = 0;  // of one execute, over the last two rounds
  double spread = 0;                             // (max - min) / median
  int reps = 0;                                  // samples that these numbers come from
  int executes = 0;                              // executes of a sample
  bool agreed = false;                           // false: max_seconds came first
  const char* clock = "";                        // "timestamps", "events", "wall"
};

// TANDEM_CACHE in the environment names a folder, which must be there: sessions on Vulkan begin
// with the pipelines of a file in it, and leave theirs there when they end. A file of another
// build, driver or device is passed over, and written anew.
class Session {
 public:
  // "cpu", "vulkan" (the first), "vulkan:1", "cuda:0". "cpu/ref" is the device with its other paths
  // disabled. Throws Error with the reason.
  static std::unique_ptr<Session> open(const std::string& name, const SessionOptions& options = {});
  virtual ~Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // This session, or where it is of SessionOptions::aligned one like it that takes any address.
  virtual Session& for_addresses(bool aligned);

  const std::string& name() const { return name_; }  // "vulkan:0", also when opened as "vulkan"
  tandem_device* device() const { return device_; }
  const tandem_device_info& info() const { return info_; }
  std::string backend() const { return info_.backend; }
  // Whether the device lists no way to keep f32 numbers below 2^-126, as NVIDIA's Vulkan does not.
  bool loses_denormals() const { return loses_denormals_; }
  bool on_cpu() const { return on_cpu_; }  // the CPU device, or a Vulkan driver that runs there

  // With guard pages a fault names the buffer, and the address has this alignment and no better
  // one; 0: that of the size, up to 16.
  Buffer buffer(size_t bytes, bool guarded = true, const char* name = "a buffer",
                size_t alignment = 0);

  // Runs what record() records and waits for it; memory is visible before and after.
  virtual void submit(const std::function<void(tandem_stream)>& record) = 0;
  void run(const tandem_plan* plan, const tandem_args& args);
  // The same in slices of a `part` of the work each, submitted one by one.
  void run_in_slices(const tandem_plan* plan, const tandem_args& args, double part);
  Timing time(const tandem_plan* plan, const tandem_args& args, const TimeOptions& options = {});
  Timing time(const std::function<void(tandem_stream)>& record, const TimeOptions& options = {});
  // The same of several: a sample of each after the other, in another order every time, so that a
  // clock that drifts hits all alike. It ends when the medians of all agree.
  std::vector<Timing> time_in_turns(const std::vector<std::function<void(tandem_stream)>>& records,
                                    const TimeOptions& options = {});

  // Called by Plan() with its problem, if it is not empty.
  std::function<void(const tandem_problem&)> on_plan;

  // Messages of validation layers so far (printed to stderr as they come). Layers are switched on
  // from outside, by VK_INSTANCE_LAYERS.
  virtual int validation_messages() const { return 0; }

 protected:
  Session() = default;
  void adopt(tandem_device* device, const SessionOptions& options);  // takes ownership
  void close();  // destroys the device; derived destructors call it first
  virtual std::unique_ptr<Memory> allocate(size_t bytes) = 0;
  // Seconds on the device's clock of `times` recordings, each after the one before.
  virtual double measure(const std::function<void(tandem_stream)>& record, int times) = 0;
  virtual const char* clock() const = 0;

  std::string name_;
  bool on_cpu_ = false;
  bool takes_host_memory_ = false;  // at any address, as if it were the device's
  bool loses_denormals_ = false;
  tandem_device* device_ = nullptr;
  tandem_device_info info_{};

 private:
  static std::unique_ptr<Session> open_as(const std::string& name, const SessionOptions& options);
  void load_cache();
  void save_cache() const;
  std::string opened_as_;                 // the name that open() was given
  SessionOptions options_;                // its options
  std::unique_ptr<Session> any_address_;  // for_addresses()
  std::string cache_file_;                // empty: none
  size_t cache_loaded_ = 0;               // bytes
};

// All validation messages of the process so far, sessions that are gone included.
int total_validation_messages();

// ---- plans
// ----------------------------------------------------------------------------------------

class Plan {
 public:
  Plan() = default;
  Plan(const Session& session, const tandem_problem& problem);  // throws Error
  ~Plan() { tandem_plan_destroy(plan_); }
  Plan(Plan&& other) noexcept;
  Plan& operator=(Plan&& other) noexcept;
  operator const tandem_plan*() const { return plan_; }
  const tandem_plan_info& info() const { return info_; }

 private:
  tandem_plan* plan_ = nullptr;
  tandem_plan_info info_{};
};

// A message so that equal ones can be counted: '#' for each number that stands by itself. Names
// keep their digits.
std::string without_numbers(const std::string& message);

std::string print(const tandem_problem& problem);  // the problem line
tandem_problem parse(const std::string& line);     // throws Error
std::string explain(const tandem_device* device, const tandem_problem& problem);
std::string describe(const tandem_device* device);
std::vector<tandem_kernel_info> registry();
// "fwd.decoupled", and "cuda.sm90.fwd.decoupled"; without the variant where there is only one.
std::string short_kernel_name(const tandem_kernel_info& kernel);
std::string kernel_name(const tandem_kernel_info& kernel);

}  // namespace tandem::harness
#endif
