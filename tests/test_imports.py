"""The import direction: sched ← (nothing), splat ← (nothing), odin_jax ← both, scripts only wire."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = {"sched", "splat", "odin_jax", "scripts"}
ALLOWED = {
    "sched": {"sched"},
    "splat": {"splat"},
    "odin_jax": {"odin_jax", "splat", "sched"},
    "scripts": OURS,
}
NEVER = {
    "sched": {"jax", "jaxlib", "flax", "optax", "pycolmap", "numba", "torch"},
    "splat": {"numba", "torch"},
    "odin_jax": {"pycolmap", "numba", "torch"},
    "scripts": {"pycolmap", "numba", "torch"},
}


def imported(tree: ast.AST) -> list[tuple[str, int]]:
    """(dotted module, line) of every import anywhere in a module, lazy ones included."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import on line {node.lineno}: write the package's name"
            found.append((node.module or "", node.lineno))
    return found


def wrong_arrows(package: str, source: str) -> list[str]:
    """Imports that a module of ``package`` must not make."""
    wrong = []
    for module, line in imported(ast.parse(source)):
        top = module.split(".")[0]
        if (top in OURS and top not in ALLOWED[package]) or top in NEVER[package]:
            wrong.append(f"line {line}: {package} imports {module}")
    return wrong


@pytest.mark.parametrize("package", sorted(OURS))
def test_packages_import_only_downwards(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    wrong = {path.relative_to(ROOT).as_posix(): wrong_arrows(package, path.read_text()) for path in files}
    assert {name: arrows for name, arrows in wrong.items() if arrows} == {}


def test_pycolmap_is_imported_in_one_place_and_lazily():
    places = []
    for path in sorted((ROOT / "splat").rglob("*.py")):
        tree = ast.parse(path.read_text())
        if any(name.split(".")[0] == "pycolmap" for name, _ in imported(tree)):
            places.append(path.relative_to(ROOT).as_posix())
        top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not any(name.split(".")[0] == "pycolmap" for node in top for name, _ in imported(node)), path
    assert places in ([], ["splat/scene/colmap.py"])


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("sched", "import jax.numpy as jnp"),
        ("splat", "def f():\n    from odin_jax.trainer import train"),
        ("odin_jax", "from scripts.plan import main"),
        ("splat", "import sched"),
    ],
)
def test_a_wrong_arrow_is_found(package, source):
    assert len(wrong_arrows(package, source)) == 1
