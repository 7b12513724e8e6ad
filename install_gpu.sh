#!/usr/bin/env bash
# Install this package for the accelerator of this machine, then draw on it and compare with the CPU.
# `./install_gpu.sh --help` lists the options; docs/install.md explains them, and how to install by hand.

# This part works in every shell, since another shell may read it if the script is sourced or passed to sh.
if [ -z "${BASH_VERSION:-}" ]; then
  echo "install_gpu.sh: error: this is a script for bash: run ./install_gpu.sh" >&2
  # shellcheck disable=SC2317 # reached if the script is not sourced
  return 2 2>/dev/null || exit 2
elif [ "${BASH_SOURCE[0]:-}" != "$0" ]; then
  # `set -e` below would end the shell that sources this file.
  echo "install_gpu.sh: error: run it, do not source it: ./install_gpu.sh, from a clone" >&2
  # shellcheck disable=SC2317
  return 2 2>/dev/null || exit 2
fi

# macOS has bash 3.2, which lacks ${x,,} and mapfile, and rejects empty arrays under -u.
set -euo pipefail

usage() {
  cat <<'END'
usage: ./install_gpu.sh [--cuda12 | --cuda13 | --rocm | --cpu] [--extras NAMES] [--venv DIR] [--dry-run] [--help]

Install jax_von_mises from the folder of this script for the accelerator that it finds, then draw on every device and
compare with the CPU.

  --cuda12        NVIDIA: CUDA 12 (driver 525 or newer)
  --cuda13        NVIDIA: CUDA 13 (driver 580 or newer, cards of compute capability 7.5 or more: Turing and later)
  --rocm          AMD: ROCm 7, which must already be installed
  --cpu           no accelerator
  --extras NAMES  further extras of setup.cfg to install, separated by commas: --extras bench,docs
  --venv DIR      virtual environment to use, created if it is missing; by default the active one, or else .venv next
                  to this script
  --dry-run       print what was found and chosen, and the commands that would run; change nothing
  --help          print this text

Environment: PYTHON, the Python that creates the virtual environment (default python3); PROBE_SECONDS, the time limit
for nvidia-smi and rocminfo (default 30).
Exit codes: 0 installed and checked; 2 wrong usage; 1 anything else.
END
}

say() { printf '%s\n' "$*"; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() {
  printf 'install_gpu.sh: error: %s\n' "$*" >&2
  exit 1
}
misuse() {
  printf 'install_gpu.sh: error: %s; see --help\n' "$*" >&2
  exit 2
}

# Quote the arguments so that they can be pasted into a shell.
quoted() {
  local word line='' quote="'" escaped="'\\''"
  for word in "$@"; do
    case $word in
      '' | *[!A-Za-z0-9_./=:,+-]*) word="'${word//$quote/$escaped}'" ;;
    esac
    line="$line $word"
  done
  printf '%s' "${line# }"
}

progress() { $dry || say "$@"; }
run() {
  if $dry; then say "would run: $(quoted "$@")"; else "$@"; fi
}

# --- options -------------------------------------------------------------------------------------------------------

asked=
more=
venv=
dry=false

choose() {
  [ -z "$asked" ] || [ "$asked" = "$1" ] || misuse "--$asked and --$1 together: choose one"
  asked=$1
}

case ${PROBE_SECONDS:-30} in
  '' | *[!0-9.]* | *.*.* | .) misuse "PROBE_SECONDS=$PROBE_SECONDS is not a number of seconds" ;;
esac

while [ $# -gt 0 ]; do
  case $1 in
    --cuda12 | --cuda13 | --rocm | --cpu) choose "${1#--}" ;;
    --venv | --venv=*)
      [ -z "$venv" ] || misuse "--venv is given twice"
      if [ "$1" = --venv ]; then
        case ${2:-} in '' | --*) misuse "--venv needs a directory" ;; esac
        venv=$2
        shift
      else
        venv=${1#--venv=}
        [ -n "$venv" ] || misuse "--venv needs a directory"
      fi
      ;;
    --extras | --extras=*)
      [ -z "$more" ] || misuse "--extras is given twice: separate the names by commas"
      if [ "$1" = --extras ]; then
        case ${2:-} in '' | --*) misuse "--extras needs names, such as bench,docs" ;; esac
        more=$2
        shift
      else
        more=${1#--extras=}
        [ -n "$more" ] || misuse "--extras needs names, such as bench,docs"
      fi
      ;;
    --dry-run) dry=true ;;
    -h | --help)
      usage
      exit 0
      ;;
    *) misuse "unknown option $1" ;;
  esac
  shift
