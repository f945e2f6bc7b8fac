// SPDX-License-Identifier: MIT OR Apache-2.0
// char_lm: trains a small character-level transformer on a text file. Attention, forward and
// backward, runs on the Tandem device named on the command line; everything else is plain C++ on
// the CPU.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>

#include "device_attention.h"
#include "text.h"
#include "train.h"

#ifdef _WIN32
#include <io.h>
#define isatty _isatty
#define fileno _fileno
#else
#include <unistd.h>
#endif

namespace {

using namespace char_lm;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string text, device = "cpu", loss_csv, compare, save, resume;
  std::string prompt = "\n";
  int stop = -1, sample = 0, slices = 0;
  float temperature = 0.8f;
  Config config;
  Schedule schedule;
};

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One line that is drawn over and over on a terminal; elsewhere a line every 50 steps.
class Progress {
 public:
  explicit Progress(int steps) : steps_(steps), terminal_(isatty(fileno(stderr)) != 0) {}
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

Curve train(const Options& options, const std::vector<int>& text, Trainer& trainer,
            tandem::harness::Session& session) {
  const Schedule& schedule = trainer.schedule();
  DeviceAttention attention(session, trainer.model().config(), schedule.batch,
                            DeviceAttention::Use::training, options.slices);
  std::printf("forward   %s\nbackward  %s\n", attention.forward_name().c_str(),
              attention.backward_name().c_str());
  std::fflush(stdout);
  Curve curve;
  curve.first = trainer.steps_done() + 1;
  const int last = options.stop > 0 ? std::min(options.stop, schedule.steps) : schedule.steps;
  const int steps = last - trainer.steps_done();
  if (steps < 1)
    throw std::runtime_error("there is nothing to train: " + std::to_string(trainer.steps_done()) +
                             " steps are done, " + std::to_string(last) + " asked for");
  Progress progress(steps);
  const Clock::time_point start = Clock::now();
  for (int step = 0; step < steps; ++step) {
    curve.losses.push_back(trainer.step(attention, text));
    progress.show(step + 1, curve.losses.back(), since(start));
  }
  const double seconds = since(start);
  const size_t tail = std::min<size_t>(20, curve.losses.size());
  double mean = 0;
  for (size_t i = curve.losses.size() - tail; i < curve.losses.size(); ++i)
    mean += curve.losses[i] / double(tail);
  std::printf("device %s (%s), path %s\n", session.name().c_str(), session.info().name,
              attention.path().c_str());
  std::printf("%d steps in %.1f s, %.2f steps/s, attention with its transfers %.0f %%\n", steps,
              seconds, steps / seconds, 100 * attention.seconds() / seconds);
  std::printf("final loss %.4f (mean of the last %zu: %.4f)\n", curve.losses.back(), tail, mean);
  return curve;
}

std::string generate(const Options& options, Model<float>& model, const Alphabet& alphabet,
                     tandem::harness::Session& session) {
  const int context = model.config().context;
  DeviceAttention attention(session, model.config(), 1, DeviceAttention::Use::inference);
  Normal random(options.schedule.seed + 2);
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
  std::string text;
  if (!options.text.empty()) text = read_file(options.text);
  const auto make = [&] {
    if (!options.resume.empty()) return Trainer(load(options.resume), pool);
    const Alphabet alphabet(text);
    options.config.vocabulary = alphabet.size();
    return Trainer(options.config, options.schedule, alphabet, pool);
  };
  Trainer trainer = make();
  const Config config = trainer.model().config();
  const Alphabet alphabet = trainer.checkpoint().alphabet;
  const bool train_now = trainer.steps_done() < trainer.schedule().steps && options.stop != 0;
  if (train_now && text.size() <= size_t(config.context))
    throw std::runtime_error("training needs a text (--text) of more than " +
                             std::to_string(config.context) + " characters");

  const auto session = tandem::harness::Session::open(options.device);
  if (train_now) {
    std::printf(
        "%zu characters, %d different; %d layers of width %d with %d heads, context %d, "
        "batch %d: %zu parameters\n",
        text.size(), alphabet.size(), config.layers, config.width, config.heads, config.context,
        trainer.schedule().batch, trainer.model().parameters().size());
    if (!options.resume.empty())
      std::printf("goes on behind step %d of %d\n", trainer.steps_done(), trainer.schedule().steps);
    const Curve curve = train(options, alphabet.encode(text), trainer, *session);
    if (!options.loss_csv.empty()) write_losses(options.loss_csv, curve);
    if (!options.compare.empty())
      std::printf("\n%s", side_by_side(session->name(), curve, options.compare,
                                       read_losses(options.compare), 20)
                              .c_str());
  }
  if (!options.save.empty()) save(options.save, trainer.checkpoint());
  if (options.sample > 0)
    std::printf("\n%s\n", generate(options, trainer.model(), alphabet, *session).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Trains a small character-level transformer; attention runs on a Tandem device.");
  app.add_option("--text", o.text, "Text file to learn from");
  app.add_option("--device", o.device, "cpu, vulkan:N or cuda:N")->capture_default_str();
  app.add_option("--steps", o.schedule.steps,
                 "Training steps; the learning rate falls towards the last")
      ->capture_default_str()
      ->check(CLI::Range(0, 100000000));
  app.add_option("--slices", o.slices,
                 "Record each execute in about so many slices, each a job of its own; 0: whole")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--stop", o.stop, "End after this step of --steps, to go on later; 0: no training")
      ->check(CLI::Range(0, 100000000));
  app.add_option("--seed", o.schedule.seed, "Parameters and batches are drawn from it")
      ->capture_default_str();
  app.add_option("--loss-csv", o.loss_csv, "Write the losses to this file: step,loss");
  app.add_option("--compare", o.compare, "Print this run's losses beside those of another's csv");
  app.add_option("--sample", o.sample, "Characters of text to write at the end")
      ->check(CLI::Range(0, 1000000));
  app.add_option("--prompt", o.prompt, "What the written text starts with (a new line)");
  app.add_option("--temperature", o.temperature, "Of the written text")
      ->capture_default_str()
      ->check(CLI::Range(0.01f, 100.0f));
  app.add_option("--save", o.save, "Write the model and where its training stands to this file");
  app.add_option(
      "--resume", o.resume,
      "Go on from a saved file, on whatever device; sizes, steps, batch, rate and seed are its");
  app.add_option("--batch", o.schedule.batch, "Sequences a step")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  app.add_option("--context", o.config.context, "Characters the model looks at")
      ->capture_default_str();
  app.add_option("--layers", o.config.layers, "Blocks")->capture_default_str();
  app.add_option("--heads", o.config.heads, "Heads of a block")->capture_default_str();
  app.add_option("--width", o.config.width, "Features of a character")->capture_default_str();
  app.add_option("--rate", o.schedule.rate, "Largest learning rate")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    return run(o);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "char_lm: %s\n", e.what());
    return 1;
  }
}
