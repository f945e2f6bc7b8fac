// SPDX-License-Identifier: MIT OR Apache-2.0
#include "fuzz.h"

#include <cstdio>
#include <limits>

#include "api/device.h"
#include "api/handles.h"
#include "compare.h"
#include "kernels/args.h"
#include "kernels/params.h"
#include "models.h"
#include "tests/plan/plan_fixture.h"

namespace fuzz {

using namespace tandem;

void die(const char* file, int line, const char* condition, const std::string& more) {
  std::fprintf(stderr, "%s:%d: %s does not hold: %s\n  last message: %s\n", file, line, condition,
               more.c_str(), tandem_last_message());
  std::abort();
}

int64_t Bytes::awkward() {
  constexpr int64_t kLimit = int64_t(1) << 29;  // of lengths of sequences
  const uint8_t kind = byte();
  if (kind < 96) return kind;
  if (kind < 128) return value<uint16_t>();
  if (kind >= 250) return value<int64_t>();
  static const int64_t numbers[] = {-1,
                                    -2,
                                    96,
                                    128,
                                    255,
                                    256,
                                    257,
                                    576,
                                    577,
                                    1024,
                                    4096,
                                    65535,
                                    65536,
                                    1 << 20,
                                    kLimit - 1,
                                    kLimit,
                                    std::numeric_limits<int32_t>::max(),
                                    std::numeric_limits<int32_t>::min(),
                                    int64_t(1) << 32,
                                    int64_t(1) << 48,
                                    int64_t(1) << 58,
                                    int64_t(1) << 60,
                                    std::numeric_limits<int64_t>::max(),
                                    std::numeric_limits<int64_t>::min(),
                                    0x7fc000007fc00000,
                                    0x7f8000003f800000};
  return numbers[kind % (sizeof(numbers) / sizeof(*numbers))];
}

namespace {

// Changes a member to something that is legal for many problems, or to any bits.
void spoil(Bytes& bytes, tandem_problem* p) {
  using P = tandem_problem;
  switch (bytes.byte() % 5) {
    case 0: {  // any bits anywhere behind struct_size
      const size_t width = bytes.one_of(2) ? 4 : 8, first = sizeof(p->struct_size);
      const size_t words = (sizeof(*p) - 8) / width;
      const size_t place = (width == 4 ? first : 8) + size_t(bytes.below(int64_t(words))) * width;
      const int64_t number = bytes.awkward();
      if (place != offsetof(P, next))
        std::memcpy(reinterpret_cast<char*>(p) + place, &number, width);
      break;
    }
    case 1: {  // a size, and what follows from it
      const auto member = bytes.pick({&P::batch, &P::heads_q, &P::heads_kv, &P::seq_q, &P::seq_kv,
                                      &P::head_dim, &P::head_dim_v, &P::total_q, &P::total_kv});
      p->*member = bytes.awkward();
      const uint32_t dtype = harness::main_dtype(*p);
      tandem_problem_contiguous(p, tandem_dtype(dtype >= 1 && dtype <= 8 ? dtype : TANDEM_F32));
      break;
    }
    case 2: {  // a choice
      const auto member =
          bytes.pick({&P::direction, &P::mask, &P::align, &P::gradients, &P::flags, &P::tile_rows,
                      &P::tile_cols, &P::splits, &P::normalizer, &P::alibi, &P::sink, &P::lengths_q,
                      &P::lengths_kv, &P::cores, &P::d_lse, &P::merge_into, &P::bias_index_dtype});
      p->*member = uint32_t(bytes.awkward());
      break;
    }
    case 3: {  // an optional input's size
      const auto member = bytes.pick({&P::window_left,     &P::window_right,
                                      &P::dist_window,     &P::bias_batch,
                                      &P::bias_heads,      &P::bias_rows,
                                      &P::keep_batch,      &P::keep_heads,
                                      &P::keep_rows,       &P::spans,
                                      &P::spans_batch,     &P::spans_heads,
                                      &P::block_q,         &P::block_kv,
                                      &P::block_width,     &P::block_bits,
                                      &P::block_batch,     &P::block_heads,
                                      &P::slopes_batch,    &P::sinks_batch,
                                      &P::bias_table_size, &P::bias_index_batch,
                                      &P::max_logit_batch, &P::parts,
                                      &P::part_stride,     &P::d_part_stride});
      p->*member = bytes.awkward();
      break;
    }
    default: {  // a stride, or a type
      const auto member =
          bytes.pick({&P::q, &P::k, &P::v, &P::o, &P::d_o, &P::d_q, &P::d_k, &P::d_v, &P::bias,
                      &P::d_bias, &P::keep, &P::part_o, &P::d_part_o});
      const uint8_t dim = bytes.byte() % 5;
      if (dim < 4)
        (p->*member).stride[dim] = bytes.awkward();
      else
        (p->*member).dtype = uint32_t(bytes.awkward());
    }
  }
}

}  // namespace

tandem_problem draw_problem(Bytes& bytes) {
  const uint8_t kind = bytes.byte();
  const uint64_t seed = bytes.value<uint16_t>();
  harness::RandomLimits limits;
  limits.tidy = 40;
  limits.f64 = 5;
  if (kind % 4 == 1) limits.max_seq = 20000, limits.max_work = int64_t(1) << 40;
  tandem_problem p = kind % 8 == 7   ? harness::random_merge(seed)
                     : kind % 4 == 3 ? harness::random_model_problem(seed, int64_t(1) << 44)
                                     : harness::random_problem(seed, limits);
  for (int n = bytes.byte() % 5; n > 0; --n) spoil(bytes, &p);
  if (bytes.one_of(8)) p.workspace_limit = uint64_t(bytes.awkward());
  if (bytes.one_of(4)) p.flags |= TANDEM_FLAG_SLICES;
  return p;
}

std::string line_of(const tandem_problem& problem) {
  std::string line(tandem_problem_print(&problem, nullptr, 0), '\0');
  FUZZ_CHECK(!line.empty());
  tandem_problem_print(&problem, &line[0], line.size());
  line.pop_back();
  return line;
}

bool is_refusal(const tandem_problem& problem, tandem_status status) {
  return status == TANDEM_ERROR_INVALID_ARGUMENT || status == TANDEM_ERROR_INVALID_LAYOUT ||
         status == TANDEM_ERROR_INVALID_STRUCT || status == TANDEM_ERROR_UNSUPPORTED ||
         (status == TANDEM_ERROR_WORKSPACE && problem.workspace_limit > 0);
}

// ---- recorded devices ----
namespace {

// Kernels of cuda.sm90 have no constants but these.
bool has_spec(const Launch& l) {
  return !l.as<Sm90Launch>() || l.stem == Stem::bwd_row_sums_dq || l.stem == Stem::bwd_head_sums;
}

// What a GPU's program fills for each launch.
void fill_launch(const Plan& plan, const Launch& l, const Addresses& a) {
  bool wide = false;
  switch (l.stem) {
#define TANDEM_HOPPER(Name, name)                  \
  case Stem::name:                                 \
    (void)name##_block(plan, l);                   \
    (void)name##_push(plan, l, a);                 \
    (void)name##_push_and_wide(plan, l, a, &wide); \
    break;
#define TANDEM_STEM(Name, name)                    \
  case Stem::name:                                 \
    if (has_spec(l)) (void)name##_spec(plan, l);   \
    (void)name##_block(plan, l);                   \
    (void)name##_push(plan, l, a);                 \
    (void)name##_push_and_wide(plan, l, a, &wide); \
    break;
#include "kernels/stems.inc"
    default:
      break;
  }
}

class RecordedProgram final : public Program {
 public:
  explicit RecordedProgram(const Plan& plan) : plan_(plan) {}
  Status record(tandem_stream, const tandem_args& args) const override {
    Addresses a;
    TANDEM_TRY(resolve_args(
        plan_, arg_uses(plan_), args,
        [](const ArgUse&, const tandem_buffer& buffer, uint64_t* address) {
          *address = buffer.handle + buffer.offset;
          return Status();
        },
        &a));
    if (plan_.backend == Backend::cpu) return Status();
    for (const int row : kernels_at(plan_, args))
      FUZZ_CHECK(row >= 0 && row < kKernelCount && kKernels[row].backend == plan_.backend);
    for (const Launch& l : plan_.launches) fill_launch(plan_, l, a);
    return Status();
  }

