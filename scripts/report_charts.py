# SPDX-License-Identifier: MIT OR Apache-2.0
"""The panels of scripts/report: matplotlib draws each as a small SVG of WIDTH units, whose colours are variables of the page's style
sheet. So a panel follows a dark page, and stands alone on a phone or beside others on a desktop."""
import html
import io
import logging
import math
import re

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tandem", "font.size": 10, "font.family": "sans-serif",
                            "path.simplify": False})

WIDTH = 360
# Stand-ins that become var(--name): matplotlib knows no variables.
VARIABLES = ["ink", "muted", "grid", "page", "sm90", "sm80", "simt", "coopmat2", "coopmat", "scalar", "cpu", "cudnn", "fa2", "fa3",
             "flex", "cueq", "torch", "other"]
COLOUR = {name: f"#0000{number + 16:02x}" for number, name in enumerate(VARIABLES)}
# Series: variable of its colour, marker, dashes. A series looks the same in all panels.
STYLES = {
    "cuda.sm90": ("sm90", "o", "-"), "cuda.sm80": ("sm80", "D", "-"), "cuda.simt": ("simt", "v", "-"),
    "vulkan.coopmat2": ("coopmat2", "s", "-"), "vulkan.coopmat": ("coopmat", "P", "-"), "vulkan.scalar": ("scalar", "p", "-"),
    "cpu.simd": ("cpu", "h", "-"), "cpu.ref": ("other", "h", "-"),
    "cuDNN": ("cudnn", "^", "--"), "FlashAttention-2": ("fa2", "s", "--"), "FlashAttention-3": ("fa3", "*", "--"),
    "FlashAttention-4": ("fa3", "P", ":"), "FlexAttention": ("flex", "d", "--"), "cuEquivariance": ("cueq", "H", "--"),
    "PyTorch": ("torch", "o", "--"), "PyTorch memory-efficient": ("torch", "o", "--"),
}
OP = {"fwd": "forward", "bwd": "backward"}


def style(name):
    return STYLES.get(name, ("other", ".", "-."))


def axes(height, left, bottom=24, top=8, right=10):
    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
    figure.patch.set_visible(False)
    box = figure.add_axes((left / WIDTH, bottom / height, (WIDTH - left - right) / WIDTH, (height - bottom - top) / height))
    box.patch.set_visible(False)
    for side in ("top", "right", "left"):
        box.spines[side].set_visible(False)
    box.spines["bottom"].set_color(COLOUR["muted"])
    box.tick_params(colors=COLOUR["ink"], length=0, labelsize=10)
    box.set_axisbelow(True)
    return figure, box


def rounded(number):
    return f"{float(number[0]):.1f}".removesuffix(".0")


def small(text):
    """What matplotlib writes, without what a panel in a page does not need."""
    text = text[text.index("<svg"):]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", text, flags=re.S)
    text = re.sub(r'<g id="(?!m[0-9a-f]{8})[^"]*">', "<g>", text)
    text = re.sub(r'font: (?:(bold|[0-9]+) )?([0-9.]+)px [^;"]*', lambda m: f"font-size:{m[2]}px" + (";font-weight:600" if m[1] else ""),
                  text)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"-?[0-9]+\.[0-9]{2,}", rounded, tag[0]), text)
    for name, colour in COLOUR.items():
        text = text.replace(colour, f"var(--{name})")
    text = re.sub(r'(<svg) [^>]*?viewBox="([^"]*)"[^>]*>', r'\1 viewBox="\2">', text)
    text = re.sub(r"\s+", " ", text.replace("xlink:href", "href")).replace("> <", "><")  # a line a panel
    text = re.sub(r": (?=[^\"]*;|[\w#.-]+\")", ":", text).replace("; ", ";")
    for _ in range(4):
        text = re.sub(r"<(g|defs)></\1>", "", text)
    return text


def svg(figure, label):
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return small(out.getvalue()).replace("<svg ", f'<svg role="img" aria-label="{html.escape(label, quote=True)}" ', 1).strip()


def panel(figure, title):
    return f"<figure><figcaption>{html.escape(title)}</figcaption>{svg(figure, title)}</figure>"


