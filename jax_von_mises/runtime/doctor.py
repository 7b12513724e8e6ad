"""Diagnose devices, drivers and settings, check that JAX draws correct angles, and suggest remedies."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jax_von_mises import arguments, environment
from jax_von_mises.runtime import child, compilation_cache, flags, hardware, variables
from jax_von_mises.runtime.configuration import Setting
from jax_von_mises.runtime.configuration import settings as current_settings
from jax_von_mises.version import __version__

PROBLEM, WARNING, NOTE = "problem", "warning", "note"

# Options of JAX that would change, stop or slow the child's draws, or make JAX read their programs from a cache.
SPOILING = ("RANDOM_SEED_OFFSET", "DEBUG_NANS", "DEBUG_INFS", "DISABLE_JIT", "TRANSFER_GUARD", "COMPILATION_CACHE_DIR")

# If a smaller fraction of GPU memory is free, another process is probably using the GPU.
CROWDED = 0.25

Steps = Sequence[Mapping[str, Any]]


class Finding(NamedTuple):
    """A problem, warning or note, with its remedy."""

    level: str
    """``"problem"``, ``"warning"`` or ``"note"``."""
    what: str
    """Description of the finding."""
    do: str
    """Suggested remedy."""


class Diagnosis(NamedTuple):
    """Result of `diagnose`; ``str()`` returns it as readable text, and ``as_json()`` as JSON."""

    versions: dict[str, str]
    system: str
    accelerators: tuple[hardware.Accelerators, ...]
    backend: dict[str, Any]
    """``platform``, ``version`` and ``why``; the platform is None if JAX did not start."""
    devices: tuple[dict[str, Any], ...]
    """Rate, comparison with the CPU, and memory of each device."""
    settings: tuple[Setting, ...]
    cache: compilation_cache.CacheInfo
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True if there is no problem, even if there are warnings."""
        return not any(finding.level == PROBLEM for finding in self.findings)

    def as_json(self) -> str:
        """Return the diagnosis as JSON."""
        return json.dumps({"ok": self.ok, **_plain(self)}, indent=1)

    def __str__(self) -> str:
        lines = [
            ("versions", [", ".join(f"{name} {version}" for name, version in self.versions.items() if _shown(name))]),
            ("system", [self.system]),
            ("GPUs", [line for gpus in self.accelerators for line in _gpu_lines(gpus)] or ["none found"]),
            ("backend", [f"{self.backend['platform'] or 'none'}: {self.backend['why']}", *_version_line(self.backend)]),
            ("devices", [line for device in self.devices for line in _device_lines(device)]),
            ("settings", [f"{s.name} = {s.value} ({s.source})" for s in self.settings if s.value is not None]),
            ("cache", [_cache_line(self.cache)]),
        ]
        text = [f"{name if number == 0 else '':<10}{line}" for name, body in lines for number, line in enumerate(body)]
        for finding in self.findings:
            text += ["", f"{finding.level}: {finding.what}", f"  -> {finding.do}"]
        count = sum(finding.level == PROBLEM for finding in self.findings)
        text += ["", f"{count} problem{'s' * (count != 1)}" if count else "no problems found"]
        return "\n".join(text)


