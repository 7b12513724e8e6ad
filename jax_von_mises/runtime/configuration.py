"""How JAX starts, set in one call: platform, memory, threads, flags of XLA.

JAX takes its settings in three ways: options of ``jax.config``, environment variables, and flags in ``XLA_FLAGS``. Most
are read once, when its backends start at the first use of a device. `configure` knows which is which, tries what might
end the process in a child, sets all or nothing, and remembers what was there for `reset`.
"""

import contextlib
import math
import os
import shlex
import threading
import warnings
from typing import Any, NamedTuple

import jax

from jax_von_mises import arguments
from jax_von_mises.runtime import child, flags
from jax_von_mises.sampling import cuda

# An option that JAX lets nobody change once it has started, which is the one public sign of it; and one that matters to
# no process that is alone, so that trying to change it does no harm.
EARLY = "jax_cpu_get_local_topology_timeout_minutes"

STARTABLE_PLATFORMS = ("cpu", "cuda", "rocm", "tpu", "METAL", "oneapi")
ALLOCATORS = ("default", "platform", "bfc", "cuda_async", "vmm")

FRACTION = "XLA_CLIENT_MEM_FRACTION"
# Its old name; JAX refuses to start with both.
OLD_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"


class Option(NamedTuple):
    """An argument of `configure`, and how JAX takes it: an option of ``jax.config``, a variable or a flag of XLA."""

    carrier: str
    name: str
    kind: type
    late: bool = False  # whether it can change after JAX has started
    tried: bool = False  # whether a bad value shows only when JAX starts, so that a child tries it
    default: tuple = ()  # values of an option of ``jax.config`` where nobody has set anything


OPTIONS = {
    "platform": Option("config", "jax_platforms", str, tried=True, default=(None, "")),
    "x64": Option("config", "jax_enable_x64", bool, late=True, default=(False,)),
    "memory_fraction": Option("variable", FRACTION, float),
    "preallocate": Option("variable", "XLA_PYTHON_CLIENT_PREALLOCATE", bool),
    "allocator": Option("variable", "XLA_PYTHON_CLIENT_ALLOCATOR", str, tried=True),
    "threads": Option("variable", "PJRT_NPROC", int),
    "cpu_devices": Option("config", "jax_num_cpu_devices", int, default=(-1,)),
    "compile_threads": Option("flag", "xla_gpu_force_compilation_parallelism", int, tried=True),
    "latency_hiding": Option("flag", "xla_gpu_enable_latency_hiding_scheduler", bool, tried=True),
    "profile_guided": Option("config", "jax_enable_pgle", bool, late=True, default=(False,)),
    "profiled_runs": Option("config", "jax_pgle_profiling_runs", int, late=True, default=(3,)),
    "cuda_kernel": Option("variable", cuda.VARIABLE, bool, late=True),
}


class Setting(NamedTuple):
    """One setting as it stands."""

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


class _Change(NamedTuple):
    carrier: str  # "config" or "variable"
    name: str
    old: Any
    new: Any


_lock = threading.RLock()
# What was done, in order, for `reset`.
_done: list[_Change] = []
# What `configure` has set, by the names of options of ``jax.config``, variables and flags.
_configured: dict[str, Any] = {}


def started():
    """Whether JAX has started its backends, after which most settings stay as they are."""
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
    platform=None,
    x64=None,
    memory_fraction=None,
    preallocate=None,
    allocator=None,
    threads=None,
    cpu_devices=None,
    compile_threads=None,
    latency_hiding=None,
    profile_guided=None,
    profiled_runs=None,
    cuda_kernel=None,
    xla_flags=None,
    check=True,
    timeout=120.0,
):
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
        do where there is one device, of a kind on which the kernels were accepted. May change at any time, for what is
        traced from then on.
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
    asked = {
        "platform": platform,
        "x64": x64,
        "memory_fraction": memory_fraction,
        "preallocate": preallocate,
        "allocator": allocator,
        "threads": threads,
        "cpu_devices": cpu_devices,
        "compile_threads": compile_threads,
        "latency_hiding": latency_hiding,
        "profile_guided": profile_guided,
        "profiled_runs": profiled_runs,
        "cuda_kernel": cuda_kernel,
    }
    given = {name: _checked(name, value) for name, value in asked.items() if value is not None}
    more = _checked_flags(xla_flags)
    check = arguments.flag("configure", "check", check)
    timeout = arguments.seconds("configure", "timeout", timeout, above=0)
    with _lock:
        wanted = {}
        for name, value in given.items():
            option = OPTIONS[name]
            wanted[option.name] = value if option.carrier == "config" else _as_text(value)
        wanted |= more
        names = [*given, *(["xla_flags"] if more else [])]
        changes = _plan(wanted)
        _refuse_late(changes, names)
        if check and any(OPTIONS[name].tried for name in given) | bool(more):
            _try(changes, timeout)
        _warn_late(more)
        _apply(changes)
        _configured.update(wanted)
        return settings()


