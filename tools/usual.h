// SPDX-License-Identifier: MIT OR Apache-2.0
// What `tandem info` and `tandem doctor` say of a machine.
#ifndef TANDEM_TOOLS_USUAL_H
#define TANDEM_TOOLS_USUAL_H
#include <string>
#include <vector>

namespace tandem::tool {

// Problems whose paths are printed.
struct Usual {
  const char* what;
  const char* line;
};
inline constexpr Usual kUsual[] = {
    {"training, long", "bwd bf16 b4 hq16 hk16 sq2048 sk2048 d128 dv128 causal_top_left"},
    {"training, f32", "bwd f32 b16 hq12 hk12 sq512 sk512 d64 dv64"},
    {"prompt, GQA", "fwd f16 b1 hq32 hk8 sq4096 sk4096 d128 dv128 causal_bottom_right"},
    {"next token, GQA", "fwd f16 b8 hq32 hk8 sq1 sk4096 d128 dv128 causal_bottom_right"},
    {"vision", "fwd f16 b8 hq16 hk16 sq1025 sk1025 d72 dv72"},
    {"sliding window", "bwd bf16 b1 hq8 hk8 sq8192 sk8192 d64 dv64 causal_top_left left=1023"},
    {"wide heads, MQA", "fwd f32 b1 hq8 hk1 sq1024 sk1024 d256 dv256"},
    {"odd sizes", "bwd f32 b1 hq3 hk1 sq77 sk131 d40 dv24"}};

std::vector<std::string> lines_of(const std::string& text);
std::string system_text();  // kernel, its release, processor; not the machine's name

}  // namespace tandem::tool
#endif
