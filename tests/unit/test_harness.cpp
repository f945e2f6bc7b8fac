// SPDX-License-Identifier: MIT OR Apache-2.0
// harness/: what tests and tools stand on. Number formats against the CPU device's own, random
// numbers against fixed values, guards and gaps by damaging them, the judgement by giving it wrong
// outputs.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "compare.h"
#include "cpu/element.h"
#include "files.h"
#include "guard_pages.h"
#include "host.h"
#include "session.h"

#if !defined(_WIN32)
#include "in_child.h"
#endif

using namespace tandem::harness;

namespace {

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace

TEST_CASE("support: f16 and bf16 by two independent conversions") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = uint16_t(bits);
    REQUIRE(same(from_f16(half), tandem::f16_to_float(half)));
    REQUIRE(same(from_bf16(half), tandem::bf16_to_float(half)));
    if (!std::isnan(from_f16(half))) REQUIRE(to_f16(from_f16(half)) == half);
    if (!std::isnan(from_bf16(half))) REQUIRE(to_bf16(from_bf16(half)) == half);
  }
  for (uint64_t step = 0; step < (uint64_t(1) << 32); step += 9973) {
    const auto bits = uint32_t(step);
    float x;
    std::memcpy(&x, &bits, 4);
    if (std::isnan(x)) continue;
    REQUIRE(to_f16(x) == tandem::float_to_f16(x));
    REQUIRE(to_bf16(x) == tandem::float_to_bf16(x));
  }
  // A double between two halves, nearer to the upper one by less than a float can say.
  CHECK(to_f16(1.0 + 0x1p-11 + 0x1p-40) == to_f16(1.0f) + 1);
  CHECK(to_f16(1.0 + 0x1p-11) == to_f16(1.0f));
  CHECK(to_f16(65520.0) == 0x7c00);
  CHECK(to_f16(65519.99) == 0x7bff);
}

TEST_CASE("regression: what is counted keeps the digits of names") {
  const char* rows[][2] = {
      {"vulkan.coopmat2: 3 optional inputs at once", "vulkan.coopmat2: # optional inputs at once"},
      {"cuda.sm80 t64k32: head_dim 999 and bf16", "cuda.sm80 t64k32: head_dim # and bf16"},
      {"needs 12 x 34 groups, alpha 1.25, 49152 bytes", "needs # x # groups, alpha #, # bytes"},
      {"64x32 of vulkan.scalar.", "#x# of vulkan.scalar."},
      {"it is 7.", "it is #."},
      {"", ""},
  };
  for (const auto& row : rows) CHECK(without_numbers(row[0]) == row[1]);
}

TEST_CASE("support: random numbers are the same everywhere") {
  Random r(1);
  CHECK(r.next() == 0x910a2dec89025cc1u);
  CHECK(r.next() == 0xbeeb8da1658eec67u);
  double sum = 0, squares = 0;
  for (int n = 0; n < 100000; ++n) {
    const double x = r.normal();
    sum += x;
    squares += x * x;
  }
  CHECK(std::fabs(sum / 100000) < 0.01);
  CHECK(std::fabs(squares / 100000 - 1) < 0.02);
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const tandem_problem p = random_problem(seed), again = random_problem(seed);
    REQUIRE(print(p) == print(again));
    REQUIRE(print(parse(print(p))) == print(p));
  }
}

TEST_CASE("support: layouts and gaps of host tensors") {
  tandem_problem p = make_problem(TANDEM_FORWARD, TANDEM_F16, 2, 3, 3, 5, 5, 7);
  for (Layout layout :
       {Layout::bhsd, Layout::bshd, Layout::gapped, Layout::gapped4, Layout::transposed}) {
    set_layout(p, layout);
    HostTensor t(p, Role::q, 3);
    t.fill_normal(5);
    CHECK(t.broken_gap().empty());
    const std::vector<double> values = t.dense();
    HostTensor copy(p, Role::q, 3);
    copy.set_dense(values);
    CHECK(copy.bytes == t.bytes);
    t.bytes[1] = 0;  // before the first element
    CHECK_FALSE(t.broken_gap().empty());
  }
  // Elements that share memory are equal.
  std::fill(p.q.stride, p.q.stride + 4, 0);
  HostTensor one(p, Role::q);
  one.fill_normal(1);
  CHECK(one.bytes.size() == 2);
  CHECK(one.get(0, 0, 0, 0) == one.get(1, 2, 4, 6));
}

