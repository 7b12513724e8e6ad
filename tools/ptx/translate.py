"""Translate PTX into C: each kernel into a function, and each instruction into a statement."""

import re
from typing import NamedTuple

__all__ = ["Kernel", "Unknown", "translate"]

TYPES = {"u32": "uint32_t", "b32": "uint32_t", "s32": "int32_t", "u64": "uint64_t", "b64": "uint64_t"}
TYPES |= {"s64": "int64_t", "f32": "float", "u16": "uint16_t", "pred": "uint8_t"}
# The kind of a register by the prefix of its name, as nvcc names registers.
REGISTERS = {"p": "pred", "f": "f32", "r": "b32", "rd": "b64"}
SPECIAL = {"%tid.x": "tid", "%ctaid.x": "ctaid", "%ntid.x": "job.threads", "%nctaid.x": "job.blocks"}
COMPARISONS = {"eq": "a == b", "ne": "a != b", "lt": "a < b", "le": "a <= b", "gt": "a > b", "ge": "a >= b"}
# Also true if an operand is NaN.
COMPARISONS |= {"ltu": "!(a >= b)", "leu": "!(a > b)", "gtu": "!(a <= b)", "geu": "!(a < b)"}

# For each instruction, the types of its operands a, b, c, d and its value in C. Unlike in C, a shift may exceed the
# width of its operand.
VALUES = {
    "add.s32": ("u32 u32", "a + b"),
    "add.s64": ("u64 u64", "a + b"),
    "sub.s64": ("u64 u64", "a - b"),
    "add.rn.f32": ("f32 f32", "a + b"),
    "sub.rn.f32": ("f32 f32", "a - b"),
    "mul.rn.f32": ("f32 f32", "a * b"),
    "fma.rn.f32": ("f32 f32 f32", "fmaf(a, b, c)"),
    "neg.f32": ("f32", "-a"),
    "min.NaN.f32": ("f32 f32", "smaller(a, b)"),
    "max.NaN.f32": ("f32 f32", "larger(a, b)"),
    "min.s64": ("s64 s64", "a < b ? a : b"),
    "mul.wide.u32": ("u32 u32", "(uint64_t)a * b"),
    "and.b32": ("b32 b32", "a & b"),
    "or.b32": ("b32 b32", "a | b"),
    "xor.b32": ("b32 b32", "a ^ b"),
    "and.pred": ("pred pred", "a & b"),
    "xor.pred": ("pred pred", "a ^ b"),
    "not.pred": ("pred", "!a"),
    "shl.b32": ("b32 u32", "b > 31 ? 0 : a << b"),
    "shl.b64": ("b64 u32", "b > 63 ? 0 : a << b"),
    "shr.u32": ("u32 u32", "b > 31 ? 0 : a >> b"),
    "shr.u64": ("u64 u32", "b > 63 ? 0 : a >> b"),
    "shf.l.wrap.b32": ("b32 b32 u32", "((uint64_t)b << 32 | a) << (c & 31) >> 32"),
    "bfi.b64": ("b64 b64 u32 u32", "insert(a, b, c, d)"),
    "cvt.u64.u32": ("u32", "a"),
    "cvt.u32.u64": ("u64", "(uint32_t)a"),
    "cvt.rn.f32.s32": ("s32", "(float)a"),
    "cvt.rni.f32.f32": ("f32", "nearbyintf(a)"),
    "cvt.rn.bf16x2.f32": ("f32 f32", "bfloat16(a) << 16 | bfloat16(b)"),
    "cvt.rn.f16x2.f32": ("f32 f32", "float16(a) << 16 | float16(b)"),
    "cvta.to.global.u64": ("u64", "a"),
    "mov.u32": ("u32", "a"),
    "mov.f32": ("f32", "a"),
    "mov.pred": ("pred", "a"),
}
VALUES |= {
    f"{name}.approx.ftz.f32": ("f32", f"approximate_{name}(a)") for name in ("ex2", "lg2", "rsqrt", "sqrt", "rcp")
}
VALUES |= {f"selp.{kind}": (f"{kind} {kind} pred", "c ? a : b") for kind in ("b32", "f32")}
VALUES |= {
    f"setp.{name}.{kind}": (f"{kind} {kind}", value)
    for name, value in COMPARISONS.items()
    for kind in ("b32", "u32", "s32", "s64", "f32")
    if kind == "f32" or name in ("eq", "ne") or not (name.endswith("u") or kind == "b32")
}

