"""One process of a run that does nothing but sums over all processes; started several times by tests.

    python psum_loop.py FOLDER STEPS SILENCE_S [RANK STEP]

Each rank writes FOLDER/RANK.pid when it has made three steps. RANK raises a user's error after STEP. The last rank
leaves the loop half a second after the others.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from odin_jax.cli import is_users_fault
from odin_jax.parallel.hosts import find_hosts
from odin_jax.parallel.join import joined
from odin_jax.parallel.watch import Timing
from splat.errors import UserError


def threads_of_xla() -> int:
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return names.count("tf_XLAEigen")


def main(folder: Path, steps: int, silence_s: float, bad_rank: int = -1, bad_step: int = 0) -> None:
    hosts = find_hosts(None, None, None, None, os.environ)
    with joined(hosts, 1, Timing(start_s=300, silence_s=silence_s)) as team:
        mesh = Mesh(np.array(jax.devices()), ("ranks",))
        one, all_ = PartitionSpec("ranks"), PartitionSpec()
        total = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "ranks"), mesh=mesh, in_specs=one, out_specs=all_))
        numbers = np.arange(team.processes, dtype=np.float32)
        ranks = jax.make_array_from_callback(numbers.shape, NamedSharding(mesh, one), lambda index: numbers[index])
        value = np.zeros(1)
        for step in range(1, steps + 1):
            value = np.asarray(total(ranks))
            team.reached(step)
            if step == 3:
                (folder / "new").with_suffix(f".{team.process}").write_text(str(os.getpid()))
                (folder / "new").with_suffix(f".{team.process}").rename(folder / f"{team.process}.pid")
            if (team.process, step) == (bad_rank, bad_step):
                raise UserError("photo 7.png is broken; replace it")
            time.sleep(0.01)
        if team.process == team.processes - 1:
            time.sleep(0.5)
        print(f"total {value[0]:g} in {jax.process_count()} processes, {threads_of_xla()} threads")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), *map(int, sys.argv[4:]))
    except Exception as error:
        if not is_users_fault(error):
            raise
        print(f"odin: {error}", file=sys.stderr)
        sys.exit(2)
