// SPDX-License-Identifier: MIT OR Apache-2.0
// A small transformer over characters: token and position embeddings, blocks of attention and a
// GELU MLP, both behind a layer norm and beside a residual connection, a last layer norm and a
// linear read-out.
#ifndef TANDEM_EXAMPLES_CHAR_LM_MODEL_H
#define TANDEM_EXAMPLES_CHAR_LM_MODEL_H
#include <cstdint>
#include <vector>

#include "layers.h"

namespace char_lm {

struct Config {
  int vocabulary = 0;
  int context = 128;  // tokens that the model looks at
  int layers = 2;
  int heads = 4;
  int width = 128;  // features of a token; width / heads is the head_dim
  int hidden() const { return 4 * width; }
};

// Causal attention over rows [batch * context]. qkv holds q, k and v of a token side by side, each
// with `width` features, head after head; o has `width`. forward() remembers what backward() of the
// same layer needs.
template <typename T>
class Attention {
 public:
  virtual ~Attention() = default;
  virtual void forward(int layer, const Matrix<T>& qkv, Matrix<T>* o) = 0;
  virtual void backward(int layer, const Matrix<T>& d_o, Matrix<T>* d_qkv) = 0;
};

template <typename T>
class Model {
 public:
  Model(const Config& config, Pool& pool);

  const Config& config() const { return config_; }
  // All parameters, and their gradients after backward(), in one piece each.
  std::vector<T>& parameters() { return parameters_; }
  std::vector<T>& gradients() { return gradients_; }
  void initialise(uint64_t seed);

  // Row b * context + t of the result are the logits of what follows token t of sequence b.
  // Attention must be made for this many sequences.
  const Matrix<T>& forward(Attention<T>& attention, const std::vector<int>& tokens);
  // Mean cross-entropy of the last forward(); then backward() may be called once.
  T loss(const std::vector<int>& targets) { return cross_entropy(pool_, targets.data(), &logits_); }
  void backward(Attention<T>& attention, const std::vector<int>& tokens);

 private:
  struct Span {
    size_t at;
    int rows, cols;
  };
  struct Linear {
    Span w, b;
  };
  struct Norm {
    Span gain, bias;
  };
  struct Block {
    Norm before_attention, before_mlp;
    Linear qkv, projection, up, down;
  };
  struct Kept {  // activations of a block
    Normalised<T> norm1, norm2;
    Matrix<T> a, qkv, o, m, up, act;
  };

  Span span(int rows, int cols);
  Linear make_linear(int in, int out) { return {span(in, out), span(1, out)}; }
  Norm make_norm() { return {span(1, config_.width), span(1, config_.width)}; }
  MatrixMap<T> matrix(std::vector<T>& from, const Span& s) {
    return MatrixMap<T>(&from[s.at], s.rows, s.cols);
  }
  VectorMap<T> vector(std::vector<T>& from, const Span& s) {
    return VectorMap<T>(&from[s.at], s.cols);
  }
  void apply(const Linear& l, const Matrix<T>& x, Matrix<T>* y);
  void apply_backward(const Linear& l, const Matrix<T>& x, const Matrix<T>& dy, Matrix<T>* dx);
  void apply(const Norm& n, const Matrix<T>& x, Normalised<T>* kept, Matrix<T>* y);
  void apply_backward(const Norm& n, const Normalised<T>& kept, const Matrix<T>& dy, Matrix<T>* dx);

  Config config_;
  Pool& pool_;
  size_t size_ = 0;
  Span tokens_, positions_;
  std::vector<Block> blocks_;
  Norm last_norm_;
  Linear read_out_;
  std::vector<T> parameters_, gradients_;

  std::vector<Kept> kept_;
  Normalised<T> last_kept_;
  Matrix<T> x_, y_, last_, logits_;
  Matrix<T> dx_, d1_, d2_;
};

extern template class Model<float>;
extern template class Model<double>;

// A normal deviate from 64 random bits at a time; the same on every platform but for libm's
// rounding.
class Normal {
 public:
  explicit Normal(uint64_t seed) : state_(seed) {}
  double operator()();
  uint64_t bits();
  double uniform() { return (double(bits() >> 11) + 0.5) * 0x1p-53; }
  uint64_t state() const { return state_; }  // Normal(state()) goes on

 private:
  uint64_t state_;
};

// Adam with bias correction. The gradient is first shortened to `clip` if it is longer than that.
class Adam {
 public:
  struct State {
    std::vector<float> m, v;
    int steps = 0;
  };
  Adam(size_t size, Pool& pool) : pool_(pool) {
    state_.m.resize(size);
    state_.v.resize(size);
  }
  void step(std::vector<float>* parameters, const std::vector<float>& gradients, float rate,
            float clip);
  State& state() { return state_; }

 private:
  State state_;
  Pool& pool_;
};

}  // namespace char_lm
#endif
