"""Test the choices, commands and errors of install_gpu.sh.

Besides basic tools, the script finds only stand-ins for nvidia-smi, rocminfo, uname and Python. The stand-in for Python
creates environments with a copy of itself, and logs the other commands.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jax_von_mises.runtime import doctor

ROOT = Path(__file__).parents[2]
BASH, SH = shutil.which("bash"), shutil.which("sh")
pytestmark = pytest.mark.skipif(not BASH or os.name != "posix", reason="needs bash on POSIX")

# The versions of Python, $MINOR, and of an environment's Python, $ENV_MINOR, are set by the tests.
PYTHON = f"""here=${{0%/*}}
minor=${{MINOR:-11}}
[ ! -e "$here/../made" ] || minor=${{ENV_MINOR:-11}}
if [ "$1" = -c ]; then exec {sys.executable} -S -c "import sys; sys.version_info = (3, $minor, 2); $2"; fi
echo "${{0##*/}} $*" >> "$LOG"
case "$2 $3" in
  venv*)
    [ -z "${{VENV_FAILS:-}}" ] || exit 7
    mkdir -p "$3/bin"
    touch "$3/pyvenv.cfg" "$3/made"
    cp "$here/python3" "$3/bin/python"
    cp "$here/stand-in-command" "$3/bin/jax-von-mises" ;;
  'pip --version') exit "${{PIP_MISSING:-0}}" ;;
  'pip install') pwd >> "$LOG"; exit "${{PIP_FAILS:-0}}" ;;
