// SPDX-License-Identifier: MIT OR Apache-2.0
// Training, step by step, and all that it takes to go on with it later: on another device, too.
#ifndef TANDEM_EXAMPLES_CHAR_LM_TRAIN_H
#define TANDEM_EXAMPLES_CHAR_LM_TRAIN_H
#include <string>
#include <vector>

#include "model.h"
#include "text.h"

namespace char_lm {

struct Schedule {
  int steps = 300, batch = 16;
  float rate = 3e-3f;
  uint64_t seed = 1;
};

// The state of a training between two steps.
struct Checkpoint {
  Config config;
  Schedule schedule;
  Alphabet alphabet;
  int step = 0;         // steps done
  uint64_t random = 0;  // where the drawing of batches stands
  std::vector<float> parameters;
  Adam::State adam;
};

// A file: a line with the numbers, the alphabet, then parameters and Adam's moments as they lie in
// memory.
void save(const std::string& path, const Checkpoint& checkpoint);
Checkpoint load(const std::string& path);

class Trainer {
 public:
  Trainer(const Config& config, const Schedule& schedule, const Alphabet& alphabet, Pool& pool);
  // Goes on where the checkpoint was made.
  Trainer(const Checkpoint& from, Pool& pool);

  const Schedule& schedule() const { return at_.schedule; }
  int steps_done() const { return at_.step; }
  Model<float>& model() { return model_; }

  // One step on a batch of the text; attention is made for schedule().batch sequences. Returns the
  // loss before it.
  double step(Attention<float>& attention, const std::vector<int>& text);
  const Checkpoint& checkpoint();

 private:
  Checkpoint at_;  // parameters and moments only after checkpoint()
  Model<float> model_;
  Adam adam_;
  Normal random_;
};

}  // namespace char_lm
#endif
