"""Diagnose drivers, packages and devices: gather facts, draw on every device in a child process, and apply rules.

`findings_of` applies all rules to the `Facts`.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jax_von_mises import arguments, environment
from jax_von_mises.runtime import compilation_cache
from jax_von_mises.version import __version__

PROBLEM, WARNING, NOTE = "problem", "warning", "note"
# The oldest major version of the driver that JAX's wheels for each CUDA release support, as in install_gpu.sh.
DRIVERS = {13: 580, 12: 525}
# Timeout in seconds, since a program that queries a broken driver may hang.
TOOL_TIMEOUT = 20
# Seconds to wait for a program to end after it was killed.
STUCK = 3
# If a smaller fraction of GPU memory is free, another process is probably using the GPU.
CROWDED = 0.25
PLUGIN = re.compile(r"jax-((cuda|rocm)\d+)-plugin$")
# Options of JAX that would change, stop or slow the child's draws, or make JAX read their programs from a cache.
SPOILING = ("RANDOM_SEED_OFFSET", "DEBUG_NANS", "DEBUG_INFS", "DISABLE_JIT", "TRANSFER_GUARD", "COMPILATION_CACHE_DIR")
NO_ANSWER = "no answer"
# What XLA prints if it ends a program because of a flag.
FATAL_FLAG = re.compile(r"(?:Unknown flag|Couldn't interpret value|Illegal value for) .*")
REINSTALL = "run ./install_gpu.sh to install JAX for this machine's GPU"


class Finding(NamedTuple):
    """A problem, warning or note, with its remedy."""

    level: str
    """``"problem"``, ``"warning"`` or ``"note"``."""
    what: str
    """Description of the finding."""
    do: str
    """Suggested remedy."""


class Card(NamedTuple):
    """A GPU as its driver describes it; a value is None if the driver does not report it."""

    name: str
    total: int | None = None
    """Memory in bytes."""
    free: int | None = None
    """Free memory in bytes."""


class Facts(NamedTuple):
    """What is known about the machine."""

    packages: dict[str, str]
    """Versions of the installed packages that matter, by name."""
    driver: str | None
    """Version of the NVIDIA driver."""
    cards: tuple[Card, ...]
    """NVIDIA GPUs."""
    amd: tuple[str, ...]
    """Names of AMD GPUs."""
    trouble: str | None
    """Why a driver did not answer."""
    expect: str | None
    """The platform on which JAX should run, if one was given to `diagnose` or to JAX."""
    steps: tuple[dict[str, Any], ...]
    """What the child reported; see `probe`."""
    ended: str | None
    """Why the child did not finish; None if it did."""
    flag: str | None
    """Why XLA ends programs because of a flag in ``XLA_FLAGS``."""
    said: str
    """What the child printed to stderr."""
    cache: compilation_cache.CacheInfo

    @property
    def plugins(self) -> dict[str, str]:
        """The platforms of JAX's installed plugins, such as ``cuda13``, with their versions."""
        found = {match[1]: version for name, version in self.packages.items() if (match := PLUGIN.match(name))}
        return dict(sorted(found.items()))

    def has_plugin(self, platform: str) -> bool:
        """Return whether JAX has a plugin for ``"cuda"`` or ``"rocm"``."""
        return any(name.startswith(platform) for name in self.plugins)

    @property
    def platform(self) -> str | None:
        """The platform on which JAX runs; None if it did not start."""
        start = next((step for step in self.steps if step["step"] == "devices"), None)
        if start is None:
            return None
        found: str = start["platform"]
        return found if found != "gpu" else "rocm" if "rocm" in start["version"].lower() else "cuda"

    @property
    def devices(self) -> tuple[dict[str, Any], ...]:
        """The child's report on each device."""
        return tuple(step for step in self.steps if step["step"] == "device")

    @property
    def wants_gpu(self) -> bool:
        """Whether JAX should use a GPU if there is one."""
        return self.expect in (None, "gpu", "cuda", "rocm")


