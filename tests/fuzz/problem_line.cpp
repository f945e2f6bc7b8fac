// SPDX-License-Identifier: MIT OR Apache-2.0
// Problem lines of any characters: each is a problem or refused with a sentence, and what a line
// was read as is printed as a line that is read as the same bits.
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
  // A line says nothing of tensors that its direction does not have.
  using P = tandem_problem;
  const bool merges = p.direction == TANDEM_MERGE || p.direction == TANDEM_MERGE_BACKWARD;
  if (p.direction == TANDEM_FORWARD || p.direction == TANDEM_MERGE)
    for (auto m : {&P::d_o, &P::d_q, &P::d_k, &P::d_v, &P::d_bias, &P::d_part_o}) again.*m = p.*m;
  if (merges) {
    for (auto m : {&P::q, &P::k, &P::v, &P::d_q, &P::d_k, &P::d_v}) again.*m = p.*m;
  } else {
    again.part_o = p.part_o, again.d_part_o = p.d_part_o;
    again.part_stride = p.part_stride, again.d_part_stride = p.d_part_stride;
  }
  if (p.direction == TANDEM_MERGE) again.d_part_stride = p.d_part_stride;
  FUZZ_CHECK_OF(std::memcmp(&again, &p, sizeof p) == 0,
                line + " is read, and printed as " + printed);
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
