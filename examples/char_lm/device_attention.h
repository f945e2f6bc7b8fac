// SPDX-License-Identifier: MIT OR Apache-2.0
// The model's attention on a Tandem device.
#ifndef TANDEM_EXAMPLES_CHAR_LM_DEVICE_ATTENTION_H
#define TANDEM_EXAMPLES_CHAR_LM_DEVICE_ATTENTION_H
#include <string>
#include <vector>

#include "model.h"
#include "session.h"
#include "tandem/tandem.hpp"

namespace char_lm {

class DeviceAttention : public Attention<float> {
 public:
  enum class Use { inference, training };  // inference: no backward plan, no buffers for it
  // The session must outlive this object.
  // slices: how many slices an execute has, about, each submitted by itself; 0: it is not cut.
  DeviceAttention(tandem::harness::Session& session, const Config& config, int batch, Use use,
                  int slices = 0);

  void forward(int layer, const Matrix<float>& qkv, Matrix<float>* o) override;
  void backward(int layer, const Matrix<float>& d_o, Matrix<float>* d_qkv) override;

  const std::string& forward_name() const { return forward_name_; }
  const std::string& backward_name() const { return backward_name_; }
  const std::string& path() const { return path_; }
  double seconds() const { return seconds_; }  // spent here so far, transfers included

 private:
  struct Slot {  // what a layer keeps on the device between forward and backward
    tandem::harness::Buffer qkv, o, lse;
  };
  tandem_args arguments(const Slot& slot) const;
  void run(const tandem::Plan& plan, const tandem_args& args);

  tandem::harness::Session& session_;
  long rows_, width_;
  int slices_;
  tandem::Plan forward_, backward_;
  std::string forward_name_, backward_name_, path_;
  std::vector<Slot> slots_;
  tandem::harness::Buffer d_o_, d_qkv_, workspace_;
  uint64_t workspace_size_ = 0;
  double seconds_ = 0;
};

}  // namespace char_lm
#endif