namespace {

void check_buffers(Session& session) {
  for (size_t bytes : {size_t(0), size_t(1), size_t(2), size_t(6), size_t(4096), size_t(100003)}) {
    CAPTURE(bytes);
    Buffer b = session.buffer(bytes);
    CHECK(b.guards_intact());
    std::vector<uint8_t> data(bytes), back(bytes);
    for (size_t n = 0; n < bytes; ++n) data[n] = uint8_t(Random::mix(n));
    b.upload(data);
    b.download(back.data(), bytes);
    CHECK(back == data);
    CHECK(b.guards_intact());
    b.fill(0x5a);
    CHECK(b.download_as<uint8_t>() == std::vector<uint8_t>(bytes, 0x5a));
    CHECK(b.guards_intact());
    CHECK_THROWS_AS(b.upload(data.data(), bytes + 1), Error);
    CHECK_THROWS_AS(b.download(back.data(), 1, bytes), Error);
  }
}

}  // namespace

TEST_CASE("support: buffers on every device, Vulkan too") {
  for (const std::string& name : usable_devices()) {
    CAPTURE(name);
    const auto session = Session::open(name);
    CHECK(session->name() == name);
    check_buffers(*session);
    if (session->backend() != "vulkan") continue;
    // Bound in pieces, where the device can.
    SessionOptions pieces;
    pieces.piece_bytes = 65536;
    check_buffers(*Session::open(name, pieces));
  }
  CHECK(total_validation_messages() == 0);
}

TEST_CASE("support: a damaged guard is seen") {
  const auto session = Session::open("cpu");
  for (const int64_t at : {int64_t(-1), int64_t(-4096), int64_t(101), int64_t(101 + 4095)}) {
    const Buffer b = session->buffer(101);
    const tandem_buffer h = b.handle();
    auto* bytes = reinterpret_cast<uint8_t*>(uintptr_t(h.handle + h.offset));
    CHECK(b.guards_intact());
    bytes[at] = 0;
    CHECK_FALSE(b.guards_intact());
  }
}

#if defined(__linux__) && defined(__x86_64__) && TANDEM_FORK_TESTS
namespace {

// What a child says that touches a byte of a buffer between guard pages; "" if it goes on.
std::string said_at(const char* pages, size_t bytes, int64_t at, bool writes) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const int result = in_child([&] {
    dup2(ends[1], 2);
    setenv("TANDEM_GUARD_PAGES", pages, 1);
    const auto session = Session::open("cpu");
    name_case_of_faults("as it was");
    const Buffer b = session->buffer(bytes, true, "keep");
    const tandem_buffer h = b.handle();
    auto* byte = reinterpret_cast<volatile uint8_t*>(uintptr_t(h.handle + h.offset)) + at;
    if (writes)
      *byte = 1;
    else
      (void)*byte;
    return b.guards_intact() ? 0 : 3;
  });
  close(ends[1]);
  std::string said(200, '\0');
  said.resize(size_t(std::max<ssize_t>(read(ends[0], said.data(), said.size()), 0)));
  close(ends[0]);
  return result == 1 ? said : result == 0 ? "" : "status " + std::to_string(result);
}

}  // namespace