 private:
  const Plan plan_;
};

class RecordedDevice final : public Device {
 public:
  RecordedDevice(const Caps& caps, const DeviceOptions& options) {
    caps_ = caps, log_ = options.log;
    caps_.disabled.insert(caps_.disabled.end(), options.disabled.begin(), options.disabled.end());
  }
  Status build(const Plan& plan, std::unique_ptr<Program>* program) override {
    *program = std::make_unique<RecordedProgram>(plan);
    return Status();
  }
};

Status open_device(const DeviceOptions& options, const void* caps,
                   std::unique_ptr<Device>* device) {
  *device = std::make_unique<RecordedDevice>(*static_cast<const Caps*>(caps), options);
  return Status();
}

const std::vector<plan_fixture::Profile>& profiles() {
  static const std::vector<plan_fixture::Profile> all = plan_fixture::profiles();
  return all;
}

}  // namespace

size_t recorded_count() { return profiles().size(); }

const Caps& recorded_caps(size_t index) { return profiles()[index].caps; }

tandem_device* open_recorded(const Caps& caps) {
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  // What is slow, too, is looked for where there is a log.
  options.log = [](void*, tandem_log_level, const char* message) {
    FUZZ_CHECK(message && *message);
  };
  tandem_device* device = nullptr;
  FUZZ_CHECK(open_recorded(caps, &options, &device) == TANDEM_OK);
  return device;
}

tandem_status open_recorded(const Caps& caps, const tandem_device_options* options,
                            tandem_device** device) {
  return create_device(options, device, open_device, &caps);
}

tandem_device* recorded_device(size_t index) {
  static std::vector<tandem_device*> devices(recorded_count());
  if (!devices[index]) devices[index] = open_recorded(recorded_caps(index));
  return devices[index];
}

}  // namespace fuzz