done

here=${BASH_SOURCE[0]%/*}
[ "$here" != "${BASH_SOURCE[0]}" ] || here=.
# With CDPATH, `cd` could change to another directory and print its name.
here=$(CDPATH='' cd -- "$here" >/dev/null && pwd -P)
[ -d "$here/jax_von_mises" ] || die "$here holds no jax_von_mises to install: run the script in its clone"

# List the extras of setup.cfg, without those of accelerators, which other options choose.
list_extras() {
  local line name inside=false found=
  while IFS= read -r line || [ -n "$line" ]; do
    case $line in
      '[options.extras_require]'*) inside=true ;;
      '['*) inside=false ;;
      [a-z]*=*)
        name=${line%%=*}
        name=${name%% *}
        case $name in cuda* | rocm | gpu-aot) continue ;; esac
        if $inside; then found="$found${found:+ }$name"; fi
        ;;
    esac
  done <"$here/setup.cfg"
  say "$found"
}

check_extras() {
  local name names there
  there=$(list_extras)
  case ,$more, in *,,* | *$'\n'*) misuse "--extras $more: give names of extras, separated by commas: $there" ;; esac
  IFS=, read -r -a names <<<"$more"
  for name in "${names[@]}"; do
    case $name in
      cuda* | rocm | gpu-aot) misuse "--extras $name: an accelerator is chosen by --cuda12, --cuda13 or --rocm" ;;
      '' | *[!a-z0-9-]*) misuse "--extras $more: give names of extras, separated by commas: $there" ;;
    esac
    case " $there " in
      *" $name "*) ;;
      *) misuse "--extras $more: there is no extra $name; choose from $there" ;;
    esac
  done
}

[ -z "$more" ] || check_extras

# --- detection -----------------------------------------------------------------------------------------------------

# The tests replace the machine's root directory.
root=${INSTALL_GPU_ROOT:-}

# Run a program with a time limit, since nvidia-smi can hang if the driver has lost a card.
probe() {
  if command -v timeout >/dev/null; then
    timeout -k 1 "${PROBE_SECONDS:-30}" "$@" 2>&1
  else
    "$@" 2>&1
  fi
}

# Print on one line why a program failed: the first line of its output, or its exit code.
reason() {
  local code=$1 text=$2 LC_ALL=C
  text=${text%%$'\n'*}
  text=${text//[![:print:]]/}
  if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
    say "gave no answer in ${PROBE_SECONDS:-30} s"
  elif [ -n "$text" ]; then
    say "printed: ${text:0:150}"
  else
    say "ended with exit code $code and no output"
  fi
}

driver=     # 580.65.06
major=0     # 580
cards=0     # number of cards that nvidia-smi lists
weakest=    # their lowest compute capability, times ten; empty if unknown for any card
strongest=  # their highest
cuda_note=  # why nvidia-smi reports no card

# Read lines of nvidia-smi such as "580.65.06, 9.0". Skip all others: nvidia-smi writes errors to stdout too, with any
# exit code.
read_cards() {
  local line capability pattern='^([0-9]+)\.[0-9.]+(, *(.*))?$' unknown=false
  while IFS= read -r line; do
    line=${line%$'\r'}
    [[ $line =~ $pattern ]] || continue
    major=${BASH_REMATCH[1]}
    driver=${line%%,*}
    capability=${BASH_REMATCH[3]:-}
    cards=$((cards + 1))
    if [[ $capability =~ ^[0-9]+\.[0-9]$ ]]; then
      capability=${capability/./}
      if [ -z "$weakest" ] || [ "$capability" -lt "$weakest" ]; then weakest=$capability; fi
      if [ -z "$strongest" ] || [ "$capability" -gt "$strongest" ]; then strongest=$capability; fi
    else
      unknown=true
    fi
  done
  if $unknown; then weakest='' strongest=''; fi
}

find_nvidia() {
  local smi text code=0 pattern=' ([0-9]+)\.([0-9.]+) '
  smi=$(command -v nvidia-smi || true)
  # On WSL, nvidia-smi is not on the path of every shell.
  if [ -z "$smi" ] && [ -x "$root/usr/lib/wsl/lib/nvidia-smi" ]; then smi=$root/usr/lib/wsl/lib/nvidia-smi; fi
  if [ -n "$smi" ]; then
    text=$(probe "$smi" --query-gpu=driver_version,compute_cap --format=csv,noheader) || code=$?
    read_cards <<<"$text"
    # Drivers before 510 do not know compute_cap. A program that hung once would probably hang again.
    if [ "$cards" -eq 0 ] && [ "$code" -ne 124 ] && [ "$code" -ne 137 ]; then
      code=0
      text=$(probe "$smi" --query-gpu=driver_version --format=csv,noheader) || code=$?
      read_cards <<<"$text"
    fi
    [ "$cards" -eq 0 ] || return 0
    cuda_note="nvidia-smi $(reason "$code" "$text")"
  else
    cuda_note="no nvidia-smi"
  fi
  # Ask the kernel. It reports the driver even in a container without GPUs, so look for a device too.
  if [ -r "$root/proc/driver/nvidia/version" ] && [[ $(<"$root/proc/driver/nvidia/version") =~ $pattern ]]; then
    set -- "$root"/dev/nvidia[0-9]*
    if [ -e "$1" ]; then
      major=${BASH_REMATCH[1]}
      driver=$major.${BASH_REMATCH[2]}
    else
      cuda_note="$cuda_note; a driver is loaded, but no /dev/nvidia0: was the container started without GPUs?"
    fi
  fi
}

rocm=false
rocm_old=false
rocm_note=  # the version, or why ROCm cannot be used

find_rocm() {
  local info text code=0 version=
  info=$(command -v rocminfo || true)
  if [ -z "$info" ] && [ -x "$root/opt/rocm/bin/rocminfo" ]; then info=$root/opt/rocm/bin/rocminfo; fi
  if [ -z "$info" ]; then
    rocm_note="no rocminfo"
    if [ -e "$root/dev/kfd" ]; then rocm_note="an AMD GPU, but no rocminfo: install ROCm 7 first"; fi
    return 0
  fi
  text=$(probe "$info") || code=$?
  if ! [[ $text =~ Device\ Type:\ +GPU ]]; then
    rocm_note="rocminfo lists no GPU"
    if [ "$code" -ne 0 ]; then rocm_note="rocminfo $(reason "$code" "$text")"; fi
    return 0
  fi
  rocm=true
  if [ -r "$root/opt/rocm/.info/version" ]; then read -r version <"$root/opt/rocm/.info/version" || true; fi
  rocm_note="ROCm${version:+ $version}"
  # JAX 0.10 and newer have wheels for ROCm 7 only.
  case $version in
    '' | 7.*) ;;
    *)
      rocm=false
      rocm_old=true
      rocm_note="ROCm $version, but JAX has wheels for ROCm 7 only"
      ;;
  esac
}

# --- choice --------------------------------------------------------------------------------------------------------

# Print 75 as 7.5.
decimal() { say "$(($1 / 10)).$(($1 % 10))"; }

# Set the driver and the compute capability that JAX's wheels for a release of CUDA need.
needs_of() {
  driver_needed=525 capability_needed=50
  if [ "$1" -eq 13 ]; then driver_needed=580 capability_needed=75; fi
}

# Print why a release of CUDA cannot be used; nothing if it supports the driver and all cards.
against_cuda() {
  needs_of "$1"
  if [ "$major" -lt "$driver_needed" ]; then
    say "CUDA $1 needs NVIDIA driver $driver_needed or newer"
  elif [ -n "$weakest" ] && [ "$weakest" -lt "$capability_needed" ]; then
    say "CUDA $1 needs cards of compute capability $(decimal "$capability_needed") or more"
  fi
}

describe_nvidia() {
  found="NVIDIA driver $driver"
  case $cards in
    0) found="$found, as the kernel reports ($cuda_note)" ;;
    1) found="$found, 1 GPU" ;;
    *) found="$found, $cards GPUs" ;;
  esac
  if [ -n "$weakest" ]; then
    found="$found of compute capability $(decimal "$weakest")"
    [ "$weakest" -eq "$strongest" ] || found="$found to $(decimal "$strongest")"
  fi
}

read -r system machine <<<"$(uname -sm)"
found=
why=
expect=$asked

case $system in
  MINGW* | MSYS* | CYGWIN*) die "$system: use WSL2, or install by hand as docs/install.md describes" ;;
esac

# Platforms for which wheels exist.
cuda_here=false
rocm_here=false
case $system-$machine in
  Linux-x86_64 | Linux-amd64) cuda_here=true rocm_here=true ;;
  Linux-aarch64 | Linux-arm64) cuda_here=true ;;
esac

case $asked in
  cpu)
    wanted=cpu
    found="not looked for"
    why="--cpu"
    ;;
  cuda*)
    wanted=$asked
    $cuda_here || die "--$asked: there are no CUDA wheels for $system on $machine; use --cpu"
    find_nvidia
    why="--$asked"
    expect=cuda
    if [ -n "$driver" ]; then
      describe_nvidia
      objection=$(against_cuda "${asked#cuda}")
      if [ -n "$objection" ]; then
        objection="--$asked: $objection, but this machine has $found"
        needs_of "${asked#cuda}"
        if [ "$major" -lt "$driver_needed" ] || [ "$strongest" -lt "$capability_needed" ]; then
          die "$objection; run without the option to choose automatically"
        fi
        warn "$objection; hide the other cards with CUDA_VISIBLE_DEVICES"
      fi
    else
      found="no NVIDIA GPU ($cuda_note)"
      warn "--$asked is installed as requested, but the final check needs a working GPU"
    fi
    ;;
  rocm)
    wanted=rocm
    $rocm_here || die "--rocm: there are no ROCm wheels for $system on $machine; use --cpu"
    find_rocm
    found=$rocm_note
    why="--rocm"
    if $rocm_old; then die "--rocm: this machine has $rocm_note"; fi
    if ! $rocm; then
      warn "--rocm is installed as requested, but the final check needs ROCm 7 and a working GPU"
    fi
    ;;
  *)
    wanted=cpu
    if $cuda_here; then find_nvidia; else cuda_note="no CUDA for $system on $machine"; fi
    if [ -n "$driver" ]; then
      describe_nvidia
      against12=$(against_cuda 12)
      against13=$(against_cuda 13)
      if [ -n "$against12" ]; then
        why=$against12
        [ "$major" -ge 525 ] || why="$why: update the driver to use the GPU"
      elif [ -n "$against13" ]; then
        wanted=cuda12
        why=$against13
      elif [ -z "$weakest" ] && [ "$major" -lt 590 ]; then
        # Drivers before 590 also support cards older than Turing.
        wanted=cuda12
        why="it supports every card of this driver, and the card is unknown; for Turing or later give --cuda13"
      else
        wanted=cuda13
        why="it supports the driver and all cards"
      fi
    fi
    if [ "$wanted" = cpu ]; then
      if $rocm_here; then find_rocm; else rocm_note="no ROCm for $system on $machine"; fi
      if $rocm; then
        wanted=rocm
        why="an AMD GPU${found:+, and no usable NVIDIA GPU}"
        found="$rocm_note${found:+; $found}"
      elif [ -z "$found" ]; then
        found="no usable GPU ($cuda_note; $rocm_note)"
        why="run this again once a GPU works"
      fi
    fi
    case $wanted in
      cuda*) expect=cuda ;;
      rocm) expect=rocm ;;
    esac
    ;;
esac

case $wanted in
  cpu) name="the CPU" extras=cli ;;
  cuda*) name="CUDA ${wanted#cuda}" extras=cli,$wanted ;;
  rocm) name="ROCm 7" extras=cli,rocm ;;
esac
extras=$extras${more:+,$more}
say "found: $found"
say "chosen: $name ($why)"

# Warn about CUDA libraries on LD_LIBRARY_PATH, which take precedence over those that come with JAX.
warn_of_shadows() {
  local directories directory file names
  IFS=':;' read -r -a directories <<<"${LD_LIBRARY_PATH:-}:"
  for directory in ${directories[@]+"${directories[@]}"}; do
    [ -n "$directory" ] || continue
    names=
    for file in "$directory"/lib{cudart,cu{dnn,blas,fft,solver,sparse,pti},nccl,nvrtc,nvJitLink,nvshmem}*.so*; do
      [ -e "$file" ] || continue
      file=${file##*/}
      file=${file%%[._]*}
      case ", $names," in *", $file,"*) ;; *) names="${names:+$names, }$file" ;; esac
    done
    if [ -n "$names" ]; then
      warn "LD_LIBRARY_PATH holds $directory, and JAX can load $names from there instead of its own copies:" \
        "remove the directory, or unset LD_LIBRARY_PATH"
    fi
  done
}