def diagnose(*, expect: str | None = None, timeout: float = 180.0) -> Diagnosis:
    """Find problems that make draws impossible, wrong or slow on this machine.

    The function queries the drivers and the installed packages, checks environment variables and XLA flags, and starts
    JAX in a child process with the configuration of this process. In the child, each device draws angles, which are
    timed and compared with those of the CPU. The child may abort or hang without harm to this process. The diagnosis
    takes a few seconds.

    Parameters
    ----------
    expect : {"cpu", "cuda", "rocm", "tpu"}, optional
        Platform that JAX should use; any other is reported as a problem.
    timeout : float
        Seconds after which each child is stopped.

    Returns
    -------
    Diagnosis
        ``ok`` is True if there is no problem; ``findings`` holds problems, warnings and notes with their remedies.

    Raises
    ------
    TypeError, ValueError
        If the platform is unknown or the timeout is invalid.
    """
    if expect is not None and expect not in hardware.PLATFORMS:
        raise ValueError(
            f"diagnose: expect={arguments.safe_repr(expect)} is not one of {', '.join(hardware.PLATFORMS)}."
        )
    timeout = arguments.seconds("diagnose", "timeout", timeout, above=0)
    config: Any = jax.config
    wanted = (expect or config.jax_platforms or "").split(",")[0]
    installed = hardware.packages()
    gpus = hardware.accelerators()
    accepted, refused = _flags(timeout)
    planned = _planned(accepted)
    steps, ended = _probe(planned, timeout)
    backend = _backend(steps, gpus, installed)
    devices = _devices(steps)
    info = compilation_cache.cache_info()
    cards = any(found.cards for found in gpus)
    found = [
        *(finding for one in gpus for finding in _drivers(one, installed, _level(one, wanted))),
        *_installed(gpus, installed),
        *_plugins(installed),
        *(Finding(*detail) for detail in variables.findings(cards)),
        *refused,
        *_start(steps, ended, timeout),
        *_expected(backend, expect),
        *(_unused(accepted, installed, timeout) if cards and wanted != "cpu" and backend["platform"] == "cpu" else ()),
        *_drawn(devices),
        *_cached(info),
    ]
    found.sort(key=lambda finding: (PROBLEM, WARNING, NOTE).index(finding.level))
    return Diagnosis(
        versions={"jax_von_mises": __version__, **installed},
        system=hardware.system(),
        accelerators=gpus,
        backend=backend,
        devices=tuple(devices),
        settings=current_settings(),
        cache=info,
        findings=tuple(found),
    )


def _drivers(gpus: hardware.Accelerators, installed: Mapping[str, str], level: str) -> Iterator[Finding]:
    """Check the driver of the GPUs and JAX's plugins for them; `level` applies if they cannot be used."""
    plugins = hardware.plugins(installed)
    cuda = [int(name.removeprefix("cuda")) for name in plugins if name.startswith("cuda")]
    if gpus.trouble and not gpus.driver:
        yield Finding(
            level,
            f"{gpus.vendor}: {gpus.trouble}",
            "repair or reinstall the driver; if only the kernel or only the driver was updated, a reboot may be enough",
        )
    if gpus.vendor == "NVIDIA" and gpus.driver:
        have = int(gpus.driver.split(".")[0])
        fits = next((release for release, least in hardware.DRIVERS.items() if have >= least), None)
        for release in cuda:
            need = hardware.DRIVERS.get(release, 0)
            if have < need:
                do = f"update the driver to {need} or newer"
                if fits:
                    do += f", or install the wheels for CUDA {fits}: ./install_gpu.sh --cuda{fits}"
                yield Finding(level, f"driver {gpus.driver} is too old for JAX's CUDA {release} wheels", do)
            least = hardware.CAPABILITIES.get(release, 0)
            old = [card for card in gpus.cards if card.capability is not None and card.capability < least]
            if old:
                what = f"{old[0].name} has compute capability {old[0].capability}"
                what += f", but JAX's CUDA {release} wheels need at least {least}"
                do = "run ./install_gpu.sh --cuda12, or hide the card with CUDA_VISIBLE_DEVICES"
                yield Finding(level if len(old) == len(gpus.cards) else WARNING, what, do)
        if not cuda:
            do = f"update the driver to {min(hardware.DRIVERS.values())} or newer, then run ./install_gpu.sh"
            if fits:
                do = f'run ./install_gpu.sh, or pip install "jax_von_mises[cuda{fits}]"'
            yield Finding(level, "there is an NVIDIA GPU, but JAX has no CUDA plugin and therefore runs on the CPU", do)
    if gpus.vendor == "AMD" and gpus.cards and not any(name.startswith("rocm") for name in plugins):
        do = 'run ./install_gpu.sh --rocm, or pip install "jax_von_mises[rocm]"'
        yield Finding(level, "there is an AMD GPU, but JAX has no ROCm plugin and therefore runs on the CPU", do)
    for number, card in enumerate(gpus.cards):
        if card.free is not None and card.total is not None and card.free < CROWDED * card.total:
            yield Finding(
                WARNING,
                f"GPU {number} ({card.name}) has {_size(card.free)} of {_size(card.total)} free",
                "find with nvidia-smi which process uses the rest; another JAX process takes three quarters when it "
                "starts, unless it has XLA_PYTHON_CLIENT_PREALLOCATE=false",
            )


