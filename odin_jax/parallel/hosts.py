"""Which processes make up a run: from options, from ODIN_* variables, from Slurm or from MPI.

Pure: everything is read from the arguments, so that every case can be tested without a cluster.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from splat.errors import UserError

Source = Literal["auto", "slurm", "mpi", "env"]
FIRST_PORT, PORTS = 61440, 4096  # ports derived from a job's number; above the range that systems give out
COORDINATOR, PROCESSES, PROCESS = "ODIN_COORDINATOR", "ODIN_NUM_PROCESSES", "ODIN_PROCESS_ID"
KUBERNETES_INDEX = "JOB_COMPLETION_INDEX"  # of an indexed Job; stands in for ODIN_PROCESS_ID
OPTIONS = {"coordinator": "--coordinator", "processes": "--num-processes", "process": "--process-id"}


@dataclass(frozen=True)
class Hosts:
    """One process's place in a run of several."""

    coordinator: str  # HOST:PORT where process 0 listens
    processes: int  # number of processes, at least 2
    process: int  # this one, from 0
    source: str  # where this was read: options, env, slurm or mpi

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) of the coordinator; an IPv6 host without its brackets."""
        host, port = self.coordinator.rsplit(":", 1)
        return host.strip("[]"), int(port)


@dataclass(frozen=True)
class Found:
    """What one source says: value and the name to blame for it, per part; a part may be missing."""

    source: str
    parts: dict[str, tuple[str, str]]  # coordinator, processes, process: (value, name of option or variable)
    absent: dict[str, str]  # part: the name of what would have to be set


def find_hosts(source: Source | None, coordinator: str | None, processes: int | None, process: int | None,
               environ: Mapping[str, str]) -> Hosts | None:
    """This process's place in the run, or None when it is the only process.

    ``source`` None: the three options, else the variables ODIN_*. "auto": also Slurm and MPI, the first that is
    there. A named source must be there. An option that is given wins over what the source says for its part.
    Raises UserError of one line that names the option or variable when the parts do not fit.
    """
    given = {"coordinator": coordinator, "processes": processes, "process": process}
    options = {part: (str(value), OPTIONS[part]) for part, value in given.items() if value is not None}
    found = Found("options", {}, OPTIONS) if len(options) == 3 else _from_source(source, environ)
    if found is None:
        if options:
            missing = " and ".join(name for part, name in OPTIONS.items() if part not in options)
            named = " and ".join(name for _, name in options.values())
            raise UserError(f"{named} without {missing}: give all three, or say --hosts-from slurm, mpi or env")
        return None
    return _checked(Found(found.source, {**found.parts, **options}, found.absent))


def _from_source(source: Source | None, environ: Mapping[str, str]) -> Found | None:
    if source in READERS:
        found = READERS[source](environ)
        if found is None:
            raise UserError(f"--hosts-from {source}: {NEEDED[source]}")
        return found
    names = READERS if source == "auto" else ("env",)
    return next((found for name in names if (found := READERS[name](environ)) is not None), None)


def _checked(found: Found) -> Hosts | None:
    for part in ("processes", "process", "coordinator"):
        if part == "coordinator" and _number(found, "processes") == 1:
            return None
        if part not in found.parts:
            there = ", ".join(name for _, name in found.parts.values())
            raise UserError(f"{there} is set but {found.absent[part]} is not; set all of them or none")
    processes, process = _number(found, "processes"), _number(found, "process")
    if processes < 1:
        raise UserError(f"{found.parts['processes'][1]} {processes}: must be at least 1")
    if not 0 <= process < processes:
        raise UserError(f"{found.parts['process'][1]} {process}: must be 0 to {processes - 1}, as "
                        f"{found.parts['processes'][1]} is {processes}")
    return Hosts(_address(*found.parts["coordinator"]), processes, process, found.source)


def _number(found: Found, part: str) -> int:
    text, name = found.parts[part]
    try:
        return int(text)
    except ValueError as error:
        raise UserError(f"{name} {text!r}: must be a whole number") from error


def _address(text: str, name: str) -> str:
    """``text`` when it is HOST:PORT with a port from 1 to 65535."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.%\w]+\]|[^:\[\]\s]+):(\d+)", text)
    if match is None or not 1 <= int(match[2]) <= 65535:
        raise UserError(f"{name} {text!r}: give HOST:PORT of process 0, such as node1:7070 or [fe80::1]:7070")
    return text


