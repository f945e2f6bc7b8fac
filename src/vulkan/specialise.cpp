// SPDX-License-Identifier: MIT OR Apache-2.0
// A pass over SPIR-V in three steps: values of the constants; per function, which blocks can be
// reached and which results are known; then the words of what is left. It reads the layout of a
// module (SPIR-V 2.4) and the operands of few instructions. Of all others it only takes that words
// below the bound may be ids, so what they may refer to stays.
#include "specialise.h"

#include <algorithm>
#include <initializer_list>

#include "spirv.h"

namespace tandem {
namespace {

constexpr uint32_t kMagic = 0x07230203, kHeaderWords = 5, kFirstExtensionOp = 4096;
constexpr uint32_t kMostIds = 0x3fffff;  // SPIR-V 2.17
constexpr uint32_t kSpecIdDecoration = 1, kBuiltInDecoration = 11, kWorkgroupSize = 25;

struct Instruction {
  const uint32_t* w = nullptr;  // w[0]: length and opcode
  uint32_t length() const { return w[0] >> 16; }
  uint32_t op() const { return w[0] & 0xffff; }
};

class Pass {
 public:
  Pass(const uint32_t* words, size_t count, Vec<uint32_t>* out)
      : words_(words), count_(count), out_(*out) {}

  bool run(const SpecValue* values, size_t value_count) {
    if (count_ < kHeaderWords || words_[0] != kMagic || words_[3] == 0 || words_[3] > kMostIds)
      return false;
    bound_ = words_[3];
    ids_.resize(bound_);
    if (!read_globals(values, value_count) || !find_functions()) return false;
    for (size_t n = 0; n < wanted_.size(); ++n)  // grows
      if (!follow(functions_[wanted_[n]])) return false;
    write();
    return true;
  }

 private:
  struct Id {
    uint32_t word = 0;       // value of a bool or of 32 bits; of a label, its block
    uint32_t function = 0;   // 1 + its number
    bool known = false;      // word is its value
    bool scalar = false;     // a type of bools or of 32 bits
    bool boolean = false;    // the bool among these
    bool from_body = false;  // a known result of a function's instruction
    bool type = false;       // of whatever kind
    bool global = false;     // defined in front of the functions
    bool live = false;
    bool placed = false;  // defined by an instruction of a function that stays
  };
  struct Block {
    size_t first, end;  // words, the label included
    size_t last;        // of the instruction that ends it
    size_t merge = 0;   // of the merge instruction in front of that; 0: none
    uint32_t label;
    bool reached = false;
    bool stub = false;      // not reached, and a merge instruction names it: label and end alone
    uint32_t loops_to = 0;  // the header, if that is as a continue target
    uint32_t taken = 0;     // the only one of its branch's targets
  };
  struct Body {
    size_t first, end;  // words, from OpFunction to behind OpFunctionEnd
    size_t first_block = 0, block_count = 0;
    bool wanted = false, whole = false;  // whole: all blocks stay
  };

  Instruction at(size_t word) const { return {words_ + word}; }
  // The instruction lies inside the module and has at least so many words.
  bool fits(size_t word) const {
    const uint32_t length = words_[word] >> 16;
    return length > 0 && length <= count_ - word;
  }
  bool is_id(uint32_t id) const { return id > 0 && id < bound_; }
  Id& id(uint32_t n) { return ids_[n < bound_ ? n : 0]; }

  void set(uint32_t result, uint32_t word) {
    id(result).known = true;
    id(result).word = word;
  }

