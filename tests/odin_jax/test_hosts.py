"""Where a run's processes are read from, and what is said when the parts do not fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odin_jax.parallel.hosts import FIRST_PORT, PORTS, expand_nodes, find_hosts
from splat.errors import UserError

ENV = {"ODIN_COORDINATOR": "node1:7070", "ODIN_NUM_PROCESSES": "4", "ODIN_PROCESS_ID": "3"}
SLURM = {"SLURM_PROCID": "2", "SLURM_NTASKS": "3", "SLURM_JOB_ID": "8195",
         "SLURM_STEP_NODELIST": "gpu[007-009,12],login"}
OMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"}
OMPI5 = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
         "PMIX_NAMESPACE": "prterun-node-77@1"}
PMI = {"PMI_RANK": "0", "PMI_SIZE": "2"}
JOB = {"ODIN_COORDINATOR": "run-0.run:7070", "ODIN_NUM_PROCESSES": "2", "JOB_COMPLETION_INDEX": "1"}


def without(environ: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in environ.items() if key != name}


@pytest.mark.parametrize(
    ("source", "options", "environ", "expected"),
    [
        (None, ("h:1", 2, 1), {}, ("h:1", 2, 1, "options")),
        (None, ("[::1]:65535", 2, 0), {}, ("[::1]:65535", 2, 0, "options")),
        (None, ("h:1", 2, 1), ENV, ("h:1", 2, 1, "options")),
        ("auto", ("h:1", 2, 1), SLURM, ("h:1", 2, 1, "options")),
        (None, (None, None, None), ENV, ("node1:7070", 4, 3, "env")),
        ("env", (None, None, 0), ENV, ("node1:7070", 4, 0, "env")),
        ("auto", (None, None, None), {**ENV, **SLURM}, ("node1:7070", 4, 3, "env")),
        ("auto", (None, None, None), {**OMPI, **SLURM}, (f"gpu007:{FIRST_PORT + 3}", 3, 2, "slurm")),
        ("slurm", ("h:9", None, None), SLURM, ("h:9", 3, 2, "slurm")),
        ("slurm", (None, None, None), {**SLURM, "SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_ID": "1"},
         (f"gpu007:{FIRST_PORT + 134}", 5, 2, "slurm")),
        ("auto", (None, None, None), OMPI,
         (f"10.96.0.1:{FIRST_PORT + 1531576320 // 4096 % PORTS}", 2, 1, "mpi")),
        ("mpi", (None, None, None), {**PMI, "ODIN_COORDINATOR": "h:8"}, ("h:8", 2, 0, "mpi")),
        ("mpi", ("h:9", None, None), PMI, ("h:9", 2, 0, "mpi")),
        ("env", (None, None, None), JOB, ("run-0.run:7070", 2, 1, "env")),
    ],
)
def test_the_first_source_that_is_there_says_who_takes_part(source, options, environ, expected):
    hosts = find_hosts(source, *options, environ)
    assert hosts is not None
    assert (hosts.coordinator, hosts.processes, hosts.process, hosts.source) == expected


@pytest.mark.parametrize(
    ("source", "environ"),
    [
        (None, {}), ("auto", {}),
        (None, SLURM), (None, OMPI),  # a cluster is only used when asked for
        ("auto", without(SLURM, "SLURM_STEP_NODELIST")),  # a batch script's own shell
        ("auto", {"JOB_COMPLETION_INDEX": "1"}),
        ("slurm", {**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}),
        ("env", {"ODIN_NUM_PROCESSES": "1", "ODIN_PROCESS_ID": "0"}),
    ],
)
def test_a_single_process_needs_nobody(source, environ):
    assert find_hosts(source, None, None, None, environ) is None


@pytest.mark.parametrize(
    ("source", "options", "environ", "named"),
    [
        (None, ("h:1", None, None), {}, ["--coordinator", "--num-processes", "--process-id"]),
        ("auto", (None, 2, 0), {}, ["--num-processes", "--coordinator"]),
        (None, ("h:1", 2, 2), {}, ["--process-id 2", "0 to 1"]),
        (None, ("h:1", 2, -1), {}, ["--process-id -1"]),
        (None, ("h:1", 0, 0), {}, ["--num-processes 0"]),
        (None, ("h", 2, 0), {}, ["--coordinator 'h'", "HOST:PORT"]),
        (None, ("h:", 2, 0), {}, ["--coordinator"]),
        (None, ("h:70000", 2, 0), {}, ["--coordinator 'h:70000'"]),
        (None, ("::1:7070", 2, 0), {}, ["--coordinator", "["]),
        (None, (None, None, None), without(ENV, "ODIN_COORDINATOR"), ["ODIN_COORDINATOR is not"]),
        (None, (None, None, None), without(ENV, "ODIN_PROCESS_ID"), ["ODIN_PROCESS_ID is not"]),
        (None, (None, None, None), {**ENV, "ODIN_NUM_PROCESSES": "four"}, ["ODIN_NUM_PROCESSES 'four'"]),
        (None, (None, None, None), {**ENV, "ODIN_PROCESS_ID": "4"}, ["ODIN_PROCESS_ID 4", "ODIN_NUM_PROCESSES"]),
        ("env", (None, None, None), {}, ["--hosts-from env", "ODIN_COORDINATOR"]),
        ("env", (None, None, None), {**JOB, "JOB_COMPLETION_INDEX": "2"}, ["JOB_COMPLETION_INDEX 2"]),
        ("slurm", (None, None, None), {}, ["--hosts-from slurm", "srun"]),
        ("slurm", (None, None, None), without(SLURM, "SLURM_NTASKS"), ["SLURM_NTASKS is not"]),
        ("slurm", (None, None, None), without(SLURM, "SLURM_JOB_ID"), ["SLURM_JOB_ID is not"]),
        ("slurm", (None, None, None), {**SLURM, "SLURM_STEP_NODELIST": "a[1-"}, ["SLURM_STEP_NODELIST 'a[1-'"]),
        ("slurm", (None, None, None), {**SLURM, "SLURM_STEP_NODELIST": "a[3-1]"}, ["SLURM_STEP_NODELIST", "3-1"]),
        ("mpi", (None, None, None), {}, ["--hosts-from mpi", "mpirun"]),
        ("mpi", (None, None, None), PMI, ["--coordinator or ODIN_COORDINATOR"]),
        ("mpi", (None, None, None), {**OMPI5, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, ["--coordinator"]),
        ("mpi", (None, None, None), without(OMPI, "OMPI_COMM_WORLD_SIZE"), ["OMPI_COMM_WORLD_SIZE is not"]),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(source, options, environ, named):
    with pytest.raises(UserError) as caught:
        find_hosts(source, *options, environ)
    line = str(caught.value)
    assert "\n" not in line
    assert [part for part in named if part not in line] == []


def test_processes_of_one_host_meet_there_on_the_jobs_own_port():
    ours, theirs = (find_hosts("mpi", None, None, None, {**OMPI5, "PMIX_NAMESPACE": name}) for name in ("a@1", "b@1"))
    assert ours is not None and theirs is not None
    assert ours.address[0] == theirs.address[0] == "127.0.0.1"
    assert ours.address[1] != theirs.address[1]
    assert {*range(FIRST_PORT, FIRST_PORT + PORTS)} >= {ours.address[1], theirs.address[1]}


def test_the_address_of_an_ipv6_host_has_no_brackets():
    hosts = find_hosts(None, "[fe80::1]:70", 2, 0, {})
    assert hosts is not None
    assert hosts.address == ("fe80::1", 70)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node001", ["node001"]),
        ("a,b", ["a", "b"]),
        ("n[09-11]", ["n09", "n10", "n11"]),
        ("n[1,3-4]-ib,z", ["n1-ib", "n3-ib", "n4-ib", "z"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("gpu-a-7", ["gpu-a-7"]),
    ],
)
def test_node_lists_expand_in_order(text, hosts):
    assert expand_nodes(text, "X") == hosts


@given(st.integers(0, 200), st.integers(0, 30), st.integers(1, 4))
def test_a_range_keeps_its_width_and_length(first, more, width):
    low = str(first).zfill(width)
    hosts = expand_nodes(f"n[{low}-{first + more}]", "X")
    assert [int(host[1:]) for host in hosts] == list(range(first, first + more + 1))
    assert min(map(len, hosts)) == 1 + len(low)