TEST_CASE("support: a touched guard page ends the process with a sentence") {
  const auto fault = [](int64_t at, const char* access = "read") {
    return std::string("guard pages: keep was ") + access + " at byte " + std::to_string(at) +
           " of its 101; as it was\n";
  };
  CHECK(said_at("first", 101, 0, true) == "");
  CHECK(said_at("first", 101, 100, true) == "");
  CHECK(said_at("first", 101, -1, false) == fault(-1));
  CHECK(said_at("first", 101, 101, false) == "");  // the page has more
  CHECK(said_at("first", 101, 101, true) == "status 3");
  CHECK(said_at("first", 101, -1, true) == fault(-1, "written"));
  CHECK(said_at("first", 101, 4096, false) == fault(4096));
  CHECK(said_at("last", 101, 0, true) == "");
  CHECK(said_at("last", 101, 100, true) == "");
  CHECK(said_at("last", 101, 101, false) == fault(101));
  CHECK(said_at("last", 101, 101, true) == fault(101, "written"));
  CHECK(said_at("last", 101, -1, true) == "status 3");
  CHECK(said_at("last", 101, 101 - 4097, false) == fault(101 - 4097));
  CHECK(said_at("last", 0, 0, false) ==
        "guard pages: keep was read at byte 0 of its 0; as it was\n");
}
#endif

TEST_CASE("support: devices that do not exist are refused by a sentence") {
  for (const char* name : {"", "gpu", "cpu:1", "vulkan:", "vulkan:x", "cuda:-1", "cpu/scalar",
                           "vulkan:999", "cuda:999"}) {
    CAPTURE(name);
    std::string what;
    try {
      Session::open(name);
    } catch (const Error& e) {
      what = e.what();
    }
    CHECK(what.size() > 10);
  }
  CHECK(Session::open("cpu/ref")->name() == "cpu/ref");
  SessionOptions options;
  options.disable = "cpu.nonsense";
  CHECK_THROWS_AS(Session::open("cpu", options), Error);
}

TEST_CASE("support: the judgement accepts good outputs and refuses wrong ones") {
  const auto session = Session::open("cpu");
  for (tandem_dtype dtype : {TANDEM_F32, TANDEM_F16, TANDEM_BF16}) {
    CAPTURE(int(dtype));
    tandem_problem p = make_problem(TANDEM_BACKWARD, dtype, 1, 2, 1, 70, 90, 40);
    p.mask = TANDEM_MASK_CAUSAL;
    Case c(p, 7);
    Outputs good;
    const CaseResult result = c.run_and_judge(*session, &good);
    REQUIRE_MESSAGE(result.ok, result.message);
    CHECK(result.judgements.size() == 5);
    CHECK(result.worst_ratio() > 0);

    const auto refused = [&](const Outputs& outputs) {
      CaseResult r;
      r.ok = true;
      c.judge(outputs, &r);
      return !r.ok;
    };
    CHECK_FALSE(refused(good));
    Outputs bad = good;
    bad.o.set(0, 1, 33, 5, -good.o.get(0, 1, 33, 5));
    CHECK(refused(bad));
    bad = good;
    bad.d_q.set(0, 0, 69, 39, std::numeric_limits<double>::quiet_NaN());
    CHECK(refused(bad));
    bad = good;
    bad.lse[3] += 1e-3f;
    CHECK(refused(bad));
    bad = good;  // the last key row's d_k counted twice
    for (int64_t d = 0; d < 40; ++d) bad.d_k.set(0, 0, 60, d, 2 * good.d_k.get(0, 0, 60, d));
    CHECK(refused(bad));
    bad = good;  // two columns exchanged in one row
    bad.d_v.set(0, 0, 10, 3, good.d_v.get(0, 0, 10, 4));
    bad.d_v.set(0, 0, 10, 4, good.d_v.get(0, 0, 10, 3));
    CHECK(refused(bad));
    bad = good;  // keys that no row sees have gradient 0, exactly
    bad.d_v.set(0, 0, 80, 0, 1e-6);
    CHECK(refused(bad));
  }
}