  bool read_globals(const SpecValue* values, size_t value_count) {
    Vec<uint32_t> spec(bound_, ~0u);
    const auto value_of = [&](uint32_t result, uint32_t fallback) {
      for (size_t n = 0; n < value_count; ++n)
        if (values[n].id == spec[result]) return values[n].word;
      return fallback;
    };
    size_t word = kHeaderWords;
    for (; word < count_; word += at(word).length()) {
      if (!fits(word)) return false;
      const Instruction i = at(word);
      const uint32_t length = i.length(), op = i.op();
      if (op == kFunction) break;
      if (op == kDecorate && length == 4 && i.w[2] == kSpecIdDecoration && is_id(i.w[1]))
        spec[i.w[1]] = i.w[3];
      const bool bits32 =
          ((op == kTypeInt && length == 4) || (op == kTypeFloat && length == 3)) && i.w[2] == 32;
      if (bits32 || (op == kTypeBool && length == 2)) {
        id(i.w[1]).scalar = true;
        id(i.w[1]).boolean = op == kTypeBool;
      }
      if (is_id(result_of(i))) {
        id(result_of(i)).global = true;
        id(result_of(i)).type = is_type(op);
      }
      if (length < 3 || !is_id(i.w[1]) || !is_id(i.w[2])) continue;
      const Id type = id(i.w[1]);
      const uint32_t result = i.w[2];
      if (op == kConstantTrue || op == kConstantFalse) set(result, op == kConstantTrue);
      if (op == kSpecConstantTrue || op == kSpecConstantFalse)
        set(result, value_of(result, op == kSpecConstantTrue) != 0);
      if (op == kConstant && length == 4 && type.scalar) set(result, i.w[3]);
      if (op == kSpecConstant && length == 4 && type.scalar) set(result, value_of(result, i.w[3]));
      if (op == kSpecConstantOp && length > 4 && type.scalar)
        fold(i.w[3], i.w + 4, length - 4, result);
    }
    globals_end_ = word;
    return word < count_;
  }

  // Notes the result of an operation if its operands decide it.
  bool fold(uint32_t op, const uint32_t* operands, uint32_t count, uint32_t result) {
    if (count == 0 || count != operand_count(op)) return false;
    uint32_t values[3] = {}, known = 0, word = 0;
    for (uint32_t n = 0; n < count; ++n) {
      if (!is_id(operands[n])) return false;
      known += id(operands[n]).known;
      values[n] = id(operands[n]).word;
      if (id(operands[n]).known && op == kLogicalAnd && !values[n]) return set(result, 0), true;
      if (id(operands[n]).known && op == kLogicalOr && values[n]) return set(result, 1), true;
    }
    if (op == kSelect && id(operands[0]).known) {
      const Id chosen = id(operands[values[0] ? 1 : 2]);
      if (chosen.known) set(result, chosen.word);
      return chosen.known;
    }
    if (known < count || !evaluate(op, values, count, &word)) return false;
    set(result, word);
    return true;
  }

  bool find_functions() {
    uint32_t entry = 0;
    for (size_t word = kHeaderWords; word < globals_end_; word += at(word).length())
      if (at(word).op() == kEntryPoint && at(word).length() > 3) entry = at(word).w[2];
    blocks_.push_back({0, 0, 0, 0, 0});
    for (size_t word = skip_lines(globals_end_); word < count_; word = skip_lines(word)) {
      if (!fits(word) || at(word).op() != kFunction || at(word).length() != 5) return false;
      Body f{word, 0};
      if (!is_id(at(word).w[2])) return false;
      id(at(word).w[2]).function = uint32_t(functions_.size()) + 1;
      f.first_block = blocks_.size();
      size_t merge = 0;
      bool inside = false, ended = false;
      for (; word < count_ && !ended; word += at(word).length()) {
        if (!fits(word)) return false;
        const Instruction i = at(word);
        switch (i.op()) {
          case kLabel:
            if (i.length() != 2 || inside || !is_id(i.w[1])) return false;
            blocks_.push_back({word, 0, 0, 0, i.w[1]});
            id(i.w[1]).word = uint32_t(blocks_.size()) - 1;
            inside = true, merge = 0;
            break;
          case kLoopMerge:
          case kSelectionMerge:
            if (!inside || i.length() < (i.op() == kLoopMerge ? 4u : 3u)) return false;
            merge = word;
            break;
          case kFunctionEnd:
            ended = !inside;
            break;
          default:
            if (i.op() < kBranch || (i.op() > kUnreachable && !ends(i.op()))) break;
            if (!inside) return false;
            blocks_.back().last = word;
            blocks_.back().merge = merge;
            blocks_.back().end = word + i.length();
            inside = false;
        }
      }
      if (!ended) return false;
      f.end = word;
      f.block_count = blocks_.size() - f.first_block;
      functions_.push_back(f);
    }
    want(entry);
    return !wanted_.empty();
  }
  // The first word behind debug lines, which stand between any two instructions.
  size_t skip_lines(size_t word) const {
    while (word < count_ && (at(word).op() == kLine || at(word).op() == kNoLine) && fits(word))
      word += at(word).length();
    return word;
  }
  // Instructions of extensions that end a block: OpTerminateInvocation and those of ray tracing.
  static bool ends(uint32_t op) { return op == 4416 || op == 4448 || op == 4449 || op == 5294; }