def key(names):
    """The legend of a group of panels: a swatch and the name of each series."""
    parts = []
    for name in names:
        colour, marker, dashes = style(name)
        figure = Figure(figsize=(28 / 72, 12 / 72), dpi=72)
        figure.patch.set_visible(False)
        box = figure.add_axes((0, 0, 1, 1))
        box.set_axis_off()
        box.set_xlim(0, 28)
        box.set_ylim(0, 12)
        box.plot([2, 14, 26], [6, 6, 6], color=COLOUR[colour], linestyle=dashes, marker=marker, markevery=[1], markersize=6)
        parts.append(f"<span>{svg(figure, name)} {html.escape(name)}</span>")
    return parts


def length(value, _=None):
    return f"{value / 1024:g}k" if value >= 1024 else f"{value:g}"


def draw_line(box, name, points, width=1.8):
    colour, marker, dashes = style(name)
    xs, ys = zip(*sorted(points))
    box.plot(xs, ys, color=COLOUR[colour], linestyle=dashes, marker=marker, markersize=6 if marker == "*" else 4.5, linewidth=width,
             clip_on=False, zorder=3 if "." in name else 2)


def thin(values):
    """Those that do not run into each other as labels on an axis of doublings; the last one stays."""
    left = [values[-1]]
    for value in reversed(values[:-1]):
        if math.log(left[-1] / value) > 0.1 * math.log(values[-1] / values[0]):
            left.append(value)
    return left[::-1]


def curves(title, series, unit="TFLOP/s", label=length):
    """series: name -> [(x, y)]; x on an axis of doublings, y from 0."""
    figure, box = axes(190, 40)
    for name, points in series.items():
        draw_line(box, name, points)
    xs = sorted({x for points in series.values() for x, _ in points})
    box.set_xscale("log", base=2)
    box.xaxis.set_major_locator(FixedLocator(thin(xs)))
    box.xaxis.set_minor_locator(NullLocator())
    box.xaxis.set_major_formatter(FuncFormatter(label))
    box.set_ylim(0, 1.06 * max(y for points in series.values() for _, y in points))
    box.yaxis.set_major_locator(MaxNLocator(5))
    box.grid(axis="y", color=COLOUR["grid"], linewidth=1)
    return panel(figure, f"{title}, {unit}")


def log_lines(title, series, slope=None):
    """Both axes logarithmic; slope draws a muted line of that growth through the first point of the first series."""
    figure, box = axes(230, 62)
    for name, points in series.items():
        draw_line(box, name, points)
    xs = sorted({x for points in series.values() for x, _ in points})
    if slope is not None:
        x, y = min(next(iter(series.values())))
        box.plot([x, xs[-1]], [y, y * (xs[-1] / x) ** slope], color=COLOUR["muted"], linewidth=1, linestyle=(0, (1, 2)), zorder=1)
    box.set_xscale("log", base=2)
    box.set_yscale("log")
    box.xaxis.set_major_locator(FixedLocator(thin(xs)))
    box.xaxis.set_minor_locator(NullLocator())
    box.yaxis.set_minor_locator(NullLocator())
    box.xaxis.set_major_formatter(FuncFormatter(length))
    box.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    box.grid(axis="y", color=COLOUR["grid"], linewidth=1)
    return panel(figure, title)


TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20, 30, 50)


def ratio_ticks(low, high):
    """Ticks in that interval that do not run into each other."""
    ticks = [1.0]
    for side in ([t for t in TICKS if 1 < t <= high], [t for t in reversed(TICKS) if low <= t < 1]):
        last = 1.0
        for tick in side:
            if abs(math.log(tick / last)) > 0.11 * math.log(high / low):
                ticks.append(tick)
                last = tick
    return sorted(ticks)


def room(labels, each=5.3):
    """For these labels at the left of a panel."""
    return min(190, 14 + max(each * len(label) for label in labels))