namespace {

// What a device that rounds nothing but its results would write.
Outputs perfect(Case& c) {
  Outputs out;
  const tandem_problem& p = c.problem();
  const std::vector<double>& lse = c.reference_lse();
  out.lse.assign(lse.begin(), lse.end());
  for (Role role : kOutputs) {
    const bool from_forward = role == Role::o && p.direction == TANDEM_BACKWARD;
    if (!from_forward && !is_output(p, role)) continue;
    HostTensor& t = out.tensor(role);
    t = HostTensor(p, role);
    const std::vector<double>& want = c.reference(role);
    if (!is_packed(p, role)) {
      t.set_dense(want);
      continue;
    }
    const bool kv = role == Role::d_k || role == Role::d_v;
    const Sequences s = c.sequences(kv);
    const Dims n = logical_dims(p, role);
    for (int64_t b = 0; b < n.b; ++b)
      for (int64_t h = 0; h < n.h; ++h)
        for (int64_t i = 0; i < s.length[size_t(b)]; ++i)
          for (int64_t d = 0; d < n.d; ++d)
            t.set(0, h, s.start[size_t(b)] + i, d,
                  want[size_t(((b * n.h + h) * n.s + i) * n.d + d)]);
  }
  return out;
}

}  // namespace

TEST_CASE(
    "support: what operands of f16 lose is allowed by what they are multiplied with, and no more") {
  // A row of weights near 2^-24 beside one of weights near 1, 15 terms each, of numbers up to 4.
  Samples x;
  x.dims = {1, 1, 2, 1};
  x.exact = x.stepwise = {3e-7, 3};
  x.floor = {4e-7, 20};
  x.counts = {15, 15};
  x.chain = TANDEM_F16;
  x.operand = 4;
  const auto limits = [&](uint32_t dtype) { return make_bounds(x, dtype, 8).element_error; };
  const std::vector<double> with = limits(TANDEM_F16);
  // One weight of 2^-25 lost at the largest number, and more of them; but nothing beyond the terms
  // and one unit in the last place.
  CHECK(with[0] > 4 * 0x1p-25 + 0x1p-24);
  CHECK(with[0] > 3e-7 + 0x1p-24);
  CHECK(with[0] < 1.01 * 4e-7 + 0x1p-24);
  x.operand = 0;
  const std::vector<double> without = limits(TANDEM_F16);
  // Weights of a usual size have the same limit.
  CHECK(with[1] == doctest::Approx(without[1]).epsilon(1e-4));
  x.floor[1] = 4e-7;  // no large terms that would hide it
  CHECK(limits(TANDEM_F16)[0] < 0x1p-24 + 1e-8);
  x.operand = 4;
  CHECK(limits(TANDEM_F16)[0] == doctest::Approx(with[0]).epsilon(1e-3));
  x.chain = TANDEM_BF16;
  CHECK(limits(TANDEM_BF16)[0] < 1e-8);
}

TEST_CASE("support: with TF32 an element may be off by what the yardstick is, and no more") {
  Samples x;
  x.dims = {1, 1, 2, 1};
  x.exact = {1, 1};
  x.stepwise = {1 + 0x1p-6, 1};
  x.floor = {1, 1};
  x.counts = {4, 4};
  x.chain = TANDEM_F32;
  const auto limits = [&] { return make_bounds(x, TANDEM_F32, 8).element_error; };
  CHECK(limits()[0] < 0x1p-18);
  x.tf32 = true;
  CHECK(limits()[1] == doctest::Approx(4 * 0x1p-11).epsilon(1e-2));
  CHECK(limits()[0] == doctest::Approx(limits()[1] + 2 * 0x1p-6).epsilon(1e-9));
  x.floor[0] = 0;  // nothing was summed
  CHECK(limits()[0] == 0);
}

