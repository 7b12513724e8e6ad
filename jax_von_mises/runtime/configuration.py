"""Configure how JAX starts: platform, memory, threads and XLA flags.

JAX takes its settings from options of ``jax.config``, from environment variables, and from flags in ``XLA_FLAGS``. It
reads most of them once, when its backends start at the first use of a device. `OPTIONS` has a row for each setting of
`configure` except `xla_flags`. Before any setting changes, all values are checked, and those that could end the process
are tried in a child process.
"""

import contextlib
import os
import shlex
import threading
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

import jax

from jax_von_mises import arguments, environment
from jax_von_mises.runtime import child, flags, memory
from jax_von_mises.sampling import wide_vectors

# Once JAX has started, it refuses to change this option. No public function reports whether JAX has started. Only
# programs with several processes use the option, so a brief change does no harm.
EARLY = "jax_cpu_get_local_topology_timeout_minutes"

STARTABLE_PLATFORMS = ("cpu", "cuda", "rocm", "tpu", "METAL", "oneapi")
ALLOCATORS = ("default", "platform", "bfc", "cuda_async", "vmm")

FRACTION = "XLA_CLIENT_MEM_FRACTION"
# The variable's old name; JAX cannot start a GPU if both are set.
OLD_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"


class Option(NamedTuple):
    """A row of `OPTIONS`: what an argument of `configure` sets, and its allowed values."""

    carrier: str  # an option of jax.config (jax_...), a flag of XLA (xla_...), or a variable
    kind: type[str | bool | int | float]  # without `allowed`, an int is at least 1; a float is above 0 and at most 1
    allowed: tuple[Any, ...] = ()
    late: bool = False  # whether it can change after JAX has started
    tried: bool = False  # an invalid value shows only when JAX starts, so a child process tries it
    default: tuple[Any, ...] = ()  # values that an option of jax.config has if it is not set


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
    "cuda_kernels": Option(environment.CUDA_KERNELS, bool, late=True),
}
LATE = {option.carrier for option in OPTIONS.values() if option.late}

# True and False as JAX and `configure` write them.
BOOLS = {"true": True, "True": True, "1": True, "false": False, "False": False, "0": False}


class Setting(NamedTuple):
    """A setting and its current value."""

    name: str
    value: Any
    """The value as `configure` takes it; the raw text if `configure` would reject it; None if it is not set."""
    source: str
    """``"configure"`` or ``"environment"`` (a variable of the process, or ``jax.config``), whichever set it last;
    ``"default"`` if neither did."""
    carrier: str
    """The option of ``jax.config``, the variable or the flag that holds it."""
    changeable: bool
    """Whether this process can still change it."""


_lock = threading.RLock()
# Values of options of ``jax.config`` and of variables before `configure` first changed them.
_before: dict[str, Any] = {}
# Values that `configure` has set, by carrier. XLA_FLAGS has an entry, and each flag that was set has another.
_configured: dict[str, Any] = {}


