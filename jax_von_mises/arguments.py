"""Check arguments.

The messages name the function, the argument and its value, and say what is allowed and what to do.
"""

import functools
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jax_von_mises.environment import DTYPES

# An array must have fewer elements, since XLA counts bytes in 63 bits and an element has up to 8 bytes.
LARGEST_SIZE = 2**60
# NumPy's limit on the number of axes. XLA accepts more, until memory is exhausted.
MOST_AXES = 64
# Integer arguments must be smaller, since JAX, NumPy and Python's `range` count in 63 bits.
LARGEST_COUNT = 2**63
# Larger Python floats become infinite in float32.
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
# Durations in seconds must be smaller (about 32 years), since locks and timers count nanoseconds in 63 bits.
LARGEST_TIME = 1e9
# Messages shorten the text of a value that has more characters.
LONGEST = 200
METHODS = ("auto", "direct", "table")
INTEGERS = ("int32", "uint32", "int64", "uint64")
# The dtypes of results, and those of real numbers, in this machine's byte order.
FLOAT_DTYPES = {jnp.dtype(name) for name in DTYPES}
REAL_DTYPES = {jnp.dtype(name) for name in (*DTYPES, *INTEGERS, "int8", "uint8", "int16", "uint16")}


def safe_repr(value: object) -> str:
    """Return the repr of `value`, shortened for a message, or a description if the repr fails."""
    if isinstance(value, int) and value.bit_length() > LONGEST:  # Python refuses to print more than 4300 digits
        return f"about {'-' if value < 0 else ''}10^{round(math.log10(abs(value)))}"
    try:
        text = repr(value)
    except Exception:  # nested too deeply, or a faulty `__repr__`
        text = f"a value of type {type(value).__name__} that cannot be printed"
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}...{text[-LONGEST // 4 :]}"


def typed_keys(caller: str, key: Any) -> jax.Array:
    """Return a key or an array of keys, typed or legacy (uint32), as typed keys."""
    dtype = getattr(key, "dtype", None)
    if dtype is None:
        raise TypeError(
            f"{caller}: key must be a JAX random key, got {safe_repr(key)} of type {type(key).__name__}. "
            "Make one with jax.random.key(seed)."
        )
    if not issubclass(getattr(dtype, "type", object), jax.dtypes.prng_key):
        if dtype != np.uint32:
            raise TypeError(
                f"{caller}: key must be a JAX random key, got an array of dtype {dtype} and shape {key.shape}. "
                "Make one with jax.random.key(seed)."
            )
        words = legacy_shape()
        if key.shape[-1:] != words or not key.shape:
            raise ValueError(
                f"{caller}: key is a uint32 array of shape {key.shape}, but a key of the default implementation has "
                f"shape {words}. Make keys with jax.random.key(seed, impl=...), which carry their implementation."
            )
        key = jax.random.wrap_key_data(key)
    typed: jax.Array = key
    return typed


def one_key(caller: str, key: Any) -> jax.Array:
    """Return one key, typed or legacy (uint32), as a typed key."""
    keys = typed_keys(caller, key)
    if keys.shape:
        raise ValueError(
            f"{caller}: key must be one key, got a key array of shape {keys.shape}. "
            "Use jax.vmap to sample with many keys, or jax.random.fold_in to derive one."
        )
    return keys


def key_or_seed(caller: str, key: Any, seed: Any) -> jax.Array:
    """Return whichever of `key` and `seed` was given, as a typed key."""
    if seed is not None and (isinstance(key, (int, np.integer, tuple, list))):  # in the order of TFP
        raise TypeError(
            f"{caller}: {safe_repr(key)} was taken for `key`, the first argument, but the key was given as `seed`. "
            f"Name the shape: sample(sample_shape={safe_repr(key)}, seed=seed)."
        )
    if (key is None) == (seed is None):
        raise TypeError(
            f"{caller}: give one random key, as `key` or as `seed`: distribution.sample(jax.random.key(0))."
        )
    return one_key(caller, key if seed is None else seed)


def legacy_shape() -> tuple[int, ...]:
    """Return the shape of a legacy key, which depends on JAX's setting for the default key implementation."""
    return _legacy_shape(str(jax.config.jax_default_prng_impl))  # type: ignore[attr-defined]


@functools.cache
def _legacy_shape(implementation: str) -> tuple[int, ...]:
    shape: tuple[int, ...] = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=implementation))).shape
    return shape


