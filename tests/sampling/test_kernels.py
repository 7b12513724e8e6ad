"""Test the shipped CUDA kernels without a GPU: assemble them, and execute their PTX on the CPU."""

import functools
import itertools
import re
import shutil
import subprocess
from unittest import mock

import jax
import numpy as np
import pytest

from jax_von_mises.engine import counter
from jax_von_mises.von_mises import cuda, transform
from tests import reference
from tools import make_kernels
from tools.ptx.machine import FAULTS, NOT_WRITTEN, Fault, Machine, Part, compiler
from tools.ptx.translate import Unknown, translate

CIPHERS = tuple(cuda.KEY_SIZES)
SIZES = (*range(1, 41), 63, 64, 65, 255, 1023, 1025, 4096, 4099, 20_001, 65_537)
GROUP = 4 * cuda.BLOCK_THREADS  # angles that a block draws at once
# Sizes of draws in which the number of angles, or of the cipher's blocks, needs a second word.
LARGE = (2**32 + 4097, 2**33 + 5, 2**34 + 9)
# Positions of words with tail 1/2 and with the smallest tail, for the key with the words 1, 2, ...
ENDS = {"threefry2x32": (2_093_925, 941_978_674), "threefry4x32": (3_949_382, 2_415_051_297)}
# Least and largest error of the hardware's approximations, as fractions of the allowed error.
ERRORS = ((-1.0, 1.0), (1.0, 1.0), (-1.0, -1.0))
KAPPAS = (0.0, 1e-6, 0.1, 1.0, 4.0, 4.9999, 5.0, 16.9, 17.1, 100.0, 1e4, 1e8, 1e20)
# Mean directions at and beyond the largest that is reduced to one turn, values that are not finite, and small ones.
LOCS = (0.5, 2.0**24, -(2.0**24), 2.0**24 + 2, 1e30, np.inf, np.nan, 0.0, -0.0, np.pi)
PLAIN = jax.jit(cuda.plain_angles, static_argnums=0)


@functools.cache
def machine(text):
    """Return the machine that executes the kernels of a text; skip the test if there is no C compiler."""
    if compiler() is None:
        pytest.skip("no C compiler to execute the kernels with")
    return Machine(text)


def key_of(cipher):
    """Return the key with the words 1, 2, ..."""
    return np.arange(1, cuda.KEY_SIZES[cipher] + 1, dtype=np.uint32)


def by_kernel(spec, key, loc, kappa, grid=None, error=ERRORS[0], text=None):
    """Return the angles of `cuda.kernel_angles` on the CPU."""

    def launch(name, blocks, out, *operands):
        out, operands = np.empty(out.shape, out.dtype), map(np.asarray, operands)
        machine(text or cuda.ptx_text()).launch(name, grid or blocks, cuda.BLOCK_THREADS, out, *operands, error=error)
        return out

    with mock.patch.object(cuda, "launch", launch):
        return cuda.kernel_angles(spec, key, loc, kappa)


@functools.partial(jax.jit, static_argnums=(0, 1))
def plain_from(cipher, size, start, key, loc, kappa):
    """Return `size` angles of the plain path from the place `start` of a stream, a pair of words."""
    words = counter.block_words(cipher, key, counter.indices((size,), start), 1)
    return transform.angles(words, loc, kappa, "direct")


def assert_right(ours, cipher, key, loc, kappa, start=0):
    """Compare angles, rounded to their dtype, with the plain path's to the accuracy of both."""
    size = 8 * GROUP if len(ours) <= 8 * GROUP else 66_000  # only two sizes, since each compiles a program
    given = key, np.resize(loc, size), np.resize(kappa, size)
    if start == 0:
        expected = PLAIN(cuda.KernelSpec(cipher, "float32", (size,)), *given)
    else:
        expected = plain_from(cipher, size, (np.uint32(start >> 32), np.uint32(start % 2**32)), *given)
    expected, kappa = np.asarray(expected, np.float64)[: len(ours)], given[2][: len(ours)]
    invalid = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(ours.astype(np.float32)), invalid)
    near = cuda.rounded_from(ours, np.nan_to_num(expected), cuda.allowed(np.where(kappa > 0, kappa, 0)))
    assert (invalid | near).all(), f"{np.flatnonzero(~(invalid | near))} differ"


def check_part(cipher, dtype, count, grid, blocks, kappa=None, error=ERRORS[0], text=None):
    """Compare the angles that some blocks write in a draw of `count` angles, with arrays of parameters."""
    random = np.random.default_rng(count)
    starts = range(GROUP * blocks.start, count, GROUP * grid)
    lengths = [min(GROUP * len(blocks), count - start) for start in starts]
    locs = [random.uniform(-4, 4, n).astype(np.float32) for n in lengths]
    kappas = [np.exp(random.uniform(-3, 9, n)) if kappa is None else np.full(n, kappa) for n in lengths]
    arrays = [x.astype(np.float32) for x in kappas], locs, [np.empty(n, dtype) for n in lengths]
    kappas, locs, out = ([Part(x, x.itemsize * at) for x, at in zip(each, starts, strict=True)] for each in arrays)
    first = Part(np.ones(1, np.float32), 0)  # which the kernels always read
    sizes = [count % 2**32, count >> 32, cuda.CONCENTRATIONS | cuda.LOCS, cuda.KERNEL_DTYPES[dtype]]
    sizes = np.array(sizes, np.uint32)
    operands = key_of(cipher), sizes, [*kappas, first], locs
    name, on = cuda.KernelSpec(cipher, dtype, (count,)).name, machine(text or cuda.ptx_text())
    on.launch(name, grid, cuda.BLOCK_THREADS, out, *operands, some=blocks, error=error)
    for start, kappa, loc, ours in zip(starts, *arrays, strict=True):
        assert_right(ours, cipher, key_of(cipher), loc, kappa, start)


