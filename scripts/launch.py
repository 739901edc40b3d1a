"""Start several processes of an odin command on this host: odin launch --processes P -- train …"""

from __future__ import annotations

from collections.abc import Sequence

from odin_jax.launch import LaunchConfig, launch

__all__ = ["LaunchConfig", "main"]


def main(config: LaunchConfig, command: Sequence[str]) -> int:
    """Exit code: 0, or that of the process that failed first."""
    return launch(config, command)
