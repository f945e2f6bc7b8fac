# SPDX-License-Identifier: MIT OR Apache-2.0
"""What scripts/pages and scripts/report know of bench/results: which file belongs to which section, and the rows of their tables."""
import fnmatch
import glob
import json
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "bench", "results")
NAMES = {"fa2": "FlashAttention-2", "cudnn": "cuDNN", "flex": "FlexAttention", "efficient": "PyTorch memory-efficient", "torch": "PyTorch",
         "cuequivariance": "cuEquivariance", "fa3": "FlashAttention-3", "fa4": "FlashAttention-4"}

BENCH = "tandem bench --preset lengths --warmup 0.25 --reps 5 --max-seconds 0.8"
FLOORS = "scripts/bench_floors.py --tandem build/release/bin/tandem --out DIR --max-seconds 1 "

# id: what scripts/report calls a section. kind: grid (rows by D, S and mask; TFLOP/s), cases (rows by problem line; ms), models
# (rows by name; ms), host (us), bytes (workspace by problem line). files: patterns of names, so a file of another device joins its
# section. A section without files is left out.
SECTIONS = [
    dict(id="lengths", title="cuda.sm90 beside cuDNN and FlashAttention-2", kind="grid", files=["*_sm90_lengths"],
         command=BENCH + " --device cuda:0; scripts/bench_peers.py --peers cudnn,fa2",
         text="Short samples: the GPU runs at 1,965 to 1,980 MHz. All rows are of one run."),
    dict(id="fa3", title="cuda.sm90 beside FlashAttention-3", kind="grid", files=["*_sm90_fa3"],
         command="scripts/bench_fa3_jax.py --library libdew_flash_attn3.so --cases CASES --tandem build/release/bin/tandem --rounds 1",
         text="FlashAttention-3's own kernels, out of the wheel dew-flash-attn-cu13 0.3.6, by JAX. Its times are wall clock of many "
              "calls, so small forwards show the host's time. Each case ran on cuda.sm90 and then on FlashAttention-3, all in one call."),
    dict(id="bias", title="cuda.sm90 with a dense bias, beside FlexAttention", kind="cases",
         files=["*_sm90_bias_flex"],
         command="scripts/bench_peers.py --cases CASES --peers flex --tandem build/release/bin/tandem --tandem-device cuda:0/sm90 "
                 "--rounds 2 --warmup 0.4 --reps 5 --round-seconds 0.2 --max-seconds 0.8",
         text="The batch shares the bias unless the bias's first number is above 1. The backward has all gradients, d_bias included."),
    dict(id="bias_own", title="cuda.sm90 with and without a dense bias", kind="cases", files=["*_sm90_bias"],
         command="tandem bench --problem LINE... --device cuda:0 --warmup 0.3 --reps 5 --round-seconds 0.1 --max-seconds 0.5",
         text="The cases ran one after the other, in short samples."),
    dict(id="elastic", title="cuda.sm90: elastic softmax with a distance bias", kind="cases", files=["*_sm90_elastic"],
         command="tandem bench --problem LINE... --device cuda:0/sm90 --warmup 0.3 --reps 5 --max-seconds 0.5",
         text="The authors' Triton kernel took 2.58, 3.64 and 13.3 ms forward and 30.2, 43.9 and 176.7 ms backward on these three "
              "problems, on an H100 on 2026-11-21."),
    dict(id="entmax", title="cuda.sm90: alpha-entmax", kind="cases", files=["*_sm90_entmax"],
         command="tandem bench --problem LINE... --device cuda:0/sm90 --warmup 0.3 --reps 5 --max-seconds 0.5",
         text="AdaSplash-2's Triton kernel took 1.58 and 5.89 ms forward and 1.24 and 4.46 ms backward on these two problems, on an "
              "H100 on 2026-11-21."),
    dict(id="masks", title="cuda.sm90: masks of trees, documents and blocks", kind="cases", files=["*_sm90_masks", "*_sm90_masks_*"],
         command="tandem bench --preset masks --device cuda:0 --warmup 0.4 --reps 5 --round-seconds 0.1 --max-seconds 0.7",
         text="TFLOP/s count hidden pairs, too. The tree of 12,288 rows shows 44.0 M of its 151 M pairs, that of 9,216 rows 13.1 M of "
              "84.9 M, and the lists show a quarter of their blocks. FlexAttention ran in another call, as trees and blocks of its "
              "own making with as many pairs."),
    dict(id="tables", title="A bias by a table, beside it dense", kind="cases", files=["*_sm90_tables"],
         command="tandem bench --preset tables --device cuda:0 --warmup 0.4 --reps 5 --round-seconds 0.1 --max-seconds 0.7",
         text="Windows of Swin-T and of SwinV2, buckets of T5-large, distances of Graphormer. The backward has all gradients."),
    dict(id="fixed", title="cuda.sm90: d_q in a fixed order", kind="cases", files=["*_sm90_deterministic"], command=FLOORS + "fixed",
         text="TANDEM_FLAG_DETERMINISTIC beside the default."),
    dict(id="whole_heads", title="cuda.sm80: whole heads", kind="cases", files=["*_sm80_whole_heads"],
         command="tandem bench --device cuda:0 --problem LINE...",
         text="Swin's windows, without and with the mask of shifted windows, its third stage, Swin-B at 384, and padded triangles. "
              "cuda.sm90 computes the backward of 144 x 144."),
    dict(id="f32", title="cuda.sm80: f32 beside PyTorch", kind="cases", files=["*_sm80_f32"], command=FLOORS + "f32",
         text="Both have the accuracy of f32. cuda.sm80 forms each product from three TF32 products."),
    dict(id="wide", title="Heads of more than 256 features", kind="cases", files=["*_wide_heads", "*_sm90_wide"],
         command="tandem bench --preset wide_heads --device cuda:0 --warmup 0.4 --reps 5 --round-seconds 0.1 --max-seconds 0.7", text=""),
    dict(id="decode", title="Decoding: one query, grouped heads", kind="cases", files=["*_sm80_sm90_decode"],
         command="tandem bench --preset decode --op fwd --device cuda:0 --warmup 0.25 --reps 5 --max-seconds 0.5; "
                 "scripts/bench_peers.py --peers fa2,cudnn",
         text="FlashAttention-2 and cuDNN ran the last four problems in another call."),
    dict(id="models", title="Attention of real models", kind="models", files=["*_models", "*_models_vulkan"],
         command="tandem bench --preset models --device cuda:0 --warmup 0.3 --reps 5 --round-seconds 0.08; "
                 "scripts/bench_models.py --peers fa2,cudnn,efficient --warmup 0.3 --reps 5",
         text="The problem lines, and where they come from, are in [models.inc](../harness/models.inc). The peer is the fastest "
              "implementation that runs the case, its kernels captured into CUDA graphs; x is its time over that of the CUDA device. "
              "All models ran on Tandem and then on the peers, in one call. Vulkan's rows (--device vulkan:0) are of other calls."),
    dict(id="triangle", title="Triangle attention beside cuEquivariance", kind="models", files=["*_triangle"],
         command="tandem bench --device cuda:0 --problem LINE --warmup 0.3 --reps 5 --round-seconds 0.1; "
                 "scripts/bench_models.py --peers cuequivariance,efficient --warmup 0.3 --reps 5",
         text="N rows of N tokens, H heads of D features, bf16. All rows share the bias of f32 or bf16, whose gradient is wanted. In "
              "masked problems each row hides keys of its own. cuEquivariance is version 0.13. Its bias is f32, so its times include "
              "the conversion of a bias of bf16."),
    dict(id="coopmat2", title="vulkan.coopmat2", kind="grid", files=["*_coopmat2"],
         command="tandem bench --preset half --device vulkan:0 --warmup 0.3 --reps 5 --round-seconds 0.2 --max-seconds 0.6",
         text="All rows are of one run."),
    dict(id="coopmat2_bias", title="vulkan.coopmat2 with a dense bias", kind="cases", files=["*_coopmat2_bias"],
         command="tandem bench --problem LINE... --device vulkan:0/coopmat2 --warmup 0.3 --reps 5 --round-seconds 0.1", text=""),
    dict(id="scalar", title="cuda.simt and vulkan.scalar", kind="grid", files=["*_simt_scalar"],
         command="tandem bench --problem LINE... --device cuda:0/simt --device vulkan:0/scalar --warmup 0.3 --round-seconds 0.1",
         text="These paths use no tensor cores."),
    dict(id="elastic_others", title="cuda.simt and vulkan.coopmat2: elastic softmax", kind="cases", files=["*_simt_coopmat2_elastic"],
         command="tandem bench --problem LINE... --device cuda:0/simt --device vulkan:0/coopmat2 --warmup 0.3 --reps 5 --max-seconds 0.5",
         text=""),
    dict(id="entmax_others", title="cuda.simt and Vulkan: alpha-entmax", kind="cases", files=["*_simt_vulkan_entmax"],
         command="tandem bench --preset entmax --max-seconds 1", text=""),
    dict(id="coopmat2_decode", title="vulkan.coopmat2: decoding", kind="cases", files=["*_coopmat2_decode"],
         command="tandem bench --problem LINE... --op fwd --device vulkan:0/coopmat2 --warmup 0.3 --reps 5 --round-seconds 0.1", text=""),
    dict(id="long", title="131,072 tokens", kind="cases", files=["*_s131072"], command="tandem bench --problem",
         text="The workspace is 4 Hq S bytes."),
    dict(id="growth", title="From 1,024 to 131,072 tokens", kind="cases", files=["*_growth"], command="tandem bench --problem", text=""),
    dict(id="bytes", title="Workspace", kind="bytes", files=["*_workspace"], command="scripts/workspaces build/release/bin/tandem_cost_terms",
         text="What a plan asks for, beside the tensors that the caller has anyway: 16 heads of 128, bf16. The plans are for recorded "
              "devices (tests/plan/profiles.inc), so they need no GPU. The scores of all pairs in 16 bits would take 2 Hq S S bytes."),
    dict(id="cpu", title="The CPU device beside PyTorch", kind="cases", files=["cpu_simd", "*_cpu_simd"],
         command="scripts/compare_torch_cpu.py",
         text="Two threads, AVX-512 with its products of bf16."),
    dict(id="host", title="What the host pays", kind="host", files=["*_cuda_host", "*_vulkan_host", "cpu_host", "lavapipe_host"],
         command="tandem bench --host, on GPUs with --warmup 0.2",
         text="Median microseconds of planning a problem for the first time, planning it again with its kernels at hand, taking a "
              "plan from the device's cache, and recording an execute (with its 10th and 90th percentile)."),
]
ERRORS = ["*_errors"]  # timed briefly: read for errors alone



