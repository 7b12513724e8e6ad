"""A pipeline of two devices: one draws angles while the other one works on those of the batch before.

``python docs/examples/pipeline.py`` prints a table. It uses the first two devices that
JAX finds, and says so where there is only one.

Walkers take steps of length 1 and turn by a von Mises angle before each. The squared
distance that they reach has a mean in closed form, so the answer is known. It is the
sum over many batches of one stream: the device that draws them hands the angles to the
one that walks, without the host in between.
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
    2  # batches under way: one is drawn, one is walked; more would only take memory
)


def draw(key, batch, shape):
    """Turning angles of a batch: the next part of the key's stream."""
    return sample_block(key, 0.0, CONCENTRATION, batch * shape[0] * shape[1], shape)


@jax.jit
def walk(total, angles):
    """`total` and the squared distances that walkers reach who turn by `angles`, an array (walkers, steps)."""
    heading = jnp.cumsum(angles, axis=1)
    x, y = jnp.cos(heading).sum(axis=1), jnp.sin(heading).sum(axis=1)
    return total + jnp.sum(x**2 + y**2)


def pipeline(key, first, second, batches, shape):
    """Sum over all batches, each drawn on device `first` and walked on device `second`.

    Nothing here waits for a result: JAX puts a call into the queue of a device and
    returns. So batch b + 1 is drawn while batch b is walked, each device in its own
    order.
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
    """Mean squared distance: two steps l apart have the mean cosine A(concentration)^l between them."""
    cosine = 1 - float(variance(CONCENTRATION))
    lags = np.arange(1, steps)
    return steps + 2 * np.sum((steps - lags) * cosine**lags)


def timed(repeats, function, *arguments):
    """Result and the least seconds of several calls; one before them compiles."""
    seconds = []
    for _ in range(1 + repeats):
        begin = time.perf_counter()
        result = function(*arguments).block_until_ready()
        seconds.append(time.perf_counter() - begin)
    return result, min(seconds[1:])


def main(arguments=None):
    """Run both ways and print how they compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--devices",
        type=int,
        default=2,
        choices=(1, 2),
        help="how many to use, if there are",
    )
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--walkers", type=int, default=WALKERS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument(
        "--repeats", type=int, default=3, help="timings, of which the least is printed"
    )
    given = parser.parse_args(arguments)
    devices = jax.devices()[: given.devices]
    key, shape = jax.random.key(0), (given.walkers, given.steps)

    alone, one = timed(
        given.repeats, pipeline, key, devices[0], devices[0], given.batches, shape
    )
    print(f"{given.batches} batches of {given.walkers} walkers and {given.steps} steps")
    print(f"one device, {devices[0]}: {one:.3f} s")
    if len(devices) == 1:
        print("There is no second device: drawing and walking took turns on this one.")
    else:
        result, two = timed(
            given.repeats, pipeline, key, *devices, given.batches, shape
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
    mean = float(alone) / (given.batches * given.walkers)
    print(
        f"mean squared distance: {mean:.2f}, by the distribution {expected_distance(given.steps):.2f}"
    )


if __name__ == "__main__":
    jax.config.update(
        "jax_num_cpu_devices", 2
    )  # where there is no other kind; without effect where there is
    main()
