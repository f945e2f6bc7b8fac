// SPDX-License-Identifier: MIT OR Apache-2.0
// char_lm: trains a small character-level transformer on a text file. Attention, forward and backward,
// runs on the Tandem device named on the command line; everything else is plain C++ on the CPU.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>

#include "device_attention.h"
#include "text.h"

namespace {

using namespace char_lm;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string text, device = "cpu", loss_csv, compare, save, load;
  std::string prompt = "\n";
  int steps = 300, batch = 16, sample = 0;
  uint64_t seed = 1;
  float rate = 3e-3f, temperature = 0.8f;
  Config config;
};

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One line that is drawn over and over on a terminal; elsewhere a line every 50 steps.
class Progress {
 public:
  explicit Progress(int steps) : steps_(steps), terminal_(isatty(STDERR_FILENO) == 1) {}
  void show(int step, double loss, double seconds) {
    const bool last = step == steps_;
    if (!terminal_) {
      if (step % 50 == 0 || step == 1 || last)
        std::fprintf(stderr, "step %d of %d  loss %.4f  %.1f s\n", step, steps_, loss, seconds);
      return;
    }
    if (seconds - drawn_ < 0.1 && !last) return;
    drawn_ = seconds;
    const int width = 30, full = int(int64_t(width) * step / steps_);
    std::fprintf(stderr, "\r[%-*.*s] %d/%d  loss %.4f  %.0f s left \x1b[K%s", width, full,
                 "##############################", step, steps_, loss,
                 seconds / step * (steps_ - step), last ? "\n" : "");
  }

 private:
  int steps_;
  bool terminal_;
  double drawn_ = -1;
};

// Rises over the first steps and then falls along half a cosine to a tenth.
float rate_at(int step, int steps, float rate) {
  const int rise = std::min(20, steps / 5 + 1);
  if (step < rise) return rate * float(step + 1) / float(rise);
  const float t = float(step - rise) / float(std::max(1, steps - rise));
  return rate * (0.55f + 0.45f * std::cos(3.14159265f * t));
}

std::vector<double> train(const Options& options, const std::vector<int>& text, Model<float>& model,
                          tandem::support::Session& session, Pool& pool) {
  DeviceAttention attention(session, model.config(), options.batch, DeviceAttention::Use::training);
  std::printf("forward   %s\nbackward  %s\n", attention.forward_name().c_str(),
              attention.backward_name().c_str());
  std::fflush(stdout);
  Adam adam(model.parameters().size(), pool);
  Normal random(options.seed + 1);  // not the sequence that the parameters were drawn from
  std::vector<double> losses;
  Progress progress(options.steps);
  const Clock::time_point start = Clock::now();
  for (int step = 0; step < options.steps; ++step) {
    const Batch batch = random_batch(text, options.batch, model.config().context, &random);
    model.forward(attention, batch.tokens);
    losses.push_back(double(model.loss(batch.targets)));
    if (!std::isfinite(losses.back()))
      throw std::runtime_error("the loss of step " + std::to_string(step + 1) + " is not finite");
    model.backward(attention, batch.tokens);
    adam.step(&model.parameters(), model.gradients(), rate_at(step, options.steps, options.rate),
              1.0f);
    progress.show(step + 1, losses.back(), since(start));
  }
  const double seconds = since(start);
  const size_t tail = std::min<size_t>(20, losses.size());
  double mean = 0;
  for (size_t i = losses.size() - tail; i < losses.size(); ++i) mean += losses[i] / double(tail);
  std::printf("device %s (%s), path %s\n", session.name().c_str(), session.info().name,
              attention.path().c_str());
  std::printf("%d steps in %.1f s, %.2f steps/s, attention with its transfers %.0f %%\n",
              options.steps, seconds, options.steps / seconds, 100 * attention.seconds() / seconds);
  std::printf("final loss %.4f (mean of the last %zu: %.4f)\n", losses.back(), tail, mean);
  return losses;
}