def parameters(caller: str, dtype: DTypeLike | None, **values: object) -> tuple[dict[str, Any], np.dtype[Any]]:
    """Check the named `values`, and return a dict of arrays and the float dtype of the result.

    Python numbers become arrays of the dtype in which angles are computed.
    """
    given = {name: parameter(caller, name, value) for name, value in values.items()}
    dtype = float_dtype(caller, dtype, given.values())
    compute = compute_dtype(dtype)
    placed = on_device(*given.values(), dtype=compute)
    return {name: with_dtype(value, compute) for name, value in zip(given, placed, strict=True)}, dtype


def parameter(caller: str, name: str, value: Any) -> Any:
    """Check one value; return a Python number as a float, and any other value as an array.

    The dtype of a float is chosen later; an array keeps its dtype, even if it has no axes.
    """
    if type(value) is float:
        return value
    refuse_units(caller, name, value)
    try:
        if isinstance(value, (int, float)) and not isinstance(value, (bool, np.generic)):
            return float(value)  # NumPy has no dtype for large integers
        array = value
        if not is_array(array):
            array = np.asarray(value)
        dtype = array.dtype
        # The name of a dtype takes long to make.
        real = dtype in REAL_DTYPES or dtype.name in DTYPES or jnp.issubdtype(dtype, jnp.integer)
        array = native(array) if real else array
    except OverflowError as error:
        raise ValueError(
            f"{caller}: {name} is {safe_repr(value)}, which exceeds the range of float64 (1.8e308)."
        ) from error
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{caller}: {name} must be a real number or an array of them, got {safe_repr(value)}."
        ) from error
    if not real:
        raise TypeError(
            f"{caller}: {name} must be a real number or an array of them, got {_described(caller, name, value, dtype)}."
        )
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{caller}: {name} is a masked array, which is not supported. Drop the missing values with x.compressed(), "
            "or call x.filled(np.nan) and, in a fit, give them the weight 0: weights=~np.ma.getmaskarray(x) * 1.0."
        )
    return array


def refuse_units(caller: str, name: str, value: Any, depth: int = 4) -> None:
    """Raise TypeError for a quantity with a unit, of astropy or pint, which NumPy would drop.

    Lists are looked through to a `depth`, since one may contain itself.
    """
    if type(value) is np.ndarray or isinstance(value, (int, float, jax.Array)):
        return
    if isinstance(value, (list, tuple)):
        for each in value if depth else ():
            if type(each) is not float and type(each) is not int:
                refuse_units(caller, name, each, depth - 1)
        return
    unit = getattr(value, "unit", None)
    unit = getattr(value, "units", None) if unit is None else unit
    if unit is not None:
        raise TypeError(
            f"{caller}: {name} has the unit {str(unit) or '1'}, but must be a plain number or array, with angles in "
            'radians. Convert it with x.to_value("rad") (astropy) or x.to("rad").magnitude (pint).'
        )


def _described(caller: str, name: str, value: Any, dtype: np.dtype[Any]) -> str:
    """Return what an array or object that holds no real numbers is, and what to give in its place."""
    kind = type(value).__name__
    if dtype == np.object_ and any(x is None for x in np.ravel(np.asarray(value))[:LONGEST]) and value is not None:
        return "None among them. Drop missing values, or make them NaN and, in a fit, give them the weight 0"
    if dtype != np.object_ or is_array(value):
        return f"dtype {dtype}. Convert it to one of {', '.join(DTYPES)}"
    # For a distribution, name its parameter, and its method that does what the caller does.
    instead = [f"give its `{name}`"] if name in getattr(value, "__dict__", ()) else []
    instead += [f"call {kind}.{caller}"] if callable(getattr(type(value), caller, None)) else []
    if not instead:
        return f"{safe_repr(value)} of type {kind}"
    text = ", or ".join(instead)
    return f"a {kind}. {text[0].upper()}{text[1:]}"


