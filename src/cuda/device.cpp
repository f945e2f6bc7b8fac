// SPDX-License-Identifier: MIT OR Apache-2.0
// The CUDA device: kernels from cuda/, launched on the caller's stream. The CUDA runtime is linked
// statically and the driver is reached through it, so a program with this file starts on a machine
// without NVIDIA's driver, and gets NO_BACKEND.
#include <atomic>
#include <type_traits>
#include <utility>

#include "backend.h"
#include "kernels/kernel_rows.h"
#include "kernels/params.h"
#include "look_ups.h"
#include "plan/sm90/tensor_maps.h"
#include "problem/mask_map.h"
#include "sm80.h"
#include "sm90.h"
#include "tandem/tandem_cuda.h"

namespace tandem {
namespace {

// The caller's events, one after the other.
class Timeline {
 public:
  Status start(cudaStream_t stream, const cudaEvent_t* events, size_t used) {
    stream_ = stream;
    next_ = events;
    for (size_t i = 0; i < used; ++i)
      if (!events[i]) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "events[%zu] is NULL", i);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    TANDEM_CUDA_TRY("cudaStreamIsCapturing", cudaStreamIsCapturing(stream, &capture));
    // While capturing, a plain record would only order streams.
    if (capture == cudaStreamCaptureStatusActive) flags_ = cudaEventRecordExternal;
    return mark();
  }
  Status mark() {
    TANDEM_CUDA_TRY("cudaEventRecord", cudaEventRecordWithFlags(*next_++, stream_, flags_));
    return Status();
  }

 private:
  cudaStream_t stream_ = nullptr;
  const cudaEvent_t* next_ = nullptr;
  unsigned flags_ = cudaEventRecordDefault;
};

class CudaProgram final : public Program {
 public:
  CudaProgram(const Driver& driver, CUcontext context, const Launching& with, const Logger& log,
              const Plan& plan)
      : driver_(driver), context_(context), with_(with), log_(log), plan_(plan) {}

  Status add_all() {
    for (const Launch& launch : plan_.launches) TANDEM_TRY(add(launch));
    const auto& unaligned = plan_.of<Sm90Plan>().unaligned;
    if (!unaligned) return Status();
    unaligned_ = std::make_unique<CudaProgram>(driver_, context_, with_, log_, *unaligned);
    return unaligned_->add_all();
  }

  Status record(tandem_stream stream, const tandem_args& args) const override {
    return record(stream, args, nullptr);
  }
  Status record_slice(tandem_stream stream, const tandem_args& args,
                      const Slice& slice) const override {
    return record(stream, args, nullptr, &slice);
  }
  // events: nullptr, or an event before the first launch and one behind each. slice: what is
  // launched; nullptr: all.
  Status record(tandem_stream stream, const tandem_args& args, const cudaEvent_t* events,
                const Slice* slice = nullptr) const {
    const Current current(driver_, context_);
    TANDEM_TRY(current.status());
    Addresses a;
    TANDEM_TRY(resolve_args(
        plan_, arg_uses(plan_), args,
        [](const ArgUse&, const tandem_buffer& b, uint64_t* address) {
          *address = b.handle + b.offset;
          return Status();
        },
        &a));
    if (plan_.problem.batch_invariant && std::holds_alternative<Sm90Plan>(plan_.of_path) &&
        !sm90_takes(plan_, a))
      return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                  "an input is at an address that is no multiple of 16 bytes; a batch-invariant "
                  "problem may not take another path than %s for it",
                  plan_.name().c_str());
    if (unaligned_ && !sm90_takes(plan_, a)) {
      if (!told_.exchange(true))
        log_(TANDEM_LOG_WARN,
             text("inputs at addresses that are no multiples of 16 bytes: %s in place of %s",
                  unaligned_->plan_.name().c_str(), plan_.name().c_str()));
      if (events)
        return fail(
            TANDEM_ERROR_UNSUPPORTED,
            "inputs at addresses that are no multiples of 16 bytes: %s runs, not the kernels of %s "
            "that are to be timed",
            unaligned_->plan_.name().c_str(), plan_.name().c_str());
      if (slice)
        return fail(TANDEM_ERROR_UNSUPPORTED,
                    "inputs at addresses that are no multiples of 16 bytes: %s runs, whose kernels "
                    "are not those of %s, which was cut into slices",
                    unaligned_->plan_.name().c_str(), plan_.name().c_str());
      return unaligned_->record(stream, args);
    }
    const auto on = reinterpret_cast<cudaStream_t>(stream.handle);
    Timeline timeline;
    if (events) TANDEM_TRY(timeline.start(on, events, steps_.size() + 1));
    for (const Step& step : steps_) {
      Slicing::Range range;
      if (slice && !slice->range(size_t(&step - steps_.data()), &range)) continue;
      LaunchOn part = on;
      if (slice && !range.whole) part.first_group = range.from, part.groups = range.to - range.from;
      const cudaError_t error = step.record(part, a);
      if (error == cudaErrorInvalidResourceHandle || error == cudaErrorDeviceUninitialized)
        return cudaGetLastError(),
               fail(TANDEM_ERROR_INVALID_ARGUMENT,
                    "%s: %s (cudaError_t %d): the stream is not one of this device's context",
                    stem_name(step.stem), cudaGetErrorString(error), int(error));
      if (error != cudaSuccess) return failed(stem_name(step.stem), error);
      if (events) TANDEM_TRY(timeline.mark());
    }
    return Status();
  }

