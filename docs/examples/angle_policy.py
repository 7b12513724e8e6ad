"""Train a policy over headings through its samples and with the score function.

``python -m docs.examples.angle_policy --out picture.svg`` prints two tables and draws
the picture of docs/angle-policy.md. A vessel observes the directions of its goal and of
the wind, and chooses a heading. The best policy is known in closed form.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, random

from docs.examples.drawing import COLORS, draw, parser, table
from jax_von_mises import VonMises, initialize_compilation_cache

WIND = 0.5  # weight of the wind in the reward; the goal has weight 1
TEMPERATURE = 0.03  # reward per nat of entropy
SIZES, BATCH, EVERY = (4, 32, 32, 3), 64, 30
CONCENTRATIONS = (0.25, 1.0, 4.0, 16.0, 64.0, 256.0)


def reward(heading, state):
    """Return the reward for progress towards the goal plus that for a following wind."""
    return jnp.cos(heading - state[..., 0]) + WIND * jnp.cos(heading - state[..., 1])


def best_distribution(state):
    """Return the distribution that maximises mean reward + TEMPERATURE * entropy."""
    # Its density is proportional to exp(reward / TEMPERATURE).
    vector = jnp.exp(1j * state[..., 0]) + WIND * jnp.exp(1j * state[..., 1])
    return VonMises(jnp.angle(vector), jnp.abs(vector) / TEMPERATURE)


def mean_reward(distribution, state):
    """Return the mean reward; the mean of cos(heading - a) is (1 - variance) cos(loc - a)."""
    return (1 - distribution.variance()) * reward(distribution.loc, state)


def objective(distribution, state):
    """Return the exact mean reward plus the entropy bonus, averaged over the states."""
    mean = mean_reward(distribution, state)
    return jnp.mean(mean + TEMPERATURE * distribution.entropy())


def grid_states(side=32):
    """Return an even grid over all states; means over it are accurate integrals of smooth periodic functions."""
    direction = jnp.linspace(-jnp.pi, jnp.pi, side, endpoint=False)
    return jnp.stack(jnp.meshgrid(direction, direction), axis=-1).reshape(-1, 2)


@functools.partial(jax.vmap, in_axes=(None, 0))
def policy(params, state):
    """Return the distribution of the heading in each state."""
    hidden = jnp.concatenate([jnp.cos(state), jnp.sin(state)])
    for weight, bias in params[:-1]:
        hidden = jnp.tanh(hidden @ weight + bias)
    weight, bias = params[-1]
    x, y, z = hidden @ weight + bias
    # The network returns a vector because an angle would have to jump at pi.
    return VonMises(loc=jnp.arctan2(y, x), concentration=jnp.exp(z))


def pathwise(key, distribution, state):
    """Return the reward of a sampled heading, differentiable through the sample."""
    return reward(distribution.sample(key), state)


def score(key, distribution, state, baseline=0.0):
    """Return the log density of a sampled heading, weighted by the reward minus a baseline."""
    heading = lax.stop_gradient(distribution.sample(key))
    advantage = lax.stop_gradient(reward(heading, state) - baseline)
    return advantage * distribution.log_prob(heading)


def score_baseline(key, distribution, state):
    """Return `score` with the exact mean reward of each state as its baseline, which a perfect critic would predict."""
    return score(key, distribution, state, mean_reward(distribution, state))


# The learning rates of Adam are the best of 0.003, 0.01 and 0.03, by the final gap.
ESTIMATORS = {
    "pathwise": (pathwise, 0.01),
    "score function, baseline": (score_baseline, 0.01),
    "score function": (score, 0.003),
}


def loss(params, key, state, estimator):
    """Return the loss from one random angle per state and the exact entropy."""
    distribution = policy(params, state)
    bonus = TEMPERATURE * distribution.entropy()
    return -jnp.mean(estimator(key, distribution, state) + bonus)


@functools.partial(jax.jit, static_argnames=("estimator", "steps"))
def train(key, estimator, rate, steps):
    """Train with a learning rate that falls to 0; return the gap after every `EVERY` steps."""
    key, init_key = random.split(key)
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def step(carry, key):
        params, state = carry
        states_key, angles_key = random.split(key)
        states = random.uniform(states_key, (BATCH, 2), minval=-jnp.pi, maxval=jnp.pi)
        gradient = jax.grad(loss)(params, angles_key, states, estimator)
        updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), None

    def stretch(carry, keys):
        carry, _ = lax.scan(step, carry, keys)
        # A difference of objectives would lose digits.
        states = grid_states()
        found = policy(carry[0], states).kl_divergence(best_distribution(states))
        return carry, TEMPERATURE * jnp.mean(found)

    # Random weights and zero biases.
    weights, shapes = jax.nn.initializers.lecun_normal(), itertools.pairwise(SIZES)
    keys = random.split(init_key, len(SIZES) - 1)
    params = [(weights(k, s), jnp.zeros(s[1])) for k, s in zip(keys, shapes)]
    keys = random.split(key, (steps // EVERY, EVERY))
    return lax.scan(stretch, (params, optimizer.init(params)), keys)[1]


@functools.partial(jax.jit, static_argnames="estimator")
def variance(key, estimator, concentration, offset):
    """Return the variance of one-draw estimates of the derivative with respect to loc, `offset` from the best."""
    state, locs = jnp.zeros((2**17, 2)), jnp.full(2**17, offset)
    policies = lambda loc: VonMises(loc, jnp.full(2**17, concentration))
    return jnp.var(
        jax.grad(lambda loc: estimator(key, policies(loc), state).sum())(locs)
    )


def variance_table(key):
    """Return the table of variances divided by that of the pathwise estimator, with loc right and half a radian off."""
    head, rows = ["concentration"], [[f"{kappa:g}"] for kappa in CONCENTRATIONS]
    for name in ("score function, baseline", "score function"):
        for offset in (0.0, 0.5):
            head.append(f"{name}, {offset} off")
            for kappa, row in zip(CONCENTRATIONS, rows, strict=True):
                least = variance(key, pathwise, kappa, offset)
                found = variance(key, ESTIMATORS[name][0], kappa, offset)
                row.append(f"{found / least:.2g}")
    return table(head, rows)


def picture(curves):
    """Return the figure: the median and the range of the gap of each estimator against the steps."""
    from matplotlib.figure import Figure

    axes = Figure(figsize=(8, 4.2), layout="constrained").subplots()
    for (name, curve), colour in zip(curves.items(), COLORS, strict=False):
        steps = EVERY * np.arange(1, curve.shape[1] + 1)
        axes.fill_between(
            steps, *np.quantile(curve, (0, 1), axis=0), color=colour, alpha=0.2
        )
        axes.plot(steps, np.median(curve, axis=0), color=colour, label=name)
    axes.set(yscale="log", xlabel=f"steps of {BATCH} angles", title="Below the optimum")
    axes.grid(visible=True)
    axes.legend()
    return axes.figure


def main(arguments=None):
    """Print the tables and draw the picture."""
    options = parser(__doc__).parse_args(arguments)
    initialize_compilation_cache()  # later runs start faster
    seeds, steps = (2, 300) if options.quick else (5, 3000)
    learn_key, key = random.split(random.key(0))
    keys, curves = random.split(learn_key, seeds), {}
    for name, (estimator, rate) in ESTIMATORS.items():
        run = functools.partial(train, estimator=estimator, rate=rate, steps=steps)
        curves[name] = np.asarray(jax.vmap(run)(keys))
    states = grid_states()
    optimum = float(objective(best_distribution(states), states))
    gaps = {name: np.median(curve[:, -1]) for name, curve in curves.items()}
    rows = [[name, f"{optimum - x:.5f}", f"{x:.1e}"] for name, x in gaps.items()]
    rows += [["the optimum", f"{optimum:.5f}", ""]]
    print(table(["trained with", "objective", "below the optimum"], rows), end="\n\n")
    print(variance_table(key))
    draw(options.out, picture, curves)


if __name__ == "__main__":
    main()
