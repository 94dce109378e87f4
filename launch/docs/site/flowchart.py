"""Mermaid's flowcharts of networks as SVG, so that the site draws them without a script. Pure."""

from __future__ import annotations

import re
from html import escape

__all__ = ["drawn"]

_NODE = re.compile(r'(n\d+)(?:\["([^"]*)"\])?')
_WIDTH, _HEIGHT, _GAP = 170, 44, 26


def drawn(chart: str) -> str:
    """`chart`, of lines `n0["a<br/>b"] & n1 --> n2["c"]` in the order of the data, with its first node at the top."""
    labels, edges = _parsed(chart)
    level = dict.fromkeys(labels, 0)
    for start, end in edges:  # a node is named as an end before it is a start
        level[end] = max(level[end], level[start] + 1)
    rows = [[name for name in labels if level[name] == row] for row in range(max(level.values()) + 1)]
    widest = max(map(len, rows))
    width, height = widest * (_WIDTH + _GAP) + 4 * _GAP, len(rows) * (_HEIGHT + _GAP)
    place = {
        name: ((2 * column + 1 + widest - len(row)) * (_WIDTH + _GAP) / 2 + _GAP, number * (_HEIGHT + _GAP) + _GAP / 2)
        for number, row in enumerate(rows)
        for column, name in enumerate(row)
    }
    lines = "".join(_edge(place[start], place[end]) for start, end in edges)
    boxes = "".join(_box(*place[name], label.split("<br/>")) for name, label in labels.items())
    return (
        f'<svg class="flowchart" viewBox="0 0 {width} {height}" style="width: {width}px" role="img" '
        f'aria-label="The layers of the network">{lines}{boxes}</svg>'
    )


def _parsed(chart: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Node -> what stands in it; (from, to) of each arrow."""
    labels: dict[str, str] = {}
    edges = []
    for line in chart.splitlines():
        starts, _, end = line.partition("-->")
        found = [_NODE.findall(part) for part in (starts, end)]
        for name, label in found[0] + found[1]:
            labels[name] = label or labels[name]
        edges += [(start, name) for start, _ in found[0] for name, _ in found[1]]
    return labels, edges


def _box(x: float, y: float, lines: list[str]) -> str:
    first = y + _HEIGHT / 2 + 4 - 8 * (len(lines) - 1)
    text = "".join(
        f'<text x="{x:g}" y="{first + 16 * number:g}">{escape(line)}</text>' for number, line in enumerate(lines)
    )
    return f'<rect x="{x - _WIDTH / 2:g}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>{text}'


def _edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Straight down to the next row; from side to side, past the boxes between, where it skips rows."""
    (x, y), (to_x, to_y) = start, end
    if to_y - y <= _HEIGHT + _GAP:
        return f'<path d="M{x:g} {y + _HEIGHT:g}L{to_x:g} {to_y:g}"/>'
    x, to_x, y, to_y = x + _WIDTH / 2, to_x + _WIDTH / 2, y + _HEIGHT / 2, to_y + _HEIGHT / 2
    side = max(x, to_x) + _GAP + (to_y - y) / 8
    return f'<path d="M{x:g} {y:g}C{side:g} {y:g} {side:g} {to_y:g} {to_x:g} {to_y:g}"/>'
