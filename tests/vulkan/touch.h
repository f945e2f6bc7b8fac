// SPDX-License-Identifier: MIT OR Apache-2.0
// Synchronisation validation does not see what a shader does through buffer addresses (Khronos
// layer 1.4.363). So this driver in between records, behind each dispatch of the library, passes of
// its own that touch through descriptors what the dispatch touches through addresses: it looks for
// addresses of known buffers among the push constants. The layer then judges the barriers round
// these passes, which are those round the dispatch.
#ifndef TANDEM_TESTS_VULKAN_TOUCH_H
#define TANDEM_TESTS_VULKAN_TOUCH_H
#include <algorithm>
#include <vector>

#include "app.h"
#include "fake_driver.h"
#include "shaders/touch_read.spv.h"
#include "shaders/touch_write.spv.h"

namespace vulkan_app {

class Touch {
 public:
  enum Access {
    read,
    write,
    scratch
  };  // scratch: the first dispatch that has an address writes there
  explicit Touch(App& app)
      : app_(app),
        read_(app, touch_read_spirv, sizeof(touch_read_spirv), 1, 4),
        write_(app, touch_write_spirv, sizeof(touch_write_spirv), 1, 4) {
    current() = this;
    gipa_ = fake_driver::install(app.gipa);
    auto& replace = fake_driver::state().replace;
    replace["vkCmdPushConstants"] = reinterpret_cast<PFN_vkVoidFunction>(push);
    replace["vkCmdDispatch"] = reinterpret_cast<PFN_vkVoidFunction>(dispatch);
    replace["vkCmdPipelineBarrier"] = reinterpret_cast<PFN_vkVoidFunction>(barrier);
  }
  PFN_vkGetInstanceProcAddr gipa() const { return gipa_; }
  void know(const App::Buffer& b, Access access) {
    auto info = made<VkBufferDeviceAddressInfo>(VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO);
    info.buffer = b.buffer;
    known_.push_back({b, app_.vk.vkGetBufferDeviceAddress(app_.device, &info), access});
  }
  void restart() { written_.clear(); }  // scratch is written anew
  bool without_barriers = false;        // the library's own
  int dispatches = 0, touched = 0, barriers = 0;

 private:
  struct Known {
    App::Buffer buffer;
    VkDeviceAddress address;
    Access access;
  };
  static Touch*& current() {
    static Touch* touch = nullptr;
    return touch;
  }
  static void VKAPI_CALL push(VkCommandBuffer cmd, VkPipelineLayout layout,
                              VkShaderStageFlags stages, uint32_t offset, uint32_t size,
                              const void* data) {
    Touch& t = *current();
    t.pushed_.assign(static_cast<const char*>(data), static_cast<const char*>(data) + size);
    t.app_.vk.vkCmdPushConstants(cmd, layout, stages, offset, size, data);
  }
  static void VKAPI_CALL barrier(VkCommandBuffer cmd, VkPipelineStageFlags from,
                                 VkPipelineStageFlags to, VkDependencyFlags flags, uint32_t n,
                                 const VkMemoryBarrier* memory, uint32_t nb,
                                 const VkBufferMemoryBarrier* buffers, uint32_t ni,
                                 const VkImageMemoryBarrier* images) {
    Touch& t = *current();
    ++t.barriers;
    if (!t.without_barriers)
      t.app_.vk.vkCmdPipelineBarrier(cmd, from, to, flags, n, memory, nb, buffers, ni, images);
  }
  static void VKAPI_CALL dispatch(VkCommandBuffer cmd, uint32_t x, uint32_t y, uint32_t z) {
    Touch& t = *current();
    t.app_.vk.vkCmdDispatch(cmd, x, y, z);
    ++t.dispatches;
    for (size_t at = 0; at + 8 <= t.pushed_.size(); at += 8) {
      VkDeviceAddress address;
      std::memcpy(&address, t.pushed_.data() + at, 8);
      for (const Known& k : t.known_)
        if (address >= k.address && address < k.address + k.buffer.size) t.touch(cmd, k, address);
    }
  }
  void touch(VkCommandBuffer cmd, const Known& k, VkDeviceAddress address) {
    const bool first = std::find(written_.begin(), written_.end(), address) == written_.end();
    const bool writes = k.access == write || (k.access == scratch && first);
    if (writes) written_.push_back(address);
    const VkDeviceSize step = app_.properties.limits.minStorageBufferOffsetAlignment;
    const VkDescriptorBufferInfo part{k.buffer.buffer, (address - k.address) / step * step, 4};
    const uint32_t zero = 0;
    (writes ? write_ : read_).record(cmd, &part, &zero, 1);
    ++touched;
  }

  App& app_;
  ComputePass read_, write_;
  PFN_vkGetInstanceProcAddr gipa_ = nullptr;
  std::vector<Known> known_;
  std::vector<char> pushed_;
  std::vector<VkDeviceAddress> written_;
};

}  // namespace vulkan_app
#endif
