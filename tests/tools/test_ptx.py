"""Test the machine that executes kernels on the CPU, and compare the shipped kernels with the plain path."""

import numpy as np
import pytest

from tests import host_kernels
from tools.ptx import battery, machine
from tools.ptx.translate import Unknown, translate

# These two kernels differ most from each other, so they run by default; the others run with the slow tests.
FIRST = ("threefry2x32_table_float32", "philox4x32_direct")
OTHERS = tuple(kernel for kernel in battery.KERNELS if kernel not in FIRST)

ENTRY = """
.visible .entry {name}(
	.param .u64 {name}_param_0,
	.param .u64 {name}_param_1
)
.maxntid 64, 1, 1
{{
	.reg .pred %p<9>;
	.reg .f32 %f<9>;
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	.shared .align 16 .b8 _shared[256];
	ld.param.u64 %rd1, [{name}_param_0];
	ld.param.u64 %rd2, [{name}_param_1];
	mov.u32 %r1, %tid.x;
	mul.wide.u32 %rd3, %r1, 4;
	add.s64 %rd4, %rd1, %rd3;
	add.s64 %rd5, %rd2, %rd3;
{body}
	ret;
}}
"""


def entry(body, name="kernel"):
    """Return a kernel; %r1 holds the thread's number, and %rd4 and %rd5 the addresses of its operand and result."""
    return ENTRY.format(name=name, body="\n".join(f"\t{line};" for line in body.split("; ")))


def run(body, operand, threads=4):
    """Return the output of a kernel, one word per thread."""
    if machine.compiler() is None:
        pytest.skip("there is no C compiler")
    operand = np.asarray(operand)
    return machine.Machine(entry(body)).launch("kernel", (1, 1), (threads, 1), np.empty_like(operand), operand)


WORDS = np.array([0, 1, 0x80000000, 0xFFFFFFFF, 0x12345678, 0xDEADBEEF, 31, 33], np.uint32)


@pytest.mark.few(8)
@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("mul.hi.u32 %r3, %r2, -1", lambda a: a * 0xFFFFFFFF >> 32),
        ("mad.lo.s32 %r3, %r2, %r2, 7", lambda a: a * a + 7),
        ("shf.l.wrap.b32 %r3, %r2, %r1, 37", lambda a, j: j << 5 | a >> 27),
        ("bfi.b32 %r3, %r2, %r1, 31, 1", lambda a, j: j & 0x7FFFFFFF | a << 31),
        ("shl.b32 %r3, %r1, %r2", lambda a, j: j << a if a < 32 else 0),
        ("shr.u32 %r3, %r2, 3", lambda a: a >> 3),
        ("cvt.s64.s32 %rd6, %r2; shr.s64 %rd7, %rd6, 33; cvt.u32.u64 %r3, %rd7", lambda a: -(a >> 31)),
        ("mul.wide.s32 %rd6, %r2, -3; shr.u64 %rd7, %rd6, 32; cvt.u32.u64 %r3, %rd7",
         lambda a: (a - (a >> 31 << 32)) * -3 >> 32),
        ("setp.lt.s32 %p1, %r2, 1; selp.b32 %r3, 5, 6, %p1", lambda a: 5 if a >> 31 or a < 1 else 6),
        ("setp.lt.u32 %p1, %r2, 2; selp.b32 %r3, 5, 6, %p1", lambda a: 5 if a < 2 else 6),
        ("mov.b32 %f1, %r2; setp.ltu.f32 %p1, %f1, 0f3F800000; selp.b32 %r3, 5, 6, %p1",
         lambda a: 5 if not np.uint32(a).view(np.float32) >= 1 else 6),
        ("cvt.rn.f32.s32 %f1, %r2; mov.b32 %r3, %f1",
         lambda a: int(np.float32(np.uint32(a).view(np.int32)).view(np.uint32))),
        ("mov.u32 %r3, 9; setp.eq.s32 %p1, %r1, 2; @%p1 bra $end; mov.u32 %r3, 8; $end:; add.s32 %r3, %r3, 0",
         lambda a, j: 9 if j == 2 else 8),
    ],
)  # fmt: skip
def test_instructions(instruction, expected):
    """Instructions on positive and negative words agree with Python's arithmetic."""
    body = f"ld.global.u32 %r2, [%rd4]; {instruction}; st.global.u32 [%rd5], %r3".replace("$end:;", "\n$end:\n")
    result = run(body, WORDS, len(WORDS))
    arguments = [(int(a), j) if expected.__code__.co_argcount == 2 else (int(a),) for j, a in enumerate(WORDS)]
    assert result.tolist() == [expected(*each) % 2**32 for each in arguments]


