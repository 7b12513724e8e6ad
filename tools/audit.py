"""Check dependencies for known vulnerabilities with pip-audit; report packages that could not be looked up.

``pip freeze --exclude-editable | python -m tools.audit`` reads pinned requirements and looks them up with pip-audit. If
a package cannot be looked up, pip-audit alone prints "No known vulnerabilities found" and exits with code 0.

Exit codes: 0 if every package was looked up and none has a known vulnerability, 1 if any package has one, and 2 if no
vulnerability was found but some or all packages could not be looked up.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["main"]

PATIENCE = 600  # seconds
# The program in the environment of this Python.
PIP_AUDIT = Path(sys.executable).with_name("pip-audit")


class Unknown(Exception):
    """pip-audit gave no information about any package."""


def asked(requirements, program):
    """Return pip-audit's findings, one dictionary for each requirement."""
    handle, name = tempfile.mkstemp(suffix=".txt")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write("\n".join(requirements) + "\n")
        command = [program, "-r", name, "--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except OSError as error:
        raise Unknown(f"{program} does not start: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise Unknown(f"pip-audit did not finish within {PATIENCE} s") from error
    finally:
        os.unlink(name)
    try:
        return json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError) as error:
        reason = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise Unknown(f"pip-audit gave no answer: {reason}") from error


def main(requirements=None, program=PIP_AUDIT):
    """Audit requirements, by default those from standard input, and return the exit code."""
    lines = sys.stdin.read().splitlines() if requirements is None else requirements
    pinned = [line.strip() for line in lines if "==" in line and not line.startswith(("#", "-"))]
    others = [line.strip() for line in lines if line.strip() and "==" not in line and not line.startswith("#")]
    try:
        if not pinned:
            raise Unknown("there are no pinned requirements")
        found = asked(pinned, program)
    except Unknown as reason:
        print(f"NOT AUDITED: {reason}")
        return 2
    known = {each["name"]: each.get("vulns") for each in found}
    holes = [(each["name"], each["version"], hole) for each in found for hole in each.get("vulns") or ()]
    for name, version, hole in holes:
        fixed = ", ".join(hole.get("fix_versions") or ["none yet"])
        print(f"{name} {version}: {hole['id']}, fixed in: {fixed}")
    skipped = [f"{each['name']}: {each['skip_reason']}" for each in found if each.get("vulns") is None]
    names = {line.split("==")[0].strip().lower().replace("_", "-"): line for line in pinned}
    detail = {name.lower().replace("_", "-") for name in known}
    skipped += [f"{line}: pip-audit does not report it" for name, line in names.items() if name not in detail]
    skipped += [f"{line}: not a pinned release" for line in others]
    for line in skipped:
        print(f"not audited: {line}")
    count = len(found) - sum(each.get("vulns") is None for each in found)
    print(f"{count} of {len(pinned) + len(others)} packages were looked up; {len(holes)} known vulnerabilities found")
    if holes:
        return 1
    if skipped:
        print("NOT FULLY AUDITED: pin all requirements, and repeat where the vulnerability database can be reached")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
