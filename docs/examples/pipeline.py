"""Run a pipeline of two devices: one draws a batch of angles while the other works on the previous one.

``python docs/examples/pipeline.py`` compares the times and results of one device and of
the first two devices that JAX finds.

Walkers take steps of length 1 and turn by a von Mises angle before each step. The result
is the sum of their squared distances over many batches of one stream; its expected value
is known in closed form. The device that draws sends the angles directly to the device
that walks, without a copy to the host.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

from jax_von_mises import sample_block, variance

__all__ = ["main"]

CONCENTRATION = 4.0
WALKERS = 2**12
STEPS = 2**8
BATCHES = 40
IN_FLIGHT = (
    2  # batches: one is drawn while another is walked; more would only use memory
)


def draw(key, batch, shape):
    """Draw the turning angles of batch number `batch` from the key's stream."""
    return sample_block(key, 0.0, CONCENTRATION, batch * shape[0] * shape[1], shape)


@jax.jit
def walk(total, angles):
    """Return `total` plus the squared distances that walkers reach with turning angles `angles` (walkers, steps)."""
    heading = jnp.cumsum(angles, axis=1)
    x, y = jnp.cos(heading).sum(axis=1), jnp.sin(heading).sum(axis=1)
    return total + jnp.sum(x**2 + y**2)


def pipeline(key, first, second, batches, shape):
    """Return the sum over all batches, each drawn on device `first` and walked on device `second`.

    JAX queues each call and returns without waiting for the result, so batch b + 1 is
    drawn while batch b is walked.
    """
    key, total = jax.device_put(key, first), jax.device_put(jnp.zeros(()), second)
    totals = []
    with jax.transfer_guard_device_to_host("disallow"):
        for batch in range(batches):
            angles = draw(key, batch, shape)  # on `first`, where the key is
            total = walk(total, jax.device_put(angles, second))
            totals.append(total)
            if batch >= IN_FLIGHT:
                totals[batch - IN_FLIGHT].block_until_ready()
    return total


def expected_distance(steps):
    """Return the mean squared distance; the angle between steps l apart has the mean cosine (1 - variance)^l."""
    cosine = 1 - float(variance(CONCENTRATION))
    lags = np.arange(1, steps)
    return steps + 2 * np.sum((steps - lags) * cosine**lags)


def timed(repeats, function, *arguments):
    """Return the result and the shortest time in seconds of `repeats` calls, after a call that compiles."""
    seconds = []
    for _ in range(1 + repeats):
        begin = time.perf_counter()
        result = function(*arguments).block_until_ready()
        seconds.append(time.perf_counter() - begin)
    return result, min(seconds[1:])


def main(arguments=None):
    """Run on one device and on two, and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--devices",
        type=int,
        default=2,
        choices=(1, 2),
        help="number of devices to use, if available",
    )
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--walkers", type=int, default=WALKERS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument(
        "--repeats", type=int, default=3, help="timed runs; the shortest is printed"
    )
    options = parser.parse_args(arguments)
    devices = jax.devices()[: options.devices]
    key, shape = jax.random.key(0), (options.walkers, options.steps)

    alone, one = timed(
        options.repeats, pipeline, key, devices[0], devices[0], options.batches, shape
    )
    print(
        f"{options.batches} batches of {options.walkers} walkers and {options.steps} steps"
    )
    print(f"one device, {devices[0]}: {one:.3f} s")
    if len(devices) == 1:
        print("Only one device is used: drawing and walking alternate on it.")
    else:
        result, two = timed(
            options.repeats, pipeline, key, *devices, options.batches, shape
        )
        same = (
            "the same, bit for bit"
            if np.array_equal(result, alone)
            else f"NOT the same: {result} and {alone}"
        )
        print(
            f"drawn on {devices[0]}, walked on {devices[1]}: {two:.3f} s, {one / two:.2f} times as fast"
        )
        print(f"results: {same}")
    mean = float(alone) / (options.batches * options.walkers)
    print(
        f"mean squared distance: {mean:.2f}, expected {expected_distance(options.steps):.2f}"
    )


if __name__ == "__main__":
    jax.config.update(
        "jax_num_cpu_devices", 2
    )  # has no effect if JAX uses another platform
    main()
