"""Test that the compilation cache serves later processes, excludes other users, and tolerates full disks."""

import hashlib
import json
import os
import shutil
import stat
import zlib
from pathlib import Path

import jax
import pytest

from jax_von_mises import initialize_compilation_cache, runtime
from jax_von_mises.runtime import compilation_cache
from tests import children

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="needs POSIX modes and owners"),
    pytest.mark.usefixtures("no_cache_afterwards"),
]


@pytest.fixture
def place(tmp_path):
    """Return a path for a cache in a private directory."""
    tmp_path.chmod(0o700)
    return tmp_path / "cache"


def entry(folder, name, size=100, used=None, content=None):
    """Write a made-up program to a cache as JAX does, and return its path."""
    path = folder / f"jit_{name}-{hashlib.sha256(name.encode()).hexdigest()}-cache"
    path.write_bytes(zlib.compress(os.urandom(size), 0) if content is None else content)
    path.with_name(path.name.replace("-cache", "-atime")).write_bytes(bytes(8))
    if used is not None:
        os.utime(path, (used, used))
    return path


DRAW = """
import json, os, sys
os.umask(0)
import jax
from jax_von_mises import initialize_compilation_cache, runtime, sample_von_mises
from jax_von_mises.runtime import compilation_cache
if "late" in sys.argv:
    sample_von_mises(jax.random.key(1), 0.0, 2.0, (77,))  # JAX then assumes that there is no cache
initialize_compilation_cache(sys.argv[1])
x = sample_von_mises(jax.random.key(1), 0.0, 4.0, (1000,))
print(json.dumps([float(x.sum()), runtime.cache_info()._asdict()]))
if "late" in sys.argv:
    compilation_cache._state.limit = 1
"""


def test_later_processes_find_what_earlier_ones_compiled(place):
    """Later processes find programs, even if they turn the cache on late, and the directory is always private."""
    total, cold = json.loads(children.run(DRAW, place)[0])
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert cold["hits"] == 0
    assert cold["misses"] == cold["entries"] >= 1
    assert cold["bytes"] == sum(path.stat().st_size for path in place.glob("*-cache"))
    again, late = json.loads(children.run(DRAW, place, "late")[0])
    assert late["hits"] >= 1
    assert (late["misses"], late["entries"]) == (0, cold["entries"])
    assert total == again
    assert not list(place.glob("*-cache")), "the limit must hold at the end of a process"


def test_default_directory(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert initialize_compilation_cache().path == str(tmp_path / "xdg/jax_von_mises/compiled")
    # JAX's own setting has priority.
    assert initialize_compilation_cache().path == str(tmp_path / "xdg/jax_von_mises/compiled")
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "other"))
    info = initialize_compilation_cache(max_size=None)
    assert (info.path, info.limit, info.enabled, info.writable) == (str(tmp_path / "other"), None, True, True)
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, according to the XDG standard
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr("sys.platform", "linux")
    assert initialize_compilation_cache().path == str(tmp_path / ".cache/jax_von_mises/compiled")


def test_created_directories_are_private(tmp_path, monkeypatch):
    """Every created directory is private whatever the umask; otherwise the next process would refuse the cache."""
    tmp_path.chmod(0o700)
    for umask in (0o000, 0o077):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"{umask}" / "more"))
        before = os.umask(umask)
        try:
            path = Path(initialize_compilation_cache().path)
            assert initialize_compilation_cache().enabled
        finally:
            os.umask(before)
        created = (path, *path.parents[:3])
        assert [stat.S_IMODE(folder.stat().st_mode) for folder in created] == [0o700] * 4


def test_unusable_default_directory(tmp_path, monkeypatch):
    """An unusable default directory causes only a warning, since the user did not choose it."""
    tmp_path.chmod(0o700)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="file is not a directory, so there is no cache"):
        assert initialize_compilation_cache().path is None


