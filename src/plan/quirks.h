// SPDX-License-Identifier: MIT OR Apache-2.0
// quirks.inc as C++ values, and which of its rows apply to a device. These are pure functions of
// Caps, so tests call them for devices that are not present.
#ifndef TANDEM_SRC_PLAN_QUIRKS_H
#define TANDEM_SRC_PLAN_QUIRKS_H
#include <cstdint>

#include "caps.h"

namespace tandem {

// VkDriverId, so that planning needs no Vulkan header.
enum DriverId : uint32_t {
  kAnyDriver = 0,
  kAmdProprietary = 1,
  kAmdOpenSource = 2,
  kRadv = 3,
  kNvidia = 4,
  kIntelWindows = 5,
  kIntelMesa = 6,
  kQualcomm = 8,
  kMoltenVk = 14,
  kTurnip = 18
};

enum class QuirkAction : uint8_t {
  no_matrices,
  no_bf16,
  no_shape,
  fwd_shape,
  pin,
  doubled,
  few_registers,
  pairs
};

struct Quirk {
  uint32_t driver_id, from, until;
  const char*
      // '|' separates patterns, one of which must match; '!' first: none may. See name_matches().
      device;
  QuirkAction action;
  uint32_t number;
  const char* reason;
  const char* link;
  const char* what() const;
};

// '*' stands for anything, '#' for a digit; the whole name is matched.
bool name_matches(const char* patterns, const char* name);

bool quirk_applies(const Quirk& quirk, const Caps& caps);

// The first row with this action, and this number if it is not 0, that applies to the device;
// nullptr if none does.
const Quirk* find_quirk(const Caps& caps, QuirkAction action, uint32_t number = 0);

constexpr uint32_t kAny = 0xffffffff;
constexpr uint32_t mesa(uint32_t major, uint32_t minor, uint32_t patch) {  // VK_MAKE_VERSION
  return major << 22 | minor << 12 | patch;
}

constexpr uint32_t shape_number(int m, int n, int k) { return uint32_t(m << 16 | n << 8 | k); }

// RADV's own names, Mesa 26: PHOENIX, STRIX1, STRIX_HALO, KRACKAN1; before: GFX1103, GFX1150.
#define TANDEM_RDNA3                                                               \
  "*RX 7###*|*PRO W7###*|* 7#0M*|* 8#0M*|* 80#0S*|*NAVI3#*|*GFX11*|*RADV PHOENIX*" \
  "|*RADV STRIX*|*RADV KRACKAN*"
#define TANDEM_RDNA3_ON TANDEM_RDNA3 "|*RX 9###*|*PRO R9###*|*AI PRO*|*NAVI4#*|*GFX12*"
#define TANDEM_XE2_ON "*B5#0*|*B390*|*Pro B##*|*1##V*|*BMG*|*LNL*|*PTL*"
#define TANDEM_XE3 "*B390*|*PTL*"
#define TANDEM_TURING                                                                            \
  "*RTX 20##*|*GTX 16##*|*Quadro RTX*|*TITAN RTX*|*Tesla T4*|*NVIDIA T4*|*NVIDIA T###*|*NVIDIA " \
  "T1###*"

constexpr Quirk kQuirks[] = {
#define TANDEM_QUIRK(driver, from, until, device, action, number, reason, link) \
  {driver, from, until, device, QuirkAction::action, number, reason, link},
#include "quirks.inc"
};

}  // namespace tandem
#endif
