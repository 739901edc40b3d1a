"""How the rows of a run grew against what its pipeline wanted, and at which resolution it trained: ``growth.png``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from odin_jax.figures import blank, saved
from odin_jax.runs import RunFolder
from splat.errors import UserError

WANTED = {"budget": "#e6550d", "target": "#31a354"}  # what pipelines tell of the rows they want, by colour


def draw(folder: Path, run: RunFolder) -> list[Path]:
    """Write ``growth.png`` into ``folder``; its path, nothing for a run without structural events.

    Raises UserError when ``structure.jsonl`` is damaged or the folder cannot be written.
    """
    lines = read(run.structure)
    return saved(folder, {"growth.png": plot(lines)}) if lines else []


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of ``structure.jsonl`` in the order of their steps; none where there is no file."""
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(path.read_bytes().splitlines(), 1):
        try:
            line = json.loads(text)
            told = {name: float(line[name]) for name in (*WANTED, "scale") if name in line}
            lines.append({**line, **told, "step": int(line["step"]), "rows": int(line["rows"])})
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise UserError(f"{path} line {number} holds no event ({error}); delete the line or train again") from error
    return lines


def plot(lines: list[dict[str, Any]]) -> Any:
    """Rows after each structural event beside what the pipeline wanted, and the scale of the photos."""
    figure, (ax,) = blank(9, 4, 1)
    steps = [line["step"] for line in lines]
    for name, colour in WANTED.items():
        told = [(line["step"], line[name]) for line in lines if name in line]
        if told:
            ax.plot(*zip(*told, strict=True), color=colour, drawstyle="steps-post", label=name)
    ax.plot(steps, [line["rows"] for line in lines], color="#08519c", marker=".", label="Gaussians")
    ax.set(xlabel="step", ylabel="Gaussians", title="Growth of the rows", ylim=(0, None))
    scales = [line["scale"] for line in lines if "scale" in line]
    if scales:
        right = ax.twinx()
        right.step([line["step"] for line in lines if "scale" in line], scales, where="post", color="#7b4173",
                   label="scale of the photos")
        right.set(ylabel="sides of the photos divided by", ylim=(0, max(scales) + 1))
        right.legend(fontsize=8, loc="lower right")
    ax.legend(fontsize=8, loc="upper left")
    return figure