TEST_CASE("support: every optional input is made, referred to and judged") {
  RandomLimits limits;
  limits.max_work = 200000;
  limits.max_seq = 140;
  std::map<std::string, int> seen, refused;
  for (uint64_t n = 0; n < 90; ++n) {
    const uint64_t seed = n * kSameKernels + n % kSameKernels;
    const tandem_problem p = n < 60 ? random_problem(seed, limits) : random_merge(seed);
    INFO(repro(p, seed));
    Case c(p, seed);
    const Outputs good = perfect(c);
    CaseResult result;
    result.ok = true;
    c.judge(good, &result);
    CHECK_MESSAGE(result.ok, result.message);
    CHECK(result.worst_ratio() < kRatioLimit);
    for (const std::string& word : feature_words(p)) ++seen[word];
    // Any output that is off by a tenth of its largest element is refused.
    for (Role role : kOutputs) {
      if (role != Role::o && !is_output(p, role)) continue;
      std::vector<double> values = c.reference(role);
      const auto most = std::max_element(values.begin(), values.end(), [](double a, double b) {
        return std::fabs(a) < std::fabs(b);
      });
      if (most == values.end() || *most == 0 || is_packed(p, role)) continue;
      *most *= 1.1;
      Outputs bad = good;
      bad.tensor(role).set_dense(values);
      CaseResult judged;
      judged.ok = true;
      c.judge(bad, &judged);
      ++seen[role_name(role)];
      refused[role_name(role)] += !judged.ok;
    }
  }
  for (const char* word : {"elastic", "entmax", "softcap", "bias", "dist_bias", "alibi", "keep",
                           "sink", "dropout", "padded", "packed", "merge", "plain"})
    CHECK_MESSAGE(seen[word] > 0, word);
  // Sums of thousands of terms that cancel have bounds to match, in bf16 above all.
  for (Role role : kOutputs) {
    CHECK_MESSAGE(seen[role_name(role)] > 0, role_name(role));
    CHECK_MESSAGE(
        refused[role_name(role)] * 2 >= seen[role_name(role)],
        role_name(role) << ": " << refused[role_name(role)] << " of " << seen[role_name(role)]);
  }
}

TEST_CASE("support: problems of a group share what makes a kernel") {
  for (uint64_t group = 0; group < 40; ++group) {
    const tandem_problem first = random_problem(group * kSameKernels);
    for (uint64_t n = 1; n < kSameKernels; ++n) {
      const tandem_problem p = random_problem(group * kSameKernels + n);
      CHECK(p.direction == first.direction);
      CHECK(p.q.dtype == first.q.dtype);
      CHECK(p.head_dim == first.head_dim);
      CHECK(p.head_dim_v == first.head_dim_v);
      CHECK(p.normalizer == first.normalizer);
      CHECK(p.gradients == first.gradients);
      CHECK(p.bias.dtype == first.bias.dtype);
      CHECK(p.lengths_q == first.lengths_q);
      CHECK(p.flags % 4 / 2 == first.flags % 4 / 2);
      CHECK(p.tile_rows == first.tile_rows);
      CHECK(feature_words(p) == feature_words(first));
    }
  }
}

// What a kernel keeps from one entry to the next shows where few workgroups take many entries. The
// smallest work that a suite asks for must leave the batch.
TEST_CASE("support: random problems have batches that few workgroups share") {
  RandomLimits limits;
  limits.max_work = 200000;
  int batches = 0, windows = 0;
  for (uint64_t group = 0; group < 64; ++group) {
    const tandem_problem p = random_problem(group * kSameKernels + 1, limits);
    if (p.cores == 0 || p.batch < 6) continue;
    ++batches;
    windows += p.bias.dtype != 0 && p.keep.dtype == TANDEM_BOOL8 && p.bias_batch == 1 &&
               p.keep_batch == p.batch && p.q.dtype != TANDEM_F32 &&
               p.normalizer == TANDEM_SOFTMAX && p.splits == 0;
  }
  CHECK(batches >= 16);
  CHECK(windows >= 6);
}

