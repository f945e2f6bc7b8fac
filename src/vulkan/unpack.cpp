// SPDX-License-Identifier: MIT OR Apache-2.0
// A decoder of LZMA2, after the specifications of .xz (1.2) and of LZMA (lzma-specification of the
// LZMA SDK).
#include "unpack.h"

#include <cstring>
#include <memory>

#include "base/host_memory.h"

namespace tandem {
namespace {

constexpr uint32_t kBits = 11, kShift = 5;  // of a probability; of how fast it follows
constexpr uint32_t kStates = 12, kMaxPositions = 16, kMinLength = 2;

using Probability = uint16_t;  // that a bit is 0, in units of 2^-11

template <size_t N>
void set_even(Probability (&p)[N]) {
  for (Probability& one : p) one = 1 << (kBits - 1);
}

class Decoder : public HostObject {
 public:
  Decoder(const uint8_t* in, size_t in_size, uint8_t* out, size_t size)
      : in_(in), in_end_(in + in_size), begin_(out), out_(out), end_(out + size) {}

  bool run() {
    constexpr uint8_t kMagic[] = {0xfd, '7', 'z', 'X', 'Z', 0};
    if (left() < 13 || std::memcmp(in_, kMagic, sizeof kMagic) != 0) return false;
    const size_t header = (size_t(in_[12]) + 1) * 4;  // of the block
    if (left() < 12 + header) return false;
    in_ += 12 + header;
    while (left() > 0) {
      const uint32_t control = *in_++;
      if (control == 0) return out_ == end_;
      if (!(control < 0x80 ? copy(control) : decode(control))) return false;
    }
    return false;
  }

 private:
  size_t left() const { return size_t(in_end_ - in_); }
  size_t room() const { return size_t(end_ - out_); }
  uint32_t next() {
    if (in_ == chunk_end_) return overrun_ = true, 0;
    return *in_++;
  }

  // ---- chunks ----

  bool copy(uint32_t control) {
    if (control > 2 || left() < 2) return false;
    const size_t size = (size_t(in_[0]) << 8 | in_[1]) + 1;
    in_ += 2;
    if (left() < size || room() < size) return false;
    std::memcpy(out_, in_, size);
    in_ += size, out_ += size;
    return true;
  }

  bool decode(uint32_t control) {
    const uint32_t reset = control >> 5 & 3;  // 1: the state, 2: and properties, 3: and dictionary
    if (left() < (reset >= 2 ? 5u : 4u)) return false;
    const size_t size = (size_t(control & 0x1f) << 16 | size_t(in_[0]) << 8 | in_[1]) + 1;
    const size_t packed = (size_t(in_[2]) << 8 | in_[3]) + 1;
    in_ += 4;
    if (reset >= 2 && !set_properties(*in_++)) return false;
    if (reset >= 1) reset_state();
    if (!has_state_ || left() < packed || packed < 5 || room() < size) return false;
    chunk_end_ = in_ + packed;
    range_ = ~0u, code_ = 0;
    for (int n = 0; n < 5; ++n) code_ = code_ << 8 | next();
    for (uint8_t* const to = out_ + size; out_ < to;)
      if (!step(to)) return false;
    return !overrun_ && in_ == chunk_end_ && code_ == 0;  // as the encoder leaves it
  }

  bool set_properties(uint32_t byte) {
    if (byte >= 9 * 5 * 5) return false;
    literal_context_ = byte % 9, byte /= 9;
    literal_mask_ = (1u << byte % 5) - 1;
    literal_shift_ = 8 - literal_context_;
    position_mask_ = (1u << byte / 5) - 1;
    return literal_context_ + byte % 5 <= 4;
  }

  void reset_state() {
    has_state_ = true;
    state_ = 0;
    for (uint32_t& d : distances_) d = 0;
    set_even(match_), set_even(repeat_), set_even(repeat1_), set_even(repeat2_);
    set_even(repeat3_), set_even(long_repeat_), set_even(align_), set_even(literal_);
    set_even(special_);
    for (auto& slot : slot_) set_even(slot);
    for (Lengths* l : {&match_lengths_, &repeat_lengths_}) {
      set_even(l->choice), set_even(l->high);
      for (auto& low : l->low) set_even(low);
      for (auto& middle : l->middle) set_even(middle);
    }
  }

  // ---- bits ----

  void normalise() {
    if (range_ >= 1u << 24) return;
    range_ <<= 8;
    code_ = code_ << 8 | next();
  }
  uint32_t bit(Probability* p) {
    const uint32_t bound = (range_ >> kBits) * *p;
    const uint32_t bit = code_ >= bound;
    if (bit) {
      range_ -= bound, code_ -= bound;
      *p = Probability(*p - (*p >> kShift));
    } else {
      range_ = bound;
      *p = Probability(*p + (((1u << kBits) - *p) >> kShift));
    }
    normalise();
    return bit;
  }
  // The same without a branch, for bits that no processor predicts.
  uint32_t mixed_bit(Probability* p) {
    const uint32_t was = *p, bound = (range_ >> kBits) * was;
    const uint32_t bit = code_ >= bound, ones = 0u - bit;  // all of a 1's bits
    range_ = bound + (ones & (range_ - 2 * bound));
    code_ -= ones & bound;
    const uint32_t up = was + (((1u << kBits) - was) >> kShift), down = was - (was >> kShift);
    *p = Probability(up ^ (ones & (up ^ down)));
    normalise();
    return bit;
  }
  uint32_t even_bits(uint32_t count) {  // of probability 1/2
    uint32_t value = 0;
    for (; count > 0; --count) {
      range_ >>= 1;
      const uint32_t bit = code_ >= range_;
      if (bit) code_ -= range_;
      value = value << 1 | bit;
      normalise();
    }
    return value;
  }
  uint32_t tree(Probability* p, uint32_t count) {  // the highest bit first
    uint32_t node = 1;
    for (uint32_t n = 0; n < count; ++n) node = node << 1 | mixed_bit(p + node);
    return node - (1u << count);
  }
  uint32_t reversed_tree(Probability* p, uint32_t count) {  // the lowest bit first
    uint32_t node = 1, value = 0;
    for (uint32_t n = 0; n < count; ++n) {
      const uint32_t one = mixed_bit(p + node);
      node = node << 1 | one;
      value |= one << n;
    }
    return value;
  }

