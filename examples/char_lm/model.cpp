// SPDX-License-Identifier: MIT OR Apache-2.0
#include "model.h"

#include <algorithm>
#include <cmath>

namespace char_lm {

// splitmix64: every seed gives a good sequence, also 0 and 1.
uint64_t Normal::bits() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

double Normal::operator()() {  // Box-Muller
  const double u = uniform(), v = uniform();
  return std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
}

template <typename T>
typename Model<T>::Span Model<T>::span(int rows, int cols) {
  const Span s{size_, rows, cols};
  size_ += size_t(rows) * size_t(cols);
  return s;
}

template <typename T>
Model<T>::Model(const Config& config, Pool& pool) : config_(config), pool_(pool) {
  const int c = config.width;
  tokens_ = span(config.vocabulary, c);
  positions_ = span(config.context, c);
  for (int i = 0; i < config.layers; ++i) {
    Block b;
    b.before_attention = make_norm();
    b.qkv = make_linear(c, 3 * c);
    b.projection = make_linear(c, c);
    b.before_mlp = make_norm();
    b.up = make_linear(c, config.hidden());
    b.down = make_linear(config.hidden(), c);
    blocks_.push_back(b);
  }
  last_norm_ = make_norm();
  read_out_ = make_linear(c, config.vocabulary);
  parameters_.assign(size_, T(0));
  gradients_.assign(size_, T(0));
  kept_.resize(blocks_.size());
}

template <typename T>
void Model<T>::initialise(uint64_t seed) {
  Normal normal(seed);
  std::fill(parameters_.begin(), parameters_.end(), T(0));
  auto draw = [&](const Span& s, double deviation) {
    for (size_t i = 0; i < size_t(s.rows) * size_t(s.cols); ++i)
      parameters_[s.at + i] = T(deviation * normal());
  };
  auto ones = [&](const Norm& n) { vector(parameters_, n.gain).setOnes(); };
  // Outputs about as large as the inputs; what adds to the residual stream is smaller, so that the
  // stream does not grow with depth.
  auto layer = [&](const Linear& l, double factor) {
    draw(l.w, factor / std::sqrt(double(l.w.rows)));
  };
  const double residual = 1 / std::sqrt(2.0 * config_.layers);
  // Large positions: attention can then soon tell the last characters from those before.
  draw(tokens_, 0.5);
  draw(positions_, 0.5);
  for (const Block& b : blocks_) {
    ones(b.before_attention);
    ones(b.before_mlp);
    layer(b.qkv, 1);
    layer(b.projection, residual);
    layer(b.up, 1);
    layer(b.down, residual);
  }
  ones(last_norm_);
  draw(read_out_.w, 0.02);  // nearly nothing: the first loss is ln(vocabulary)
}

template <typename T>
void Model<T>::apply(const Linear& l, const Matrix<T>& x, Matrix<T>* y) {
  linear<T>(pool_, x, matrix(parameters_, l.w), vector(parameters_, l.b), y);
}
template <typename T>
void Model<T>::apply_backward(const Linear& l, const Matrix<T>& x, const Matrix<T>& dy,
                              Matrix<T>* dx) {
  linear_backward<T>(pool_, x, matrix(parameters_, l.w), dy, matrix(gradients_, l.w),
                     vector(gradients_, l.b), dx);
}
template <typename T>
void Model<T>::apply(const Norm& n, const Matrix<T>& x, Normalised<T>* kept, Matrix<T>* y) {
  layer_norm<T>(pool_, x, vector(parameters_, n.gain), vector(parameters_, n.bias), kept, y);
}
template <typename T>
void Model<T>::apply_backward(const Norm& n, const Normalised<T>& kept, const Matrix<T>& dy,
                              Matrix<T>* dx) {
  layer_norm_backward<T>(pool_, kept, vector(parameters_, n.gain), dy, vector(gradients_, n.gain),
                         vector(gradients_, n.bias), dx);
}

template <typename T>
const Matrix<T>& Model<T>::forward(Attention<T>& attention, const std::vector<int>& tokens) {
  const auto embedding = matrix(parameters_, tokens_), position = matrix(parameters_, positions_);
  x_.resize(long(tokens.size()), config_.width);
  for (size_t i = 0; i < tokens.size(); ++i)
    x_.row(long(i)) = embedding.row(tokens[i]) + position.row(long(i) % config_.context);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& b = blocks_[i];
    Kept& k = kept_[i];
    apply(b.before_attention, x_, &k.norm1, &k.a);
    apply(b.qkv, k.a, &k.qkv);
    attention.forward(int(i), k.qkv, &k.o);
    apply(b.projection, k.o, &y_);
    x_ += y_;
    apply(b.before_mlp, x_, &k.norm2, &k.m);
    apply(b.up, k.m, &k.up);
    gelu(pool_, k.up, &k.act);
    apply(b.down, k.act, &y_);
    x_ += y_;
  }
  apply(last_norm_, x_, &last_kept_, &last_);
  apply(read_out_, last_, &logits_);
  return logits_;
}

template <typename T>
void Model<T>::backward(Attention<T>& attention, const std::vector<int>& tokens) {
  apply_backward(read_out_, last_, logits_, &d1_);
  dx_.setZero(x_.rows(), x_.cols());
  apply_backward(last_norm_, last_kept_, d1_, &dx_);
  for (size_t i = blocks_.size(); i-- > 0;) {
    const Block& b = blocks_[i];
    const Kept& k = kept_[i];
    apply_backward(b.down, k.act, dx_, &d1_);
    gelu_backward(pool_, k.up, &d1_);
    apply_backward(b.up, k.m, d1_, &d2_);
    apply_backward(b.before_mlp, k.norm2, d2_, &dx_);
    apply_backward(b.projection, k.o, dx_, &d2_);
    attention.backward(int(i), d2_, &d1_);
    apply_backward(b.qkv, k.a, d1_, &d2_);
    apply_backward(b.before_attention, k.norm1, d2_, &dx_);
  }
  auto d_embedding = matrix(gradients_, tokens_), d_position = matrix(gradients_, positions_);
  d_embedding.setZero();
  d_position.setZero();
  for (size_t i = 0; i < tokens.size(); ++i) {
    d_embedding.row(tokens[i]) += dx_.row(long(i));
    d_position.row(long(i) % config_.context) += dx_.row(long(i));
  }
}

template class Model<float>;
template class Model<double>;

void Adam::step(std::vector<float>* parameters, const std::vector<float>& gradients, float rate,
                float clip) {
  const float beta1 = 0.9f, beta2 = 0.99f, epsilon = 1e-8f;
  double squares = 0;
  for (const float g : gradients) squares += double(g) * double(g);
  const double length = std::sqrt(squares);
  const float shrink = length > double(clip) ? float(double(clip) / length) : 1.0f;
  ++state_.steps;
  const float step = rate / (1 - std::pow(beta1, float(state_.steps)));
  const float correct = 1 / (1 - std::pow(beta2, float(state_.steps)));
  std::vector<float>&m = state_.m, &v = state_.v;
  pool_.run(long(parameters->size()), 1024, [&](long begin, long end) {
    for (size_t i = size_t(begin); i < size_t(end); ++i) {
      const float g = gradients[i] * shrink;
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      (*parameters)[i] -= step * m[i] / (std::sqrt(v[i] * correct) + epsilon);
    }
  });
}

}  // namespace char_lm
