"""Sampling over several devices of one process: each makes its own part of one stream, and none waits for another.

An angle depends on its place in the stream alone (see :mod:`jax_von_mises.counter`), so a device needs to know only
where its part starts. `sample_von_mises` with `out_sharding` cuts a whole result along the axes of a mesh; here are the
forms in which the code of each device is written out, `jax.pmap` and the inside of `jax.shard_map`.
"""

import functools
import math

import jax
import numpy as np
from jax import lax

from jax_von_mises import checks, counter, cuda, sampler


def sample_pmap(key, loc, concentration, shape=None, dtype=None, *, method="auto", devices=None):
    """Draw angles with one device for each index of the leading axis, by `jax.pmap`.

    The angles are those of `sample_von_mises` with the same arguments, bit for bit.

    Parameters
    ----------
    key, dtype
        As in `sample_von_mises`.
    loc, concentration : float or array
        As in `sample_von_mises`; they broadcast to `shape`. An array with the leading axis of `shape` is cut along it,
        and each device gets its part; any other goes to all devices.
    shape : int or tuple of ints, optional
        Shape of the whole result, whose leading axis is the number of devices. The broadcast shape of `loc` and
        `concentration` by default.
    method : {"auto", "direct", "table"}
        As in `sample_von_mises`: "auto" decides by the whole `shape`.
    devices : sequence of jax.Device, optional
        Devices of this process, each once; ``result[i]`` lies on ``devices[i]``. ``jax.local_devices()`` by default.

    Returns
    -------
    jax.Array
        Angles in radians in [-pi, pi), sharded along the leading axis.

    Raises
    ------
    TypeError, ValueError
        For a bad key, shape, dtype, method or devices; if the leading axis is not the number of devices; and inside
        `jax.set_mesh`, where `jax.pmap` does not work: there `sample_von_mises` takes `out_sharding`.

    Notes
    -----
    There is one compiled program for each set of devices, shape, dtype and method, whatever the values. It may be
    called inside `jax.jit` and has the derivatives of `sample_von_mises`.

    Examples
    --------
    >>> import jax
    >>> n = jax.local_device_count()
    >>> x = sample_pmap(jax.random.key(0), 0.0, 4.0, (n, 1000))
    >>> x.shape == (n, 1000), len(x.devices()) == n
    (True, True)
    """
    caller = "sample_pmap"
    devices = _local_devices(caller, devices)
    key, loc, concentration, shape, dtype, method = sampler.whole(caller, key, loc, concentration, shape, dtype, method)
    if not shape or shape[0] != len(devices):
        has = f"has {shape[0]} along its leading axis" if shape else "has no leading axis"
        raise ValueError(
            f"{caller}: shape={shape} {has}, which must be the number of devices, {len(devices)}. "
            f"Ask for shape=({len(devices)}, ...), or name other devices in `devices`."
        )
    if not jax.sharding.get_abstract_mesh().empty:
        raise ValueError(
            f"{caller}: a mesh with the axes {jax.sharding.get_abstract_mesh().axis_names} is in scope, where jax.pmap "
            "does not work. Use sample_von_mises with out_sharding there, or sample_shard inside jax.shard_map."
        )
    loc, loc_axis = _along_devices(loc, shape)
    concentration, concentration_axis = _along_devices(concentration, shape)
    parts = _mapped(devices, loc_axis, concentration_axis)
    # The numbers of the devices are an argument because pmap asks for one that it maps over.
    return parts(np.arange(len(devices), dtype=np.uint32), key, loc, concentration, shape[1:], dtype, method)


def sample_shard(key, loc, concentration, shape, axis_name, dtype=None, *, method="auto"):
    """Draw this device's part of one stream, inside the body of `jax.shard_map` or `jax.pmap`.

    Device ``j`` along `axis_name` draws the angles ``j * prod(shape)`` to ``(j + 1) * prod(shape) - 1`` of the key's
    stream: the parts of all devices, one after the other, are what one device draws.

    Parameters
    ----------
    key, dtype
        As in `sample_von_mises`; the same key on all devices.
    loc, concentration : float or array
        As in `sample_von_mises`; they broadcast to this device's part, and may differ between devices.
    shape : int or tuple of ints
        Shape of this device's part, filled in row-major order.
    axis_name : name or tuple of names
        Axes of the mesh over which the devices are counted, several in row-major order. Devices that differ only in
        other axes draw the same angles.
    method : {"auto", "direct", "table"}
        As in `sample_block`: "auto" takes the table for one concentration, whatever the size.

    Returns
    -------
    jax.Array
        Angles in radians in [-pi, pi).

    Raises
    ------
    TypeError, ValueError
        For a bad key, shape, dtype or method, and where `axis_name` is not an axis that the code around is mapped over.

    Notes
    -----
    Along the leading axis of an array the parts join to `sample_von_mises` of the whole shape with the same method.
    Along another axis they are the same angles in other places, since row-major order runs through all devices in each
    row. Positions are counted in 64 bits, with JAX's 64-bit mode or without.

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
    size = math.prod(checks.whole_sizes(caller, "shape", shape))
    try:
        if isinstance(axis_name, (tuple, list)) and not axis_name:
            raise ValueError("no axis at all")
        lax.axis_size(axis_name)  # `axis_index` takes a number for a name, and fails when it is compiled
        device = lax.axis_index(axis_name)
    except (NameError, TypeError, ValueError) as error:
        raise ValueError(
            f"{caller}: axis_name={checks.shown(axis_name)} is not an axis, or a tuple of axes, that the code "
            "around is mapped over. Call it in the body of jax.shard_map or jax.pmap, with axis names of theirs."
        ) from error
    start = counter.multiply_wide(lax.convert_element_type(device, np.uint32), size)
    return sampler.block(caller, key, loc, concentration, start, shape, dtype, method)


def _local_devices(caller, devices):
    if devices is None:
        return tuple(jax.local_devices())
    try:
        found = tuple(devices)
    except TypeError:
        found = (devices,)
    strange = [device for device in found if not isinstance(device, jax.Device)]
    if strange or isinstance(devices, (str, bytes)):
        raise TypeError(
            f"{caller}: devices={checks.shown(devices)} must be a sequence of devices, such as jax.local_devices() or "
            "some of them."
        )
    far = [device for device in found if device.process_index != jax.process_index()]
    if far:
        raise ValueError(
            f"{caller}: devices={checks.shown(devices)} holds {far[0]} of process {far[0].process_index}, but this is "
            f"process {jax.process_index()}. Name devices of jax.local_devices()."
        )
    if not found or len(set(found)) < len(found):
        fault = "names a device twice" if found else "is empty"
        raise ValueError(f"{caller}: devices={checks.shown(devices)} {fault}. Name at least one device, and each once.")
    return found


def _along_devices(array, shape):
    """`array` in the form that `jax.pmap` takes, and its mapped axis: 0 or None."""
    if array.ndim < len(shape):
        return array, None
    if array.shape[0] == shape[0]:
        return array, 0
    return array.reshape(array.shape[1:]), None


@functools.cache
def _mapped(devices, loc_axis, concentration_axis):
    """The mapped function, which is kept: `jax.pmap` compiles anew for every function that it is given."""
    axes = (0, None, loc_axis, concentration_axis)
    return jax.pmap(_part, in_axes=axes, devices=devices, static_broadcasted_argnums=(4, 5, 6))


def _part(device, key, loc, concentration, shape, dtype, method):
    start = counter.multiply_wide(device, math.prod(shape))
    fused = cuda.chosen(key, loc, concentration, shape, dtype, method, None)
    return sampler.draw(key, loc, concentration, start, shape, dtype, method, None, fused)
