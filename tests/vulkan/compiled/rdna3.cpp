// SPDX-License-Identifier: MIT OR Apache-2.0
// What AMD's compiler makes of the Vulkan kernels, on a machine without an AMD GPU: every kernel of
// the scalar and coopmat paths, every row of the tiles for RDNA3, with and without optional inputs,
// through RADV for NAVI31.
//
//   tandem_rdna3 TABLE           compile all, hold them to the rules below, compare with TABLE
//   tandem_rdna3 --write TABLE   the same, and write TABLE
//   tandem_rdna3 --try LINE STEM:SUBGROUPS,ROW_BLOCKS,COLS,LEFT,REGISTER_PREFETCH,SIZE...
//                                the figures of rows that src/plan/coopmat/tiles.inc has not (yet)
//
// Rules: no VGPR spilled (SGPRs are, to lanes of VGPRs, where a kernel has many inputs), no memory
// of an invocation's own (an array that the compiler could not keep in registers); on the matrix
// path every product is a v_wmma, and a SIMD of NAVI31 holds as many subgroups as the row of the
// tile promises.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "compiler.h"
#include "kernels/params.h"
#include "kernels/registry.h"
#include "plan/coopmat/tiles.h"
#include "plan/quirks.h"
#include "plan/tile.h"
#include "problem/problem.h"

