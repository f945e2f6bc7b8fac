// SPDX-License-Identifier: MIT OR Apache-2.0
// Options of any bits, words of any characters, host memory that ends, and structs and texts of any
// size to write to: a call keeps to what it was given, and gives back all memory.
#include "base/structs.h"

#include <algorithm>
#include <memory>

#include "api/verbose.h"
#include "base/usable_threads.h"
#include "fuzz.h"

using namespace tandem;

namespace {

// Host memory of which one allocation fails.
struct Memory {
  int64_t fails = -1, count = 0, blocks = 0;
  bool failed = false;
};

void* allocate(void* user, size_t size, size_t alignment) {
  Memory& memory = *static_cast<Memory*>(user);
  FUZZ_CHECK(size > 0 && alignment > 0 && (alignment & (alignment - 1)) == 0);
  if (memory.count++ == memory.fails) return memory.failed = true, nullptr;
  void* made = nullptr;
  FUZZ_CHECK(posix_memalign(&made, std::max(alignment, sizeof made), size) == 0);
  ++memory.blocks;
  return made;
}

void release(void* user, void* memory) {
  --static_cast<Memory*>(user)->blocks;
  std::free(memory);
}

// A struct on the heap, of just the bytes that its size says if a version has that size. A size of
// no version is not read behind.
template <typename Struct>
class Given {
 public:
  Given(fuzz::Bytes& bytes, const Struct& base) {
    const uint8_t kind = bytes.byte();
    const uint32_t whole = sizeof(Struct);
    const uint32_t sizes[] = {whole, uint32_t(kFirstSize<Struct>), whole + 8, 4096,
                              uint32_t(bytes.awkward())};
    size_ = sizes[kind % 5];
    legal_ = is_size_of<Struct>(size_);
    room_ = legal_ ? size_ : 8;
    memory_.reset(new uint64_t[(room_ + 7) / 8]());
    std::memcpy(memory_.get(), &base, std::min(room_, sizeof base));
    std::memcpy(memory_.get(), &size_, sizeof size_);
    if (room_ > sizeof base && kind >= 200)
      reinterpret_cast<uint8_t*>(memory_.get())[room_ - 1] = 1;
  }
  Struct* get() { return reinterpret_cast<Struct*>(memory_.get()); }
  // After a call that fills it in: a size of no version is refused.
  void check(tandem_status status) const {
    FUZZ_CHECK(status == TANDEM_OK || status == TANDEM_ERROR_INVALID_STRUCT ||
               status == TANDEM_ERROR_OUT_OF_MEMORY);
    FUZZ_CHECK(legal_ || status != TANDEM_OK);
    FUZZ_CHECK(std::memcmp(memory_.get(), &size_, sizeof size_) == 0);
  }