def with_dtype(value: Any, compute: np.dtype[Any]) -> Any:
    """Return a checked value as an array; convert all but JAX's arrays to `compute`, so that they share a program."""
    if isinstance(value, jax.Array):
        return value
    if type(value) is float and abs(value) <= LARGEST_FLOAT32:
        return np.asarray(value, compute)
    with np.errstate(over="ignore"):  # values that are too large become infinite, as in XLA
        return np.asarray(value, compute)


def on_device(*values: Any, dtype: np.dtype[Any]) -> list[Any]:
    """Return `values` with scalars of a dtype on the default device, if that is no CPU, in place of Python floats.

    The scalars are kept for later calls with the same numbers: copying one to a GPU takes 50 microseconds, in which it
    draws about a million angles. In a function that JAX traces, numbers remain constants of its program.
    """
    if jax.default_backend() == "cpu" or not jax.sharding.get_abstract_mesh().empty or _is_tracing():
        return list(values)
    place = dtype, jax.config.jax_enable_x64, jax.config.jax_default_device  # type: ignore[attr-defined]
    return [_kept(x.hex(), *place) if type(x) is float else x for x in values]


def _is_tracing() -> bool:
    current, outside = _trace_states()
    return bool(current() != outside)


@functools.cache
def _trace_states() -> tuple[Callable[[], object], object]:
    """Return a function for the state of tracing, and the state outside all traces."""
    from jax.extend import core  # takes 35 ms

    current = getattr(core, "get_opaque_trace_state", None) or jax.core.get_opaque_trace_state  # of JAX 0.8
    with jax.ensure_compile_time_eval():
        return current, current()


@functools.lru_cache(maxsize=256)
def _kept(digits: str, dtype: np.dtype[Any], x64: bool, device: object) -> jax.Array:
    with jax.ensure_compile_time_eval():
        return as_jax(float.fromhex(digits), dtype)


def with_axes(value: Any, ndim: int, dtype: np.dtype[Any]) -> Any:
    """Return a checked value with axes of length 1 in front, so that it has `ndim` of them.

    A Python number becomes an array that changes no result of `dtype`.
    """
    if type(value) is float:
        # A float32 array would turn results of bfloat16 to float32; a weakly typed one does not.
        compute = compute_dtype(dtype)
        value = with_dtype(value, compute) if dtype == compute else as_jax(value)
    return value.reshape((1,) * (ndim - value.ndim) + value.shape)


def too_wide(dtype: np.dtype[Any]) -> bool:
    """Return whether JAX narrows NumPy arrays of `dtype`; floats may then overflow, and integers wrap around."""
    return jax.dtypes.canonicalize_dtype(dtype) != dtype


def as_jax(value: Any, dtype: DTypeLike | None = None) -> jax.Array:
    """Return a checked value as a JAX array of `dtype`; without a dtype, Python numbers become weakly typed arrays."""
    with np.errstate(over="ignore"):
        return jnp.asarray(value, dtype)


def is_array(value: object) -> bool:
    """Return whether `value` is an array, rather than a placeholder for one in a pytree."""
    return isinstance(value, (np.ndarray, np.generic, jax.Array))


def is_known(value: object) -> bool:
    """Return whether `value` is a number or an array, rather than a placeholder for one in a pytree."""
    return isinstance(value, int | float) or is_array(value)


def native(array: Any) -> Any:
    """Return `array` in this machine's byte order, which JAX requires; arrays from files may have the other order."""
    dtype = array.dtype
    return array if not isinstance(dtype, np.dtype) or dtype.isnative else array.astype(dtype.newbyteorder("="))


def sharding(caller: str, value: object) -> NamedSharding | None:
    """Return None or a `NamedSharding` for `value`; a `PartitionSpec` is combined with the mesh in scope."""
    if value is None or isinstance(value, NamedSharding):
        return value
    if not isinstance(value, PartitionSpec):
        raise TypeError(
            f"{caller}: out_sharding={safe_repr(value)} must be a NamedSharding, or a PartitionSpec with a mesh in "
            "scope."
        )
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        raise ValueError(
            f"{caller}: out_sharding={safe_repr(value)} names axes, but no mesh is in scope. Enter one with "
            "jax.set_mesh(mesh), or give jax.sharding.NamedSharding(mesh, spec)."
        )
    try:
        return NamedSharding(mesh, value)
    except ValueError as error:
        raise ValueError(
            f"{caller}: out_sharding={safe_repr(value)} does not fit the mesh in scope, whose axes are "
            f"{mesh.axis_names}. Give a PartitionSpec that uses these names, each at most once."
        ) from error