class Rows(list):
    """Rows of a table below their head; unit says what a cell with two numbers holds."""

    def __init__(self, unit, head, rows):
        super().__init__(rows)
        self.unit, self.head = unit, head


def load(name):
    with open(os.path.join(RESULTS, name + ".json"), encoding="utf-8") as file:
        return json.load(file)


def has_a_line_a_row(name):
    with open(os.path.join(RESULTS, name + ".json"), encoding="utf-8") as file:
        text = file.read()
    rows = json.loads(text).get("rows")
    return rows is None or text.count("\n") <= len(rows) + 8


def result_files():
    return sorted(os.path.basename(path)[:-5] for path in glob.glob(os.path.join(RESULTS, "*.json")))


def matching(patterns):
    """The names of result files that match one of the patterns, in the order of the patterns."""
    found = []
    for pattern in patterns:
        found += [name for name in result_files() if fnmatch.fnmatch(name, pattern) and name not in found]
    return found


def files_of(section):
    return matching(section["files"])


def devices_of(section):
    """device -> the section's files of it, the device of the newest file first."""
    by_device = {}
    for name in files_of(section):
        by_device.setdefault(load(name)["header"]["device"], []).append(name)
    return dict(sorted(by_device.items(), key=lambda item: max(load(name)["header"]["date"] for name in item[1]), reverse=True))