std::string generate(const Options& options, Model<float>& model, const Alphabet& alphabet,
                     tandem::support::Session& session) {
  const int context = model.config().context;
  DeviceAttention attention(session, model.config(), 1, DeviceAttention::Use::inference);
  Normal random(options.seed + 2);
  std::vector<int> tokens = alphabet.encode(options.prompt);
  std::string out = options.prompt;
  for (int i = 0; i < options.sample; ++i) {
    // The window is always `context` long; what follows the last token is not seen by it.
    const size_t seen = std::min(tokens.size(), size_t(context));
    std::vector<int> window(tokens.end() - long(seen), tokens.end());
    window.resize(size_t(context), 0);
    const auto logits = model.forward(attention, window).row(long(seen) - 1);
    const Vector<float> weights =
        ((logits.array() - logits.maxCoeff()) / options.temperature).exp();
    double at = random.uniform() * double(weights.sum());
    int token = 0;
    while (token + 1 < alphabet.size() && (at -= double(weights[token])) > 0) ++token;
    tokens.push_back(token);
    out += alphabet.character(token);
  }
  return out;
}

int run(Options& options) {
  Pool pool;
  Alphabet alphabet;
  SavedModel saved;
  std::string text;
  if (!options.text.empty()) text = read_file(options.text);
  if (!options.load.empty()) {
    saved = load_model(options.load);
    options.config = saved.config;
    alphabet = saved.alphabet;
  } else {
    alphabet = Alphabet(text);
    options.config.vocabulary = alphabet.size();
  }
  const Config& config = options.config;
  if (config.context < 1 || config.layers < 1 || config.heads < 1 || config.width < 1 ||
      config.width % config.heads != 0)
    throw std::runtime_error("width " + std::to_string(config.width) + " is no multiple of heads " +
                             std::to_string(config.heads));
  if (options.steps > 0 && text.size() <= size_t(config.context))
    throw std::runtime_error("training needs a text (--text) of more than " +
                             std::to_string(config.context) + " characters");

  Model<float> model(config, pool);
  if (options.load.empty()) {
    model.initialise(options.seed);
  } else if (saved.parameters.size() == model.parameters().size()) {
    model.parameters() = saved.parameters;
  } else {
    throw std::runtime_error(options.load + " is truncated");
  }

  const auto session = tandem::support::Session::open(options.device);
  if (options.steps > 0) {
    std::printf(
        "%zu characters, %d different; %d layers of width %d with %d heads, context %d, "
        "batch %d: %zu parameters\n",
        text.size(), alphabet.size(), config.layers, config.width, config.heads, config.context,
        options.batch, model.parameters().size());
    const std::vector<double> losses = train(options, alphabet.encode(text), model, *session, pool);
    if (!options.loss_csv.empty()) write_losses(options.loss_csv, losses);
    if (!options.compare.empty())
      std::printf("\n%s", side_by_side(session->name(), losses, options.compare,
                                       read_losses(options.compare), 20)
                              .c_str());
  }
  if (!options.save.empty()) save_model(options.save, model, alphabet);
  if (options.sample > 0)
    std::printf("\n%s\n", generate(options, model, alphabet, *session).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Trains a small character-level transformer; attention runs on a Tandem device.");
  app.add_option("--text", o.text, "Text file to learn from");
  app.add_option("--device", o.device, "cpu, vulkan:N or cuda:N")->capture_default_str();
  app.add_option("--steps", o.steps, "Training steps")
      ->capture_default_str()
      ->check(CLI::Range(0, 100000000));
  app.add_option("--seed", o.seed, "Parameters and batches are drawn from it")
      ->capture_default_str();
  app.add_option("--loss-csv", o.loss_csv, "Write the losses to this file: step,loss");
  app.add_option("--compare", o.compare, "Print this run's losses beside those of another's csv");
  app.add_option("--sample", o.sample, "Characters of text to write at the end")
      ->check(CLI::Range(0, 1000000));
  app.add_option("--prompt", o.prompt, "What the written text starts with (a new line)");
  app.add_option("--temperature", o.temperature, "Of the written text")
      ->capture_default_str()
      ->check(CLI::Range(0.01f, 100.0f));
  app.add_option("--save", o.save, "Write the trained model to this file");
  app.add_option("--load", o.load, "Start from a saved model; its sizes are used");
  app.add_option("--batch", o.batch, "Sequences a step")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  app.add_option("--context", o.config.context, "Characters the model looks at")
      ->capture_default_str();
  app.add_option("--layers", o.config.layers, "Blocks")->capture_default_str();
  app.add_option("--heads", o.config.heads, "Heads of a block")->capture_default_str();
  app.add_option("--width", o.config.width, "Features of a character")->capture_default_str();
  app.add_option("--rate", o.rate, "Largest learning rate")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    return run(o);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "char_lm: %s\n", e.what());
    return 1;
  }
}