esac
"""
COMMAND = 'echo "${0##*/} $*" >> "$LOG"; exit "${DOCTOR:-0}"'


class Machine:
    """A clone, and a folder `bin` with all programs that the script finds."""

    def __init__(self, path):
        self.path, self.clone, self.bin, self.log = path, path / "the clone", path / "bin", path / "log"
        self.clone.mkdir()
        self.bin.mkdir()
        for name in ("install_gpu.sh", "setup.cfg", "pyproject.toml", "Makefile"):
            shutil.copy(ROOT / name, self.clone)
        for name in filter(shutil.which, ("bash", "sh", "cat", "cp", "dirname", "mkdir", "timeout", "touch")):
            (self.bin / name).symlink_to(shutil.which(name))
        for name, text in (("python3", PYTHON), ("stand-in-command", COMMAND), ("uname", "echo Linux")):
            self.program(name, text)
        self.gpus("")

    def program(self, name, text):
        """Make a program for sh."""
        (self.bin / name).write_text(f"#!{SH}\n{text}\n")
        (self.bin / name).chmod(0o755)

    def gpus(self, driver, capabilities="", agents=""):
        """Make nvidia-smi, unless `driver` is empty, and rocminfo; text with "ailed" comes with an exit code."""
        for name, text, cases in (
            ("nvidia-smi", driver, f'*driver_version*) echo "{driver}" ;; *compute_cap*) echo "{capabilities}" ;;'),
            ("rocminfo", "and hide one in /opt/rocm" + agents, f'"") echo "{agents}" ;;'),
        ):
            if text:
                self.program(name, f'case "$*" in {cases} *) exit 2 ;; esac\nexit {9 * ("ailed" in text)}')

    def run(self, *options, start=None, cwd=None, **environment):
        """Run the script; `start` replaces the command before the options."""
        self.log.write_text("")
        command = [*(start or [BASH, self.clone / "install_gpu.sh"]), *options]
        variables = {"PATH": self.bin, "LOG": self.log, "HOME": self.path, "LC_ALL": "C"} | environment
        env = {name: str(value) for name, value in variables.items()}
        return subprocess.run(command, cwd=cwd or self.path, env=env, capture_output=True, text=True, timeout=60)

    def done(self):
        """Return the commands that ran, as the stand-ins logged them."""
        return self.log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def failed(process, message, code=1):
    """Assert the exit code, and that stderr is one line: an error with this message."""
    assert process.returncode == code, process
    assert process.stderr.startswith("install_gpu.sh: error: ")
    assert message in process.stderr
    assert process.stderr.count("\n") == 1


FIRST, SECOND, LEAST = doctor.DRIVERS[12], doctor.DRIVERS[13], 7.5
AMD = "Agent 1\n  Name:  AMD Ryzen\nAgent 2\n  Name:  gfx90a"
# Answers of uname, nvidia-smi (driver, compute capabilities) and rocminfo; platform; words of the result or warning.
MACHINES = [
    ("Linux", "", "", "", "cpu", "no usable GPU"),
    ("MINGW64_NT-10.0", "580.65.06", "9.0", AMD, "cpu", "no usable GPU"),
    (
        "Linux",
        f"{FIRST - 1}.99",
        "8.0",
        "",
        "cpu",
        f"too old: update it to {FIRST} or newer; this installs for the CPU",
    ),
    ("Linux", f"{FIRST}.60.13", "8.0", "", "cuda12", f"NVIDIA driver {FIRST}.60.13, compute capability 8.0"),
    ("Linux", f"{SECOND - 1}.99", "9.0", "", "cuda12", f"NVIDIA driver {SECOND - 1}.99"),
    ("Linux", f"WARNING: bad ROM\n{SECOND}.65.06\r", f"{LEAST}\r", "", "cuda13", f"driver {SECOND}.65.06, compute"),
    ("Linux", "580.65.06", f"9.0\n{round(LEAST - 0.1, 1)}", "", "cuda12", "capability 9.0, 7.4"),
    ("Linux", "580.65.06", "[N/A]", "", "cuda12", "capability [N/A]"),
    ("Linux", "NVIDIA-SMI has failed.\nMake sure", "", "", "cpu", "warning: nvidia-smi fails (NVIDIA-SMI has failed.)"),
    ("Linux", "470.82", "3.7", AMD, "rocm", "AMD gfx90a"),
    ("Linux", "470.82", "3.7", "Failed", "cpu", "or newer; rocminfo fails (Failed); this installs for the CPU"),
]


@pytest.mark.parametrize(("system", "driver", "capabilities", "agents", "platform", "says"), MACHINES)
def test_machines(machine, system, driver, capabilities, agents, platform, says):
    """A dry run prints what was found and chosen, and commands that can be pasted; it changes nothing."""
    machine.program("uname", f"echo {system}")
    machine.gpus(driver, capabilities, agents)
    before = set(machine.path.rglob("*"))
    process = machine.run("--dry-run", "--venv", "it's here", "--extras", "bench,storage")
    assert process.returncode == 0, process.stderr
    assert machine.done() == []
    assert set(machine.path.rglob("*")) - {machine.log} == before
    found, chosen, *commands = process.stdout.split("\n")
    warned = "too old" in says or "fails" in says
    assert says in (process.stderr if warned else found)
    assert process.stderr.count("\n") == warned
    assert chosen == f"# chosen: {platform}, in {machine.path}/it's here"
    place = f"'{machine.path}/it'\\''s here"
    bin, exe = ("Scripts", ".exe") if system.startswith("MINGW") else ("bin", "")
    extras = "bench,storage" if platform == "cpu" else f"{platform},bench,storage"
    expected = f"""python3 -m venv {place}'