def check_draws(cipher, sizes, text=None):
    """Compare draws in random small grids, in which the threads loop, and parts of large draws."""
    random = np.random.default_rng(1)
    cases = itertools.product(sizes, cuda.KERNEL_DTYPES, (False, True), ("zero", "one", "many"))
    for j, (size, dtype, many, about) in enumerate(cases):
        key = random.integers(0, 2**32, cuda.KEY_SIZES[cipher], np.uint32)
        kappa = np.exp(random.uniform(-8, 14, size if many else 1)).astype(np.float32)
        reach = 0 if about == "zero" else 300
        loc = random.uniform(-reach, reach, size if about == "many" else 1).astype(np.float32)
        grid, spec = int(random.integers(1, cuda.blocks(size) + 1)), cuda.KernelSpec(cipher, dtype, (size,))
        ours = by_kernel(spec, key, loc, kappa, grid, ERRORS[j % 3], text)
        assert_right(ours, cipher, key, loc, kappa)
    for count, dtype in itertools.product(LARGE, cuda.KERNEL_DTYPES):
        grid = count // GROUP // 2 + 1  # most threads draw two groups
        for first in (0, grid - 8):
            check_part(cipher, dtype, count, grid, range(first, first + 8), text=text)


def test_the_text_is_that_of_the_source():
    """The first line of the kernels' text identifies its source."""
    assert make_kernels.fingerprint() in cuda.ptx_text().splitlines()[0], "run `python -m tools.make_kernels`"


@pytest.mark.kernels
def test_the_text_is_what_the_compiler_makes_of_the_source():
    if not shutil.which("nvcc"):
        pytest.skip("no nvcc")
    release = subprocess.run(["nvcc", "--version"], capture_output=True, text=True).stdout
    if "release 13.0" not in release:
        pytest.skip("other releases of nvcc produce other text")
    assert make_kernels.make() == cuda.ptx_text()


