"""Test the decisions, refusals and commands of install_gpu.sh.

Besides basic tools, the script finds only stand-ins for nvidia-smi, rocminfo and Python. The stand-in for Python
creates empty environments and records the arguments of pip.
"""

import configparser
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BASH, SH = shutil.which("bash"), shutil.which("sh")
pytestmark = pytest.mark.skipif(not BASH or os.name != "posix", reason="needs bash on POSIX")

# As `python3`, this stand-in creates environments, each with a copy of the stand-in as its Python. A real Python lists
# the installed packages, which are in the folder `site` of the environment.
PYTHON = f"""#!{SH}
here=${{0%/*}}
case $1 in
  -c)
    case $2 in
      *'sys.version_info[:2]'*) echo "${{STAND_IN_VERSION:-3.11}}" ;;
      *'import venv, ensurepip'*) [ -z "${{NO_ENSUREPIP:-}}" ] ;;
      *) PYTHONPATH=$here/../site exec {sys.executable} -S "$@" ;;
    esac
    exit ;;
esac
echo "${{0##*/}} $*" >> "$LOG"
case "$1 $2 $3" in
  '-m venv '*)
    [ -z "${{VENV_FAILS:-}}" ] || exit 1
    mkdir -p "$3/bin"
    cp "$here/python3" "$3/bin/python"
    cp "$here/stand-in-command" "$3/bin/jax-von-mises"
    : > "$3/pyvenv.cfg" ;;
  '-m pip --version') [ ! -e "$here/no-pip" ] ;;
  '-m ensurepip '*) [ -z "${{NO_ENSUREPIP:-}}" ] && rm "$here/no-pip" ;;
  '-m pip install') [ -z "${{PIP_FAILS:-}}" ] && echo "in $PWD" >> "$LOG" ;;
esac
"""
COMMAND = f"""#!{SH}
echo "${{0##*/}} $*" >> "$LOG"
exit "${{DOCTOR_FAILS:-0}}"
"""
UNKNOWN_FIELD = 'Field "compute_cap" is not a valid field to query.\n'
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\nMake sure that it runs.\n"
AMD = "ROCk module is loaded\nAgent 1\n  Device Type:             CPU\nAgent 2\n  Device Type:             GPU\n"
KERNEL = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\nGCC version:  gcc version 12.2\n"