def _level(gpus: hardware.Accelerators, wanted: str) -> str:
    """Return the level of a finding that these GPUs cannot be used: a note if another platform is wanted."""
    return PROBLEM if wanted in ("", "gpu", {"NVIDIA": "cuda", "AMD": "rocm"}[gpus.vendor]) else NOTE


def _installed(gpus: Iterable[hardware.Accelerators], installed: Mapping[str, str]) -> Iterator[Finding]:
    """Check the driver and the libraries that JAX's CUDA plugin needs."""
    if not any(name.startswith("cuda") for name in hardware.plugins(installed)):
        return
    if not any(one.vendor == "NVIDIA" for one in gpus):
        do = "install the driver; a container must be started with access to the GPUs (docker run --gpus all)"
        yield Finding(WARNING, "JAX has a CUDA plugin, but no NVIDIA driver was found", do)
    if missing := hardware.missing(installed):
        do = "run ./install_gpu.sh, unless CUDA and cuDNN are installed separately"
        yield Finding(NOTE, f"JAX's CUDA plugin is installed without {', '.join(missing)}", do)
    for folder, library in hardware.shadows().items():
        yield Finding(
            WARNING,
            f"LD_LIBRARY_PATH contains {folder}, whose {library} is loaded instead of the one that pip installed",
            "unset LD_LIBRARY_PATH for JAX",
        )


def _unused(accepted: Iterable[flags.Flag], installed: Mapping[str, str], timeout: float) -> Iterator[Finding]:
    """Report why JAX does not use GPUs for which it has a plugin.

    JAX prints the reason if the platform of these GPUs is the only one requested.
    """
    for plugin in hardware.plugins(installed)[:1]:
        platform = plugin.rstrip("0123456789")
        changes = {"JAX_PLATFORMS": platform, "XLA_FLAGS": flags.join(accepted) or None, "JAX_LOGGING_LEVEL": "INFO"}
        ended = child.run("-c", flags.START, timeout=timeout, **{**child.configuration(), **changes})
        why = f"no answer within {timeout:g} s" if ended.code is None else child.reason(ended)
        what = f"JAX's plugin for {plugin} is installed, but JAX does not use the GPU: {why}"
        yield Finding(
            PROBLEM,
            what,
            "see the other findings, then 'When the GPU is not used' on the page Install of the documentation",
        )


def _plugins(installed: Mapping[str, str]) -> Iterator[Finding]:
    """Check that JAX has at most one plugin, and that the versions of its packages match."""
    names = hardware.plugins(installed)
    if len(names) > 1:
        yield Finding(
            PROBLEM,
            f"JAX has plugins for {' and '.join(names)}, but can use only one",
            f"run pip uninstall jax-{names[0]}-plugin jax-{names[0]}-pjrt, or uninstall those of the other",
        )
    core = installed.get("jaxlib", "")
    for name, version in installed.items():
        plugin = hardware.PLUGIN.match(name)
        if plugin and version.split(".")[:3] != core.split(".")[:3]:
            do = f'run pip install --upgrade "jax[{plugin[1]}]=={installed.get("jax", core)}"'
            yield Finding(PROBLEM, f"{name} {version} does not match jaxlib {core}", do)
    for text in hardware.unmet(installed):
        yield Finding(PROBLEM, text, "run ./install_gpu.sh to install JAX for this GPU again")


def _flags(timeout: float) -> tuple[list[flags.Flag], list[Finding]]:
    """Return the flags in ``XLA_FLAGS`` that XLA accepts, and the findings on accepted and refused flags."""
    try:
        present = flags.current()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        do = "write --name=value, or the name of a file with such flags"
        return [], [Finding(PROBLEM, f"XLA_FLAGS cannot be read: {reason}", do)]
    found = []
    for item in flags.refused(present, timeout) if present else ():
        advice = flags.ADVICE.get(item.flag)
        do = advice.text.rpartition("; ")[2] if advice and advice.level == flags.GONE else "remove it from XLA_FLAGS"
        found.append(Finding(PROBLEM, f"--{item.flag} in XLA_FLAGS ends the process: {item.reason}", do))
        present = [flag for flag in present if flag.name != item.flag]
    for flag in present:
        advice = flags.advice(flag)
        if advice and advice.level != flags.GONE:
            what, _, do = advice.text.rpartition("; ")
            found.append(Finding(advice.level, f"{flag} in XLA_FLAGS: {what}", do))
    return present, found