def unnamed():
    """Result files that no section names."""
    named = {name for section in SECTIONS for name in files_of(section)} | set(matching(ERRORS)) | {"validation"}
    return sorted(set(result_files()) - named)


def who(row):
    return f"{row['backend']}.{row['path']}" if row.get("impl", "tandem") == "tandem" else NAMES.get(row["impl"], row["impl"])


def errors_of_all():
    """(path, problem line) -> (date, error, file): the newest error against double that any file has."""
    errors = {}
    for name in result_files():
        data = load(name)
        for row in data.get("rows", []):
            if row.get("impl") == "tandem" and row.get("max_err_ratio") is not None and row.get("problem"):
                key = (who(row), row["problem"])
                found = (data["header"]["date"], row["max_err_ratio"], name)
                errors[key] = max(errors.get(key, found), found)
    return errors


ALL_ERRORS = errors_of_all()


def cells_of(files):
    """case key -> implementation -> op -> row; the newest of the files wins. Keys keep the order of the files."""
    table, order = {}, []
    for name in sorted(files, key=lambda name: load(name)["header"]["date"]):
        by_case = {}
        rows = load(name)["rows"]
        for row in rows:
            line = re.sub(r"^(fwd|bwd) ", "", row.get("problem") or "")
            by_case.setdefault(row["case"], set()).add(line)
        for row in rows:
            # A backward's line has all words of its forward's, and more.
            words = set((row.get("problem") or "").split()[1:])
            lines = [line for line in by_case[row["case"]] if line and words <= set(line.split())]
            line = max(sorted(lines), key=len, default=row["case"])
            if line not in table:
                order.append(line)
            table.setdefault(line, {}).setdefault(who(row), {})[row["op"]] = row
    return [(line, table[line]) for line in order]


