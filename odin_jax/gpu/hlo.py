"""Scheduled HLO text as lists of instructions: what XLA will launch, in which order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2, "s32": 4, "u32": 4, "f32": 4,
         "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16}
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute",
               "collective-broadcast", "ragged-all-to-all")
# Instructions that launch nothing: they name, regroup or give constants.
SILENT = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
          "optimization-barrier")
CALLERS = ("while", "call", "conditional")  # they launch what they call
HOST = ("infeed", "outfeed", "send", "recv", "send-done", "recv-done")

_HEAD = re.compile(r"^(ENTRY )?%(\S+) \(.*\{\s*$")
_LINE = re.compile(r"^\s+(?:ROOT )?%(\S+) = (.*)$")
_SHAPE = re.compile(r"\b([a-z]+[0-9]*)\[([0-9,]*)\]")


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    shape: str  # of its result, as text
    opcode: str
    rest: str  # operands and attributes, as text

    @cached_property
    def sizes(self) -> list[int]:
        """Bytes of each array of the result."""
        return [_bytes(kind, dims) for kind, dims in _SHAPE.findall(self.shape) if kind in BYTES]

    @property
    def kinds(self) -> set[str]:
        """Element types of the result."""
        return {kind for kind, _ in _SHAPE.findall(self.shape) if kind in BYTES}

    @property
    def source(self) -> str:
        """Where in the program it comes from: names of scopes and functions, joined by slashes."""
        found = re.search(r'op_name="([^"]*)"', self.rest)
        return found[1] if found else ""

    @property
    def operands(self) -> list[str]:
        """Names of what it takes."""
        return re.findall(r"%([\w.\-]+)", self.rest.split("), ")[0])

    def attribute(self, name: str) -> str | None:
        """The computation or word that ``name=`` gives."""
        found = re.search(rf"\b{name}=%?([\w.\-]+)", self.rest)
        return found[1] if found else None

    @property
    def called(self) -> list[str]:
        """Computations that it runs as a whole, in the order in which it does."""
        if self.opcode == "while":
            return [name for name in (self.attribute("condition"), self.attribute("body")) if name]
        if self.opcode == "call":
            return [name for name in (self.attribute("to_apply"),) if name]
        if self.opcode == "conditional":
            branches = re.search(r"branch_computations=\{([^}]*)\}", self.rest)
            named = re.findall(r"(?:true|false)_computation=%([\w.\-]+)", self.rest)
            return re.findall(r"%([\w.\-]+)", branches[1]) if branches else named
        return []

    @property
    def trips(self) -> int | None:
        """Rounds of a loop, if they are known beforehand; else the host looks at its condition every round."""
        found = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', self.rest)
        return int(found[1]) if found else None

    @property
    def collective(self) -> str | None:
        """Which collective it is, starts or ends."""
        base = re.sub(r"-(start|done)$", "", self.opcode)
        return base if base in COLLECTIVES else None


class Program:
    """The computations of a compiled program."""

    def __init__(self, text: str):
        self.computations: dict[str, list[Instruction]] = {}
        self.entry: list[Instruction] = []
        current: list[Instruction] = []
        for line in text.splitlines():
            if head := _HEAD.match(line):
                current = self.computations.setdefault(head[2], [])
                if head[1]:
                    self.entry = current
            elif found := _LINE.match(line):
                current.append(_instruction(*found.groups()))

    def launched(self, instructions: list[Instruction]) -> list[Instruction]:
        """All instructions that run one after the other when ``instructions`` do, each loop's body once."""
        found = []
        for each in instructions:
            found.append(each)
            for name in each.called:
                found += self.launched(self.computations.get(name, []))
        return found

    def kernels(self, instructions: list[Instruction]) -> int:
        """Kernels, copies and library calls that ``instructions`` launch; a loop of unknown length counts once."""
        total = 0
        for each in instructions:
            if each.opcode in CALLERS:
                inner = sum(self.kernels(self.computations.get(name, [])) for name in each.called)
                total += inner * (each.trips or 1)
            elif each.opcode not in SILENT and not each.opcode.endswith("-done"):
                total += 1
        return total


def _instruction(name: str, text: str) -> Instruction:
    if text.startswith("("):
        depths = accumulate((char == "(") - (char == ")") for char in text)
        end = next(at for at, depth in enumerate(depths, 1) if depth == 0)
        shape, rest = text[:end], text[end:].lstrip()
    else:
        shape, _, rest = text.partition(" ")
    opcode, _, rest = rest.partition("(")
    return Instruction(name, shape, opcode, rest)


def _bytes(kind: str, dims: str) -> int:
    count = 1
    for size in dims.split(","):
        count *= int(size) if size else 1
    return BYTES[kind] * count
