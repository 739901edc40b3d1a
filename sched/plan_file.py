"""Plans as versioned JSON files; ``docs/scheduling.md`` documents the schema. Floats keep every digit."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from sched.errors import PlanError
from sched.plan import Plan, PlanOptions, PlanStats
from sched.windows import BLOCKING, CANDIDATE, StructuralRule, Window

FORMAT = "odin-plan"
VERSION = 1
FIELDS = (
    "format",
    "version",
    "digest",
    "options",
    "stats",
    "warnings",
    "views",
    "labels",
    "region_coupling",
    "units_per_epoch",
    "n_repeats",
    "repeat_unit",
    "launch",
    "validate",
    "structural",
    "unit_groups",
    "units",
    "windows",
)


def to_json(plan: Plan) -> str:
    """The text of a plan file: one field, or one entry of a long list, per line. NaN is written as null."""
    values: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "digest": plan.digest,
        "options": dataclasses.asdict(plan.options),
        "stats": _plain(dataclasses.asdict(plan.stats)),
        "warnings": plan.warnings,
        "views": plan.views,
        "labels": plan.labels.tolist(),
        "region_coupling": plan.region_coupling.tolist(),
        "units_per_epoch": plan.units_per_epoch,
        "n_repeats": plan.n_repeats,
        "repeat_unit": plan.repeat_unit.tolist(),
        "launch": plan.launch,
        "validate": plan.validate,
        "structural": [dataclasses.asdict(rule) for rule in plan.structural],
        "unit_groups": plan.unit_groups.tolist(),
        "units": plan.units.tolist(),
        "windows": [list(_plain(vars(window)).values()) for window in plan.windows],
    }
    return (
        "{\n" + ",\n".join(f"{json.dumps(name)}: {_lines(name, values[name])}" for name in FIELDS) + "\n}\n"
    )


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan; the file appears whole or not at all. Raises ``PlanError`` if it cannot be written."""
    path = Path(path)
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(to_json(plan))
        part.replace(path)
    except OSError as error:
        raise PlanError(f"{path}: cannot be written ({error.strerror})") from error


