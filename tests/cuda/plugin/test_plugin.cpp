// SPDX-License-Identifier: MIT OR Apache-2.0
// A program that knows the C API alone. It opens a CUDA device, and prints why there is none, or
// what a forward on it gives.
//   --from FOLDER  in that folder, not the one that it was started in
//   --as NAME      started once more, as a program of that name
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tandem/tandem_cuda.h"

namespace {

int live = 0, allocated = 0;  // blocks of the application's own memory
int fails_at = 0;             // 0: none, 1: the next one

void* allocate(void*, size_t size, size_t) {
  if (fails_at > 0 && --fails_at == 0) return nullptr;
  ++live, ++allocated;
  return std::malloc(size);
}
void release(void*, void* memory) {
  --live;
  std::free(memory);
}

int failed(const char* what) {
  std::printf("%s: %s\n", what, tandem_last_message());
  return 1;
}

bool has_cuda_kernels() {
  tandem_kernel_info info{};
  info.struct_size = sizeof info;
  for (uint32_t n = 0; n < tandem_kernel_count(); ++n)
    if (tandem_kernel_get(n, &info) == TANDEM_OK && info.backend[1] == 'u' && info.built)
      return true;
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--from") == 0 && chdir(argv[2]) != 0)
    return failed("chdir");
  if (argc == 3 && std::strcmp(argv[1], "--as") == 0)
    return execl("/proc/self/exe", argv[2], static_cast<char*>(nullptr)), failed("exec");
  tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
  options.allocate = allocate, options.release = release;
  tandem_device* device = nullptr;
  const tandem_status status = tandem_cuda_device_create(0, &options, &device);
  std::printf("%s kernels\n", has_cuda_kernels() ? "with" : "without");
  if (status != TANDEM_OK) {
    std::printf("%s, %d blocks left: %s\n", tandem_status_string(status), live,
                tandem_last_message());
    return 0;
  }
  const float q[2] = {1, 0}, k[4] = {0, 3, 0, -2}, v[4] = {1, 10, 3, 30};
  float o[2] = {0, 0};
  tandem_problem problem;
  tandem_plan* plan = nullptr;
  if (tandem_problem_parse("fwd f32 b1 hq1 hk1 sq1 sk2 d2 dv2", &problem) != TANDEM_OK)
    return failed("problem");
  const int before = allocated, held = live;
  for (int n = 1;; ++n) {  // with its first allocation failing, then its second
    fails_at = n;
    const tandem_status made = tandem_plan_create(device, &problem, &plan);
    if (fails_at > 0 && made == TANDEM_OK) break;
    if (made != TANDEM_ERROR_OUT_OF_MEMORY || live != held) return failed("no memory");
  }
  fails_at = 0;
  if (allocated == before) return failed("a plan used no memory");
  tandem_args args = TANDEM_ARGS_INIT;
  args.q = tandem_cuda_buffer(q), args.k = tandem_cuda_buffer(k);
  args.v = tandem_cuda_buffer(v), args.o = tandem_cuda_buffer(o);
  if (tandem_execute(plan, tandem_cuda_stream(nullptr), &args) != TANDEM_OK)
    return failed("execute");
  if (tandem_cuda_execute_timed(plan, nullptr, &args, nullptr, 0) != TANDEM_ERROR_INVALID_ARGUMENT)
    return failed("no events");
  tandem_plan_destroy(plan);
  tandem_device_destroy(device);
  std::printf("o = %g %g, %d blocks left\n", double(o[0]), double(o[1]), live);
  return 0;
}
