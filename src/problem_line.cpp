// SPDX-License-Identifier: MIT OR Apache-2.0
// The problem line: one line of words that says a whole problem (docs/problem-line.md).
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "problem.h"
#include "structs.h"

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

// bias and keep: [batch, heads, rows, Sk]
struct OverlayWord {
  const char* name;
  tandem_tensor tandem_problem::*tensor;
  int64_t tandem_problem::*batch;
  int64_t tandem_problem::*heads;
  int64_t tandem_problem::*rows;
};
constexpr OverlayWord kBias = {"bias", &tandem_problem::bias, &tandem_problem::bias_batch,
                               &tandem_problem::bias_heads, &tandem_problem::bias_rows};
constexpr OverlayWord kDBias = {"d_bias", &tandem_problem::d_bias, &tandem_problem::bias_batch,
                                &tandem_problem::bias_heads, &tandem_problem::bias_rows};
constexpr OverlayWord kKeep = {"keep", &tandem_problem::keep, &tandem_problem::keep_batch,
                               &tandem_problem::keep_heads, &tandem_problem::keep_rows};

struct GradientLetter {
  char letter;
  uint32_t bit;
};
constexpr GradientLetter kGradients[] = {{'q', TANDEM_GRAD_Q},         {'k', TANDEM_GRAD_K},
                                         {'v', TANDEM_GRAD_V},         {'b', TANDEM_GRAD_BIAS},
                                         {'d', TANDEM_GRAD_DIST_BIAS}, {'a', TANDEM_GRAD_SLOPE},
                                         {'t', TANDEM_GRAD_TAU},       {'s', TANDEM_GRAD_SINK}};

constexpr struct {
  const char* name;
  uint32_t dtype;
} kFloats[] = {{"f32", TANDEM_F32}, {"f16", TANDEM_F16}, {"bf16", TANDEM_BF16}};

// Sizes are not checked yet when a line is parsed: wrap instead of overflowing.
int64_t times(int64_t a, int64_t b) { return int64_t(uint64_t(a) * uint64_t(b)); }

void set_strides(tandem_tensor* tensor, int64_t b, int64_t h, int64_t s) {
  tensor->stride[0] = b;
  tensor->stride[1] = h;
  tensor->stride[2] = s;
  tensor->stride[3] = 1;
}

tandem_tensor layout_of(const tandem_problem& p, const OverlayWord& t) {
  tandem_tensor tensor{};
  tensor.dtype = (p.*t.tensor).dtype;
  const int64_t rows = times(p.*t.rows, p.seq_kv);
  if (tensor.dtype) set_strides(&tensor, times(p.*t.heads, rows), rows, p.seq_kv);
  return tensor;
}

tandem_tensor layout_of(const tandem_problem& p, const TensorWord& t, Layout layout) {
  const bool packed = (t.kv ? p.lengths_kv : p.lengths_q) == TANDEM_LENGTHS_PACKED;
  const int64_t heads = t.kv ? p.heads_kv : p.heads_q;
  const int64_t seq = packed ? (t.kv ? p.total_kv : p.total_q) : t.kv ? p.seq_kv : p.seq_q;
  const int64_t dim = t.value ? p.head_dim_v : p.head_dim;
  tandem_tensor tensor{};
  tensor.dtype = (p.*t.member).dtype;
  const bool bhsd = layout == Layout::bhsd;
  tensor.stride[0] = packed ? 0 : times(heads, times(seq, dim));
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
  for (const OverlayWord& t : {kBias, kDBias, kKeep}) p->*t.tensor = layout_of(*p, t);
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
    const auto g = std::find_if(std::begin(kGradients), std::end(kGradients),
                                [&](const GradientLetter& l) { return l.letter == *s; });
    if (g == std::end(kGradients)) return false;
    *gradients |= g->bit;
  }
  return *gradients != 0;
}

bool parse_float(const char* s, float* value) {
  char* stop = nullptr;
  *value = std::strtof(s, &stop);
  return stop != s && *stop == '\0';
}

bool parse_dtype(const String& s, uint32_t* dtype) {
  for (const auto& f : kFloats)
    if (s == f.name) return *dtype = f.dtype, true;
  return false;
}

// "BxHxR", a name that wants a dtype as "f16:BxHxR".
bool parse_overlay(const String& s, const OverlayWord& word, tandem_problem* p) {
  const size_t colon = s.find(':');
  if ((colon == String::npos) != (word.tensor == kKeep.tensor)) return false;
  uint32_t dtype = TANDEM_BOOL8;
  if (colon != String::npos && !parse_dtype(s.substr(0, colon), &dtype)) return false;
  const char* at = s.c_str() + (colon == String::npos ? 0 : colon + 1);
  (p->*word.tensor).dtype = dtype;
  return parse_int(at, &(p->*word.batch), 'x', &at) && parse_int(at, &(p->*word.heads), 'x', &at) &&
         parse_int(at, &(p->*word.rows));
}