def settings():
    """How JAX is set in this process.

    Returns
    -------
    tuple of Setting
        One for each argument of `configure`. ``xla_flags`` has the flags of XLA for which there is no other argument;
        its source is ``"configure"`` if any of them was set there.
    """
    with _lock:
        late = not started()
        try:
            present = flags.current()
        except (OSError, ValueError):
            present = []
        held = _held(present)
        found = []
        for name, option in OPTIONS.items():
            carrier = f"--{option.name}" if option.carrier == "flag" else option.name
            value = _taken(option.kind, held[option.name]) if option.name in held else None
            found.append(Setting(name, value, _source([option.name], held), carrier, late or option.late))
        own = {option.name for option in OPTIONS.values()}
        rest = [flag for flag in present if flag.name not in own]
        source = _source([flag.name for flag in rest], held)
        found.append(Setting("xla_flags", flags.join(rest) or None, source, "XLA_FLAGS", late))
        return tuple(found)


def _held(present):
    """What is set now, by the names of options of ``jax.config``, variables and flags, as these hold it."""
    held: dict[str, Any] = {flag.name: flag.value for flag in present}
    for option in OPTIONS.values():
        if option.carrier == "variable" and option.name in os.environ:
            held[option.name] = os.environ[option.name]
        elif option.carrier == "config":
            value = getattr(jax.config, option.name)
            # A default value may have been asked for.
            asked = option.name in _configured or os.environ.get(_variable(option.name))
            if asked or value not in option.default:
                held[option.name] = value
    if OLD_FRACTION in os.environ:
        held.setdefault(FRACTION, os.environ[OLD_FRACTION])
    return held


def _source(names, held):
    """Where those of `names` that are `held` were set."""
    there = [name for name in names if name in held]
    if not there:
        return "default"
    # Whoever has changed it since has had the last word.
    ours = any(name in _configured and _configured[name] == held[name] for name in there)
    return "configure" if ours else "environment"


def _taken(kind, value):
    """A value of an option, a variable or a flag as `configure` takes it, and text that it does not take as it is."""
    if value is None:  # of a flag
        return True
    if not isinstance(value, str):
        return value
    if kind is bool:
        return {"true": True, "True": True, "1": True, "false": False, "False": False, "0": False}.get(value, value)
    try:
        return kind(value)
    except ValueError:
        return value


def reset():
    """Undo all that `configure` did in this process.

    Returns
    -------
    tuple of str
        What JAX had read by then and keeps until the process ends, by the names of jax.config, variables and flags;
        empty if JAX has not started since. (Processes that are started from here on have none of it.)
    """
    with _lock:
        kept = []
        running = started()
        late = {option.name for option in OPTIONS.values() if option.late}
        while _done:
            change = _done.pop()
            if running and change.name not in late and change.name not in kept:
                kept.append(change.name)
            # Whoever has changed it since wants it so.
            if _present(change.carrier, change.name) == change.new:
                with contextlib.suppress(RuntimeError):  # JAX has started, which `kept` tells
                    _put_value(change.carrier, change.name, change.old)
        _configured.clear()
        return tuple(kept)


def _plan(wanted):
    """The changes that make options of ``jax.config``, variables and flags have the values of `wanted`."""
    present = flags.current()
    changes = []
    more = dict(wanted)  # in the end the flags
    for option in OPTIONS.values():
        if option.name not in wanted or option.carrier == "flag":
            continue
        old = _present(option.carrier, option.name)
        changes.append(_Change(option.carrier, option.name, old, more.pop(option.name)))
        if option.name == FRACTION and OLD_FRACTION in os.environ:
            changes.append(_Change("variable", OLD_FRACTION, os.environ[OLD_FRACTION], None))
    # Flags of others stay as they are: some are given several times, and add up.
    last = {flag.name: flag.value for flag in present}
    if any(name not in last or last[name] != value for name, value in more.items()):
        kept = [flag for flag in present if flag.name not in more]
        text = flags.join([*kept, *(flags.Flag(name, value) for name, value in more.items())])
        changes.append(_Change("variable", "XLA_FLAGS", os.environ.get("XLA_FLAGS"), text))
    return [change for change in changes if change.old != change.new]


def _refuse_late(changes, names):
    """Refuse what JAX reads at its start alone, once it has started."""
    late_ones = {option.name for option in OPTIONS.values() if option.late}
    early = [change for change in changes if change.name not in late_ones]
    if not early or not started():
        return
    carriers = {change.name for change in early}
    blamed = [
        name
        for name in names
        if name == "xla_flags"
        or OPTIONS[name].name in carriers
        or (OPTIONS[name].carrier == "flag" and "XLA_FLAGS" in carriers)
    ]
    start = [f"{_variable(change.name)}={shlex.quote(str(change.new))}" for change in early if change.new is not None]
    raise RuntimeError(
        f"configure: JAX has started, on {jax.default_backend()}, and {', '.join(blamed)} cannot change any more in "
        "this process; nothing was changed. Call configure before anything uses a device (jax.devices(), any array, "
        f"any sample), right after the imports; or start the program with {' '.join(start)} in its environment; or, in "
        "a notebook, restart the kernel first."
    )