def float_dtype(caller: str, dtype: DTypeLike | None, values: Iterable[Any]) -> np.dtype[Any]:
    """Return the dtype of the result.

    It is `dtype` if given, else the promoted dtype of the float arrays among the checked `values`, else JAX's default.
    """
    if dtype is None:
        found = [x.dtype for x in values if not is_weak(x) and jnp.issubdtype(x.dtype, jnp.floating)]
        if len(set(found)) == 1:
            return jax.dtypes.canonicalize_dtype(found[0])
        # `jnp.promote_types` fails if implicit promotion is disabled.
        dtype = np.float32 if found and np.float64 not in found else np.float64
        return jax.dtypes.canonicalize_dtype(dtype)
    try:
        dtype = jnp.dtype(dtype).newbyteorder("=")
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"{caller}: dtype={safe_repr(dtype)} is not a dtype that JAX knows. Give one of {', '.join(DTYPES)}."
        ) from error
    if dtype not in FLOAT_DTYPES:
        raise TypeError(
            f"{caller}: dtype={dtype.name} cannot hold an angle. Give one of {', '.join(DTYPES)}; "
            "convert the angles afterwards if you need another dtype."
        )
    if dtype == np.float64 and too_wide(dtype):
        raise ValueError(
            f"{caller}: dtype=float64 needs JAX's 64-bit mode, which is off, so JAX would silently use float32. "
            'Turn it on with jax.config.update("jax_enable_x64", True) at start-up, or give dtype=float32.'
        )
    return dtype


def compute_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype in which results of `dtype` are computed: float64 for float64, and float32 for all others."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def is_weak(value: object) -> bool:
    """Return whether a checked value, as a Python number or a weakly typed array, takes the dtype of other values."""
    return type(value) is float or bool(getattr(value, "weak_type", False))


