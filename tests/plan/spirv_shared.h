// SPDX-License-Identifier: MIT OR Apache-2.0
// How much shared memory a SPIR-V module declares once its specialization constants have values,
// how many invocations a workgroup, which capabilities and which types of matrices: what the plan's
// numbers and a device's limits are compared with.
#ifndef TANDEM_TESTS_PLAN_SPIRV_SHARED_H
#define TANDEM_TESTS_PLAN_SPIRV_SHARED_H
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace spirv {

// A type of cooperative matrix. use: 0 for a left operand, 1 for a right one, 2 for an accumulator.
struct MatrixType {
  std::string element;  // "f32", "f16", "bf16"
  uint32_t scope, rows, columns, use;
};

class Module {
 public:
  Module(const uint32_t* words, size_t count) {
    for (size_t at = 5; at < count && words[at] >> 16; at += words[at] >> 16)
      read(std::vector<uint32_t>(words + at, words + at + (words[at] >> 16)));
  }
  // constants: values by SpecId; one that is missing keeps its default.
  uint32_t shared_bytes(const std::map<uint32_t, uint32_t>& constants) const {
    uint32_t bytes = 0;
    for (uint32_t type : shared_) bytes += size(def(type)[3], constants);  // of OpTypePointer
    return bytes;
  }
  // 0: the module does not say.
  uint64_t invocations(const std::map<uint32_t, uint32_t>& constants) const {
    if (group_size_) {  // which counts for more than the execution mode
      const Words& w = def(group_size_);
      return group(value(w[3], constants), value(w[4], constants), value(w[5], constants));
    }
    if (group_.size() < 6) return 0;
    if ((group_[0] & 0xffff) == 16) return group(group_[3], group_[4], group_[5]);
    return group(value(group_[3], constants), value(group_[4], constants),
                 value(group_[5], constants));
  }
  const std::vector<uint32_t>& capabilities() const { return capabilities_; }
  std::vector<MatrixType> matrices(const std::map<uint32_t, uint32_t>& constants) const {
    std::vector<MatrixType> all;
    for (const Words& w : matrices_) {
      const Words& element = def(w[2]);  // OpTypeFloat, with an encoding if it is bf16
      const std::string name = (element.size() > 3 ? "bf" : "f") + std::to_string(element[2]);
      all.push_back({name, value(w[3], constants), value(w[4], constants), value(w[5], constants),
                     value(w[6], constants)});
    }
    return all;
  }

 private:
  using Words = std::vector<uint32_t>;
  using Constants = std::map<uint32_t, uint32_t>;

  void read(const Words& w) {
    const uint32_t op = w[0] & 0xffff;
    if (op == 17) capabilities_.push_back(w[1]);         // OpCapability
    if (op == 4456) matrices_.push_back(w);              // OpTypeCooperativeMatrixKHR
    if (op == 71 && w[2] == 1) spec_ids_[w[1]] = w[3];   // OpDecorate SpecId
    if (op >= 19 && op <= 32) defs_[w[1]] = w;           // OpType...
    if (op >= 41 && op <= 52) defs_[w[2]] = w;           // OpConstant..., OpSpecConstant...
    if (op == 59 && w[3] == 4) shared_.push_back(w[1]);  // OpVariable Workgroup
    if (op == 71 && w[2] == 11 && w[3] == 25) group_size_ = w[1];  // BuiltIn WorkgroupSize
    if ((op == 16 && w[2] == 17) || (op == 331 && w[2] == 38))
      group_ = w;  // LocalSize, LocalSizeId
  }
  static uint64_t group(uint64_t x, uint64_t y, uint64_t z) { return x * y * z; }
  const Words& def(uint32_t id) const {
    const auto found = defs_.find(id);
    if (found == defs_.end()) throw std::runtime_error("id " + std::to_string(id) + " is unknown");
    return found->second;
  }
  uint32_t size(uint32_t id, const Constants& c) const {
    const Words& w = def(id);
    switch (w[0] & 0xffff) {
      case 20:  // OpTypeBool
        return 4;
      case 21:  // OpTypeInt
      case 22:  // OpTypeFloat
        return w[2] / 8;
      case 23:  // OpTypeVector
        return size(w[2], c) * w[3];
      case 28:  // OpTypeArray
        return size(w[2], c) * value(w[3], c);
      default:
        throw std::runtime_error("type of opcode " + std::to_string(w[0] & 0xffff));
    }
  }
  uint32_t value(uint32_t id, const Constants& c) const {
    const Words& w = def(id);
    const auto spec = spec_ids_.find(id);
    const auto given = spec == spec_ids_.end() ? c.end() : c.find(spec->second);
    switch (w[0] & 0xffff) {
      case 41:  // OpConstantTrue, False, Constant
        return 1;
      case 42:
        return 0;
      case 43:
        return w[3];
      case 48:  // OpSpecConstantTrue, False, SpecConstant
        return given == c.end() ? 1 : given->second;
      case 49:
        return given == c.end() ? 0 : given->second;
      case 50:
        return given == c.end() ? w[3] : given->second;
      case 52:
        return operation(w, c);
      default:
        throw std::runtime_error("constant of opcode " + std::to_string(w[0] & 0xffff));
    }
  }
  uint32_t operation(const Words& w, const Constants& c) const {
    const auto arg = [&](size_t n) { return value(w[4 + n], c); };
    const uint32_t x = arg(0), y = w.size() > 5 ? arg(1) : 0;
    const auto a = int32_t(x), b = int32_t(y);
    switch (w[3]) {
      case 124:  // OpBitcast
        return x;
      case 126:
        return 0 - x;
      case 128:
        return x + y;
      case 130:
        return x - y;
      case 132:
        return x * y;
      case 134:
        return x / y;
      case 135:
        return uint32_t(a / b);
      case 137:
        return x % y;
      case 138:
      case 139:
        return uint32_t(a % b);
      case 164:
      case 170:
        return x == y;
      case 165:
      case 171:
        return x != y;
      case 166:
        return x || y;
      case 167:
        return x && y;
      case 168:
        return !x;
      case 169:
        return x ? y : arg(2);
      case 172:
        return x > y;
      case 173:
        return a > b;
      case 174:
        return x >= y;
      case 175:
        return a >= b;
      case 176:
        return x < y;
      case 177:
        return a < b;
      case 178:
        return x <= y;
      case 179:
        return a <= b;
      default:
        throw std::runtime_error("operation " + std::to_string(w[3]));
    }
  }

  std::map<uint32_t, Words> defs_;
  std::map<uint32_t, uint32_t> spec_ids_;
  std::vector<uint32_t> shared_;  // pointer types of the variables
  std::vector<uint32_t> capabilities_;
  std::vector<Words> matrices_;
  uint32_t group_size_ = 0;  // the constant vector
  Words group_;              // the execution mode
};

}  // namespace spirv
#endif
