/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Mesa's freedreno shim as a kernel without VM_BIND: it has no such call, and yet grants it. */
#include <errno.h>

#define drm_shim_driver_init init_as_mesa_does
#include "freedreno/drm-shim/freedreno_noop.c"
#undef drm_shim_driver_init

enum { kEnableVmBind = 0x16 }; /* MSM_PARAM_EN_VM_BIND, newer than Mesa's copy of the interface */

static int set_param(int fd, unsigned long request, void* arg) {
  const struct drm_msm_param* param = arg;
  return param->param == kEnableVmBind ? -EINVAL : msm_ioctl_noop(fd, request, arg);
}

void drm_shim_driver_init(void) {
  driver_ioctls[DRM_MSM_SET_PARAM] = set_param;
  init_as_mesa_does();
}