@pytest.mark.kernels
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_the_text_assembles(architecture, tmp_path):
    """Each kernel assembles alone, as XLA receives it, with few spills; XLA would report errors only on a GPU."""
    if shutil.which("ptxas") is None:
        pytest.skip("no ptxas to assemble with")
    names = [cuda.KernelSpec(cipher, "float32", ()).name for cipher in CIPHERS]
    assert re.findall(r"\.entry (\w+)", cuda.ptx_text()) == names
    for name in names:
        (tmp_path / "kernel.ptx").write_text(cuda.kernel_text(name))
        command = ["ptxas", "-v", f"-arch={architecture}", "kernel.ptx", "-o", "kernel.cubin"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        spilled = int(re.search(r"(\d+) bytes spill stores", done.stderr)[1])
        assert spilled <= 16, f"{name} lacks registers: {done.stderr}"


@pytest.mark.kernels
@pytest.mark.parametrize("cipher", CIPHERS)
def test_draws(cipher):
    """Kernels draw the angles of the plain path and access no other memory."""
    check_draws(cipher, SIZES)


@pytest.mark.kernels
@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("error", ERRORS)
def test_accuracy(cipher, error):
    """The direct route keeps the sampler's accuracy for every error that the hardware's functions may have.

    The bounds are a relative error of 2e-6 in the tail probability, or 4 ulp in the angle. The angles are not compared
    with the plain path's, which are up to 12 ulp from the exact angles where the bound on the tail is the looser one.
    """
    spec, key = cuda.KernelSpec(cipher, "float32", (4096,)), key_of(cipher)
    words = np.asarray(counter.block_words(cipher, key, counter.indices(spec.shape, None), 1)[0])
    t = ((words >> 1) + 0.5) * 2.0**-32
    for kappa in KAPPAS:
        x = by_kernel(spec, key, np.zeros(1, np.float32), np.float32([kappa]), error=error)
        np.testing.assert_array_equal(x < 0, words & 1)
        size, k = np.abs(x).astype(np.float64), float(np.float32(kappa))
        per_ulp = reference.pdf(size, k) * np.spacing(np.abs(x))
        off = np.abs(reference.sf(size, k) - t) / np.maximum(2e-6 * t, 4 * per_ulp)
        assert off.max() <= 1, f"kappa={kappa}: {off.max():.2f} times the allowed error"


@pytest.mark.kernels
@pytest.mark.parametrize("cipher", CIPHERS)
def test_invalid_and_infinite_parameters(cipher):
    """Angles are NaN for invalid concentrations, and for directions that are too large, in arrays and alone."""
    pairs = np.float32([*itertools.product(LOCS, (*KAPPAS, np.inf, -1, np.nan))])
    for dtype, (loc, kappa) in itertools.product(cuda.KERNEL_DTYPES, (pairs.T, *pairs[..., None])):
        ours = by_kernel(cuda.KernelSpec(cipher, dtype, (len(pairs),)), key_of(cipher), loc, kappa)
        valid = np.resize((kappa >= 0) & (np.abs(loc) <= 2**24), len(pairs))
        np.testing.assert_array_equal(np.isnan(ours.astype(np.float32)), ~valid)
        assert_right(ours, cipher, key_of(cipher), loc, kappa)


@pytest.mark.kernels
@pytest.mark.parametrize("cipher", CIPHERS)
def test_ends_of_the_tail(cipher):
    """Angles are right where the tail probability is 1/2 or the smallest one."""
    for place, tail in zip(ENDS[cipher], (0.5, 2.0**-33), strict=True):
        start, block = (np.uint32(0), np.uint32(place)), place // GROUP
        (word,) = counter.block_words(cipher, key_of(cipher), counter.indices((1,), start), 1)[0]
        assert np.float32(((int(word) >> 1) + 0.5) * 2.0**-32) == tail
        for error, kappa in itertools.product(ERRORS, (*KAPPAS, np.inf, -1, np.nan)):
            check_part(cipher, "float32", place + 3, block + 1, range(block, block + 1), kappa, error)


# Deliberate faults: a pattern of the text of threefry2x32's kernel, and the replacement of its first match.
DAMAGES = {
    "four at once where three are left": (r"(setp\.eq\.s32 \t\S+ %r\d+, )4;", r"\g<1>3;"),
    "four at once at a misaligned place": (r"(st\.global\.v4\.u32 \t\[%rd\d+)", r"\1+4"),
    "a difference with its operands swapped": (r"(sub\.s64 \t\S+ )(\S+), (\S+);", r"\1\3, \2;"),
    "the halves of a pair swapped": (r"(bf16x2\.f32 \S+ )(\S+), (?!\2)(\S+);", r"\1\3, \2;"),
    "another key in a round of the cipher": ("466688986", "466688987"),
    "a wrong upper word of the counter": (r"(shr\.u64 \t\S+ %rd\d+, )31;", r"\g<1>32;"),
    "a truncated coefficient": (r"(mov\.f32 \t\S+ 0f3E[0-9A-F]{3})[0-9A-F]{3};", r"\g<1>000;"),
}


@pytest.mark.kernels
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=[name.replace(" ", "-") for name in DAMAGES])
def test_damage_is_found(damage):
    """Damage to the text of a kernel causes a fault of the machine, or different angles."""
    text, changed = re.subn(*damage, cuda.kernel_text("threefry2x32_direct"), count=1)
    assert changed
    with pytest.raises((Fault, AssertionError)):
        check_draws("threefry2x32", (1, 3, 4, 5, 1027), text)


# A kernel of three threads. %rd3 holds the address of a thread's word in the operand, %rd4 that in the result.
ENTRY = """
.visible .entry kernel(.param .u64 from, .param .u64 to)
{{
	.reg .pred %p<9>;
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	ld.param.u64 %rd1, [from];
	ld.param.u64 %rd2, [to];
	mov.u32 %r1, %tid.x;
	mul.wide.u32 %rd5, %r1, 4;
	add.s64 %rd3, %rd1, %rd5;
	add.s64 %rd4, %rd2, %rd5;
	ld.global.u32 %r2, [%rd3];
	setp.ne.s32 %p1, %r1, 1;
$again:
	{}
	ret;
}}
"""
STORE = "st.global.u32 [%rd4], %r2;"
BODIES = {
    "st.global.u32 [%rd4+4], %r2;": FAULTS[0],
    "st.global.u32 [%rd3], %r2;": FAULTS[0],
    "ld.global.u32 %r2, [%rd3+8];": FAULTS[0],
    "@!%p1 st.global.v2.u32 [%rd4], {%r1, %r2};": FAULTS[1],
    f"{STORE}\n{STORE}": FAULTS[2],
    "bra $again;": FAULTS[3],
    f"@%p1 {STORE}": NOT_WRITTEN,
}


@pytest.mark.kernels
def test_the_machine_finds_faults():
    """The machine copies three words, reports each fault of a kernel, and refuses unknown instructions."""
    words, out = np.array([5, 7, 9], np.uint32), np.zeros(3, np.uint32)
    machine(ENTRY.format(STORE)).launch("kernel", 1, 3, out, words)
    assert out.tolist() == words.tolist()
    for body, fault in BODIES.items():
        with pytest.raises(Fault, match=f"^kernel: {fault}"):
            machine(ENTRY.format(body)).launch("kernel", 1, 3, out, words)
    for line in ("sin.approx.ftz.f32 %f1, %f2;", "add.s32 %r1, %q2, 1;", "add.s32 %r1, %r2;"):
        with pytest.raises(Unknown, match=r"line \d+: "):
            translate(ENTRY.format(line))
