// SPDX-License-Identifier: MIT OR Apache-2.0
#include "verbose.h"

#include <cstring>

#include "base/environment.h"
#include "base/number.h"

namespace tandem {
namespace {

struct Word {
  const char* name;
  uint32_t bits;
};
constexpr Word kWords[] = {{"error", uint32_t(Verbose::error)},
                           {"device", uint32_t(Verbose::device)},
                           {"plan", uint32_t(Verbose::plan)},
                           {"execute", uint32_t(Verbose::execute)},
                           {"all", ~0u}};

struct Environment {
  uint32_t bits = 0;
  Status status;
  Environment() {
    String room;
    status = parse_verbose(environment_value("TANDEM_VERBOSE", &room), &bits);
  }
};

const Environment& environment() {
  static const Environment read;
  return read;
}

}  // namespace

Status parse_verbose(const char* words, uint32_t* bits) {
  *bits = 0;
  while (words && *words) {
    const size_t n = std::strcspn(words, ",");
    bool known = n == 0;
    for (const Word& w : kWords)
      if (std::strlen(w.name) == n && std::strncmp(w.name, words, n) == 0)
        *bits |= w.bits, known = true;
    if (!known)
      return *bits = 0, fail(TANDEM_ERROR_INVALID_ARGUMENT,
                             "TANDEM_VERBOSE has the word '%.*s'; it knows error, device, plan, "
                             "execute and all",
                             int(n), words);
    words += n + (words[n] == ',');
  }
  return Status();
}

const Status& verbose_status() { return environment().status; }

bool verbose(Verbose word) noexcept {
  try {
    return (environment().bits & uint32_t(word)) != 0;
  } catch (...) {
    return false;  // no memory for the status of a wrong word
  }
}

void verbose_line(Verbose word, const char* backend, double us, const char* text,
                  const char* more) noexcept {
  const char* name = "";
  for (const Word& w : kWords)
    if (w.bits == uint32_t(word)) name = w.name;
  char time[32] = "-";
  if (us >= 0) fixed_text(time, us, 1);
  // One call, so that lines of different threads do not mix.
  std::fprintf(stderr, "tandem,%s,%s,%s,%s%s\n", name, *backend ? backend : "-", time, text, more);
}

}  // namespace tandem