def result_shape(caller: str, shape: object, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return `shape` as a tuple, by default the broadcast shape of the named `shapes`; each must broadcast to it."""
    if shape is None:
        return broadcast_shapes(caller, shapes)
    sizes = whole_sizes(caller, "shape", shape)
    for name, has in shapes.items():
        if not broadcasts(has, sizes):
            do = f"Leave `shape` out to draw one angle per element, or end `shape` with the axes {has}."
            if len(has) < len(sizes) and broadcasts(has, sizes[: len(has)]):
                index = ", ".join([":"] * len(has) + ["None"] * (len(sizes) - len(has)))
                do = f"Axes are matched from the last one: write {name}[{index}] to match the leading axes of `shape`."
            raise ValueError(f"{caller}: {name} has shape {has}, which does not broadcast to shape={sizes}. {do}")
    return sizes


def broadcast_shapes(caller: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the broadcast shape of named `shapes`."""
    if not any(shapes.values()):
        return ()
    try:
        return np.broadcast_shapes(*shapes.values())
    except (ValueError, TypeError) as error:
        listed = " and ".join(f"{name} of shape {has}" for name, has in shapes.items())
        if isinstance(error, ValueError):
            raise ValueError(
                f"{caller}: {listed} do not broadcast together. Insert axes of length 1 to make them broadcast."
            ) from error
        raise TypeError(
            f"{caller}: {listed}: sizes must be known when tracing. Export with integers, not with symbolic sizes."
        ) from error


def dimension(caller: str, name: str, vectors: Any, of: int | None = None) -> int:
    """Return the length of the last axis of checked `vectors`, which must be at least 2, and equal to `of` if given."""
    shape: tuple[int, ...] = np.shape(vectors)
    if not shape or shape[-1] < 2 or (of is not None and shape[-1] != of):
        allowed = "2 or more" if of is None else str(of)
        raise ValueError(
            f"{caller}: {name} has shape {shape}, but its last axis must hold the components of a vector: its length "
            f"must be {allowed}."
        )
    return shape[-1]


def broadcasts(shape: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Return whether an array of `shape` broadcasts to the shape `sizes`."""
    if not shape:
        return True
    pairs = zip(reversed(shape), reversed(sizes), strict=False)
    return len(shape) <= len(sizes) and all(have in (1, want) for have, want in pairs)


def whole_sizes(caller: str, name: str, shape: Any) -> tuple[int, ...]:
    """Return `shape`, an integer or a sequence of integers, as a tuple."""
    try:
        if isinstance(shape, (str, bytes, set, dict, bool)):
            raise TypeError
        # Every array has `__index__`, whatever its number of axes.
        single = hasattr(shape, "__index__") and not getattr(shape, "ndim", 0)
        # While a function is traced, iterating over a JAX array yields tracers, even if its values are known.
        sizes = (shape,) if single else tuple(np.asarray(shape) if isinstance(shape, jax.Array) else shape)
        sizes = tuple(map(operator.index, sizes))
    except TypeError as error:
        hint = "Under jax.jit a shape must be known when tracing: pass it through static_argnames."
        raise TypeError(
            f"{caller}: {name}={safe_repr(shape)} must be an integer or a tuple of integers. {hint}"
        ) from error
    return possible_sizes(caller, name, sizes)


@functools.lru_cache
def possible_sizes(caller: str, name: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return `sizes`, or raise ValueError if no array can have them."""
    if len(sizes) > MOST_AXES:
        raise ValueError(
            f"{caller}: {name}={safe_repr(sizes)} has {len(sizes)} axes. Give at most {MOST_AXES}, the limit of NumPy."
        )
    if min(sizes, default=0) < 0:
        raise ValueError(f"{caller}: {name}={safe_repr(sizes)} has a negative size. Sizes must be 0 or more.")
    if max(sizes, default=0) >= LARGEST_SIZE or math.prod(sizes) >= LARGEST_SIZE:
        asked = max(math.prod(sizes), *sizes)
        number = f"{asked:.3g}" if asked.bit_length() <= LONGEST else safe_repr(asked)
        raise ValueError(
            f"{caller}: {name}={safe_repr(sizes)} asks for {number} elements, more than any memory holds. Draw a long "
            "stream in blocks, with sample_block."
        )
    return sizes


def whole_number(caller: str, name: str, value: Any, least: int, below: int = LARGEST_COUNT) -> int:
    """Return `value` as an int that is at least `least` and less than `below`, a power of two."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{caller}: {name}={safe_repr(value)} must be an integer.") from error
    if not least <= number < below:
        raise ValueError(
            f"{caller}: {name}={safe_repr(number)} must be at least {least} and below 2^{below.bit_length() - 1}."
        )
    return number


def flag(caller: str, name: str, value: object) -> bool:
    """Return `value` as a bool; refuse other types, since Python counts "no" and nan as true."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{caller}: {name}={safe_repr(value)} must be True or False.")
    return bool(value)


def finite_number(caller: str, name: str, value: Any, above: float = -math.inf) -> float:
    """Return a finite real number above `above` as a float; a traced one raises JAX's error."""
    if is_array(value) and np.ndim(value) == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{caller}: {name}={safe_repr(value)} must be a real number.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not above < number < math.inf:
        allowed = "finite" if above == -math.inf else f"finite and above {above:g}"
        raise ValueError(f"{caller}: {name}={safe_repr(value)} must be {allowed}.")
    return number


def fraction(caller: str, name: str, value: Any) -> float:
    """Return a number above 0 and at most 1 as a float."""
    number = finite_number(caller, name, value, above=0)
    if number > 1:
        raise ValueError(f"{caller}: {name}={safe_repr(value)} must be above 0 and at most 1.")
    return number


def seconds(caller: str, name: str, value: Any, *, above: float = -math.inf) -> float:
    """Return a number of seconds as a float; it must be at least 0, above `above` and below `LARGEST_TIME`."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{caller}: {name}={safe_repr(value)} must be a number of seconds.")
    if not (0 <= value < LARGEST_TIME and value > above):
        least = "0 or more" if above < 0 else f"above {above}"
        raise ValueError(
            f"{caller}: {name}={safe_repr(value)} must be a finite number of seconds, {least} and below "
            f"{LARGEST_TIME:g}."
        )
    return float(value)


def path(caller: str, name: str, value: Any) -> str:
    """Return `value`, a string or a path-like object, as a string."""
    try:
        text = os.fsdecode(os.fspath(value))
    except TypeError as error:
        raise TypeError(f"{caller}: {name}={safe_repr(value)} must be a string or a path.") from error
    if text.lower().startswith("file://"):
        # A URL would bypass the checks that are made before a local file is opened.
        raise ValueError(
            f"{caller}: {name}={safe_repr(text)} is a URL of a local file. Give its path, without file://."
        )
    if "\0" in text:
        raise ValueError(
            f"{caller}: {name}={safe_repr(text)} contains a null character, which file names cannot have. Remove it."
        )
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{caller}: {name}={safe_repr(text)} contains the character {text[error.start]!r}, which file names cannot "
            f"have on this system ({error.encoding}). Choose another name."
        ) from error
    return text


def utf8(caller: str, name: str, text: str, taker: str) -> None:
    """Refuse text that UTF-8 cannot encode, such as half of a surrogate pair; `taker` names what requires UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{caller}: {name}={safe_repr(text)} contains the character {text[error.start]!r}, which cannot be "
            f"encoded in UTF-8, as {taker} requires. Choose another name."
        ) from error


