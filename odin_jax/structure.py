"""What each structural event made of the rows, one line of JSON per step that has some: ``structure.jsonl``."""

from __future__ import annotations

from typing import Any

from odin_jax import hooks
from odin_jax.engine import living
from odin_jax.runs import RunFolder, StepLines


class StructureLog:
    """Writes a line when it is called; lines after ``step``, of an earlier try, leave the file."""

    def __init__(self, run: RunFolder | None, pipeline: Any, step: int):
        """``run`` None: another process writes."""
        self._lines, self._pipeline = None if run is None else StepLines(run.structure, step), pipeline

    def __call__(self, step: int, events: tuple[str, ...], state: Any) -> None:
        """After the ``events`` of ``step``: rows alive, room for rows, and what the pipeline tells of its schedule."""
        if self._lines is not None:
            self._lines.add({"step": step, "events": list(events), "rows": living(state), "capacity": len(state.alive),
                             **hooks.told(self._pipeline, state, step)})
