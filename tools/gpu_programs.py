"""Compile draws for an H100 on a machine without one, and count kernels, bytes and instructions.

``make test-gpu-programs`` installs JAX with its compiler for GPUs, and runs the check, which takes about 15 minutes. CI
runs it once a week, and after changes of formulas and draws. To run the script in an environment with JAX 0.12.0.1, add
the compiler with ``pip install --no-deps jax-cuda13-plugin==0.12.0.1 jax-cuda13-pjrt==0.12.0.1``. Then, from the
repository root::

    python -m tools.gpu_programs            # writes tools/gpu_programs.json
    python -m tools.gpu_programs --check    # exit code 1 if anything is worse than in the file

The script counts the kernels of draws and densities, those of a loop in each of its passes (in one if their number
depends on the data), and, per draw, the bytes moved, the bytes of temporary memory and, for angles, the PTX
instructions. These are not times, but a program with more of them is slower. Every class has a row for its draws and
one for its densities. JAX 0.11.2 and 0.12.0.1 give the same numbers for draws of angles, except for instructions, which
differ by less than 1%. The script also compiles a case without each workaround in `WITHOUT`. With ``--check``, it
reports workarounds that can be removed because nothing gets worse without them.
"""

import argparse
import json
import math
import os
import pathlib
import re
import sys
import tempfile
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
TABLE, TARGET = HERE / "gpu_programs.json", HERE / "h100.textpb"
COUNT = 2**24
# In most kernels for `COUNT` angles, XLA gives each thread four angles, so that it can store 16 bytes at once.
ANGLES = 4


def cells_by_products(values, powers, origin):
    """Compute `xla.cell_coefficients` as on a CPU."""
    import jax.numpy as jnp

    first = values[:, origin : origin + 1]
    rises = jnp.delete(values, origin, 1) - first
    return jnp.concatenate([first, rises @ jnp.asarray(powers, values.dtype)], axis=1).T


# Workarounds of `jax_von_mises.compiler.xla`, each with the code that replaces it and a case that is then worse.
WITHOUT = {
    "hidden": (lambda constants, x: [x.dtype.type(c) for c in constants], "direct, threefry2x32"),
    "carry_sign_on_cuda": (lambda t, negative, most: (t, negative), "table, threefry2x32"),
    "cell_coefficients": (cells_by_products, "table, threefry2x32"),
    "vary_key_on_gpu": (lambda encrypt, key, lo: encrypt(key), "words, threefry2x32"),
}
# Tolerance for other releases of XLA, which may need slightly more.
ROOM = 1.05

INSTRUCTION = re.compile(r"^\s+(?:@!?%p\d+\s+)?[a-z][\w.]*\s[^;]*;", re.M)
COMPUTATION = re.compile(r"^(ENTRY )?%?(\S+) \(.*?\) -> .*? \{\n(.*?)^\}", re.M | re.S)
OPERATION = re.compile(r"^\s+(?:ROOT )?%(\S+) = (.*?) ([\w-]+)\((.*?)\)(?:, (.*))?$", re.M)
# How an operation names the computations that it runs, and how often a loop runs its own.
RUNS = re.compile(r"(?:to_apply|true_computation|false_computation)=%?([\w.-]+)")
LOOP = re.compile(r"\b(condition|body)=%?([\w.-]+)")
BRANCHES = re.compile(r"branch_computations=\{(.*?)\}")
TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
# Operations that launch no kernel.
FREE = ("parameter", "constant", "get-tuple-element", "tuple", "bitcast")
ARRAY = re.compile(r"(\w+)\[(\d[\d,]*)\]")
WIDTHS = {"f64": 8, "u64": 8, "s64": 8, "f32": 4, "u32": 4, "s32": 4, "bf16": 2, "f16": 2, "pred": 1}


