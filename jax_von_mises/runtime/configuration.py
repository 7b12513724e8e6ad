"""Set how JAX starts: platform, memory, threads, flags of XLA.

JAX takes its settings in three ways: options of ``jax.config``, environment variables, and flags in ``XLA_FLAGS``. It
reads most of them once, when its backends start at the first use of a device. `OPTIONS` has a row for each argument of
`configure`. Everything is checked, and tried in a child process, before anything is set.
"""

import contextlib
import os
import shlex
import threading
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from jax_von_mises import arguments
from jax_von_mises.runtime import child, flags, memory
from jax_von_mises.sampling import cuda, wide_vectors

# JAX refuses to change this option once it has started, and has no other public sign of it. The option matters only
# where several processes work together, so changing it for a moment does no harm.
EARLY = "jax_cpu_get_local_topology_timeout_minutes"

STARTABLE_PLATFORMS = ("cpu", "cuda", "rocm", "tpu", "METAL", "oneapi")
ALLOCATORS = ("default", "platform", "bfc", "cuda_async", "vmm")

FRACTION = "XLA_CLIENT_MEM_FRACTION"
# Its old name; JAX refuses to start with both.
OLD_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"


class Option(NamedTuple):
    """A row of the table: what an argument of `configure` sets, and to what."""

    carrier: str  # an option of jax.config (jax_...), a flag of XLA (xla_...), or a variable
    kind: type  # whole numbers are at least 1 unless these are `allowed`, other numbers are shares
    allowed: tuple = ()
    late: bool = False  # it can change after JAX has started
    tried: bool = False  # a bad value shows only when JAX starts, so a child process tries it
    default: tuple = ()  # values of an option of jax.config where nobody has set anything


OPTIONS = {
    "platform": Option("jax_platforms", str, STARTABLE_PLATFORMS, tried=True, default=(None, "")),
    "x64": Option("jax_enable_x64", bool, late=True, default=(False,)),
    "memory_fraction": Option(FRACTION, float),
    "preallocate": Option("XLA_PYTHON_CLIENT_PREALLOCATE", bool),
    "allocator": Option("XLA_PYTHON_CLIENT_ALLOCATOR", str, ALLOCATORS, tried=True),
    "threads": Option("PJRT_NPROC", int),
    "vector_width": Option(wide_vectors.FLAG, int, (128, 256, 512), tried=True),
    "cpu_devices": Option("jax_num_cpu_devices", int, default=(-1,)),
    "compile_threads": Option("xla_gpu_force_compilation_parallelism", int, tried=True),
    "latency_hiding": Option("xla_gpu_enable_latency_hiding_scheduler", bool, tried=True),
    "profile_guided": Option("jax_enable_pgle", bool, late=True, default=(False,)),
    "profiled_runs": Option("jax_pgle_profiling_runs", int, late=True, default=(3,)),
    "cuda_kernel": Option(cuda.VARIABLE, bool, late=True),
}
LATE = {option.carrier for option in OPTIONS.values() if option.late}

# How JAX and `configure` write True and False as text.
BOOLS = {"true": True, "True": True, "1": True, "false": False, "False": False, "0": False}


class Setting(NamedTuple):
    """One setting as it is now."""

    name: str
    value: Any
    """The value that was set, as `configure` takes it, or the text that it would not take; None where none was set."""
    source: str
    """``"configure"`` or ``"environment"`` (a variable of the process, or ``jax.config``), whichever set it last;
    ``"default"`` where neither did."""
    carrier: str
    """The option of ``jax.config``, the variable or the flag that holds it."""
    changeable: bool
    """Whether this process can still change it."""


_lock = threading.RLock()
# What options of ``jax.config`` and variables had before `configure` first changed them.
_before: dict[str, Any] = {}
# What `configure` has set, by carrier; each flag, and all of XLA_FLAGS.
_configured: dict[str, Any] = {}


def started():
    """Return whether JAX has started its backends, after which most settings stay as they are."""
    with _lock:
        minutes = getattr(jax.config, EARLY)
        try:
            jax.config.update(EARLY, minutes + 1)
        except RuntimeError:
            return True
        jax.config.update(EARLY, minutes)
        return False