class Diagnosis(NamedTuple):
    """Result of `diagnose`; ``str()`` returns it as readable text, and ``as_json()`` as JSON."""

    facts: Facts
    system: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True if there is no problem, even if there are warnings."""
        return all(finding.level != PROBLEM for finding in self.findings)

    def as_json(self) -> str:
        """Return the diagnosis as JSON."""
        found = {"jax_von_mises": __version__, "ok": self.ok, "system": self.system, "platform": self.facts.platform}
        facts = self.facts._asdict() | {"cards": [card._asdict() for card in self.facts.cards]}
        facts["cache"] = self.facts.cache._asdict()
        return json.dumps(
            {**found, **facts, "findings": [each._asdict() for each in self.findings]},
            indent=2,
            default=str,
            allow_nan=False,
        )

    def __str__(self) -> str:
        facts = self.facts
        versions = {"jax_von_mises": __version__, **facts.packages}
        gpus = [f"{card.name}{_memory(card.free, card.total)}" for card in facts.cards] + list(facts.amd)
        lines = [
            ("versions", [", ".join(f"{name} {version}" for name, version in versions.items())]),
            ("system", [self.system]),
            ("driver", [f"NVIDIA {facts.driver}"] if facts.driver else []),
            ("GPUs", gpus or ["none found"]),
            ("JAX", [f"runs on {facts.platform}" if facts.platform else "does not start"]),
            ("devices", [line for device in facts.devices for line in _device_lines(device)]),
            ("cache", [facts.cache.path or "none"]),
        ]
        text = [f"{name if number == 0 else '':<10}{line}" for name, body in lines for number, line in enumerate(body)]
        for finding in self.findings:
            text += ["", f"{finding.level}: {finding.what}", f"  -> {finding.do}"]
        count = sum(finding.level == PROBLEM for finding in self.findings)
        text += ["", f"{count} problem{'s' * (count != 1)}" if count else "no problems found"]
        return "\n".join(text)


def diagnose(*, expect: str | None = None, timeout: float = 180.0) -> Diagnosis:
    """Find problems that make draws impossible, wrong or slow on this machine.

    The function asks the drivers and the installed packages, and starts JAX in a child process with the configuration
    of this process. In the child, each device draws angles, which are timed and compared with those of the CPU and with
    known angles. The child may abort or hang without harm to this process. The diagnosis takes a few seconds.

    Parameters
    ----------
    expect : {"cpu", "cuda", "rocm", "tpu"}, optional
        Platform that JAX should use; any other is reported as a problem.
    timeout : float
        Seconds after which the child is stopped.

    Returns
    -------
    Diagnosis
        ``ok`` is True if there is no problem; ``findings`` holds problems, warnings and notes with their remedies.

    Raises
    ------
    TypeError, ValueError
        If the platform is unknown or the timeout is invalid.
    """
    if expect is not None and expect not in environment.PLATFORMS:
        raise ValueError(
            f"diagnose: expect={arguments.safe_repr(expect)} is not one of {', '.join(environment.PLATFORMS)}."
        )
    timeout = arguments.seconds("diagnose", "timeout", timeout, above=0)
    driver, cards, trouble = nvidia()
    amd, amd_trouble = rocm()
    steps, ended, said = probe(timeout)
    config: Any = jax.config
    expect = expect or (config.jax_platforms or "").split(",")[0] or None
    trouble, cache = trouble or amd_trouble, compilation_cache.cache_info()
    flag = fatal_flag(said) if ended and not ended.startswith(NO_ANSWER) and len(steps) < 2 else None
    facts = Facts(packages(), driver, cards, amd, trouble, expect, steps, ended, flag, said, cache)
    return Diagnosis(facts, system(), findings_of(facts))


# ------------------------------------------------------------------------------------------------------- facts


def packages() -> dict[str, str]:
    """Return the versions of JAX, NumPy, SciPy and JAX's plugins, if installed."""
    found: dict[str, str] = {}
    for each in importlib.metadata.distributions():
        name = (each.metadata["Name"] or "").lower().replace("_", "-")
        if name in ("jax", "jaxlib", "numpy", "scipy") or re.match(r"jax-(cuda|rocm)\d+-(plugin|pjrt)$", name):
            found.setdefault(name, each.version or "unknown")  # the first one on the path is imported
    return dict(sorted(found.items()))


def system() -> str:
    """Describe the system, the processor and the number of cores that this process may use, on one line."""
    model = environment.processor("model name") or platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.system()} {platform.machine()}, Python {platform.python_version()}; {model}, {cores} cores"


def ask(*command: str) -> tuple[str, str | None] | None:
    """Run a driver's tool; return its output and why it failed (None if it did not), or None if it is not installed."""
    program = shutil.which(command[0])
    if program is None:
        return None
    try:
        code, out, err = run([program, *command[1:]], TOOL_TIMEOUT)
    except OSError as error:
        return "", f"{command[0]} cannot be run: {error}"
    if code is None:
        return "", f"{command[0]} did not answer within {TOOL_TIMEOUT} s"
    said = " ".join((err.strip() or out.strip()).split())[:200]
    return out, f"{command[0]} failed with exit code {code}: {said}" if code else None


