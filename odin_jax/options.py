"""The options of a command line as a dataclass; a mistake in them as one line."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Sequence
from typing import Any

KINDS = {"INT": "a whole number", "FLOAT": "a number", "PATH": "a path", "STR": "a text"}
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class WrongOption(Exception):
    """A mistake on the command line: the message is one line. Not a UserError, which lies beside JAX."""


def parse(kind: type, argv: Sequence[str], prog: str, about: str | None = None, **more: Any) -> Any:
    """The ``kind`` that ``argv`` describes; ``more`` goes to ``tyro.cli``.

    Raises WrongOption of one line that names the option and what it takes, and SystemExit after ``--help``.
    """
    import tyro

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, args=list(argv), prog=prog, description=about, **more)
    except SystemExit as end:
        if end.code in (0, None):
            sys.stderr.write(said.getvalue())
            raise
        raise WrongOption(f"{one_line(said.getvalue())} ({prog} --help explains all options)") from None


def one_line(box: str) -> str:
    """The message that tyro draws as a box of several parts."""
    inside = COLOURS.sub("", box).strip().splitlines()[1:-1]  # the first line is a title
    lines = [re.sub(r"[─-]{3,}", "", line.strip(" │|")) for line in inside]
    first, *others = "\n".join(lines).split("\n\n")
    text, rest = " ".join(first.split()), "\n".join(others)
    if match := re.fullmatch(r"invalid choice '(.*)' for argument '(.*)'\. Expected one of \((.*)\)\.", text):
        allowed = sorted(re.findall(r"'([^']*)'", match[3]), key=lambda choice: (choice == "None", choice))
        return f"{match[2]} {match[1]}: unknown; give one of {', '.join(allowed)}"
    if match := re.fullmatch(r"Missing value for argument '(.*)'\. .*", text):
        return f"{match[1]}: its value is missing"
    if match := re.fullmatch(r"Unrecognized options: (.*)", text):
        near = re.search(r"^(--\S+)", rest, re.MULTILINE)
        return f"unknown option {match[1].replace(', ', ' ')}" + (f"; did you mean {near[1]}?" if near else "")
    if match := re.fullmatch(r"Error parsing (.*?): (.*)", text):
        return _wrong_value(match[1], match[2], rest)
    if text.startswith("Missing from "):
        odd = re.search(r"Unrecognized options:\s*(.*)", rest)
        return _missing(first) + (f"; and unknown option {odd[1]}" if odd else "")
    return text


def _wrong_value(name: str, why: str, rest: str) -> str:
    takes = re.search(rf"^{re.escape(name)} (\S.*)$", rest, re.MULTILINE)
    value = re.search(r"(?:: |\[)'(.*?)'", why)
    if takes is None or value is None:
        return f"{name}: {why}"
    kinds = [KINDS.get(kind.strip("{}"), kind.strip("{}")) for kind in takes[1].split("|")]
    return f"{name} {value[1]}: must be {' or '.join(reversed(kinds))}"


def _missing(part: str) -> str:
    """Of a part with the name and below it the explanation of each missing argument."""
    names = re.findall(r"^(?:(--[\w.-]+) .*|([A-Z]+)\n(.*?)(?: \(required\))?)$", part, re.MULTILINE)
    shown = [option or f"{kind} ({what})" for option, kind, what in names]
    return f"missing: {' and '.join(shown)}" if shown else " ".join(part.split())