def cases():
    """Yield the name and the function of each program to compile, and its arguments as trees of (shape, dtype)."""
    import jax
    import numpy as np

    from jax_von_mises import sample_von_mises, sample_von_mises_fisher
    from jax_von_mises.engine import counter, request
    from jax_von_mises.von_mises import sampler
    from tests.distributions.conformance.examples import EXAMPLES, PLAIN

    def of_key(implementation, function):
        return lambda words, *rest: function(jax.random.wrap_key_data(words, impl=implementation), *rest)

    def draw(implementation, route, dtype="float32"):
        def angles(key, loc, kappa):
            return request.program(
                request.Request(sampler.VON_MISES, key, (loc, kappa), None, (COUNT,), jax.numpy.dtype(dtype), route)
            )

        return of_key(implementation, angles)

    def angles_and_gradient(key, loc, kappa):
        angles, pull = jax.vjp(lambda kappa: sample_von_mises(key, loc, kappa, (COUNT,)), kappa)
        return angles, pull(jax.numpy.ones_like(angles))[0]

    def directions(key, pole, kappa):
        return sample_von_mises_fisher(key, pole, kappa, (COUNT,))

    def directions_and_gradient(key, pole, kappa):
        drawn, pull = jax.vjp(lambda kappa: directions(key, pole, kappa), kappa)
        return drawn, pull(jax.numpy.ones_like(drawn))[0]

    def draws_of(example):
        return lambda key, given: example.make(**given).sample(key, (COUNT,))

    def densities_of(example):
        return lambda x, given: example.make(**given).log_prob(x)

    key, one, many = ((2,), "uint32"), ((), "float32"), ((COUNT,), "float32")
    for name in ("threefry2x32", "philox4x32"):
        yield f"words, {name}", of_key(name, lambda key: counter.words(key, (COUNT,), 1)[0]), (key,)
        yield f"table, {name}", draw(name, "table"), (key, one, one)
    yield "table, philox4x32, bfloat16", draw("philox4x32", "table", "bfloat16"), (key, one, one)
    yield "direct, threefry2x32", draw("threefry2x32", "direct"), (key, many, many)
    wide = ((COUNT,), "float64")
    yield "direct, threefry2x32, float64", draw("threefry2x32", "direct", "float64"), (key, wide, wide)
    with_gradient = of_key("threefry2x32", angles_and_gradient)
    yield "value and gradient, a concentration each", with_gradient, (key, many, many)
    yield "value and gradient, one concentration", with_gradient, (key, one, one)
    for d, dtype in ((3, "float32"), (4, "float32"), (10, "float32"), (10, "float64")):
        given = key, ((d,), dtype), ((COUNT,), dtype)
        yield f"directions, d = {d}, {dtype}", of_key("threefry2x32", directions), given
    given = key, ((4,), "float32"), many
    yield "directions and gradient, d = 4", of_key("threefry2x32", directions_and_gradient), given
    for name, example in EXAMPLES.items():
        if name in PLAIN | {"Mixture VonMises"}:
            one = {each: (value.shape, "float32") for each, value in example.one().items()}
            event = example.make(**example.one()).event_shape
            yield f"{name}, draws", of_key("threefry2x32", draws_of(example)), (key, one)
            yield f"{name}, densities", densities_of(example), (((COUNT, *event), "float32"), one)
    normal = of_key("threefry2x32", lambda key: jax.random.normal(key, (COUNT,), np.float32))
    yield "jax.random.normal", normal, (key,)


def h100():
    """Return the sharding that makes JAX compile a program for an H100, even on a machine without one."""
    from jax.experimental import topologies
    from jax.sharding import NamedSharding, PartitionSpec

    topology = topologies.get_topology_desc(platform="cuda", topology="1x1x1", target_config=TARGET.read_text())
    return NamedSharding(topologies.make_mesh(topology, (1,), ("device",)), PartitionSpec())


def compile_for_h100(folder):
    """Compile each case; return the counts of all cases, and the counts without each of the workarounds."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    dumps = f"--xla_dump_to={folder} --xla_gpu_dump_llvmir=true --xla_dump_emitter_re=.*"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {dumps}".strip()
    import jax

    on_it = h100()

    def compile_case(name, function, arguments):
        label = re.sub(r"\W+", "_", name)
        program = lambda *given: function(*given)  # noqa: E731
        program.__name__ = label
        with jax.enable_x64("float64" in str(arguments)):
            given = jax.tree.map(
                lambda each: jax.ShapeDtypeStruct(*each, sharding=on_it),
                arguments,
                is_leaf=lambda each: isinstance(each, tuple) and isinstance(each[-1], str),
            )
            compiled = jax.jit(program).lower(*given).compile()
        texts = [path.read_text() for path in pathlib.Path(folder).glob(f"*jit_{label}.*.ptx")]
        found = count(compiled, "".join(texts))
        print(f"{name:60} {found}", file=sys.stderr, flush=True)
        return found

    found = {name: compile_case(name, *rest) for name, *rest in cases()}
    return found, {name: compile_case(f"{case} without {name}", *rest) for name, case, rest in without_workarounds()}


def without_workarounds():
    """Yield each name in `WITHOUT`, its case, and the case's function and arguments, with the workaround disabled."""
    import jax

    from jax_von_mises.compiler import xla

    of_case = {name: rest for name, *rest in cases()}
    for name, (plain, case) in WITHOUT.items():
        with mock.patch.object(xla, name, plain):
            jax.clear_caches()
            yield name, case, of_case[case]
    jax.clear_caches()


