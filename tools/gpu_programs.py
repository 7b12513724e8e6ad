"""Compile draws for an H100 on a machine without one, and count kernels, bytes and instructions.

``make test-gpu-programs`` installs JAX with its compiler for GPUs, and runs the check, which takes a few minutes. CI
runs it once a week. To run the script in an environment with JAX 0.12.0.1, add the compiler with ``pip install
--no-deps jax-cuda13-plugin==0.12.0.1 jax-cuda13-pjrt==0.12.0.1``. Then, from the repository root::

    python -m tools.gpu_programs            # writes tools/gpu_programs.json
    python -m tools.gpu_programs --check    # exit code 1 if anything is worse than in the file

The script counts the kernels of a draw and, per angle, the bytes moved, the bytes of temporary memory and the PTX
instructions. These are not times, but a draw with more of them is slower. JAX 0.11.2 and 0.12.0.1 give the same
numbers, except for instructions, which differ by less than 1%. The script also compiles a case without each workaround
in `WITHOUT`. With ``--check``, it reports workarounds that can be removed because nothing gets worse without them.
"""

import argparse
import json
import os
import pathlib
import re
import sys
import tempfile
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
TABLE, TARGET = HERE / "gpu_programs.json", HERE / "h100.textpb"
COUNT = 2**24
# In a kernel for `COUNT` angles, XLA gives each thread four angles, so that it can store 16 bytes at once.
ANGLES = 4


def cells_by_products(values, powers, origin):
    """Compute `xla.cell_coefficients` as on a CPU."""
    import jax.numpy as jnp

    first = values[:, origin : origin + 1]
    rises = jnp.delete(values, origin, 1) - first
    return jnp.concatenate([first, rises @ jnp.asarray(powers, values.dtype)], axis=1).T


# Workarounds of `jax_von_mises.numerics.xla`, each with the code that replaces it and a case that is then worse.
WITHOUT = {
    "hidden": (lambda constants, x: [x.dtype.type(c) for c in constants], "direct, threefry2x32"),
    "carry_sign_on_cuda": (lambda t, negative, most: (t, negative), "table, threefry2x32"),
    "cell_coefficients": (cells_by_products, "table, threefry2x32"),
    "vary_key_on_gpu": (lambda encrypt, key, lo: encrypt(key), "words, threefry2x32"),
}
# Tolerance for other releases of XLA, which may need slightly more.
ROOM = 1.05

INSTRUCTION = re.compile(r"^\s+(?:@!?%p\d+\s+)?[a-z][\w.]*\s[^;]*;", re.M)
OPERATION = re.compile(r"^\s+(?:ROOT )?%(\S+) = (.*?) ([\w-]+)\((.*?)\)(?:,|$)", re.M)
# Operations that launch no kernel.
FREE = ("parameter", "constant", "get-tuple-element", "tuple", "bitcast")
WIDTHS = {"f64": 8, "u64": 8, "s64": 8, "f32": 4, "u32": 4, "s32": 4, "bf16": 2, "f16": 2, "pred": 1}


def cases():
    """Yield the name and the function of each program to compile, and its arguments as tuples (shape, dtype)."""
    import jax
    import numpy as np

    from jax_von_mises import sample_von_mises
    from jax_von_mises.sampling import counter, sampler
    from jax_von_mises.sampling.request import PROGRAMS, Request

    def of_key(implementation, function):
        return lambda words, *rest: function(jax.random.wrap_key_data(words, impl=implementation), *rest)

    def draw(implementation, route, dtype="float32"):
        def angles(key, loc, kappa):
            return PROGRAMS.new(
                Request(sampler.VON_MISES, key, (loc, kappa), None, (COUNT,), jax.numpy.dtype(dtype), route)
            )

        return of_key(implementation, angles)

    def angles_and_gradient(key, loc, kappa):
        angles, pull = jax.vjp(lambda kappa: sample_von_mises(key, loc, kappa, (COUNT,)), kappa)
        return angles, pull(jax.numpy.ones_like(angles))[0]

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
        with jax.enable_x64(any(dtype == "float64" for _, dtype in arguments)):
            given = [jax.ShapeDtypeStruct(shape, dtype, sharding=on_it) for shape, dtype in arguments]
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

    from jax_von_mises.numerics import xla

    of_case = {name: rest for name, *rest in cases()}
    for name, (plain, case) in WITHOUT.items():
        with mock.patch.object(xla, name, plain):
            jax.clear_caches()
            yield name, case, of_case[case]
    jax.clear_caches()


def count(compiled, text):
    """Return the counts of a compiled program; `text` is the PTX of its kernels."""
    operations = OPERATION.findall(compiled.as_text().split("\nENTRY", 1)[1])
    arrays = {name: of_angles(shape) for name, shape, _, _ in operations}
    launched = [each for each in operations if each[2] not in FREE]
    wide, moved = [], 0
    for name, _, _, operands in launched:
        read = sum(arrays.get(operand, 0) for operand in re.findall(r"%([\w.-]+)", operands))
        moved += read + arrays[name]
        if read + arrays[name]:
            wide.append(name.replace(".", "_").replace("-", "_"))
    parts = dict(re.findall(r"\.visible \.entry (\w+)\((.*?)^}", text, re.M | re.S))
    code = "".join(parts.get(name, "") for name in wide)
    return {
        "kernels": len(launched),
        "kernels of all angles": len(wide),
        "bytes moved an angle": moved,
        "temporary bytes an angle": round(compiled.memory_analysis().temp_size_in_bytes / COUNT, 2),
        "instructions an angle": round(len(INSTRUCTION.findall(code)) / ANGLES, 1),
        "stores of 16 bytes": len(re.findall(r"st\.global\.(?:v4|b128)", code)),
    }


def of_angles(shape):
    """Return the bytes per angle of the arrays in an HLO shape or tuple of shapes; arrays of other sizes count as 0."""
    found = re.findall(r"(\w+)\[(?:1,)?([\d,]+)\]", shape)
    return sum(WIDTHS[dtype] for dtype, sizes in found if sizes == str(COUNT))


def worse(found, table):
    """Yield a description of each count that is worse than in the table."""
    for name, row in table.items():
        for what, most in row.items():
            have = found[name][what]
            if what == "stores of 16 bytes":
                if most and not have:
                    yield f"{name}: no {what}"
            elif have > most * (1 if what == "kernels" else ROOM):
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