case $wanted in cuda*) warn_of_shadows ;; esac

# --- the virtual environment ---------------------------------------------------------------------------------------

# pip writes the package's metadata into this folder.
[ -w "$here" ] || die "$here cannot be written: clone into a folder that you can write to"
python=${PYTHON:-python3}

if [ -n "$venv" ]; then
  case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
  whose="named by --venv"
elif [ -n "${VIRTUAL_ENV:-}" ]; then
  venv=$VIRTUAL_ENV
  whose="active"
  [ -d "$venv" ] || die "VIRTUAL_ENV names $venv, which does not exist: run deactivate, or give --venv DIR"
elif [ -n "${CONDA_PREFIX:-}" ] && [ "${CONDA_DEFAULT_ENV:-}" != base ]; then
  # conda's base environment is excluded: it is active in every shell by default, so nobody chose it.
  venv=$CONDA_PREFIX
  whose="active in conda"
  [ -d "$venv" ] || die "CONDA_PREFIX names $venv, which does not exist: run conda deactivate, or give --venv DIR"
else
  venv=$here/.venv
  whose="next to the script"
fi
while [ "$venv" != / ] && [ "$venv" != "${venv%/}" ]; do venv=${venv%/}; done

# Print the version of a Python, such as "3.11", or nothing if it does not start, as with some of pyenv's shims.
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }

