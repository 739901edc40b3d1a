"""Tables of the benchmarks."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows of cells under their headings as a Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def ratio_cell(ratio: float | None) -> str:
    """A ratio as a cell; empty where there is nothing to compare with."""
    return "" if ratio is None else f"{ratio:.2f}"
