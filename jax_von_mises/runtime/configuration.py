"""Configure how JAX starts: platform, memory, threads and XLA flags.

JAX takes its settings from options of ``jax.config``, from environment variables, and from flags in ``XLA_FLAGS``. It
reads most of them once, when its backends start at the first use of a device. `OPTIONS` has a row for each setting of
`configure` except `xla_flags`.
"""

import mmap
import os
import re
import shlex
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jaxlib

from jax_von_mises import arguments, environment
from jax_von_mises.runtime import memory

# Once JAX has started, it refuses to change this option. No public function reports whether JAX has started. Only
# programs with several processes use the option, so a brief change does no harm.
EARLY = "jax_cpu_get_local_topology_timeout_minutes"

# The variable for the fraction of a GPU's memory, and its old name; JAX cannot start a GPU if both are set.
FRACTION, OLD_FRACTION = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
PLATFORMS = ("cpu", "cuda", "rocm", "tpu", "METAL", "oneapi")
ALLOCATORS = ("default", "platform", "bfc", "cuda_async", "vmm")
# One flag, split as XLA splits it; the complete value may be quoted.
FLAG = re.compile(r"""(?<!\S)--([^\s=]+)(?:=("[^"]*"|'[^']*'|\S*))?(?!\S)""")


class Option(NamedTuple):
    """A row of `OPTIONS`: what an argument of `configure` sets, and its allowed values."""

    carrier: str  # an option of jax.config (jax_...), a flag of XLA (xla_...), or an environment variable
    kind: type[str | bool | int | float]  # without `allowed`, an int is at least 1; a float is above 0 and at most 1
    allowed: tuple[Any, ...] = ()
    late: bool = False  # whether it can change after JAX has started


OPTIONS = {
    "platform": Option("jax_platforms", str, PLATFORMS),
    "x64": Option("jax_enable_x64", bool, late=True),
    "memory_fraction": Option(FRACTION, float),
    "preallocate": Option("XLA_PYTHON_CLIENT_PREALLOCATE", bool),
    "allocator": Option("XLA_PYTHON_CLIENT_ALLOCATOR", str, ALLOCATORS),
    "threads": Option("PJRT_NPROC", int),
    "vector_width": Option("xla_cpu_prefer_vector_width", int, (128, 256, 512)),
    "cpu_devices": Option("jax_num_cpu_devices", int),
    "compile_threads": Option("xla_gpu_force_compilation_parallelism", int),
    "latency_hiding": Option("xla_gpu_enable_latency_hiding_scheduler", bool),
    "profile_guided": Option("jax_enable_pgle", bool, late=True),
    "profiled_runs": Option("jax_pgle_profiling_runs", int, late=True),
    "cuda_kernels": Option(environment.CUDA_KERNELS, bool, late=True),
}