def _variable(name):
    """The environment variable that sets an option of ``jax.config``; other names are variables."""
    return name.upper() if name.startswith("jax_") else name


def _try(changes, timeout):
    """Start JAX with these settings in a child, which they may end."""
    planned = {_variable(change.name): None if change.new is None else str(change.new) for change in changes}
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
    told = [f"--{item.flag}: {item.reason}" if item.flag else item.reason for item in refused]
    told += [flags.ADVICE[item.flag].text for item in refused if item.flag in flags.ADVICE]
    raise ValueError(
        f"configure: XLA would end this process: {'; '.join(told)}. Nothing was changed; leave out what it does not "
        "take."
    )


def _warn_late(named):
    for name, value in named.items():
        advice = flags.advice(flags.Flag(name, value))
        if advice is not None and advice.level == flags.HARMFUL:
            warnings.warn(f"configure: --{name} {advice.text}", RuntimeWarning, stacklevel=3)


def _apply(changes):
    """Make the changes, or none of them."""
    done = []
    try:
        for change in changes:
            _put_value(change.carrier, change.name, change.new)
            done.append(change)
    except BaseException:
        for change in reversed(done):
            _put_value(change.carrier, change.name, change.old)
        raise
    _done.extend(done)


def _put_value(carrier, name, value):
    """Give an option of ``jax.config`` or a variable a value; a variable of None is removed."""
    if carrier == "config":
        jax.config.update(name, value)
    elif value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _present(carrier, name):
    """The value that an option of ``jax.config`` or a variable has now."""
    return getattr(jax.config, name) if carrier == "config" else os.environ.get(name)


def _as_text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def _checked(name, value):
    """The value of an argument of `configure`, if it is allowed."""
    kind = OPTIONS[name].kind
    if kind is bool:
        return arguments.flag("configure", name, value)
    if kind is int:
        return arguments.whole_number("configure", name, value, 1)
    return {"platform": _platform, "memory_fraction": _fraction, "allocator": _allocator}[name](value)


def _allocator(value):
    if value in ALLOCATORS:
        return value
    raise ValueError(f"configure: allocator={arguments.safe_repr(value)} is not one of {', '.join(ALLOCATORS)}.")


def _platform(value):
    if not isinstance(value, str):
        raise TypeError(f"configure: platform={arguments.safe_repr(value)} must be a string such as 'cpu' or 'cuda'.")
    for name in value.split(","):
        if name == "gpu":
            raise ValueError(
                f"configure: platform={arguments.safe_repr(value)}: JAX takes 'gpu' for both 'cuda' and 'rocm' and "
                "fails where one of them is not installed. Say which."
            )
        if name not in STARTABLE_PLATFORMS:
            raise ValueError(
                f"configure: platform={arguments.safe_repr(value)} is not one of {', '.join(STARTABLE_PLATFORMS)}."
            )
    return value


def _fraction(value):
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)
    except OverflowError:  # of an integer
        number = math.inf
    except (TypeError, ValueError) as error:
        raise TypeError(f"configure: memory_fraction={arguments.safe_repr(value)} must be a number.") from error
    if not 0 < number <= 1:
        raise ValueError(
            f"configure: memory_fraction={arguments.safe_repr(value)} must be above 0 and at most 1, a share of the "
            "memory."
        )
    return number


def _checked_flags(value):
    if value is None:
        return {}
    if isinstance(value, str):
        if value.strip() and not value.strip().startswith("--"):
            raise ValueError(
                f"configure: xla_flags={arguments.safe_repr(value)} must be flags such as '--xla_name=value'."
            )
        try:
            return {flag.name: flag.value for flag in flags.parse(value, strict=True)}
        except ValueError as error:
            raise ValueError(f"configure: xla_flags={arguments.safe_repr(value)}: {error}.") from error
    if not hasattr(value, "items"):
        raise TypeError(
            f"configure: xla_flags={arguments.safe_repr(value)} must be a string or a dict of names and values."
        )
    try:
        found = {str(name).removeprefix("--"): _as_text(setting) for name, setting in value.items()}
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"configure: xla_flags={arguments.safe_repr(value)} has a name or a value without a text."
        ) from error
    for name, setting in found.items():
        if '"' in setting and "'" in setting:
            raise ValueError(
                f"configure: xla_flags: XLA reads no value with both kinds of quotes, as {name}={setting}."
            )
    return found