def test_no_home(monkeypatch):
    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    with pytest.warns(RuntimeWarning, match="there is no home directory"):
        info = initialize_compilation_cache()
    assert info.path is None
    assert not info.enabled


def test_no_cache():
    assert runtime.cache_info().path is None
    with pytest.raises(ValueError, match="there is no cache"):
        runtime.clear_cache()


# Any user who can write to a cache can run programs as its owner.


def test_writable_by_others(place):
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(PermissionError, match=r"cache is writable by everyone \(mode 0777\).*executable code"):
        initialize_compilation_cache(place)
    assert jax.config.jax_compilation_cache_dir is None
    place.chmod(0o1777)  # others may still add files
    with pytest.raises(PermissionError, match="everyone"):
        initialize_compilation_cache(place)
    assert initialize_compilation_cache(place, allow_shared=True).enabled
    place.chmod(0o755)
    assert initialize_compilation_cache(place).enabled
    place.parent.chmod(0o777)
    with pytest.raises(PermissionError, match="everyone"):
        initialize_compilation_cache(place)
    place.parent.chmod(0o1777)  # the sticky bit keeps users from replacing the files of others
    assert initialize_compilation_cache(place).enabled


def test_groups(place, monkeypatch):
    grp = pytest.importorskip("grp")
    place.mkdir()
    place.chmod(0o770)
    own = grp.getgrgid(place.stat().st_gid)
    monkeypatch.setattr(grp, "getgrgid", lambda number: grp.struct_group(("staff", "x", number, ["eve"])))
    with pytest.raises(PermissionError, match="by the group staff"):
        initialize_compilation_cache(place)
    # Many systems give each user a private group of the same name.
    import pwd

    user = pwd.getpwuid(os.getuid())
    if own.gr_gid == user.pw_gid:
        alone = grp.struct_group((user.pw_name, "x", own.gr_gid, []))
        monkeypatch.setattr(grp, "getgrgid", lambda number: alone)
        assert initialize_compilation_cache(place).enabled


