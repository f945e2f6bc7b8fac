// SPDX-License-Identifier: MIT OR Apache-2.0
// Libraries that libtandem must not use: of Tandem 3.13.14, of another layout, and one that is no
// backend.
#include "cuda/plugin/plugin.h"

#if defined(WRONG_stranger)
extern "C" TANDEM_PLUGIN_EXPORT int stranger() { return 0; }
#else
const tandem::CudaPlugin* tandem_cuda_plugin() {
  static tandem::CudaPlugin plugin = {tandem::kCudaPluginHead, nullptr, nullptr};
#if defined(WRONG_version)
  plugin.head.version = 3u << 22 | 13u << 12 | 14u;
#else
  plugin.head.layout = ~tandem::kCudaPluginHead.layout;
#endif
  return &plugin;
}
#endif
