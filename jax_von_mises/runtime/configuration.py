"""Configure how JAX starts: platform, memory, threads and XLA flags.

JAX takes its settings from options of ``jax.config``, from environment variables, and from flags in ``XLA_FLAGS``. It
reads most of them once, when its backends start at the first use of a device.
"""

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any

import jax

from jax_von_mises import arguments, environment

CALLER = "configure"
# Once JAX has started, it refuses to change this option. No public function reports whether JAX has started. Only
# programs with several processes use the option, so a brief change does no harm.
EARLY = "jax_cpu_get_local_topology_timeout_minutes"
PLATFORMS = ("cpu", "cuda", "rocm", "tpu", "METAL", "oneapi")
# The variable for the fraction of a GPU's memory, and its old name; JAX cannot start a GPU if both are set.
FRACTION, OLD_FRACTION = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
FLAG = re.compile(r"--xla_\w+(=[^\s\0\"']*)?", re.ASCII)


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
    threads: int | None = None,
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
    threads : int, optional
        Number of threads for XLA's computations on a CPU; one per core by default.
    cuda_kernels : bool, optional
        Whether `sample_von_mises` draws with this package's kernels on a CUDA device, after it has compared them with
        XLA's program; False by default. See *CUDA kernels* in the GPU guide for what they draw and gain. The setting
        can be changed at any time and applies to functions traced afterwards.
    xla_flags : str or dict, optional
        Further XLA flags, ``"--xla_name=value ..."`` or ``{"xla_name": value}``, after those of ``XLA_FLAGS``; the last
        value of a flag counts. XLA checks names and values when JAX starts, and ends the process if one is invalid;
        `diagnose` then says which.

    Raises
    ------
    TypeError, ValueError
        If a value is not allowed, or a flag is not of this form; nothing was changed.
    RuntimeError
        If JAX has started and one of the settings can no longer change; nothing was changed.
    """
    early: dict[str, Any] = {}
    if platform is not None:
        early["jax_platforms"] = _platforms(platform)
    if memory_fraction is not None:
        early[FRACTION] = str(arguments.fraction(CALLER, "memory_fraction", memory_fraction))
    if preallocate is not None:
        early["XLA_PYTHON_CLIENT_PREALLOCATE"] = _as_text(arguments.flag(CALLER, "preallocate", preallocate))
    if threads is not None:
        early["PJRT_NPROC"] = str(arguments.whole_number(CALLER, "threads", threads, 1))
    if xla_flags is not None:
        early["XLA_FLAGS"] = _joined(os.environ.get("XLA_FLAGS", ""), _flags(xla_flags))
    late: dict[str, Any] = {}
    if x64 is not None:
        late["jax_enable_x64"] = arguments.flag(CALLER, "x64", x64)
    if cuda_kernels is not None:
        late[environment.CUDA_KERNELS] = _as_text(arguments.flag(CALLER, "cuda_kernels", cuda_kernels))

    early = {name: value for name, value in early.items() if value != _present(name)}
    if early and started():
        names = (name.upper() if name.startswith("jax_") else name for name in early)
        start = [f"{name}={shlex.quote(value)}" for name, value in zip(names, early.values(), strict=True)]
        raise RuntimeError(
            f"{CALLER}: JAX has started, on {jax.default_backend()}, so it ignores new values of {', '.join(early)}; "
            f"nothing was changed. Call {CALLER} right after the imports, before anything uses a device "
            f"(jax.devices(), any array, any sample); or start the program with {' '.join(start)} in its environment; "
            "or, in a notebook, restart the kernel first."
        )
    if FRACTION in early:
        os.environ.pop(OLD_FRACTION, None)
    for name, value in (early | late).items():
        if name.startswith("jax_"):
            jax.config.update(name, value)
        else:
            os.environ[name] = value


def _present(name: str) -> Any:
    """Return the current value of an option of ``jax.config`` or an environment variable."""
    return getattr(jax.config, name) if name.startswith("jax_") else os.environ.get(name)


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _platforms(value: Any) -> str:
    """Check the names of platforms."""
    given = f"{CALLER}: platform={arguments.safe_repr(value)}"
    if not isinstance(value, str):
        raise TypeError(f"{given} must be a string such as 'cpu'.")
    if "gpu" in value.split(","):
        raise ValueError(f"{given}: JAX reads 'gpu' as both 'cuda' and 'rocm', and fails without either. Give one.")
    if not set(value.split(",")) <= set(PLATFORMS):
        raise ValueError(f"{given} is not one of {', '.join(PLATFORMS)}.")
    return value


def _flags(value: Any) -> list[str]:
    """Return XLA flags as texts of the form ``--xla_name=value``."""
    given = f"{CALLER}: xla_flags={arguments.safe_repr(value)}"
    if isinstance(value, str):
        flags = value.split()
    elif isinstance(value, Mapping):
        try:
            flags = [f"--{str(name).removeprefix('--')}={_as_text(text)}" for name, text in value.items()]
        except (ValueError, RecursionError) as error:  # for example, a number with too many digits
            raise ValueError(f"{given}: {error}") from error
    else:
        raise TypeError(f"{given} must be a string or a dict of names and values.")
    for flag in flags:
        if not FLAG.fullmatch(flag):
            raise ValueError(
                f"{given}: {arguments.safe_repr(flag)} is not of the form --xla_name=value, without spaces or quotes."
            )
    return flags


def _joined(before: str, flags: list[str]) -> str:
    """Return the value of ``XLA_FLAGS`` with these flags at its end, except those that it has already."""
    if before.strip() and not before.strip().startswith("--"):
        raise ValueError(f"{CALLER}: XLA_FLAGS names the file {before.strip()!r}. Add the flags to that file.")
    last = {flag.partition("=")[0]: flag for flag in before.split()}
    new = [flag for flag in flags if last.get(flag.partition("=")[0]) != flag]
    return " ".join(filter(None, [before, *new]))
