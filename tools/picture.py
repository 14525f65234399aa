"""Draw the README's two pictures, docs/images/accuracy.svg and gains.svg, from benchmarks/results/mnist.json.xz.

python tools/picture.py
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "benchmarks" / "results" / "mnist.json.xz"
TARGETS = ROOT / "docs" / "images"

WIDTH, HEIGHT, TOP, BOTTOM = 400, 345, 74, 292
GRAY, BLUE, ORANGE = "#8a929e", "#4a7fd6", "#e07f26"
METHODS = {"finetune": ("fine-tuning", GRAY, 16), "er": ("ER", BLUE, 16), "er+gmed": ("ER+GMED", ORANGE, -10)}
STREAMS = {"split-mnist": "Split MNIST", "rotated-mnist": "Rotated MNIST", "permuted-mnist": "Permuted MNIST"}
SEEDS = range(20)
"""Seeds of the left panel: those that all three methods have."""

HEAD = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" \
class="gm" font-family="system-ui, sans-serif" font-size="14" fill="currentColor">
<style>svg.gm {{ color: #1c2430 }} @media (prefers-color-scheme: dark) {{ svg.gm {{ color: #e6e9ef }} }}</style>"""


def pictures() -> dict[str, str]:
    """Return the drawings as SVG, by their file names."""
    document = json.loads(lzma.decompress(SOURCE.read_bytes()))
    runs = {(run["benchmark"], run["method"], run["seed"]): run for run in document["runs"]}
    gains = {row["benchmark"]: row["gain"] for row in document["summary"] if row["method"] == "er+gmed"}
    accuracy = ["<title>Accuracy over the five tasks of Split MNIST</title>", *_learning_curves(runs)]
    gain = ["<title>Gain of ER+GMED over ER on three MNIST streams, seed by seed</title>", *_gains(runs, gains)]
    parts = {"accuracy.svg": accuracy, "gains.svg": gain}
    return {name: "\n".join([HEAD, *lines, "</svg>"]) + "\n" for name, lines in parts.items()}


def _learning_curves(runs: dict[Any, Any]) -> list[str]:
    def x(task: int) -> float:
        return 44 + task * 51

    def y(percent: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * percent / 100

    parts = _titles(12, "Accuracy on all tasks so far, %", f"Split MNIST, mean of {len(SEEDS)} seeds")
    for percent in range(0, 101, 25):
        parts += [_line(x(0), y(percent), x(4), y(percent), width=1, opacity=0.15)]
        parts += [_text(x(0) - 10, y(percent) + 4, percent, anchor="end", size=12)]
    parts += [_text(x(task), BOTTOM + 20, task + 1, anchor="middle", size=12) for task in range(5)]
    parts += [_text(x(2), BOTTOM + 40, "after task", anchor="middle", size=12)]
    for method, (name, color, shift) in METHODS.items():
        matrices = [runs["split-mnist", method, seed]["accuracy"] for seed in SEEDS]
        means = [100 * fmean(fmean(matrix[task][: task + 1]) for matrix in matrices) for task in range(5)]
        points = [(round(x(task), 1), round(y(mean), 1)) for task, mean in enumerate(means)]
        path = " ".join(f"{a},{b}" for a, b in points)
        parts += [f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2.5"/>']
        parts += [f'<circle cx="{a}" cy="{b}" r="3.5" fill="{color}"/>' for a, b in points]
        label = f"{name} {means[-1]:.1f}"
        parts += [_text(x(4) + 9, points[-1][1] + (shift if shift < 0 else 6), label, color=color, bold=True)]
    return parts


def _gains(runs: dict[Any, Any], gains: dict[str, Any]) -> list[str]:
    left, right, low, high = 14, WIDTH - 18, -5, 20

    def x(points: float) -> float:
        return left + (right - left) * (points - low) / (high - low)

    parts = _titles(left, "Gain of ER+GMED over ER, points", "one dot per seed; bar: mean and 95% interval")
    for points in range(low, high + 1, 5):
        parts += [_line(x(points), TOP, x(points), BOTTOM, width=1, opacity=0.5 if points == 0 else 0.15)]
        label = f"+{points}" if points > 0 else str(points).replace("-", "\N{MINUS SIGN}")
        parts += [_text(x(points), BOTTOM + 20, label, anchor="middle", size=12)]
    parts += [_text((left + right) / 2, BOTTOM + 40, "final accuracy, paired by seed", anchor="middle", size=12)]
    height = (BOTTOM - TOP) / len(STREAMS)
    for row, (benchmark, title) in enumerate(STREAMS.items()):
        top, gain = TOP + row * height, gains[benchmark]
        significant = gain["low"] > 0
        color, center = (ORANGE if significant else GRAY), top + 0.66 * height
        seeds = sorted(seed for name, method, seed in runs if (name, method) == (benchmark, "er+gmed"))
        differences = [
            100 * (runs[benchmark, "er+gmed", seed]["final_accuracy"] - runs[benchmark, "er", seed]["final_accuracy"])
            for seed in seeds
        ]
        assert low < min(differences) and max(differences) < high
        assert len(seeds) == gain["n"] and abs(fmean(differences) - gain["mean"]) < 1e-6
        for place, difference in enumerate(differences):
            scatter = (place * 0.6180339887) % 1 - 0.5  # spread evenly, the same every time
            dot = f'cx="{x(difference):.1f}" cy="{center + 0.5 * height * scatter:.1f}" r="2"'
            parts += [f'<circle {dot} fill="{color}" fill-opacity="0.4"/>']
        parts += [_line(x(gain["low"]), center, x(gain["high"]), center, width=4)]
        parts += [_line(x(gain["mean"]), center - 9, x(gain["mean"]), center + 9, width=2.5)]
        interval = f"{gain['mean']:+.2f} [{gain['low']:.2f}, {gain['high']:.2f}]".replace("-", "\N{MINUS SIGN}")
        parts += [_text(left, top + 17, title, bold=True)]
        parts += [_text(right, top + 17, f"{interval}, {gain['n']} seeds", anchor="end", size=12)]
    return parts


def _titles(x: float, title: str, subtitle: str) -> list[str]:
    return [_text(x, 26, title, bold=True, size=16), _text(x, 47, subtitle, size=13)]


def _text(
    x: float, y: float, text: object, *, anchor: str = "start", size: int = 14, bold: bool = False, color: str = ""
) -> str:
    style = (' font-weight="600"' if bold else "") + (f' fill="{color}"' if color else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{style}>{text}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, *, width: float, opacity: float = 1.0) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="currentColor" stroke-width="{width}" stroke-opacity="{opacity}"/>'


if __name__ == "__main__":
    for name, text in pictures().items():
        (TARGETS / name).write_text(text, encoding="utf-8")