ENTRY = re.compile(r"^\.visible \.entry (\w+)\(([^)]*)\)\n((?:\.\w+ [^\n{]*\n)*)\{\n(.*?)^\}", re.M | re.S)
INSTRUCTION = re.compile(r"(?:@(!?)%p(\d+)\s+)?([a-z][\w.]*)\s*(.*);")
ACCESS = re.compile(r"(ld|st)\.global(?:\.v(\d))?\.(u16|u32|f32)")
OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")


class Unknown(ValueError):
    """An instruction, or a form of one, that cannot be translated."""


class Kernel(NamedTuple):
    """The number of parameters of a kernel, the most threads of its blocks, and its C function."""

    parameters: int
    most_threads: int
    source: str


def translate(text):
    """Return a `Kernel` for each kernel of a PTX text, by name."""
    return {entry[1]: _kernel(*entry.groups()[1:]) for entry in ENTRY.finditer(text)}


def _kernel(parameters, directives, body):
    parameters = re.findall(r"\.param \.u64 (\w+)", parameters)
    most = re.search(r"\.maxntid (\d+), 1, 1", directives)
    lines = [_statement(line.strip(), number, parameters) for number, line in enumerate(body.splitlines(), 1)]
    source = "\n".join(["static void kernel(const uint64_t *param) {", *filter(None, lines), "}\n"])
    return Kernel(len(parameters), int(most[1]) if most else 1024, source)


def _statement(line, number, parameters):
    """Return the C code of a line."""
    if not line or line.startswith(("//", ".pragma")):
        return ""
    found = re.fullmatch(r"\.reg \.(\w+)\s+%(\w+?)<(\d+)>;", line)
    if found and REGISTERS.get(found[2]) == found[1]:
        # Registers start with an unlikely value, to reveal a kernel that forgets to set one.
        return f"{TYPES[found[1]]} " + ", ".join(f"{found[2]}{j} = 165" for j in range(int(found[3]))) + ";"
    if found := re.fullmatch(r"\$(\w+):", line):
        return f"{found[1]}:;"
    try:
        negated, predicate, name, operands = INSTRUCTION.fullmatch(line).groups()
        done = _instruction(name, OPERAND.findall(operands), number, parameters)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise Unknown(f"line {number}: {line}") from error
    return f"if ({negated}p{predicate}) {done}" if predicate else done


def _instruction(name, operands, number, parameters):
    """Return the C statement of an instruction."""
    if name == "ret":
        return "return;"
    if name in ("bra", "bra.uni"):
        return f"{{ if (stop({number})) return; goto {operands[0].removeprefix('$')}; }}"
    if name == "ld.param.u64":
        return f"{_register(operands[0])} = param[{parameters.index(operands[1].strip('[]'))}];"
    if access := ACCESS.fullmatch(name):
        return _access(*access.groups(), operands, number)
    target, *given = operands
    if name == "mov.b32":  # the same bits in another kind of register
        to, of = (each.startswith("%f") for each in (target, *given))
        kinds, value = VALUES["mov.f32" if of else "mov.u32"]
        if to != of:
            value = "bits_float(a)" if to else "float_bits(a)"
    else:
        kinds, value = VALUES[name]
    constants = (
        f"const {TYPES[kind]} {letter} = {_value(operand)};"
        for (kind, operand), letter in zip(zip(kinds.split(), given, strict=True), "abcd", strict=False)
    )
    return f"{{ {' '.join(constants)} {_register(target)} = {value}; }}"


def _access(way, count, kind, operands, number):
    """Return the C statement that loads or stores one or several numbers."""
    memory, registers = operands if way == "st" else operands[::-1]
    registers = [_register(each.strip()) for each in registers.strip("{}").split(",")]
    if len(registers) != int(count or 1):
        raise KeyError(registers)
    base, _, offset = memory.strip("[]").partition("+")
    size = len(registers) * int(kind[1:]) // 8
    place = f"global({_register(base)} + {int(offset or 0)}, {size}, {int(way == 'st')}, {number})"
    moves = (f"{each} = q[{j}];" if way == "ld" else f"q[{j}] = {each};" for j, each in enumerate(registers))
    return f"{{ {TYPES[kind]} *q = {place}; {' '.join(moves)} }}"


def _register(operand):
    """Return the variable of a register."""
    return re.fullmatch(r"%((?:p|f|r|rd)\d+)", operand)[1]


def _value(operand):
    """Return the C expression of an operand."""
    if operand in SPECIAL:
        return SPECIAL[operand]
    if operand.startswith("%"):
        return _register(operand)
    if re.fullmatch(r"0f[0-9A-F]{8}", operand):
        return f"bits_float(0x{operand[2:]}u)"
    return f"{int(operand)}ll"