String strides_word(const char* name, const tandem_tensor& t) {
  return text(" %s=%lld,%lld,%lld,%lld", name, (long long)t.stride[0], (long long)t.stride[1],
              (long long)t.stride[2], (long long)t.stride[3]);
}

String overlay_word(const tandem_problem& p, const OverlayWord& word) {
  const uint32_t dtype = (p.*word.tensor).dtype;
  if (dtype == 0) return "";
  return text(" %s:%s%s%lldx%lldx%lld", word.name,
              dtype == TANDEM_BOOL8 ? "" : dtype_name(tandem_dtype(dtype)),
              dtype == TANDEM_BOOL8 ? "" : ":", (long long)(p.*word.batch),
              (long long)(p.*word.heads), (long long)(p.*word.rows));
}

const char* lengths_name(uint32_t lengths) {
  return lengths == TANDEM_LENGTHS_PADDED ? "padded" : "packed";
}

// What is off by default.
String extra_words(const tandem_problem& p) {
  String s;
  if (p.normalizer == TANDEM_ELASTIC) s += " elastic";
  if (p.normalizer == TANDEM_ENTMAX) s += text(" entmax=%a", double(p.entmax_alpha));
  if (p.softcap != 0) s += text(" softcap=%a", double(p.softcap));
  s += overlay_word(p, kBias);
  if (p.dist_window) s += text(" dist=%lld", (long long)p.dist_window);
  if (p.alibi) s += " alibi";
  s += overlay_word(p, kKeep);
  if (p.sink) s += " sink";
  if (p.dropout != 0) s += text(" dropout=%a", double(p.dropout));
  if (p.lengths_q) s += text(" q_%s", lengths_name(p.lengths_q));
  if (p.lengths_q == TANDEM_LENGTHS_PACKED) s += text("=%lld", (long long)p.total_q);
  if (p.lengths_kv) s += text(" kv_%s", lengths_name(p.lengths_kv));
  if (p.lengths_kv == TANDEM_LENGTHS_PACKED) s += text("=%lld", (long long)p.total_kv);
  return s;
}

bool starts(const String& word, const char* prefix, const char** rest) {
  const size_t n = std::strlen(prefix);
  if (word.compare(0, n, prefix) != 0) return false;
  *rest = word.c_str() + n;
  return true;
}

// A word of extra_words(): 1 taken, 0 not one of them, -1 wrong; *wants then says what it wants.
int parse_extra(const String& word, tandem_problem* p, const char** wants) {
  const char* rest = nullptr;
  const auto taken = [&](bool good, const char* what) {
    *wants = what;
    return good ? 1 : -1;
  };
  if (word == "elastic") return p->normalizer = TANDEM_ELASTIC, 1;
  if (word == "alibi") return p->alibi = 1, 1;
  if (word == "sink") return p->sink = 1, 1;
  if (word == "q_padded") return p->lengths_q = TANDEM_LENGTHS_PADDED, 1;
  if (word == "kv_padded") return p->lengths_kv = TANDEM_LENGTHS_PADDED, 1;
  if (starts(word, "entmax=", &rest)) {
    p->normalizer = TANDEM_ENTMAX;
    return taken(parse_float(rest, &p->entmax_alpha), "wants a number");
  }
  if (starts(word, "softcap=", &rest))
    return taken(parse_float(rest, &p->softcap), "wants a number");
  if (starts(word, "dropout=", &rest))
    return taken(parse_float(rest, &p->dropout), "wants a number");
  if (starts(word, "dist=", &rest))
    return taken(parse_int(rest, &p->dist_window), "wants a number");
  if (starts(word, "q_packed=", &rest)) {
    p->lengths_q = TANDEM_LENGTHS_PACKED;
    return taken(parse_int(rest, &p->total_q), "wants a number");
  }
  if (starts(word, "kv_packed=", &rest)) {
    p->lengths_kv = TANDEM_LENGTHS_PACKED;
    return taken(parse_int(rest, &p->total_kv), "wants a number");
  }
  if (starts(word, "bias:", &rest))
    return taken(parse_overlay(rest, kBias, p), "wants DTYPE:BATCHxHEADSxROWS");
  if (starts(word, "keep:", &rest))
    return taken(parse_overlay(rest, kKeep, p), "wants BATCHxHEADSxROWS");
  if (starts(word, "d_bias:", &rest))
    return taken(parse_dtype(rest, &p->d_bias.dtype), "wants f32, f16 or bf16");
  return 0;
}

}  // namespace

