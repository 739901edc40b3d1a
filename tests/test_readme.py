"""What the README promises is run as it stands there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
from PIL import Image

from odin_jax.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_library_example_runs_and_fits():
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 24
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert float(names["error"]) < 0.02 * float(np.var(names["photo"]))


def test_the_two_commands_are_targets_of_the_makefile():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    first = [line.split()[1] for line in blocks("sh")[0].splitlines()]
    assert first == ["demo", "test"]
    assert set(first) <= targets


def test_every_command_shown_exists():
    shown = set(re.findall(r"\bodin ([a-z]+)\b", "\n".join(blocks("sh"))))
    assert {"train", "eval", "render", "export", "import", "plan"} <= shown
    assert shown <= set(COMMANDS)


def test_linked_files_exist_and_the_picture_is_one():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).is_file(), link
    assert min(Image.open(ROOT / "docs/images/demo.png").size) >= 200


def test_the_example_fits_an_image(tmp_path):
    spec = importlib.util.spec_from_file_location("fit_image", ROOT / "examples" / "fit_image.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    photo = example.picture(None, side=48)
    Image.fromarray(np.rint(255 * photo).astype(np.uint8)).save(tmp_path / "in.png")
    out = tmp_path / "fit.png"
    quality = example.main([str(tmp_path / "in.png"), "--rows", "200", "--steps", "40", "--out", str(out)])
    assert quality[-1] > quality[0] + 3
    assert Image.open(out).size == (96, 48)