def configure(
    *,
    platform: str | None = None,
    x64: bool | None = None,
    memory_fraction: float | None = None,
    preallocate: bool | None = None,
    allocator: str | None = None,
    threads: int | None = None,
    vector_width: int | None = None,
    cpu_devices: int | None = None,
    compile_threads: int | None = None,
    latency_hiding: bool | None = None,
    profile_guided: bool | None = None,
    profiled_runs: int | None = None,
    cuda_kernel: bool | None = None,
    xla_flags: Mapping[str, object] | str | None = None,
    check: bool = True,
    timeout: float = 120.0,
) -> tuple[Setting, ...]:
    """Set how JAX starts and works in this process: all of what is given, or nothing if any of it is refused.

    Call it before the first use of JAX's devices, right after the imports. None leaves a setting alone.

    Parameters
    ----------
    platform : str, optional
        Where JAX runs: ``"cpu"``, ``"cuda"``, ``"rocm"`` or ``"tpu"``, or several with commas, the first of which is
        the default. Without it JAX takes the best it finds.
    x64 : bool, optional
        64-bit mode: float64 and int64 exist. May change at any time, for what is traced from then on.
    memory_fraction : float, optional
        Share of a GPU's memory that JAX may take, above 0 and at most 1; 0.75 by default.
    preallocate : bool, optional
        Whether JAX takes that share at its start, or as it needs it (False). Memory that is taken is not given back
        before the process ends; without preallocation it may be scattered.
    allocator : {"default", "platform", "bfc", "cuda_async", "vmm"}, optional
        Who hands out a GPU's memory. "platform" frees at once and is slow.
    threads : int, optional
        Threads that XLA computes with on a CPU; as many as there are cores by default.
    vector_width : {128, 256, 512}, optional
        Bits of the vectors that XLA makes programs for a CPU of; 256 by default. Draws that are no part of another
        program choose 512 by themselves where that is faster and the angles stay. With this
        setting all programs have the same width, and angles of arrays of concentrations may have other last digits.
    cpu_devices : int, optional
        CPU devices that JAX shows, to try programs for several devices on one machine.
    compile_threads : int, optional
        Threads that XLA compiles for a GPU with.
    latency_hiding : bool, optional
        Whether XLA orders a GPU's work so that communication between devices is hidden behind it. The sampler has no
        communication; your program around it may.
    profile_guided : bool, optional
        Whether JAX profiles the first runs of a program on a GPU, and compiles it again with what it learned
        (``jax_enable_pgle``). For programs with communication, as above. On a CPU JAX finds no profile, and warns.
    profiled_runs : int, optional
        How many runs are profiled.
    cuda_kernel : bool, optional
        Whether draws on a CUDA device go to this package's own kernels where they pass their test (True; also for each
        of several devices, inside of ``jax.shard_map`` and ``jax.pmap``), or to the plain path (False). Without it they
        do where there is one device, on which the kernels have passed the trial of `diagnose`. May change at any time,
        for what is traced from then on.
    xla_flags : str or dict, optional
        More flags of XLA, ``"--xla_name=value ..."`` or ``{"xla_name": value}``. A flag that ``XLA_FLAGS`` has already
        takes the new value.
    check : bool
        Whether a child process tries what would end this process if it were wrong: flags, the platform. It takes a
        second or two, and more on a GPU.
    timeout : float
        Seconds until the child is given up.

    Returns
    -------
    tuple of Setting
        All settings, as from `settings`.

    Raises
    ------
    TypeError, ValueError
        For a value that is not allowed, or that the installed jaxlib refused; nothing was changed.
    RuntimeError
        JAX has started and cannot change one of these any more; nothing was changed. The message has the ways out.
    """
    given = {name: value for name, value in locals().items() if name in OPTIONS and value is not None}  # by argument
    check = arguments.flag("configure", "check", check)
    timeout = arguments.seconds("configure", "timeout", timeout, above=0)
    wanted = {OPTIONS[name].carrier: _checked(name, value, OPTIONS[name]) for name, value in given.items()}
    more = _checked_flags(xla_flags)
    with _lock:
        changes = _changes(wanted | more)
        early = {name: value for name, value in changes.items() if name not in LATE}
        if early and started():
            _refuse_late(early, [*given, *(["xla_flags"] if more else [])])
        if check and (more or any(OPTIONS[name].tried for name in given)):
            _try(changes, timeout)
        for name, value in more.items():
            advice = flags.advice(flags.Flag(name, value))
            if advice is not None and advice.level == flags.HARMFUL:
                warnings.warn(f"configure: --{name} {advice.text}", RuntimeWarning, stacklevel=2)
        for name, value in changes.items():
            _before.setdefault(name, _present(name))
            _put(name, value)
        _configured.update(wanted | more | changes)
        return settings()