 private:
  Status add(const Launch& launch) {
    if (launch.joins()) return add_nothing(launch);
    if (launch.as<Sm90Launch>()) {
      Recorder recorder;
      TANDEM_TRY(sm90_recorder(plan_, launch, with_, &recorder));
      steps_.push_back({launch.stem, std::move(recorder)});
      return Status();
    }
    switch (KernelId(launch.kernel)) {
#define TANDEM_KERNEL(stem, backend, path, variant, dtypes, tiles, needs, inputs, traits, folder, \
                      source, params)                                                             \
  TANDEM_CUDA_ROW(stem, backend, path, variant, folder, source, params)
#define TANDEM_FROM_sm90(id, source, params, row)
#define TANDEM_FROM_sm80(id, source, params, row) \
  case KernelId::id:                              \
    return add(launch, cuda::sm80::source##_kernel);
#define TANDEM_FROM_simt(id, source, params, row) \
  case KernelId::id:                              \
    return add(launch, cuda::source##_kernel);
#include "kernels/kernels.inc"
      default:
        break;
    }
    return fail(TANDEM_ERROR_BACKEND, "the CUDA backend has no kernel %s", stem_name(launch.stem));
  }

  template <typename P>
  Status add(const Launch& launch, cuda::LookUp<P> find) {
    Recorder recorder;
    TANDEM_TRY(tandem::record(find, plan_, launch, with_, &recorder));
    steps_.push_back({launch.stem, std::move(recorder)});
    return Status();
  }
  template <typename Block, typename Push>
  Status add(const Launch& launch, cuda::LookUp<cuda::Params<Block, Push>> find) {
    return add(launch, find, params_of<cuda::Params<Block, Push>>(launch));
  }
  template <typename Spec, typename Block, typename Push>
  Status add(const Launch& launch, cuda::LookUp<cuda::FullParams<Spec, Block, Push>> find) {
    return add(launch, find, full_params<cuda::FullParams<Spec, Block, Push>>(launch));
  }
  // No other optional input than lengths affects delta.
  Status add(const Launch& launch, cuda::LookUp<cuda::BwdDotZeroParams> find) {
    return add_zeroing(launch, find, params_of<cuda::BwdDotParams>(launch));
  }
  Status add(const Launch& launch, cuda::LookUp<cuda::BwdDotZeroFull> find) {
    return add_zeroing(launch, find, full_params<cuda::BwdDotFull>(launch));
  }

  template <typename P>
  P params_of(const Launch& launch) const {
    P params{};
    set_block(plan_, launch, &params.block);
    return params;
  }
  template <typename P>
  P full_params(const Launch& launch) const {
    P params = params_of<P>(launch);
    params.extra = extra_block(plan_.problem);
    params.features = features_of(plan_.problem);
    // Block lists as bits alone: bwd_origin of cuda.sm90 reads those.
    if (plan_.problem.blocks && !plan_.scratch[Scratch::block_keep].present) {
      const Strides words = packed_keep_strides(plan_.problem);
      params.features.KEEP = TANDEM_KEEP_BITS;
      params.extra.keep = {4 * words.b, 4 * words.h, 4 * words.s, 0};
    }
    set_spec(plan_, launch, &params.spec);
    return params;
  }

  template <typename P>
  static cuda::Zeroing<P> zeroing(const Plan& plan, const P& dot, const Addresses& a) {
    cuda::Zeroing<P> params{};
    params.dot = dot;
    if (plan.zeroed_size == 0) return params;
    const LazyZero& lazy = plan.of<Sm90Plan>().lazy_zero;
    params.zeroed = a.zeroed + lazy.bytes;
    params.zeroed_end = a.zeroed_end;
    params.first = a.zeroed, params.first_end = a.zeroed + lazy.eager_bytes;
    params.entries = uint32_t(lazy.slices);
    params.step = lazy.bytes / lazy.slices;
    return params;
  }
  template <typename P>
  Status add_zeroing(const Launch& launch, cuda::LookUp<cuda::Zeroing<P>> find, const P& dot) {
    const auto kernel = find(plan_.problem.dtype, kernel_choice(launch), true);
    Launcher<cuda::Zeroing<P>> start, start_fast;
    TANDEM_TRY(start.prepare(kernel, with_, dim3(launch.groups_x, launch.groups_y),
                             launch.invocations(), 0));
    P fast_dot = dot;
    const SimtLaunch& own = launch.of<SimtLaunch>();
    const bool fast = own.fast_total > 0;
    if constexpr (std::is_same<P, cuda::BwdDotParams>::value) {
      fast_dot.block.tiles = own.fast_tiles;
      fast_dot.block.total = own.fast_total;
      if (fast)
        TANDEM_TRY(start_fast.prepare(
            cuda::bwd_dot_fast_kernel(plan_.problem.dtype, int(plan_.problem.head_dim_v)), with_,
            dim3(own.fast_total), kFastDot, 0));
    }
    const Plan& plan = plan_;
    const Launch* of = &launch;  // of plan_
    steps_.push_back({launch.stem, [=, &plan](cudaStream_t stream, const Addresses& a) {
                        const bool now = fast && takes_fast_dot(a);
                        cuda::Zeroing<P> params = zeroing(plan, now ? fast_dot : dot, a);
                        params.dot.push = bwd_dot_push(plan, *of, a);
                        return (now ? start_fast : start)(&params, stream);
                      }});
    return Status();
  }
  struct Step {  // of each launch
    Stem stem;
    Recorder record;
  };

  // Adds an empty step, as each launch has one.
  Status add_nothing(const Launch& launch) {
    steps_.push_back({launch.stem, [](const LaunchOn&, const Addresses&) { return cudaSuccess; }});
    return Status();
  }

  // The addresses of an execute decide which of the two runs.
  template <typename P>
  Status add(const Launch& launch, cuda::LookUp<P> find, const P& fixed) {
    if (launch.total == 0) return add_nothing(launch);
    const cuda::KernelChoice of = kernel_choice(launch);
    const cuda::Kernel<P> any = find(plan_.problem.dtype, of, false),
                          wide = find(plan_.problem.dtype, of, true);
    if (!any || !wide)
      return fail(TANDEM_ERROR_BACKEND, "no CUDA kernel %s for tile %s, %d and %d blocks",
                  stem_name(launch.stem), launch.tile.name ? launch.tile.name : "-",
                  launch.d_blocks, launch.dv_blocks);
    const dim3 grid(launch.groups_x, launch.groups_y);
    // bwd_dot sums by shuffles, bwd_sum_splits has no sum across invocations, and bwd_origin,
    // expand_blocks, mask_map and reduce_table have their own arrays; merges have none.
    const bool none = launch.stem == Stem::bwd_dot || launch.stem == Stem::bwd_sum_splits ||
                      launch.stem == Stem::bwd_origin || launch.stem == Stem::mask_map ||
                      launch.stem == Stem::expand_blocks || launch.stem == Stem::reduce_table ||
                      is_merge(launch.stem);
    const size_t shared = none ? 0 : launch.shared_bytes;
    Launcher<P> start_any, start_wide;
    TANDEM_TRY(start_any.prepare(any, with_, grid, launch.invocations(), shared));
    TANDEM_TRY(start_wide.prepare(wide, with_, grid, launch.invocations(), shared));
    if (launch.of<Sm80Launch>().programmatic || launch.of<SimtLaunch>().programmatic) {
      TANDEM_TRY(start_any.make_programmatic(any));
      TANDEM_TRY(start_wide.make_programmatic(wide));
    }
    const Plan& plan = plan_;
    const Launch* const at = &launch;  // of plan_
    steps_.push_back({launch.stem, [=, &plan](const LaunchOn& to, const Addresses& a) {
                        P params = fixed;
                        set_push(plan, *at, a, &params.push);
                        const bool all = at->other_kernel >= 0 &&
                                         wide_inputs(params.block, wide_of(params.push));
                        return (all ? start_wide : start_any)(&params, to);
                      }});
    return Status();
  }

  const Driver& driver_;
  const CUcontext context_;
  const Launching with_;
  const Logger& log_;
  const Plan plan_;
  std::unique_ptr<CudaProgram> unaligned_;  // of Sm90Plan::unaligned
  mutable std::atomic<bool> told_{false};   // whether it was logged that it ran
  Vec<Step> steps_;
};

class CudaDevice final : public Device {
 public:
  ~CudaDevice() override {
    if (retained_) driver_.release(device_);
  }

