// SPDX-License-Identifier: MIT OR Apache-2.0
// The problem line: one line of words that says a whole problem (docs/problem-line.md).
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "problem.h"

namespace tandem {
namespace {

struct SizeWord {
  const char* prefix;
  int64_t tandem_problem::*member;
};
// Longer prefixes first: "dv64" is not "d" followed by "v64".
constexpr SizeWord kSizes[] = {
    {"hq", &tandem_problem::heads_q},    {"hk", &tandem_problem::heads_kv},
    {"sq", &tandem_problem::seq_q},      {"sk", &tandem_problem::seq_kv},
    {"dv", &tandem_problem::head_dim_v}, {"d", &tandem_problem::head_dim},
    {"b", &tandem_problem::batch}};

struct TensorWord {
  const char* name;
  tandem_tensor tandem_problem::*member;
  bool kv;     // heads_kv and seq_kv
  bool value;  // head_dim_v
  bool backward;
};
constexpr TensorWord kTensors[] = {{"q", &tandem_problem::q, false, false, false},
                                   {"k", &tandem_problem::k, true, false, false},
                                   {"v", &tandem_problem::v, true, true, false},
                                   {"o", &tandem_problem::o, false, true, false},
                                   {"d_o", &tandem_problem::d_o, false, true, true},
                                   {"d_q", &tandem_problem::d_q, false, false, true},
                                   {"d_k", &tandem_problem::d_k, true, false, true},
                                   {"d_v", &tandem_problem::d_v, true, true, true}};

enum class Layout { bhsd, bshd };

// Sizes are not checked yet when a line is parsed: wrap instead of overflowing.
int64_t times(int64_t a, int64_t b) { return int64_t(uint64_t(a) * uint64_t(b)); }

tandem_tensor layout_of(const tandem_problem& p, const TensorWord& t, Layout layout) {
  const int64_t heads = t.kv ? p.heads_kv : p.heads_q, seq = t.kv ? p.seq_kv : p.seq_q;
  const int64_t dim = t.value ? p.head_dim_v : p.head_dim;
  tandem_tensor tensor{};
  tensor.dtype = (p.*t.member).dtype;
  const bool bhsd = layout == Layout::bhsd;
  tensor.stride[0] = times(heads, times(seq, dim));
  tensor.stride[1] = bhsd ? times(seq, dim) : dim;
  tensor.stride[2] = bhsd ? dim : times(heads, dim);
  tensor.stride[3] = 1;
  return tensor;
}

bool same_strides(const tandem_tensor& a, const tandem_tensor& b) {
  return std::equal(a.stride, a.stride + 4, b.stride);
}

void set_layout(tandem_problem* p, Layout layout) {
  for (const TensorWord& t : kTensors) p->*t.member = layout_of(*p, t, layout);
}

bool all_in(const tandem_problem& p, Layout layout) {
  return std::all_of(std::begin(kTensors), std::end(kTensors), [&](const TensorWord& t) {
    return (t.backward && p.direction == TANDEM_FORWARD) ||
           same_strides(p.*t.member, layout_of(p, t, layout));
  });
}

bool parse_int(const char* s, int64_t* value, char end = '\0', const char** rest = nullptr) {
  char* stop = nullptr;
  errno = 0;
  const long long n = std::strtoll(s, &stop, 10);
  if (stop == s || errno != 0 || *stop != end) return false;
  if (rest) *rest = stop + 1;
  *value = n;
  return true;
}

bool parse_strides(const char* s, tandem_tensor* tensor) {
  for (int dim = 0; dim < 4; ++dim)
    if (!parse_int(s, &tensor->stride[dim], dim < 3 ? ',' : '\0', dim < 3 ? &s : nullptr))
      return false;
  return true;
}

bool parse_gradients(const char* s, uint32_t* gradients) {
  *gradients = 0;
  for (; *s; ++s) {
    if (*s == 'q')
      *gradients |= TANDEM_GRAD_Q;
    else if (*s == 'k')
      *gradients |= TANDEM_GRAD_K;
    else if (*s == 'v')
      *gradients |= TANDEM_GRAD_V;
    else
      return false;
  }
  return *gradients != 0;
}

bool starts(const std::string& word, const char* prefix, const char** rest) {
  const size_t n = std::strlen(prefix);
  if (word.compare(0, n, prefix) != 0) return false;
  *rest = word.c_str() + n;
  return true;
}

}  // namespace

std::string print_problem(const tandem_problem& p) {
  std::string s = p.direction == TANDEM_BACKWARD ? "bwd" : "fwd";
  s += text(" %s b%lld hq%lld hk%lld sq%lld sk%lld d%lld dv%lld",
            dtype_name(tandem_dtype(p.q.dtype)), (long long)p.batch, (long long)p.heads_q,
            (long long)p.heads_kv, (long long)p.seq_q, (long long)p.seq_kv, (long long)p.head_dim,
            (long long)p.head_dim_v);
  const char* align = p.align == TANDEM_BOTTOM_RIGHT ? "bottom_right" : "top_left";
  if (p.mask == TANDEM_MASK_CAUSAL)
    s += text(" causal_%s", align);
  else if (p.align == TANDEM_BOTTOM_RIGHT)
    s += " bottom_right";
  if (p.window_left != TANDEM_UNBOUNDED) s += text(" left=%lld", (long long)p.window_left);
  if (p.window_right != TANDEM_UNBOUNDED) s += text(" right=%lld", (long long)p.window_right);
  if (!std::isnan(p.scale)) s += text(" scale=%a", double(p.scale));
  if (p.direction == TANDEM_BACKWARD && p.gradients != TANDEM_GRAD_ALL) {
    s += " grads=";
    if (p.gradients & TANDEM_GRAD_Q) s += "q";
    if (p.gradients & TANDEM_GRAD_K) s += "k";
    if (p.gradients & TANDEM_GRAD_V) s += "v";
  }
  if (p.flags & TANDEM_FLAG_DETERMINISTIC) s += " deterministic";
  if (p.tile_rows || p.tile_cols) s += text(" tile=%ux%u", p.tile_rows, p.tile_cols);
  if (all_in(p, Layout::bhsd)) return s;
  if (all_in(p, Layout::bshd)) return s + " layout=bshd";
  for (const TensorWord& t : kTensors) {
    if (t.backward && p.direction == TANDEM_FORWARD) continue;
    const tandem_tensor& tensor = p.*t.member;
    if (same_strides(tensor, layout_of(p, t, Layout::bhsd))) continue;
    s +=
        text(" %s=%lld,%lld,%lld,%lld", t.name, (long long)tensor.stride[0],
             (long long)tensor.stride[1], (long long)tensor.stride[2], (long long)tensor.stride[3]);
  }
  return s;
}

Status parse_problem(const char* line, tandem_problem* problem) {
  if (!line) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem line is NULL");
  tandem_problem p;
  tandem_problem_init(&p);
  p.batch = p.heads_q = 1;
  bool direction = false, dtype_given = false;
  int64_t unset = -1;
  p.heads_kv = p.seq_q = p.seq_kv = p.head_dim = p.head_dim_v = unset;
  uint32_t dtype = TANDEM_F32;
  Layout layout = Layout::bhsd;
  struct Override {
    const TensorWord* word;
    tandem_tensor tensor;
  };
  std::vector<Override> overrides;

  std::string word;
  const char* at = line;
  while (true) {
    at += std::strspn(at, " \t\n");
    const size_t n = std::strcspn(at, " \t\n");
    if (n == 0) break;
    word.assign(at, n);
    at += n;
    auto bad = [&](const char* why) {
      return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem line: word '%s' %s", word.c_str(), why);
    };
    const char* rest = nullptr;
    if (word == "fwd" || word == "bwd") {
      p.direction = word == "fwd" ? TANDEM_FORWARD : TANDEM_BACKWARD;
      direction = true;
    } else if (word == "f32" || word == "f16" || word == "bf16") {
      dtype = word == "f32" ? TANDEM_F32 : word == "f16" ? TANDEM_F16 : TANDEM_BF16;
      dtype_given = true;
    } else if (word == "causal_top_left" || word == "causal_bottom_right") {
      p.mask = TANDEM_MASK_CAUSAL;
      p.align = word == "causal_top_left" ? TANDEM_TOP_LEFT : TANDEM_BOTTOM_RIGHT;
    } else if (word == "bottom_right") {
      p.align = TANDEM_BOTTOM_RIGHT;
    } else if (word == "deterministic") {
      p.flags |= TANDEM_FLAG_DETERMINISTIC;
    } else if (word == "layout=bhsd" || word == "layout=bshd") {
      layout = word == "layout=bhsd" ? Layout::bhsd : Layout::bshd;
    } else if (starts(word, "left=", &rest)) {
      if (!parse_int(rest, &p.window_left)) return bad("wants a number");
    } else if (starts(word, "right=", &rest)) {
      if (!parse_int(rest, &p.window_right)) return bad("wants a number");
    } else if (starts(word, "scale=", &rest)) {
      char* stop = nullptr;
      p.scale = std::strtof(rest, &stop);
      if (stop == rest || *stop) return bad("wants a number");
    } else if (starts(word, "grads=", &rest)) {
      if (!parse_gradients(rest, &p.gradients)) return bad("wants a set of q, k, v");
    } else if (starts(word, "tile=", &rest)) {
      int64_t rows = 0, cols = 0;
      if (!parse_int(rest, &rows, 'x', &rest) || !parse_int(rest, &cols) || rows < 0 || cols < 0 ||
          rows > 65535 || cols > 65535)
        return bad("wants ROWSxCOLS");
      p.tile_rows = uint32_t(rows);
      p.tile_cols = uint32_t(cols);
    } else {
      bool known = false;
      const size_t equals = word.find('=');
      if (equals != std::string::npos) {
        for (const TensorWord& t : kTensors) {
          if (word.compare(0, equals, t.name) != 0) continue;
          Override o{&t, {}};
          if (!parse_strides(word.c_str() + equals + 1, &o.tensor))
            return bad("wants four strides");
          overrides.push_back(o);
          known = true;
        }
      } else {
        for (const SizeWord& size : kSizes) {
          if (!starts(word, size.prefix, &rest)) continue;
          if (!parse_int(rest, &(p.*size.member))) return bad("wants a number");
          known = true;
          break;
        }
      }
      if (!known) return bad("is unknown");
    }
  }
  if (!direction)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem line: 'fwd' or 'bwd' is missing");
  if (!dtype_given)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem line: 'f32', 'f16' or 'bf16' is missing");
  if (p.seq_q == unset) return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem line: 'sq' is missing");
  if (p.head_dim == unset)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem line: 'd' is missing");
  if (p.heads_kv == unset) p.heads_kv = p.heads_q;
  if (p.seq_kv == unset) p.seq_kv = p.seq_q;
  if (p.head_dim_v == unset) p.head_dim_v = p.head_dim;
  for (const TensorWord& t : kTensors) (p.*t.member).dtype = dtype;
  set_layout(&p, layout);
  for (const Override& o : overrides)
    std::copy(o.tensor.stride, o.tensor.stride + 4, (p.*o.word->member).stride);
  *problem = p;
  return Status();
}

}  // namespace tandem

extern "C" void tandem_problem_contiguous(tandem_problem* problem, tandem_dtype dtype) {
  if (!problem) return;
  for (const tandem::TensorWord& t : tandem::kTensors) (problem->*t.member).dtype = uint32_t(dtype);
  tandem::set_layout(problem, tandem::Layout::bhsd);
}
