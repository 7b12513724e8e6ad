"""Try the CUDA kernels in a child process, and store the verdict for later processes."""

import functools
import json
import os
import shutil
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jax_von_mises.runtime import child
from jax_von_mises.sampling import cuda_trial, cuda_verdict

PROGRAM = ("-m", cuda_trial.__name__)
# The tool that checks every memory access, and its exit code after an invalid one. Failed driver calls are not
# reported, since XLA makes some that have nothing to do with the kernels.
SANITIZER, FOUND = "compute-sanitizer", 9
OPTIONS = ("--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", str(FOUND))
# Signals of a crash. Any other signal comes from outside the process, for example when the system is out of memory.
CRASHES = {getattr(signal, f"SIG{name}", None) for name in ("SEGV", "ABRT", "BUS", "ILL", "FPE", "TRAP", "SYS")}

# Default directory of the NVIDIA MPS pipes, and the environment variable that overrides it.
MPS_PIPES, MPS_VARIABLE = Path("/tmp/nvidia-mps"), "CUDA_MPS_PIPE_DIRECTORY"


class Trial(NamedTuple):
    """Outcome of the trial on one kind of card."""

    card: str
    failed: str | None
    """Description of the failure; empty if all kernels passed, and None if there is no verdict."""
    detail: str
    """Outcome in words, with the reason if there is no verdict."""
    about: dict[str, Any]
    """Card, driver and versions to which the verdict applies."""
    kept: bool = False
    """Whether the verdict is stored for later processes."""


def run(timeout: float, **changes: str | None) -> tuple[Trial, ...]:
    """Try the kernels on each kind of card, and return a `Trial` for each.

    `changes` are applied to the child's environment variables.
    """
    if MPS_VARIABLE in os.environ or MPS_PIPES.exists():
        why = f"NVIDIA MPS shares the GPU ({MPS_VARIABLE} is set, or {MPS_PIPES} exists), so a fault would end all"
        return (Trial("any card", None, f"was not run: {why} programs on it", {}),)
    ended = child.run(*PROGRAM, timeout=timeout, **changes)
    steps = _steps(ended.out)
    if not steps:
        return (Trial("any card", None, f"did not start: {_end(ended, timeout)}", {}),)
    outcomes = {step["about"]["card"]: step for step in steps}
    watched = functools.cache(lambda: _watched(timeout, changes))  # one run serves all cards
    verdicts = []
    for card, step in outcomes.items():
        failed, why = step.get("failed"), step.get("why", "it ended without a verdict")
        if step["step"] == "begin":
            why = _end(ended, timeout)
            failed = f"the process crashed: {why}" if _crashed(ended) else None
        detail = f"failed: {failed}" if failed else f"did not finish: {why}"
        if failed == "":
            failed, detail = watched()
        verdicts.append(Trial(card, failed, detail, step["about"]))
    return tuple(verdicts)


def draws_did_not_work(trials: Iterable[Trial], ended: child.Ended, why: str) -> tuple[Trial, ...]:
    """Revise the verdicts of trials that passed, after a draw by the kernels showed the problem `why`.

    The kernels failed if the child, which ended as `ended`, crashed or drew wrong angles. A child that was killed or
    ran out of memory is no evidence against them.
    """
    why = f"the kernels passed, but then {why}"
    failed, detail = None, f"did not finish: {why}"
    if (ended.code == 0 or _crashed(ended)) and "RESOURCE_EXHAUSTED" not in why:
        failed, detail = why, f"failed: {why}"
    return tuple(trial._replace(failed=failed, detail=detail) if trial.failed == "" else trial for trial in trials)


def keep(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Store the verdicts for later processes, and return the trials with `Trial.kept` set."""
    return tuple(trial if trial.failed is None else _keep(trial, trial.failed) for trial in trials)


def _keep(trial: Trial, failed: str) -> Trial:
    try:
        cuda_verdict.keep(trial.about, failed)
    except cuda_verdict.NotKept as error:
        return trial._replace(detail=f"{trial.detail}, but the verdict cannot be kept: {error}")
    return trial._replace(kept=True)


def _steps(text: str) -> list[dict[str, Any]]:
    """Return the steps that a child printed, without lines printed by libraries or a truncated last line."""
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


def _crashed(ended: child.Ended) -> bool:
    """Return whether a child failed by itself, with a nonzero exit code or a signal of a crash."""
    if ended.code is None or ended.code >= 0:
        return bool(ended.code)
    return -ended.code in CRASHES


def _end(ended: child.Ended, timeout: float) -> str:
    """Describe how a child ended."""
    if ended.code is None:
        return f"no answer within {timeout:g} s"
    if ended.code < 0:
        return f"ended by signal {-ended.code}"
    return child.reason(ended) if ended.code else "it ended without a verdict"


def _watched(timeout: float, changes: Mapping[str, str | None]) -> tuple[str, str]:
    """Repeat a passed trial under `SANITIZER`, if it is installed; return `Trial.failed` and `Trial.detail`."""
    tool = shutil.which(SANITIZER)
    if tool is None:
        return "", "passed"
    # With this allocator each array is a separate allocation, so the tool detects any access beyond its end.
    changes = {**changes, "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}
    ended = child.run_command(tool, *OPTIONS, *child.PYTHON, *PROGRAM, timeout=timeout, **changes)
    if ended.code == FOUND:
        summary = next((line for line in ended.out.splitlines() if "ERROR SUMMARY" in line), "an invalid memory access")
        failed = f"{SANITIZER} found {summary.strip('= ')}"
        return failed, f"failed: {failed}"
    return "", f"passed, {'also' if ended.code == 0 else 'but did not finish'} under {SANITIZER}"
