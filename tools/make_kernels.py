"""Make `jax_von_mises/sampling/kernels/angles.ptx`, the shipped CUDA kernels, from `angles.cu`.

Run from the repository root, with nvcc 13.0 on the path (half a minute; no GPU)::

    python -m tools.make_kernels            # writes jax_von_mises/sampling/kernels/angles.ptx
    python -m tools.make_kernels --check    # only reports whether the committed file is current

PTX is a text that the driver compiles for the GPU at hand. The file says in its first line which source it was made
from; `tests/sampling/test_cuda.py` compares that, and makes the file again if nvcc is found.
"""

import argparse
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np

from jax_von_mises.numerics import circle, coefficients, density, elementary, tail_integral

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "jax_von_mises" / "sampling" / "kernels"
SOURCE, TARGET = FOLDER / "angles.cu", FOLDER / "angles.ptx"
# The oldest GPUs with the instructions that the source has, and the oldest version of the text that they need, so that
# drivers for CUDA 12 read it; nvcc would write its own.
ARCHITECTURE, VERSION = "compute_80", "8.0"
FLAGS = ("-ptx", f"-arch={ARCHITECTURE}", "-std=c++17", "-fmad=false", "-O3")

NAMED = ("SINE", "COSINE", "SIN_COS", "SIN_SIN", "SINE_SQUARE", "EXP", "I0_SMALL", "NORM_LARGE", "CUT")
NAMED += ("RULE_NODES", "RULE_WEIGHTS", "GUESS_LOW", "GUESS_HIGH")


def literal(x):
    """A float32 of C."""
    return f"{{{', '.join(map(literal, x))}}}" if isinstance(x, tuple) else f"{float(np.float32(x))!r}f"


def header():
    """``tables.h``: the constants of the package that the source takes."""
    numbers = {
        "GUESS_SWITCH": coefficients.GUESS_SWITCH,
        "RULE_DEPTH": coefficients.RULE_DEPTH,
        "CENTRE": tail_integral.CENTRE,
        "KAPPA_MIN": density.KAPPA_MIN,
        "KAPPA_MAX": tail_integral.KAPPA_MAX,
        "ROOT_KAPPA_MAX": tail_integral.KAPPA_MAX**0.5,
        "LOG2_E": elementary.LOG2_E,
        "LN2_HEAD": elementary.LN2_HEAD,
        "LN2_TAIL": elementary.LN2_TAIL,
        "PI": np.pi,
        "HALF_PI": np.pi / 2,
        "HALF_PI_REST": density.half_pi_rest(np.float32),
        "TWO_PI": circle.TWO_PI,
        **{f"TURN_{j}": part for j, part in enumerate(circle.TURN_PARTS["float32"])},
    }
    assert circle.largest_angle(np.float32) == np.array(0x40490FDA, np.uint32).view(np.float32)
    lines = [f"#define {name} {literal(value)}" for name, value in numbers.items()]
    lines += [f"#define {name} {literal(getattr(coefficients, name))}" for name in NAMED]
    lines += [f"#define {name}_COLUMNS {len(getattr(coefficients, name)[0])}" for name in ("GUESS_LOW", "GUESS_HIGH")]
    return "\n".join(lines) + "\n"


def fingerprint():
    """Of all that the file is made from."""
    return hashlib.sha256((SOURCE.read_text() + header() + " ".join((*FLAGS, VERSION))).encode()).hexdigest()


def make():
    """The text of the file."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "tables.h").write_text(header())
        target = pathlib.Path(folder) / "angles.ptx"
        subprocess.run(["nvcc", *FLAGS, f"-I{folder}", "-o", target, SOURCE], check=True)
        text = target.read_text()
    # Comments and blank lines say nothing; the compiler's own version would differ between its patches.
    lines = [line.split("//")[0].rstrip() for line in text.splitlines()]
    text = "\n".join(line for line in lines if line) + "\n"
    text, found = re.subn(r"^\.version .*$", f".version {VERSION}", text, flags=re.M)
    assert found == 1
    return f"// Made by `python -m tools.make_kernels` from {fingerprint()}; do not edit.\n{text}"


def main():
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; say whether the file is current")
    text = make()
    if not parser.parse_args().check:
        TARGET.write_text(text)
        return 0
    current = TARGET.exists() and TARGET.read_text() == text
    print(f"{TARGET.name} is {'current' if current else 'out of date'}")
    return 0 if current else 1


if __name__ == "__main__":
    sys.exit(main())
