"""The console command ``odin``: one table of subcommands, each a thin file in ``scripts``.

Nothing heavy is imported before the subcommand is known, so that ``odin --help`` answers at once. The table
names the scripts as text: they wire the packages together, so no package may depend on them.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from odin_jax.gpu import flags
from odin_jax.interrupt import never_swallow

# name: (module, class of its options, what it does)
COMMANDS = {
    "train": ("scripts.train", "TrainConfig", "train a scene from a capture"),
    "eval": ("scripts.eval", "EvalConfig", "measure a trained scene on its test views"),
    "render": (
        "scripts.render",
        "RenderConfig",
        "render test views, an orbit or the camera path as PNG or MP4",
    ),
    "export": ("scripts.export", "ExportConfig", "write a trained scene as .ply or .splat"),
    "mesh": ("scripts.mesh", "MeshConfig", "write the surface of a trained scene as a triangle mesh (.ply)"),
    "import": ("scripts.import_", "ImportConfig", "make a run folder from a .ply or .splat of any trainer"),
    "make-city": ("scripts.make_city", "CityConfig", "tile a trained aerial run into a city of many blocks"),
    "plan": ("scripts.plan", "PlanConfig", "schedule the views of a capture ahead of time"),
    "report": ("scripts.report", "ReportConfig", "what runs reached and where ranks waited: tables, pictures"),
    "view": (
        "scripts.view",
        "ViewConfig",
        "look at a trained scene in the browser (needs viser: pip install viser)",
    ),
    "launch": ("scripts.launch", "LaunchConfig", "start several processes of a command: odin launch … -- train …"),
    "gpu-check": ("scripts.gpu_check", "CheckConfig", "compile a training for GPUs that need not be there; inspect it"),
    "demo": ("scripts.demo", "DemoConfig", "build the embedded scene, train it, show what came out"),
}
USERS_FAULT = (
    ("odin_jax.options", "WrongOption"),
    ("splat.errors", "UserError"),
    ("sched.errors", "PlanError"),
)  # shown as one line, no traceback
TAKES_COMMAND = ("launch",)  # a command of its own follows their options, with or without two dashes before it
BENCH = "run one benchmark: odin bench NAME [options]; its last output line is one JSON object"


class UnknownName(Exception):
    """There is no such command or benchmark."""


def usage() -> str:
    """The text of ``odin --help``."""
    rows = [(name, what) for name, (_, _, what) in COMMANDS.items()] + [("bench", BENCH)]
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:{width}}  {what}" for name, what in rows]
    return "\n".join(
        ["usage: odin COMMAND [options]     (odin COMMAND --help lists a command's options)", "", *lines]
    )


def run(module: str, config_class: str, argv: Sequence[str], prog: str) -> int:
    """Parse ``argv`` into the script's options and call its ``main`` with them; the exit code."""
    script, options = parsed(module, config_class, argv, prog)
    return script.main(options) or 0


def parsed(module: str, config_class: str, argv: Sequence[str], prog: str) -> tuple[Any, Any]:
    """(script, its options as ``argv`` gives them). Raises WrongOption of one line for a mistake in them."""
    script = importlib.import_module(module)
    from odin_jax.options import parse

    defaults = {"default": script.defaults(argv)} if hasattr(script, "defaults") else {}
    return script, parse(getattr(script, config_class), argv, prog, (script.__doc__ or "").strip(), **defaults)


def check(argv: Sequence[str]) -> None:
    """Find the mistakes in a command that can be found before it runs.

    Raises UnknownName for an unknown command, WrongOption and UserError for its options, SystemExit after a help text.
    """
    if not argv or argv[0] == "bench":
        return
    if argv[0] not in COMMANDS:
        raise UnknownName(_unknown("command", argv[0], [*COMMANDS, "bench"]))
    if argv[0] in TAKES_COMMAND:
        raise UnknownName(f"odin {argv[0]} starts every command but itself; leave out the second {argv[0]!r}")
    module, config_class, _ = COMMANDS[argv[0]]
    script, options = parsed(module, config_class, argv[1:], f"odin {argv[0]}")
    if hasattr(script, "check"):
        script.check(options)


def bench(argv: Sequence[str]) -> int:
    """Run ``scripts.bench.NAME.main(argv)``. Raises UnknownName for an unknown name."""
    from pathlib import Path

    folder = Path(importlib.import_module("scripts.bench").__file__ or "").parent
    names = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
    if not argv or argv[0] in ("-h", "--help"):
        print(f"usage: odin bench NAME [options]\n\n  names: {', '.join(names)}")
        return 0
    if argv[0] not in names:
        raise UnknownName(_unknown("bench", argv[0], names))
    return importlib.import_module(f"scripts.bench.{argv[0]}").main(list(argv[1:])) or 0


def dispatch(argv: Sequence[str]) -> int:
    """Run the subcommand that ``argv`` names. Raises UnknownName for an unknown one."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if argv[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(f"odin {version('odin-jax')}")
        return 0
    flags.set_for_this_machine(os.environ)
    if argv[0] == "bench":
        return bench(argv[1:])
    if argv[0] not in COMMANDS:
        raise UnknownName(_unknown("command", argv[0], [*COMMANDS, "bench"]))
    module, config_class, _ = COMMANDS[argv[0]]
    if argv[0] in TAKES_COMMAND:
        cut = next((at for at in range(1, len(argv)) if argv[at] in ("--", "bench", *COMMANDS)), len(argv))
        behind = argv[cut + 1:] if argv[cut:cut + 1] == ["--"] else argv[cut:]
        script, options = parsed(module, config_class, argv[1:cut], f"odin {argv[0]}")
        check(behind)  # a mistake is told once, not by every process
        return script.main(options, behind) or 0
    return run(module, config_class, argv[1:], f"odin {argv[0]}")


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return f"unknown {what} {name!r}; {hint}"


def is_users_fault(error: BaseException) -> bool:
    """Whether the error's message is meant for the user; looks only at classes that are loaded already."""
    classes = [getattr(sys.modules[module], name) for module, name in USERS_FAULT if module in sys.modules]
    return isinstance(error, (UnknownName, *classes))


def main(argv: Sequence[str] | None = None) -> None:
    """Entry of the console command: a user's mistake is one line on stderr and exit code 2."""
    never_swallow()
    try:
        sys.exit(dispatch(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:
        if not is_users_fault(error):
            raise
        print(f"odin: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
