/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Mesa's amdgpu shim as a kernel that Mesa 26 accepts, and with one more device: gfx1201 (RX 9070
 * XT), which its table lacks. That device is good for compiling: what a compiler reads of it are
 * the family, the revision, the registers of a SIMD and the number of compute units. */
#include <stdlib.h>
#include <strings.h>

#define drm_shim_driver_init init_as_mesa_does
#include "amd/drm-shim/amdgpu_noop_drm_shim.c"
#undef drm_shim_driver_init

static struct amdgpu_device gfx1201(const struct amdgpu_device* navi31) {
  struct amdgpu_device device = *navi31;
  device.name = "gfx1201";
  device.radeon_family = CHIP_GFX1201;
  device.hw_ip_gfx.hw_ip_version_major = device.hw_ip_compute.hw_ip_version_major = 12;
  device.hw_ip_gfx.ip_discovery_version = device.hw_ip_compute.ip_discovery_version = 0xc0001;
  struct drm_amdgpu_info_device* dev = &device.dev;
  dev->family = AMDGPU_FAMILY_GC_12_0_0;
  dev->device_id = 0x7550;
  dev->pci_rev = 0xc0;
  dev->external_rev = 0x51;
  dev->num_shader_engines = 4;
  dev->cu_active_number = 64;
  for (int engine = 0; engine < 4; ++engine)
    for (int array = 0; array < 4; ++array) dev->cu_bitmap[engine][array] = array < 2 ? 0xff : 0;
  dev->enabled_rb_pipes_mask = 0xffff;
  dev->num_rb_pipes = 16;
  dev->num_tcc_blocks = 16;
  dev->vram_bit_width = 256;
  dev->gl2c_cache_size = 8192;
  dev->mall_size = 64 << 20;
  return device;
}

void drm_shim_driver_init(void) {
  static struct amdgpu_device added;
  const char* id = getenv("AMDGPU_GPU_ID");
  const int is_added = id && strcasecmp(id, "gfx1201") == 0;
  if (is_added) setenv("AMDGPU_GPU_ID", "navi31", 1);
  init_as_mesa_does();
  if (is_added) {
    setenv("AMDGPU_GPU_ID", "gfx1201", 1);
    added = gfx1201(amdgpu_dev);
    amdgpu_dev = &added;
  }
  shim_device.version_minor = 61;
}
