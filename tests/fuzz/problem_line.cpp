// SPDX-License-Identifier: MIT OR Apache-2.0
// Problem lines of any characters: each is a problem or refused with a sentence, and what a line
// was read as is printed as a line that is read as the same. It says nothing of what its direction
// does not have, so the second reading is compared with the third.
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string line(reinterpret_cast<const char*>(data), size);
  tandem_problem p, again;
  std::memset(static_cast<void*>(&p), 0x5a, sizeof p);
  const tandem_problem before = p;
  const tandem_status status = tandem_problem_parse(line.c_str(), &p);
  if (status != TANDEM_OK) {
    FUZZ_CHECK_OF(status == TANDEM_ERROR_INVALID_ARGUMENT, line);
    FUZZ_CHECK_OF(std::strlen(tandem_last_message()) > 10, line);
    FUZZ_CHECK_OF(std::memcmp(&p, &before, sizeof p) == 0, "an out-parameter was changed");
    return 0;
  }
  const std::string printed = fuzz::line_of(p);
  FUZZ_CHECK_OF(tandem_problem_parse(printed.c_str(), &again) == TANDEM_OK, printed);
  FUZZ_CHECK_OF(fuzz::line_of(again) == printed, printed);
  // A second reading restores what the first one printed.
  tandem_problem third;
  FUZZ_CHECK(tandem_problem_parse(fuzz::line_of(again).c_str(), &third) == TANDEM_OK);
  FUZZ_CHECK_OF(std::memcmp(&again, &third, sizeof p) == 0, printed);
  // A buffer of any length gets as much as fits, and a final NUL.
  const size_t room = size % (printed.size() + 2);
  std::vector<char> text(room + 1, '#');
  FUZZ_CHECK(tandem_problem_print(&p, text.data(), room) == printed.size() + 1);
  FUZZ_CHECK_OF(text[room] == '#', "written behind the end");
  // A caller with a shorter struct.
  const uint32_t short_size = 440;
  std::vector<char> small(short_size);
  const tandem_status fits = tandem_problem_parse_sized(
      line.c_str(), reinterpret_cast<tandem_problem*>(small.data()), short_size);
  FUZZ_CHECK_OF(fits == TANDEM_OK || fits == TANDEM_ERROR_INVALID_STRUCT, line);
  return 0;
}
