"""Test that the compilation cache serves later processes, excludes other users, and names a bad path."""

import json
import os
import shutil
import stat
import sys
from pathlib import Path

import jax
import pytest

from jax_von_mises import initialize_compilation_cache, runtime, sample_von_mises
from tests import children

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="needs POSIX modes and owners"),
    pytest.mark.usefixtures("no_cache"),
]


@pytest.fixture
def place(tmp_path):
    return tmp_path / "cache"


DRAW = """
import json, os, sys
os.umask(0)
import jax
from jax_von_mises import initialize_compilation_cache, runtime, sample_von_mises
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
key = jax.random.key(1)
if "late" in sys.argv:
    sample_von_mises(key, 0.0, 2.0, (77,))
    initialize_compilation_cache(f"{sys.argv[1]}-other")
    sample_von_mises(key, 0.0, 2.0, (78,))  # JAX then has another cache open
events.clear()
initialize_compilation_cache(sys.argv[1])
x = sample_von_mises(key, 0.0, 4.0, (1000,))
count = lambda name: events.count(f"/jax/compilation_cache/{name}")
print(json.dumps([float(x[0]), count("compile_requests_use_cache"), count("cache_hits"), *runtime.cache_info()]))
"""


def test_programs_are_kept(place):
    """Each program that is compiled is kept and counted, and those that are found add nothing."""
    initialize_compilation_cache(place)
    key, counts = jax.random.key(1), []
    for _ in range(2):
        jax.clear_caches()
        sample_von_mises(key, 0.0, 4.0, (8,))
        programs = list(place.glob("*-cache"))
        counts.append(len(programs))
        assert runtime.cache_info() == (str(place), len(programs), sum(each.stat().st_size for each in programs))
    assert counts[0] == counts[1] >= 1


@pytest.mark.more
def test_later_processes_find_what_earlier_ones_compiled(place):
    """Later processes find programs, even if they turn the cache on late or change it, and the directory is private."""
    angle, requests, hits, path, entries, size = json.loads(children.run(DRAW, place)[0])
    assert (path, hits) == (str(place), 0)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert entries == len(list(place.glob("*-cache"))) >= 1
    assert requests == entries
    assert size == sum(program.stat().st_size for program in place.glob("*-cache"))
    again, requests, hits, *found = json.loads(children.run(DRAW, place, "late")[0])
    assert again == angle
    assert hits == requests >= 1
    assert found == [path, entries, size]


def test_default_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    default = tmp_path / "xdg/jax_von_mises/compiled"
    assert initialize_compilation_cache() == (str(default), 0, 0)
    assert stat.S_IMODE(default.stat().st_mode) == 0o700
    # JAX's own setting has priority.
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "other"))
    assert initialize_compilation_cache().path == str(tmp_path / "other")
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, according to the XDG standard
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr("sys.platform", "linux")
    assert initialize_compilation_cache().path == str(tmp_path / ".cache/jax_von_mises/compiled")


def test_unusable_default_directory(tmp_path, monkeypatch):
    """An unusable default directory causes only a warning, since the user did not choose it."""

    def nobody():
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match=r"file/\S+ cannot be created \(Not a directory\), so there is no cache"):
        assert initialize_compilation_cache() == (None, 0, 0)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", nobody)
    with pytest.warns(RuntimeWarning, match="there is no home directory"):
        assert initialize_compilation_cache().path is None


def test_bad_paths(place):
    place.touch()
    for path, reason in ((place, "File exists"), (place / "below", "Not a directory")):
        with pytest.raises(OSError, match=f"{path} cannot be created .{reason}.. Give the path of a directory"):
            initialize_compilation_cache(path)
    with pytest.raises(OSError, match="File name too long"):
        initialize_compilation_cache("a" * 999)
    with pytest.raises(ValueError, match="path='' must be the name of a directory"):
        initialize_compilation_cache("")
    assert jax.config.jax_compilation_cache_dir is None


# Any user who can write to a cache can run programs as its owner.


