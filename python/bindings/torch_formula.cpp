// SPDX-License-Identifier: MIT OR Apache-2.0
// torch's plain eager calls with a formula in C++. The stable ABI registers kernels, not formulas.
// But ATen has an operator of attention that is made to be overridden: a formula, and no kernel for
// CPU and CUDA. These are its kernels for calls of q, k, v and bias. The number of the options
// travels as its dropout, below 0 where the call is ours.
#include <cstring>
#include <stdexcept>

#include "torch_calls.h"

namespace tandem::python {
namespace torch {
namespace {

constexpr char kFormula[] = "_scaled_dot_product_fused_attention_overrideable";
constexpr char kFormulaBackward[] = "_scaled_dot_product_fused_attention_overrideable_backward";

double as_double(Value value) {
  double number = 0;
  std::memcpy(&number, &value, sizeof(number));
  return number;
}

// The number of our options in the operator's dropout.
int64_t options_of(Value dropout) {
  const double tag = as_double(dropout);
  if (!(tag < 0)) throw std::runtime_error("this operator is overridden by tandem_attention alone");
  return int64_t(-tag) - 1;
}

void drop(Value value) { take(value); }

bool is_defined(const Tensor& tensor) {
  bool defined = false;
  return tensor && !g_torch.aoti_torch_is_defined(tensor.get(), &defined) && defined;
}

// What Python gives in place of results that it could not make has two dimensions.
bool has_failed(Value mark) {
  int64_t dims = 0;
  return g_torch.aoti_torch_get_dim(take(mark).get(), &dims) || dims != 1;
}

// What the operator declines. It stays one call of ATen's operator, so that a checkpoint which
// repeats it saves the same tensors. Undefined tensors: Python has kept the error.
void forward_in_python(Inputs& in, Value* made) {
  Value stack[5] = {in.q.release(), in.k.release(), in.v.release(), optional(in.bias),
                    Value(in.options)};
  const bool returned = !g_torch.torch_call_dispatcher(
      (g_space + "::eager_forward_in_python").c_str(), "", stack, shim::kConvention);
  const bool failed = !returned || has_failed(stack[2]);
  for (size_t n = 0; n < 2; ++n) {
    Tensor result = returned ? take(stack[n]) : Tensor();
    made[n] = failed ? undefined() : result.release();
  }
}

// (query, key, value, attn_bias, dropout_p, is_causal, return_debug_mask, scale) -> (output,
// logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, philox_seed, philox_offset, debug_attn_mask)
void call_formula(Value* stack) {
  Inputs in;
  in.q = take(stack[0]);
  in.k = take(stack[1]);
  in.v = take(stack[2]);
  in.bias = take_optional(stack[3]);
  delete reinterpret_cast<Value*>(uintptr_t(stack[7]));
  in.options = options_of(stack[4]);
  std::array<Tensor, 2> made;
  if (forward(in, all_of(made))) {
    give(true, g_calls.forward, all_of(made), stack);
  } else {
    ++g_calls.declined;
    forward_in_python(in, stack);
  }
  for (const size_t n : {2, 3, 6, 7, 8}) stack[n] = undefined();
  stack[4] = stack[5] = 0;
}

// Whether the elements of a row lie side by side: kernels for others are slow.
bool has_dense_rows(const Tensor& t) {
  int64_t dims = 0, *sizes = nullptr, *strides = nullptr;
  if (g_torch.aoti_torch_get_dim(t.get(), &dims) || dims < 1 ||
      g_torch.aoti_torch_get_sizes(t.get(), &sizes) ||
      g_torch.aoti_torch_get_strides(t.get(), &strides))
    return false;
  return strides[dims - 1] == 1 || sizes[dims - 1] == 1;
}

// A handle of its own, for a call that consumes it; 0 where there is none.
Value copy_of(const Tensor& tensor) {
  Handle copy = nullptr;
  g_torch.aoti_torch_new_tensor_handle(tensor.get(), &copy);
  return Value(reinterpret_cast<uintptr_t>(copy));
}

// Whether a derivative of forward mode goes along: it is refused, by Python.
bool has_tangent(const Tensor& t) {
  Value stack[2] = {copy_of(t), 0};
  if (!stack[0] ||
      g_torch.torch_call_dispatcher("aten::_unpack_dual", "", stack, shim::kConvention))
    return true;
  drop(stack[0]);
  return is_defined(take(stack[1]));
}

// backward() by way of the dispatcher, which counts it. This kernel of autograd's key is above that
// of negative views, whose memory has the opposite sign: eager_backward gets them resolved.
bool backward_below_autograd(const Outer& outer, const Inputs& in, Made made) {
  Value stack[13] = {copy_of(outer.d_o), copy_of(outer.o), copy_of(outer.lse)};
  stack[4] = Value(outer.gradients);
  stack[5] = copy_of(in.q);
  stack[6] = copy_of(in.k);
  stack[7] = copy_of(in.v);
  if (in.bias) {
    Tensor bias = take(copy_of(in.bias));
    stack[8] = optional(bias);
  }
  stack[10] = Value(in.options);
  if (g_torch.torch_call_dispatcher((g_space + "::eager_backward").c_str(), "", stack,
                                    shim::kConvention))
    return false;
  bool served = false;
  for (size_t n = 0; n < made.size(); ++n) {
    made[n] = take(stack[n]);
    if (!is_defined(made[n])) made[n] = Tensor();
    served = served || made[n];
  }
  return served;
}

// What the C++ operator declines; graphs of derivatives, and batches of gradients.
bool backward_in_python(Outer& outer, Inputs& in, Value* made) {
  Value stack[9] = {outer.d_o.release(), outer.o.release(), outer.lse.release(),
                    in.q.release(),      in.k.release(),    in.v.release()};
  stack[6] = optional(in.bias);
  stack[7] = Value(outer.gradients);
  stack[8] = Value(in.options);
  if (g_torch.torch_call_dispatcher((g_space + "::eager_backward_in_python").c_str(), "", stack,
                                    shim::kConvention))
    return false;
  const bool failed = has_failed(stack[kMostOutputs]);  // Python raises at the end of the backward
  for (size_t n = 0; n < kMostOutputs; ++n) {
    Tensor gradient = take(stack[n]);
    made[n] = failed || !(outer.gradients >> n & 1) ? undefined() : gradient.release();
  }
  return true;
}

// (grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k,
// max_q, max_k, dropout_p, is_causal, philox_seed, philox_offset, scale) -> (grad_query, grad_key,
// grad_value, grad_attn_bias)
void formula_backward(Value* stack, bool to_python, bool above_autograd) {
  forget_missed();
  Outer outer;
  Inputs in;
  outer.d_o = take(stack[0]);
  in.q = take(stack[1]);
  in.k = take(stack[2]);
  in.v = take(stack[3]);
  in.bias = take(stack[4]);
  if (!is_defined(in.bias)) in.bias = Tensor();
  const auto wanted = reinterpret_cast<List>(uintptr_t(stack[5]));
  for (size_t n = 0; n < kMostOutputs; ++n) {
    Value bit = 0;
    g_torch.torch_list_get_item(wanted, n, &bit);
    outer.gradients |= int64_t(bit & 1) << n;
  }
  g_torch.torch_delete_list(wanted);
  outer.o = take(stack[6]);
  outer.lse = take(stack[7]);
  for (const size_t n : {8, 9, 14, 15}) drop(stack[n]);
  delete reinterpret_cast<Value*>(uintptr_t(stack[16]));
  in.options = options_of(stack[12]);
  std::array<Tensor, kMostOutputs> made;
  to_python = to_python || !has_dense_rows(outer.d_o) || (above_autograd && has_tangent(outer.d_o));
  bool served = false;
  if (!to_python && above_autograd) {
    served = backward_below_autograd(outer, in, all_of(made));
  } else {
    served = !to_python && backward(outer, in, all_of(made));
    ++(served ? g_calls.backward : g_calls.declined);
  }
  if (served) {
    for (size_t n = 0; n < made.size(); ++n) stack[n] = made[n] ? made[n].release() : undefined();
    return;
  }
  if (!backward_in_python(outer, in, stack))
    throw std::runtime_error("the backward of attention failed");
}

void call_formula_backward(Value* stack) { formula_backward(stack, false, false); }
void call_formula_backward_autograd(Value* stack) {
  formula_backward(stack, g_torch.aoti_torch_grad_mode_is_enabled(), true);
}
void call_formula_backward_batched(Value* stack) { formula_backward(stack, true, false); }

}  // namespace
}  // namespace torch

std::string torch_override() {
  using namespace torch;
  const struct {
    const char* key;
    const char* name;
    Kernel kernel;
  } rows[] = {{"CPU", kFormula, kernel<call_formula>},
              {"CUDA", kFormula, kernel<call_formula>},
              {"CPU", kFormulaBackward, kernel<call_formula_backward>},
              {"CUDA", kFormulaBackward, kernel<call_formula_backward>},
              {"AutogradCPU", kFormulaBackward, kernel<call_formula_backward_autograd>},
              {"AutogradCUDA", kFormulaBackward, kernel<call_formula_backward_autograd>},
              {"Batched", kFormulaBackward, kernel<call_formula_backward_batched>},
              {"FuncTorchBatched", kFormulaBackward, kernel<call_formula_backward_batched>}};
  for (const auto& row : rows)
    if (std::string problem = implement("aten", row.key, row.name, row.kernel); !problem.empty())
      return problem;
  return {};
}

}  // namespace tandem::python
