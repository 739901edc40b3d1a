"""Importing ``odin_jax`` first makes ``sched`` this project's scheduler, not the standard library's."""

import odin_jax  # noqa: F401
