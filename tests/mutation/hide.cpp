// SPDX-License-Identifier: MIT OR Apache-2.0
// hide MODULE VARIABLES NAME HEADER: a SPIR-V module as a header that defines NAME_spirv[], in
// which the validation layer's check for races does not see what is done to some shared arrays,
// names apart by commas, of which the module uses one or more (races.cmake). It follows chains of
// accesses to their variable and lets those be that begin elsewhere: here, at OpSelect, whose two
// choices are the variable. The program is the same, but it wants variablePointers, which only
// Vulkan's core validation asks about.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace {

enum Op : uint32_t {
  kName = 5,
  kCapability = 17,
  kTypeBool = 20,
  kConstantTrue = 41,
  kFunction = 54,
  kVariable = 59,
  kAccessChain = 65,
  kInBoundsAccessChain = 66,
  kSelect = 169,
};
constexpr uint32_t kVariablePointers = 4442;

using Words = std::vector<uint32_t>;

void put(Words& out, Op op, const Words& operands) {
  out.push_back(uint32_t(operands.size() + 1) << 16 | op);
  out.insert(out.end(), operands.begin(), operands.end());
}

// Empty if there is no such variable, or nothing that it is used for.
Words hide(const Words& in, const char* name) {
  uint32_t variable = 0, type = 0, boolean = 0, next = in[3], uses = 0;
  const uint32_t yes = next++;
  bool code = false;  // functions, behind all that they refer to
  Words out(in.begin(), in.begin() + 5);
  put(out, kCapability, {kVariablePointers});
  for (size_t at = 5, length = 0; at < in.size(); at += length) {
    const uint32_t* w = in.data() + at;
    const uint32_t op = w[0] & 0xffff;
    length = w[0] >> 16;
    if (length == 0 || at + length > in.size()) return {};
    if (op == kName && !std::strcmp(reinterpret_cast<const char*>(w + 2), name)) variable = w[1];
    if (op == kTypeBool) boolean = w[1];
    if (op == kVariable && w[2] == variable) type = w[1];
    if (op == kFunction && !code) {
      if (!type || !boolean) return {};
      put(out, kConstantTrue, {boolean, yes});
      code = true;
    }
    const bool use = (op == kAccessChain || op == kInBoundsAccessChain) && w[3] == variable;
    if (use) put(out, kSelect, {type, next, yes, variable, variable});
    out.insert(out.end(), w, w + length);
    if (use) out[out.size() - length + 3] = next++;
    uses += use;
  }
  out[3] = next;
  return uses ? out : Words{};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  std::ifstream file(argv[1], std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  Words in(bytes.size() / 4);
  std::memcpy(in.data(), bytes.data(), in.size() * 4);
  Words out;
  std::istringstream names(argv[2]);
  for (std::string name; std::getline(names, name, ',');)
    if (const Words hidden = in.size() > 5 ? hide(in, name.c_str()) : Words{}; !hidden.empty())
      in = out = hidden;
  if (out.empty()) {
    std::fprintf(stderr, "hide: no use of a variable '%s' in %s\n", argv[2], argv[1]);
    return 1;
  }
  std::ofstream header(argv[4]);
  header << "const uint32_t " << argv[3] << "_spirv[] = {\n";
  for (size_t n = 0; n < out.size(); n++) header << out[n] << (n % 12 == 11 ? ",\n" : ",");
  header << "};\n";
  return header ? 0 : 1;
}
