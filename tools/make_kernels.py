"""Make `jax_von_mises/von_mises/kernels/angles.ptx`, the shipped CUDA kernels, from `angles.cu`.

Run from the repository root, with nvcc 13.0 on the path (takes seconds; needs no GPU)::

    python -m tools.make_kernels            # writes jax_von_mises/von_mises/kernels/angles.ptx
    python -m tools.make_kernels --check    # only reports whether the committed file is current

PTX is text that the driver compiles for the GPU at hand. The first line of the file identifies its source;
`tests/sampling/test_kernels.py` compares it with the current source, and compiles the source again if nvcc 13.0 is on
the path.
"""

import argparse
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np

from jax_von_mises.numerics import circle, coefficients, elementary
from jax_von_mises.von_mises import density, tail_integral

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "jax_von_mises" / "von_mises" / "kernels"
SOURCE, TARGET = FOLDER / "angles.cu", FOLDER / "angles.ptx"
# The oldest GPU architecture and the oldest version of PTX with all instructions of the source. Drivers for CUDA 12 can
# read this version; nvcc would write a newer one.
ARCHITECTURE, VERSION = "compute_80", "8.0"
FLAGS = ("-ptx", f"-arch={ARCHITECTURE}", "-std=c++17", "-fmad=false", "-O3")

NAMED = ("SINE", "COSINE", "SIN_COS", "SIN_SIN", "SINE_SQUARE", "EXP", "I0_SMALL", "NORM_LARGE", "CUT")
NAMED += ("RULE_NODES", "RULE_WEIGHTS", "GUESS_LOW", "GUESS_HIGH")


def literal(x):
    """Format a number, or a nested tuple of numbers, as C `float` literals."""
    return f"{{{', '.join(map(literal, x))}}}" if isinstance(x, tuple) else f"{float(np.float32(x))!r}f"


def header():
    """Return the text of ``tables.h``, which defines the package's constants for the source."""
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
        "HALF_PI_REST": circle.half_pi_rest(np.float32),
        "TWO_PI": circle.TWO_PI,
        **{f"TURN_{j}": part for j, part in enumerate(circle.TURN_PARTS["float32"])},
    }
    assert circle.largest_angle(np.float32) == np.array(0x40490FDA, np.uint32).view(np.float32)
    lines = [f"#define {name} {literal(value)}" for name, value in numbers.items()]
    lines += [f"#define {name} {literal(getattr(coefficients, name))}" for name in NAMED]
    lines += [f"#define {name}_COLUMNS {len(getattr(coefficients, name)[0])}" for name in ("GUESS_LOW", "GUESS_HIGH")]
    return "\n".join(lines) + "\n"


def fingerprint():
    """Return a fingerprint of everything that the file is made from."""
    return hashlib.sha256((SOURCE.read_text() + header() + " ".join((*FLAGS, VERSION))).encode()).hexdigest()


def make():
    """Compile the source and return the text of the file."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "tables.h").write_text(header())
        target = pathlib.Path(folder) / "angles.ptx"
        subprocess.run(["nvcc", *FLAGS, f"-I{folder}", "-o", target, SOURCE], check=True)
        text = target.read_text()
    # Drop blank lines, and comments, which differ between patch releases of the compiler.
    lines = [line.split("//")[0].rstrip() for line in text.splitlines()]
    text = "\n".join(line for line in lines if line) + "\n"
    text, found = re.subn(r"^\.version .*$", f".version {VERSION}", text, flags=re.M)
    assert found == 1
    return f"// Made by `python -m tools.make_kernels` from {fingerprint()}; do not edit.\n{text}"


def main():
    """Write the file, or report whether it is current; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; report whether the file is current")
    text = make()
    if not parser.parse_args().check:
        TARGET.write_text(text)
        return 0
    current = TARGET.exists() and TARGET.read_text() == text
    print(f"{TARGET.name} is {'current' if current else 'out of date'}")
    return 0 if current else 1


if __name__ == "__main__":
    sys.exit(main())
