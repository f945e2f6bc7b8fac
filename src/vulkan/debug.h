// SPDX-License-Identifier: MIT OR Apache-2.0
// VK_EXT_debug_utils: names of objects, labels in command buffers. Does nothing if the application
// did not enable the extension.
#ifndef TANDEM_SRC_VULKAN_DEBUG_H
#define TANDEM_SRC_VULKAN_DEBUG_H

#include "vk.h"

namespace tandem {

class DebugUtils {
 public:
  void load(PFN_vkGetDeviceProcAddr gdpa, VkDevice device) {
#define TANDEM_LOAD(name) name##_ = reinterpret_cast<PFN_vk##name>(gdpa(device, "vk" #name));
    TANDEM_LOAD(SetDebugUtilsObjectNameEXT)
    TANDEM_LOAD(CmdBeginDebugUtilsLabelEXT)
    TANDEM_LOAD(CmdEndDebugUtilsLabelEXT)
#undef TANDEM_LOAD
    device_ = device;
    on_ = SetDebugUtilsObjectNameEXT_ && CmdBeginDebugUtilsLabelEXT_ && CmdEndDebugUtilsLabelEXT_;
  }
  bool on() const { return on_; }

  // A name that cannot be set does not fail a call.
  template <typename Handle>
  void name(VkObjectType type, Handle handle, const char* name) const noexcept {
    if (!on_) return;
    VkDebugUtilsObjectNameInfoEXT info{};
    info.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_OBJECT_NAME_INFO_EXT;
    info.objectType = type;
    info.objectHandle = (uint64_t)handle;  // a pointer or a number, by platform
    info.pObjectName = name;
    SetDebugUtilsObjectNameEXT_(device_, &info);
  }

  // A label around the commands recorded during its lifetime.
  class Label {
   public:
    Label(const DebugUtils& debug, VkCommandBuffer cmd, const char* name)
        : debug_(debug), cmd_(cmd) {
      if (!debug_.on_) return;
      VkDebugUtilsLabelEXT label{};
      label.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_LABEL_EXT;
      label.pLabelName = name;
      debug_.CmdBeginDebugUtilsLabelEXT_(cmd_, &label);
    }
    ~Label() {
      if (debug_.on_) debug_.CmdEndDebugUtilsLabelEXT_(cmd_);
    }
    Label(const Label&) = delete;
    Label& operator=(const Label&) = delete;

   private:
    const DebugUtils& debug_;
    VkCommandBuffer cmd_;
  };

 private:
  PFN_vkSetDebugUtilsObjectNameEXT SetDebugUtilsObjectNameEXT_ = nullptr;
  PFN_vkCmdBeginDebugUtilsLabelEXT CmdBeginDebugUtilsLabelEXT_ = nullptr;
  PFN_vkCmdEndDebugUtilsLabelEXT CmdEndDebugUtilsLabelEXT_ = nullptr;
  VkDevice device_ = VK_NULL_HANDLE;
  bool on_ = false;
};

}  // namespace tandem
#endif
