"""Translate PTX into C: each kernel into a function, and each instruction into a statement."""

import re
from typing import NamedTuple

__all__ = ["Kernel", "Unknown", "translate"]

TYPES = {"u32": "uint32_t", "b32": "uint32_t", "s32": "int32_t", "u64": "uint64_t", "b64": "uint64_t"}
TYPES |= {"s64": "int64_t", "f32": "float", "u16": "uint16_t", "pred": "uint8_t"}
# The kind of a register by the prefix of its name, as nvcc names registers.
REGISTERS = {"p": "pred", "f": "f32", "r": "b32", "rd": "b64"}
SPECIAL = re.compile(r"%(tid|ntid|ctaid|nctaid)\.([xy])")
COMPARISONS = {"eq": "a == b", "ne": "a != b", "lt": "a < b", "le": "a <= b", "gt": "a > b", "ge": "a >= b"}
# Also true if an operand is NaN.
COMPARISONS |= {"ltu": "!(a >= b)", "leu": "!(a > b)", "gtu": "!(a <= b)", "geu": "!(a < b)"}

# For each instruction, the types of its operands a, b, c, d and its value in C. Unlike in C, a shift
# may exceed the width of its operand.
VALUES = {
    "add.s32 sub.s32 mul.lo.s32": ("u32 u32", "a {} b"),
    "add.s64 sub.s64 mul.lo.s64": ("u64 u64", "a {} b"),
    "add.rn.f32 sub.rn.f32 mul.rn.f32": ("f32 f32", "a {} b"),
    "mad.lo.s32": ("u32 u32 u32", "a * b + c"),
    "mul.hi.u32": ("u32 u32", "(uint64_t)a * b >> 32"),
    "mul.wide.u32": ("u32 u32", "(uint64_t)a * b"),
    "mul.wide.s32": ("s32 s32", "(int64_t)a * b"),
    "div.u32": ("u32 u32", "divide(a, b, LINE)"),
    "min.s64": ("s64 s64", "a < b ? a : b"),
    "and.b32 or.b32 xor.b32": ("b32 b32", "a {} b"),
    "and.b64 or.b64 xor.b64": ("b64 b64", "a {} b"),
    "and.pred or.pred xor.pred": ("pred pred", "a {} b"),
    "shl.b32": ("b32 u32", "b > 31 ? 0 : a << b"),
    "shl.b64": ("b64 u32", "b > 63 ? 0 : a << b"),
    "shr.u32": ("u32 u32", "b > 31 ? 0 : a >> b"),
    "shr.u64": ("u64 u32", "b > 63 ? 0 : a >> b"),
    "shr.s64": ("s64 u32", "a >> (b > 63 ? 63 : b)"),
    "shf.l.wrap.b32": ("b32 b32 u32", "((uint64_t)b << 32 | a) << (c & 31) >> 32"),
    "bfi.b32": ("b32 b32 u32 u32", "insert(a, b, c, d)"),
    "bfi.b64": ("b64 b64 u32 u32", "insert(a, b, c, d)"),
    "fma.rn.f32": ("f32 f32 f32", "fmaf(a, b, c)"),
    "neg.f32": ("f32", "-a"),
    "neg.s32": ("u32", "-a"),
    "neg.s64": ("u64", "-a"),
    "min.NaN.f32": ("f32 f32", "smaller(a, b)"),
    "max.NaN.f32": ("f32 f32", "larger(a, b)"),
    "cvt.u64.u32": ("u32", "a"),
    "cvt.u32.u64": ("u64", "(uint32_t)a"),
    "cvt.s64.s32": ("s32", "(int64_t)a"),
    "cvt.rn.f32.s32": ("s32", "(float)a"),
    "cvt.rni.f32.f32": ("f32", "nearbyintf(a)"),
    "cvt.rn.bf16x2.f32": ("f32 f32", "pair(bfloat16(a), bfloat16(b))"),
    "cvt.rn.f16x2.f32": ("f32 f32", "pair(float16(a), float16(b))"),
    "cvta.to.global.u64": ("u64", "a"),
    "mov.u32": ("u32", "a"),
    "mov.f32": ("f32", "a"),
    "mov.pred": ("pred", "a"),
}
VALUES |= {
    f"{name}.approx.ftz.f32": ("f32", f"approximate_{name}(a)") for name in ("ex2", "lg2", "rsqrt", "sqrt", "rcp")
}
VALUES |= {f"selp.{kind}": (f"{kind} {kind} pred", "c ? a : b") for kind in ("b32", "b64", "f32")}
VALUES |= {
    f"setp.{name}.{kind}": (f"{kind} {kind}", value)
    for name, value in COMPARISONS.items()
    for kind in ("u32", "s32", "u64", "s64", "f32")
    if not name.endswith("u") or kind == "f32"
}
SIGNS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
VALUES = {
    name: (kinds.split(), value.replace("{}", SIGNS.get(name.split(".")[0], "")))
    for names, (kinds, value) in VALUES.items()
    for name in names.split()
}

ENTRY = re.compile(r"^\.visible \.entry (\w+)\(([^)]*)\)\n((?:\.\w+ [^\n{]*\n)*)\{\n(.*?)^\}", re.M | re.S)
INSTRUCTION = re.compile(r"(?:@(!?)%p(\d+)\s+)?([a-z][\w.]*)\s*(.*);")
ACCESS = re.compile(r"(ld|st)\.(global|shared)(?:\.v(\d))?\.(u16|u32|f32)")
OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")


class Unknown(ValueError):
    """An instruction, or a form of one, that cannot be translated."""