def test_owner(place, monkeypatch):
    place.mkdir()
    if os.getuid() == 0:
        os.chown(place, 54321, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(PermissionError, match="belongs to user"):
        initialize_compilation_cache(place)


def test_entries_of_others(place):
    """Entries of other users are refused, since they may date from a time when the directory was open to them."""
    if os.getuid() != 0:
        pytest.skip("only root can give a file to another user")
    place.mkdir(mode=0o755)
    entry(place, "good")
    assert initialize_compilation_cache(place).entries == 1
    os.chown(entry(place, "planted"), 54321, -1)
    with pytest.raises(PermissionError, match=r"jit_planted-.*-cache belongs to"):
        initialize_compilation_cache(place)


def test_link_to_the_directory(place):
    """A link to a directory is resolved."""
    place.mkdir(mode=0o700)
    link = place.parent / "link"
    link.symlink_to(place)
    assert initialize_compilation_cache(link).path == str(place)


def test_bucket():
    with pytest.raises(PermissionError, match="cannot be determined here who can write to gs://bucket/cache"):
        initialize_compilation_cache("gs://bucket/cache")


def test_file_in_the_way(place):
    place.write_text("")
    for path in (place, place / "below"):
        with pytest.raises(NotADirectoryError, match=f"{place} is not a directory"):
            initialize_compilation_cache(path)


def test_turned_off(place):
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        with pytest.warns(RuntimeWarning, match="jax_enable_compilation_cache is off"):
            assert not initialize_compilation_cache(place).enabled
    finally:
        jax.config.update("jax_enable_compilation_cache", True)


def test_incomplete_programs_are_removed(place, monkeypatch):
    """Incomplete programs, as left by a full disk, are removed, since JAX would keep them and warn in every process."""
    place.mkdir(mode=0o700)
    full = entry(place, "full")
    cut = entry(place, "cut", content=full.read_bytes()[:-7])
    empty = entry(place, "empty", content=b"")
    other = entry(place, "zstd", content=b"\x28\xb5\x2f\xfd cut")

    def missing():
        raise ImportError

    monkeypatch.setattr(compilation_cache, "_zstd", missing)  # without a decompressor, zstd entries stay
    assert initialize_compilation_cache(place).entries == 2
    assert full.exists()
    assert other.exists()
    assert not cut.exists()
    assert not empty.exists()
    assert not cut.with_name(cut.name.replace("-cache", "-atime")).exists()

    def read(content):
        assert content.startswith(b"\x28\xb5\x2f\xfd")
        raise ValueError("cut")

    monkeypatch.setattr(compilation_cache, "_zstd", lambda: read)
    assert initialize_compilation_cache(place).entries == 1
    assert full.exists()


def test_limit(place):
    """The least recently used entries are removed first; other files are not touched."""
    place.mkdir(mode=0o700)
    mine = ("notes.txt", "session-cache", "session-atime", f"{0:063}-cache")
    for name in mine:
        (place / name).write_text("mine")
    paths = [entry(place, f"p{number}", size=1000, used=1e9 + number) for number in (2, 0, 3, 1)]
    info = initialize_compilation_cache(place, max_size=2500)
    assert info.entries == 2
    assert info.bytes <= info.limit == 2500
    assert [path.exists() for path in paths] == [True, False, True, False]
    assert runtime.clear_cache() == 2
    assert sorted(os.listdir(place)) == sorted(["checked", *mine])


NARROW = """
import os, subprocess, sys, warnings
import jax
from jax_von_mises import initialize_compilation_cache, runtime, sample_von_mises
from tests.children import fill_disk
folder, cache = sys.argv[1], f"{sys.argv[1]}/cache"
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
os.chmod(folder, 0o700)
def look(label, size):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        info = initialize_compilation_cache(cache)
        sample_von_mises(jax.random.key(1), 0.0, 4.0, (size,))
    after = runtime.cache_info()
    words = (warning.message for warning in caught)
    print(label, info.enabled, info.writable, after.hits > 0, after.entries - info.entries, *words)
look("room", 10)
fill_disk(f"{folder}/filler")
jax.clear_caches()
look("full", 10)
look("full", 11)
fill_disk(f"{folder}/filler", 8192)
look("filling", 12)
os.unlink(f"{folder}/filler")
look("room", 13)
subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
jax.clear_caches()
look("read-only", 13)
look("read-only", 14)
cache = f"{folder}/new"
look("nowhere", 15)
"""


@pytest.mark.slow
def test_full_and_read_only_disk(tmp_path):
    """On a full or read-only disk, existing entries are used and nothing fails; incomplete ones are removed later."""
    unshare = children.own_mounts(tmp_path)
    lines = children.run(NARROW, tmp_path, before=unshare)
    room, found, added, filling, again, read_only, read_only_new, nowhere = (line.split(maxsplit=5) for line in lines)
    assert room[1:4] == ["True", "True", "False"]
    assert int(room[4]) > 0
    assert len(room) == 5, "there must be no warning"
    assert found[1:5] == ["True", "False", "True", "0"]
    assert "cannot be written to (No space left on device)" in found[5]
    assert added[1:5] == ["True", "False", "False", "0"]
    assert "Error writing" not in added[5], "JAX must not try to write"
    assert filling[1:3] == ["True", "True"], "the trial file must fit"
    assert "Error writing persistent compilation cache entry" in filling[5]
    assert again[1:3] == ["True", "True"]
    assert len(again) == 5
    assert read_only[1:5] == ["True", "False", "True", "0"]
    assert "cannot be written to (Read-only file system)" in read_only[5]
    assert read_only_new[1:4] == ["True", "False", "False"]
    assert nowhere[1] == "False" or "cannot be created (Read-only file system)" in nowhere[5]


def test_directory_that_goes_away(place):
    initialize_compilation_cache(place)
    shutil.rmtree(place)
    assert runtime.cache_info().entries == 0
    assert runtime.clear_cache() == 0