def _planned(accepted: Iterable[flags.Flag]) -> dict[str, str | None]:
    """Return the changes to the environment for children that draw with the `accepted` flags."""
    planned = child.configuration()
    chosen = planned["JAX_PLATFORMS"]
    if chosen and "cpu" not in chosen.split(","):
        planned["JAX_PLATFORMS"] = f"{chosen},cpu"  # the CPU for comparison
    planned["XLA_FLAGS"] = flags.join(accepted) or None
    return planned | {f"JAX_{name}": None for name in SPOILING}


def _probe(planned: Mapping[str, str | None], timeout: float) -> tuple[Steps, child.Ended]:
    """Start JAX in a child and draw; return the steps that the child reported, and how it ended."""
    ended = child.run("-m", "jax_von_mises.runtime.probe", timeout=timeout, **planned)
    # Libraries may print other lines, and the last line may be truncated.
    return [json.loads(line) for line in ended.out.splitlines() if re.fullmatch(r'\{"step": .*\}', line)], ended


def _devices(steps: Steps) -> list[dict[str, Any]]:
    """Return the child's report on each device."""
    return [{name: step[name] for name in step if name != "step"} for step in steps if step["step"] == "device"]


def _start(steps: Steps, ended: child.Ended, timeout: float) -> Iterator[Finding]:
    """Check that the child finished; if it did not, report its last step."""
    last = steps[-1] if steps else {"step": "import"}
    if last["step"] == "end":
        if complaint := _complaint(ended.err):
            yield Finding(NOTE, f"JAX warns: {complaint}", "check whether it matters")
        return
    doing = {
        "import": "JAX cannot be imported",
        "start": "JAX does not start",
        "devices": "drawing failed",
        "draw": f"drawing on {last.get('device')} failed",
        "device": f"drawing failed after {last.get('device')} was checked",
    }[last["step"]]
    if ended.code is None:
        do = "use nvidia-smi to look for a process that uses the GPU or a driver that hangs, or give a longer timeout"
        yield Finding(PROBLEM, f"{doing}: no answer within {timeout:g} s", do)
    else:
        do = "set JAX_PLATFORMS=cpu to run on the CPU, or run ./install_gpu.sh to install JAX for this machine's GPU"
        yield Finding(PROBLEM, f"{doing}: {child.reason(ended)}", do)


def _backend(steps: Steps, gpus: Sequence[hardware.Accelerators], installed: Mapping[str, str]) -> dict[str, Any]:
    """Return the platform that JAX uses, its version, and why JAX uses it."""
    start = next((step for step in steps if step["step"] == "devices"), None)
    if start is None:
        return {"platform": None, "version": None, "why": "JAX did not start"}
    platform, version = start["platform"], start["platform_version"]
    if platform == "gpu":
        platform = "rocm" if "rocm" in version.lower() else "cuda"
    config: Any = jax.config
    chosen, plugins = config.jax_platforms, hardware.plugins(installed)
    if chosen and platform in chosen:
        why = f"JAX_PLATFORMS={chosen} requests it"
    elif platform != "cpu":
        why = "its plugin is installed and found devices"
    elif plugins:
        why = f"JAX's plugin for {plugins[0]} is installed, but found no device"
    else:
        why = "JAX has no plugin for the GPU" if gpus else "no GPU was found"
    return {"platform": platform, "version": version, "why": why}


def _expected(backend: Mapping[str, Any], expect: str | None) -> Iterator[Finding]:
    """Check that JAX runs on the platform that was requested, and on the one that was expected."""
    config: Any = jax.config
    chosen, platform = config.jax_platforms, backend["platform"]
    if chosen and platform is not None and platform not in chosen.replace("gpu", "cuda,rocm").split(","):
        do = "unset JAX_PLATFORMS, or run ./install_gpu.sh to install JAX's plugin for that platform"
        yield Finding(PROBLEM, f"JAX_PLATFORMS={chosen}, but JAX has no such platform here and does not start", do)
    if expect is not None and platform not in (None, expect):
        do = "see the other findings; JAX_PLATFORMS selects one of the installed platforms"
        yield Finding(PROBLEM, f"JAX runs on {platform}, not on {expect}", do)


