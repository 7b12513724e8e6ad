"""Sample on several devices: each draws its own part of one stream, without communication.

A word depends only on the key and its position in the stream (see :mod:`jax_von_mises.engine.counter`), so a device
needs to know only where its part starts. `sample_von_mises` with `out_sharding` splits a result along the axes of a
mesh. `sample_pmap` uses `jax.pmap`, and `sample_shard` is called in the body of a mapped function.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jax_von_mises import arguments
from jax_von_mises.engine import counter
from jax_von_mises.engine.request import Request, draw
from jax_von_mises.von_mises import sampler


def sample_pmap(
    key: ArrayLike,
    loc: ArrayLike,
    concentration: ArrayLike,
    shape: int | Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    *,
    method: str = "auto",
    devices: Sequence[jax.Device] | None = None,
) -> jax.Array:
    """Draw angles with `jax.pmap`, one device for each index of the leading axis.

    With one key, the angles are those of `sample_von_mises` with the same arguments, bit for bit. With one key per
    device, each row of the result is drawn from the stream of the device's key.

    Parameters
    ----------
    key : jax.Array
        One random key as in `sample_von_mises`, whose stream the devices share; or a key array of shape ``(devices,)``
        (legacy keys: uint32 of shape ``(devices, words)``), which gives each device a separate stream. Then
        ``result[d]`` equals ``sample_von_mises(key[d], loc[d], concentration[d], shape[1:])``, bit for bit, once `loc`
        and `concentration` are broadcast along the leading axis.
    loc, concentration : float or array
        As in `sample_von_mises`; they broadcast to `shape`, aligned at the last axis. An array with the leading axis of
        `shape` is split along it, and each device gets its part; other arrays go to all devices. For one value per
        device, write ``loc[:, None]``.
    shape : int or tuple of ints, optional
        Shape of the complete result, with a leading axis as long as the number of devices. The broadcast shape of `loc`
        and `concentration` by default.
    dtype : optional
        As in `sample_von_mises`.
    method : {"auto", "direct", "table"}
        As in `sample_von_mises`: "auto" decides by the complete `shape` with one key, and by the draw of one device
        with one key per device.
    devices : sequence of jax.Device, optional
        Devices of this process, each once; ``result[i]`` is on ``devices[i]``. ``jax.local_devices()`` by default.

    Returns
    -------
    jax.Array
        Angles in radians in [-pi, pi), sharded along the leading axis.

    Raises
    ------
    TypeError, ValueError
        For an invalid key, shape, dtype, method or devices; if the length of the leading axis, or of a key array, is
        not the number of devices; and inside `jax.set_mesh`, where `jax.pmap` does not work (use `sample_von_mises`
        with `out_sharding` there).

    Notes
    -----
    One program is compiled for each combination of devices, shape, dtype and method, and serves all values. The
    function can be called inside `jax.jit` and has the derivatives of `sample_von_mises`.

    To call `jax.pmap` yourself, over keys and parameters of shape ``(devices,)``, make the shape a static argument:
    ``jax.pmap(sample_von_mises, static_broadcasted_argnums=3)(keys, loc, concentration, 1000)``.

    Examples
    --------
    >>> import jax
    >>> n = jax.local_device_count()
    >>> x = sample_pmap(jax.random.key(0), 0.0, 4.0, (n, 1000))
    >>> x.shape == (n, 1000), len(x.devices()) == n
    (True, True)

    A key and a mean direction per device:

    >>> keys, loc = jax.random.split(jax.random.key(0), n), jax.numpy.linspace(-1.0, 1.0, n)
    >>> sample_pmap(keys, loc[:, None], 4.0, (n, 1000)).shape == (n, 1000)
    True
    """
    caller = "sample_pmap"
    devices = _local_devices(caller, devices)
    key = arguments.typed_keys(caller, key)
    if key.shape not in ((), (len(devices),)):
        raise ValueError(
            f"{caller}: key is a key array of shape {key.shape}, but the number of devices is {len(devices)}. Give one "
            f"key, which the devices share, or one per device: jax.random.split(key, {len(devices)})."
        )
    separate = bool(key.shape)
    one = jax.ShapeDtypeStruct((), key.dtype) if separate else key
    # With separate streams, the method is checked below, since it depends on one device's part.
    asked = "auto" if separate else method
    values = {"loc": loc, "concentration": concentration}
    request = Request.of(caller, sampler.VON_MISES, one, values, shape, dtype, asked)
    sizes, dtype = request.shape, request.dtype
    if not sizes or sizes[0] != len(devices):
        has = f"has length {sizes[0]} along its leading axis" if sizes else "has no leading axis"
        raise ValueError(
            f"{caller}: shape={sizes} {has}, but the leading axis must have the number of devices, {len(devices)}. "
            f"Give shape=({len(devices)}, ...), or other devices in `devices`."
        )
    if not jax.sharding.get_abstract_mesh().empty:
        raise ValueError(
            f"{caller}: a mesh with the axes {jax.sharding.get_abstract_mesh().axis_names} is in scope, where jax.pmap "
            "does not work. Use sample_von_mises with out_sharding, or sample_shard inside jax.shard_map."
        )
    loc, loc_axis = _along_devices(request.parameters[0], sizes)
    concentration, concentration_axis = _along_devices(request.parameters[1], sizes)
    if separate:
        part = concentration.shape if concentration_axis is None else concentration.shape[1:]
        method = arguments.method(caller, method, part)
        draw = _mapped(_stream, devices, (0, loc_axis, concentration_axis))
        return draw(key, loc, concentration, sizes[1:], dtype, method)
    draw = _mapped(_part, devices, (None, loc_axis, concentration_axis, 0))
    # The device numbers give `jax.pmap` an argument to map over.
    return draw(key, loc, concentration, np.arange(len(devices), dtype=np.uint32), sizes[1:], dtype, request.route)


def sample_shard(
    key: ArrayLike,
    loc: ArrayLike,
    concentration: ArrayLike,
    shape: int | Sequence[int],
    axis_name: str | tuple[str, ...],
    dtype: DTypeLike | None = None,
    *,
    method: str = "auto",
) -> jax.Array:
    """Draw this device's part of one stream, inside the body of `jax.shard_map` or `jax.pmap`.

    Device ``j`` along `axis_name` draws the angles ``j * prod(shape)`` to ``(j + 1) * prod(shape) - 1`` of the key's
    stream.

    Parameters
    ----------
    key, dtype
        As in `sample_von_mises`; the same key on all devices.
    loc, concentration : float or array
        As in `sample_von_mises`; they broadcast to this device's part, and may differ between devices.
    shape : int or tuple of ints
        Shape of this device's part, filled in row-major order.
    axis_name : name or tuple of names
        Axes of the mesh along which the devices are counted, in row-major order if there are several. Devices that
        differ only along other axes draw the same angles.
    method : {"auto", "direct", "table"}
        As in `sample_block`: "auto" uses the table for one concentration, whatever the size.

    Returns
    -------
    jax.Array
        Angles in radians in [-pi, pi).

    Raises
    ------
    TypeError, ValueError
        For an invalid key, shape, dtype or method, and if `axis_name` is not an axis that the surrounding code is
        mapped over.

    Notes
    -----
    Concatenated along the leading axis, the parts equal the result of `sample_von_mises` for the complete shape and the
    same method. Concatenated along another axis, they give the same angles in a different order, since each row then
    spans all devices. Positions have 64 bits, with or without JAX's 64-bit mode.

    Examples
    --------
    >>> import jax
    >>> from jax.sharding import PartitionSpec
    >>> mesh = jax.make_mesh((jax.device_count(),), ("data",))
    >>> @jax.shard_map(mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec("data"))
    ... def draw(key):
    ...     return sample_shard(key, 0.0, 4.0, (1000,), "data")
    >>> draw(jax.random.key(0)).shape == (jax.device_count() * 1000,)
    True
    """
    caller = "sample_shard"
    size = math.prod(arguments.whole_sizes(caller, "shape", shape))
    try:
        if isinstance(axis_name, (tuple, list)) and not axis_name:
            raise ValueError("no axis at all")
        lax.axis_size(axis_name)  # `axis_index` also accepts a number, and fails only when it is compiled
        device = lax.axis_index(axis_name)
    except (NameError, TypeError, ValueError) as error:
        raise ValueError(
            f"{caller}: axis_name={arguments.safe_repr(axis_name)} is not an axis, or a tuple of axes, that the "
            "surrounding code is mapped over. Call it in the body of jax.shard_map or jax.pmap, with its axis names."
        ) from error
    start = counter.multiply_wide(lax.convert_element_type(device, np.uint32), size)
    values = {"loc": loc, "concentration": concentration}
    request = Request.of(caller, sampler.VON_MISES, key, values, shape, dtype, method, by_size=False)
    return draw(request.block(caller, start))


def _local_devices(caller: str, devices: Any) -> tuple[jax.Device, ...]:
    """Return the checked `devices` of this process; by default, all of them."""
    if devices is None:
        return tuple(jax.local_devices())
    try:
        found = tuple(devices)
    except TypeError:
        found = (devices,)
    strange = [device for device in found if not isinstance(device, jax.Device)]
    if strange or isinstance(devices, (str, bytes)):
        raise TypeError(
            f"{caller}: devices={arguments.safe_repr(devices)} must be a sequence of devices, such as "
            "jax.local_devices() or some of them."
        )
    far = [device for device in found if device.process_index != jax.process_index()]
    if far:
        raise ValueError(
            f"{caller}: devices={arguments.safe_repr(devices)} has {far[0]} of process {far[0].process_index}, but "
            f"this is process {jax.process_index()}. Give devices of jax.local_devices()."
        )
    if not found or len(set(found)) < len(found):
        fault = "names a device twice" if found else "is empty"
        raise ValueError(
            f"{caller}: devices={arguments.safe_repr(devices)} {fault}. Give at least one device, and each once."
        )
    return found


def _along_devices(array: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, int | None]:
    """Return `array` in the form that `jax.pmap` takes, and its mapped axis: 0 or None."""
    if array.ndim < len(shape):
        return array, None
    if array.shape[0] == shape[0]:
        return array, 0
    return array.reshape(array.shape[1:]), None


@functools.cache
def _mapped(
    function: Callable[..., jax.Array], devices: tuple[jax.Device, ...], axes: tuple[int | None, ...]
) -> Callable[..., jax.Array]:
    """Return `function` mapped over `devices`; cached, because `jax.pmap` compiles again for each new function."""
    static = tuple(range(len(axes), len(axes) + 3))  # shape, dtype and method
    mapped: Callable[..., jax.Array] = jax.pmap(
        function, in_axes=axes, devices=devices, static_broadcasted_argnums=static
    )
    return mapped


def _part(
    key: jax.Array,
    loc: jax.Array,
    concentration: jax.Array,
    device: jax.Array,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    route: str,
) -> jax.Array:
    """Return a device's part of the stream that all devices share."""
    start = counter.multiply_wide(device, math.prod(shape))
    return draw(Request(sampler.VON_MISES, key, (loc, concentration), start, shape, dtype, route))


def _stream(
    key: jax.Array,
    loc: jax.Array,
    concentration: jax.Array,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    method: str,
) -> jax.Array:
    """Return the beginning of a device's separate stream."""
    return sampler.sample_von_mises(key, loc, concentration, shape, dtype, method=method)
