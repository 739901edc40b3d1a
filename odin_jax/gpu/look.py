"""What a compiled program does: its exchanges and what lies beside them, its memory, its loops and launches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from odin_jax.gpu.hlo import HOST, SILENT, Instruction, Program

WIDE = {"f64", "c128"}


@dataclass(frozen=True)
class Exchange:
    """One collective of the program."""

    scope: str  # part of the program it belongs to; empty outside the named ones
    kind: str  # e.g. all-reduce
    bytes: int  # of what it gives
    pair: bool  # it is a start and an end, not one blocking instruction
    kernels: int  # launched between start and end
    loops: tuple[str, ...]  # scopes of the loops between start and end


@dataclass(frozen=True)
class Loop:
    """A loop of the program."""

    scope: str
    trips: int | None  # None: the host looks at its condition after every round
    kernels: int  # per round
    depth: int  # loops around it


@dataclass(frozen=True)
class Facts:
    """What there is to know of a compiled program without running it."""

    name: str
    bytes: dict[str, int]  # arguments, results, aliased, temporaries, what else is held, and the peak of all
    exchanges: list[Exchange]
    loops: list[Loop]
    kernels: int  # launched in all; loops of unknown length count once
    largest: tuple[int, str, str]  # bytes, shape and source of the largest temporary
    wide: int  # instructions that give 64-bit floating point
    host: list[str]  # instructions that wait for the host


def facts(name: str, compiled: Any, scopes: tuple[str, ...], beside: int = 0) -> Facts:
    """The facts of a compiled program; ``scopes`` are the names that its parts may have.

    ``beside``: bytes that a device holds while it runs and that are not its arguments.
    """
    program, memory = Program(compiled.as_text()), compiled.memory_analysis()
    sizes = {
        "arguments": memory.argument_size_in_bytes, "results": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes, "temporaries": memory.temp_size_in_bytes, "beside": beside,
    }
    sizes["peak"] = beside + sizes["arguments"] + sizes["results"] - sizes["aliased"] + sizes["temporaries"]
    launched = program.launched(program.entry)
    return Facts(
        name, sizes, _exchanges(program, scopes), _loops(program, program.entry, scopes, 0),
        program.kernels(program.entry), _largest(launched),
        sum(1 for each in launched if each.kinds & WIDE),
        sorted({each.opcode for each in launched if each.opcode in HOST}
               | {each.attribute("custom_call_target") or "" for each in launched if _calls_back(each)}
               | ({"conditional"} if any(each.opcode == "conditional" for each in launched) else set())))


def scope_of(instruction: Instruction, scopes: tuple[str, ...]) -> str:
    """Which of ``scopes`` an instruction belongs to; empty: none."""
    words = re.split(r"[/()]", instruction.source)
    return next((scope for scope in scopes if scope in words), "")


def _exchanges(program: Program, scopes: tuple[str, ...]) -> list[Exchange]:
    found = []
    for lines in program.computations.values():
        ends = {each.operands[0]: at for at, each in enumerate(lines) if each.opcode.endswith("-done")}
        for at, each in enumerate(lines):
            if each.collective is None or each.opcode.endswith("-done"):
                continue
            end = ends.get(each.name)
            between = lines[at + 1 : end] if end is not None else []
            pair = each.opcode.endswith("-start") and '"is_sync":true' not in each.rest
            loops = tuple(scope_of(other, scopes) or other.name for other in between if other.opcode == "while")
            found.append(Exchange(scope_of(each, scopes), each.collective, max(each.sizes), pair,
                                  program.kernels(between), loops))
    return found


def _loops(program: Program, lines: list[Instruction], scopes: tuple[str, ...], depth: int) -> list[Loop]:
    found = []
    for each in lines:
        bodies = [program.computations.get(name, []) for name in each.called]
        if each.opcode == "while":
            found.append(Loop(scope_of(each, scopes), each.trips, sum(map(program.kernels, bodies)), depth))
        for body in bodies:
            found += _loops(program, body, scopes, depth + (each.opcode == "while"))
    return found


def _largest(launched: list[Instruction]) -> tuple[int, str, str]:
    """The largest array that an instruction makes; loops and joined values only hand on what others made."""
    made = [each for each in launched if each.opcode not in (*SILENT, "while", "call", "conditional")
            and not each.opcode.endswith("-done") and each.sizes]
    largest = max(made, key=lambda each: max(each.sizes))
    at = largest.sizes.index(max(largest.sizes))
    shapes = re.findall(r"[a-z]+[0-9]*\[[0-9,]*\]", largest.shape)
    return max(largest.sizes), shapes[at], largest.source.split("closed_call/")[-1]


def _calls_back(each: Instruction) -> bool:
    return each.opcode == "custom-call" and "callback" in (each.attribute("custom_call_target") or "")