 private:
  uint32_t size_ = 0;
  bool legal_ = false;
  size_t room_ = 0;
  std::unique_ptr<uint64_t[]> memory_;
};

// Words between commas: of the library's, or any characters.
std::string draw_words(fuzz::Bytes& bytes) {
  static const char* const words[] = {"cpu.simd",  "cuda.sm90", "t64k32", "",        ",",
                                      "error",     "execute",   "all",    "vulkan.", "16x16x16",
                                      "cuda.simt", "plan",      "cpu.ref"};
  std::string list;
  for (int n = bytes.byte() % 6; n > 0; --n) {
    const uint8_t kind = bytes.byte();
    if (kind >= 128)
      list += words[kind % (sizeof words / sizeof *words)];
    else
      for (int c = kind % 40; c > 0 && bytes.left() > 0; --c) list += char(bytes.byte());
    list += ',';
  }
  if (!list.empty() && bytes.one_of(2)) list.pop_back();
  return list.substr(0, list.find('\0'));
}

// A file of /proc or /sys as the quota of threads is read from, or any characters.
String draw_file(fuzz::Bytes& bytes) {
  static const char* const words[] = {"0::/",
                                      "1:cpu,cpuacct:/a",
                                      "/",
                                      "a",
                                      "..",
                                      " ",
                                      "\n",
                                      "max",
                                      "100000",
                                      "-1",
                                      "1e999",
                                      "nan",
                                      ":",
                                      ",",
                                      "cgroup",
                                      " - ",
                                      "1 2 0:1 / /sys/fs/cgroup rw",
                                      "cgroup2",
                                      "cpu",
                                      "18446744073709551616"};
  String text;
  for (int n = bytes.byte() % 24; n > 0; --n) {
    const uint8_t kind = bytes.byte();
    if (kind < 200)
      text += words[kind % (sizeof words / sizeof *words)];
    else
      text += char(kind);
  }
  return text;
}

// The quota of threads, from files as they are there.
void check_quota(fuzz::Bytes& bytes) {
  int files = 0;
  const double quota = control_group_quota([&](const char* path, String* text) {
    FUZZ_CHECK(path && *path);
    *text = ++files < 20 ? draw_file(bytes) : String();
    return !text->empty();
  });
  FUZZ_CHECK(quota >= 0);
}

// A text into a buffer of just so many bytes: as much as fits, and a final NUL.
template <typename Print>
void check_text(size_t capacity, const Memory& memory, Print&& print) {
  const size_t whole = print(nullptr, 0);
  const std::unique_ptr<char[]> text(new char[capacity]);
  std::fill_n(text.get(), capacity, '#');
  const size_t size = print(text.get(), capacity);
  if (memory.failed) return;
  FUZZ_CHECK(size == whole);
  if (capacity == 0) return;
  FUZZ_CHECK(size == 0 ||
             std::memchr(text.get(), 0, capacity) == text.get() + std::min(size, capacity) - 1);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Bytes bytes(data, size);
  const uint8_t kind = bytes.byte();
  if (kind == 127) return check_quota(bytes), 0;
  Memory memory;
  if (kind % 4 == 1) memory.fails = bytes.below(400);
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  const uint8_t threads = bytes.byte();
  options.threads = threads < 250 ? 1 : 1025 + uint32_t(bytes.value<uint16_t>());
  const std::string disable = draw_words(bytes);
  if (bytes.one_of(2)) options.disable = disable.c_str();
  if (bytes.one_of(16)) options.next = &options;
  if (!bytes.one_of(16)) options.allocate = allocate;
  if (!bytes.one_of(16)) options.release = release;
  options.memory_user = &memory;
  tandem_device* const none = reinterpret_cast<tandem_device*>(uintptr_t(0x5a5a5a5a));
  tandem_device* device = none;
  const size_t index = bytes.byte();
  const Caps& caps = fuzz::recorded_caps(index % fuzz::recorded_count());
  const tandem_problem drawn = fuzz::draw_problem(bytes);
  Given<tandem_device_options> given(bytes, options);
  const bool cpu = kind >= 128 && fuzz::is_small_on_cpu(drawn);
  const tandem_status opened = cpu ? tandem_cpu_device_create(given.get(), &device)
                                   : fuzz::open_recorded(caps, given.get(), &device);
  FUZZ_CHECK(!memory.failed || opened == TANDEM_ERROR_OUT_OF_MEMORY);
  uint32_t bits = 0;
  FUZZ_CHECK(parse_verbose(disable.c_str(), &bits).ok() || bits == 0);
  if (opened != TANDEM_OK) {
    FUZZ_CHECK(device == none && memory.blocks == 0);
    FUZZ_CHECK(std::strlen(tandem_last_message()) > 10);
    FUZZ_CHECK(opened == TANDEM_ERROR_INVALID_ARGUMENT || opened == TANDEM_ERROR_INVALID_STRUCT ||
               opened == TANDEM_ERROR_OUT_OF_MEMORY);
    return 0;
  }

  tandem_plan* plan = nullptr;
  const tandem_status status = tandem_plan_create(device, &drawn, &plan);
  if (memory.failed)
    FUZZ_CHECK_OF(status == TANDEM_ERROR_OUT_OF_MEMORY, tandem_status_string(status));
  else if (status != TANDEM_OK)
    FUZZ_CHECK_OF(fuzz::is_refusal(drawn, status), tandem_status_string(status));
  if (plan) {
    Given<tandem_plan_info> info(bytes, tandem_plan_info{});
    info.check(tandem_plan_get_info(plan, info.get()));
    Given<tandem_slices> slices(bytes, tandem_slices{});
    (void)tandem_plan_get_slices(plan, bytes.value<double>(), slices.get());
  }
  Given<tandem_device_info> of_device(bytes, tandem_device_info{});
  of_device.check(tandem_device_get_info(device, of_device.get()));
  Given<tandem_kernel_info> kernel(bytes, tandem_kernel_info{});
  const uint32_t number = bytes.value<uint16_t>() % (tandem_kernel_count() + 2);
  const tandem_status got = tandem_kernel_get(number, kernel.get());
  FUZZ_CHECK(got != TANDEM_OK || number < tandem_kernel_count());

  const size_t capacity = bytes.value<uint16_t>() % 4000;
  check_text(capacity, memory,
             [&](char* text, size_t room) { return tandem_device_describe(device, text, room); });
  check_text(capacity, memory,
             [&](char* text, size_t room) { return tandem_explain(device, &drawn, text, room); });
  check_text(capacity, memory,
             [&](char* text, size_t room) { return tandem_problem_print(&drawn, text, room); });
  size_t room = bytes.value<uint16_t>() % 80;
  const std::unique_ptr<uint8_t[]> blob(new uint8_t[room]);
  (void)tandem_device_get_cache(device, &room, blob.get());

  Given<tandem_problem> fresh(bytes, drawn);
  const uint32_t stated = fresh.get()->struct_size;
  tandem_problem_init_sized(fresh.get(), stated);
  if (is_size_of<tandem_problem>(stated))
    tandem_problem_contiguous(fresh.get(), tandem_dtype(bytes.value<uint32_t>() & 0x7fffffff));

  // A plan may outlive its device.
  const bool plan_first = bytes.one_of(2);
  if (plan_first) tandem_plan_destroy(plan);
  tandem_device_destroy(device);
  if (!plan_first) tandem_plan_destroy(plan);
  FUZZ_CHECK_OF(memory.blocks == 0, fuzz::line_of(drawn));
  return 0;
}