def started() -> bool:
    """Return whether JAX has started its backends, after which most settings cannot change."""
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
    cuda_kernels: bool | None = None,
    xla_flags: Mapping[str, object] | str | None = None,
    check: bool = True,
    timeout: float = 120.0,
) -> tuple[Setting, ...]:
    """Configure how JAX starts and runs in this process; set all given values, or none if any of them is rejected.

    Call it right after the imports, before the first use of JAX's devices. None leaves a setting unchanged.

    Parameters
    ----------
    platform : str, optional
        Platform of JAX: ``"cpu"``, ``"cuda"``, ``"rocm"``, ``"tpu"``, ``"METAL"`` or ``"oneapi"``. If several are
        given, separated by commas, JAX uses the first by default. Without this setting, JAX uses the best platform that
        it finds.
    x64 : bool, optional
        64-bit mode, with float64 and int64. It can be changed at any time and applies to functions traced afterwards.
    memory_fraction : float, optional
        Fraction of a GPU's memory that JAX may take, above 0 and at most 1; 0.75 by default.
    preallocate : bool, optional
        Whether JAX reserves this fraction when it starts (True, the default) or allocates memory as needed. By default,
        JAX releases memory only when the process ends. Without preallocation, memory may become fragmented.
    allocator : {"default", "platform", "bfc", "cuda_async", "vmm"}, optional
        Allocator for GPU memory. "platform" frees memory at once and is slow.
    threads : int, optional
        Number of threads for XLA's computations on a CPU; one per core by default.
    vector_width : {128, 256, 512}, optional
        Width in bits of the vectors in XLA's programs for a CPU; 256 by default. Without this setting, draws outside
        other programs use 512 bits where that is faster and gives the same angles. With it, all programs use the same
        width, and the last digits may change for float64 angles, for ``method="direct"`` and for an array of
        concentrations.
    cpu_devices : int, optional
        Number of CPU devices, for testing multi-device programs on one machine.
    compile_threads : int, optional
        Number of threads that XLA uses to compile for a GPU.
    latency_hiding : bool, optional
        Whether XLA overlaps communication between devices with computation on a GPU. The sampler does not communicate,
        but your program may.
    profile_guided : bool, optional
        Whether JAX profiles the first runs of a program on a GPU, and then compiles it again with the profile
        (``jax_enable_pgle``). It helps programs that communicate between devices. On a CPU, JAX finds no profile and
        warns.
    profiled_runs : int, optional
        Number of runs to profile.
    cuda_kernels : bool, optional
        Whether `sample_von_mises` draws with this package's kernels on a CUDA device, after it has compared them with
        XLA's program; False by default. See *CUDA kernels* in the GPU guide for what they draw and gain. The setting
        can be changed at any time and applies to functions traced afterwards.
    xla_flags : str or dict, optional
        Further XLA flags, ``"--xla_name=value ..."`` or ``{"xla_name": value}``. A flag that is already in
        ``XLA_FLAGS`` takes the new value.
    check : bool
        Whether a child process first tries the settings that could end this process or keep JAX from starting: the
        platform, the allocator and all XLA flags. The trial takes a second or two, and longer on a GPU.
    timeout : float
        Seconds after which the child process is stopped.

    Returns
    -------
    tuple of Setting
        All settings, as from `settings`.

    Raises
    ------
    TypeError, ValueError
        If a value is not allowed, or the installed jaxlib rejects it; nothing was changed.
    RuntimeError
        If JAX has started and one of the settings can no longer change; nothing was changed. The message lists the
        remedies.
    """
    given = {name: value for name, value in locals().items() if name in OPTIONS and value is not None}
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
    """Return the settings of JAX in this process.

    Returns
    -------
    tuple of Setting
        One for each argument of `configure` except `check` and `timeout`. ``xla_flags`` holds the XLA flags that no
        other argument sets; its source is ``"configure"`` if `configure` set any of them.
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
    """Undo all changes by `configure` in this process, except those that have been overwritten since.

    Returns
    -------
    tuple of str
        Names of the changed options of ``jax.config`` and variables whose values JAX has already read and keeps until
        this process ends; empty if JAX has not started. New processes start without these changes.
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


def _explicit(option: Option) -> Any:
    """Return the value of an option of ``jax.config`` or an environment variable; None if it is not set."""
    name = option.carrier
    value = _present(name)
    if name == FRACTION and value is None:
        return os.environ.get(OLD_FRACTION)
    # A default counts as set if `configure` or the environment set it.
    if value in option.default and name not in _configured and not os.environ.get(_variable(name)):
        return None
    return value


def _source(carriers: Iterable[str], held: Mapping[str, Any]) -> str:
    """Return the `Setting.source` of the `carriers` that are in `held`."""
    ours = [_configured.get(name, ...) == held[name] for name in carriers if name in held]
    return "configure" if any(ours) else "environment" if ours else "default"


def _read(kind: type[Any], value: Any) -> Any:
    """Convert a value to the form that `configure` takes; keep text that `configure` would reject."""
    if value is None:  # a flag without a value
        return True
    if not isinstance(value, str):
        return value
    try:
        return BOOLS.get(value, value) if kind is bool else kind(value)
    except ValueError:
        return value