def dots(title, rows, limits, left, right=58):
    """rows: (label, peer, {op: ratio}). A full marker is the forward, an open one the backward; the numbers stand at the right."""
    height = 15 * len(rows) + 40
    figure, box = axes(height, left, right=right, top=14)
    for at, (_, peer, ratios) in enumerate(rows):
        colour, marker, _ = style(peer)
        values = [ratios[op] for op in OP if op in ratios]
        if len(values) == 2:
            box.plot(values, [at, at], color=COLOUR[colour], linewidth=1, alpha=0.5, zorder=2)
        for op, ratio in ratios.items():
            box.plot([ratio], [at], color=COLOUR[colour], marker=marker, markersize=7 if marker == "*" else 5.5, zorder=3, clip_on=False,
                     markerfacecolor=COLOUR[colour] if op == "fwd" else COLOUR["page"], markeredgewidth=1.3)
        numbers = " / ".join(f"{ratios[op]:.2f}" if op in ratios else "-" for op in OP)
        box.annotate(numbers, (1, at), xycoords=("axes fraction", "data"), xytext=(right - 2, 0), textcoords="offset points",
                     ha="right", va="center", fontsize=9, color=COLOUR["muted"])
    box.set_xscale("log")
    box.set_xlim(*limits)
    box.set_ylim(len(rows) - 0.4, -0.6)
    box.set_yticks(range(len(rows)), [label for label, _, _ in rows], fontsize=9)
    box.xaxis.set_major_locator(FixedLocator(ratio_ticks(*limits)))
    box.xaxis.set_minor_locator(NullLocator())
    box.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    box.tick_params(axis="x", labelsize=9)
    box.grid(axis="x", color=COLOUR["grid"], linewidth=1)
    box.axvline(1, color=COLOUR["muted"], linewidth=1.2)
    return panel(figure, title)


def scatter(title, series, limit, note):
    """series: name -> [(x, y)]; x logarithmic, y from 0 to the limit, which is a line with a note."""
    figure, box = axes(240, 34, bottom=38)
    for name, points in series.items():
        colour, marker, _ = style(name)
        xs, ys = zip(*sorted(points))
        box.plot(xs, ys, linestyle="none", marker=marker, markersize=4, color=COLOUR[colour], alpha=0.75, markeredgewidth=0)
    box.set_xscale("log")
    box.set_ylim(0, 1.1 * limit)
    box.axhline(limit, color=COLOUR["muted"], linewidth=1.2)
    box.annotate(note, (0, limit), xycoords=("axes fraction", "data"), xytext=(2, -11), textcoords="offset points", fontsize=9,
                 color=COLOUR["muted"])
    box.xaxis.set_minor_locator(NullLocator())
    box.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    box.set_xlabel("TFLOP/s", color=COLOUR["ink"], fontsize=10)
    box.grid(axis="y", color=COLOUR["grid"], linewidth=1)
    return panel(figure, title)


def shares(title, rows):
    """rows: (label, without, with): a bar of two parts each, with their numbers."""
    figure, box = axes(22 * len(rows) + 34, room([label for label, _, _ in rows], 5.6), right=50)
    for at, (_, without, with_) in enumerate(rows):
        box.barh(at, without, height=0.62, color=COLOUR["sm90"])
        box.barh(at, with_, left=without, height=0.62, color=COLOUR["coopmat2"])
        box.annotate(f"{without} + {with_}", (1, at), xycoords=("axes fraction", "data"), xytext=(48, 0), textcoords="offset points",
                     ha="right", va="center", fontsize=9, color=COLOUR["muted"])
    box.set_ylim(len(rows) - 0.4, -0.6)
    box.set_yticks(range(len(rows)), [label for label, _, _ in rows])
    box.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    box.grid(axis="x", color=COLOUR["grid"], linewidth=1)
    return panel(figure, title)


def strips(title, rows):
    """rows: (label, numbers of kernels without spills, with spills): each kernel a mark over its registers."""
    figure, box = axes(26 * len(rows) + 34, room([label for label, _, _ in rows], 5.6), right=16)
    for at, (_, without, with_) in enumerate(rows):
        box.plot(without, [at] * len(without), linestyle="none", marker="|", markersize=11, color=COLOUR["sm90"], alpha=0.7)
        box.plot(with_, [at] * len(with_), linestyle="none", marker="|", markersize=11, color=COLOUR["coopmat2"], alpha=0.9)
    box.set_ylim(len(rows) - 0.4, -0.6)
    box.set_xlim(0, None)
    box.set_yticks(range(len(rows)), [label for label, _, _ in rows])
    box.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    box.grid(axis="x", color=COLOUR["grid"], linewidth=1)
    return panel(figure, title)
