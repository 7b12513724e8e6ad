"""Test the audit of dependencies with a stand-in for pip-audit: a package that was not looked up never passes."""

import json
import os
import sys

import pytest

from tools import audit

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the stand-in is a script, which needs POSIX")

CLEAN = {"name": "numpy", "version": "2.0.0", "vulns": []}
HOLE = {"name": "numpy", "version": "2.0.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.0.1"], "description": ""}]}
SKIPPED = {"name": "numpy", "skip_reason": "Dependency not found on PyPI and could not be audited: numpy (2.0.0)"}
PARTLY = "NOT FULLY AUDITED: "


def stand_in(tmp_path, script):
    path = tmp_path / "pip-audit"
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(0o755)
    return path


def reporting(tmp_path, *dependencies):
    return stand_in(tmp_path, f"print({json.dumps({'dependencies': dependencies})!r})")


def test_clean(tmp_path, capsys):
    assert audit.main(["numpy==2.0.0", "# a remark", ""], reporting(tmp_path, CLEAN)) == 0
    assert capsys.readouterr().out == "1 of 1 packages were looked up; 0 known vulnerabilities found\n"


def test_a_vulnerability(tmp_path, capsys):
    assert audit.main(["numpy==2.0.0", "own @ file:///x"], reporting(tmp_path, HOLE)) == 1
    output = capsys.readouterr().out
    assert "numpy 2.0.0: PYSEC-1, fixed in: 2.0.1" in output
    assert "not audited: own @ file:///x: not a pinned release" in output


@pytest.mark.parametrize(
    ("requirements", "dependencies", "words", "verdict"),
    [
        # If a mirror answers instead of the database, pip-audit itself reports success.
        (["numpy==2.0.0"], [SKIPPED], "not audited: numpy: Dependency not found on PyPI", PARTLY),
        (["numpy==2.0.0", "Jax_Lib==1"], [CLEAN], "not audited: Jax_Lib==1: pip-audit does not report it", PARTLY),
        (["numpy==2.0.0", "x @ file:///x"], [CLEAN], "not audited: x @ file:///x", PARTLY),
        ([], [], "there are no pinned requirements", "NOT AUDITED: "),
    ],
)
def test_packages_not_looked_up(tmp_path, capsys, requirements, dependencies, words, verdict):
    assert audit.main(requirements, reporting(tmp_path, *dependencies)) == 2
    output = capsys.readouterr().out
    assert words in output
    assert verdict in output


def test_service_that_cannot_be_reached(tmp_path, capsys):
    script = "import sys\nsys.exit('ConnectionError: Failed to resolve pypi.org')"
    assert audit.main(["numpy==2.0.0"], stand_in(tmp_path, script)) == 2
    assert "NOT AUDITED: pip-audit gave no answer: ConnectionError: Failed to resolve" in capsys.readouterr().out
    assert audit.main(["numpy==2.0.0"], tmp_path / "nothing") == 2
    assert "does not start" in capsys.readouterr().out


def test_request(tmp_path):
    """The request covers only pinned releases, and pip-audit neither resolves nor installs anything."""
    request = tmp_path / "request"
    script = f"""
import sys
arguments = sys.argv[1:]
open({str(request)!r}, "w").write(open(arguments[arguments.index("-r") + 1]).read() + " ".join(arguments))
print('{{"dependencies": []}}')
"""
    audit.main(["numpy==2.0.0", "-e git+https://x"], stand_in(tmp_path, script))
    text = request.read_text()
    assert text.startswith("numpy==2.0.0\n-r")
    assert "--no-deps --disable-pip --format json" in text