def started() -> bool:
    """Return whether JAX has started its backends, after which most settings cannot change."""
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
) -> None:
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
        ``XLA_FLAGS`` takes the new value. XLA checks the values when JAX starts, and ends the process if one is
        invalid.

    Raises
    ------
    TypeError, ValueError
        If a value is not allowed, or the installed jaxlib does not know a flag, which would end the process; nothing
        was changed.
    RuntimeError
        If JAX has started and one of the settings can no longer change; nothing was changed.
    """
    given = {name: value for name, value in locals().items() if name in OPTIONS and value is not None}
    wanted = {OPTIONS[name].carrier: _checked(name, value, OPTIONS[name]) for name, value in given.items()}
    requested = {name: wanted.pop(name) for name in list(wanted) if name.startswith("xla_")} | _flags(xla_flags)
    if requested:
        _must_be_known(requested)
        wanted["XLA_FLAGS"] = _joined(os.environ.get("XLA_FLAGS", ""), requested)
    changes = {name: value for name, value in wanted.items() if value != _present(name)}
    late = {option.carrier for option in OPTIONS.values() if option.late}
    early = {name: value for name, value in changes.items() if name not in late}
    if early and started():
        variables = [name.upper() if name.startswith("jax_") else name for name in early]
        start = [f"{name}={shlex.quote(str(x))}" for name, x in zip(variables, early.values(), strict=True)]
        raise RuntimeError(
            f"configure: JAX has started, on {jax.default_backend()}, so it ignores new values of {', '.join(early)}; "
            "nothing was changed. Call configure right after the imports, before anything uses a device "
            f"(jax.devices(), any array, any sample); or start the program with {' '.join(start)} in its environment; "
            "or, in a notebook, restart the kernel first."
        )
    if FRACTION in changes:
        os.environ.pop(OLD_FRACTION, None)
    for name, value in changes.items():
        if name.startswith("jax_"):
            jax.config.update(name, value)
        else:
            os.environ[name] = value


def _present(name: str) -> Any:
    """Return the current value of an option of ``jax.config`` or an environment variable."""
    return getattr(jax.config, name) if name.startswith("jax_") else os.environ.get(name)


def _checked(name: str, value: Any, option: Option) -> Any:
    """Check the value of an argument of `configure`, and return it in the form that its carrier takes."""
    caller, given = "configure", f"configure: {name}={arguments.safe_repr(value)}"
    if option.kind is bool:
        value = arguments.flag(caller, name, value)
    elif option.kind is int:
        value = arguments.whole_number(caller, name, value, 1)
    elif option.kind is float:
        value = memory.checked_share(caller, name, value)
    elif not isinstance(value, str):
        raise TypeError(f"{given} must be a string such as {option.allowed[0]!r}.")
    parts = value.split(",") if name == "platform" else [value]
    if "gpu" in parts:
        raise ValueError(f"{given}: JAX reads 'gpu' as both 'cuda' and 'rocm', and fails without either. Give one.")
    if option.allowed and not set(parts) <= set(option.allowed):
        raise ValueError(f"{given} is not one of {', '.join(map(str, option.allowed))}.")
    return value if option.carrier.startswith("jax_") else _as_text(value)


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _flags(value: Any) -> dict[str, str | None]:
    """Return XLA flags as a dict of names and values; None stands for a flag without a value."""
    given = f"configure: xla_flags={arguments.safe_repr(value)}"
    if value is None:
        return {}
    if isinstance(value, str):
        if rest := FLAG.sub("", value).strip():
            raise ValueError(f"{given}: {arguments.safe_repr(rest)} is not a flag. Write --xla_name=value.")
        found = _parsed(value)
    elif hasattr(value, "items"):
        try:
            texts = {str(name).removeprefix("--"): text for name, text in value.items()}
            found = {name: None if text is None else _as_text(text) for name, text in texts.items()}
        except (ValueError, RecursionError) as error:  # for example, a number with too many digits
            raise ValueError(f"{given}: {error}") from error
    else:
        raise TypeError(f"{given} must be a string or a dict of names and values.")
    for name, text in found.items():
        if not re.fullmatch(r"xla_\w+", name, re.ASCII):
            raise ValueError(f"{given}: the name of a flag begins with xla_, such as xla_dump_to.")
        try:
            readable = text is None or (
                b"\0" not in os.fsencode(text) and not ('"' in text and re.search(r"[\s']", text))
            )
        except UnicodeEncodeError:
            readable = False
        if not readable:
            raise ValueError(f"{given}: XLA cannot read this value of --{name}.")
    return found


def _parsed(text: str) -> dict[str, str | None]:
    """Return the flags in a text; the value of a flag without one is None."""
    return {match[1]: match[2] if match[2] is None else _unquoted(match[2]) for match in FLAG.finditer(text)}


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _joined(before: str, requested: Mapping[str, str | None]) -> str:
    """Return the value of ``XLA_FLAGS`` with the requested flags after the others of `before`."""
    if before.strip() and not before.strip().startswith("--"):
        raise ValueError(f"configure: XLA_FLAGS names the file {before.strip()!r}. Add the flags to that file.")
    present = _parsed(before)
    new = {name: text for name, text in requested.items() if name not in present or present[name] != text}
    if not new:
        return before
    kept = [match[0] for match in FLAG.finditer(before) if match[1] not in new]
    quoted = {name: f'"{text}"' if text and re.search(r"[\s']", text) else text for name, text in new.items()}
    return " ".join([*kept, *(f"--{name}" if text is None else f"--{name}={text}" for name, text in quoted.items())])


def _has_string(text: mmap.mmap, name: bytes) -> bool:
    """Return whether a library contains a name as a C string; in 350 MB, `find` takes 0.1 s, and `re` 8 s."""
    place = text.find(name + b"\0")
    while place > 0 and re.match(rb"\w", text[place - 1 : place]):  # the end of a longer name
        place = text.find(name + b"\0", place + 1)
    return place >= 0


def _must_be_known(names: Mapping[str, object]) -> None:
    """Raise ValueError if the installed jaxlib does not contain the name of a flag.

    Names of flags are strings in its library. A few other strings begin with ``xla_`` too, and are accepted.
    """
    libraries = (".so", ".dylib", ".dll", ".pyd")
    files = [file for file in Path(jaxlib.__file__).parent.rglob("*") if file.suffix in libraries]
    unknown = set(names)
    for file in sorted(files, key=lambda file: -file.stat().st_size):
        if not unknown:
            return
        with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as text:
            unknown = {name for name in unknown if not _has_string(text, name.encode())}
    if unknown:
        raise ValueError(
            f"configure: xla_flags={arguments.safe_repr(', '.join(sorted(unknown)))}: the installed jaxlib "
            f"{metadata.version('jaxlib')} does not know this, and XLA would end this process. Flags differ between "
            "releases; leave it out."
        )