def test_writable_by_others(place):
    place.mkdir()
    for mode in (0o777, 0o770, 0o1777, 0o703):
        place.chmod(mode)
        with pytest.raises(PermissionError, match=rf"others can write to {place} \(mode {mode:04o}\).*executable code"):
            initialize_compilation_cache(place)
        assert jax.config.jax_compilation_cache_dir is None
    assert initialize_compilation_cache(place, allow_shared=True).path == str(place)
    place.chmod(0o755)
    assert initialize_compilation_cache(place).path == str(place)


def test_owner(place, monkeypatch):
    place.mkdir()
    if os.getuid() == 0:
        os.chown(place, 54321, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(PermissionError, match="belongs to another user"):
        initialize_compilation_cache(place)


def test_link_to_the_directory(place):
    """A link is resolved, since the directory behind it was checked."""
    place.mkdir(mode=0o700)
    link = place.parent / "link"
    link.symlink_to(place)
    assert initialize_compilation_cache(link).path == str(place)
    place.chmod(0o777)
    with pytest.raises(PermissionError, match="others can write"):
        initialize_compilation_cache(link)


def test_bucket():
    with pytest.raises(PermissionError, match="cannot be determined here who can write to gs://bucket/cache"):
        initialize_compilation_cache("gs://bucket/cache")
    assert initialize_compilation_cache("gs://bucket/cache", allow_shared=True) == ("gs://bucket/cache", None, None)


LIMIT = """
import sys
import jax
from jax_von_mises import initialize_compilation_cache, runtime, sample_von_mises
key = jax.random.key(0)
initialize_compilation_cache(sys.argv[1])
sample_von_mises(key, 0.0, 4.0, (1000,))  # kept by a process without a limit
before = initialize_compilation_cache(sys.argv[1], max_size=200_000)
for size in range(1001, 1009):
    sample_von_mises(key, 0.0, 4.0, (size,))
after = runtime.cache_info()
print(0 < before.entries < after.entries, 150_000 < after.bytes <= 200_000)
before = after
initialize_compilation_cache(sys.argv[1])
for size in range(1001, 1009):
    sample_von_mises(key, 0.0, 4.0, (size, 1))
print(runtime.cache_info().bytes > 200_000)
"""


@pytest.mark.slow
def test_limit(place):
    """JAX keeps the limit, even if programs were added without one."""
    pytest.importorskip("filelock")
    assert children.run(LIMIT, place) == ["True True", "True"]


def test_limit_without_filelock(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "filelock", None)
    with pytest.raises(ImportError, match="max_size needs filelock: pip install filelock"):
        initialize_compilation_cache(place, max_size=10)
    assert jax.config.jax_compilation_cache_dir is None


NARROW = """
import os, subprocess, sys, warnings
import jax
from jax_von_mises import initialize_compilation_cache, runtime, sample_von_mises
from tests.children import fill_disk
folder, cache = sys.argv[1], f"{sys.argv[1]}/cache"
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(1) if name.endswith("/cache_hits") else None)
def look(label, size):
    hits.clear()
    jax.clear_caches()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = initialize_compilation_cache(cache)
        sample_von_mises(jax.random.key(1), 0.0, 4.0, (size,))
    added = runtime.cache_info().entries - before.entries
    print(label, added > 0, len(hits) > 0, *{str(warning.message)[:50] for warning in caught})
look("room", 10)
fill_disk(f"{folder}/filler")
look("full", 10)
look("full", 11)
os.unlink(f"{folder}/filler")
subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
look("read-only", 10)
look("read-only", 12)
try:
    initialize_compilation_cache(f"{folder}/new")
except OSError as error:
    print(error)
"""


@pytest.mark.slow
def test_full_and_read_only_disk(tmp_path):
    """On a full or read-only disk, existing programs are used and nothing fails."""
    unshare = children.own_mounts(tmp_path)
    *lines, refusal = children.run(NARROW, tmp_path, before=unshare)
    room, full, full_new, read_only, read_only_new = lines
    assert room == "room True False"
    assert full == "full False True"
    assert "Error writing persistent compilation cache entry" in full_new
    assert read_only == "read-only False True"
    assert read_only_new.startswith("read-only False")
    assert "Error writing" not in read_only_new, "JAX must not try to write"
    assert "new cannot be created (Read-only file system)" in refusal


def test_directory_that_goes_away(place):
    initialize_compilation_cache(place)
    shutil.rmtree(place)
    assert runtime.cache_info() == (str(place), 0, 0)