def load_plan(path: str | Path) -> Plan:
    """Read a plan. Raises ``PlanError`` naming file, line and field for files of another kind or version,
    or damaged.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise PlanError(f"{path}: cannot be read ({reason}); check the path, or make the plan anew") from error
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise PlanError(
            f"{path}, line {error.lineno}: is damaged ({error.msg}); make the plan anew"
        ) from error
    return _Reader(str(path), text, data).plan()


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in values.items()}


def _lines(name: str, value: Any) -> str:
    if name not in ("units", "windows", "views", "region_coupling", "structural") or not value:
        return json.dumps(value)
    return "[\n" + ",\n".join(json.dumps(entry) for entry in value) + "\n]"


class _Reader:
    """Checks the fields of a parsed file one by one."""

    def __init__(self, path: str, text: str, data: Any):
        self.path, self.text, self.data = path, text, data

    def fail(self, field: str, what: str) -> PlanError:
        at = self.text.find(f'"{field}":')
        line = f", line {self.text.count(chr(10), 0, at) + 1}" if at >= 0 else ""
        return PlanError(f"{self.path}{line}, field {field}: {what}; make the plan anew")

    def plan(self) -> Plan:
        if not isinstance(self.data, dict) or self.data.get("format") != FORMAT:
            raise PlanError(
                f"{self.path}: is no plan file (field format is not {FORMAT!r}); make one with odin plan"
            )
        if self.data.get("version") != VERSION:
            raise PlanError(
                f"{self.path}: field version is {self.data.get('version')!r}; this program reads {VERSION}; "
                "make the plan anew"
            )
        for field in FIELDS:
            if field not in self.data:
                raise self.fail(field, "is missing")
        options = self.record("options", PlanOptions)
        options = dataclasses.replace(options, without=tuple(options.without))
        views, warnings = (tuple(self.strings(field)) for field in ("views", "warnings"))
        n = self.integer("units_per_epoch", 1)
        units = self.table("units", options.batch, len(views))
        if len(units) % n:
            raise self.fail("units", f"has {len(units)} units, no multiple of units_per_epoch {n}")
        coupling = self.matrix("region_coupling")
        plan = Plan(
            options,
            self.string("digest"),
            views,
            self.ints("labels", len(views), 0, len(coupling)),
            coupling,
            units,
            self.ints("unit_groups", len(units), -1, len(coupling)),
            n,
            self.integer("n_repeats", 0),
            self.ints("repeat_unit", len(units) // n, -1, n),
            self.windows(len(units)),
            self.rules(),
            self.string("launch"),
            self.string("validate"),
            self.record("stats", PlanStats),
            warnings,
        )
        self.check_epochs(plan)
        return plan

    def check_epochs(self, plan: Plan) -> None:
        views = len(plan.views)
        for epoch, part in enumerate(plan.units.reshape(-1, plan.units_per_epoch, plan.units.shape[1])):
            seen = np.bincount(part.ravel(), minlength=views)
            if (seen == 0).any():
                raise self.fail("units", f"epoch {epoch} leaves out view {int((seen == 0).argmax())}")
            if any(len(set(unit)) < len(unit) for unit in part.tolist()):
                raise self.fail("units", f"epoch {epoch} has a unit with a view twice")
            if seen.sum() != views + plan.n_repeats:
                raise self.fail(
                    "units", f"epoch {epoch} has {seen.sum()} views, not {views + plan.n_repeats}"
                )

    def string(self, field: str) -> str:
        if not isinstance(self.data[field], str):
            raise self.fail(field, "must be a string")
        return self.data[field]

    def strings(self, field: str) -> list[str]:
        value = self.data[field]
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self.fail(field, "must be a list of strings")
        return value

    def integer(self, field: str, low: int) -> int:
        value = self.data[field]
        if type(value) is not int or value < low:
            raise self.fail(field, f"must be a whole number of at least {low}, not {value!r}")
        return value

    def ints(self, field: str, length: int, low: int, end: int) -> np.ndarray:
        value = self.data[field]
        if not isinstance(value, list) or not all(type(v) is int and low <= v < end for v in value):
            raise self.fail(field, f"must list whole numbers in {low}..{end - 1}")
        if len(value) != length:
            raise self.fail(field, f"has {len(value)} entries, not {length}")
        return np.asarray(value, np.int32)

    def table(self, field: str, width: int, end: int) -> np.ndarray:
        value = self.data[field]
        if not isinstance(value, list) or not value:
            raise self.fail(field, "must be a list of units")
        for i, row in enumerate(value):
            if (
                not isinstance(row, list)
                or len(row) != width
                or not all(type(v) is int and 0 <= v < end for v in row)
            ):
                raise self.fail(field, f"entry {i} must list {width} views in 0..{end - 1}")
        return np.asarray(value, np.int32)

    def matrix(self, field: str) -> np.ndarray:
        value = self.data[field]
        if (
            not isinstance(value, list)
            or not value
            or not all(
                isinstance(row, list) and len(row) == len(value) and all(_is_number(v) for v in row)
                for row in value
            )
        ):
            raise self.fail(field, "must be a square table of numbers")
        return np.asarray(value, float)

    def windows(self, length: int) -> tuple[Window, ...]:
        value = self.data["windows"]
        if not isinstance(value, list) or len(value) != length:
            raise self.fail("windows", f"must have one entry for each of the {length} units")
        windows = []
        for i, row in enumerate(value):
            if (
                not isinstance(row, list)
                or len(row) != 5
                or row[0] not in (CANDIDATE, *BLOCKING)
                or not all(v is None or _is_number(v) for v in row[1:])
            ):
                raise self.fail(
                    "windows", f"entry {i} must be [reason, coupling, share, seconds, live bytes]"
                )
            windows.append(Window(row[0], *(math.nan if v is None else float(v) for v in row[1:])))
        return tuple(windows)

    def rules(self) -> tuple[StructuralRule, ...]:
        try:
            return tuple(StructuralRule(**rule) for rule in self.data["structural"])
        except TypeError as error:
            raise self.fail("structural", "must list records of event, first, last, every") from error

    def record(self, field: str, kind: type) -> Any:
        value: Any = self.data[field]
        names = {entry.name for entry in dataclasses.fields(kind)}
        if not isinstance(value, dict) or set(value) != names:
            raise self.fail(field, f"must have exactly {', '.join(sorted(names))}")
        if kind is PlanStats:
            value = {k: math.nan if v is None else v for k, v in value.items()}
        try:
            made = kind(**value)
            if isinstance(made, PlanOptions):
                made.check()
        except (TypeError, PlanError) as error:
            raise self.fail(field, f"does not hold ({error})") from error
        return made


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