namespace {

using namespace tandem;
using compiled::Compiled;
using compiled::Compiler;
using compiled::Figures;

struct Case {
  String line;
  Plan plan;
  const MatrixTile* tile = nullptr;  // of the only launch; nullptr: a whole plan
  bool narrow = true;                // also the pipelines for tensors that are not wide
  std::vector<String> rows;          // of the table
  std::vector<String> faults;
};

Plan plan_of(const String& line, const Caps& caps) {
  tandem_problem given;
  Status status = parse_problem(line.c_str(), &given);
  Problem problem;
  if (status.ok()) status = make_problem(&given, &problem);
  Plan plan;
  if (status.ok()) status = make_plan(problem, caps, &plan);
  if (!status.ok()) throw std::runtime_error((line + ": " + status.message()).c_str());
  return plan;
}

// Of a backward plan the launch of this tile's kernel alone, with the tile.
Case tile_case(const MatrixTile& tile, const String& rest, bool narrow, Caps caps) {
  for (const MatrixTile& other : kMatrixTiles)
    if (other.stem == tile.stem && &other != &tile) caps.disabled.push_back(other.name);
  Case c;
  c.line = (tile.stem == Stem::fwd ? "fwd" : "bwd") + String(" f16 hq2 sq1000 ") + rest;
  c.plan = plan_of(c.line, caps);
  c.tile = &tile;
  c.narrow = narrow;
  const Launch* launch = c.plan.find(tile.stem);
  if (!launch || String(launch->tile.name) != tile.name)
    throw std::runtime_error(
        (c.line + " does not take " + tile.name + ":\n" + explain(c.plan.problem, caps)).c_str());
  c.plan.launches = {Launch(*launch)};
  return c;
}

const char* const kAll =
    " causal_top_left left=100 softcap=5 alibi keep:1x1x1000 kv_padded q_padded dropout=0.1";

const char* const kMost =  // of heads over 256
    " causal_top_left left=100 softcap=5 keep:1x1x1000 kv_padded q_padded dropout=0.1";

// Not every pair of optional inputs, for time's sake: each alone, and all at once, with each
// normalizer. Of bwd_row_sums, which is bwd_dq's loop without the last product, keep and dropout
// alone, and all at once.
void add_tile_cases(const MatrixTile& tile, const Caps& caps, std::vector<Case>* cases) {
  if (tile.splits_d()) {
    const String bias = " bias:f16:1x2x1000";
    cases->push_back(tile_case(tile, "d512", true, caps));
    for (const String& rest : {String("d576"), "d512" + bias + kMost, String("d320 dv512")})
      cases->push_back(tile_case(tile, rest, false, caps));
    if (tile.stem == Stem::fwd) cases->push_back(tile_case(tile, "d512 splits=3", false, caps));
    return;
  }
  const bool row = tile.stem == Stem::bwd_row_sums, sums = tile.stem == Stem::bwd_dbias;
  const String d = text("d%d", std::min(tile.max_d, int(kWholeFeatures)));
  // What the kernel is there for, and the bias of the problems that have one.
  const String bias = sums ? " bias:f16:1x1x1000 grads=qkvb d_bias:f32" : " bias:f16:1x2x1000";
  const String base = row ? " elastic" : sums ? bias : "", all = (row ? base : "") + bias + kAll;
  const auto add = [&](const String& rest, bool narrow = false) {
    cases->push_back(tile_case(tile, rest, narrow, caps));
  };
  add(d + base, true);
  add(d + all, true);
  if (!sums) add(d + (row ? base : "") + bias);
  // Rows with fewer subgroups than one before them are the same kernel with more registers to
  // spare.
  if (tile.name[std::strlen(tile.name) - 1] == 'n') return;
  for (const char* one : {" causal_top_left", " softcap=5", " dist=64", " keep:1x1x1000",
                          " dropout=0.1", " kv_padded q_padded"})
    if (!row || std::strstr(one, "keep") || std::strstr(one, "drop")) add(d + base + one);
  if (row) {
    add(d + base + " grads=qkvt");
    add(d + " entmax=1.5");
    add(d + " entmax=1.7" + bias + kAll + " grads=qkva");
    add(d + all + " grads=qkvat");
  } else {
    add(d + base + " elastic");
    add(d + base + " entmax=1.5");
    add(d + all + " elastic");
    add(d + all + " entmax=1.7");
  }
  if (tile.stem == Stem::fwd)
    for (const char* one : {" sink", " splits=3"}) add(d + one);
  if (tile.stem == Stem::bwd_dkv)
    for (const char* one : {" grads=k", " grads=v"}) add(d + one);
  if (tile.stem == Stem::bwd_dq) {
    add(d + bias + " grads=qkvb d_bias:f32");
    add(d + all + " elastic grads=qkvb d_bias:f16");
  }
  if (sums) add(d + " bias:f16:1x1x1 grads=qkvb d_bias:f32");
  if (sums) add(d + " bias:f32:1x1x1000 grads=qkvb d_bias:f32");
  add(d + " sk1001" + all);  // rows of bias and d_bias that no 16 bytes begin
  const String uneven =
      text("d%d dv%d", std::min(tile.max_d, 256) - 24, std::min(tile.max_d, 256) / 2 + 16);
  add(uneven + base);
  add(uneven + all);
}

std::vector<Case> all_cases(const Caps& caps) {
  std::vector<Case> cases;
  for (const MatrixTile& tile : kMatrixTiles)
    if (tile.doubled) add_tile_cases(tile, caps, &cases);
  const auto add = [&](const String& line) {
    Case c;
    c.line = line;
    c.plan = plan_of(line, caps);
    cases.push_back(c);
  };
  add("bwd f16 hq2 sq1000 d64");  // on the matrix path, with all its kernels
  for (const char* size : {"d64", "d128", "d256"}) {
    add(String("fwd f32 hq2 sq1000 ") + size);
    add(String("bwd f32 hq2 sq1000 ") + size);
  }
  add("fwd bf16 hq2 sq1000 d128");
  add("bwd bf16 hq2 sq1000 d128");
  add("fwd f32 hq2 sq1000 d64 splits=3");
  add("bwd f32 hq2 sq1000 d64 spans=2:1x1");
  add("merge f32 hq2 sq1000 dv128 parts=4 part_o:bf16 into");
  add("bwd_merge bf16 hq2 sq1000 dv128 parts=4 d_lse");
  add("fwd f32 hq2 sq1000 d64 blocks=64x64:4+2:1x1");
  add("fwd f16 hq2 sq1000 d64 blocks=64x64:4+2:1x1");
  add("bwd f32 b2 hq2 sq1000 d64 q_gapped=1500 kv_gapped=1500");
  add("fwd f16 b2 hq2 sq1000 d64 q_gapped=1500 kv_gapped=1500");
  add("bwd f32 hq2 sq1000 d64 table=169:u8:1 grads=qkvi");
  add("bwd f16 hq2 sq1000 d64 table=32:i32:1 grads=qkvi");
  add("bwd f16 hq2 sq1000 d64 spans=1:1x1 causal_top_left");
  for (const char* dtype : {"f32", "f16"})
    for (const char* rest :
         {"elastic grads=qkvt", "entmax=1.5", "entmax=1.7 keep:1x1x1000",
          "causal_top_left softcap=5 bias:f32:1x1x1000 alibi dist=64 sink dropout=0.1 "
          "grads=qkvbdas d_bias:f32"}) {
      const String r = rest;
      add(String("bwd ") + dtype + " hq2 sq1000 d128 " + r);
      add(String("fwd ") + dtype + " hq2 sq1000 d128 " + r.substr(0, r.find(" grads")));
    }
  return cases;
}

// Subgroups that have a slice of the features of the same rows.
int owners_of(const Launch& l) {
  for (const MatrixTile& t : kMatrixTiles)
    if (String(t.name) == l.tile.name) return t.owners;
  return 1;
}

// How many products of matrices stand in the text of a kernel; loops over columns are rolled in the
// backward.
int products_of(const Plan& plan, const Launch& l) {
  const MatrixLaunch* own = l.as<MatrixLaunch>();
  if (!own) return 0;
  const int d = l.d_blocks / owners_of(l), dv = l.dv_blocks / owners_of(l);
  const bool k = plan.problem.wants(TANDEM_GRAD_K), v = plan.problem.wants(TANDEM_GRAD_V);
  switch (l.stem) {
    case Stem::fwd:
      return own->row_blocks * (l.tile.bc / own->matrix.n) * (d + dv);
    case Stem::bwd_dq:
      return own->row_blocks * (2 * d + dv);
    case Stem::bwd_dkv:
      return own->row_blocks * (d + (v ? dv : 0) + (k ? d + dv : 0));
    case Stem::bwd_row_sums:
      return own->row_blocks * (d + dv);
    case Stem::bwd_dbias:  // by steps
      return own->row_blocks * (l.tile.bc / own->matrix.n) * 2 * kMatrixStep;
    default:
      return 1;
  }
}

void judge(const Compiled& one, bool promised, Case* c) {
  const Figures& f = one.figures;
  const Launch& l = *one.launch;
  const MatrixLaunch* own = l.as<MatrixLaunch>();
  const bool matrices = own && !l.has(trait::redo);
  c->rows.push_back(text("%-15s %-9s %3d %-4s %5d %5d %5d %7d %6d %5d %6d %7d  %s",
                         stem_name(l.stem), l.tile_word() && *l.tile_word() ? l.tile_word() : "-",
                         f.subgroup, one.wide ? "wide" : "any", f.vgprs, f.spilled_vgprs,
                         f.spilled_sgprs, f.scratch_bytes, f.shared_bytes, f.waves, f.products,
                         f.code_bytes, c->line.c_str()));
  const auto fault = [&](bool is, const String& what) {
    if (is) c->faults.push_back(what + "\n    " + c->rows.back());
  };
  fault(f.vgprs <= 0 || f.waves <= 0, "the driver told no figures");
  fault(f.spilled_vgprs != 0, "registers are spilled");
  fault(f.scratch_bytes != 0, "an invocation has memory of its own");
  // In steps of 512 or 1024 bytes.
  fault(matrices &&
            (f.shared_bytes < int(l.shared_bytes) || f.shared_bytes >= int(l.shared_bytes) + 1024),
        text("the plan says %u bytes of shared memory", l.shared_bytes));
  fault(matrices && f.products < products_of(c->plan, l),
        text("there should be %d matrix instructions", products_of(c->plan, l)));
  fault(own && f.subgroup != int(own->subgroup),
        text("the plan asks for subgroups of %u", own ? own->subgroup : 0));
  fault(promised && c->tile && !l.has(trait::redo) && f.waves < c->tile->waves,
        text("%s promises %d subgroups of a SIMD", c->tile ? c->tile->name : "",
             c->tile ? c->tile->waves : 0));
}

void compile_all(const Compiler& compiler, std::vector<Case>* cases) {
  std::atomic<size_t> next{0};
  // Others of the family have fewer registers.
  const bool promised = compiler.caps().name.find("NAVI31") != String::npos;
  const auto work = [&] {
    for (size_t i; (i = next++) < cases->size();) {
      Case& c = (*cases)[i];
      try {
        for (const Compiled& one : compiler.compile(c.plan, c.narrow)) judge(one, promised, &c);
      } catch (const std::exception& e) {
        c.faults.push_back(c.line + ": " + e.what());
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned n = 1; n < std::max(1u, std::thread::hardware_concurrency()); ++n)
    threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
}

// What no case has reached: a kernel of these paths, a row of the tiles.
std::vector<String> missing(const std::vector<Case>& cases) {
  std::map<String, bool> seen;
  for (const KernelRow& row : kKernels)
    if (row.backend == Backend::vulkan && std::strcmp(row.path, "coopmat2") != 0)
      seen[String(row.path) + "." + stem_name(row.stem)] = false;
  for (const MatrixTile& t : kMatrixTiles)
    if (t.doubled) seen[t.name] = false;
  for (const Case& c : cases)
    for (const Launch& l : c.plan.launches) {
      seen[String(c.plan.path) + "." + stem_name(l.stem)] = true;
      if (l.as<MatrixLaunch>()) seen[l.tile.name] = true;
    }
  std::vector<String> names;
  for (const auto& [name, reached] : seen)
    if (!reached) names.push_back(name + " was not compiled");
  return names;
}

std::vector<String> table_of(const Compiler& compiler, const std::vector<Case>& cases) {
  std::vector<String> lines = {
      "# Written by tests/vulkan/compiled (tandem_rdna3 --write); do not edit. What RADV's "
      "compiler says "
      "of the Vulkan kernels.",
      "# driver: " + compiler.driver() + ", " + compiler.caps().name,
      text("# %-13s %-9s %3s %-4s %5s %5s %5s %7s %6s %5s %6s %7s  %s", "kernel", "tile", "sub",
           "for", "VGPRs", "spill", "sgprs", "scratch", "LDS", "waves", "v_wmma", "code",
           "problem")};
  for (const Case& c : cases) lines.insert(lines.end(), c.rows.begin(), c.rows.end());
  return lines;
}

// A row without its column of bytes of code: that changes with every word of a shader.
String without_code(const String& row) {
  constexpr size_t at =
      9 + 1 + 9 + 1 + 3 + 1 + 4 + 1 + 5 + 1 + 5 + 1 + 5 + 1 + 7 + 1 + 6 + 1 + 5 + 1 + 6;
  return row.size() < at + 8 || row[0] == '#' ? row : row.substr(0, at) + row.substr(at + 8);
}

int compare(const std::vector<String>& now, const String& file) {
  std::vector<String> before;
  std::ifstream in(file.c_str());
  for (String line; std::getline(in, line);) before.push_back(line);
  if (before.size() < 3) return std::printf("FAILED: %s is no table\n", file.c_str()), 1;
  if (before[1] != now[1]) {
    std::printf("%s is of another driver, and was not compared:\n  %s\n  %s\n", file.c_str(),
                before[1].c_str(), now[1].c_str());
    return 0;
  }
  int differences = 0;
  for (size_t i = 0; i < std::max(now.size(), before.size()); ++i) {
    const String a = i < before.size() ? before[i] : "", b = i < now.size() ? now[i] : "";
    if (without_code(a) == without_code(b)) continue;
    if (++differences <= 10) std::printf("  was  %s\n  is   %s\n", a.c_str(), b.c_str());
  }
  if (differences == 0) return 0;
  std::printf(
      "FAILED: %d lines of %s have changed. If that is meant, write it anew:\n"
      "  scripts/with-driver radv25-navi31 build/release/bin/tandem_rdna3 --write %s\n",
      differences, file.c_str(), file.c_str());
  return 1;
}

int try_tiles(const Compiler& compiler, int count, char** words) {
  const Plan plan = plan_of(words[0], compiler.caps());
  for (int i = 1; i < count; ++i) {
    const String word = words[i];
    const size_t colon = word.find(':');
    MatrixTile t{};
    if (colon == String::npos ||
        std::sscanf(word.c_str() + colon + 1, "%d,%d,%d,%d,%d,%d", &t.subgroups, &t.row_blocks,
                    &t.cols, &t.left, &t.register_prefetch, &t.size) != 6)
      return std::printf("%s is no STEM:SUBGROUPS,ROW_BLOCKS,COLS,LEFT,REGISTER_PREFETCH,SIZE\n",
                         words[i]),
             2;
    Case c;
    c.line = words[0];
    c.plan = plan;
    c.plan.launches.clear();
    for (Launch l : plan.launches) {
      MatrixLaunch* own = l.as<MatrixLaunch>();
      if (word.substr(0, colon) != stem_name(l.stem) || !own) continue;
      t.stem = l.stem;
      const bool keys = l.stem == Stem::bwd_dkv;
      const int rows = t.rows(own->matrix), cols = t.step(own->matrix);
      l.tile = Tile{words[i], keys ? cols : rows, keys ? rows : cols, t.subgroups, t.size, 0, 0,
                    256,      TileOn::vulkan};
      own->subgroup = uint32_t(t.size);
      own->row_blocks = t.row_blocks;
      own->left_shared = t.left;
      own->register_prefetch = t.register_prefetch != 0;
      l.shared_bytes = uint32_t(
          matrix_shared_bytes(t, plan.problem.head_dim, plan.problem.head_dim_v, own->matrix));
      c.plan.launches.push_back(l);
    }
    if (c.plan.launches.empty()) {
      std::printf("%s: no matrix kernel in\n%s", words[i],
                  explain(plan.problem, compiler.caps()).c_str());
      return 2;
    }
    for (const Compiled& one : compiler.compile(c.plan, false)) judge(one, false, &c);
    for (const String& row : c.rows) std::printf("%s\n", row.c_str());
  }
  return 0;
}

int run(int argc, char** argv) {
  const bool write = argc == 3 && std::strcmp(argv[1], "--write") == 0;
  const bool tries = argc > 3 && std::strcmp(argv[1], "--try") == 0;
  if (argc != 2 && !write && !tries)
    return std::puts("usage: tandem_rdna3 [--write] TABLE | --try LINE STEM:ROW..."), 2;
  const Compiler compiler;
  if (tries) return try_tiles(compiler, argc - 2, argv + 2);
  if (!find_quirk(compiler.caps(), QuirkAction::doubled))
    return std::printf("%s is no RDNA3\n", compiler.caps().name.c_str()), 2;

  std::vector<Case> cases = all_cases(compiler.caps());
  compile_all(compiler, &cases);
  int faults = 0;
  size_t rows = 0;
  const auto say = [&](const String& fault) {
    ++faults;
    std::printf("  %s\n", fault.c_str());
  };
  for (const Case& c : cases) {
    rows += c.rows.size();
    for (const String& fault : c.faults) say(fault);
  }
  for (const String& fault : missing(cases)) say(fault);
  std::printf("%zu pipelines for %s, %s: %d faults\n", rows, compiler.caps().name.c_str(),
              compiler.driver().c_str(), faults);
  const std::vector<String> table = table_of(compiler, cases);
  if (write) {
    std::ofstream out(argv[2]);
    for (const String& line : table) out << line << "\n";
    if (!out.good()) return std::printf("cannot write %s\n", argv[2]), 1;
    return faults != 0;
  }
  const int stale = compare(table, argv[1]);
  return faults != 0 || stale != 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::printf("FAILED: %s\n", e.what());
    return 1;
  }
}