def _from_env(environ: Mapping[str, str]) -> Found | None:
    """ODIN_COORDINATOR, ODIN_NUM_PROCESSES and ODIN_PROCESS_ID (or the index of a Kubernetes Job)."""
    names = {"coordinator": COORDINATOR, "processes": PROCESSES, "process": PROCESS}
    parts = {part: (environ[name], name) for part, name in names.items() if environ.get(name)}
    if parts and "process" not in parts and environ.get(KUBERNETES_INDEX):
        parts["process"] = (environ[KUBERNETES_INDEX], KUBERNETES_INDEX)
    return Found("env", parts, names) if parts else None


def _from_slurm(environ: Mapping[str, str]) -> Found | None:
    """A step of Slurm, as srun starts it. A batch script's own shell is none: it has no step."""
    nodes, rank = environ.get("SLURM_STEP_NODELIST"), environ.get("SLURM_PROCID")
    if not nodes or not rank:
        return None
    size = next((name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if environ.get(name)), None)
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "0")
    parts = {"process": (rank, "SLURM_PROCID")}
    if size:
        parts["processes"] = (environ[size], size)
    if job.isdigit():
        number = int(job) + 131 * (int(step) if step.isdigit() else 0)
        first = expand_nodes(nodes, "SLURM_STEP_NODELIST")[0]
        parts["coordinator"] = (f"{first}:{FIRST_PORT + number % PORTS}", "SLURM_STEP_NODELIST")
    return Found("slurm", parts, {"coordinator": "SLURM_JOB_ID", "processes": "SLURM_NTASKS"})


def _from_mpi(environ: Mapping[str, str]) -> Found | None:
    """OpenMPI's or PMI's rank and size; the coordinator where OpenMPI tells it or all are on one host."""
    pairs = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
    rank, size = next((pair for pair in pairs if environ.get(pair[0])), (None, None))
    if rank is None or size is None:
        return None
    parts = {"process": (environ[rank], rank)}
    if environ.get(size):
        parts["processes"] = (environ[size], size)
    address = environ.get(COORDINATOR) or _mpi_coordinator(environ)
    if address:
        parts["coordinator"] = (address, COORDINATOR if environ.get(COORDINATOR) else "OMPI_MCA_orte_hnp_uri")
    return Found("mpi", parts, {"coordinator": f"--coordinator or {COORDINATOR} (HOST:PORT of rank 0)",
                                "processes": size})


def _mpi_coordinator(environ: Mapping[str, str]) -> str | None:
    uri = environ.get("OMPI_MCA_orte_hnp_uri", "")
    match = re.match(r"(\d+)\.\d+;(?:tcp://([^,:]+)|tcp6://\[([^,\]]+))", uri)
    if match:
        host = match[2] or f"[{match[3]}]"
        return f"{host}:{FIRST_PORT + int(match[1]) // PORTS % PORTS}"  # the job's number is a multiple of 4096
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid")
    size = environ.get("OMPI_COMM_WORLD_SIZE")
    if job and size and environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == size:
        return f"127.0.0.1:{FIRST_PORT + zlib.crc32(job.encode()) % PORTS}"
    return None


READERS: dict[str, Callable[[Mapping[str, str]], Found | None]] = {
    "env": _from_env, "slurm": _from_slurm, "mpi": _from_mpi}
NEEDED = {
    "env": f"set {COORDINATOR}, {PROCESSES} and {PROCESS}",
    "slurm": "SLURM_PROCID and SLURM_STEP_NODELIST are not set; start the command with srun",
    "mpi": "neither OMPI_COMM_WORLD_RANK nor PMI_RANK is set; start the command with mpirun or mpiexec",
}


def expand_nodes(text: str, name: str) -> list[str]:
    """Host names of a Slurm node list such as ``a[01-03,7]-ib,b``, in order.

    Raises UserError naming the variable ``name`` when the list is broken.
    """
    entries = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if not entries or ",".join(entries) != text:
        raise UserError(f"{name} {text!r}: not a list of nodes such as node[01-04,7],login")
    return [host for entry in entries for host in _expand_entry(entry, name)]


def _expand_entry(entry: str, name: str) -> list[str]:
    pieces: list[list[str]] = []
    for index, piece in enumerate(re.split(r"\[([^\[\]]*)\]", entry)):
        pieces.append([piece] if index % 2 == 0 else _expand_ranges(piece, entry, name))
    return ["".join(parts) for parts in itertools.product(*pieces)]


def _expand_ranges(text: str, entry: str, name: str) -> list[str]:
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise UserError(f"{name} {entry!r}: {part!r} is not a number or a range such as 01-04")
        last = int(match[2] or match[1])
        found += [str(number).zfill(len(match[1])) for number in range(int(match[1]), last + 1)]
    return found
