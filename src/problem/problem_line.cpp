// SPDX-License-Identifier: MIT OR Apache-2.0
// The problem line, which states a whole problem (docs/guide/problem-line.md).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "api/border.h"
#include "base/number.h"
#include "base/structs.h"
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
  uint32_t directions;
};
// Bits of directions. One that there is not counts as forward.
constexpr uint32_t kFwd = 1, kBwd = 2, kMerge = 4, kBwdMerge = 8, kParts = kMerge | kBwdMerge;
constexpr TensorWord kTensors[] = {{"q", &tandem_problem::q, false, false, kFwd | kBwd},
                                   {"k", &tandem_problem::k, true, false, kFwd | kBwd},
                                   {"v", &tandem_problem::v, true, true, kFwd | kBwd},
                                   {"o", &tandem_problem::o, false, true, kFwd | kBwd | kMerge},
                                   {"d_o", &tandem_problem::d_o, false, true, kBwd | kBwdMerge},
                                   {"d_q", &tandem_problem::d_q, false, false, kBwd},
                                   {"d_k", &tandem_problem::d_k, true, false, kBwd},
                                   {"d_v", &tandem_problem::d_v, true, true, kBwd},
                                   {"part_o", &tandem_problem::part_o, false, true, kParts},
                                   {"d_part_o", &tandem_problem::d_part_o, false, true, kBwdMerge}};

uint32_t direction_bit(const tandem_problem& p) {
  return p.direction == TANDEM_BACKWARD         ? kBwd
         : p.direction == TANDEM_MERGE          ? kMerge
         : p.direction == TANDEM_MERGE_BACKWARD ? kBwdMerge
                                                : kFwd;
}
bool is_used(const tandem_problem& p, const TensorWord& t) {
  return (t.directions & direction_bit(p)) != 0;
}
// The tensor whose type the line has as a word of its own.
const tandem_tensor& typed(const tandem_problem& p) {
  return p.direction == TANDEM_MERGE ? p.o : p.direction == TANDEM_MERGE_BACKWARD ? p.d_o : p.q;
}

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
constexpr GradientLetter kGradients[] = {
    {'q', TANDEM_GRAD_Q},    {'k', TANDEM_GRAD_K},         {'v', TANDEM_GRAD_V},
    {'b', TANDEM_GRAD_BIAS}, {'d', TANDEM_GRAD_DIST_BIAS}, {'a', TANDEM_GRAD_SLOPE},
    {'t', TANDEM_GRAD_TAU},  {'s', TANDEM_GRAD_SINK},      {'i', TANDEM_GRAD_BIAS_TABLE}};

// The line also holds values that a plan refuses. Members whose words cover only a range of values
// print any other value as a number.
struct NumberWord {
  const char* name;
  uint32_t tandem_problem::*member;
  uint32_t least, most;
  bool backward;
};
constexpr NumberWord kNumbers[] = {
    {"direction", &tandem_problem::direction, TANDEM_FORWARD, TANDEM_MERGE_BACKWARD, false},
    {"mask", &tandem_problem::mask, 0, TANDEM_MASK_CAUSAL, false},
    {"align", &tandem_problem::align, 0, TANDEM_BOTTOM_RIGHT, false},
    {"normalizer", &tandem_problem::normalizer, 0, TANDEM_ENTMAX, false},
    {"alibi", &tandem_problem::alibi, 0, 1, false},
    {"sink", &tandem_problem::sink, 0, 1, false},
    {"d_lse", &tandem_problem::d_lse, 0, 1, false},
    {"merge_into", &tandem_problem::merge_into, 0, 1, false},
    {"lengths_q", &tandem_problem::lengths_q, 0, TANDEM_LENGTHS_GAPPED, false},
    {"lengths_kv", &tandem_problem::lengths_kv, 0, TANDEM_LENGTHS_GAPPED, false},
    {"gradients", &tandem_problem::gradients, 1, 2 * TANDEM_GRAD_BIAS_TABLE - 1, true},
    {"flags", &tandem_problem::flags, 0, kProblemFlags, false}};

// In the order of tandem_direction.
constexpr const char* kDirections[] = {"fwd", "bwd", "merge", "bwd_merge"};