  void want(uint32_t function) {
    const uint32_t n = id(function).function;
    if (n == 0 || functions_[n - 1].wanted) return;
    functions_[n - 1].wanted = true;
    wanted_.push_back(n - 1);
  }

  Block* block_of(const Body& f, uint32_t label) {
    const uint32_t n = id(label).word;
    const bool is = is_id(label) && n >= f.first_block && n < f.first_block + f.block_count &&
                    blocks_[n].label == label;
    return is ? &blocks_[n] : nullptr;
  }

  // Which of the blocks are reached, in their order. Where a block is only reached from one behind
  // it, which no compiler writes, the function stays whole.
  bool follow(Body& f) {
    if (f.block_count == 0) return true;
    for (f.whole = false;; f.whole = true) {
      bool in_order = true;
      for (size_t n = 0; n < f.block_count; ++n) {
        Block& b = blocks_[f.first_block + n];
        b.reached = f.whole || (n == 0 || b.reached);
        b.taken = 0;
        if (!b.reached) continue;
        if (!visit(f, b, n, &in_order)) return false;
        if (!in_order) break;
      }
      if (in_order && keep_targets(f)) return true;
      if (f.whole) return false;
      forget(f);
    }
  }

  // Results, branch and calls of a reached block.
  bool visit(const Body& f, Block& b, size_t number, bool* in_order) {
    for (size_t word = b.first; word < b.end; word += at(word).length()) {
      const Instruction i = at(word);
      const uint32_t op = i.op(), length = i.length();
      if (op == kFunctionCall && length >= 4) want(i.w[3]);
      if (op >= kFirstExtensionOp)
        for (uint32_t n = 1; n < length; ++n) want(i.w[n]);
      if (f.whole || length < 4 || !is_id(i.w[1]) || !is_id(i.w[2]) || !id(i.w[1]).scalar) continue;
      const bool known = op == kPhi ? fold_phi(f, b, i) : fold(op, i.w + 3, length - 3, i.w[2]);
      if (known) id(i.w[2]).from_body = true;
    }
    const Instruction last = at(b.last);
    const uint32_t op = last.op(), length = last.length();
    const auto reach = [&](uint32_t label) {
      Block* to = block_of(f, label);
      if (!to) return false;
      if (!to->reached && to <= &blocks_[f.first_block + number]) *in_order = false;
      to->reached = true;
      return true;
    };
    if (op == kBranch) return length == 2 && reach(last.w[1]);
    if (op == kBranchConditional) {
      if (length < 4) return false;
      const bool decided = !f.whole && is_id(last.w[1]) && id(last.w[1]).known;
      const uint32_t taken = id(last.w[1]).word ? 2 : 3;
      // A loop's header needs the branch back to it, taken or not.
      const Block* other = block_of(f, last.w[5 - taken]);
      if (decided && other && other > &b) return reach(b.taken = last.w[taken]);
      return reach(last.w[2]) && reach(last.w[3]);
    }
    if (op == kSwitch)
      for (uint32_t n = 2; n < length; n += 2)
        if (!reach(last.w[n])) return false;
    return true;
  }