def count(compiled, text):
    """Return the counts of a compiled program; `text` is the PTX of its kernels."""
    import jax

    found = COMPUTATION.findall(compiled.as_text())
    computations = {name: OPERATION.findall(body) for _, name, body in found}
    launched = list(launches(computations, next(name for entry, name, _ in found if entry)))
    wide = [name.replace(".", "_").replace("-", "_") for name, moved in launched if moved]
    counts = {
        "kernels": len(launched),
        "kernels of all angles": len(wide),
        "bytes moved an angle": round(sum(moved for _, moved in launched)),
        "temporary bytes an angle": round(compiled.memory_analysis().temp_size_in_bytes / COUNT, 2),
    }
    if math.prod(jax.tree.leaves(compiled.out_info)[0].shape) > COUNT:
        return counts
    parts = dict(re.findall(r"\.visible \.entry (\w+)\((.*?)^}", text, re.M | re.S))
    code = "".join(parts.get(name, "") for name in wide)
    stores = len(re.findall(r"st\.global\.(?:v4|b128)", code))
    if not stores:  # a thread has some other number of angles
        return counts
    return counts | {
        "instructions an angle": round(len(INSTRUCTION.findall(code)) / ANGLES, 1),
        "stores of 16 bytes": stores,
    }


def launches(computations, name):
    """Yield each kernel that a computation launches, and the bytes per draw that it moves."""
    arrays = {}
    for operation, shape, kind, operands, rest in computations[name]:
        arrays[operation] = of_draws(shape)
        if kind == "while":
            trips = TRIPS.search(rest)
            # A loop of a known number of passes computes no condition.
            ran = [part for name, part in LOOP.findall(rest) if name == "body" or not trips]
            once = [each for part in ran for each in launches(computations, part)]
            yield from once * int(trips[1] if trips else 1)
        elif kind in ("call", "conditional"):
            ran = RUNS.findall(rest) or BRANCHES.search(rest)[1].replace("%", "").split(", ")
            yield from max((list(launches(computations, each)) for each in ran), key=len)
        elif kind not in FREE:
            read = sum(arrays.get(operand, 0) for operand in re.findall(r"%([\w.-]+)", operands))
            yield operation, read + arrays[operation]


def of_draws(shape):
    """Return the bytes per draw of the arrays in an HLO shape or tuple of shapes; those of other sizes count as 0."""
    found = ((WIDTHS[dtype], math.prod(map(int, sizes.split(",")))) for dtype, sizes in ARRAY.findall(shape))
    return sum(width * size / COUNT for width, size in found if size >= COUNT)


def worse(found, table):
    """Yield a description of each count that is worse than in the table."""
    for name in found.keys() - table.keys():
        yield f"{name}: not in the table"
    for name, row in table.items():
        for what, most in row.items():
            have = found[name].get(what)
            if have is None:
                yield f"{name}: no {what}"
            elif what != "stores of 16 bytes" and have > most * (1 if what == "kernels" else ROOM):
                yield f"{name}: {what}: {have}, but {most} in the table"


def main():
    """Write the table, or compare the counts with it; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; compare with the file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found, without = compile_for_h100(folder)
    if not given.check:
        TABLE.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    faults = list(worse(found, json.loads(TABLE.read_text())))
    for name, (_, case) in WITHOUT.items():
        if not list(worse({case: without[name]}, {case: found[case]})):
            faults.append(f"{case}: nothing is worse without the workaround xla.{name}, so it can be removed")
    print("\n".join(faults) or "nothing is worse than in the table")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
