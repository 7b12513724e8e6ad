"""Train a policy over headings through its samples and with the score function.

``python -m docs.examples.angle_policy --out picture.svg`` prints two tables and draws
the picture of docs/angle-policy.md. The best policy is known in closed form.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, random

from docs.examples.drawing import COLORS, draw, parser, table
from jax_von_mises import VonMises

WIND, TEMPERATURE = 0.5, 0.03  # weight of the wind, and reward per nat of entropy
CONCENTRATIONS = 4.0 ** np.arange(-1, 5, dtype=np.float32)
# An even grid over all states; means over it are accurate integrals of periodic functions.
SIDE = np.linspace(-np.pi, np.pi, 32, endpoint=False, dtype=np.float32)
STATES = np.stack(np.meshgrid(SIDE, SIDE), axis=-1).reshape(-1, 2)


def reward(heading, state):
    """Return the reward for progress towards the goal plus that for a following wind."""
    return jnp.cos(heading - state[..., 0]) + WIND * jnp.cos(heading - state[..., 1])


def best(state):
    """Return the best distribution, with density proportional to exp(reward / TEMPERATURE)."""
    vector = jnp.exp(1j * state[..., 0]) + WIND * jnp.exp(1j * state[..., 1])
    return VonMises(jnp.angle(vector), jnp.abs(vector) / TEMPERATURE)


def mean_reward(distribution, state):
    """Return the mean reward; the mean of cos(heading - a) is (1 - variance) cos(loc - a)."""
    return (1 - distribution.variance()) * reward(distribution.loc, state)


@functools.partial(jax.vmap, in_axes=(None, 0))
def policy(params, state):
    """Return the distribution of the heading in each state."""
    hidden, output = params
    features = jnp.concatenate([jnp.cos(state), jnp.sin(state), jnp.ones(1)])
    x, y, z = jnp.append(jnp.tanh(features @ hidden), 1.0) @ output
    # The network returns a vector because an angle would have to jump at pi.
    return VonMises(loc=jnp.arctan2(y, x), concentration=jnp.exp(z))


def pathwise(key, distribution, state):
    """Return the reward of a sampled heading, differentiable through the sample."""
    return reward(distribution.sample(key), state)


def score(key, distribution, state, baseline=lambda *_: 0.0):
    """Return the log density of a sampled heading, weighted by the reward minus a baseline."""
    heading = lax.stop_gradient(distribution.sample(key))
    gain = reward(heading, state) - baseline(distribution, state)
    return lax.stop_gradient(gain) * distribution.log_prob(heading)


# The learning rates of Adam are the best of 0.003, 0.01 and 0.03, by the final gap.
ESTIMATORS = {
    "pathwise": (pathwise, 0.03),
    "score function, baseline": (functools.partial(score, baseline=mean_reward), 0.01),
    "score function": (score, 0.003),
}


def loss(params, key, state, estimator):
    """Return the loss from one random angle per state and the exact entropy."""
    distribution = policy(params, state)
    bonus = TEMPERATURE * distribution.entropy()
    return -jnp.mean(estimator(key, distribution, state) + bonus)


@functools.partial(jax.jit, static_argnames=("estimator", "steps"))
def train(key, estimator, rate, steps):
    """Train with a learning rate that falls to 0; return the distance of the objective from its optimum."""
    *keys, key = random.split(key, 3)
    hidden = random.normal(keys[0], (5, 64)) / 5**0.5
    output = random.normal(keys[1], (65, 3)) / 8
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def step(carry, key):
        params, state = carry
        states_key, angles_key = random.split(key)
        states = random.uniform(states_key, (64, 2), minval=-jnp.pi, maxval=jnp.pi)
        gradient = jax.grad(loss)(params, angles_key, states, estimator)
        updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), None

    start = (hidden, output), optimizer.init((hidden, output))
    (params, _), _ = lax.scan(step, start, random.split(key, steps))
    return TEMPERATURE * policy(params, STATES).kl_divergence(best(STATES)).mean()


@functools.partial(jax.jit, static_argnames="estimator")
def variances(key, estimator, offset):
    """Return variances of one-draw estimates of the derivative in loc, `offset` from the best, by concentration."""
    state, loc = jnp.zeros((2**17, 2)), jnp.full(2**17, offset)

    def total(loc, k):
        return estimator(key, VonMises(loc, jnp.full(2**17, k)), state).sum()

    return lax.map(
        lambda k: jnp.var(jax.grad(total)(loc, k)), jnp.array(CONCENTRATIONS)
    )


def picture(spreads):
    """Return the figure: the variances against the concentration, with loc right and half a radian off."""
    from matplotlib.figure import Figure

    panels = Figure(figsize=(10, 4), layout="constrained").subplots(1, 2, sharey=True)
    for axes, (offset, found) in zip(panels, spreads.items(), strict=True):
        for name, values, colour in zip(ESTIMATORS, found, COLORS, strict=False):
            axes.loglog(CONCENTRATIONS, values, "o-", color=colour, label=name)
        axes.set(xlabel="concentration", title=f"Variance, loc {offset:g} rad off")
    axes.legend()
    return axes.figure


def main(arguments=None):
    """Print the tables and draw the picture."""
    options = parser(__doc__).parse_args(arguments)
    seeds, steps = (2, 300) if options.quick else (5, 3000)
    bonus = TEMPERATURE * best(STATES).entropy()
    optimum = jnp.mean(mean_reward(best(STATES), STATES) + bonus)
    rows = [["the optimum", f"{optimum:.5f}", ""]]
    for name, (estimator, rate) in ESTIMATORS.items():
        run = functools.partial(train, estimator=estimator, rate=rate, steps=steps)
        gap = np.median(jax.vmap(run)(random.split(random.key(0), seeds)))
        rows.append([name, f"{optimum - gap:.5f}", f"{gap:.1e}"])
    print(table(["trained with", "objective", "below the optimum"], rows), end="\n\n")
    spreads = {}
    for offset in (0.0, 0.5):
        tried = [estimator for estimator, _ in ESTIMATORS.values()]
        spreads[offset] = [variances(random.key(1), each, offset) for each in tried]
    ratios = [each / found[0] for found in spreads.values() for each in found[1:]]
    rows = np.transpose([CONCENTRATIONS, *ratios])
    rows = [[f"{value:.3g}" for value in row] for row in rows]
    head = ["concentration", "baseline", "none", "baseline, 0.5 off", "none, 0.5 off"]
    print(table(head, rows))
    draw(options.out, picture, spreads)


if __name__ == "__main__":
    main()