def run(command: list[str], timeout: float, environ: dict[str, str] | None = None) -> tuple[int | None, str, str]:
    """Run a program; return its exit code, None if it was stopped at the timeout, and what it printed."""
    pipe, session, code = subprocess.PIPE, os.name == "posix", None
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environ, start_new_session=session
    )
    try:
        printed = child.communicate(timeout=min(timeout, 1e6))
        code = child.returncode
    except subprocess.TimeoutExpired as late:
        printed = late.stdout or b"", late.stderr or b""
    finally:
        if code is None:
            with contextlib.suppress(OSError):  # also the processes that the child started
                os.killpg(child.pid, signal.SIGKILL) if session else child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver that hangs may keep it from ending
                child.wait(STUCK)
            for file in filter(None, (child.stdout, child.stderr)):
                file.close()
    out, err = (text.decode(errors="replace") for text in printed)
    return code, out, err


def nvidia() -> tuple[str | None, tuple[Card, ...], str | None]:
    """Return the version of the NVIDIA driver, its GPUs, and why it did not answer."""
    fields = "--query-gpu=driver_version,memory.total,memory.free,name"
    answer = ask("nvidia-smi", fields, "--format=csv,noheader,nounits")
    if answer is None:
        return environment.nvidia_driver(), (), None
    text, trouble = answer
    rows = [[field.strip() for field in line.split(",", 3)] for line in text.splitlines()]
    rows = [row for row in rows if len(row) == 4 and re.match(r"\d+\.\d+", row[0])]
    size = [[int(field) * 2**20 if field.isdecimal() else None for field in row[1:3]] for row in rows]
    cards = tuple(Card(row[3], *sizes) for row, sizes in zip(rows, size, strict=True))
    return rows[0][0] if rows else None, cards, trouble or (None if rows else "nvidia-smi lists no GPU")


def rocm() -> tuple[tuple[str, ...], str | None]:
    """Return the names of AMD GPUs, and why the driver did not answer."""
    answer = ask("rocminfo")
    if answer is None:
        return (), None
    agents = [agent for agent in answer[0].split("*******") if re.search(r"Device Type:\s+GPU", agent)]
    names = [re.search(r"Marketing Name:[ \t]*(\S.*)", agent) for agent in agents]
    return tuple(name[1].strip() if name else "AMD GPU" for name in names), answer[1]