  // A phi of one value: all that come from reached blocks, which stand in front of it.
  bool fold_phi(const Body& f, const Block& b, const Instruction& i) {
    bool any = false;
    uint32_t word = 0;
    for (uint32_t n = 3; n + 1 < i.length(); n += 2) {
      const Block* from = block_of(f, i.w[n + 1]);
      if (!from || from >= &b) return false;
      if (!comes(*from, b)) continue;
      if (!is_id(i.w[n]) || !id(i.w[n]).known || (any && id(i.w[n]).word != word)) return false;
      word = id(i.w[n]).word;
      any = true;
    }
    if (any) set(i.w[2], word);
    return any;
  }
  static bool comes(const Block& from, const Block& to) {
    return from.reached && (from.taken == 0 || from.taken == to.label);
  }

  // Merge blocks and continue targets of what stays must be there, reached or not.
  bool keep_targets(Body& f) {
    for (size_t n = 0; n < f.block_count; ++n) {
      const Block& b = blocks_[f.first_block + n];
      if (!b.reached || !b.merge) continue;
      const Instruction m = at(b.merge);
      if (m.op() == kSelectionMerge && b.taken) continue;  // goes with its branch
      Block* after = block_of(f, m.w[1]);
      if (!after) return false;
      after->stub = true;
      if (m.op() != kLoopMerge) continue;
      Block* next = block_of(f, m.w[2]);
      if (!next) return false;
      if (next->reached) continue;
      next->stub = true;
      next->loops_to = b.label;
    }
    return true;
  }

  // Undoes visit() of all blocks.
  void forget(const Body& f) {
    for (size_t n = f.first_block; n < f.first_block + f.block_count; ++n) {
      Block& b = blocks_[n];
      for (size_t word = b.first; word < b.end; word += at(word).length()) {
        const Instruction i = at(word);
        if (i.length() < 4 || !is_id(i.w[2]) || !may_fold(i.op())) continue;
        id(i.w[2]).known = id(i.w[2]).from_body = false;
      }
      b.reached = b.stub = false;
      b.loops_to = b.taken = 0;
    }
  }
  static bool may_fold(uint32_t op) { return op == kPhi || operand_count(op) > 0; }

  // ---- what is left ----

  void put(Vec<uint32_t>* to, const Instruction& i) {
    to->insert(to->end(), i.w, i.w + i.length());
  }
  void put(Vec<uint32_t>* to, uint32_t op, std::initializer_list<uint32_t> operands) {
    to->push_back(uint32_t(operands.size() + 1) << 16 | op);
    to->insert(to->end(), operands);
  }
  void use(uint32_t n) {
    if (n < bound_) ids_[n].live = true;
  }
  void use_all(const Instruction& i) {
    for (uint32_t n = 1; n < i.length(); ++n) use(i.w[n]);
  }

  void write_phi(const Body& f, const Block& b, const Instruction& i, Vec<uint32_t>* code) {
    const size_t begin = code->size();
    put(code, kPhi, {i.w[1], i.w[2]});
    use(i.w[1]);
    uint32_t any = 0, stub = 0;  // a value; the parent that is left of a continue target
    for (uint32_t n = 3; n + 1 < i.length(); n += 2) {
      const Block* from = block_of(f, i.w[n + 1]);
      if (from && from->loops_to == b.label) stub = from->label;
      if (!from || !comes(*from, b)) continue;
      code->insert(code->end(), {i.w[n], i.w[n + 1]});
      use(any = i.w[n]);
    }
    // The stub is never run, so that its value only has to be there.
    if (any && stub) code->insert(code->end(), {any, stub});
    (*code)[begin] = uint32_t(code->size() - begin) << 16 | kPhi;
  }