def settings() -> tuple[Setting, ...]:
    """Return how JAX is set in this process.

    Returns
    -------
    tuple of Setting
        One for each argument of `configure`. ``xla_flags`` has the flags of XLA for which there is no other argument;
        its source is ``"configure"`` if any of them was set there.
    """
    with _lock:
        early = not started()
        try:
            present = flags.current()
        except (OSError, ValueError):
            present = []
        held = {flag.name: flag.value for flag in present}
        found = []
        for name, option in OPTIONS.items():
            carrier = option.carrier
            shown = f"--{carrier}" if carrier.startswith("xla_") else carrier
            if not carrier.startswith("xla_") and (value := _explicit(option)) is not None:
                held[carrier] = value
            value = _read(option.kind, held[carrier]) if carrier in held else None
            found.append(Setting(name, value, _source([carrier], held), shown, early or option.late))
        carriers = {option.carrier for option in OPTIONS.values()}
        rest = [flag for flag in present if flag.name not in carriers]
        source = _source([flag.name for flag in rest], held)
        found.append(Setting("xla_flags", flags.join(rest) or None, source, "XLA_FLAGS", early))
        return tuple(found)


def reset() -> tuple[str, ...]:
    """Undo all that `configure` did in this process, but for what others have changed since.

    Returns
    -------
    tuple of str
        The options of ``jax.config`` and variables that JAX had read by then and keeps until the process ends; empty
        if JAX has not started since. (Processes that are started from here on have none of it.)
    """
    with _lock:
        kept = tuple(name for name in _before if name not in LATE) if started() else ()
        for name, value in _before.items():
            if _present(name) == _configured[name]:
                with contextlib.suppress(RuntimeError):  # JAX has started, which `kept` reports
                    _put(name, value)
        _before.clear()
        _configured.clear()
        return kept


def _explicit(option):
    """Return the value of an option of ``jax.config`` or a variable; None where nobody has set it."""
    name = option.carrier
    value = _present(name)
    if name == FRACTION and value is None:
        return os.environ.get(OLD_FRACTION)
    # Someone may have asked for the default.
    if value in option.default and name not in _configured and not os.environ.get(_variable(name)):
        return None
    return value


def _source(carriers, held):
    """Return who set those of `carriers` that are `held`."""
    ours = [_configured.get(name, ...) == held[name] for name in carriers if name in held]
    return "configure" if any(ours) else "environment" if ours else "default"


def _read(kind, value):
    """Return a value as `configure` takes it; a text that it does not take stays as it is."""
    if value is None:  # a flag without a value
        return True
    if not isinstance(value, str):
        return value
    try:
        return BOOLS.get(value, value) if kind is bool else kind(value)
    except ValueError:
        return value


def _changes(wanted):
    """Return which options of ``jax.config`` and variables must change for `wanted`, and to what; None removes."""
    changes = {name: value for name, value in wanted.items() if not name.startswith("xla_")}
    if FRACTION in changes:
        changes[OLD_FRACTION] = None
    asked = {name: value for name, value in wanted.items() if name.startswith("xla_")}
    present = flags.current()
    last = {flag.name: flag.value for flag in present}
    if any(name not in last or last[name] != value for name, value in asked.items()):
        # Flags of others stay as they are: some are given several times, and add up.
        kept = [flag for flag in present if flag.name not in asked]
        changes["XLA_FLAGS"] = flags.join([*kept, *(flags.Flag(name, value) for name, value in asked.items())])
    return {name: value for name, value in changes.items() if value != _present(name)}


