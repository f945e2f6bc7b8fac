// SPDX-License-Identifier: MIT OR Apache-2.0
// Numbers as text and back, without the locale that an application has set (a decimal comma, for
// one), which printf and strtod depend on. Nothing is allocated but a String.
#ifndef TANDEM_SRC_BASE_NUMBER_H
#define TANDEM_SRC_BASE_NUMBER_H
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "host_memory.h"

namespace tandem {

// As %a: "0x1.8p+3", "-0x0p+0", "inf". Lossless, except for the sign and payload of NaN.
inline String hex_text(float value) {
  if (std::isnan(value)) return "nan";
  char digits[32];
  const double magnitude =
      // Its leading digit is 1, also that of a denormal.
      std::fabs(double(value));
  const char* end =
      std::to_chars(digits, digits + sizeof digits, magnitude, std::chars_format::hex).ptr;
  String s = std::signbit(value) ? "-" : "";
  if (std::isfinite(value)) s += "0x";
  return s.append(digits, size_t(end - digits));
}

// The shortest decimal that is this number and no other of its type: "0.1", "1e+30".
template <typename Float>
String short_text(Float value) {
  char digits[32];
  const char* end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  return String(digits, size_t(end - digits));
}

// As %.*f, with a final NUL; "-" if it does not fit.
template <size_t N>
const char* fixed_text(char (&out)[N], double value, int decimals) {
  const std::to_chars_result r =
      std::to_chars(out, out + N - 1, value, std::chars_format::fixed, decimals);
  if (r.ec != std::errc()) return std::strcpy(out, "-");
  *r.ptr = '\0';
  return out;
}

// Parses [first, last), which has to be one number that the type can hold: decimal, and for a float
// hexadecimal (0x1p-3), inf or nan as well.
inline bool parse_number(const char* first, const char* last, int64_t* value) {
  if (first != last && *first == '+' && ++first != last && *first == '-') return false;
  int64_t read = 0;
  const std::from_chars_result r = std::from_chars(first, last, read);
  if (r.ec != std::errc() || r.ptr != last) return false;
  *value = read;
  return true;
}

inline bool parse_number(const char* first, const char* last, uint64_t* value) {
  uint64_t read = 0;
  const std::from_chars_result r = std::from_chars(first, last, read);
  if (r.ec != std::errc() || r.ptr != last) return false;
  *value = read;
  return true;
}

inline bool parse_number(const char* first, const char* last, float* value) {
  const bool negative = first != last && *first == '-';
  if (first != last && (*first == '-' || *first == '+')) ++first;
  std::chars_format format = std::chars_format::general;
  if (last - first > 2 && first[0] == '0' && (first[1] == 'x' || first[1] == 'X')) {
    first += 2;
    format = std::chars_format::hex;
  }
  // from_chars would accept a second sign, and infinity in hexadecimal.
  const char* starts =
      format == std::chars_format::hex ? ".0123456789abcdefABCDEF" : ".0123456789iInN";
  if (first == last || *first == '\0' || !std::strchr(starts, *first)) return false;
  float read = 0;
  const std::from_chars_result r = std::from_chars(first, last, read, format);
  if (r.ec != std::errc() || r.ptr != last) return false;
  *value = negative ? -read : read;
  return true;
}

}  // namespace tandem
#endif