struct StepWord {
  const char* name;
  int64_t tandem_problem::*member;
  bool backward;
};
constexpr StepWord kSteps[] = {{"part_stride", &tandem_problem::part_stride, false},
                               {"d_part_stride", &tandem_problem::d_part_stride, true}};

constexpr struct {
  const char* name;
  uint32_t dtype;
} kFloats[] = {
    {"f32", TANDEM_F32}, {"f16", TANDEM_F16}, {"bf16", TANDEM_BF16}, {"f64", TANDEM_F64}};

// Sizes are not checked yet when a line is parsed, so this wraps instead of overflowing.
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
  const uint32_t lengths = t.kv ? p.lengths_kv : p.lengths_q;
  const bool packed = lengths == TANDEM_LENGTHS_PACKED || lengths == TANDEM_LENGTHS_GAPPED;
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

// What the tensors of parts have besides.
int64_t part_stride_of(const tandem_problem& p) {
  return times(times(p.batch, p.heads_q), times(p.seq_q, p.head_dim_v));
}
// Tensors of parts are left alone where there are none.
bool is_there(const tandem_problem& p, const TensorWord& t) {
  return p.parts != 0 || (t.directions & ~kParts) != 0;
}
// What a line without a word for it says of a tensor's strides, and of the steps between parts.
bool has_strides_of(const tandem_problem& p, const TensorWord& t, Layout layout) {
  return same_strides(p.*t.member, is_there(p, t) ? layout_of(p, t, layout) : tandem_tensor{});
}
int64_t usual_step(const tandem_problem& p) { return p.parts != 0 ? part_stride_of(p) : 0; }

void set_layout(tandem_problem* p, Layout layout) {
  for (const TensorWord& t : kTensors)
    if (is_there(*p, t)) p->*t.member = layout_of(*p, t, layout);
  if (p->parts != 0) p->part_stride = p->d_part_stride = part_stride_of(*p);
  for (const OverlayWord& t : {kBias, kDBias, kKeep}) p->*t.tensor = layout_of(*p, t);
}

bool all_in(const tandem_problem& p, Layout layout) {
  return std::all_of(std::begin(kTensors), std::end(kTensors), [&](const TensorWord& t) {
    return !is_used(p, t) || has_strides_of(p, t, layout);
  });
}

bool parse_int(const char* s, int64_t* value, char end = '\0', const char** rest = nullptr) {
  const char* stop = end == '\0' ? s + std::strlen(s) : std::strchr(s, end);
  if (!stop || !parse_number(s, stop, value)) return false;
  if (rest) *rest = stop + 1;
  return true;
}