def probe(timeout: float) -> tuple[tuple[dict[str, Any], ...], str | None, str]:
    """Draw in a child process; return its steps, why it did not finish, and what it printed to stderr."""
    config: Any = jax.config
    chosen = config.jax_platforms or ""
    path = [os.path.abspath(folder) for folder in sys.path if folder] + [str(Path(__file__).parents[2])]
    changes: dict[str, str | None] = {
        "JAX_PLATFORMS": f"{chosen},cpu" if chosen and "cpu" not in chosen.split(",") else chosen or None,
        "JAX_NUM_CPU_DEVICES": str(config.jax_num_cpu_devices),
        "JAX_ENABLE_X64": str(bool(config.jax_enable_x64)),
        "JAX_TRACEBACK_FILTERING": "off",  # with filtering, the last line would be a note
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # this process may use the same GPU
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
        **{f"JAX_{name}": None for name in SPOILING},
    }
    environ = {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
    # -P keeps the working directory off the module path, so that the child imports the same modules as this process.
    code, out, err = run([sys.executable, "-P", "-m", "jax_von_mises.runtime.probe"], timeout, environ)
    why: str | None = f"{NO_ANSWER} within {timeout:g} s"
    if code is not None:
        why = reason(err) or f"exit code {code}" if code else None
    steps = []
    for found in re.findall(r'\{"step": .*\}', out):  # libraries may print other text, even before it on a line
        with contextlib.suppress(ValueError):
            steps.append(json.loads(found))
    return tuple(steps), why, err


def reason(err: str) -> str:
    """Return the most informative line that a child printed before it failed."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    fatal = [line.split("] ", 1)[-1] for line in lines if re.match(r"F\d{4} ", line)]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b: ", line)]
    return (fatal or errors or lines or [""])[-1][:300]


def fatal_flag(said: str) -> str | None:
    """Return why XLA ends programs because of a flag, given what the child printed before JAX started."""
    found = FATAL_FLAG.search(said)
    if found is None and os.environ.get("XLA_FLAGS"):
        # Another fault may have stopped JAX before it read the flags, and the CPU reads the same ones.
        on_cpu = os.environ | {"JAX_PLATFORMS": "cpu"}
        found = FATAL_FLAG.search(run([sys.executable, "-c", "import jax; jax.devices()"], TOOL_TIMEOUT, on_cpu)[2])
    return found[0][:200] if found else None


# ------------------------------------------------------------------------------------------------------- rules


def of_packages(facts: Facts) -> Iterator[Finding]:
    """Yield what the drivers and the installed packages show, whether JAX starts or not."""
    level, driver = PROBLEM if facts.wants_gpu else NOTE, facts.driver
    fits = _fitting(driver)
    if (facts.cards or driver) and not facts.has_plugin("cuda"):
        what = "there is an NVIDIA GPU, but JAX has no CUDA plugin and therefore runs on the CPU"
        do = f'run ./install_gpu.sh, or pip install -e ".[cuda{fits}]", in the clone' if fits else "update the driver"
        yield Finding(level, what, do)
    elif facts.amd and not facts.has_plugin("rocm"):
        what = "there is an AMD GPU, but JAX has no ROCm plugin and therefore runs on the CPU"
        yield Finding(level, what, 'run ./install_gpu.sh, or pip install -e ".[rocm]", in the clone')
    for release, need in DRIVERS.items():
        if driver and f"cuda{release}" in facts.plugins and _major(driver) < need:
            do = f"update the driver to {need} or newer"
            do += f", or install the wheels for CUDA {fits}: ./install_gpu.sh --cuda{fits}" if fits else ""
            yield Finding(PROBLEM, f"driver {driver} is too old for JAX's CUDA {release} wheels", do)
    if facts.trouble:
        do = "repair or reinstall the driver; after an update of the kernel or the driver, a reboot may be enough"
        yield Finding(WARNING if facts.platform in ("cuda", "rocm") else level, facts.trouble, do)
    elif driver is None and facts.platform != "cuda" and facts.has_plugin("cuda"):
        do = "install the driver; a container must be started with access to the GPUs (docker run --gpus all)"
        yield Finding(WARNING, "JAX has a CUDA plugin, but no NVIDIA driver was found", do)
    names, core = list(facts.plugins), facts.packages.get("jaxlib", "")
    if len(names) > 1:
        do = f"run pip uninstall jax-{names[0]}-plugin jax-{names[0]}-pjrt, or uninstall those of the other"
        yield Finding(PROBLEM, f"JAX has plugins for {' and '.join(names)}, but can use only one", do)
    for name, version in facts.plugins.items():
        if len(names) == 1 and version.split(".")[:3] != core.split(".")[:3]:
            do = f'run pip install --upgrade "jax[{name}]=={facts.packages.get("jax", core)}"'
            do = do if name.startswith("cuda") else REINSTALL
            yield Finding(PROBLEM, f"jax-{name}-plugin {version} does not match jaxlib {core}", do)


def of_start(facts: Facts) -> Iterator[Finding]:
    """Yield why JAX does not start, or runs on another platform than it should."""
    if facts.flag:
        do = "correct XLA_FLAGS, or remove this flag from it; flags differ between releases"
        yield Finding(PROBLEM, f"XLA ends every program that uses JAX: {facts.flag}", do)
    if facts.ended is not None and not FATAL_FLAG.search(facts.ended):
        last = facts.steps[-1] if facts.steps else {"step": "import"}
        doing = {
            "import": "JAX cannot be imported",
            "start": "JAX does not start",
            "draw": f"drawing on {last.get('device')} failed",
        }.get(last["step"], "drawing failed")
        do = f"set JAX_PLATFORMS=cpu to run on the CPU, or {REINSTALL}"
        if "RESOURCE_EXHAUSTED" in facts.ended:
            do = "find with nvidia-smi which process uses the memory of the GPU"
        elif facts.ended.startswith(NO_ANSWER):
            do = "look with nvidia-smi for a process that uses the GPU or a driver that hangs, or give a longer timeout"
        yield Finding(PROBLEM, f"{doing}: {facts.ended}", do)
    there = facts.cards or facts.driver or facts.amd
    if facts.wants_gpu and there and facts.plugins and facts.platform == "cpu":
        lines = [line.strip() for line in facts.said.splitlines() if re.search(r"error|fail|unable", line, re.I)]
        why = f": {lines[-1][:300]}" if lines else ""
        do = "see the other findings, then 'When the GPU is not used' on the page Install of the documentation"
        if (hidden := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
            do = f"CUDA_VISIBLE_DEVICES={hidden} may hide it; {do}"
        names = ", ".join(facts.plugins)
        yield Finding(PROBLEM, f"JAX's plugin for {names} is installed, but JAX runs on the CPU{why}", do)
    accepted = ("cuda", "rocm") if facts.expect == "gpu" else (facts.expect,)
    if facts.expect is not None and facts.platform not in (None, *accepted):
        do = "see the other findings; JAX_PLATFORMS selects one of the installed platforms"
        yield Finding(PROBLEM, f"JAX runs on {facts.platform}, not on {facts.expect}", do)


def of_draws(facts: Facts) -> Iterator[Finding]:
    """Yield which devices draw other words or angles than they should."""
    for device in facts.devices:
        name, do = device["device"], "remove flags from XLA_FLAGS; if that does not help, do not use this device"
        if not device["words_agree"]:
            yield Finding(PROBLEM, f"{name} generates random words that differ from the CPU's", do)
        elif not device["agrees"]:
            far = "NaN" if device["apart"] is None else f"up to {device['apart']:.1e} radians off"
            yield Finding(PROBLEM, f"{name} draws different angles: {far}", do)
        elif device["broken"]:
            do = "remove fast-math flags from XLA_FLAGS"
            yield Finding(PROBLEM, f"{name} fails the check that {device['broken'][0]}", do)
        if device["kernels"]:
            what = f"this package's CUDA kernels are turned on, but not used: {device['kernels']}"
            yield Finding(NOTE, what, f"no action is needed, since XLA draws; or unset {environment.CUDA_KERNELS}")


def of_surroundings(facts: Facts) -> Iterator[Finding]:
    """Yield who else uses the memory of the GPUs or the compilation cache."""
    for number, card in enumerate(facts.cards):
        if card.free is not None and card.total is not None and card.free < CROWDED * card.total:
            do = "find with nvidia-smi which process uses the rest; another JAX process takes three quarters when it "
            do += "starts, unless it has XLA_PYTHON_CLIENT_PREALLOCATE=false"
            yield Finding(WARNING, f"GPU {number} ({card.name}){_memory(card.free, card.total)}", do)
    path = facts.cache.path
    if path is None:
        do = "call runtime.initialize_compilation_cache()"
        yield Finding(NOTE, "there is no compilation cache: every process compiles again", do)
    elif "://" not in path and (why := compilation_cache.open_to_others(path)):
        do = "restrict the directory (chmod 700), or use another one"
        yield Finding(WARNING, f"the compilation cache {path} holds executable code, and {why}", do)


def findings_of(facts: Facts) -> tuple[Finding, ...]:
    """Return all findings, problems first."""
    found = [finding for rules in (of_packages, of_start, of_draws, of_surroundings) for finding in rules(facts)]
    return tuple(sorted(found, key=lambda finding: (PROBLEM, WARNING, NOTE).index(finding.level)))


def _major(driver: str) -> int:
    return int(driver.split(".")[0])


def _fitting(driver: str | None) -> int | None:
    """Return the newest CUDA release whose wheels a driver supports."""
    return next((release for release, least in DRIVERS.items() if driver and _major(driver) >= least), None)


# ------------------------------------------------------------------------------------------------------ report


def _device_lines(device: dict[str, Any]) -> Iterator[str]:
    rate = device["angles"] / device["seconds"] / 1e6
    verdict = "agrees" if device["agrees"] and device["words_agree"] and not device["broken"] else "DOES NOT AGREE"
    yield (
        f"{device['device']} ({device['kind']}{_memory(device['free'])}): {rate:,.0f} million angles per second, "
        f"{device['first_seconds']:.2f} s for the first call; {verdict}"
    )
    if device["kernels"] == "":
        yield "  this package's CUDA kernels are turned on and agree with XLA's program"


def _memory(free: int | None, total: int | None = None) -> str:
    """Return a text on free memory, with a comma before it; "" if it is unknown."""
    if free is None:
        return ""
    sizes = [
        f"{size / 2**30:,.0f}" if size >= 2**37 else f"{size / 2**30:.3g}" for size in (free, total) if size is not None
    ]
    return f", {' of '.join(sizes)} GiB free"
