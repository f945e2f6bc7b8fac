// SPDX-License-Identifier: MIT OR Apache-2.0
// Attention written straight from its definition, for the test only: what the library's attention
// is compared with, and what the finite differences of the other layers go through.
#ifndef TANDEM_EXAMPLES_CHAR_LM_NAIVE_ATTENTION_H
#define TANDEM_EXAMPLES_CHAR_LM_NAIVE_ATTENTION_H
#include <cmath>
#include <vector>

#include "model.h"

namespace char_lm {

template <typename T>
class NaiveAttention : public Attention<T> {
 public:
  NaiveAttention(const Config& config, int batch)
      : config_(config), batch_(batch), qkv_(size_t(config.layers)) {}

  void forward(int layer, const Matrix<T>& qkv, Matrix<T>* o) override {
    qkv_[size_t(layer)] = qkv;
    o->resize(qkv.rows(), config_.width);
    each_head(layer, [&](const View& v) {
      o->block(v.row, v.col, config_.context, v.dim) = weights(v) * v.v;
    });
  }

  void backward(int layer, const Matrix<T>& d_o, Matrix<T>* d_qkv) override {
    d_qkv->resize(d_o.rows(), 3 * config_.width);
    const int s = config_.context, c = config_.width;
    each_head(layer, [&](const View& v) {
      const Matrix<T> p = weights(v), d = d_o.block(v.row, v.col, s, v.dim);
      const Matrix<T> dp = d * v.v.transpose();
      Matrix<T> ds = p.cwiseProduct(dp);
      const Eigen::Matrix<T, Eigen::Dynamic, 1> delta = ds.rowwise().sum();
      ds -= (p.array().colwise() * delta.array()).matrix();
      d_qkv->block(v.row, v.col, s, v.dim) = scale(v) * ds * v.k;
      d_qkv->block(v.row, c + v.col, s, v.dim) = scale(v) * ds.transpose() * v.q;
      d_qkv->block(v.row, 2 * c + v.col, s, v.dim) = p.transpose() * d;
    });
  }

 private:
  struct View {
    long row, col;  // where the head lies in o
    int dim;
    Matrix<T> q, k, v;
  };
  static T scale(const View& v) { return 1 / std::sqrt(T(v.dim)); }

  template <typename Body>
  void each_head(int layer, Body body) const {
    const Matrix<T>& qkv = qkv_[size_t(layer)];
    const int s = config_.context, c = config_.width, dim = c / config_.heads;
    for (int b = 0; b < batch_; ++b)
      for (int h = 0; h < config_.heads; ++h) {
        const long row = long(b) * s, col = long(h) * dim;
        body(View{row, col, dim, qkv.block(row, col, s, dim), qkv.block(row, c + col, s, dim),
                  qkv.block(row, 2 * c + col, s, dim)});
      }
  }

  static Matrix<T> weights(const View& v) {
    Matrix<T> p = scale(v) * v.q * v.k.transpose();
    for (long i = 0; i < p.rows(); ++i) {
      auto seen = p.row(i).head(i + 1);
      seen = (seen.array() - seen.maxCoeff()).exp();
      seen /= seen.sum();
      p.row(i).tail(p.cols() - i - 1).setZero();
    }
    return p;
  }

  Config config_;
  int batch_;
  std::vector<Matrix<T>> qkv_;
};

}  // namespace char_lm
#endif
