"""Export samplers to files, as portable programs for other processes, machines and releases, and load such files."""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import secrets
import zipfile
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.runtime.hardware import PLATFORMS
from jax_von_mises.runtime.warm_up import described, like
from jax_von_mises.sampling import sampler
from jax_von_mises.sampling.request import DrawRequest
from jax_von_mises.streams import safe_files
from jax_von_mises.version import __version__

# Name and version of the file format, by which other releases recognise it.
PROGRAM_FORMAT = "jax_von_mises/sampler/1"
PROGRAM, MANIFEST = "program.bin", "manifest.json"
# Limits in bytes; larger files are not read, since samplers are far smaller.
LARGEST_PROGRAM = 2**26
LARGEST_FILE = 2**24
LARGEST_MANIFEST = 2**20


def export_sampler(
    path: str | os.PathLike[str],
    shape: int | Sequence[int],
    dtype: DTypeLike | None = None,
    *,
    loc: ArrayLike | jax.ShapeDtypeStruct = 0.0,
    concentration: ArrayLike | jax.ShapeDtypeStruct = 1.0,
    key: ArrayLike | jax.ShapeDtypeStruct | None = None,
    method: str = "auto",
    platforms: Sequence[str] = PLATFORMS,
    force: bool = False,
) -> dict[str, Any]:
    """Write a sampler to a file, as a program that does not depend on the release of this package that loads it.

    The file is a zip archive that contains a program in JAX's portable form (``jax.export``) and a JSON manifest. The
    program draws the same angles as `sample_von_mises` of this release without CUDA kernels, bit for bit on the same
    kind of device. JAX guarantees that its releases of the following six months can read it.

    Parameters
    ----------
    path : str or path
        File to write; it appears complete or not at all.
    shape, dtype, method
        As in `sample_von_mises`, and fixed in the program.
    loc, concentration : float, array or jax.ShapeDtypeStruct
        Arguments with the shape and dtype of later calls; their values do not matter.
    key : jax.Array, optional
        Any key with the implementation of later calls; by default, a key of JAX's default implementation.
    platforms : sequence of str
        Platforms on which the program can run: any of ``"cpu"``, ``"cuda"``, ``"rocm"`` and ``"tpu"``; all by default.
    force : bool
        Replace an existing file.

    Returns
    -------
    dict
        The manifest.

    Raises
    ------
    FileExistsError
        The file exists, and `force` is not set.
    ImportError
        ``flatbuffers``, which JAX needs to write programs, is missing: ``pip install "jax_von_mises[export]"``.
    """
    caller = "export_sampler"
    path = arguments.path(caller, "path", path)
    force = arguments.flag(caller, "force", force)
    named = (platforms,) if isinstance(platforms, str) else tuple(platforms) if hasattr(platforms, "__iter__") else ()
    if not named or not all(name in PLATFORMS for name in named):
        raise ValueError(
            f"{caller}: platforms={arguments.safe_repr(platforms)} must be one or more of {', '.join(PLATFORMS)}."
        )
    if not force and os.path.lexists(path):
        raise FileExistsError(f"{caller}: {path} already exists. Choose another name, or force=True to replace it.")
    export = _serializer(caller)
    key = arguments.one_key(caller, jax.random.key(0) if key is None else key)
    loc, concentration = like(described(loc)), like(described(concentration))
    request = DrawRequest.whole(caller, key, loc, concentration, shape, dtype, method)
    implementation = str(jax.random.key_impl(key))

    def program(words: jax.Array, loc: jax.Array, concentration: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(words, impl=implementation)
        drawn: DrawRequest = dataclasses.replace(request, key=key, loc=loc, concentration=concentration)
        angles: jax.Array = sampler.PLAIN.new(drawn)
        return angles

    compute = arguments.compute_dtype(request.dtype)
    expected = [jax.ShapeDtypeStruct(jax.random.key_data(key).shape, np.uint32)]
    expected += [jax.ShapeDtypeStruct(x.shape, compute) for x in (request.loc, request.concentration)]
    # The first derivative is included, for jax.grad.
    exported = export.export(jax.jit(program), platforms=named)(*expected)
    content = exported.serialize(vjp_order=1)
    manifest = {
        "format": PROGRAM_FORMAT,
        **_described(exported),
        "method": request.route,
        "key": implementation,
        "versions": {"jax_von_mises": __version__, "jax": jax.__version__, "jaxlib": metadata.version("jaxlib")},
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(MANIFEST, json.dumps(manifest, indent=1))
        file.writestr(PROGRAM, content)
    _write(path, archive.getvalue(), force)
    return manifest


class LoadedSampler:
    """A sampler from a file that `export_sampler` wrote, called with a key, `loc` and `concentration`.

    It can be called inside ``jax.jit``, ``jax.lax.scan`` and ``jax.lax.map``, and differentiated once, in reverse mode
    (``jax.grad``), with respect to `loc` and `concentration`. JAX supports neither ``vmap`` nor forward mode for
    programs from files; export a program of the complete shape instead.

    Attributes
    ----------
    manifest : dict
        Description of the program: shape, dtype, method, key implementation, platforms, versions.
    """

    def __init__(self, manifest: dict[str, Any], exported: jax.export.Exported) -> None:
        self.manifest = manifest
        self._call: Callable[..., jax.Array] = exported.call
        self._compute = arguments.compute_dtype(np.dtype(exported.out_avals[0].dtype))

    def __call__(self, key: ArrayLike, loc: ArrayLike = 0.0, concentration: ArrayLike = 1.0) -> jax.Array:
        """Draw angles of the exported shape and dtype, in radians in [-pi, pi)."""
        caller = "LoadedSampler"
        key = arguments.one_key(caller, key)
        implementation = str(jax.random.key_impl(key))
        if implementation != self.manifest["key"]:
            raise ValueError(
                f"{caller}: key has the implementation {implementation}, but this program is for "
                f"{self.manifest['key']}. Make a key with jax.random.key(seed, impl={self.manifest['key']!r}), or "
                "export the sampler again."
            )
        arrays = []
        for name, value in (("loc", loc), ("concentration", concentration)):
            array = arguments.as_jax(arguments.parameter(caller, name, value), self._compute)
            if list(array.shape) != self.manifest[name]:
                raise ValueError(
                    f"{caller}: {name} has shape {array.shape}, but this program is for {tuple(self.manifest[name])}. "
                    "Give an array of that shape, or export a sampler for this one."
                )
            arrays.append(array)
        return self._call(jax.random.key_data(key), *arrays)

    def __repr__(self) -> str:
        known = self.manifest
        return f"<sampler of {known['dtype']}{known['shape']} for {', '.join(known['platforms'])}>"


def load_sampler(path: str | os.PathLike[str]) -> LoadedSampler:
    """Read a sampler that `export_sampler` wrote.

    The function checks the format and the size of the file, and the checksum of its program. It also checks that the
    program runs on the platform in use and calls no external code (XLA's custom calls). The file is still executable
    code: load only files that you trust.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    LoadedSampler
        Call it with ``(key, loc, concentration)``.

    Raises
    ------
    ValueError
        The file is not a sampler, is damaged, was written by an incompatible release of this package or of JAX, or is
        for platforms other than the one in use.
    OSError
        The file cannot be read.
    ImportError
        ``flatbuffers``, which JAX needs to read programs, is missing: ``pip install "jax_von_mises[export]"``.
    """
    caller = "load_sampler"
    path = arguments.path(caller, "path", path)
    export = _serializer(caller)
    manifest, content = _read(caller, path)
    try:
        exported = export.deserialize(bytearray(content))
        programs = [exported, *([exported.vjp()] if exported.has_vjp() else [])]
        # Every program that calls external code contains the name of this operation.
        calls = any(b"custom_call" in program.mlir_module_serialized for program in programs)
        exported.mlir_module()  # fails if the installed jaxlib cannot read the program's version
        manifest |= _described(exported)
    except Exception as error:  # JAX does not document its exceptions
        raise ValueError(
            f"{caller}: {path} was written by JAX {manifest['versions'].get('jax')} and cannot be read by JAX "
            f"{jax.__version__} ({' '.join(str(error).split())[:200]}). Export it again with this release."
        ) from error
    if calls:
        raise ValueError(
            f"{caller}: the program in {path} calls external code, which no sampler does. Do not use this file."
        )
    platform = _platform_in_use()
    if platform not in exported.platforms:
        raise ValueError(
            f"{caller}: {path} is for {', '.join(exported.platforms)}, but JAX runs on {platform} here. Export the "
            f"sampler again with platforms=({platform!r},)."
        )
    return LoadedSampler(manifest, exported)


def _described(exported: jax.export.Exported) -> dict[str, Any]:
    """Return the part of the manifest that describes the arguments, the result and the platforms of the program."""
    _, loc, concentration = exported.in_avals
    (result,) = exported.out_avals
    return {
        "shape": list(result.shape),
        "dtype": result.dtype.name,
        "loc": list(loc.shape),
        "concentration": list(concentration.shape),
        "platforms": list(exported.platforms),
    }


def _read(caller: str, path: str) -> tuple[dict[str, Any], bytes]:
    """Read and check the manifest and the program of a file."""
    try:
        with safe_files.open_plain(path) as opened:
            if os.fstat(opened.fileno()).st_size > LARGEST_FILE:
                raise ValueError(f"it has more than {LARGEST_FILE} bytes, which no sampler has")
            with zipfile.ZipFile(opened) as file:
                text = safe_files.read_member(file, MANIFEST, LARGEST_MANIFEST)
                manifest: dict[str, Any] = safe_files.parse_json(text, LARGEST_MANIFEST)
                content: bytes = safe_files.read_member(file, PROGRAM, LARGEST_PROGRAM)
        written = manifest["format"]
        if written != PROGRAM_FORMAT:
            raise ValueError(f"its format is {written!r}, but this release reads {PROGRAM_FORMAT!r}")
        if hashlib.sha256(content).hexdigest() != manifest["sha256"]:
            raise ValueError("its program does not match its checksum")
        if not isinstance(manifest["key"], str) or not isinstance(manifest["versions"], dict):
            raise ValueError("its manifest was not written by this package")
    except KeyError as error:
        raise ValueError(f"{caller}: {path} is not a sampler of this package: it lacks {error}. Export one.") from error
    except OSError:
        raise
    except Exception as error:  # zipfile passes on any exception of a decompressor
        raise ValueError(
            f"{caller}: {path} is damaged, or is not a sampler of this package: {error}. Export it again."
        ) from error
    return manifest, content


def _serializer(caller: str) -> Any:
    """Return the module ``jax.export``; raise ImportError if the package that it needs is missing."""
    try:
        import flatbuffers  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f'{caller}: JAX needs flatbuffers to write and read programs: pip install "jax_von_mises[export]".'
        ) from error
    from jax import export

    return export


def _platform_in_use() -> str:
    """Return the platform that JAX uses, by its name in ``jax.export``."""
    from jax.extend.backend import get_backend  # slow to import: it imports Pallas

    backend = get_backend()
    if backend.platform == "gpu":
        return "rocm" if "rocm" in backend.platform_version.lower() else "cuda"
    return str(backend.platform)


def _write(path: str, content: bytes, force: bool) -> None:
    """Write a file atomically: it appears complete or not at all."""
    temporary = os.path.join(os.path.dirname(os.path.abspath(path)), f".{secrets.token_hex(8)}.partial")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if force:
            os.replace(temporary, path)
        else:
            safe_files.take_free_name(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
