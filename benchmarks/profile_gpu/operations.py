"""Operations of a compiled program by kind, read off its text.

XLA's own count (``cost_analysis()["flops"]``) adds integer operations to floating-point ones, though they have
different ceilings: a random word is integers only, its quantile is floats only. Here the same instructions are counted
apart. A test holds their sum to XLA's.
"""

import math
import re
from collections import Counter
from typing import NamedTuple

__all__ = ["Operations", "count"]

# As XLA's own count has them, but for ``bitcast-convert``, which computes nothing.
ARITHMETIC = frozenset(
    """add subtract multiply divide remainder negate abs minimum maximum clamp sign floor ceil round-nearest-even
    round-nearest-afz and or xor not shift-left shift-right-logical shift-right-arithmetic compare select convert
    popcnt count-leading-zeros is-finite""".split()  # noqa: SIM905
)
TRANSCENDENTAL = frozenset(
    """exponential exponential-minus-one log log-plus-one sine cosine tan tanh atan2 sqrt rsqrt cbrt power erf
    logistic""".split()  # noqa: SIM905
)
FLOATS = ("f", "bf")
# What an instruction calls, and as often as it runs.
CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%?([\w.-]+)")
HEADER = re.compile(r"^(ENTRY )?%?([\w.-]+) .*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\w+\[[\d,]*\]\S*) ([a-z][\w-]*)\((.*)$")
TYPE = re.compile(r"(\w+)\[([\d,]*)\]")
TRIPS = re.compile(r'known_trip_count"?:\{"?n"?:"?(\d+)')
CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
BRANCHES = re.compile(
    r"(?:branch_computations=\{([^}]*)\}|true_computation=%?([\w.-]+), false_computation=%?([\w.-]+))"
)
OPERAND = re.compile(r"%([\w.-]+)")


class Operations(NamedTuple):
    """Operations of one run: on floats, on integers, and transcendental functions of floats.

    `whole` is false where the text leaves open what runs: a loop that does not tell how often (counted once), or
    branches (the cheapest is counted).
    """

    floats: int = 0
    integers: int = 0
    transcendentals: int = 0
    whole: bool = True


class Instruction(NamedTuple):
    """One line of a program."""

    dtype: str
    dimensions: tuple[int, ...]
    opcode: str
    rest: str

    @property
    def size(self):
        """Elements of the result."""
        return math.prod(self.dimensions)


def parsed(text):
    """The computations of a program by name, each a dict of instructions by name, and the name of the entry."""
    computations, entry, current = {}, None, None
    for line in text.splitlines():
        if header := HEADER.match(line):
            current = computations.setdefault(header[2], {})
            entry = header[2] if header[1] else entry
        elif (found := INSTRUCTION.match(line)) and current is not None:
            shape = TYPE.search(found[2])  # of a tuple the first: nothing that is counted gives one
            dtype, sizes = shape.groups() if shape else ("", "")
            dimensions = tuple(int(size) for size in sizes.split(",") if size)
            current[found[1]] = Instruction(dtype, dimensions, found[3], found[4])
    return computations, entry


def kind(instruction, types):
    """Which field of `Operations` an elementwise instruction belongs to; None if it is not arithmetic."""
    if instruction.opcode in TRANSCENDENTAL:
        return "transcendentals"
    if instruction.opcode not in ARITHMETIC:
        return None
    # The type of a comparison is that of what it compares; a conversion is done by the unit for floats.
    seen = [instruction.dtype]
    if instruction.opcode in ("compare", "convert"):
        seen += [types[name].dtype for name in OPERAND.findall(instruction.rest)[:1] if name in types]
    return "floats" if any(dtype.startswith(FLOATS) for dtype in seen) else "integers"


def product(instruction, types):
    """Multiplications and additions of a matrix product."""
    first = OPERAND.search(instruction.rest)
    dims = CONTRACTED.search(instruction.rest)
    if not first or first[1] not in types or not dims:
        return 0
    sizes = types[first[1]].dimensions
    return 2 * instruction.size * math.prod(sizes[int(axis)] for axis in dims[1].split(",") if axis)


def branches(instruction):
    """Names of the computations of which a conditional runs one."""
    found = BRANCHES.search(instruction.rest)
    if not found:
        return []
    return OPERAND.findall(found[1]) if found[1] else [found[2], found[3]]


def count(text):
    """Count the `Operations` of a program, given the text of its optimised form (``compiled.as_text()``)."""
    computations, entry = parsed(text)
    whole = True

    def total(name):
        nonlocal whole
        sums = Counter()
        instructions = computations.get(name, {})
        for instruction in instructions.values():
            if which := kind(instruction, instructions):
                sums[which] += instruction.size
            if instruction.opcode == "dot":
                sums["floats"] += product(instruction, instructions)
            times = 1
            if instruction.opcode == "while":
                trips = TRIPS.search(instruction.rest)
                times, whole = int(trips[1]) if trips else 1, whole and trips is not None
            elif instruction.opcode in ("reduce", "reduce-window"):
                operand = OPERAND.search(instruction.rest)
                size = instructions[operand[1]].size if operand and operand[1] in instructions else instruction.size
                times = max(0, size - instruction.size)
            elif instruction.opcode == "conditional":
                whole = False
                sums += min((total(name) for name in branches(instruction)), key=Counter.total, default=Counter())
            elif instruction.opcode == "sort":
                continue  # of a few elements in these programs
            for called in CALLED.findall(instruction.rest):
                sums += Counter({which: times * number for which, number in total(called).items()})
        return sums

    sums = total(entry) if entry else Counter()
    return Operations(sums["floats"], sums["integers"], sums["transcendentals"], whole)
