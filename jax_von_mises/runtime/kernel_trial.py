"""Try the CUDA kernels in a child process, and keep the verdict for later processes (`doctor` calls it)."""

import functools
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any, NamedTuple

from jax_von_mises.runtime import child
from jax_von_mises.sampling import cuda_trial, cuda_verdict

PROGRAM = ("-m", cuda_trial.__name__)
# Who watches every access to memory where it is installed, and its exit code if one was wrong. What XLA asks the driver
# in vain is no error of a kernel.
SANITIZER, FOUND = "compute-sanitizer", 9
OPTIONS = ("--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", str(FOUND))
# A process that ends by another signal was ended by somebody else, such as a system without memory.
CRASHES = {getattr(signal, f"SIG{name}", None) for name in ("SEGV", "ABRT", "BUS", "ILL", "FPE", "TRAP", "SYS")}

# Where NVIDIA's MPS has its pipes, if not where the variable says.
MPS_PIPES, MPS_VARIABLE = Path("/tmp/nvidia-mps"), "CUDA_MPS_PIPE_DIRECTORY"


class Trial(NamedTuple):
    """How the trial on a kind of card ended."""

    card: str
    failed: str | None
    """Empty if all kernels are right, else what is wrong; None where that was not found out."""
    detail: str
    """The same in words, and why it was not found out."""
    about: dict[str, Any]
    """What the verdict is for."""
    kept: bool = False
    """Whether later processes find it."""


def run(timeout, **changes):
    """Try the kernels on each kind of card; return a `Trial` for each.

    `changes` are those of the child's environment, as for `child.run`.
    """
    if MPS_VARIABLE in os.environ or MPS_PIPES.exists():
        why = f"NVIDIA MPS shares the GPU ({MPS_VARIABLE} is set, or {MPS_PIPES} exists), and a fault would end all"
        return (Trial("any card", None, f"not tried: {why} of its programs", {}),)
    ended = child.run(*PROGRAM, timeout=timeout, **changes)
    steps = _steps(ended.out)
    if not steps:
        return (Trial("any card", None, f"it did not begin: {_end(ended, timeout)}", {}),)
    outcomes = {step["about"]["card"]: step for step in steps}
    watched = functools.cache(lambda: _watched(timeout, changes))  # one run is for all cards
    found = []
    for card, step in outcomes.items():
        failed, why = step.get("failed"), step.get("why", "it ended without a verdict")
        if step["step"] == "begin":
            why = _end(ended, timeout)
            failed = f"the process crashed: {why}" if _crashed(ended) else None
        detail = f"failed: {failed}" if failed else f"not finished: {why}"
        if failed == "":
            failed, detail = watched()
        found.append(Trial(card, failed, detail, step["about"]))
    return tuple(found)


def draws_did_not_work(trials, ended, why):
    """Return the trials where a child that drew by the kernels that passed ended as `ended`, with a problem `why`.

    They failed if the child crashed or drew other angles. A child that was killed or had no memory is no evidence
    against them.
    """
    why = f"they passed, and then {why}"
    if (ended.code == 0 or _crashed(ended)) and "RESOURCE_EXHAUSTED" not in why:
        outcome = {"failed": why, "detail": f"failed: {why}"}
    else:
        outcome = {"failed": None, "detail": f"not finished: {why}"}
    return tuple(trial._replace(**outcome) if trial.failed == "" else trial for trial in trials)


def keep(trials):
    """Keep what was found out for later processes; return the trials with `Trial.kept`."""
    return tuple(trial if trial.failed is None else _keep(trial) for trial in trials)


def _keep(trial):
    try:
        cuda_verdict.keep(trial.about, trial.failed)
    except cuda_verdict.NotKept as error:
        return trial._replace(detail=f"{trial.detail}, which cannot be kept: {error}")
    return trial._replace(kept=True)


def _steps(text):
    """Return the steps that a child printed; other lines are those of libraries, or cut short."""
    found = []
    for line in text.splitlines():
        if line.startswith(cuda_trial.MARK):
            try:
                step = json.loads(line.removeprefix(cuda_trial.MARK))
                step["step"], step["about"]["card"]
            except (ValueError, TypeError, KeyError):
                continue
            found.append(step)
    return found


def _crashed(ended):
    """Whether a child ended by itself, and not well."""
    if ended.code is None or ended.code >= 0:
        return bool(ended.code)
    return -ended.code in CRASHES


def _end(ended, timeout):
    """Return in words how a child ended."""
    if ended.code is None:
        return f"no answer within {timeout:g} s"
    if ended.code < 0:
        return f"ended by signal {-ended.code}"
    return child.reason(ended) if ended.code else "it ended without a verdict"


def _watched(timeout, changes):
    """Try the kernels that have passed once more, under `SANITIZER` if it is there; return `failed` and `detail`."""
    tool = shutil.which(SANITIZER)
    if tool is None:
        return "", "passed"
    # Each array is a separate allocation then, to which the tool knows the end.
    changes = {**changes, "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}
    ended = child.run(*PROGRAM, before=(tool, *OPTIONS), timeout=timeout, **changes)
    if ended.code == FOUND:
        summary = next((line for line in ended.out.splitlines() if "ERROR SUMMARY" in line), "an access outside")
        failed = f"{SANITIZER} found {summary.strip('= ')}"
        return failed, f"failed: {failed}"
    return "", f"passed, {'also' if ended.code == 0 else 'but not finished'} under {SANITIZER}"
