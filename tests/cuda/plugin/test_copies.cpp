// SPDX-License-Identifier: MIT OR Apache-2.0
// Two copies of libtandem in one process, whose files are the arguments, with one libtandem_cuda:
// what a device allocates is of its own application, whichever copy came last, and a copy that is
// closed leaves the other one at work.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "tandem/tandem_cuda.h"

namespace {

struct Memory {  // of an application
  int live = 0, allocated = 0;
};

class Copy {
 public:
  explicit Copy(const char* file) : library_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    if (!library_) std::printf("%s\n", dlerror()), std::exit(1);
  }
  void close() { dlclose(library_); }

  // The blocks that a device and a plan on it allocate and release; -1: there is none, or some are
  // left.
  int blocks() {
    tandem_device_options options = TANDEM_DEVICE_OPTIONS_INIT;
    Memory memory;
    options.memory_user = &memory;
    options.allocate = [](void* user, size_t size, size_t) {
      ++static_cast<Memory*>(user)->live, ++static_cast<Memory*>(user)->allocated;
      return std::malloc(size);
    };
    options.release = [](void* user, void* block) {
      --static_cast<Memory*>(user)->live;
      std::free(block);
    };
    tandem_device* device = nullptr;
    tandem_problem problem;
    tandem_plan* plan = nullptr;
    if (find<decltype(tandem_cuda_device_create)>("tandem_cuda_device_create")(
            0, &options, &device) != TANDEM_OK ||
        find<decltype(tandem_problem_parse_sized)>("tandem_problem_parse_sized")(
            "bwd f16 b2 hq2 sq70 d64", &problem, sizeof problem) != TANDEM_OK ||
        find<decltype(tandem_plan_create)>("tandem_plan_create")(device, &problem, &plan) !=
            TANDEM_OK) {
      std::printf("%s\n", find<decltype(tandem_last_message)>("tandem_last_message")());
      return -1;
    }
    find<decltype(tandem_plan_destroy)>("tandem_plan_destroy")(plan);
    find<decltype(tandem_device_destroy)>("tandem_device_destroy")(device);
    return memory.live == 0 ? memory.allocated : -1;
  }

 private:
  template <typename Function>
  Function* find(const char* name) {
    void* const found = dlsym(library_, name);
    if (!found) std::printf("no %s\n", name), std::exit(1);
    return reinterpret_cast<Function*>(found);
  }
  void* library_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 1;
  // The first device of a copy also looks for libtandem_cuda.
  Copy first(argv[1]);
  first.blocks();
  const int alone = first.blocks();
  Copy second(argv[2]);
  second.blocks();
  const int other = second.blocks(), again = first.blocks();
  first.close();
  const int left = second.blocks();
  const bool same = alone > 0 && other == alone && again == alone && left == alone;
  std::printf("%s: %d blocks, %d of the other copy, %d beside it, %d of the one that is left\n",
              same ? "same" : "different", alone, other, again, left);
  return 0;
}
