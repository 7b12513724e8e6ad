#!/usr/bin/env bash
# Install this package from its clone for the GPU of this machine, or for the CPU, and check the installation.
# `./install_gpu.sh --help` lists the options; docs/install.md explains them, and how to install by hand.

# This part works in every shell. `set -e` below would end a shell that sources the script.
# shellcheck disable=SC2128,SC2317
if [ "${BASH_SOURCE:-}" != "$0" ]; then
  echo "install_gpu.sh: error: run it with bash, and do not source it: ./install_gpu.sh" >&2
  return 2 2>/dev/null || exit 2
fi
set -euo pipefail # macOS has bash 3.2

usage() {
  cat <<'END'
usage: ./install_gpu.sh [--cuda13 | --cuda12 | --rocm | --cpu] [--extras NAMES] [--venv DIR] [--dry-run] [--help]

Find the GPU, install jax_von_mises with the matching JAX, then draw on every device and compare with the CPU.

  --cuda13, --cuda12, --rocm, --cpu    install for this platform, whatever the machine has
  --extras NAMES    further extras of pyproject.toml, separated by commas: --extras bench,storage
  --venv DIR        virtual environment, created by $PYTHON (default python3) if it is missing;
                    by default the active environment, or else .venv next to this script
  --dry-run         print what was found and chosen, and the commands; change nothing

The exit code is that of `jax-von-mises doctor`, 1 if an earlier step fails, and 2 for wrong options.
END
}

error() {
  printf 'install_gpu.sh: error: %s\n' "$2" >&2
  exit "$1"
}

# Print a command so that it can be pasted, then run it.
run() {
  local word line='' quote="'" escaped="'\\''"
  for word in "$@"; do
    case $word in *[!A-Za-z0-9_./=:,+-]*) word="'${word//$quote/$escaped}'" ;; esac
    line="$line $word"
  done
  printf '%s\n' "${line# }"
  $dry || "$@"
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
dry=false platform='' more='' venv=''
while [ $# -gt 0 ]; do
  case $1 in
    --cuda13 | --cuda12 | --rocm | --cpu) platform=${1#--} found="not looked for" ;;
    --venv | --extras)
      case ${2:-} in '' | -*) error 2 "$1 needs a value; see --help" ;; esac
      if [ "$1" = --venv ]; then venv=$2; else more=$more,$2; fi
      shift
      ;;
    --dry-run) dry=true ;;
    -h | --help) usage && exit ;;
    *) error 2 "unknown option $1; see --help" ;;
  esac
  shift
done

# Run a program with a time limit, since nvidia-smi can hang if the driver has lost a card.
ask() {
  local limit=''
  ! command -v timeout >/dev/null || limit="timeout -k 1 60"
  # shellcheck disable=SC2086
  $limit "$@" 2>&1 || { echo "exit code $?" && return 1; }
}

# Set what was `found` and the `platform` to install for; warn if there is a GPU that cannot be used.
find_gpu() {
  local text capability trouble='' pattern=$'(^|\n)(([0-9]+)\\.[0-9.]+)'
  platform=cpu found="no usable GPU"
  [ "$(uname -s)" = Linux ] || return 0
  PATH=$PATH:/usr/lib/wsl/lib:/opt/rocm/bin
  if command -v nvidia-smi >/dev/null; then
    text=$(ask nvidia-smi --query-gpu=driver_version --format=csv,noheader) || true
    if ! [[ $text =~ $pattern ]]; then # nvidia-smi prints errors to stdout too
      trouble="nvidia-smi fails (${text%%$'\n'*}); "
    elif [ "${BASH_REMATCH[3]}" -lt 525 ]; then
      trouble="NVIDIA driver ${BASH_REMATCH[2]} is too old: update it to 525 or newer; "
    else
      platform=cuda12 found="NVIDIA driver ${BASH_REMATCH[2]}"
      [ "${BASH_REMATCH[3]}" -lt 580 ] || platform=cuda13
      text=$(ask nvidia-smi --query-gpu=compute_cap --format=csv,noheader) || true
      found="$found, compute capability ${text//$'\n'/, }"
      while read -r capability; do # CUDA 13 needs 7.5 or more for every card
        case $capability in 7.[5-9]* | [89].* | [1-9][0-9].*) ;; *) platform=cuda12 ;; esac
      done <<<"$text"
      return
    fi
  fi
  if command -v rocminfo >/dev/null; then
    if ! text=$(ask rocminfo); then
      trouble="${trouble}rocminfo fails (${text%%$'\n'*}); "
    elif [[ $text =~ gfx[0-9a-f]+ ]]; then
      platform=rocm found="AMD ${BASH_REMATCH[0]}"
      return
    fi
  fi
  [ -z "$trouble" ] || echo "warning: ${trouble}this installs for the CPU" >&2
}

# Stop if a Python cannot be used; the second argument is the remedy.
need() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    error 1 "$1 does not start or is older than Python 3.11: $2"
}

[ -n "$platform" ] || find_gpu
extras=$platform$more
[ "$platform" != cpu ] || extras=${more#,}

conda=${CONDA_PREFIX:-}
[ "${CONDA_DEFAULT_ENV:-}" != base ] || conda='' # active in every shell, so nobody chose it
default=${VIRTUAL_ENV:-${conda:-$here/.venv}}
venv=${venv:-$default}
case $venv in /* | ?:*) ;; *) venv=$PWD/$venv ;; esac
python=$venv/bin/python
case $(uname -s) in MINGW* | MSYS* | CYGWIN*) python=$venv/Scripts/python.exe ;; esac
echo "# found: $found"
echo "# chosen: $platform, in $venv"

if [ -e "$venv/pyvenv.cfg" ] || [ -d "$venv/conda-meta" ]; then
  need "$python" "choose another environment with --venv DIR, or delete $venv"
  "$python" -m pip --version >/dev/null 2>&1 || run "$python" -m ensurepip # uv creates environments without pip
else
  [ ! -e "$venv" ] || error 1 "$venv exists and is not a virtual environment: choose another folder with --venv DIR"
  need "${PYTHON:-python3}" "choose another one: PYTHON=python3.12 ./install_gpu.sh"
  run "${PYTHON:-python3}" -m venv "$venv" || error 1 "$venv could not be created: see the output above"
fi
run cd "$here"
run "$python" -m pip install -e ".${extras:+[$extras]}" ||
  error 1 "pip could not install: see its output above"
run "${python%/*}/jax-von-mises" doctor --expect "${platform%1[23]}"
if [ "$venv" != "${VIRTUAL_ENV:-$conda}" ]; then
  echo "# to use it:" && dry=true
  run source "${python%/*}/activate"
fi
