"""Train a scene from a capture. Run again with the same options to continue where it stopped."""

from __future__ import annotations

from odin_jax.config_file import defaults
from odin_jax.record import Clock
from odin_jax.session import train
from odin_jax.train_config import TrainConfig, resolved

__all__ = ["TrainConfig", "check", "defaults", "main"]


def check(config: TrainConfig) -> None:
    """Raise UserError for a value that cannot work, before anything is started."""
    resolved(config)


def main(config: TrainConfig) -> int:
    """Exit code: 0 when the run is complete, 128 + signal when it was interrupted and saved."""
    return train(config, Clock.of_process())


if __name__ == "__main__":
    import sys

    from odin_jax.cli import main as odin

    odin(["train", *sys.argv[1:]])