  // ---- what they say ----

  bool step(const uint8_t* to) {
    const uint32_t position = uint32_t(out_ - begin_) & position_mask_;
    if (!bit(&match_[state_ * kMaxPositions + position])) return literal();
    uint32_t length = 0;
    if (bit(&repeat_[state_])) {
      if (!bit(&repeat1_[state_])) {
        if (!bit(&long_repeat_[state_ * kMaxPositions + position])) {
          state_ = state_ < 7 ? 9 : 11;
          return repeat(1, to);
        }
      } else {
        use_earlier(bit(&repeat2_[state_]) ? 2 + bit(&repeat3_[state_]) : 1);
      }
      length = read_length(&repeat_lengths_, position);
      state_ = state_ < 7 ? 8 : 11;
    } else {
      length = read_length(&match_lengths_, position);
      state_ = state_ < 7 ? 7 : 10;
      std::memmove(distances_ + 1, distances_, 3 * sizeof distances_[0]);
      distances_[0] = read_distance(length);
    }
    return repeat(length, to);
  }

  void use_earlier(uint32_t n) {
    const uint32_t distance = distances_[n];
    std::memmove(distances_ + 1, distances_, n * sizeof distances_[0]);
    distances_[0] = distance;
  }

  bool literal() {
    const uint32_t before = out_ > begin_ ? out_[-1] : 0;
    const uint32_t context =
        (uint32_t(out_ - begin_) & literal_mask_) << literal_context_ | before >> literal_shift_;
    Probability* const p = literal_ + 0x300 * context;
    uint32_t node = 1;
    if (state_ >= 7) {  // behind a match: the byte that would have followed it
      if (distances_[0] >= size_t(out_ - begin_)) return false;
      uint32_t other = out_[-1 - std::ptrdiff_t(distances_[0])];
      while (node < 0x100) {
        const uint32_t its = other >> 7 & 1;
        other <<= 1;
        const uint32_t one = bit(p + ((1 + its) << 8) + node);
        node = node << 1 | one;
        if (one != its) break;
      }
    }
    while (node < 0x100) node = node << 1 | mixed_bit(p + node);
    *out_++ = uint8_t(node);
    state_ = state_ < 4 ? 0 : state_ < 10 ? state_ - 3 : state_ - 6;
    return true;
  }

  bool repeat(uint32_t length, const uint8_t* to) {
    if (distances_[0] >= size_t(out_ - begin_) || length > size_t(to - out_)) return false;
    const uint8_t* from = out_ - 1 - std::ptrdiff_t(distances_[0]);
    for (; length > 0; --length) *out_++ = *from++;  // they may overlap
    return true;
  }

  struct Lengths {
    Probability choice[2], low[kMaxPositions][8], middle[kMaxPositions][8], high[256];
  };
  uint32_t read_length(Lengths* l, uint32_t position) {
    if (!bit(&l->choice[0])) return kMinLength + tree(l->low[position], 3);
    if (!bit(&l->choice[1])) return kMinLength + 8 + tree(l->middle[position], 3);
    return kMinLength + 16 + tree(l->high, 8);
  }

  uint32_t read_distance(uint32_t length) {
    const uint32_t most = 3, of_length = length - kMinLength;
    const uint32_t slot = tree(slot_[of_length < most ? of_length : most], 6);
    if (slot < 4) return slot;
    const uint32_t bits = (slot >> 1) - 1;
    const uint32_t base = (2 | (slot & 1)) << bits;
    if (slot < 14) return base + reversed_tree(special_ + base - slot, bits);
    const uint32_t high = even_bits(bits - 4) << 4;
    return base + high + reversed_tree(align_, 4);
  }

  const uint8_t *in_, *const in_end_, *chunk_end_ = nullptr;
  uint8_t *const begin_, *out_, *const end_;
  uint32_t range_ = 0, code_ = 0;
  bool overrun_ = false, has_state_ = false;
  uint32_t literal_context_ = 0, literal_mask_ = 0, literal_shift_ = 8, position_mask_ = 0;
  uint32_t state_ = 0, distances_[4] = {};  // less 1
  Probability match_[kStates * kMaxPositions], long_repeat_[kStates * kMaxPositions];
  Probability repeat_[kStates], repeat1_[kStates], repeat2_[kStates], repeat3_[kStates];
  Probability slot_[4][64], special_[128], align_[16], literal_[0x300 << 4];
  Lengths match_lengths_, repeat_lengths_;
};

}  // namespace

bool unpack(const uint8_t* packed, size_t packed_size, uint8_t* out, size_t size) {
  const std::unique_ptr<Decoder> decoder(new Decoder(packed, packed_size, out, size));
  return decoder->run();
}

}  // namespace tandem