  Status open(const DeviceOptions& options, const tandem_cuda_device_desc& desc) {
    log_ = options.log;
    int driver_version = 0, runtime_version = 0, count = 0;
    TANDEM_CUDA_TRY("cudaRuntimeGetVersion", cudaRuntimeGetVersion(&runtime_version));
    if (cudaDriverGetVersion(&driver_version) != cudaSuccess || driver_version == 0) {
      cudaGetLastError();
      return fail(TANDEM_ERROR_NO_BACKEND, "this machine has no NVIDIA driver");
    }
    const cudaError_t counted = cudaGetDeviceCount(&count);
    if (counted == cudaErrorInsufficientDriver || counted == cudaErrorSystemDriverMismatch ||
        counted == cudaErrorStubLibrary) {
      cudaGetLastError();
      return fail(TANDEM_ERROR_NO_BACKEND,
                  "NVIDIA driver for CUDA %d.%d; this build needs %d.%d: %s", driver_version / 1000,
                  driver_version % 1000 / 10, runtime_version / 1000, runtime_version % 1000 / 10,
                  cudaGetErrorString(counted));
    }
    if (counted == cudaErrorNoDevice)
      cudaGetLastError(), count = 0;
    else if (counted != cudaSuccess)
      return failed("cudaGetDeviceCount", counted);
    TANDEM_TRY(driver_.load());
    int ordinal = desc.ordinal;
    if (desc.context) TANDEM_TRY(find_ordinal(desc.context, count, &ordinal));
    if (ordinal < 0 || ordinal >= count)
      return fail(TANDEM_ERROR_NO_DEVICE, "CUDA device %d: this machine has %d", ordinal, count);

    cudaDeviceProp properties;
    TANDEM_CUDA_TRY("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, ordinal));
    caps_.backend = Backend::cuda;
    caps_.name = properties.name;
    caps_.driver =
        text("NVIDIA driver for CUDA %d.%d, runtime %d.%d", driver_version / 1000,
             driver_version % 1000 / 10, runtime_version / 1000, runtime_version % 1000 / 10);
    caps_.vendor_id = 0x10de;
    caps_.driver_version = uint32_t(driver_version);
    caps_.early_launches = driver_version >= 12030 && properties.major >= 9;
    caps_.shared_bytes = uint32_t(properties.sharedMemPerBlockOptin);
    with_.launch = driver_.launch;
    with_.shared_of_sm = properties.sharedMemPerMultiprocessor;
    with_.reserved_a_block = properties.reservedSharedMemPerBlock;
    with_.most_a_block = properties.sharedMemPerBlockOptin;
    caps_.max_invocations = uint32_t(properties.maxThreadsPerBlock);
    caps_.max_groups_x = uint32_t(properties.maxGridSize[0]);
    caps_.max_groups_y = uint32_t(properties.maxGridSize[1]);
    caps_.subgroup_min = caps_.subgroup_max = caps_.subgroup_size = uint32_t(properties.warpSize);
    caps_.cores = uint32_t(properties.multiProcessorCount);
    read_speeds(ordinal);
    caps_.compute_major = properties.major;
    caps_.compute_minor = properties.minor;
    caps_.disabled = options.disabled;

    context_ = desc.context;
    if (!context_) TANDEM_TRY(retain_primary(ordinal));

    const Current current(driver_, context_);
    TANDEM_TRY(current.status());
    cudaFuncAttributes attributes;
    const cudaError_t loaded =
        cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(cuda::bwd_dot_kernel(
                                               TANDEM_F32, cuda::KernelChoice(), false)));
    if (loaded == cudaErrorNoKernelImageForDevice || loaded == cudaErrorInvalidDeviceFunction) {
      cudaGetLastError();
      return fail(TANDEM_ERROR_MISSING_FEATURE,
                  "%s has compute capability %d.%d, for which this build holds no kernels",
                  properties.name, properties.major, properties.minor);
    }
    if (loaded != cudaSuccess) return failed("cudaFuncGetAttributes", loaded);
    caps_.sm80_code = sm80_loads();
    caps_.sm90_code = sm90_loads();
    return Status();
  }