def position(caller: str, start: Any) -> Any:
    """Check and return a position in a stream: an integer, a traced integer scalar, or a pair (hi, lo) of either."""
    if isinstance(start, (tuple, list)):
        if len(start) != 2:
            raise ValueError(
                f"{caller}: start={safe_repr(start)} has length {len(start)}. Give an integer, or a pair (hi, lo) of "
                "32-bit integers."
            )
        return tuple(_unsigned(caller, f"start[{name}]", x, 32) for name, x in enumerate(start))
    return _unsigned(caller, "start", start, 64)


def _unsigned(caller: str, name: str, value: Any, bits: int) -> Any:
    if isinstance(value, jax.core.Tracer):
        allowed = ("uint32",) if bits == 32 else INTEGERS
        if value.dtype.name not in allowed or value.shape:
            raise TypeError(
                f"{caller}: {name} is traced with dtype {value.dtype} and shape {value.shape}, but must be a scalar of "
                f"{', '.join(allowed)}. Give a position beyond its range as a pair (hi, lo) of uint32."
            )
        return value
    try:
        value = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{caller}: {name}={safe_repr(value)} must be an integer.") from error
    if not 0 <= value < 2**bits:
        why = ", the length of a stream." if bits == 64 else ". A pair is (start >> 32, start % 2**32)."
        raise ValueError(f"{caller}: {name}={safe_repr(value)} must be at least 0 and below 2^{bits}{why}")
    return value


def known_position(start: object) -> int | None:
    """Return a checked position in a stream as one integer; None if it is traced."""
    if isinstance(start, tuple):
        hi, lo = map(known_position, start)
        return None if hi is None or lo is None else (hi << 32) + lo
    return start if isinstance(start, int) else None


def within_stream(caller: str, start: int, end: int, described: str, numbers: int = 1, noun: str = "angle") -> None:
    """Refuse draws from `start` to `end` that reach beyond the end of the stream.

    Each draw takes `numbers` numbers of the stream. The message shows `start` and `described`, the argument that
    determines `end`.
    """
    if end * numbers > 2**64:
        length = "2^64 angles" if numbers == 1 else f"2^64 numbers (each {noun} takes {numbers})"
        raise ValueError(
            f"{caller}: start={start} and {described} reach beyond the stream's {length}. "
            "Derive another key with derive_key."
        )


def one_of(caller: str, name: str, value: Any, allowed: Iterable[str]) -> str:
    """Return `value` if it is one of the `allowed` names."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{caller}: {name}={safe_repr(value)} is not one of {', '.join(map(repr, allowed))}.")
    return value


def method(caller: str, value: Any, shape: tuple[int, ...], allowed: Iterable[str] = METHODS) -> str:
    """Return `value` if it is one of the `allowed` methods and fits the `shape` of the concentration."""
    route = one_of(caller, "method", value, allowed)
    if route == "table" and math.prod(shape) != 1:
        raise ValueError(
            f"{caller}: method='table' needs one concentration, got an array of shape {shape}. "
            "Use method='direct' (or 'auto') for many concentrations, or jax.vmap for a few."
        )
    return route
