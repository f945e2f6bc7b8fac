// SPDX-License-Identifier: MIT OR Apache-2.0
// block_emulator.h and grid_emulator.h.
#include <ucontext.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "grid_emulator.h"
#include "hopper_engine.h"

namespace simt {

// ---- settings -----------------------------------------------------------------------------------

void die(const char* format, ...) {
  va_list values;
  va_start(values, format);
  std::fflush(stdout);
  std::fprintf(stderr, "emulator: ");
  std::vfprintf(stderr, format, values);
  va_end(values);
  if (const Thread* t = running())
    std::fprintf(stderr, " (thread %u of block %u,%u of %s)", t->index, t->block->index().x,
                 t->block->index().y, t->block->grid().name.c_str());
  std::fprintf(stderr, "\n");
  std::abort();
}

Device& device() {
  static Device found = [] {
    Device d;
    const char* text = std::getenv("TANDEM_EMULATED");
    if (!text || !*text) return d;
    int end = 0;
    if (std::sscanf(text, "sm90x%d%n", &d.sms, &end) != 1 || d.sms < 1 ||
        (text[end] && std::sscanf(text + end, "#%u", &d.seed) != 1))
      die("TANDEM_EMULATED=%s is not like sm90x7 or sm90x7#1", text);
    d.hopper = true;
    if (d.seed) settings().order = Order::shuffled, random().seed(d.seed);
    return d;
  }();
  return found;
}

Settings& settings() {
  static Settings s;
  return s;
}

std::minstd_rand& random() {
  static std::minstd_rand r;
  return r;
}

// ---- fibers -------------------------------------------------------------------------------------

// A thread's first step is by its context, all others are by jumps, which do not ask the system for
// the signal mask: with swapcontext() that was half of the tests' time. When a thread has ended,
// another one takes its fiber.
struct Fiber {
  static constexpr size_t kStack = 256 * 1024;
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  jmp_buf at;
  bool begun = false;
};
namespace {

jmp_buf runner;  // who runs the blocks

std::vector<std::unique_ptr<Fiber>>& idle_fibers() {
  static thread_local std::vector<std::unique_ptr<Fiber>> all;
  return all;
}
// By itself, as getcontext() may return twice, for all that the compiler knows.
__attribute__((noinline)) void prepare(ucontext_t* context, char* stack, void (*start)()) {
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = Fiber::kStack;
  context->uc_link = nullptr;
  makecontext(context, start, 0);
}
Fiber* take_fiber(void (*start)()) {
  auto& idle = idle_fibers();
  if (!idle.empty()) {
    Fiber* f = idle.back().release();
    idle.pop_back();
    return f;
  }
  Fiber* f = new Fiber;
  prepare(&f->context, f->stack.get(), start);
  return f;
}

__attribute__((noinline)) void resume(Thread& t) {
  running() = &t;
  if (!_setjmp(runner)) {
    if (t.fiber->begun) _longjmp(t.fiber->at, 1);
    t.fiber->begun = true;
    setcontext(&t.fiber->context);
  }
  running() = nullptr;
}

}  // namespace

void leave() {
  if (!_setjmp(running()->fiber->at)) _longjmp(runner, 1);
}

// ---- blocks -------------------------------------------------------------------------------------

Block::Block(Grid& grid, unsigned x, unsigned y)
    : grid_(grid), index_{x, y, 0}, shared_bytes_(grid.shared_bytes), live_(grid.threads.x) {
  const size_t bytes = statics() + kStatics + 1024;
  memory_.reset(new unsigned char[bytes]);
  shared_ = memory_.get() + (1024 - reinterpret_cast<uintptr_t>(memory_.get()) % 1024) % 1024;
  statics_end_ = statics();
  // Shared memory starts as NaN, with a guard behind it.
  std::memset(shared_, 0xff, statics());
  threads_.resize(live_);
  warps_.resize((live_ + 31) / 32);
  for (unsigned n = 0; n < live_; ++n) {
    threads_[n].block = this;
    threads_[n].index = n;
    threads_[n].fiber = take_fiber(&Block::start);
  }
  for (unsigned n = 0; n < warps_.size(); ++n) warp_order_.push_back(n);
  for (unsigned n = 0; n < 32; ++n) lane_order_.push_back(n);
}

Block::~Block() {
  for (Thread& t : threads_) idle_fibers().emplace_back(t.fiber);
}

void Block::start() {
  for (;;) {
    Thread& t = *running();
    t.block->grid_.body();
    t.block->ended(t);
    leave();
  }
}

void Block::ended(Thread& t) {
  if (!t.copies.open.empty() || !t.copies.groups.empty())
    die("a thread ends with copies on their way");
  if (hopper) hopper::thread_ends(*this, t);
  t.done = true;
  --live_;
  release();
  if (cluster) cluster->release();
  if (live_ > 0) return;
  for (size_t i = 0; i < kGuard; ++i)
    if (shared_[shared_bytes_ + i] != 0xff) die("a write past the block's shared memory");
  if (hopper) hopper::block_ends(*this);
  ++settings().blocks_run;
}

bool Block::step() {
  const Order order = settings().order;
  for (auto* each : {&warp_order_, &lane_order_}) {
    if (order == Order::backward) std::sort(each->rbegin(), each->rend());
    if (order == Order::forward) std::sort(each->begin(), each->end());
    if (order == Order::shuffled) std::shuffle(each->begin(), each->end(), random());
  }
  bool any = false;
  for (unsigned warp : warp_order_) {
    // A warp goes on by itself for a while: most of its waits are for its own lanes.
    const int most = order == Order::shuffled ? 1 + int(random()() / 16 % 16) : 64;
    for (int n = 0; n < most && step_warp(warp); ++n) any = true;
  }
  return any;
}

bool Block::step_warp(unsigned warp) {
  bool any = false;
  for (unsigned lane : lane_order_) {
    const unsigned index = warp * 32 + lane;
    if (index >= threads_.size()) continue;
    Thread& t = threads_[index];
    if (t.done) continue;
    if (t.ready) {
      if (!t.ready(t.what)) continue;
      t.ready = nullptr;
    }
    const bool in_warp = t.in_warp, looked = t.looks;
    t.in_warp = t.looks = false;
    resume(t);
    any |= !t.looks;
    if (!in_warp && !looked) ++progress();
  }
  return any;
}

void Block::release() {
  if (arrived_ == 0 || arrived_ != live_) return;
  arrived_ = 0;
  ++generation_;
  any_[generation_ % 2] = 0;
}

void Block::barrier() {
  const unsigned long long mine = generation_;
  ++arrived_;
  release();
  wait_until([&] { return generation_ != mine; }, "__syncthreads()");
}

// The others have read what the barrier before the last one left when its flag is used again.
int Block::barrier_or(int x) {
  const unsigned long long mine = generation_;
  if (x) any_[mine % 2] = 1;
  barrier();
  return any_[mine % 2];
}

const void* Block::exchange(const void* mine, size_t bytes, const char* what) {
  const unsigned thread = running()->index;
  Warp& w = warps_[thread / 32];
  const unsigned now = w.generation;
  if (w.arrived == 0) w.what = what, w.size = bytes;
  if (w.what != what && (std::strcmp(w.what, what) != 0 || w.size != bytes))
    die("lanes of a warp have gone different ways: %s here, %s there", what, w.what);
  unsigned char* all = w.value[now % 2];
  std::memcpy(all + thread % 32 * bytes, mine, bytes);
  if (++w.arrived == std::min(32u, threads() - thread / 32 * 32)) {
    w.arrived = 0;
    ++w.generation;
  }
  if (w.generation == now) {
    running()->in_warp = true;
    wait_until([&] { return w.generation != now; }, what);
  }
  return all;
}

bool Block::named(unsigned id, unsigned count, bool x, bool waits) {
  if (id >= kNamed) die("named barrier %u: there are %d", id, kNamed);
  if (count == 0 || count % 32 != 0 || count > threads())
    die("named barrier %u for %u threads: not whole warps of this block", id, count);
  Named& b = named_[id];
  if (b.arrived > 0 && b.threads != count)
    die("named barrier %u for %u threads, while others have come to it for %u", id, count,
        b.threads);
  const unsigned now = b.generation;
  if (b.arrived == 0) b.any[now % 2] = false;
  b.threads = count;
  b.any[now % 2] |= x;
  if (++b.arrived == count) {
    b.arrived = 0;
    ++b.generation;
  }
  if (waits)
    wait_until([&] { return b.generation != now; }, "named barrier %u for %u threads", id, count);
  return b.any[now % 2];
}

void* Block::array(size_t bytes, const void* key) {
  for (const auto& a : arrays_)
    if (a.first == key) return shared_ + a.second;
  const size_t begin = statics_end_;
  statics_end_ = (begin + bytes + 15) / 16 * 16;
  if (statics_end_ > statics() + kStatics) die("too many arrays in shared memory");
  std::memset(shared_ + begin, 0xff, statics_end_ - begin);
  arrays_.emplace_back(key, unsigned(begin));
  return shared_ + begin;
}

std::string Block::report() const {
  std::string text;
  const auto wait_of = [](const Thread& t) {
    char line[160] = "a word of global memory to change";
    if (t.ready) std::snprintf(line, sizeof line, t.waiting.what, t.waiting.a, t.waiting.b);
    return t.done ? std::string() : std::string(line);
  };
  for (size_t n = 0; n < threads_.size();) {
    const std::string wait = wait_of(threads_[n]);
    size_t end = n + 1;
    while (end < threads_.size() && wait_of(threads_[end]) == wait) ++end;
    if (!wait.empty())
      text += "  block " + std::to_string(index_.x) + "," + std::to_string(index_.y) + " of " +
              grid_.name + ": threads " + std::to_string(n) + " to " + std::to_string(end - 1) +
              " wait for " + wait + "\n";
    n = end;
  }
  for (int id = 0; id < kNamed; ++id)
    if (named_[id].arrived > 0)
      text += "    named barrier " + std::to_string(id) + ": " +
              std::to_string(named_[id].arrived) + " of " + std::to_string(named_[id].threads) +
              " threads have come\n";
  if (hopper) text += hopper::report(*this);
  return text;
}

// ---- grids --------------------------------------------------------------------------------------

Machine& machine() {
  static Machine m;
  return m;
}

void Machine::launch(std::unique_ptr<Grid> grid) {
  if (grid->threads.x == 0 || grid->threads.x > 1024 || grid->blocks() == 0)
    die("a launch of %u blocks of %u threads", grid->blocks(), grid->threads.x);
  if (grid->size.x % grid->cluster != 0)
    die("%u blocks are no whole clusters of %u", grid->size.x, grid->cluster);
  if (!grid->early) finish();
  // A grid that may begin early need not.
  grid->early = grid->early && !lot(4);
  grids_.push_back(std::move(grid));
  if (!device().hopper) finish();
}

void Machine::finish() {
  // Rounds in which nothing happens: so many that who waits for a time has waited for it.
  constexpr int kIdle = 20000;
  int idle = 0;
  while (!grids_.empty()) {
    begin_blocks();
    const unsigned long long before = progress();
    round();
    if (progress() != before || hopper::arrive(true)) {
      idle = 0;
      clock_ += rate_;
    } else {
      if (++idle > kIdle) stuck("no thread can go on");
      clock_ += 1000;
    }
    end_blocks();
  }
}

void Machine::begin_blocks() {
  if (blocks_.empty()) rate_ = lot(2) ? 1 : lot(2) ? 50 : 2000;
  for (size_t n = 0; n < grids_.size(); ++n) {
    Grid& g = *grids_[n];
    if (n > 0 && (!g.early || grids_[n - 1]->telling < grids_[n - 1]->blocks())) return;
    const auto fits = [&] {  // a cluster of more blocks than there are SMs, by itself
      return busy_ == 0 || busy_ + g.cluster <= unsigned(device().sms);
    };
    while (g.begun < g.blocks() && fits()) {
      Cluster* cluster = nullptr;
      if (device().hopper) {
        clusters_.emplace_back(new Cluster);
        cluster = clusters_.back().get();
      }
      for (unsigned rank = 0; rank < g.cluster; ++rank, ++g.begun, ++busy_) {
        blocks_.emplace_back(new Block(g, g.begun % g.size.x, g.begun / g.size.x));
        Block& b = *blocks_.back();
        b.cluster = cluster, b.rank = rank;
        if (cluster) cluster->blocks.push_back(&b);
      }
    }
    if (g.begun < g.blocks()) return;  // later ones come behind it
  }
}

void Machine::round() {
  hopper::arrive(false);
  if (settings().order == Order::shuffled) std::shuffle(blocks_.begin(), blocks_.end(), random());
  for (const auto& block : blocks_) {
    if (block->done()) continue;
    const int most = settings().order == Order::shuffled ? 1 + int(random()() / 16 % 4) : 4;
    for (int n = 0; n < most && !block->done() && block->step();) ++n;
    if (block->done()) {
      --busy_;
      ++block->grid().ended;
      if (!block->tells) ++block->grid().telling;
      ++progress();
    }
  }
}

void Machine::end_blocks() {
  // Blocks of a cluster stay until all are done, so that an access to the memory of one that has
  // left is reported.
  const auto over = [](const Block& b) { return b.cluster ? b.cluster->live() == 0 : b.done(); };
  std::vector<Block*> gone;
  for (const auto& b : blocks_)
    if (over(*b)) gone.push_back(b.get());
  if (gone.empty()) return;
  const auto is_gone = [&](const Block* b) {
    return std::find(gone.begin(), gone.end(), b) != gone.end();
  };
  clusters_.erase(std::remove_if(clusters_.begin(), clusters_.end(),
                                 [&](const auto& c) { return is_gone(c->blocks[0]); }),
                  clusters_.end());
  blocks_.erase(std::remove_if(blocks_.begin(), blocks_.end(),
                               [&](const auto& b) { return is_gone(b.get()); }),
                blocks_.end());
  while (!grids_.empty() && grids_.front()->ended == grids_.front()->blocks()) {
    for (const auto& write : grids_.front()->at_end) write();
    grids_.pop_front();
  }
}

void Machine::stuck(const char* why) const {
  std::string text;
  for (const auto& b : blocks_) text += b->report();
  die("%s:\n%s", why, text.c_str());
}

}  // namespace simt
