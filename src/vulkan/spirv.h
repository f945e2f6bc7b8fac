// SPDX-License-Identifier: MIT OR Apache-2.0
// Numbers of SPIR-V's instructions, and what operations on constants give.
#ifndef TANDEM_SRC_VULKAN_SPIRV_H
#define TANDEM_SRC_VULKAN_SPIRV_H
#include <cstdint>

namespace tandem {

enum SpirvOp : uint32_t {
#define TANDEM_OP(name, number) k##name = number,
#include "spirv_ops.inc"
};

// The result of an operation whose `count` operands are known; false: undefined, or not one of
// those that are evaluated.
inline bool evaluate(uint32_t op, const uint32_t* v, uint32_t count, uint32_t* r) {
  const uint32_t a = count > 0 ? v[0] : 0, b = count > 1 ? v[1] : 0;
  const int32_t sa = int32_t(a), sb = int32_t(b);
  const bool divides = b != 0 && !(a == 0x80000000u && b == 0xffffffffu);
  switch (op) {
    case kBitcast:
      *r = a;
      return true;
    case kSNegate:
      *r = 0u - a;
      return true;
    case kNot:
      *r = ~a;
      return true;
    case kLogicalNot:
      *r = !a;
      return true;
    case kIAdd:
      *r = a + b;
      return true;
    case kISub:
      *r = a - b;
      return true;
    case kIMul:
      *r = a * b;
      return true;
    case kUDiv:
      return b != 0 && (*r = a / b, true);
    case kUMod:
      return b != 0 && (*r = a % b, true);
    case kSDiv:
      return divides && (*r = uint32_t(sa / sb), true);
    case kSRem:
      return divides && (*r = uint32_t(sa % sb), true);
    case kSMod:
      if (!divides) return false;
      *r = uint32_t(sa % sb);
      if (*r != 0 && (int32_t(*r) < 0) != (sb < 0)) *r += b;
      return true;
    case kLogicalEqual:
      *r = (a != 0) == (b != 0);
      return true;
    case kLogicalNotEqual:
      *r = (a != 0) != (b != 0);
      return true;
    case kLogicalOr:
      *r = a || b;
      return true;
    case kLogicalAnd:
      *r = a && b;
      return true;
    case kSelect:
      *r = a ? b : v[2];
      return true;
    case kIEqual:
      *r = a == b;
      return true;
    case kINotEqual:
      *r = a != b;
      return true;
    case kUGreaterThan:
      *r = a > b;
      return true;
    case kSGreaterThan:
      *r = sa > sb;
      return true;
    case kUGreaterThanEqual:
      *r = a >= b;
      return true;
    case kSGreaterThanEqual:
      *r = sa >= sb;
      return true;
    case kULessThan:
      *r = a < b;
      return true;
    case kSLessThan:
      *r = sa < sb;
      return true;
    case kULessThanEqual:
      *r = a <= b;
      return true;
    case kSLessThanEqual:
      *r = sa <= sb;
      return true;
    case kShiftRightLogical:
      return b < 32 && (*r = a >> b, true);
    case kShiftRightArithmetic:
      return b < 32 && (*r = sa < 0 ? ~(~a >> b) : a >> b, true);
    case kShiftLeftLogical:
      return b < 32 && (*r = a << b, true);
    case kBitwiseOr:
      *r = a | b;
      return true;
    case kBitwiseXor:
      *r = a ^ b;
      return true;
    case kBitwiseAnd:
      *r = a & b;
      return true;
    default:
      return false;
  }
}

// Operands of what evaluate() has; 0: it does not have it.
inline uint32_t operand_count(uint32_t op) {
  switch (op) {
    case kBitcast:
    case kSNegate:
    case kNot:
    case kLogicalNot:
      return 1;
    case kSelect:
      return 3;
    case kIAdd:
    case kISub:
    case kIMul:
    case kUDiv:
    case kSDiv:
    case kUMod:
    case kSRem:
    case kSMod:
    case kShiftRightLogical:
    case kShiftRightArithmetic:
    case kShiftLeftLogical:
    case kBitwiseOr:
    case kBitwiseXor:
    case kBitwiseAnd:
      return 2;
    default:
      return op >= kLogicalEqual && op <= kSLessThanEqual ? 2 : 0;
  }
}

}  // namespace tandem
#endif