  Status build(const Plan& plan, std::unique_ptr<Program>* program) override {
    const Current current(driver_, context_);
    TANDEM_TRY(current.status());
    auto built = std::make_unique<CudaProgram>(driver_, context_, with_, log_, plan);
    TANDEM_TRY(built->add_all());
    *program = std::move(built);
    return Status();
  }

 private:
  Status retain_primary(int ordinal) {
    CUresult result = driver_.get(&device_, ordinal);
    if (result == CUDA_SUCCESS) result = driver_.retain(&context_, device_);
    retained_ = result == CUDA_SUCCESS;
    if (retained_) return Status();
    return fail(result == CUDA_ERROR_OUT_OF_MEMORY ? TANDEM_ERROR_DEVICE_OUT_OF_MEMORY
                                                   : TANDEM_ERROR_BACKEND,
                "cuDevicePrimaryCtxRetain of CUDA device %d: CUresult %d", ordinal, int(result));
  }

  // Sets the speeds that the driver knows. One that it does not know stays 0.
  void read_speeds(int ordinal) {
    const auto get = [&](cudaDeviceAttr attribute) {
      int value = 0;
      return cudaDeviceGetAttribute(&value, attribute, ordinal) == cudaSuccess ? value : 0;
    };
    caps_.clock_mhz = uint32_t(get(cudaDevAttrClockRate) / 1000);
    // kHz and bits of a memory that transfers twice a clock.
    caps_.memory_gbps = uint32_t(2e3 * get(cudaDevAttrMemoryClockRate) *
                                 get(cudaDevAttrGlobalMemoryBusWidth) / 8e9);
  }

