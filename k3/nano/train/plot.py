#!/usr/bin/env python3
"""Draws a run: the loss of what is said, and the share of answers that come out right, by steps.

usage: plot.py RUN.json -o RUN.svg       RUN.json as train.py --record writes it
"""
import argparse
import html
import json
import math
import pathlib

WIDTH, HEIGHT, LEFT, TOP, GAP = 760, 230, 56, 24, 46
LEGEND = 130
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#7f7f7f",
           "#bcbd22", "#17becf", "#393b79", "#637939", "#843c39", "#5254a3", "#ad494a")
LOSS_FLOOR = 1e-3


def loss_lines(history):
    lines = {}
    for entry in history:
        if "loss" in entry:
            lines.setdefault(entry["kind"], []).append((entry["step"], max(entry["loss"], LOSS_FLOOR)))
    return lines


def score_lines(history):
    lines = {}
    for entry in history:
        for skill, score in entry.get("right", {}).items():
            lines.setdefault(skill, []).append((entry["step"], score))
    return lines


def panel(title, lines, steps, top, low, high, ticks, height_of):
    """One plot; `height_of(value)` in [0, 1]."""
    inner = WIDTH - LEFT - LEGEND
    out = [f'<text x="{LEFT}" y="{top - 8}" font-weight="bold">{html.escape(title)}</text>',
           f'<rect x="{LEFT}" y="{top}" width="{inner}" height="{HEIGHT}" fill="none" stroke="#999"/>']

    def y_of(value):
        return top + HEIGHT * (1 - height_of(min(max(value, low), high)))

    for tick in ticks:
        out.append(f'<line x1="{LEFT}" x2="{LEFT + inner}" y1="{y_of(tick):.1f}" y2="{y_of(tick):.1f}" '
                   'stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y_of(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for i in range(5):
        x = LEFT + inner * i / 4
        out.append(f'<text x="{x:.1f}" y="{top + HEIGHT + 15}" text-anchor="middle">{steps * i // 4}</text>')
    for i, (name, points) in enumerate(lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{LEFT + inner * step / steps:.1f},{y_of(value):.1f}" for step, value in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.3"/>')
        out.append(f'<text x="{LEFT + inner + 8}" y="{top + 12 + 15 * i}" fill="{colour}">'
                   f'{html.escape(name)}</text>')
    return out


def draw(run):
    steps = run["steps"]
    losses, scores = loss_lines(run["history"]), score_lines(run["history"])
    high = max((v for points in losses.values() for _, v in points), default=1.0)
    ticks = [10.0 ** e for e in range(-3, 2) if LOSS_FLOOR <= 10.0 ** e <= high]

    def by_log(value):
        return math.log(value / LOSS_FLOOR) / math.log(high / LOSS_FLOOR)

    total = TOP + 2 * (HEIGHT + GAP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" font-family="sans-serif" '
           'font-size="12">', f'<rect width="{WIDTH}" height="{total}" fill="#fff"/>']
    out += panel("loss of what is said", losses, steps, TOP, LOSS_FLOOR, high, ticks, by_log)
    out += panel("answers right, teacher-forced", scores, steps, TOP + HEIGHT + GAP, 0.0, 1.0,
                 (0.0, 0.25, 0.5, 0.75, 1.0), lambda value: value)
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("run")
    parser.add_argument("-o", "--out", required=True)
    args = parser.parse_args()
    pathlib.Path(args.out).write_text(draw(json.loads(pathlib.Path(args.run).read_text())))


if __name__ == "__main__":
    main()