bool parse_word(const char* s, uint32_t* value, char end = '\0', const char** rest = nullptr) {
  int64_t n = 0;
  if (!parse_int(s, &n, end, rest) || n < 0 || n > std::numeric_limits<uint32_t>::max())
    return false;
  *value = uint32_t(n);
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

bool parse_float(const char* s, float* value) { return parse_number(s, s + std::strlen(s), value); }

bool parse_float_type(const String& s, uint32_t* dtype) {
  for (const auto& f : kFloats)
    if (s == f.name) return *dtype = f.dtype, true;
  return false;
}

bool parse_type(const String& s, uint32_t* dtype) {
  return parse_float_type(s, dtype) || parse_word(s.c_str(), dtype);
}

// Parses "f16:BxHxR"; keep has "BxHxR", and with the number of an invalid type "1:BxHxR".
bool parse_overlay(const String& s, const OverlayWord& word, tandem_problem* p) {
  const size_t colon = s.find(':');
  const bool keep = word.tensor == kKeep.tensor;
  uint32_t dtype = TANDEM_BOOL8;
  if (colon == String::npos ? !keep
      : keep                ? !parse_word(s.substr(0, colon).c_str(), &dtype)
                            : !parse_type(s.substr(0, colon), &dtype))
    return false;
  const char* at = s.c_str() + (colon == String::npos ? 0 : colon + 1);
  (p->*word.tensor).dtype = dtype;
  return parse_int(at, &(p->*word.batch), 'x', &at) && parse_int(at, &(p->*word.heads), 'x', &at) &&
         parse_int(at, &(p->*word.rows));
}

String strides_word(const char* name, const tandem_tensor& t) {
  return text(" %s=%lld,%lld,%lld,%lld", name, (long long)t.stride[0], (long long)t.stride[1],
              (long long)t.stride[2], (long long)t.stride[3]);
}

bool is_float_type(uint32_t dtype) {
  return std::any_of(std::begin(kFloats), std::end(kFloats),
                     [&](const auto& f) { return f.dtype == dtype; });
}

String type_text(uint32_t dtype) {
  return is_float_type(dtype) ? String(dtype_name(dtype)) : text("%u", dtype);
}

String overlay_word(const tandem_problem& p, const OverlayWord& word) {
  const uint32_t dtype = (p.*word.tensor).dtype;
  if (dtype == 0 && !(p.*word.batch) && !(p.*word.heads) && !(p.*word.rows)) return "";
  const String type = word.tensor != kKeep.tensor ? type_text(dtype) + ":"
                      : dtype == TANDEM_BOOL8     ? String()
                                                  : text("%u:", dtype);
  return text(" %s:%s%lldx%lldx%lld", word.name, type.c_str(), (long long)(p.*word.batch),
              (long long)(p.*word.heads), (long long)(p.*word.rows));
}

String float_word(const char* name, float value) { return text(" %s=", name) + hex_text(value); }

// Off is +0; -0, and values that no plan takes, are printed.
bool is_off(float value) { return value == 0 && !std::signbit(value); }

String lengths_word(const char* name, uint32_t lengths, int64_t total) {
  String s;
  if (lengths == TANDEM_LENGTHS_PADDED) s = text(" %s_padded", name);
  if (lengths == TANDEM_LENGTHS_PACKED) return text(" %s_packed=%lld", name, (long long)total);
  if (lengths == TANDEM_LENGTHS_GAPPED) return text(" %s_gapped=%lld", name, (long long)total);
  return total ? s + text(" total_%s=%lld", name, (long long)total) : s;
}

bool starts(const char* word, const char* prefix, const char** rest) {
  const size_t n = std::strlen(prefix);
  if (std::strncmp(word, prefix, n) != 0) return false;
  *rest = word + n;
  return true;
}
bool starts(const String& word, const char* prefix, const char** rest) {
  return starts(word.c_str(), prefix, rest);
}

String index_text(uint32_t dtype) {
  const bool known = dtype >= TANDEM_U8 && dtype <= TANDEM_I32;
  return known ? String(dtype_name(dtype)) : text("%u", dtype);
}

// Parses "N:u8:B"; an invalid type is its number.
bool parse_table(const char* at, tandem_problem* p) {
  if (!parse_int(at, &p->bias_table_size, ':', &at)) return false;
  for (uint32_t dtype : {TANDEM_U8, TANDEM_U16, TANDEM_I32})
    if (starts(at, (String(dtype_name(dtype)) + ":").c_str(), &at)) {
      p->bias_index_dtype = dtype;
      return parse_int(at, &p->bias_index_batch);
    }
  return parse_word(at, &p->bias_index_dtype, ':', &at) && parse_int(at, &p->bias_index_batch);
}

// Words of what is off by default.
String extra_words(const tandem_problem& p) {
  String s;
  if (p.normalizer == TANDEM_ELASTIC) s += " elastic";
  if (p.normalizer == TANDEM_ENTMAX)
    s += float_word("entmax", p.entmax_alpha);
  else if (!is_off(p.entmax_alpha))
    s += float_word("alpha", p.entmax_alpha);
  if (!is_off(p.softcap)) s += float_word("softcap", p.softcap);
  s += overlay_word(p, kBias);
  if (p.dist_window) s += text(" dist=%lld", (long long)p.dist_window);
  if (p.alibi) s += " alibi";
  if (p.slopes_batch) s += text(" slopes=%lld", (long long)p.slopes_batch);
  s += overlay_word(p, kKeep);
  if (p.spans || p.spans_batch || p.spans_heads)
    s += text(" spans=%lld:%lldx%lld", (long long)p.spans, (long long)p.spans_batch,
              (long long)p.spans_heads);
  if (p.block_q || p.block_kv || p.block_width || p.block_bits || p.block_batch || p.block_heads)
    s += text(" blocks=%lldx%lld:%lld+%lld:%lldx%lld", (long long)p.block_q, (long long)p.block_kv,
              (long long)p.block_width, (long long)p.block_bits, (long long)p.block_batch,
              (long long)p.block_heads);
  if (p.bias_table_size || p.bias_index_batch || p.bias_index_dtype)
    s += text(" table=%lld:%s:%lld", (long long)p.bias_table_size,
              index_text(p.bias_index_dtype).c_str(), (long long)p.bias_index_batch);
  if (p.sink) s += " sink";
  if (p.sinks_batch) s += text(" sinks=%lld", (long long)p.sinks_batch);
  if (!is_off(p.dropout)) s += float_word("dropout", p.dropout);
  if (p.d_lse == 1) s += " d_lse";
  if (p.max_logit_batch) s += text(" max_logit=%lld", (long long)p.max_logit_batch);
  if (p.parts) s += text(" parts=%lld", (long long)p.parts);
  if (p.merge_into == 1) s += " into";
  return s + lengths_word("q", p.lengths_q, p.total_q) +
         lengths_word("kv", p.lengths_kv, p.total_kv);
}

// Parses a word of extra_words(): 1: taken; 0: not one of them; -1: wrong, and *wants is what is
// expected.
int parse_extra(const String& word, tandem_problem* p, const char** wants) {
  const char* rest = nullptr;
  const auto taken = [&](bool good, const char* what) {
    *wants = what;
    return good ? 1 : -1;
  };
  if (word == "elastic") return p->normalizer = TANDEM_ELASTIC, 1;
  if (word == "alibi") return p->alibi = 1, 1;
  if (word == "sink") return p->sink = 1, 1;
  if (word == "d_lse") return p->d_lse = 1, 1;
  if (word == "into") return p->merge_into = 1, 1;
  if (starts(word, "parts=", &rest)) return taken(parse_int(rest, &p->parts), "wants a number");
  if (word == "q_padded") return p->lengths_q = TANDEM_LENGTHS_PADDED, 1;
  if (word == "kv_padded") return p->lengths_kv = TANDEM_LENGTHS_PADDED, 1;
  if (starts(word, "entmax=", &rest)) {
    p->normalizer = TANDEM_ENTMAX;
    return taken(parse_float(rest, &p->entmax_alpha), "wants a number");
  }
  if (starts(word, "alpha=", &rest))
    return taken(parse_float(rest, &p->entmax_alpha), "wants a number");
  if (starts(word, "softcap=", &rest))
    return taken(parse_float(rest, &p->softcap), "wants a number");
  if (starts(word, "dropout=", &rest))
    return taken(parse_float(rest, &p->dropout), "wants a number");
  if (starts(word, "dist=", &rest))
    return taken(parse_int(rest, &p->dist_window), "wants a number");
  if (starts(word, "max_logit=", &rest))
    return taken(parse_int(rest, &p->max_logit_batch), "wants a number");
  if (starts(word, "slopes=", &rest))
    return taken(parse_int(rest, &p->slopes_batch), "wants a number");
  if (starts(word, "sinks=", &rest))
    return taken(parse_int(rest, &p->sinks_batch), "wants a number");
  if (starts(word, "q_packed=", &rest) || starts(word, "q_gapped=", &rest)) {
    p->lengths_q = word[2] == 'p' ? TANDEM_LENGTHS_PACKED : TANDEM_LENGTHS_GAPPED;
    return taken(parse_int(rest, &p->total_q), "wants a number");
  }
  if (starts(word, "kv_packed=", &rest) || starts(word, "kv_gapped=", &rest)) {
    p->lengths_kv = word[3] == 'p' ? TANDEM_LENGTHS_PACKED : TANDEM_LENGTHS_GAPPED;
    return taken(parse_int(rest, &p->total_kv), "wants a number");
  }
  if (starts(word, "total_q=", &rest)) return taken(parse_int(rest, &p->total_q), "wants a number");
  if (starts(word, "total_kv=", &rest))
    return taken(parse_int(rest, &p->total_kv), "wants a number");
  if (starts(word, "bias:", &rest))
    return taken(parse_overlay(rest, kBias, p), "wants DTYPE:BATCHxHEADSxROWS");
  if (starts(word, "keep:", &rest))
    return taken(parse_overlay(rest, kKeep, p), "wants BATCHxHEADSxROWS");
  if (starts(word, "spans=", &rest))
    return taken(parse_int(rest, &p->spans, ':', &rest) &&
                     parse_int(rest, &p->spans_batch, 'x', &rest) &&
                     parse_int(rest, &p->spans_heads),
                 "wants COUNT:BATCHxHEADS");
  if (starts(word, "blocks=", &rest))
    return taken(
        parse_int(rest, &p->block_q, 'x', &rest) && parse_int(rest, &p->block_kv, ':', &rest) &&
            parse_int(rest, &p->block_width, '+', &rest) &&
            parse_int(rest, &p->block_bits, ':', &rest) &&
            parse_int(rest, &p->block_batch, 'x', &rest) && parse_int(rest, &p->block_heads),
        "wants ROWSxKEYS:WIDTH+BITS:BATCHxHEADS");
  if (starts(word, "table=", &rest))
    return taken(parse_table(rest, p), "wants SIZE:TYPE:BATCH, TYPE being u8, u16 or i32");
  if (starts(word, "d_bias:", &rest))
    return taken(parse_type(rest, &p->d_bias.dtype), "wants f32, f16, bf16 or f64");
  for (const NumberWord& n : kNumbers)
    if (starts(word, n.name, &rest) && *rest == '=')
      return taken(parse_word(rest + 1, &(p->*n.member)), "wants a number below 2^32");
  return 0;
}

}  // namespace

