// SPDX-License-Identifier: MIT OR Apache-2.0
// Compiles, times and checks the prototypes of the matrix kernels beside it: see README.md.
#define VOLK_IMPLEMENTATION
#include <volk.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>
#define CK(x)                                         \
  do {                                                \
    VkResult r_ = (x);                                \
    if (r_) {                                         \
      printf("%s -> %d line %d\n", #x, r_, __LINE__); \
      exit(1);                                        \
    }                                                 \
  } while (0)
static float h2f(uint16_t h) {
  uint32_t s = (h & 0x8000u) << 16, m = h & 0x7fff;
  float f;
  if (m < 0x400) {
    f = m * 0x1p-24f;
    return s ? -f : f;
  }
  uint32_t u = s | ((m << 13) + (112u << 23));
  memcpy(&f, &u, 4);
  return f;
}
static uint16_t f2h(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  uint32_t s = u >> 16 & 0x8000, m = u & 0x7fffffff;
  if (m < 0x38800000) {
    float y;
    uint32_t mm = m;
    memcpy(&y, &mm, 4);
    y += 0.5f;
    uint32_t v;
    memcpy(&v, &y, 4);
    return s | (v - 0x3f000000);
  }
  return s | ((m - 0x38000000 + 0xfff + (m >> 13 & 1)) >> 13);
}
struct Buf {
  VkBuffer b;
  VkDeviceMemory m;
  VkDeviceAddress a;
  size_t n;
};
VkInstance inst;
VkPhysicalDevice pd;
VkDevice dev;
VkQueue queue;
uint32_t fam;
VkCommandPool pool;
VkCommandBuffer cmd;
VkFence fence;
VkQueryPool qp;
float period;
bool gpu_host;
uint32_t memtype(uint32_t bits, VkMemoryPropertyFlags f) {
  VkPhysicalDeviceMemoryProperties p;
  vkGetPhysicalDeviceMemoryProperties(pd, &p);
  for (uint32_t i = 0; i < p.memoryTypeCount; i++)
    if ((bits >> i & 1) && (p.memoryTypes[i].propertyFlags & f) == f) return i;
  return ~0u;
}
Buf make(size_t n, bool host) {
  Buf r{};
  r.n = n;
  VkBufferCreateInfo bi{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
  bi.size = n;
  bi.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |
             VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  CK(vkCreateBuffer(dev, &bi, 0, &r.b));
  VkMemoryRequirements q;
  vkGetBufferMemoryRequirements(dev, r.b, &q);
  VkMemoryAllocateFlagsInfo fi{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO};
  fi.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
  VkMemoryAllocateInfo ai{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, &fi};
  ai.allocationSize = q.size;
  ai.memoryTypeIndex = memtype(q.memoryTypeBits, host ? VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                                            VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
                                                      : VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
  CK(vkAllocateMemory(dev, &ai, 0, &r.m));
  CK(vkBindBufferMemory(dev, r.b, r.m, 0));
  VkBufferDeviceAddressInfo bd{VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO};
  bd.buffer = r.b;
  r.a = vkGetBufferDeviceAddress(dev, &bd);
  return r;
}
void begin() {
  VkCommandBufferBeginInfo b{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
  CK(vkBeginCommandBuffer(cmd, &b));
}
void submit() {
  CK(vkEndCommandBuffer(cmd));
  VkSubmitInfo s{VK_STRUCTURE_TYPE_SUBMIT_INFO};
  s.commandBufferCount = 1;
  s.pCommandBuffers = &cmd;
  CK(vkQueueSubmit(queue, 1, &s, fence));
  VkResult r = vkWaitForFences(dev, 1, &fence, 1, 60000000000ull);
  if (r) {
    printf("wait %d\n", r);
    exit(2);
  }
  CK(vkResetFences(dev, 1, &fence));
}
Buf staging;
void up(Buf& d, const void* p, size_t n) {
  for (size_t o = 0; o < n; o += staging.n) {
    size_t k = std::min(staging.n, n - o);
    void* m;
    CK(vkMapMemory(dev, staging.m, 0, k, 0, &m));
    memcpy(m, (char*)p + o, k);
    vkUnmapMemory(dev, staging.m);
    begin();
    VkBufferCopy c{0, o, k};
    vkCmdCopyBuffer(cmd, staging.b, d.b, 1, &c);
    submit();
  }
}
void down(Buf& d, void* p, size_t n, size_t from = 0) {
  for (size_t o = 0; o < n; o += staging.n) {
    size_t k = std::min(staging.n, n - o);
    begin();
    VkBufferCopy c{from + o, 0, k};
    vkCmdCopyBuffer(cmd, d.b, staging.b, 1, &c);
    submit();
    void* m;
    CK(vkMapMemory(dev, staging.m, 0, k, 0, &m));
    memcpy((char*)p + o, m, k);
    vkUnmapMemory(dev, staging.m);
  }
}
struct Push {
  uint64_t q, k, v, o, lse, d_o, delta, d_q, d_k, d_v;
  int S, tiles, heads;
  float scale;
};
VkPipelineLayout layout;
VkPipeline build(const std::string& file, const std::vector<int>& spec, double* sec, bool stats) {
  FILE* f = fopen(file.c_str(), "rb");
  if (!f) {
    printf("no %s\n", file.c_str());
    exit(1);
  }
  std::vector<uint32_t> code;
  fseek(f, 0, SEEK_END);
  code.resize(ftell(f) / 4);
  rewind(f);
  if (fread(code.data(), 4, code.size(), f)) {
  }
  fclose(f);
  VkShaderModuleCreateInfo mi{VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
  mi.codeSize = code.size() * 4;
  mi.pCode = code.data();
  VkShaderModule mod;
  CK(vkCreateShaderModule(dev, &mi, 0, &mod));
  std::vector<VkSpecializationMapEntry> e;
  for (size_t i = 0; i < spec.size(); i++) e.push_back({uint32_t(i), uint32_t(4 * i), 4});
  VkSpecializationInfo si{uint32_t(e.size()), e.data(), spec.size() * 4, spec.data()};
  VkPipelineShaderStageRequiredSubgroupSizeCreateInfo rs{
      VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO};
  rs.requiredSubgroupSize = spec[6];
  VkComputePipelineCreateInfo ci{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
  ci.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
  ci.stage.pNext = &rs;
  ci.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  ci.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
  ci.stage.module = mod;
  ci.stage.pName = "main";
  ci.stage.pSpecializationInfo = &si;
  ci.layout = layout;
  if (stats) ci.flags = VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR;
  auto t0 = std::chrono::steady_clock::now();
  VkPipeline p;
  VkResult r = vkCreateComputePipelines(dev, 0, 1, &ci, 0, &p);
  *sec = std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count();
  vkDestroyShaderModule(dev, mod, 0);
  if (r) {
    printf("pipeline %d\n", r);
    return 0;
  }
  if (stats) {
    VkPipelineInfoKHR pi{VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR};
    pi.pipeline = p;
    uint32_t n = 0;
    vkGetPipelineExecutablePropertiesKHR(dev, &pi, &n, 0);
    for (uint32_t x = 0; x < n; x++) {
      VkPipelineExecutableInfoKHR xi{VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR};
      xi.pipeline = p;
      xi.executableIndex = x;
      uint32_t k = 0;
      vkGetPipelineExecutableStatisticsKHR(dev, &xi, &k, 0);
      std::vector<VkPipelineExecutableStatisticKHR> s(
          k, {VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR});
      vkGetPipelineExecutableStatisticsKHR(dev, &xi, &k, s.data());
      printf("   ");
      for (auto& y : s) printf(" %s=%llu", y.name, (unsigned long long)y.value.u64);
      printf("\n");
    }
  }
  return p;
}
// What matrices of a workgroup may be, and of which edges theirs and a subgroup's are multiples.
void list_flexible() {
  VkPhysicalDeviceCooperativeMatrix2PropertiesNV c{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_2_PROPERTIES_NV};
  VkPhysicalDeviceProperties2 p{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &c};
  vkGetPhysicalDeviceProperties2(pd, &p);
  printf("workgroup scope: up to %u invocations, %u bytes reserved, edges up to %u\n",
         c.cooperativeMatrixWorkgroupScopeMaxWorkgroupSize,
         c.cooperativeMatrixWorkgroupScopeReservedSharedMemory,
         c.cooperativeMatrixFlexibleDimensionsMaxDimension);
  uint32_t n = 0;
  if (!vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV) return;
  CK(vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV(pd, &n, 0));
  std::vector<VkCooperativeMatrixFlexibleDimensionsPropertiesNV> all(
      n, {VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_FLEXIBLE_DIMENSIONS_PROPERTIES_NV});
  CK(vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV(pd, &n, all.data()));
  for (auto& x : all)
    printf("  %u x %u x %u types %d %d %d %d scope %d invocations %u\n", x.MGranularity,
           x.NGranularity, x.KGranularity, x.AType, x.BType, x.CType, x.ResultType, x.scope,
           x.workgroupInvocations);
}
int main(int argc, char** argv) {
  CK(volkInitialize());
  VkApplicationInfo app{VK_STRUCTURE_TYPE_APPLICATION_INFO};
  app.apiVersion = VK_API_VERSION_1_3;
  VkInstanceCreateInfo ici{VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
  ici.pApplicationInfo = &app;
  CK(vkCreateInstance(&ici, 0, &inst));
  volkLoadInstance(inst);
  uint32_t n = 1;
  vkEnumeratePhysicalDevices(inst, &n, &pd);
  VkPhysicalDeviceProperties pr;
  vkGetPhysicalDeviceProperties(pd, &pr);
  printf("%s\n", pr.deviceName);
  period = pr.limits.timestampPeriod;
  uint32_t ne;
  vkEnumerateDeviceExtensionProperties(pd, 0, &ne, 0);
  std::vector<VkExtensionProperties> ex(ne);
  vkEnumerateDeviceExtensionProperties(pd, 0, &ne, ex.data());
  std::vector<const char*> want;
  bool stats = false;
  for (const char* w :
       {"VK_KHR_cooperative_matrix", "VK_NV_cooperative_matrix2", "VK_KHR_shader_bfloat16",
        "VK_KHR_pipeline_executable_properties", "VK_KHR_workgroup_memory_explicit_layout"})
    for (auto& x : ex)
      if (!strcmp(x.extensionName, w)) {
        want.push_back(w);
        if (strstr(w, "executable")) stats = true;
      }
  VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR pe{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR};
  VkPhysicalDeviceShaderBfloat16FeaturesKHR bf{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR, &pe};
  VkPhysicalDeviceCooperativeMatrix2FeaturesNV c2{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_2_FEATURES_NV, &bf};
  VkPhysicalDeviceCooperativeMatrixFeaturesKHR c1{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR, &c2};
  VkPhysicalDeviceVulkan13Features f13{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES, &c1};
  VkPhysicalDeviceVulkan12Features f12{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, &f13};
  VkPhysicalDeviceVulkan11Features f11{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, &f12};
  VkPhysicalDeviceFeatures2 f2{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, &f11};
  vkGetPhysicalDeviceFeatures2(pd, &f2);
  f2.features.robustBufferAccess = 0;
  printf("cm2: wg %d flex %d red %d conv %d elem %d tensor %d block %d\n",
         c2.cooperativeMatrixWorkgroupScope, c2.cooperativeMatrixFlexibleDimensions,
         c2.cooperativeMatrixReductions, c2.cooperativeMatrixConversions,
         c2.cooperativeMatrixPerElementOperations, c2.cooperativeMatrixTensorAddressing,
         c2.cooperativeMatrixBlockLoads);
  if (argc > 5) list_flexible();
  uint32_t nf;
  vkGetPhysicalDeviceQueueFamilyProperties(pd, &nf, 0);
  std::vector<VkQueueFamilyProperties> qf(nf);
  vkGetPhysicalDeviceQueueFamilyProperties(pd, &nf, qf.data());
  for (fam = 0; !(qf[fam].queueFlags & VK_QUEUE_COMPUTE_BIT); fam++)
    ;
  float prio = 1;
  VkDeviceQueueCreateInfo qi{VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
  qi.queueFamilyIndex = fam;
  qi.queueCount = 1;
  qi.pQueuePriorities = &prio;
  VkDeviceCreateInfo di{VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, &f2};
  di.queueCreateInfoCount = 1;
  di.pQueueCreateInfos = &qi;
  di.enabledExtensionCount = want.size();
  di.ppEnabledExtensionNames = want.data();
  CK(vkCreateDevice(pd, &di, 0, &dev));
  volkLoadDevice(dev);
  vkGetDeviceQueue(dev, fam, 0, &queue);
  VkCommandPoolCreateInfo pi{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
  pi.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
  pi.queueFamilyIndex = fam;
  CK(vkCreateCommandPool(dev, &pi, 0, &pool));
  VkCommandBufferAllocateInfo ca{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
  ca.commandPool = pool;
  ca.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
  ca.commandBufferCount = 1;
  CK(vkAllocateCommandBuffers(dev, &ca, &cmd));
  VkFenceCreateInfo fi{VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
  CK(vkCreateFence(dev, &fi, 0, &fence));
  VkQueryPoolCreateInfo qq{VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
  qq.queryType = VK_QUERY_TYPE_TIMESTAMP;
  qq.queryCount = 2;
  CK(vkCreateQueryPool(dev, &qq, 0, &qp));
  VkPushConstantRange pc{VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(Push)};
  VkPipelineLayoutCreateInfo li{VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
  li.pushConstantRangeCount = 1;
  li.pPushConstantRanges = &pc;
  CK(vkCreatePipelineLayout(dev, &li, 0, &layout));
  int S = argc > 1 ? atoi(argv[1]) : 4096, tokens = argc > 2 ? atoi(argv[2]) : 16384,
      HD = argc > 3 ? atoi(argv[3]) : 2048, budget = argc > 4 ? atoi(argv[4]) : 20;
  size_t N = size_t(tokens) * HD;
  staging = make(64 << 20, true);
  std::vector<uint16_t> q(N), k(N), v(N), g(N);
  std::mt19937 rng(1);
  {
    std::vector<uint16_t> tab(1 << 16);
    std::normal_distribution<float> nd;
    for (auto& x : tab) {  // what f16 and bf16 both hold
      float y = nd(rng);
      uint32_t u;
      memcpy(&u, &y, 4);
      u &= 0xffff0000u;
      memcpy(&y, &u, 4);
      x = fabs(y) < 0x1p-12f ? 0 : f2h(y);
    }
    uint64_t s = 88172645463325252ull;
    auto nx = [&] {
      s ^= s << 13;
      s ^= s >> 7;
      s ^= s << 17;
      return tab[s >> 40 & 0xffff];
    };
    for (size_t i = 0; i < N; i++) q[i] = nx(), k[i] = nx(), v[i] = nx(), g[i] = nx();
  }
  size_t R = size_t(tokens) * HD / 32;  // >= rows for D >= 32
  Buf bq = make(2 * N, false), bk = make(2 * N, false), bv = make(2 * N, false),
      bo = make(2 * N, false), bg = make(2 * N, false), dq = make(2 * N, false),
      dk = make(2 * N, false), dv = make(2 * N, false), lse = make(4 * R, false),
      delta = make(4 * R, false);
  bool brain = true;  // whether the buffers hold bf16
  auto fill = [&](bool as) {
    if (brain == as) return;
    brain = as;
    std::vector<uint16_t> t(N);
    auto put = [&](Buf& b, std::vector<uint16_t>& x) {
      for (size_t i = 0; i < N; i++) {
        float y = h2f(x[i]);
        uint32_t u;
        memcpy(&u, &y, 4);
        t[i] = as ? u >> 16 : x[i];
      }
      up(b, t.data(), 2 * N);
    };
    put(bq, q), put(bk, k), put(bv, v), put(bg, g);
  };
  std::string line;  // file WG D BC RB CAUSAL M SG QREG STAGE VAR
  int warm = 1;
  std::map<int, bool> have;
  std::vector<float> L, DL;
  char buf[256];
  auto tstart = std::chrono::steady_clock::now();
  while (fgets(buf, 256, stdin)) {
    std::istringstream is(buf);
    std::string file;
    if (!(is >> file) || file[0] == '#') continue;
    std::vector<int> sp;
    int x;
    while (is >> x) sp.push_back(x);
    int WG = sp[0], D = sp[1], RB = sp[3], causal = sp[4], M = sp[5], SG = sp[6];
    int BR = WG / SG * M * RB, heads = int(N / S / D);
    if (S % BR || S % sp[2]) {
      printf("%s: S %d no multiple\n", buf, S);
      continue;
    }
    fill(file.find("_bf16") != std::string::npos);
    double sec;
    VkPipeline p = build(file + ".spv", sp, &sec, stats);
    if (!p) continue;
    Push pu{bq.a, bk.a, bv.a, bo.a, lse.a,  bg.a,  delta.a,
            dq.a, dk.a, dv.a, S,    S / BR, heads, float(1 / sqrt(double(D)))};
    bool bwd = file[0] == 'b';
    auto run = [&](int reps) {
      begin();
      vkCmdResetQueryPool(cmd, qp, 0, 2);
      vkCmdBindPipeline(cmd, VK_PIPELINE_BIND_POINT_COMPUTE, p);
      vkCmdPushConstants(cmd, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof pu, &pu);
      vkCmdWriteTimestamp(cmd, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, qp, 0);
      for (int i = 0; i < reps; i++) {
        vkCmdDispatch(cmd, S / BR * heads, 1, 1);
        VkMemoryBarrier mb{VK_STRUCTURE_TYPE_MEMORY_BARRIER, 0, VK_ACCESS_SHADER_WRITE_BIT,
                           VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT};
        vkCmdPipelineBarrier(cmd, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                             VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &mb, 0, 0, 0, 0);
      }
      vkCmdWriteTimestamp(cmd, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, qp, 1);
      submit();
      uint64_t t[2];
      CK(vkGetQueryPoolResults(dev, qp, 0, 2, 16, t, 8,
                               VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT));
      return (t[1] - t[0]) * double(period) * 1e-6 / reps;
    };
    if (bwd) {  // lse and delta of this D and mask on the host from the last forward's o
      std::vector<uint16_t> o(N);
      down(bo, o.data(), 2 * N);
      size_t rows = size_t(heads) * S;
      std::vector<float> dl(rows);
      for (size_t r = 0; r < rows; r++) {
        double s = 0;
        for (int c = 0; c < D; c++) s += double(h2f(o[r * D + c])) * h2f(g[r * D + c]);
        dl[r] = s;
      }
      up(delta, dl.data(), 4 * rows);
    }
    double ms = run(1);
    int reps = std::max(1, int(20 / std::max(ms, 0.01)));
    if (reps > 50) reps = 50;
    if (warm && stats) {
      for (int i = 0; i < 40; i++) run(reps);
      warm = 0;
    }
    std::vector<double> ts;
    for (int i = 0; i < 5; i++) ts.push_back(run(reps));
    std::sort(ts.begin(), ts.end());
    ms = ts[2];
    double fl = 4.0 * heads * double(S) * S * D * (causal ? 0.5 : 1);
    double f = file[0] == 'f'                   ? fl
               : file.substr(0, 7) == "bwd_dkv" ? ((sp[9] & 16)   ? fl
                                                   : (sp[9] & 32) ? 1.5 * fl
                                                                  : 2 * fl)
                                                : 1.5 * fl;  // dkv 4 products, dq 3
    // check
    double err = 0, mag = 0;
    std::string what;
    std::vector<float> lz(S);
    int hd = heads - 1;
    auto at = [&](std::vector<uint16_t>& t, int i, int c) {
      return double(h2f(t[(size_t(hd) * S + i) * D + c]));
    };
    std::vector<uint16_t> out(N);
    if (file[0] == 'f') {
      const size_t first = size_t(hd) * S * D;  // the last head is all that is looked at
      down(bo, &out[first], 2 * size_t(S) * D, 2 * first);
      if (brain)
        for (size_t n = first; n < first + size_t(S) * D; n++) {
          uint16_t& x = out[n];
          uint32_t u = uint32_t(x) << 16;
          float y;
          memcpy(&y, &u, 4);
          x = f2h(y);
        }
      for (int i : {0, 1, S / 3, S - 1}) {
        std::vector<double> w(S);
        double m = -1e300, l = 0;
        int top = causal ? i + 1 : S;
        for (int j = 0; j < top; j++) {
          double s = 0;
          for (int c = 0; c < D; c++) s += at(q, i, c) * at(k, j, c);
          w[j] = s * pu.scale;
          m = std::max(m, w[j]);
        }
        for (int j = 0; j < top; j++) l += w[j] = exp(w[j] - m);
        for (int c = 0; c < D; c++) {
          double o = 0;
          for (int j = 0; j < top; j++) o += w[j] / l * at(v, j, c);
          err = std::max(err, fabs(o - at(out, i, c)));
          mag = std::max(mag, fabs(o));
        }
      }
    } else {
      bool isq = file.substr(0, 6) == "bwd_dq";
      std::vector<uint16_t> o(N);
      down(bo, o.data(), 2 * N);
      down(isq ? dq : dk, out.data(), 2 * N);
      std::vector<float> lf(size_t(heads) * S);
      down(lse, lf.data(), 4 * lf.size());
      for (int i : {0, S / 3, S - 1}) {
        std::vector<double> acc(D);
        for (int j = 0; j < S; j++) {
          int a = isq ? i : j, b = isq ? j : i;
          if (causal && b > a) continue;
          double s = 0, dp = 0, de = 0;
          for (int c = 0; c < D; c++)
            s += at(q, a, c) * at(k, b, c), dp += at(g, a, c) * at(v, b, c),
                de += at(g, a, c) * at(o, a, c);
          double ds = exp(s * pu.scale - lf[size_t(hd) * S + a]) * (dp - de);
          for (int c = 0; c < D; c++) acc[c] += ds * pu.scale * (isq ? at(k, b, c) : at(q, a, c));
        }
        for (int c = 0; c < D; c++)
          err = std::max(err, fabs(acc[c] - at(out, i, c))), mag = std::max(mag, fabs(acc[c]));
      }
    }
    buf[strcspn(buf, "\n")] = 0;
    printf("%-40s %8.3f ms [%.3f %.3f] raw %6.1f TFLOP/s  err %.2e of %.2e  build %.2f s\n", buf,
           ms, ts[0], ts[4], f / ms * 1e-9, err, mag, sec);
    fflush(stdout);
    vkDestroyPipeline(dev, p, 0);
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - tstart).count() > budget) {
      printf("time is up\n");
      break;
    }
  }
}
