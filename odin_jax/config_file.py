"""Options of ``odin train`` from a TOML file, such as the presets in ``configs/``."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from odin_jax.field_types import wrong_field
from odin_jax.train_config import KINDS, PATHS, TrainConfig
from splat.errors import UserError

FLAG = "--config"


def defaults(argv: Sequence[str]) -> TrainConfig:
    """What ``odin train`` starts from before the rest of its command line is read.

    Those are the defaults, with the options of the file that ``--config`` names in ``argv``. Raises UserError for a
    file that cannot be read, or that has an option that does not exist or a value of the wrong kind.
    """
    config = TrainConfig(scene=tyro.MISSING, out=tyro.MISSING)
    file = _named(argv)
    return config if file is None else dataclasses.replace(with_file(config, file), config=file)


def with_file(config: TrainConfig, file: Path) -> TrainConfig:
    """``config`` with the options that ``file`` gives; options of a pipeline are a table of its name."""
    try:
        values = tomllib.loads(file.read_text())
    except OSError as error:
        raise UserError(f"{FLAG} {file}: cannot be read ({error.strerror}); name a TOML file of options") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{FLAG} {file}: not valid TOML ({error})") from error
    changed = _replaced(config, values, file)
    given = dataclasses.replace(changed, **{name: Path() for name in PATHS if getattr(changed, name) is tyro.MISSING})
    wrong = wrong_field(given)
    if wrong:
        raise UserError(f"{FLAG} {file}: the value of {wrong} is of the wrong kind; odin train --help lists them")
    return changed


def _named(argv: Sequence[str]) -> Path | None:
    """The file that the command line names, the last one if there are several; None: none."""
    found = None
    for place, word in enumerate(argv):
        if word == FLAG and place + 1 < len(argv):
            found = Path(argv[place + 1])
        elif word.startswith(f"{FLAG}="):
            found = Path(word.partition("=")[2])
    return found


def _replaced(config: Any, values: dict[str, Any], file: Path, prefix: str = "") -> Any:
    known = {field.name for field in dataclasses.fields(config)} - {"config"}
    changes = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "odin train --help lists the options"
            raise UserError(f"{FLAG} {file}: there is no option {prefix}{key}; {hint}")
        inside = name in KINDS and not prefix
        if inside and not isinstance(value, dict):
            raise UserError(f"{FLAG} {file}: {key} must be a table of options, [{key}]")
        changes[name] = (_replaced(getattr(config, name), value, file, f"{name}.") if inside
                         else tuple(value) if isinstance(value, list)
                         else Path(value) if name in PATHS and isinstance(value, str) else value)
    return dataclasses.replace(config, **changes)