def _complaint(err: str) -> str | None:
    """Return the first warning that JAX printed when it started, or None."""
    lines = [line.strip() for line in err.splitlines() if "before absl::InitializeLog()" not in line]
    return next((line[:300] for line in lines if re.match(r"(WARNING|ERROR|W\d{4}|E\d{4})\b", line)), None)


def _drawn(devices: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Check that each device drew the correct random words and angles."""
    for device in devices:
        name = device["device"]
        if not device["words_agree"]:
            do = "do not use this device, and report this with the versions above"
            yield Finding(PROBLEM, f"{name} generates random words that differ from the CPU's", do)
        elif not device["agrees"]:
            do = "remove flags from XLA_FLAGS; if that does not help, do not use this device, and report this with the "
            do += "versions above"
            yield Finding(PROBLEM, f"{name} draws different angles: up to {device['apart']:.1e} radians off", do)
        for what in device["broken"]:
            do = "remove fast-math flags from XLA_FLAGS"
            yield Finding(PROBLEM, f"{name} fails the check that {what}", do)
        if device["kernels"] is False:
            what = f"{name}: this package's CUDA kernels differ from XLA's program, which is used instead"
            yield Finding(NOTE, what, f"no action is needed; unset {environment.CUDA_KERNELS} to skip the comparison")


def _cached(info: compilation_cache.CacheInfo) -> Iterator[Finding]:
    """Check that there is a compilation cache, and that no other user can write to it."""
    if info.path is None:
        what = "there is no compilation cache: every process compiles again"
        yield Finding(NOTE, what, "call runtime.initialize_compilation_cache()")
    elif "://" not in info.path and (reason := compilation_cache.open_to_others(info.path)):
        what = f"the compilation cache {info.path} holds executable code, and {reason}"
        yield Finding(WARNING, what, "restrict the directory (chmod 700), or use another one")


def _plain(value: Any) -> Any:
    """Convert the named tuples in a value to dicts, since JSON would write them as lists."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _shown(name: str) -> bool:
    """Return whether the report shows a package's version; it leaves out most of NVIDIA's many libraries."""
    return not name.startswith("nvidia-") or "cudnn" in name or "cuda-runtime" in name


def _gpu_lines(gpus: hardware.Accelerators) -> Iterator[str]:
    yield f"{gpus.vendor} driver {gpus.driver or 'unknown'}" + (f"; {gpus.trouble}" if gpus.trouble else "")
    for number, card in enumerate(gpus.cards):
        free = ""
        if card.free is not None and card.total is not None:
            free = f", {_size(card.free)} of {_size(card.total)} free"
        yield f"{number}: {card.name}{free}"


def _version_line(backend: Mapping[str, Any]) -> Iterator[str]:
    if backend["platform"] not in (None, "cpu"):
        yield " ".join(backend["version"].split())


def _device_lines(device: Mapping[str, Any]) -> Iterator[str]:
    rate = device["angles"] / device["seconds"] / 1e6
    verdict = "agrees" if device["agrees"] and device["words_agree"] and not device["broken"] else "DOES NOT AGREE"
    free = device["memory"]["free"]
    room = "" if free is None else f", {_size(free)} free"
    yield (
        f"{device['device']} ({device['kind']}{room}): {rate:,.0f} million angles per second, "
        f"{device['first_seconds']:.2f} s for the first call; {verdict}"
    )
    if device["kernels"]:
        yield "  this package's CUDA kernels are turned on and agree with XLA's program"
    if inside := device.get("seconds_in_programs"):
        yield (
            f"  with 512-bit vectors; {device['angles'] / inside / 1e6:,.0f} million inside other programs, which use "
            "them after runtime.configure(vector_width=512)"
        )


def _cache_line(info: compilation_cache.CacheInfo) -> str:
    if info.path is None:
        return "none"
    size = "" if info.entries is None or info.bytes is None else f", {info.entries} programs, {_size(info.bytes)}"
    return f"{info.path}{size}{'' if info.enabled else ', not in use'}{'' if info.writable else ', read-only'}"


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"
