// SPDX-License-Identifier: MIT OR Apache-2.0
// A text as numbers, and loss curves as files.
#ifndef TANDEM_EXAMPLES_CHAR_LM_TEXT_H
#define TANDEM_EXAMPLES_CHAR_LM_TEXT_H
#include <string>
#include <vector>

#include "model.h"

namespace char_lm {

// The characters that a model knows, bytes in ascending order; a token is a place in this list.
class Alphabet {
 public:
  Alphabet() = default;
  explicit Alphabet(const std::string& text);
  int size() const { return int(characters_.size()); }
  const std::string& characters() const { return characters_; }
  char character(int token) const { return characters_[size_t(token)]; }
  // Throws std::runtime_error that names a character which is not in the list.
  std::vector<int> encode(const std::string& text) const;

 private:
  std::string characters_;
};

std::string read_file(const std::string& path);  // throws std::runtime_error

struct Batch {  // [sequences * context]; a target is the token that follows
  std::vector<int> tokens, targets;
};
// Sequences that start at random places of the text.
Batch random_batch(const std::vector<int>& text, int sequences, int context, Normal* random);

// The losses of some steps in a row, counted from 1.
struct Curve {
  int first = 1;
  std::vector<double> losses;
  int last() const { return first + int(losses.size()) - 1; }
  double at(int step) const { return losses[size_t(step - first)]; }
};

// Files with a line "step,loss" and then one line a step.
void write_losses(const std::string& path, const Curve& curve);
Curve read_losses(const std::string& path);

// Both curves side by side every `every` steps, and their largest difference over all steps that
// both have.
std::string side_by_side(const std::string& name_a, const Curve& a, const std::string& name_b,
                         const Curve& b, int every);

}  // namespace char_lm
#endif