  void write_block(const Body& f, const Block& b, Vec<uint32_t>* code) {
    if (!b.reached && !b.stub) return;
    put(code, kLabel, {b.label});
    if (!b.reached) {
      if (b.loops_to) put(code, kBranch, {b.loops_to});
      if (!b.loops_to) put(code, kUnreachable, {});
      return;
    }
    for (size_t word = b.first + 2; word < b.end; word += at(word).length()) {
      const Instruction i = at(word);
      if (word == b.merge && i.op() == kSelectionMerge && b.taken) continue;
      if (word == b.last && b.taken) {
        put(code, kBranch, {b.taken});
        continue;
      }
      if (may_fold(i.op()) && id(i.w[2]).from_body) continue;
      if (i.length() > 2 && id(i.w[1]).type) id(i.w[2]).placed = true;
      if (i.op() != kPhi) {
        use_all(i);
        put(code, i);
        continue;
      }
      write_phi(f, b, i, code);
    }
  }

  void write() {
    Vec<uint32_t> code, constants;
    code.reserve(count_);
    for (const Body& f : functions_) {
      if (!f.wanted) continue;
      size_t word = f.first;
      const size_t blocks = f.block_count ? blocks_[f.first_block].first : f.end - 1;
      for (; word < blocks; word += at(word).length()) {
        if (at(word).length() > 2) id(at(word).w[2]).placed = true;
        use_all(at(word));
        put(&code, at(word));
      }
      for (size_t n = 0; n < f.block_count; ++n) write_block(f, blocks_[f.first_block + n], &code);
      put(&code, kFunctionEnd, {});
    }
    // Results of functions that are known: constants of the same ids.
    for (const Body& f : functions_)
      for (size_t n = f.first_block; f.wanted && n < f.first_block + f.block_count; ++n)
        for (size_t word = blocks_[n].first; blocks_[n].reached && word < blocks_[n].end;
             word += at(word).length()) {
          const Instruction i = at(word);
          if (!may_fold(i.op()) || !id(i.w[2]).from_body || !id(i.w[2]).live) continue;
          put_constant(&constants, i.w[1], i.w[2]);
        }
    find_live();
    out_.clear();
    out_.reserve(code.size() + constants.size() + globals_end_);
    out_.insert(out_.end(), words_, words_ + kHeaderWords);
    for (size_t word = kHeaderWords; word < globals_end_; word += at(word).length())
      write_global(at(word));
    out_.insert(out_.end(), constants.begin(), constants.end());
    out_.insert(out_.end(), code.begin(), code.end());
  }

  void put_constant(Vec<uint32_t>* to, uint32_t type, uint32_t result) {
    use(type);
    const uint32_t value = id(result).word;
    if (id(type).boolean)
      put(to, value ? kConstantTrue : kConstantFalse, {type, result});
    else
      put(to, kConstant, {type, result, value});
  }

  // What an instruction in front of the functions is to this pass.
  enum class Kind { fixed, name, decoration, definition };
  static Kind kind_of(const Instruction& i) {
    switch (i.op()) {
      case kName:
      case kMemberName:
      case kSource:
      case kSourceContinued:
      case kSourceExtension:
      case kModuleProcessed:
        return Kind::name;
      case kDecorate:
      case kMemberDecorate:
      case kDecorateId:
      case kDecorateString:
      case kMemberDecorateString:
        return Kind::decoration;
      default:
        return result_of(i) ? Kind::definition : Kind::fixed;
    }
  }
  static bool is_type(uint32_t op) {
    return (op >= kTypeVoid && op < kTypeForwardPointer) || op == kTypeCooperativeMatrix ||
           op == kTypeTensorLayout || op == kTypeTensorView;
  }
  // The id that a type, constant or variable defines; 0: it is another instruction.
  static uint32_t result_of(const Instruction& i) {
    const uint32_t op = i.op(), length = i.length();
    if (is_type(op) || op == kTypeForwardPointer) return length > 1 ? i.w[1] : 0;
    const bool value =
        (op >= kConstantTrue && op <= kSpecConstantOp) || op == kVariable || op == kUndef;
    return value && length > 2 ? i.w[2] : 0;
  }
  bool frozen(const Instruction& i) {
    return i.op() >= kSpecConstantTrue && i.op() <= kSpecConstantOp &&
           i.op() != kSpecConstantComposite && id(i.w[2]).known;
  }