  // ordinal: as the caller gave it; -1: set to that of the context's GPU.
  Status find_ordinal(CUcontext context, int count, int* ordinal) {
    const Current current(driver_, context);
    TANDEM_TRY(current.status());
    CUdevice on = 0, device = 0;
    const CUresult result = driver_.of_current(&on);
    if (result != CUDA_SUCCESS)
      return fail(TANDEM_ERROR_BACKEND, "cuCtxGetDevice: CUresult %d", int(result));
    int found = 0;
    while (found < count && !(driver_.get(&device, found) == CUDA_SUCCESS && device == on)) ++found;
    if (*ordinal >= 0 && *ordinal < count && *ordinal != found)
      return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                  "desc.ordinal is %d, desc.context is of CUDA device %d", *ordinal, found);
    if (*ordinal == -1) *ordinal = found;
    return Status();
  }

  Driver driver_;
  CUdevice device_ = 0;
  Launching with_;
  CUcontext context_ = nullptr;
  bool retained_ = false;  // a primary context
};

Status open_device(const DeviceOptions& options, const void* desc,
                   std::unique_ptr<Device>* device) {
  auto opened = std::make_unique<CudaDevice>();
  TANDEM_TRY(opened->open(options, *static_cast<const tandem_cuda_device_desc*>(desc)));
  *device = std::move(opened);
  return Status();
}

Status record_timed(const Program& program, tandem_stream stream, const tandem_args& args,
                    CUevent_st* const* events) {
  return static_cast<const CudaProgram&>(program).record(stream, args, events);
}

}  // namespace

extern const CudaBackend kCudaBackend = {open_device, record_timed, has_sm90_code};

}  // namespace tandem