class Kernel(NamedTuple):
    """The declarations of a kernel in a PTX text, and its C function."""

    name: str
    parameters: tuple[str, ...]
    most_threads: int
    shared_bytes: int
    source: str


def translate(text):
    """Return a `Kernel` for each kernel of a PTX text, by name."""
    return {entry[1]: _kernel(*entry.groups()) for entry in ENTRY.finditer(text)}


def _kernel(name, parameters, directives, body):
    parameters = tuple(re.findall(r"\.param \.u64 (\w+)", parameters))
    most = re.search(r"\.maxntid (\d+), (\d+), (\d+)", directives)
    function = _Function(parameters)
    lines = [function.statement(line.strip(), number) for number, line in enumerate(body.splitlines(), 1)]
    source = (
        f"static void entry_{name}(const uint64_t *param, Place place) {{\n" + "\n".join(filter(None, lines)) + "\n}\n"
    )
    most_threads = int(most[1]) * int(most[2]) * int(most[3]) if most else 1024
    return Kernel(name, parameters, most_threads, function.shared_bytes, source)


class _Function:
    """The translation of one kernel, line by line."""

    def __init__(self, parameters):
        self.parameters = parameters
        self.shared = {}  # where each shared array begins
        self.shared_bytes = 0

    def statement(self, line, number):
        """Return the C code of a line."""
        if not line or line.startswith((".pragma", "//")):
            return ""
        found = re.fullmatch(r"\.reg \.(\w+)\s+%(\w+?)<(\d+)>;", line)
        if found and REGISTERS.get(found[2]) == found[1]:
            return self.registers(found[2], int(found[3]))
        if found := re.fullmatch(r"\.shared \.align 16 \.b8 (\w+)\[(\d+)\];", line):
            self.shared[found[1]] = self.shared_bytes
            self.shared_bytes += -(-int(found[2]) // 16) * 16
            return ""
        if found := re.fullmatch(r"\$(\w+):", line):
            return f"{found[1]}:;"
        found = INSTRUCTION.fullmatch(line)
        if not found:
            raise Unknown(f"line {number}: {line}")
        negated, predicate, name, operands = found.groups()
        try:
            done = self.instruction(name, OPERAND.findall(operands), number)
        except (KeyError, IndexError, TypeError) as error:
            raise Unknown(f"line {number}: {line}") from error
        return f"if ({negated}p{predicate}) {done}" if predicate else done

    @staticmethod
    def registers(kind, count):
        """Return a declaration of registers, which start with noise to reveal a kernel that forgets to set one."""
        names = ", ".join(f"{kind}{j} = noise" for j in range(1, count))
        return f"{TYPES[REGISTERS[kind]]} {names};" if names else ""

    def instruction(self, name, operands, number):
        """Return the C statement of an instruction."""
        if name == "ret":
            return "return;"
        if name in ("bra", "bra.uni"):
            return f"{{ if (stop({number})) return; goto {operands[0].removeprefix('$')}; }}"
        if name == "bar.sync":
            if operands != ["0"]:
                raise KeyError(operands)
            return f"{{ barrier({number}); if (stop({number})) return; }}"
        if name == "ld.param.u64":
            return f"{self.register(operands[0])} = param[{self.parameters.index(operands[1].strip('[]'))}];"
        if access := ACCESS.fullmatch(name):
            return self.access(access, operands, number)
        target, *given = operands
        if name == "mov.b32":  # the same bits in another kind of register
            source = given[0]
            kinds, value = VALUES["mov.f32" if source.startswith("%f") else "mov.u32"]
            if target.startswith("%f") != source.startswith("%f"):
                value = "bits_float(a)" if target.startswith("%f") else "float_bits(a)"
        else:
            kinds, value = VALUES[name]
        if len(kinds) != len(given):
            raise KeyError(operands)
        constants = (
            f"const {TYPES[kind]} {letter} = {self.value(operand)};"
            for kind, letter, operand in zip(kinds, "abcd", given, strict=False)
        )
        return f"{{ {' '.join(constants)} {self.register(target)} = {value.replace('LINE', str(number))}; }}"

    def access(self, access, operands, number):
        """Return the C statement that loads or stores one or several numbers."""
        way, space, count, kind = access.groups()
        memory, registers = operands if way == "st" else operands[::-1]
        registers = [each.strip() for each in registers.strip("{}").split(",")]
        if len(registers) != int(count or 1):
            raise KeyError(operands)
        base, _, offset = memory.strip("[]").partition("+")
        size = int(count or 1) * int(kind[1:]) // 8
        place = f"{space}({self.value(base)} + {int(offset or 0)}, {size}, {int(way == 'st')}, {number})"
        moves = (
            f"{self.register(each)} = q[{j}];" if way == "ld" else f"q[{j}] = {self.value(each)};"
            for j, each in enumerate(registers)
        )
        return f"{{ {TYPES[kind]} *q = {place}; {' '.join(moves)} }}"

    @staticmethod
    def register(operand):
        """Return the variable of a register."""
        found = re.fullmatch(r"%(p|f|r|rd)(\d+)", operand)
        return found[1] + found[2]

    def value(self, operand):
        """Return the C expression of an operand."""
        if found := SPECIAL.fullmatch(operand):
            return f"place.{found[1]}.{found[2]}"
        if operand.startswith("%"):
            return self.register(operand)
        if operand in self.shared:
            return f"{self.shared[operand]}u"
        if re.fullmatch(r"0f[0-9A-F]{8}", operand):
            return f"bits_float(0x{operand[2:]}u)"
        if re.fullmatch(r"-?\d+", operand):
            return f"{operand}ll"
        raise KeyError(operand)