def _changes(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return new values of options of ``jax.config`` and of variables, as far as `wanted` changes them.

    None removes a variable.
    """
    changes = {name: value for name, value in wanted.items() if not name.startswith("xla_")}
    if FRACTION in changes:
        changes[OLD_FRACTION] = None
    requested = {name: value for name, value in wanted.items() if name.startswith("xla_")}
    present = flags.current()
    last = {flag.name: flag.value for flag in present}
    if any(name not in last or last[name] != value for name, value in requested.items()):
        # Keep the other flags unchanged, since those that are given several times add up.
        kept = [flag for flag in present if flag.name not in requested]
        changes["XLA_FLAGS"] = flags.join([*kept, *(flags.Flag(name, value) for name, value in requested.items())])
    return {name: value for name, value in changes.items() if value != _present(name)}


def _refuse_late(early: Mapping[str, Any], names: Iterable[str]) -> NoReturn:
    """Raise an error that lists the settings that JAX has already read, and the remedies."""
    carriers = {name: OPTIONS[name].carrier if name in OPTIONS else "XLA_FLAGS" for name in names}
    blamed = [
        name for name, carrier in carriers.items() if ("XLA_FLAGS" if carrier.startswith("xla_") else carrier) in early
    ]
    start = [f"{_variable(name)}={shlex.quote(str(value))}" for name, value in early.items() if value is not None]
    raise RuntimeError(
        f"configure: JAX has started, on {jax.default_backend()}, and {', '.join(blamed)} can no longer change in "
        "this process; nothing was changed. Call configure before anything uses a device (jax.devices(), any array, "
        f"any sample), right after the imports; or start the program with {' '.join(start)} in its environment; or, in "
        "a notebook, restart the kernel first."
    )


def _try(changes: Mapping[str, Any], timeout: float) -> None:
    """Start JAX with these settings in a child process, since invalid settings may end the process."""
    planned = {_variable(name): None if value is None else str(value) for name, value in changes.items()}
    ended = child.run("-c", flags.START, timeout=timeout, **{**child.configuration(), **planned, **child.MODEST})
    if ended.code is None:
        raise ValueError(
            f"configure: with these settings JAX did not start within {timeout:g} s in a child process, which was "
            "stopped; nothing was changed. Run `jax-von-mises doctor` to find the reason, or give a longer timeout; "
            "check=False skips the trial."
        )
    if ended.code == 0:
        return
    refused = flags.refusals(ended.err)
    if not refused:
        raise ValueError(
            "configure: with these settings JAX does not start, as a child process found: "
            f"{child.reason(ended)}. Nothing was changed; run `jax-von-mises doctor` to find the reason."
        )
    reasons = [f"--{item.flag}: {item.reason}" if item.flag else item.reason for item in refused]
    reasons += [f"--{item.flag} {flags.ADVICE[item.flag].text}" for item in refused if item.flag in flags.ADVICE]
    raise ValueError(
        f"configure: XLA would end this process: {'; '.join(reasons)}. Nothing was changed; correct these flags or "
        "leave them out."
    )


def _variable(name: str) -> str:
    """Return the environment variable that sets an option of ``jax.config``; return other names unchanged."""
    return name.upper() if name.startswith("jax_") else name


def _present(name: str) -> Any:
    """Return the current value of an option of ``jax.config`` or an environment variable."""
    return getattr(jax.config, name) if name.startswith("jax_") else os.environ.get(name)


def _put(name: str, value: Any) -> None:
    """Set an option of ``jax.config`` or an environment variable; None removes a variable."""
    if name.startswith("jax_"):
        jax.config.update(name, value)
    elif value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _checked(name: str, value: Any, option: Option) -> Any:
    """Check the value of an argument of `configure`, and return it in the form that its carrier takes."""
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


def _must_be_allowed(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Reject a value that is not one of `allowed`; a platform may name several of them, separated by commas."""
    given = f"configure: {name}={arguments.safe_repr(value)}"
    if not isinstance(value, str):
        raise TypeError(f"{given} must be a string such as {allowed[0]!r}.")
    parts = value.split(",") if name == "platform" else [value]
    if "gpu" in parts:
        raise ValueError(
            f"{given}: JAX reads 'gpu' as both 'cuda' and 'rocm', and fails if either is not installed. Give "
            "one of the two."
        )
    if not set(parts) <= set(allowed):
        raise ValueError(f"{given} is not one of {', '.join(allowed)}.")


def _checked_flags(value: Any) -> dict[str, str | None]:
    """Return XLA flags as a dict of names and values; None stands for a flag without a value."""
    given = f"configure: xla_flags={arguments.safe_repr(value)}"
    if value is None:
        return {}
    try:
        if isinstance(value, str):
            if value.strip() and not value.strip().startswith("--"):
                raise ValueError("flags begin with two dashes: write them as '--xla_name=value'")
            found = flags.parse(value, strict=True)
        elif hasattr(value, "items"):
            found = [flags.Flag(str(name).removeprefix("--"), _as_text(text)) for name, text in value.items()]
        else:
            raise TypeError(f"{given} must be a string or a dict of names and values.")
        text = flags.join(found)
        if flags.parse(text) != found:
            raise ValueError("XLA accepts neither a name with a space nor a value with both kinds of quotes")
        if b"\0" in os.fsencode(text):
            raise ValueError("it contains a null character, which no environment variable may contain")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{given}: {error}.") from error
    return {flag.name: flag.value for flag in found}