new_enough() {
  local version=$1
  [ "${version%%.*}" -gt 3 ] || { [ "${version%%.*}" -eq 3 ] && [ "${version#*.}" -ge 11 ]; }
}

# Print what to do if a Python cannot be used.
another_python() {
  local candidate version
  for candidate in python3.13 python3.12 python3.11 python3.14 python3; do
    version=$(version_of "$candidate")
    if [ -n "$version" ] && new_enough "$version"; then
      say "run PYTHON=$candidate ./install_gpu.sh"
      return
    fi
  done
  say "install one, and run PYTHON=python3.12 ./install_gpu.sh"
}

make_venv() {
  local version parent
  version=$(version_of "$python")
  [ -n "$version" ] || die "$python does not start, and Python 3.11 or newer is needed: $(another_python)"
  new_enough "$version" || die "$python is Python $version, and 3.11 or newer is needed: $(another_python)"
  "$python" -c 'import venv, ensurepip' 2>/dev/null ||
    die "$python lacks venv or ensurepip: install them (Debian, Ubuntu: apt install python$version-venv)," \
      "or give another Python: PYTHON=python3.12 ./install_gpu.sh"
  parent=$venv
  while [ ! -e "$parent" ]; do
    parent=${parent%/*}
    [ -n "$parent" ] || parent=/
  done
  [ -d "$parent" ] || die "$venv cannot be created: $parent is not a directory"
  [ -w "$parent" ] || die "$venv cannot be created: $parent cannot be written; give another directory: --venv DIR"
  say "environment: $venv ($whose), created by $python, Python $version"
  run "$python" -m venv "$venv" || die "$python -m venv failed: see its output above"
}

if [ ! -e "$venv" ] && [ ! -L "$venv" ]; then
  make_venv
  is_new=true
else
  is_new=false
  if [ ! -d "$venv" ]; then die "$venv is not a directory: give another one with --venv DIR"; fi
  if [ ! -e "$venv/pyvenv.cfg" ] && [ ! -d "$venv/conda-meta" ]; then
    die "$venv exists and is not a virtual environment: give another one, or a new directory, with --venv DIR"
  fi
  [ -w "$venv" ] || die "$venv cannot be written: give another one with --venv DIR"
  if [ ! -e "$venv/bin/python" ] && [ ! -L "$venv/bin/python" ]; then
    # The creation of the environment was interrupted before it had a Python.
    make_venv
    is_new=true
  else
    version=$(version_of "$venv/bin/python")
    [ -n "$version" ] || die "$venv/bin/python does not start: delete $venv and run this again"
    new_enough "$version" ||
      die "$venv has Python $version, and 3.11 or newer is needed: delete it or give --venv DIR, and $(another_python)"
    say "environment: $venv ($whose), Python $version"
    if [ -n "${PYTHON:-}" ] && [ "$(version_of "$PYTHON")" != "$version" ]; then
      warn "PYTHON=$PYTHON has another version, and the environment keeps its Python: to change it, delete $venv first"
    fi
  fi
fi
env_python=$venv/bin/python

if [ -n "${SUDO_USER:-}" ] && [ "$EUID" -eq 0 ]; then
  warn "under sudo the new files belong to root; no step needs sudo"
fi

if ! $is_new && ! "$env_python" -m pip --version >/dev/null 2>&1; then
  say "$venv has no working pip: adding it"
  run "$env_python" -m ensurepip --upgrade --default-pip ||
    die "$venv has no working pip, and it cannot be added: delete $venv and run this again, or give --venv DIR"
fi

# --- plugins for other accelerators --------------------------------------------------------------------------------

# JAX loads all installed plugins, in no fixed order, and may combine a plugin with the kernels of another. NVIDIA's
# wheels for CUDA 12 and 13 write cuDNN, NCCL and NVSHMEM into the same folders, so uninstalling one after installing
# the other deletes shared files. Other plugins are therefore removed first, with their dependencies, and wheels that
# share a folder are installed again. The program below prints "remove WHEEL ...", or, if another package or conda needs
# a wheel, "needed WHEEL by PACKAGE"; nothing is then removed.
others='
import re, sys
from importlib.metadata import distributions

def name(text):
    return re.sub("[-_.]+", "-", re.match("[A-Za-z0-9._-]+", text)[0]).lower()

wanted = sys.argv[1]
there = {name(dist.metadata["Name"]): dist for dist in distributions() if dist.metadata["Name"]}
remove, shared = set(), set()
for wheel, dist in there.items():
    plugin = re.fullmatch("jax-((?:cuda|rocm)[0-9]+)-(plugin|pjrt)", wheel)
    library = re.fullmatch("nvidia-(.+)-cu([0-9]+)", wheel)
    if plugin and not plugin[1].startswith(wanted):
        remove.add(wheel)
    elif library and wanted.startswith("cuda") and library[2] != wanted[4:]:
        remove.add(wheel)
known = list(remove) if wanted.startswith("cuda") else []
for wheel in known:
    brought = {name(line) for line in there[wheel].requires or () if line.startswith("nvidia")} & there.keys()
    known += brought - remove
    remove |= brought
for wheel in remove:
    library = re.fullmatch("nvidia-(.+)-cu[0-9]+", wheel)
    if library:
        shared.add("nvidia-" + library[1] + "-cu" + wanted[4:])
needed = sorted(
    (name(line), package)
    for package, dist in there.items() if package not in remove
    for line in dist.requires or () if name(line) in remove and "extra" not in line.partition(";")[2]
)
needed += sorted((wheel, "conda") for wheel in remove if (there[wheel].read_text("INSTALLER") or "").strip() == "conda")
if needed:
    print("needed", needed[0][0], "by", needed[0][1])
elif remove:
    print("remove", *sorted(remove | (shared & there.keys())))
'

# If no accelerator was found and none was requested, keep the installed packages, since a driver may fail temporarily.
if ! $is_new && [ -n "$expect" ]; then
  answer=$("$env_python" -c "$others" "$wanted") ||
    die "$env_python could not list the installed packages: see its output above"
  case $answer in
    needed*) die "${answer#needed } in $venv conflicts with $name: use another environment, with --venv DIR" ;;
    remove*)
      read -r -a wheels <<<"${answer#remove }"
      say "the environment holds plugins for another accelerator: packages that conflict with $name are removed first"
      progress "removing ${wheels[*]}"
      run "$env_python" -m pip uninstall -q -y "${wheels[@]}" || die "pip could not remove them: see its output above"
      ;;
  esac
fi

# --- install and check ---------------------------------------------------------------------------------------------

case $wanted in
  cuda*) progress "installing for $name${more:+ with $more}: the first time this downloads about three gigabytes" ;;
  *) progress "installing for $name${more:+ with $more}" ;;
esac
cd -- "$here"
run "$env_python" -m pip install -q --disable-pip-version-check -e ".[$extras]" ||
  die "pip could not install: see its output above; without a network see docs/install.md"

progress "drawing on every device and comparing with the CPU"
# If the CPU was chosen for lack of a usable GPU, the check expects the CPU.
judged=$expect
if [ "$wanted" = cpu ]; then judged=cpu; fi
run "$venv/bin/jax-von-mises" doctor --expect "$judged" ||
  die "installed, but the check failed: see its output above, and docs/install.md"

if [ "$whose" = active ] || [ ! -e "$venv/bin/activate" ]; then
  progress "ready: jax-von-mises sample --help"
else
  progress "ready: source $(quoted "$venv/bin/activate"), then jax-von-mises sample --help"
fi
