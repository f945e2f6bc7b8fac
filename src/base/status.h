// SPDX-License-Identifier: MIT OR Apache-2.0
// A status with its message. Nothing inside the library throws for a failed call. The C border
// (border.h) turns a Status into a number and this thread's last message.
#ifndef TANDEM_SRC_BASE_STATUS_H
#define TANDEM_SRC_BASE_STATUS_H
#include <cstdarg>
#include <cstdio>
#include <type_traits>
#include <utility>

#include "host_memory.h"
#include "tandem/tandem.h"

namespace tandem {

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(tandem_status code, String message) : code_(code), message_(std::move(message)) {}
  bool ok() const { return code_ == TANDEM_OK; }
  tandem_status code() const { return code_; }
  const String& message() const { return message_; }

 private:
  tandem_status code_ = TANDEM_OK;
  String message_;
};

// Real numbers are passed as text (number.h), as those of printf follow the process's locale.
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
inline String
text(const char* format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  const int size = std::vsnprintf(nullptr, 0, format, args);
  va_end(args);
  String s(size_t(size > 0 ? size : 0), '\0');
  std::vsnprintf(&s[0], s.size() + 1, format, again);
  va_end(again);
  return s;
}

template <typename... Args>
Status fail(tandem_status code, const char* format, Args... args) {
  static_assert(!(std::is_floating_point_v<Args> || ...), "number.h: printf follows the locale");
  if constexpr (sizeof...(Args) == 0)
    return Status(code, format);
  else
    return Status(code, text(format, args...));
}

}  // namespace tandem

#define TANDEM_TRY(expression)                   \
  do {                                           \
    ::tandem::Status try_status_ = (expression); \
    if (!try_status_.ok()) return try_status_;   \
  } while (false)

#endif