cd '{machine.clone}'
{place}/{bin}/python{exe}' -m pip install -e '.[{extras}]'
{place}/{bin}/jax-von-mises' doctor --expect {platform.rstrip("123")}
# to use it:
source {place}/{bin}/activate'
"""
    assert "\n".join(commands) == expected


def test_hanging_nvidia_smi(machine):
    machine.gpus("580.65.06", "9.0")
    (machine.bin / "timeout").unlink(missing_ok=True)
    assert "# chosen: cuda13" in machine.run("--dry-run").stdout  # macOS and some small systems have no `timeout`
    machine.program("timeout", '[ "$4" = rocminfo ] || exit 124')
    assert "nvidia-smi fails (exit code 124); this installs for the CPU" in machine.run("--dry-run").stderr


def test_requested_platform(machine):
    machine.gpus("570.1", "9.0")
    for option in ("cuda13", "cuda12", "rocm", "cpu"):
        printed = machine.run("--dry-run", f"--{option}").stdout
        assert ("-e .\n" if option == "cpu" else f"-e '.[{option}]'\n") in printed
        assert f"--expect {option.rstrip('123')}\n" in printed


def test_environments(machine):
    """--venv comes first, then the active environment, except conda's base, then .venv of the clone."""
    active, conda, own = machine.path / "active", machine.path / "conda", machine.clone / ".venv"
    for place in (active, conda):
        machine.run(start=[machine.bin / "python3", "-m", "venv", place])
    (conda / "pyvenv.cfg").unlink()
    (conda / "conda-meta").mkdir()
    both = {"VIRTUAL_ENV": active, "CONDA_PREFIX": conda, "CONDA_DEFAULT_ENV": "work"}
    install = ["python -m pip install -e .", str(machine.clone), "jax-von-mises doctor --expect cpu"]
    for options, variables, place in (
        (("--venv", "new"), both, machine.path / "new"),
        (("--venv", "new"), {}, machine.path / "new"),
        ((), both, active),
        ((), {"CONDA_PREFIX": conda}, conda),
        ((), {"CONDA_PREFIX": conda, "CONDA_DEFAULT_ENV": "base"}, own),
    ):
        first = "python -m pip --version" if place.exists() else f"python3 -m venv {place}"
        process = machine.run(*options, start=[BASH, "the clone/install_gpu.sh"], CDPATH=machine.path, **variables)
        assert process.returncode == 0, process.stderr
        assert machine.done() == [first, *install]
        assert f"# chosen: cpu, in {place}\n" in process.stdout
        assert ("# to use it:" in process.stdout) == (place not in (active, conda))
    assert machine.run(PIP_MISSING=1).returncode == 0
    assert "python -m ensurepip" in machine.done()


def test_python(machine):
    """The script uses $PYTHON, or else python3, and requires version 3.11."""
    shutil.copy(machine.bin / "python3", machine.bin / "python3.12")
    assert machine.run("--venv", "a", PYTHON="python3.12", MINOR=12).returncode == 0
    assert machine.done()[0].startswith("python3.12 -m venv")
    failed(machine.run(MINOR=10), "python3 does not start or is older than Python 3.11: choose another one: PYTHON=")
    failed(machine.run(PYTHON="python9"), "python9 does not start")
    failed(machine.run("--venv", "a", ENV_MINOR=10), f"{machine.path}/a/bin/python does not start or is older than")
    failed(machine.run("--venv", "bin"), f"{machine.path}/bin exists and is not a virtual environment")
    assert machine.done() == []


def test_failing_steps(machine):
    failed(machine.run(VENV_FAILS=1), ".venv could not be created: see the output above")
    failed(machine.run(PIP_FAILS=3), "pip could not install: see its output above")
    assert not any("doctor" in line for line in machine.done())
    assert machine.run(DOCTOR=5).returncode == 5


def test_misuse(machine):
    for options in (("--cuda",), ("",), ("--venv",), ("--extras", "--cpu"), ("--venv", "")):
        process = machine.run(*options)
        failed(process, f"unknown option {options[0]};" if options[0] in ("", "--cuda") else "needs a value", code=2)
        assert process.stdout == ""
        assert machine.done() == []


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_sourced(machine, shell):
    """A script that is sourced, or read from standard input, only prints an error; a sourcing shell continues."""
    script = machine.clone / "install_gpu.sh"
    process = machine.run(start=[shutil.which(shell), "-c", f'. "{script}"; echo "alive, $?"'])
    assert process.stdout == "alive, 2\n"
    assert process.stderr.count("\n") == 1
    process = machine.run(start=[shutil.which(shell), "-c", f'{shell} < "{script}"; echo "ended, $?"'])
    assert process.stdout == "ended, 2\n"
    assert machine.done() == []


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_make_sample(machine):
    """`make sample` installs into .venv, even if another environment is active; PYTHON= selects the Python."""
    shutil.copy(machine.bin / "python3", machine.bin / "python3.12")
    make = [shutil.which("make"), "-s", "sample", "PYTHON=python3.12", "SIZE=10"]
    sample = "jax-von-mises sample --concentration 4 --size 10 --out samples.npy --resume"
    assert machine.run(start=make, cwd=machine.clone, VIRTUAL_ENV=machine.path).returncode == 0
    done = machine.done()
    assert done[0] == f"python3.12 -m venv {machine.clone}/.venv"
    assert done[-2:] == ["jax-von-mises doctor --expect cpu", sample]
    (machine.clone / ".venv" / "installed").unlink()
    assert machine.run(start=make, cwd=machine.clone, DOCTOR=1).returncode != 0
    assert sample not in machine.done()