String print_problem(const tandem_problem& p) {
  const bool backward = p.direction == TANDEM_BACKWARD,
             backward_merge = p.direction == TANDEM_MERGE_BACKWARD;
  const bool merges = (direction_bit(p) & kParts) != 0;
  const uint32_t dtype = is_float_type(typed(p).dtype) ? typed(p).dtype : uint32_t(TANDEM_F32);
  String s = kDirections[p.direction >= TANDEM_FORWARD && p.direction <= TANDEM_MERGE_BACKWARD
                             ? p.direction - TANDEM_FORWARD
                             : 0];
  s += text(" %s b%lld hq%lld", dtype_name(dtype), (long long)p.batch, (long long)p.heads_q);
  s += merges
           ? text(" sq%lld dv%lld", (long long)p.seq_q, (long long)p.head_dim_v)
           : text(" hk%lld sq%lld sk%lld d%lld dv%lld", (long long)p.heads_kv, (long long)p.seq_q,
                  (long long)p.seq_kv, (long long)p.head_dim, (long long)p.head_dim_v);
  // What a merge ignores is what a line without the word says, but for problems that no plan takes.
  if (merges && p.heads_kv != p.heads_q) s += text(" hk%lld", (long long)p.heads_kv);
  if (merges && p.seq_kv != p.seq_q) s += text(" sk%lld", (long long)p.seq_kv);
  if (merges && p.head_dim != p.head_dim_v) s += text(" d%lld", (long long)p.head_dim);
  const char* align = p.align == TANDEM_BOTTOM_RIGHT ? "bottom_right" : "top_left";
  if (p.mask == TANDEM_MASK_CAUSAL)
    s += text(" causal_%s", align);
  else if (p.align == TANDEM_BOTTOM_RIGHT)
    s += " bottom_right";
  if (p.window_left != TANDEM_UNBOUNDED) s += text(" left=%lld", (long long)p.window_left);
  if (p.window_right != TANDEM_UNBOUNDED) s += text(" right=%lld", (long long)p.window_right);
  if (!std::isnan(p.scale) && !merges) s += float_word("scale", p.scale);
  s += extra_words(p);
  if (backward && p.gradients != TANDEM_GRAD_QKV && p.gradients < 2 * TANDEM_GRAD_BIAS_TABLE &&
      p.gradients != 0) {
    s += " grads=";
    for (const GradientLetter& g : kGradients)
      if (p.gradients & g.bit) s += g.letter;
  }
  if (backward && p.d_bias.dtype) s += " d_bias:" + type_text(p.d_bias.dtype);
  if (p.flags & TANDEM_FLAG_DETERMINISTIC) s += " deterministic";
  if (p.flags & TANDEM_FLAG_VISIT_ALL) s += " visit_all";
  if (p.flags & TANDEM_FLAG_TF32) s += " tf32";
  if (p.flags & TANDEM_FLAG_PART_OF_KEYS) s += " part_of_keys";
  if (p.flags & TANDEM_FLAG_BATCH_INVARIANT) s += " batch_invariant";
  if (p.flags & TANDEM_FLAG_SLICES) s += " slices";
  if (p.tile_rows || p.tile_cols) s += text(" tile=%ux%u", p.tile_rows, p.tile_cols);
  if (p.splits) s += text(" splits=%u", p.splits);
  if (p.cores) s += text(" cores=%u", p.cores);
  if (p.workspace_limit) s += text(" workspace=%llu", (unsigned long long)p.workspace_limit);
  for (const NumberWord& n : kNumbers)
    if ((backward || !n.backward) && (p.*n.member < n.least || p.*n.member > n.most))
      s += text(" %s=%u", n.name, p.*n.member);
  for (const TensorWord& t : kTensors)
    if (is_used(p, t) && (p.*t.member).dtype != (is_there(p, t) ? dtype : 0))
      s += text(" %s:", t.name) + type_text((p.*t.member).dtype);
  for (const OverlayWord& t : {kBias, kDBias, kKeep})
    if ((t.tensor != kDBias.tensor || backward) && !same_strides(p.*t.tensor, layout_of(p, t)))
      s += strides_word(t.name, p.*t.tensor);
  for (const StepWord& t : kSteps)
    if (merges && (backward_merge || !t.backward) && p.*t.member != usual_step(p))
      s += text(" %s=%lld", t.name, (long long)(p.*t.member));
  if (all_in(p, Layout::bhsd)) return s;
  if (all_in(p, Layout::bshd)) return s + " layout=bshd";
  for (const TensorWord& t : kTensors) {
    if (!is_used(p, t)) continue;
    const tandem_tensor& tensor = p.*t.member;
    if (has_strides_of(p, t, Layout::bhsd)) continue;
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
  bool given[std::size(kSizes)] = {};
  uint32_t dtype = TANDEM_F32;
  Layout layout = Layout::bhsd;
  struct Override {  // of the strides, or of the type
    tandem_tensor tandem_problem::*member;
    tandem_tensor tensor;
    bool type;
  };
  Vec<Override> overrides;
  struct Step {
    int64_t tandem_problem::*member;
    int64_t value;
  };
  Vec<Step> steps;

  String word;
  const char* at = line;
  while (true) {
    at += std::strspn(at, " \t\r\n");
    const size_t n = std::strcspn(at, " \t\r\n");
    if (n == 0) break;
    word.assign(at, n);
    at += n;
    auto bad = [&](const char* why) {
      return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem line: word '%s' %s", word.c_str(), why);
    };
    const char* rest = nullptr;
    const auto named = std::find_if(std::begin(kDirections), std::end(kDirections),
                                    [&](const char* name) { return word == name; });
    if (named != std::end(kDirections)) {
      p.direction = uint32_t(named - kDirections) + TANDEM_FORWARD;
      direction = true;
    } else if (parse_float_type(word, &dtype)) {
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
    } else if (word == "part_of_keys") {
      p.flags |= TANDEM_FLAG_PART_OF_KEYS;
    } else if (word == "batch_invariant") {
      p.flags |= TANDEM_FLAG_BATCH_INVARIANT;
    } else if (word == "slices") {
      p.flags |= TANDEM_FLAG_SLICES;
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
      if (!parse_gradients(rest, &p.gradients))
        return bad("wants a set of q, k, v, b, d, a, t, s, i");
    } else if (starts(word, "tile=", &rest)) {
      if (!parse_word(rest, &p.tile_rows, 'x', &rest) || !parse_word(rest, &p.tile_cols))
        return bad("wants ROWSxCOLS");
    } else if (starts(word, "splits=", &rest)) {
      if (!parse_word(rest, &p.splits)) return bad("wants a number");
    } else if (starts(word, "cores=", &rest)) {
      if (!parse_word(rest, &p.cores)) return bad("wants a number");
    } else if (starts(word, "workspace=", &rest)) {
      if (!parse_number(rest, rest + std::strlen(rest), &p.workspace_limit))
        return bad("wants a number of bytes");
    } else if (const int extra = parse_extra(word, &p, &rest)) {
      if (extra < 0) return bad(rest);
    } else {
      bool known = false;
      const size_t equals = word.find('='), colon = word.find(':');
      if (colon != String::npos) {
        for (const TensorWord& t : kTensors) {
          if (word.compare(0, colon, t.name) != 0) continue;
          known = true;
          overrides.push_back({t.member, {}, true});
          if (!parse_type(word.substr(colon + 1), &overrides.back().tensor.dtype))
            return bad("wants f32, f16, bf16 or f64");
        }
      } else if (equals != String::npos) {
        const auto override_of = [&](const char* name, tandem_tensor tandem_problem::*member) {
          if (word.compare(0, equals, name) != 0) return true;
          known = true;
          overrides.push_back({member, {}, false});
          return parse_strides(word.c_str() + equals + 1, &overrides.back().tensor);
        };
        bool good = true;
        for (const TensorWord& t : kTensors) good = good && override_of(t.name, t.member);
        for (const OverlayWord& t : {kBias, kDBias, kKeep})
          good = good && override_of(t.name, t.tensor);
        if (!good) return bad("wants four strides");
        for (const StepWord& t : kSteps) {
          if (word.compare(0, equals, t.name) != 0) continue;
          known = true;
          steps.push_back({t.member, 0});
          if (!parse_int(word.c_str() + equals + 1, &steps.back().value))
            return bad("wants a number");
        }
      } else {
        for (const SizeWord& size : kSizes) {
          if (!starts(word, size.prefix, &rest)) continue;
          if (!parse_int(rest, &(p.*size.member))) return bad("wants a number");
          known = given[&size - kSizes] = true;
          break;
        }
      }
      if (!known) return bad("is unknown");
    }
  }
  if (!direction)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "problem line: 'fwd', 'bwd', 'merge' or 'bwd_merge' is missing");
  if (!dtype_given)
    return fail(TANDEM_ERROR_INVALID_ARGUMENT,
                "problem line: 'f32', 'f16', 'bf16' or 'f64' is missing");
  const auto missing = [&](int64_t tandem_problem::*member) {
    for (const SizeWord& size : kSizes)
      if (size.member == member) return !given[&size - kSizes];
    return true;
  };
  if (missing(&tandem_problem::seq_q))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem line: 'sq' is missing");
  const bool merges = (direction_bit(p) & kParts) != 0;
  if (missing(merges ? &tandem_problem::head_dim_v : &tandem_problem::head_dim))
    return fail(TANDEM_ERROR_INVALID_ARGUMENT, "problem line: '%s' is missing",
                merges ? "dv" : "d");
  if (merges && missing(&tandem_problem::head_dim)) p.head_dim = p.head_dim_v;
  if (missing(&tandem_problem::heads_kv)) p.heads_kv = p.heads_q;
  if (missing(&tandem_problem::seq_kv)) p.seq_kv = p.seq_q;
  if (missing(&tandem_problem::head_dim_v)) p.head_dim_v = p.head_dim;
  for (const TensorWord& t : kTensors)
    if (is_there(p, t)) (p.*t.member).dtype = dtype;
  set_layout(&p, layout);
  for (const Step& step : steps) p.*step.member = step.value;
  for (const Override& o : overrides)
    if (o.type)
      (p.*o.member).dtype = o.tensor.dtype;
    else
      std::copy(o.tensor.stride, o.tensor.stride + 4, (p.*o.member).stride);
  *problem = p;
  return Status();
}

}  // namespace tandem

extern "C" void tandem_problem_contiguous(tandem_problem* problem, tandem_dtype dtype) {
  using namespace tandem;
  border([&]() -> Status {
    tandem_problem whole;
    TANDEM_TRY(read_struct("problem", problem, &whole));
    for (const TensorWord& t : kTensors)
      if (is_there(whole, t)) (whole.*t.member).dtype = number_of(dtype);
    set_layout(&whole, Layout::bhsd);
    write_struct(whole, problem);
    return Status();
  });
}
