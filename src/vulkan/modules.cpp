// SPDX-License-Identifier: MIT OR Apache-2.0
#include "modules.h"

namespace tandem {

const SpirvModule* const kModules[kModuleCount] = {
#define TANDEM_MODULE(name) &module_##name,
#include "shaders/modules.inc"
};

}  // namespace tandem