TEST_CASE("support: times are plausible") {
  const auto session = Session::open("cpu");
  const tandem_problem p = make_problem(TANDEM_FORWARD, TANDEM_F32, 1, 1, 1, 64, 64, 32);
  const Plan plan(*session, p);
  Buffer in = session->buffer(64 * 32 * 4), out = session->buffer(64 * 32 * 4);
  in.fill(0);
  tandem_args args = TANDEM_ARGS_INIT;
  args.q = args.k = args.v = in.handle();
  args.o = out.handle();
  TimeOptions options;
  options.warmup_seconds = 0.01;
  options.min_sample_seconds = 0.001;
  options.max_seconds = 0.5;
  const Timing t = session->time(plan, args, options);
  CHECK(t.min_ms > 0);
  CHECK(t.min_ms <= t.median_ms);
  CHECK(t.median_ms <= t.max_ms);
  CHECK(t.reps >= 1);
}

TEST_CASE("support: what is timed in turns takes turns, and each has its own numbers") {
  const auto session = Session::open("cpu");
  std::string order;
  std::vector<std::function<void(tandem_stream)>> records;
  for (int i = 0; i < 3; ++i)
    records.push_back([&order, i](tandem_stream) {
      order += char('a' + i);
      std::this_thread::sleep_for(std::chrono::milliseconds(1 + 3 * i));
    });
  TimeOptions options;
  options.warmup_seconds = 0;
  options.min_sample_seconds = 0;  // so a sample is one execute
  options.min_reps = 2;
  options.agree = 1e9;
  // Once each, a turn of warm-up, then two rounds of two turns.
  std::vector<Timing> times = session->time_in_turns(records, options);
  REQUIRE(order.size() == 18);
  std::set<std::string> orders;
  for (size_t at = 0; at < order.size(); at += 3) {
    std::string turn = order.substr(at, 3);
    orders.insert(turn);
    std::sort(turn.begin(), turn.end());
    CHECK(turn == "abc");
  }
  CHECK(orders.size() > 1);  // none always follows the same one
  REQUIRE(times.size() == 3);
  for (int i = 0; i < 3; ++i) {
    CHECK(times[i].min_ms >= 1 + 3 * i);
    CHECK(times[i].reps == 4);
    CHECK(times[i].agreed);
  }

  // A round lasts as long as it is asked to, with as many turns as that takes.
  options.min_reps = 1;
  options.round_seconds = 0.05;  // a turn takes 12 ms at least
  const auto start = std::chrono::steady_clock::now();
  times = session->time_in_turns(records, options);
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(100));
  for (const Timing& t : times) {
    CHECK(t.reps >= 2);
    CHECK(t.reps <= 10);
  }
  options.round_seconds = 0;
  options.min_reps = 2;

  // None stops before all agree. Here the time ends it, the time of all together.
  order.clear();
  options.agree = -1;
  options.max_seconds = 0.04;
  times = session->time_in_turns(records, options);
  CHECK(order.size() % 3 == 0);
  CHECK(order.size() < 60);
  for (const Timing& t : times) CHECK(!t.agreed);
  options.max_seconds = 0;
  order.clear();
  times = session->time_in_turns(records, options);
  CHECK(order.size() == 9);
  CHECK(times[2].reps == 1);
  CHECK(session->time_in_turns({}, options).empty());
}

TEST_CASE("a file takes the place of another, in a folder of any letters") {
  namespace fs = std::filesystem;
  const std::string top =
      fs::temp_directory_path().u8string() + "/tandem_" + std::to_string(std::random_device{}());
  const std::string folder = top + "/\xc3\x9c/\xe6\x97\xa5";
  REQUIRE(make_folder(folder));
  CHECK(make_folder(folder));
  const std::string from = folder + "/part", to = folder + "/whole";
  const auto text_of = [](const std::string& name) {
    std::ifstream file(fs::u8path(name));
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  for (const char* text : {"first", "second"}) {
    std::ofstream(fs::u8path(from)) << text;
    CHECK(replace_file(from, to));
    CHECK(text_of(to) == text);
  }
  CHECK_FALSE(replace_file(from, to));
  CHECK(text_of(to) == "second");
  CHECK_FALSE(make_folder(to + "/below"));
  fs::remove_all(fs::u8path(top));
}