def _refuse_late(early, names):
    carriers = {name: OPTIONS[name].carrier if name in OPTIONS else "XLA_FLAGS" for name in names}
    blamed = [
        name for name, carrier in carriers.items() if ("XLA_FLAGS" if carrier.startswith("xla_") else carrier) in early
    ]
    start = [f"{_variable(name)}={shlex.quote(str(value))}" for name, value in early.items() if value is not None]
    raise RuntimeError(
        f"configure: JAX has started, on {jax.default_backend()}, and {', '.join(blamed)} cannot change any more in "
        "this process; nothing was changed. Call configure before anything uses a device (jax.devices(), any array, "
        f"any sample), right after the imports; or start the program with {' '.join(start)} in its environment; or, in "
        "a notebook, restart the kernel first."
    )


def _try(changes, timeout):
    """Start JAX with these settings in a child process, which they may end."""
    planned = {_variable(name): None if value is None else str(value) for name, value in changes.items()}
    ended = child.run("-c", flags.START, timeout=timeout, **{**child.configuration(), **planned, **child.MODEST})
    if ended.code is None:
        raise ValueError(
            f"configure: with these settings JAX did not start within {timeout:g} s in a child process, and was "
            "stopped; nothing was changed. `jax-von-mises doctor` looks for the reason; check=False skips the trial."
        )
    if ended.code == 0:
        return
    refused = flags.refusals(ended.err)
    if not refused:
        raise ValueError(
            "configure: with these settings JAX does not start, as a child process found: "
            f"{child.reason(ended)}. Nothing was changed."
        )
    reasons = [f"--{item.flag}: {item.reason}" if item.flag else item.reason for item in refused]
    reasons += [flags.ADVICE[item.flag].text for item in refused if item.flag in flags.ADVICE]
    raise ValueError(
        f"configure: XLA would end this process: {'; '.join(reasons)}. Nothing was changed; leave out what it does "
        "not take."
    )


def _variable(name):
    """Return the environment variable that sets an option of ``jax.config``; other names are variables."""
    return name.upper() if name.startswith("jax_") else name


def _present(name):
    """Return the value that an option of ``jax.config`` or a variable has now."""
    return getattr(jax.config, name) if name.startswith("jax_") else os.environ.get(name)


def _put(name, value):
    """Set an option of ``jax.config`` or a variable; None removes a variable."""
    if name.startswith("jax_"):
        jax.config.update(name, value)
    elif value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _as_text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def _checked(name, value, option):
    """Return the value of an argument of `configure`, as its carrier takes it."""
    caller = "configure"
    if option.kind is bool:
        value = arguments.flag(caller, name, value)
    elif option.kind is int:
        value = arguments.whole_number(caller, name, value, 1)
        if option.allowed and value not in option.allowed:
            raise ValueError(f"{caller}: {name}={value} is not one of {', '.join(map(str, option.allowed))}.")
    elif option.kind is float:
        value = memory.checked_share(caller, name, value)
    else:
        _must_be_allowed(name, value, option.allowed)
    return value if option.carrier.startswith("jax_") else _as_text(value)


def _must_be_allowed(name, value, allowed):
    given = f"configure: {name}={arguments.safe_repr(value)}"
    if not isinstance(value, str):
        raise TypeError(f"{given} must be a string such as {allowed[0]!r}.")
    parts = value.split(",") if name == "platform" else [value]
    if "gpu" in parts:
        raise ValueError(
            f"{given}: JAX takes 'gpu' for both 'cuda' and 'rocm' and fails where one of them is not installed. Say "
            "which."
        )
    if not set(parts) <= set(allowed):
        raise ValueError(f"{given} is not one of {', '.join(allowed)}.")


def _checked_flags(value):
    """Return flags of XLA as names and texts; a text is None where a flag has no value."""
    given = f"configure: xla_flags={arguments.safe_repr(value)}"
    if value is None:
        return {}
    try:
        if isinstance(value, str):
            if value.strip() and not value.strip().startswith("--"):
                raise ValueError("flags begin with two dashes, as '--xla_name=value'")
            found = flags.parse(value, strict=True)
        elif hasattr(value, "items"):
            found = [flags.Flag(str(name).removeprefix("--"), _as_text(text)) for name, text in value.items()]
        else:
            raise TypeError(f"{given} must be a string or a dict of names and values.")
        text = flags.join(found)
        if flags.parse(text) != found:
            raise ValueError("XLA reads no name with a blank, and no value with both kinds of quotes")
        if b"\0" in os.fsencode(text):
            raise ValueError("it has a null character, which no variable may have")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{given}: {error}.") from error
    return {flag.name: flag.value for flag in found}