def number(value, digits=3):
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.{digits}g}"


def pair(rows, value):
    return " / ".join(value(rows[op]) if op in rows else "-" for op in ("fwd", "bwd"))


def quality(rows):
    """Spread and error of our rows: what a figure is worth."""
    spread = pair(rows, lambda row: f"{100 * row['spread']:.0f}" if row.get("spread") is not None else "-")
    error = pair(rows, lambda row: number(ALL_ERRORS.get((who(row), row.get("problem")), (0, None))[1], 2) or "-")
    return spread, error


def grid(files):
    cells = cells_of(files)
    names = []
    for _, by in cells:
        names += [name for name in by if name not in names]
    names.sort(key=lambda name: "." not in name)  # ours first
    out = []
    for line, by in cells:
        row = next(iter(next(iter(by.values())).values()))
        line_out = [row["dtype"], f"{row['D']}", f"{row['Sq']}", "causal" if "causal" in row["mask"] else "full"]
        line_out += [pair(by[name], lambda row: number(row["tflops"])) if name in by else "" for name in names]
        out.append(line_out + [part for name in names if "." in name for part in quality(by.get(name, {}))])
    head = ["type", "D", "S", "mask"] + names
    head += [f"{what} {name}" if sum("." in n for n in names) > 1 else what for name in names if "." in name
             for what in ("spread %", "error")]
    return Rows("TFLOP/s, forward / backward", head, out)


def cases(files):
    out = []
    for line, by in cells_of(files):
        for name, rows in by.items():
            spread, error = quality(rows) if "." in name else (pair(rows, lambda row: f"{100 * row['spread']:.0f}"), "")
            out.append([f"`{line}`" if name == next(iter(by)) else "", name, pair(rows, lambda row: f"{row['ms']:.4g}"),
                        pair(rows, lambda row: number(row["tflops"])), spread, error])
    return Rows("Forward / backward", ["problem", "path", "ms", "TFLOP/s", "spread %", "error"], out)


def fastest(rows, op):
    timed = [row for row in rows if row["op"] == op and row["ms"]]
    return min(timed, key=lambda row: row["ms"], default=None)


def models(files):
    """A row a model: ours by CUDA and by Vulkan, and the fastest of the others."""
    by_case = {}
    for name in files:
        for row in load(name)["rows"]:
            by_case.setdefault(row["case"], []).append(row)
    out = []
    for case, rows in by_case.items():
        ours = {backend: [row for row in rows if row["impl"] == "tandem" and row["backend"] == backend] for backend in ("cuda", "vulkan")}
        peers = [row for row in rows if row["impl"] != "tandem"]
        line = [case]
        for mine in ours.values():
            best = [fastest(mine, op) for op in ("fwd", "bwd")]
            line += [" / ".join(f"{row['ms']:.3g} {row['path']}" if row else "-" for row in best)]
        best = [fastest(peers, op) for op in ("fwd", "bwd")]
        line.append(" / ".join(f"{row['ms']:.3g} {NAMES.get(row['impl'], row['impl'])}" if row else "-" for row in best))
        mine = [fastest(ours["cuda"], op) for op in ("fwd", "bwd")]
        line.append(", ".join(f"{peer['ms'] / own['ms']:.2f}" if peer and own else "-" for peer, own in zip(best, mine)))
        out.append(line)
    return Rows("Forward / backward in ms", ["model", "CUDA", "Vulkan", "fastest peer", "x"], out)


def host(files):
    out = []
    for name in files:
        rows = {}
        for row in load(name)["rows"]:
            rows.setdefault((row["case"], who(row)), {})[row["what"]] = row
        for (case, path), what in rows.items():
            execute = what["execute"]
            out.append([f"`{case}`", path] + [f"{what[key]['us']:.4g}" for key in ("plan_first", "plan_cold", "plan_cached")] +
                       [f"{execute['us']:.3g} ({execute['us_p10']:.3g} to {execute['us_p90']:.3g})"])
    return Rows("", ["problem", "path", "first plan", "plan again", "cached plan", "execute"], out)


def workspace(files):
    out = []
    for line, by in cells_of(files):
        for name, rows in by.items():
            out.append([f"`{line}`" if name == next(iter(by)) else "", name, pair(rows, lambda row: f"{row['workspace'] / 2**20:.4g}")])
    return Rows("Forward / backward in MiB", ["problem", "path", "workspace"], out)


def rows_of(section, files):
    """The table of a section, of these of its files."""
    return {"grid": grid, "cases": cases, "models": models, "host": host, "bytes": workspace}[section["kind"]](files)