class Machine:
    """The inputs of the script: its clone, programs in `bin`, and files under `tree`, which stands for /."""

    def __init__(self, path):
        self.path = path
        self.clone = path / "the clone"
        self.tree = path / "tree"
        self.log = path / "log"
        self.bin = path / "bin"
        (self.clone / "jax_von_mises").mkdir(parents=True)
        for name in ("install_gpu.sh", "setup.cfg", "pyproject.toml", "Makefile"):
            shutil.copy(ROOT / name, self.clone)
        self.bin.mkdir()
        for name in ("bash", "sh", "cat", "cp", "mkdir", "rm", "sleep", "timeout", "touch"):
            if shutil.which(name):
                (self.bin / name).symlink_to(shutil.which(name))
        self.program("python3", PYTHON)
        self.program("stand-in-command", COMMAND)
        self.system("Linux", "x86_64")

    def program(self, name, text):
        """Make a program; one whose name has slashes is placed under `tree`."""
        path = self.tree / name if "/" in name else self.bin / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def file(self, name, text=""):
        """Make a file under `tree`."""
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def system(self, name, machine):
        """Change the output of uname."""
        self.program("uname", f"#!{SH}\necho {name} {machine}\n")

    def says(self, program, text, code=0, plain=None, plain_code=0):
        """Make a program that prints a text; `plain` is the answer of nvidia-smi to a query without compute_cap."""
        if plain is None:
            plain, plain_code = text, code
        texts = [self.path / f"{program.replace('/', '-')}.{i}" for i in (0, 1)]
        for file, content in zip(texts, (text, plain), strict=True):
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.program(
            program,
            f'#!{SH}\necho "{program}" >> "$LOG"\n'
            f'case "$*" in *compute_cap*|"") cat "{texts[0]}"; exit {code} ;; esac\n'
            f'cat "{texts[1]}"\nexit {plain_code}\n',
        )

    def environment(self, place, *, pip=True, packages=()):
        """Make a virtual environment with these packages, each given as (name, requirements, installer)."""
        (place / "bin").mkdir(parents=True)
        shutil.copy(self.bin / "python3", place / "bin" / "python")
        shutil.copy(self.bin / "stand-in-command", place / "bin" / "jax-von-mises")
        (place / "pyvenv.cfg").touch()
        if not pip:
            (place / "bin" / "no-pip").touch()
        for name, requirements, installer in packages:
            info = place / "site" / f"{name.replace('-', '_')}-1.dist-info"
            info.mkdir(parents=True)
            lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1"]
            lines += [f"Requires-Dist: {requirement}" for requirement in requirements]
            info.joinpath("METADATA").write_text("\n".join(lines) + "\n")
            info.joinpath("INSTALLER").write_text(f"{installer}\n")
        return place

    def run(self, *options, start=None, cwd=None, **environment):
        """Run the script; return the finished process. `start` is the command line before the options."""
        self.log.write_text("")
        variables = {
            "PATH": str(self.bin),
            "LOG": str(self.log),
            "INSTALL_GPU_ROOT": str(self.tree),
            "HOME": str(self.path),
            "LC_ALL": "C",
        }
        return subprocess.run(
            [*(start or [BASH, self.clone / "install_gpu.sh"]), *options],
            cwd=cwd or self.path,
            env=variables | {name: str(value) for name, value in environment.items()},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def done(self):
        """Return the commands that ran, as the stand-ins recorded them."""
        return self.log.read_text().splitlines()

    def files(self):
        """Map each file and folder to its content, which is None for a folder."""
        paths = (path for path in self.path.rglob("*") if path != self.log)
        return {path: path.read_bytes() if path.is_file() else None for path in paths}


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def line(process, start):
    """Return the only line of the output that begins with `start`, without this beginning."""
    (found,) = [line for line in process.stdout.splitlines() if line.startswith(start)]
    return found.removeprefix(start).strip()


def refused(process, message, code=1):
    """Assert the exit code, and that the last line on stderr is an error with this message."""
    assert process.returncode == code, (process.stdout, process.stderr)
    last = process.stderr.splitlines()[-1]
    assert last.startswith("install_gpu.sh: error: ")
    assert message in last


NVIDIA = {
    "470": ((UNKNOWN_FIELD, 2, "470.82.01\n"), "the CPU (CUDA 12 needs NVIDIA driver 525 or newer: update the driver"),
    "524": (("524.99, 8.0\n",), "the CPU (CUDA 12 needs NVIDIA driver 525"),
    "525": (("525.60.13, 8.0\n",), "CUDA 12 (CUDA 13 needs NVIDIA driver 580"),
    "579": (("579.99.99, 9.0\n",), "CUDA 12 (CUDA 13 needs NVIDIA driver 580"),
    "580": (("580.65.06, 9.0\n",), "CUDA 13 (it supports the driver and all cards)"),
    "1000": (("1000.1, 9.0\n",), "CUDA 13"),
    "Blackwell": (("580.95.05, 12.0\n580.95.05, 10.3\n",), "CUDA 13"),
    "Blackwell, old driver": (("570.133.07, 12.0\n",), "CUDA 12"),
    "Turing": (("580.65.06, 7.5\n",), "CUDA 13"),
    "Volta": (("580.65.06, 7.0\n",), "CUDA 12 (CUDA 13 needs cards of compute capability 7.5 or more)"),
    "Kepler": (("525.60.13, 3.7\n",), "the CPU (CUDA 12 needs cards of compute capability 5.0 or more)"),
    "mixed": (("580.65.06, 6.1\n580.65.06, 8.9\n",), "CUDA 12 (CUDA 13 needs cards"),
    "mixed, other order": (("580.65.06, 12.0\n580.65.06, 6.1\n",), "CUDA 12 (CUDA 13 needs cards"),
    "one card unknown": (("580.65.06, 9.0\n580.65.06, [N/A]\n",), "CUDA 12 (it supports every card of this driver"),
    "nvidia-smi older than its driver": ((UNKNOWN_FIELD, 2, "580.95.05\n"), "CUDA 12 (it supports every card"),
    "driver without old cards": ((UNKNOWN_FIELD, 2, "590.44.01\n"), "CUDA 13"),
    "Windows line ends": (("580.65.06, 9.0\r\n",), "CUDA 13"),
    "talk around it": (("WARNING: infoROM is corrupted\n580.65.06, 9.0\n\n",), "CUDA 13"),
    "exit code 9": ((NO_DRIVER, 9), "the CPU (run this again once a GPU works)"),
    "error and exit code 0": ((NO_DRIVER, 0), "the CPU"),
    "no device": (("No devices were found\n", 6), "the CPU"),
    "nothing": (("", 0), "the CPU"),
    "nonsense": ((b"\x01\xff 580 \x1b[31m,,9\n12 9.0\n580, 9.0\n", 0), "the CPU"),
}


@pytest.mark.parametrize(("answers", "chosen"), NVIDIA.values(), ids=NVIDIA)
def test_nvidia(machine, answers, chosen):
    machine.says("nvidia-smi", *answers)
    process = machine.run("--dry-run")
    assert process.returncode == 0, process.stderr
    assert line(process, "chosen: ").startswith(chosen)
    extra, expect = {"CUDA 12": (",cuda12", "cuda"), "CUDA 13": (",cuda13", "cuda")}.get(chosen[:7], ("", "cpu"))
    assert f"-m pip install -q --disable-pip-version-check -e '.[cli{extra}]'\n" in process.stdout
    assert process.stdout.endswith(f"jax-von-mises' doctor --expect {expect}\n")


def test_found_names_the_cards(machine):
    machine.says("nvidia-smi", "580.65.06, 8.9\n580.65.06, 6.1\n")
    found = line(machine.run("--dry-run"), "found: ")
    assert found == "NVIDIA driver 580.65.06, 2 GPUs of compute capability 6.1 to 8.9"


def test_broken_nvidia_smi_is_quoted(machine):
    machine.says("nvidia-smi", NO_DRIVER, 9)
    found = line(machine.run("--dry-run"), "found: ")
    assert "nvidia-smi printed: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver." in found
    machine.says("nvidia-smi", "", 3)
    assert "nvidia-smi ended with exit code 3 and no output" in line(machine.run("--dry-run"), "found: ")


@pytest.mark.skipif(not shutil.which("timeout"), reason="without `timeout`, the script waits for nvidia-smi")
@pytest.mark.parametrize("stubborn", ["", "trap '' TERM\n"])
def test_hanging_nvidia_smi(machine, stubborn):
    """The script waits for a limited time, and does not start nvidia-smi again."""
    machine.program("nvidia-smi", f'#!{SH}\n{stubborn}echo asked >> "$LOG"\nfor i in 1 2 3 4 5 6; do sleep 1; done\n')
    start = time.monotonic()
    process = machine.run("--dry-run", PROBE_SECONDS="0.2")
    assert time.monotonic() - start < 5
    assert "nvidia-smi gave no answer in 0.2 s" in line(process, "found: ")
    assert line(process, "chosen: ").startswith("the CPU")
    assert machine.done().count("asked") == 1


def test_without_timeout(machine):
    """The script works without `timeout`, which macOS and some small systems lack."""
    (machine.bin / "timeout").unlink(missing_ok=True)
    machine.says("nvidia-smi", "580.65.06, 9.0\n")
    assert line(machine.run("--dry-run"), "chosen: ").startswith("CUDA 13")


@pytest.mark.parametrize(
    ("driver", "chosen"),
    [("470.82.01", "the CPU"), ("550.54.14", "CUDA 12"), ("580.65.06", "CUDA 12"), ("595.10", "CUDA 13")],
)
@pytest.mark.parametrize("broken", [False, True])
def test_driver_from_the_kernel(machine, driver, chosen, broken):
    """Without an answer from nvidia-smi, the script learns the driver's version from the kernel, but not the cards."""
    if broken:
        machine.says("nvidia-smi", "Failed to initialize NVML: Driver/library version mismatch\n", 18)
    machine.file("proc/driver/nvidia/version", KERNEL.format(driver))
    machine.file("dev/nvidia0")
    process = machine.run("--dry-run")
    assert line(process, "chosen: ").startswith(chosen)
    found = line(process, "found: ")
    assert f"NVIDIA driver {driver}, as the kernel reports" in found
    assert ("version mismatch" if broken else "no nvidia-smi") in found


def test_container_without_its_gpus(machine):
    machine.file("proc/driver/nvidia/version", KERNEL.format("580.65.06"))
    process = machine.run("--dry-run")
    assert line(process, "chosen: ").startswith("the CPU")
    assert "was the container started without GPUs?" in line(process, "found: ")


def test_windows_subsystem(machine):
    machine.says("usr/lib/wsl/lib/nvidia-smi", "581.29, 8.9\n")
    assert line(machine.run("--dry-run"), "chosen: ").startswith("CUDA 13")


ROCM = {
    "rocminfo": ({"rocminfo": (AMD,)}, {}, "ROCm 7 (an AMD GPU)", "ROCm"),
    "off the path": ({"opt/rocm/bin/rocminfo": (AMD,)}, {"opt/rocm/.info/version": "7.2.0-43\n"}, "ROCm 7", "ROCm 7.2"),
    "ROCm 6": ({"rocminfo": (AMD,)}, {"opt/rocm/.info/version": "6.4.1"}, "the CPU", "has wheels for ROCm 7 only"),
    "no GPU": ({"rocminfo": ("Device Type:             CPU\n",)}, {}, "the CPU", "rocminfo lists no GPU"),
    "no rights": ({"rocminfo": ("Unable to open /dev/kfd\n", 1)}, {}, "the CPU", "rocminfo printed: Unable to open"),
    "no ROCm": ({}, {"dev/kfd": ""}, "the CPU", "install ROCm 7 first"),
    "old NVIDIA too": ({"nvidia-smi": ("470.82, 3.7\n",), "rocminfo": (AMD,)}, {}, "ROCm 7", "470.82"),
    "NVIDIA too": ({"nvidia-smi": ("580.65.06, 9.0\n",), "rocminfo": (AMD,)}, {}, "CUDA 13", "580"),
}


@pytest.mark.parametrize(("programs", "files", "chosen", "found"), ROCM.values(), ids=ROCM)
def test_rocm(machine, programs, files, chosen, found):
    for program, answer in programs.items():
        machine.says(program, *answer)
    for file, text in files.items():
        machine.file(file, text)
    process = machine.run("--dry-run")
    assert process.returncode == 0, process.stderr
    assert line(process, "chosen: ").startswith(chosen)
    assert found in line(process, "found: ")
    assert ("[cli,rocm]" in process.stdout) == (chosen[:4] == "ROCm")
    assert ("--expect rocm" in process.stdout) == (chosen[:4] == "ROCm")


@pytest.mark.parametrize(
    ("system", "chosen"),
    [
        (("Linux", "aarch64"), "CUDA 13"),
        (("Linux", "riscv64"), "the CPU"),
        (("Darwin", "arm64"), "the CPU"),
        (("FreeBSD", "amd64"), "the CPU"),
    ],
)
def test_systems(machine, system, chosen):
    machine.says("nvidia-smi", "580.65.06, 9.0\n")
    machine.says("rocminfo", AMD)
    machine.system(*system)
    assert line(machine.run("--dry-run"), "chosen: ").startswith(chosen)
    for option in ("--cuda13", "--rocm"):
        if chosen == "the CPU" or option == "--rocm":
            refused(machine.run("--dry-run", option), f"{option}: there are no")


def test_windows_is_refused(machine):
    machine.system("MINGW64_NT-10.0", "x86_64")
    refused(machine.run("--dry-run"), "use WSL2")


@pytest.mark.parametrize(
    ("answer", "option", "message"),
    [
        ("550.54.14, 9.0\n", "--cuda13", "driver 580 or newer, but this machine has NVIDIA driver 550.54.14"),
        ("580.65.06, 7.0\n", "--cuda13", "CUDA 13 needs cards of compute capability 7.5"),
        ("470.82, 7.0\n", "--cuda12", "CUDA 12 needs NVIDIA driver 525"),
    ],
)
def test_impossible_choices_are_refused(machine, answer, option, message):
    machine.says("nvidia-smi", answer)
    refused(machine.run(option), message)
    assert not (machine.clone / ".venv").exists()


def test_old_rocm_is_refused(machine):
    machine.says("rocminfo", AMD)
    machine.file("opt/rocm/.info/version", "6.4.1-83\n")
    refused(machine.run("--rocm"), "--rocm: this machine has ROCm 6.4.1-83, but JAX has wheels for ROCm 7 only")
    assert not (machine.clone / ".venv").exists()


def test_the_requested_accelerator_is_used(machine):
    machine.says("nvidia-smi", "580.65.06, 9.0\n580.65.06, 6.1\n")
    machine.says("rocminfo", AMD)
    for option, extra, expect in (("--cuda12", ",cuda12", "cuda"), ("--rocm", ",rocm", "rocm"), ("--cpu", "", "cpu")):
        process = machine.run("--dry-run", option)
        assert f"'.[cli{extra}]'" in process.stdout
        assert process.stdout.endswith(f"doctor --expect {expect}\n")
        assert process.stderr == ""
        assert ("nvidia-smi" in machine.done()) == (option == "--cuda12")
    # One of the cards is supported, and can be selected.
    process = machine.run("--dry-run", "--cuda13")
    assert "'.[cli,cuda13]'" in process.stdout
    assert "6.1 to 9.0; hide the other cards with CUDA_VISIBLE_DEVICES" in process.stderr


@pytest.mark.parametrize(("option", "expect"), [("--cuda12", "cuda"), ("--cuda13", "cuda"), ("--rocm", "rocm")])
def test_requested_accelerator_is_missing(machine, option, expect):
    """On request, the script warns and installs JAX for an accelerator that it does not find; the check decides."""
    process = machine.run(option)
    assert process.returncode == 0, process.stderr
    assert f"warning: {option} is installed as requested, but the final check needs" in process.stderr
    assert machine.done()[-1] == f"jax-von-mises doctor --expect {expect}"


@pytest.mark.parametrize("form", [("--extras", "bench,docs"), ("--extras=bench,docs",)])
def test_extras(machine, form):
    """Requested extras are added to those that the script installs by itself."""
    machine.says("nvidia-smi", "580.65.06, 9.0\n")
    process = machine.run("--dry-run", *form)
    assert process.returncode == 0, process.stderr
    assert "-m pip install -q --disable-pip-version-check -e '.[cli,cuda13,bench,docs]'\n" in process.stdout
    process = machine.run("--cpu", *form)
    assert process.returncode == 0, process.stderr
    assert "python -m pip install -q --disable-pip-version-check -e .[cli,bench,docs]" in machine.done()
    assert "installing for the CPU with bench,docs\n" in process.stdout


def test_extras_are_those_of_the_package(machine):
    """Valid extras, which an error lists, are those of setup.cfg except accelerators, which have separate options."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    accelerators = {"cuda12", "cuda13", "rocm", "gpu-aot"}
    names = [name for name in setup["options.extras_require"] if name not in accelerators]
    assert accelerators | {"bench", "docs"} <= set(setup["options.extras_require"])
    process = machine.run("--dry-run", "--extras", ",".join(names))
    assert f"-e '.[cli,{','.join(names)}]'\n" in process.stdout
    refused(machine.run("--extras", "docs,benhc"), f"there is no extra benhc; choose from {' '.join(names)}", code=2)
    for name in accelerators:
        refused(machine.run("--extras", name), f"--extras {name}: an accelerator is chosen by --cuda12", code=2)


MISUSE = {
    "no extras": (("--extras",), "--extras needs names"),
    "extras that end with a comma": (("--extras", "bench,"), "--extras bench,: give names of extras"),
    "empty extras": (("--extras=",), "--extras needs names"),
    "option for extras": (("--extras", "--cpu"), "--extras needs names"),
    "extras twice": (("--extras", "bench", "--extras=docs"), "--extras is given twice"),
    "unknown extra": (("--extras", "numpy"), "there is no extra numpy; choose from cli storage"),
    "empty extra": (("--extras", "bench,,docs"), "give names of extras, separated by commas: cli storage"),
    "extras with a space": (("--extras", "bench docs"), "give names of extras, separated by commas"),
    "pattern for an extra": (("--extras", "*"), "give names of extras, separated by commas"),
    "two": (("--cuda12", "--cpu"), "--cuda12 and --cpu together: choose one"),
    "two CUDAs": (("--cuda12", "--cuda13"), "choose one"),
    "unknown": (("--cuda",), "unknown option --cuda"),
    "word": (("cuda12",), "unknown option cuda12"),
    "empty": (("",), "unknown option"),
    "no directory": (("--venv",), "--venv needs a directory"),
    "empty directory": (("--venv", ""), "--venv needs a directory"),
    "empty after =": (("--venv=",), "--venv needs a directory"),
    "option for a directory": (("--venv", "--cpu"), "--venv needs a directory"),
    "two directories": (("--venv", "a", "--venv=b"), "--venv is given twice"),
}


@pytest.mark.parametrize(("options", "message"), MISUSE.values(), ids=MISUSE)
def test_misuse(machine, options, message):
    before = machine.files()
    process = machine.run(*options)
    refused(process, message, code=2)
    assert process.stderr.count("\n") == 1
    assert process.stdout == ""
    assert machine.done() == []
    assert machine.files() == before


def test_invalid_patience(machine):
    machine.says("nvidia-smi", "580.65.06, 9.0\n")
    refused(machine.run(PROBE_SECONDS="abc"), "PROBE_SECONDS=abc is not a number of seconds", code=2)


def test_path_of_the_shell(machine):
    """The script finds its clone even if CDPATH is set, with which `cd` may print a path or go elsewhere."""
    start = [BASH, f"{machine.clone.name}/install_gpu.sh"]
    process = machine.run("--dry-run", start=start, cwd=machine.clone.parent, CDPATH=f".:{machine.path}:/tmp")
    assert process.returncode == 0, process.stderr


def test_help(machine):
    process = machine.run("--cpu", "--help")
    assert process.returncode == 0
    for option in ("--cuda12", "--cuda13", "--rocm", "--cpu", "--extras NAMES", "--venv DIR", "--dry-run", "--help"):
        assert f"\n  {option}  " in process.stdout
    assert machine.done() == []


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_sourced(machine, shell):
    """A script that is sourced, or read from standard input, only prints an error; a sourcing shell continues."""
    script = machine.clone / "install_gpu.sh"
    process = machine.run(start=[shutil.which(shell), "-c", f'. "{script}"; echo "alive, $?"'])
    assert process.stdout == "alive, 2\n"
    assert "run " in process.stderr
    process = machine.run(start=[BASH, "-c", f'"{BASH}" < "{script}"; echo "ended, $?"'])
    assert process.stdout == "ended, 2\n"
    assert machine.done() == []


def test_dry_run_changes_nothing(machine):
    machine.says("nvidia-smi", "580.65.06, 9.0\n")
    before = machine.files()
    process = machine.run("--dry-run", "--venv", "it's here")
    assert process.returncode == 0
    assert machine.files() == before
    assert machine.done() == ["nvidia-smi"]
    place = f"'{machine.path}/it'\\''s here"
    assert [text.removeprefix("would run: ") for text in process.stdout.splitlines()[3:]] == [
        f"python3 -m venv {place}'",
        f"{place}/bin/python' -m pip install -q --disable-pip-version-check -e '.[cli,cuda13]'",
        f"{place}/bin/jax-von-mises' doctor --expect cuda",
    ]


def test_installs_twice(machine):
    """The script runs as a program from another directory, and a second run keeps the environment."""
    machine.says("nvidia-smi", "580.65.06, 9.0\n")
    commands = [
        "python -m pip install -q --disable-pip-version-check -e .[cli,cuda13]",
        f"in {machine.clone}",
        "jax-von-mises doctor --expect cuda",
    ]
    process = machine.run(start=[machine.clone / "install_gpu.sh"])
    assert process.returncode == 0, process.stderr
    assert machine.done() == ["nvidia-smi", f"python3 -m venv {machine.clone}/.venv", *commands]
    assert f"ready: source '{machine.clone}/.venv/bin/activate'" not in process.stdout  # the stand-in has none
    process = machine.run(start=[machine.clone / "install_gpu.sh"])
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    assert machine.done() == ["nvidia-smi", "python -m pip --version", *commands]


@pytest.mark.parametrize("form", [("--venv", "an environment"), ("--venv=an environment/",)])
def test_named_environment(machine, form):
    """A path with a space is relative to the working directory; an active environment does not change."""
    active = machine.environment(machine.path / "active")
    before = machine.files()
    process = machine.run("--cpu", *form, VIRTUAL_ENV=active)
    assert process.returncode == 0, process.stderr
    place = machine.path / "an environment"
    assert machine.done()[0] == f"python3 -m venv {place}"
    assert machine.done()[-1] == "jax-von-mises doctor --expect cpu"
    assert {path: text for path, text in machine.files().items() if place not in (path, *path.parents)} == before


def test_active_environment(machine):
    active = machine.environment(machine.path / "active")
    conda = machine.environment(machine.path / "conda")
    (conda / "pyvenv.cfg").unlink()
    (conda / "conda-meta").mkdir()
    for variables, place in (
        ({"VIRTUAL_ENV": active, "CONDA_PREFIX": conda}, active),
        ({"CONDA_PREFIX": conda}, conda),
        ({"CONDA_PREFIX": conda, "CONDA_DEFAULT_ENV": "work"}, conda),
        ({"CONDA_PREFIX": conda, "CONDA_DEFAULT_ENV": "base"}, machine.clone / ".venv"),
    ):
        process = machine.run(**variables)
        assert process.returncode == 0, process.stderr
        assert f"environment: {place} (" in process.stdout
        assert ("python3 -m venv" in machine.log.read_text()) == (place.name == ".venv")
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        gone = machine.path / "gone"
        refused(machine.run(**{variable: gone}), f"{variable} names {gone}, which does not exist")


def test_folder_that_is_no_environment(machine):
    (machine.path / "results").mkdir()
    (machine.path / "results" / "data").write_text("x")
    (machine.path / "empty").mkdir()
    (machine.path / "file").write_text("x")
    (machine.path / "link").symlink_to("nowhere")
    before = machine.files()
    for name, message in (
        ("results", "exists and is not a virtual environment"),
        ("empty", "exists and is not a virtual environment"),
        (".", "exists and is not a virtual environment"),
        ("file", "is not a directory"),
        ("link", "is not a directory"),
        ("file/venv", "file is not a directory"),
    ):
        refused(machine.run("--venv", name), message)
        assert machine.done() == []
    assert machine.files() == before


@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folders(machine):
    place = machine.environment(machine.path / "active")
    for folder, options in ((machine.clone, ()), (place, ("--venv", str(place))), (machine.clone, ("--venv", "new"))):
        folder.chmod(0o555)
        refused(machine.run(*options), f"{folder} cannot be written")
        folder.chmod(0o755)
    assert not (machine.path / "new").exists()


def test_incomplete_environments(machine):
    """An incomplete environment is repaired, or the message names the remedy."""
    place = machine.environment(machine.path / "no pip", pip=False)
    process = machine.run("--venv", place)
    assert process.returncode == 0, process.stderr
    assert "python -m ensurepip --upgrade --default-pip" in machine.done()
    assert f"{place} has no working pip: adding it" in process.stdout
    assert not (place / "bin" / "no-pip").exists()

    place = machine.environment(machine.path / "no pip for good", pip=False)
    refused(machine.run("--venv", place, NO_ENSUREPIP="1"), f"it cannot be added: delete {place}")

    place = machine.path / "no python"
    place.mkdir()
    (place / "pyvenv.cfg").touch()
    process = machine.run("--venv", place)
    assert process.returncode == 0, process.stderr
    assert machine.done()[0] == f"python3 -m venv {place}"

    place = machine.environment(machine.path / "gone python")
    (place / "bin" / "python").unlink()
    (place / "bin" / "python").symlink_to("python3.9")
    refused(machine.run("--venv", place), f"does not start: delete {place} and run this again")


def test_python(machine):
    """The script uses $PYTHON, or else python3, and requires version 3.11 or newer with venv and ensurepip."""
    shutil.copy(machine.bin / "python3", machine.bin / "python3.12")
    assert machine.run(PYTHON="python3.12", STAND_IN_VERSION="3.12").returncode == 0
    assert machine.done()[0].startswith("python3.12 -m venv")
    shutil.rmtree(machine.clone / ".venv")
    for version in ("3.10", "2.7"):
        refused(machine.run(STAND_IN_VERSION=version), f"python3 is Python {version}, and 3.11 or newer is needed")
    assert machine.run(STAND_IN_VERSION="4.0", options="--dry-run").returncode == 0
    shutil.rmtree(machine.clone / ".venv")
    refused(machine.run(PYTHON="python9"), "python9 does not start, and Python 3.11 or newer is needed: run PYTHON=")
    refused(machine.run(NO_ENSUREPIP="1"), "python3 lacks venv or ensurepip: install them (Debian, Ubuntu: apt install")
    refused(machine.run(VENV_FAILS="1"), "python3 -m venv failed")
    (machine.bin / "python3.12").unlink()
    (machine.bin / "python3").unlink()
    refused(machine.run(), "install one, and run PYTHON=python3.12 ./install_gpu.sh")


def test_environment_of_an_old_python(machine):
    place = machine.environment(machine.path / "old")
    before = machine.files()
    refused(machine.run("--venv", place, STAND_IN_VERSION="3.9"), f"{place} has Python 3.9, and 3.11 or newer is")
    assert machine.files() == before


def test_environment_keeps_its_python(machine):
    machine.program("python3.13", f"#!{SH}\necho 3.13\n")
    place = machine.environment(machine.path / "environment")
    process = machine.run("--venv", place, PYTHON="python3.13")
    assert process.returncode == 0
    assert "PYTHON=python3.13 has another version, and the environment keeps its Python" in process.stderr
    assert f"to change it, delete {place} first" in process.stderr
    assert machine.run("--venv", place, PYTHON="python3").stderr == ""


def test_pip_fails(machine):
    refused(machine.run(PIP_FAILS="1"), "pip could not install: see its output above")
    assert not any("doctor" in text for text in machine.done())


@pytest.mark.parametrize("code", [1, 2])
def test_check_fails(machine, code):
    """A failed check is an error; exit code 2 would come from a version of the package without the check."""
    refused(machine.run(DOCTOR_FAILS=code), "installed, but the check failed")
    assert machine.done()[-1] == "jax-von-mises doctor --expect cpu"


def test_script_away_from_its_clone(machine):
    shutil.move(machine.clone / "install_gpu.sh", machine.path)
    refused(machine.run(start=[BASH, "install_gpu.sh"]), "run the script in its clone")


CUDA12 = (
    ("jax-cuda12-plugin", ('jax-cuda12-pjrt==1; extra == "x"', 'nvidia-cudnn-cu12>=9; extra == "with-cuda"'), "pip"),
    ("jax-cuda12-pjrt", (), "pip"),
    ("nvidia-cudnn-cu12", ("nvidia-cublas-cu12",), "pip"),
    ("nvidia-cublas-cu12", ("nvidia-helper-of-cublas",), "pip"),
    ("nvidia-helper-of-cublas", (), "pip"),
    ("jax", ('jax-cuda12-plugin; extra == "cuda12"',), "pip"),
    ("numpy", (), "pip"),
)
CUDA13 = (
    ("jax_cuda13_plugin", ('nvidia-cublas>=13; extra == "a"', 'nvidia-cudnn-cu13; extra == "a"'), "pip"),
    ("jax-cuda13-pjrt", (), "pip"),
    ("nvidia-cudnn-cu13", ("nvidia-cublas",), "pip"),
    ("nvidia-cublas", (), "pip"),
)
BROUGHT = "nvidia-cublas-cu12 nvidia-cudnn-cu12 nvidia-helper-of-cublas"
# Both releases of cuDNN share a folder. Removing that of CUDA 12 leaves the other incomplete, so both are removed.
WITH_A_HOLE = BROUGHT.replace("cudnn-cu12", "cudnn-cu12 nvidia-cudnn-cu13")
OTHERS = {
    "13 over 12": ("--cuda13", CUDA12, f"jax-cuda12-pjrt jax-cuda12-plugin {BROUGHT}"),
    "12 over 13": ("--cuda12", CUDA13, "jax-cuda13-pjrt jax-cuda13-plugin nvidia-cublas nvidia-cudnn-cu13"),
    "13 over both": ("--cuda13", CUDA12 + CUDA13, f"jax-cuda12-pjrt jax-cuda12-plugin {WITH_A_HOLE}"),
    "ROCm over 12": ("--rocm", CUDA12, "jax-cuda12-pjrt jax-cuda12-plugin"),
    "12 over ROCm": ("--cuda12", (("jax-rocm7-plugin", (), "pip"), ("numpy", (), "pip")), "jax-rocm7-plugin"),
    "CPU over 12": ("--cpu", CUDA12, "jax-cuda12-pjrt jax-cuda12-plugin"),
    "12 over 12": ("--cuda12", CUDA12, None),
    "nothing found, nothing asked": (None, CUDA12, None),
}


@pytest.mark.parametrize(("option", "packages", "removed"), OTHERS.values(), ids=OTHERS)
def test_other_accelerators_go_first(machine, option, packages, removed):
    place = machine.environment(machine.path / "environment", packages=packages)
    process = machine.run(*filter(None, (option,)), "--venv", place)
    assert process.returncode == 0, process.stderr
    done = [text for text in machine.done() if "pip --version" not in text and not text.startswith("in ")]
    expected = [f"python -m pip uninstall -q -y {removed}"] if removed else []
    assert done[:-2] == expected
    assert done[-2].startswith("python -m pip install")
    if removed:
        assert f"removing {removed}\n" in process.stdout
        dry = machine.run(*filter(None, (option,)), "--venv", place, "--dry-run")
        assert f"-m pip uninstall -q -y {removed}\n" in dry.stdout
        assert machine.done() == ["python -m pip --version"]


@pytest.mark.parametrize(
    ("package", "by"),
    [(("torch", ('nvidia-cudnn-cu12==9; platform_system == "Linux"',), "pip"), "torch"), (None, "conda")],
)
def test_libraries_needed_by_others_are_not_removed(machine, package, by):
    packages = [*CUDA12, package] if package else [(name, needs, "conda") for name, needs, _ in CUDA12]
    place = machine.environment(machine.path / "environment", packages=packages)
    process = machine.run("--cuda13", "--venv", place)
    refused(process, "conflicts with CUDA 13: use another environment, with --venv DIR")
    assert f"by {by} in {place}" in process.stderr
    assert not any("install" in text for text in machine.done())


def test_shadowed_libraries(machine):
    """The warning names the directory and each of its libraries once; the driver's library causes no warning."""
    machine.says("nvidia-smi", "580.65.06, 9.0\n")
    cuda, driver = machine.path / "the cuda", machine.path / "driver"
    for file in (cuda / "libcudnn_ops.so.9", cuda / "libcudnn.so.8", cuda / "libcublas.so", driver / "libcuda.so.1"):
        file.parent.mkdir(exist_ok=True)
        file.touch()
    path = f":{driver}:{machine.path}/gone:{cuda}:"
    process = machine.run("--dry-run", LD_LIBRARY_PATH=path)
    assert process.returncode == 0
    (warning,) = process.stderr.splitlines()
    assert f"LD_LIBRARY_PATH holds {cuda}, and JAX can load libcudnn, libcublas from there" in warning
    assert "unset LD_LIBRARY_PATH" in warning
    assert machine.run("--dry-run", "--cpu", LD_LIBRARY_PATH=path).stderr == ""


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_make_sample(machine):
    """`make sample` installs once, and again when the script changes; PYTHON= selects the Python."""
    shutil.copy(machine.bin / "python3", machine.bin / "python3.12")
    make = [shutil.which("make"), "-s", "sample", "PYTHON=python3.12", "SIZE=10"]
    sample = "jax-von-mises sample --concentration 4 --size 10 --out samples.npy --force"
    process = machine.run(start=make, cwd=machine.clone, VIRTUAL_ENV=machine.path)
    assert process.returncode == 0, process.stderr
    done = machine.done()
    assert done[0] == f"python3.12 -m venv {machine.clone}/.venv"
    assert done[-2:] == ["jax-von-mises doctor --expect cpu", sample]
    assert machine.run(start=make, cwd=machine.clone).returncode == 0
    assert machine.done() == [sample]
    later = time.time() + 10
    os.utime(machine.clone / "install_gpu.sh", (later, later))
    assert machine.run(start=make, cwd=machine.clone, DOCTOR_FAILS="1").returncode != 0
    assert sample not in machine.done()
