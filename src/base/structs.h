// SPDX-License-Identifier: MIT OR Apache-2.0
// Structs that cross the C border, from callers with an older or a newer header. tandem.h has the
// rule, under Structs.
#ifndef TANDEM_SRC_BASE_STRUCTS_H
#define TANDEM_SRC_BASE_STRUCTS_H
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "status.h"

namespace tandem {

// Length of a struct in version 0.1.0, the only one before this. A struct that has grown since has
// a line here, which never changes.
template <typename Struct>
constexpr size_t kFirstSize = sizeof(Struct);
template <>
inline constexpr size_t kFirstSize<tandem_device_options> = 40;
template <>
inline constexpr size_t kFirstSize<tandem_problem> = 440;
template <>
inline constexpr size_t kFirstSize<tandem_plan_info> = 616;
template <>
inline constexpr size_t kFirstSize<tandem_args> = 176;

// Longest struct_size that is accepted, so that one that was never set does not make us read far.
constexpr size_t kLongest = 4096;

// Whether a version has a struct of this size: 0.1.0, this one or, as far as can be known, a newer
// one.
template <typename Struct>
constexpr bool is_size_of(size_t size) {
  return size == kFirstSize<Struct> || size == sizeof(Struct) ||
         (size > sizeof(Struct) && size <= kLongest && size % alignof(Struct) == 0);
}

template <typename Struct>
Status check_size_of(const char* what, const Struct* given) {
  if (!given) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "%s is NULL", what);
  const size_t size = given->struct_size;
  if (!is_size_of<Struct>(size))
    return fail(TANDEM_ERROR_INVALID_STRUCT,
                "%s.struct_size is %zu, must be %zu, or what another version has, at least %zu",
                what, size, sizeof(Struct), kFirstSize<Struct>);
  return Status();
}

// The caller's struct in the form of this version.
template <typename Struct>
Status read_struct(const char* what, const Struct* given, Struct* whole) {
  TANDEM_TRY(check_size_of(what, given));
  const size_t size = given->struct_size;
  const char* bytes = reinterpret_cast<const char*>(given);
  for (size_t i = sizeof(Struct); i < size; ++i)
    if (bytes[i] != 0)
      return fail(TANDEM_ERROR_INVALID_STRUCT,
                  "%s.struct_size is %zu, this version has %zu, and byte %zu, which it does not "
                  "know, is not 0",
                  what, size, sizeof(Struct), i);
  *whole = Struct{};
  std::memcpy(static_cast<void*>(whole), bytes, std::min(size, sizeof(Struct)));
  whole->struct_size = uint32_t(sizeof(Struct));
  return Status();
}

// Writes as much of whole as the caller's struct has, except struct_size. given has been checked.
template <typename Struct>
void write_struct(const Struct& whole, Struct* given) {
  const size_t from = sizeof(whole.struct_size);
  std::memcpy(reinterpret_cast<char*>(given) + from, reinterpret_cast<const char*>(&whole) + from,
              std::min<size_t>(given->struct_size, sizeof(Struct)) - from);
}

// Value of an enum from outside, as a number. It may be out of the enum's range, and reading it as
// the enum would be undefined.
template <typename Enum>
uint32_t number_of(const Enum& given) {
  static_assert(sizeof(Enum) == sizeof(uint32_t), "as the C ABI has it");
  uint32_t number = 0;
  std::memcpy(&number, &given, sizeof number);
  return number;
}

}  // namespace tandem
#endif