String print_problem(const tandem_problem& p) {
  String s = p.direction == TANDEM_BACKWARD ? "bwd" : "fwd";
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
  s += extra_words(p);
  if (p.direction == TANDEM_BACKWARD && p.gradients != TANDEM_GRAD_QKV) {
    s += " grads=";
    for (const GradientLetter& g : kGradients)
      if (p.gradients & g.bit) s += g.letter;
  }
  const bool d_bias = p.direction == TANDEM_BACKWARD && (p.gradients & TANDEM_GRAD_BIAS) != 0;
  if (d_bias) s += text(" d_bias:%s", dtype_name(tandem_dtype(p.d_bias.dtype)));
  if (p.flags & TANDEM_FLAG_DETERMINISTIC) s += " deterministic";
  if (p.flags & TANDEM_FLAG_VISIT_ALL) s += " visit_all";
  if (p.flags & TANDEM_FLAG_TF32) s += " tf32";
  if (p.tile_rows || p.tile_cols) s += text(" tile=%ux%u", p.tile_rows, p.tile_cols);
  if (p.splits) s += text(" splits=%u", p.splits);
  for (const OverlayWord& t : {kBias, kDBias, kKeep})
    if ((t.tensor != kDBias.tensor || d_bias) && (p.*t.tensor).dtype &&
        !same_strides(p.*t.tensor, layout_of(p, t)))
      s += strides_word(t.name, p.*t.tensor);
  if (all_in(p, Layout::bhsd)) return s;
  if (all_in(p, Layout::bshd)) return s + " layout=bshd";
  for (const TensorWord& t : kTensors) {
    if (t.backward && p.direction == TANDEM_FORWARD) continue;
    const tandem_tensor& tensor = p.*t.member;
    if (same_strides(tensor, layout_of(p, t, Layout::bhsd))) continue;
    s += strides_word(t.name, tensor);
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
    tandem_tensor tandem_problem::*member;
    tandem_tensor tensor;
  };
  Vec<Override> overrides;

  String word;
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
    } else if (parse_dtype(word, &dtype)) {
      dtype_given = true;
    } else if (word == "causal_top_left" || word == "causal_bottom_right") {
      p.mask = TANDEM_MASK_CAUSAL;
      p.align = word == "causal_top_left" ? TANDEM_TOP_LEFT : TANDEM_BOTTOM_RIGHT;
    } else if (word == "bottom_right") {
      p.align = TANDEM_BOTTOM_RIGHT;
    } else if (word == "deterministic") {
      p.flags |= TANDEM_FLAG_DETERMINISTIC;
    } else if (word == "visit_all") {
      p.flags |= TANDEM_FLAG_VISIT_ALL;
    } else if (word == "tf32") {
      p.flags |= TANDEM_FLAG_TF32;
    } else if (word == "layout=bhsd" || word == "layout=bshd") {
      layout = word == "layout=bhsd" ? Layout::bhsd : Layout::bshd;
    } else if (starts(word, "left=", &rest)) {
      if (!parse_int(rest, &p.window_left)) return bad("wants a number");
    } else if (starts(word, "right=", &rest)) {
      if (!parse_int(rest, &p.window_right)) return bad("wants a number");
    } else if (starts(word, "scale=", &rest)) {
      if (!parse_float(rest, &p.scale)) return bad("wants a number");
    } else if (starts(word, "grads=", &rest)) {
      if (!parse_gradients(rest, &p.gradients)) return bad("wants a set of q, k, v, b, d, a, t, s");
    } else if (starts(word, "tile=", &rest)) {
      int64_t rows = 0, cols = 0;
      if (!parse_int(rest, &rows, 'x', &rest) || !parse_int(rest, &cols) || rows < 0 || cols < 0 ||
          rows > 65535 || cols > 65535)
        return bad("wants ROWSxCOLS");
      p.tile_rows = uint32_t(rows);
      p.tile_cols = uint32_t(cols);
    } else if (starts(word, "splits=", &rest)) {
      int64_t splits = 0;
      if (!parse_int(rest, &splits) || splits < 0 || splits > 65535) return bad("wants a number");
      p.splits = uint32_t(splits);
    } else if (const int extra = parse_extra(word, &p, &rest)) {
      if (extra < 0) return bad(rest);
    } else {
      bool known = false;
      const size_t equals = word.find('=');
      if (equals != String::npos) {
        const auto override_of = [&](const char* name, tandem_tensor tandem_problem::*member) {
          if (word.compare(0, equals, name) != 0) return true;
          known = true;
          overrides.push_back({member, {}});
          return parse_strides(word.c_str() + equals + 1, &overrides.back().tensor);
        };
        bool good = true;
        for (const TensorWord& t : kTensors) good = good && override_of(t.name, t.member);
        for (const OverlayWord& t : {kBias, kDBias, kKeep})
          good = good && override_of(t.name, t.tensor);
        if (!good) return bad("wants four strides");
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
    std::copy(o.tensor.stride, o.tensor.stride + 4, (p.*o.member).stride);
  *problem = p;
  return Status();
}

}  // namespace tandem

extern "C" void tandem_problem_contiguous(tandem_problem* problem, tandem_dtype dtype) {
  tandem_problem whole;
  if (!problem || !tandem::read_struct("problem", problem, &whole).ok()) return;
  for (const tandem::TensorWord& t : tandem::kTensors) (whole.*t.member).dtype = uint32_t(dtype);
  tandem::set_layout(&whole, tandem::Layout::bhsd);
  tandem::write_struct(whole, problem);
}
