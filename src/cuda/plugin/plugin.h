// SPDX-License-Identifier: MIT OR Apache-2.0
// The border between libtandem and libtandem_cuda, its CUDA backend as a library of its own. C++
// objects cross it, so both must be of one version and agree on their layout: find.cpp compares
// the head before it uses anything else.
#ifndef TANDEM_SRC_CUDA_PLUGIN_PLUGIN_H
#define TANDEM_SRC_CUDA_PLUGIN_PLUGIN_H
#include "cuda/backend.h"
#include "plan/sm90/tiles.h"

#if defined(_WIN32)
#define TANDEM_PLUGIN_EXPORT __declspec(dllexport)
#else
#define TANDEM_PLUGIN_EXPORT __attribute__((visibility("default")))
#endif

namespace tandem {

// What libtandem lends: its host memory, so that the callbacks of its HostScope serve both. A
// process may have several copies of libtandem with one libtandem_cuda, as two libraries with a
// static one each: a thread's memory is of the copy whose HostScope it is in.
struct CudaHost {
  // Throws std::bad_alloc, which libtandem catches: the two may have C++ libraries of their own
  // inside, and would not know each other's exceptions.
  void* (*allocate)(size_t size, size_t alignment);
  void (*release)(void* memory) noexcept;
  bool (*is_in_scope)() noexcept;  // HostScope::is_open()
};

// No version changes these two.
struct CudaPluginHead {
  uint32_t version;  // as tandem_version()
  uint32_t layout;   // cuda_layout()
};

struct CudaPlugin {
  CudaPluginHead head;
  const CudaBackend* backend;
  // Takes the memory of one more copy, before anything of backend is called. host: lives as long as
  // the process. False: there are too many copies.
  bool (*borrow)(const CudaHost* host);
};

// A number that differs where two builds of one version surely disagree on what crosses the border:
// sizes of structs, the tables of which plans hold rows by number, the C++ library.
constexpr uint32_t cuda_layout() {
  uint32_t hash = 0x811c9dc5u;
  const auto add = [&hash](uint64_t word) {
    for (; word; word >>= 8) hash = (hash ^ uint32_t(word & 0xff)) * 0x01000193u;
    hash = hash * 0x01000193u;
  };
  const size_t sizes[] = {sizeof(Plan),          sizeof(Problem),     sizeof(Launch),
                          sizeof(Caps),          sizeof(Device),      sizeof(Program),
                          sizeof(DeviceOptions), sizeof(Slice),       sizeof(Slicing),
                          sizeof(Status),        sizeof(tandem_args), sizeof(CudaBackend),
                          sizeof(CudaHost),      sizeof(CudaPlugin),  sizeof(void*)};
  for (const size_t size : sizes) add(size);
  const auto add_name = [&add](const char* name) {
    for (; *name; ++name) add(uint64_t(*name));
    add(0);
  };
  for (const KernelRow& row : kKernels) {
    add_name(row.variant);
    add(uint64_t(row.stem)), add(uint64_t(row.path_id)), add(uint64_t(row.dtypes));
    add(uint64_t(row.tiles)), add(row.needs), add(row.inputs), add(row.traits);
  }
  for (const ScratchRow& row : kScratch) add_name(row.name), add(row.element_size);
  for (const AmpereTile& t : kAmpereTiles)
    add_name(t.name), add(uint64_t(t.br)), add(uint64_t(ampere_shared_bytes(t)));
  for (const FwdTile& t : kFwdTiles) add_name(t.name), add(uint64_t(t.bc));
  for (const BwdShape& t : kBwdShapes) add_name(t.name), add(uint64_t(t.br));
  for (const DqShape& t : kDqShapes) add_name(t.name), add(uint64_t(t.bc));
  for (const RowShape& t : kRowShapes) add_name(t.name), add(uint64_t(t.bc));
  for (const SupportShape& t : kSupportShapes) add_name(t.name), add(uint64_t(t.bc));
#if defined(_GLIBCXX_USE_CXX11_ABI)
  add(1 + _GLIBCXX_USE_CXX11_ABI);
#elif defined(_LIBCPP_VERSION)
  add(_LIBCPP_ABI_VERSION + 16);
#elif defined(_ITERATOR_DEBUG_LEVEL)
  add(_ITERATOR_DEBUG_LEVEL + 32);
#endif
  return hash;
}

constexpr CudaPluginHead kCudaPluginHead = {uint32_t(TANDEM_VERSION_MAJOR) << 22 |
                                                uint32_t(TANDEM_VERSION_MINOR) << 12 |
                                                uint32_t(TANDEM_VERSION_PATCH),
                                            cuda_layout()};

}  // namespace tandem

// The only function that libtandem_cuda exports. It changes nothing: its caller may be of another
// build, and other copies of libtandem may be at work.
extern "C" TANDEM_PLUGIN_EXPORT const tandem::CudaPlugin* tandem_cuda_plugin();

#endif
