// SPDX-License-Identifier: MIT OR Apache-2.0
// The layers around attention, forward and backward, on the CPU. A template, so that the test can
// check the very same code in double by finite differences.
//
// Matrices are row-major, one token a row. A backward function writes (assigns) the gradients of
// the layer's parameters and the gradient of its input.
#ifndef TANDEM_EXAMPLES_CHAR_LM_LAYERS_H
#define TANDEM_EXAMPLES_CHAR_LM_LAYERS_H
#include <Eigen/Dense>
#include <cmath>

#include "pool.h"

namespace char_lm {

template <typename T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <typename T>
using Vector = Eigen::Matrix<T, 1, Eigen::Dynamic>;
template <typename T>
using MatrixMap = Eigen::Map<Matrix<T>>;
template <typename T>
using VectorMap = Eigen::Map<Vector<T>>;

constexpr long kRowGrain = 16;    // rows of tokens that a thread takes at once
constexpr long kColumnGrain = 8;  // columns of parameters

// y = x w + b
template <typename T>
void linear(Pool& pool, const Matrix<T>& x, const MatrixMap<T>& w, const VectorMap<T>& b,
            Matrix<T>* y) {
  y->resize(x.rows(), w.cols());
  pool.run(x.rows(), kRowGrain, [&](long begin, long end) {
    auto rows = y->middleRows(begin, end - begin);
    rows.noalias() = x.middleRows(begin, end - begin) * w;
    rows.rowwise() += b;
  });
}

template <typename T>
void linear_backward(Pool& pool, const Matrix<T>& x, const MatrixMap<T>& w, const Matrix<T>& dy,
                     MatrixMap<T> dw, VectorMap<T> db, Matrix<T>* dx) {
  dx->resize(x.rows(), x.cols());
  pool.run(x.rows(), kRowGrain, [&](long begin, long end) {
    dx->middleRows(begin, end - begin).noalias() =
        dy.middleRows(begin, end - begin) * w.transpose();
  });
  pool.run(w.rows(), kColumnGrain, [&](long begin, long end) {
    dw.middleRows(begin, end - begin).noalias() = x.middleCols(begin, end - begin).transpose() * dy;
  });
  pool.run(w.cols(), kColumnGrain, [&](long begin, long end) {
    db.segment(begin, end - begin) = dy.middleCols(begin, end - begin).colwise().sum();
  });
}

// Layer normalisation keeps the normalised rows and the factors that normalised them.
template <typename T>
struct Normalised {
  Matrix<T> x;
  Vector<T> factor;
};

template <typename T>
void layer_norm(Pool& pool, const Matrix<T>& x, const VectorMap<T>& gain, const VectorMap<T>& bias,
                Normalised<T>* kept, Matrix<T>* y) {
  const T epsilon = T(1e-5);
  kept->x.resize(x.rows(), x.cols());
  kept->factor.resize(x.rows());
  y->resize(x.rows(), x.cols());
  pool.run(x.rows(), kRowGrain, [&](long begin, long end) {
    for (long i = begin; i < end; ++i) {
      auto row = kept->x.row(i);
      row = x.row(i).array() - x.row(i).mean();
      const T factor = 1 / std::sqrt(row.squaredNorm() / T(x.cols()) + epsilon);
      kept->factor[i] = factor;
      row *= factor;
      y->row(i) = row.cwiseProduct(gain) + bias;
    }
  });
}

// Adds to dx, because what is normalised also goes past the layer in a residual connection.
template <typename T>
void layer_norm_backward(Pool& pool, const Normalised<T>& kept, const VectorMap<T>& gain,
                         const Matrix<T>& dy, VectorMap<T> d_gain, VectorMap<T> d_bias,
                         Matrix<T>* dx) {
  const T width = T(dy.cols());
  pool.run(dy.rows(), kRowGrain, [&](long begin, long end) {
    Vector<T> g(dy.cols());
    for (long i = begin; i < end; ++i) {
      g = dy.row(i).cwiseProduct(gain);
      const T mean = g.sum() / width, along = g.dot(kept.x.row(i)) / width;
      dx->row(i).array() += kept.factor[i] * (g.array() - mean - kept.x.row(i).array() * along);
    }
  });
  pool.run(dy.cols(), kColumnGrain, [&](long begin, long end) {
    const auto d = dy.middleCols(begin, end - begin);
    d_bias.segment(begin, end - begin) = d.colwise().sum();
    d_gain.segment(begin, end - begin) =
        d.cwiseProduct(kept.x.middleCols(begin, end - begin)).colwise().sum();
  });
}

// GELU in its tanh form: x/2 (1 + tanh(u)), u = c (x + a x^3).
constexpr double kGeluC = 0.79788456080286535588;  // sqrt(2 / pi)
constexpr double kGeluA = 0.044715;

template <typename T>
void gelu(Pool& pool, const Matrix<T>& x, Matrix<T>* y) {
  y->resize(x.rows(), x.cols());
  pool.run(x.rows(), kRowGrain, [&](long begin, long end) {
    const auto a = x.middleRows(begin, end - begin).array();
    y->middleRows(begin, end - begin).array() =
        T(0.5) * a * (1 + (T(kGeluC) * (a + T(kGeluA) * a.cube())).tanh());
  });
}

// Turns the gradient of gelu(x) into the gradient of x in place.
template <typename T>
void gelu_backward(Pool& pool, const Matrix<T>& x, Matrix<T>* d) {
  pool.run(x.rows(), kRowGrain, [&](long begin, long end) {
    Eigen::Array<T, 1, Eigen::Dynamic> t(x.cols());
    for (long i = begin; i < end; ++i) {
      const auto a = x.row(i).array();
      t = (T(kGeluC) * (a + T(kGeluA) * a.cube())).tanh();
      d->row(i).array() *= T(0.5) * (1 + t) + T(0.5 * kGeluC) * a * (1 - t.square()) *
                                                  (1 + T(3 * kGeluA) * a.square());
    }
  });
}

// The mean of -ln softmax(logits)[target]; logits become their gradient.
template <typename T>
T cross_entropy(Pool& pool, const int* targets, Matrix<T>* logits) {
  Vector<T> row_loss(logits->rows());
  const T weight = T(1) / T(logits->rows());
  pool.run(logits->rows(), kRowGrain, [&](long begin, long end) {
    for (long i = begin; i < end; ++i) {
      auto row = logits->row(i);
      const T top = row.maxCoeff(), target = row[targets[i]];
      row = (row.array() - top).exp();
      const T sum = row.sum();
      row_loss[i] = std::log(sum) + top - target;
      row *= weight / sum;
      row[targets[i]] -= weight;
    }
  });
  double total = 0;  // in double and in order: the same on any number of threads
  for (long i = 0; i < row_loss.size(); ++i) total += double(row_loss[i]);
  return T(total / double(row_loss.size()));
}

}  // namespace char_lm
#endif