@pytest.mark.parametrize(("kind", "dtype"), [("bf16x2", "bfloat16"), ("f16x2", "float16")])
def test_rounding_to_pairs(kind, dtype):
    """Pairs are rounded as by NumPy, including ties, values that are too large or too small, and NaN."""
    import ml_dtypes

    values = [1 + 2.0**-9, 1 + 3 * 2.0**-9, 1 + 2.0**-11, 65519.0, 65520.0, 1e-8, 6e-8, -3.1415925, np.inf, np.nan]
    operand = np.array(values, np.float32)
    body = f"ld.global.f32 %f1, [%rd4]; cvt.rn.{kind}.f32 %r3, %f1, 0f3F800000; st.global.u32 [%rd5], %r3"
    pairs = run(body, operand.view(np.uint32), len(operand)).view(np.uint16).reshape(-1, 2)
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    with np.errstate(over="ignore"):
        expected = operand.astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(pairs[:, 1].view(dtype).astype(np.float32), expected)
    assert set(pairs[:, 0].view(dtype).tolist()) == {1.0}


STORE = "st.global.u32 [%rd5], %r1"


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("st.global.u32 [%rd5+4], %r1", "an access outside of every operand and of the result"),
        ("st.global.u32 [%rd4], %r1", "an access outside of every operand and of the result"),
        ("setp.eq.s32 %p1, %r1, 1; @%p1 st.global.v2.u32 [%rd5], {%r1, %r1}", "a misaligned access"),
        (f"{STORE}; {STORE}", "a byte of the result written twice"),
        ("setp.eq.s32 %p1, %r1, 1; @%p1 st.global.u32 [%rd5], %r1", machine.NOT_WRITTEN),
        ("st.shared.u32 [_shared+2], %r1", "a misaligned access to shared memory, or one outside of it"),
        (f"ld.shared.u32 %r2, [_shared]; {STORE}", "shared memory read before it is written"),
        ("st.shared.u32 [_shared], %r1", "two threads at the same shared memory with no barrier between them"),
        ("setp.eq.s32 %p1, %r1, 1; @%p1 bar.sync 0", "threads that do not all reach the same barrier"),
        ("div.u32 %r2, %r1, 0", "a division by zero"),
        ("\n$again:\n\tbra $again", "a loop without an end"),
    ],
)
def test_faults(body, fault):
    """Each fault is reported by its name."""
    with pytest.raises(machine.Fault, match=f"^kernel: {fault}"):
        run(body, WORDS[:3], 3)


@pytest.mark.parametrize(
    "instruction",
    [
        "sin.approx.ftz.f32 %f1, %f2",
        "add.s32 %r1, %q2, 1",
        "bar.sync 1",
        "add.s32 %r1, %r2",
        "vadd %r1",
        ".reg .b16 %rs<3>",
    ],
)
def test_unknown_instructions_are_refused(instruction):
    with pytest.raises(Unknown, match=r"line \d+: "):
        translate(entry(instruction))


def test_launches_that_no_gpu_takes():
    """A launch with too many threads, the wrong number of operands or an empty grid is a fault."""
    built = machine.Machine(entry(STORE))
    for grid, block, operands in (((1, 1), (65, 1), 1), ((1, 1), (1, 1), 2), ((0, 1), (1, 1), 1)):
        with pytest.raises(machine.Fault):
            built.launch("kernel", grid, block, WORDS.copy(), *[WORDS] * operands)


@pytest.mark.parametrize("kernel", [*FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_shipped_kernels(kernel):
    """Words, angles, tables, rows and grids of every shape are correct, and no other memory is touched."""
    for outcome in battery.examine(host_kernels.built(), kernel, quick=True):
        assert not outcome.faults, f"{outcome.part}: {len(outcome.faults)} of {outcome.launches}: {outcome.faults[:3]}"


@pytest.mark.slow
@pytest.mark.parametrize("kernel", battery.KERNELS)
def test_shipped_kernels_by_every_size(kernel):
    """Kernels are also correct for every size up to 40, large sizes, and hundreds of rows."""
    for outcome in battery.examine(host_kernels.built(), kernel):
        assert not outcome.faults, f"{outcome.part}: {len(outcome.faults)} of {outcome.launches}: {outcome.faults[:3]}"


# One case of each kind of damage comes first, and `few` makes the other cases slow.
KINDS = ("the end of a row", "no barrier after a row's", "a difference with its", "the place of a row")


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "damage",
    sorted(battery.DAMAGES, key=lambda each: not each[0].startswith(KINDS)),
    ids=lambda damage: damage[0].replace(" ", "-"),
)
def test_damage_is_found(damage):
    """Damage to the text of a kernel causes a fault of the machine, or different angles."""
    host_kernels.built()
    assert battery.finding(*damage[1:])
