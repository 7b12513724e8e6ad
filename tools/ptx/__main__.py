"""Execute all shipped kernels and report faults; exit with 1 if there are any or if a deliberate fault is missed.

``--quick`` uses fewer sizes and rows; ``--only NAME`` runs one kernel, without the deliberate faults.
"""

import argparse
import sys
import time

from jax_von_mises.sampling import cuda_launch
from tools.ptx import battery


def main():
    """Print a row for each part of each kernel, and one for each deliberate fault; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.ptx", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rows")
    parser.add_argument("--only", choices=battery.KERNELS, metavar="NAME", help="one kernel, such as philox4x32_direct")
    given = parser.parse_args()
    began, faults = time.perf_counter(), []
    machine = battery.Machine(cuda_launch.ptx_text())
    print(f"{'kernel':32}{'part':24}{'launches':>10}{'angles':>13}{'faults':>8}")
    for kernel in (given.only,) if given.only else battery.KERNELS:
        for found in battery.examine(machine, kernel, quick=given.quick):
            faults += found.faults
            row = f"{kernel:32}{found.part:24}{found.launches:10,}{found.angles:13,}{len(found.faults):8,}"
            print("\n".join([row, *(f"    {fault}" for fault in found.faults[:3])]), flush=True)
    for what, *damage in () if given.only else battery.DAMAGES:
        fault = battery.finding(*damage)
        faults += [] if fault else [f"{what}: not found"]
        print(f"damage: {what}: {fault or 'NOT FOUND'}", flush=True)
    print(f"{len(faults)} faults, {time.perf_counter() - began:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