  // Marks what an instruction in front of the functions refers to; more: something new.
  void use_operands(const Instruction& i, bool* more) {
    const uint32_t op = i.op();
    const auto mark = [&](uint32_t n) {
      if (!is_id(n) || ids_[n].live) return;
      ids_[n].live = *more = true;
    };
    uint32_t end = i.length();
    if (op == kConstant || frozen(i)) end = 2;  // the type; then literals
    if (op == kTypeInt || op == kTypeFloat) end = 1;
    if (kind_of(i) == Kind::decoration && op != kDecorateId) end = 1;  // literals
    for (uint32_t n = 1; n < end; ++n)
      if (!(op == kSpecConstantOp && n == 3)) mark(i.w[n]);
  }

  // What the functions refer to, and what that refers to in turn.
  void find_live() {
    Vec<size_t> starts;
    bool more = false;
    for (size_t word = kHeaderWords; word < globals_end_; word += at(word).length()) {
      const Instruction i = at(word);
      starts.push_back(word);
      if (i.op() == kEntryPoint) use(i.w[2]);
      if (i.op() == kExecutionModeId) use_operands(i, &more);
      if (i.op() == kDecorate && i.length() == 4 && i.w[2] == kBuiltInDecoration &&
          i.w[3] == kWorkgroupSize)
        use(i.w[1]);
    }
    do {  // again where something stands behind what it refers to
      more = false;
      for (size_t n = starts.size(); n-- > 0;) {
        const Instruction i = at(starts[n]);
        const Kind kind = kind_of(i);
        const uint32_t target = kind == Kind::definition   ? result_of(i)
                                : kind == Kind::decoration ? i.w[1]
                                                           : 0;
        if (is_id(target) && id(target).live) use_operands(i, &more);
      }
    } while (more);
  }

  void write_global(const Instruction& i) {
    const uint32_t op = i.op();
    switch (kind_of(i)) {
      case Kind::name:
        return;
      case Kind::fixed:
        if (op != kEntryPoint) return put(&out_, i);
        break;
      case Kind::decoration:
        if (op == kDecorate && i.w[2] == kSpecIdDecoration) return;
        if (id(i.w[1]).global ? id(i.w[1]).live : id(i.w[1]).placed) put(&out_, i);
        return;
      case Kind::definition:
        if (!is_id(result_of(i)) || !id(result_of(i)).live) return;
        if (!frozen(i)) {
          put(&out_, i);
          if (op == kSpecConstantComposite)
            out_[out_.size() - i.length()] += kConstantComposite - op;
        } else {
          put_constant(&out_, i.w[1], i.w[2]);
        }
        return;
    }
    // The entry point names its variables behind its own name, which ends in a zero byte.
    uint32_t n = 3;
    while (n < i.length() && (i.w[n] >> 24) != 0) ++n;
    const size_t begin = out_.size();
    out_.insert(out_.end(), i.w, i.w + std::min(n + 1, i.length()));
    for (++n; n < i.length(); ++n)
      if (is_id(i.w[n]) && id(i.w[n]).live) out_.push_back(i.w[n]);
    out_[begin] = uint32_t(out_.size() - begin) << 16 | op;
  }

  const uint32_t* const words_;
  const size_t count_;
  Vec<uint32_t>& out_;
  uint32_t bound_ = 0;
  size_t globals_end_ = 0;
  Vec<Id> ids_;
  Vec<Body> functions_;
  Vec<Block> blocks_;     // of all functions; the first is none
  Vec<uint32_t> wanted_;  // functions that are called, in the order of their first call
};

}  // namespace

bool specialise(const uint32_t* words, size_t count, const SpecValue* values, size_t value_count,
                Vec<uint32_t>* out) {
  return Pass(words, count, out).run(values, value_count);
}

}  // namespace tandem
