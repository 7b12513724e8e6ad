"""Train a policy over headings through its samples and with the score function.

``python -m docs.examples.angle_policy --out picture.svg`` prints two tables and draws
the picture of docs/angle-policy.md.

A vessel observes the directions of its goal and of the wind, and chooses a heading. The
reward is linear in the unit vector of the heading, and an entropy bonus keeps the policy
exploring. The best policy is therefore a von Mises distribution, with a direction and a
concentration that are known functions of the state.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, random
from jax.flatten_util import ravel_pytree

from docs.examples.drawing import COLORS, parser, settings, write
from jax_von_mises import VonMises, initialize_compilation_cache

__all__ = ["main"]

WIND = 0.5  # weight of the wind in the reward; the goal has weight 1
TEMPERATURE = 0.03  # reward per nat of entropy
SIZES = (4, 32, 32, 3)
BATCH = 64
STEPS = 3000
EVERY = 30
SEEDS = 5
CONCENTRATIONS = 2.0 ** np.arange(-2, 9)
OFFSETS = (0.5, 0.0)  # loc minus the best direction, in radians
LOOKED_AT = (0, 30, 300, 3000)  # training steps at which gradients are compared


# ------------------------------------------------------------------------------------------------
# the task


def reward(heading, state):
    """Return the reward for progress towards the goal plus that for a following wind."""
    return jnp.cos(heading - state[..., 0]) + WIND * jnp.cos(heading - state[..., 1])


def best_distribution(state):
    """Return the distribution that maximises mean reward + TEMPERATURE * entropy.

    Its density is proportional to exp(reward / TEMPERATURE).
    """
    goal, wind = state[..., 0], state[..., 1]
    x, y = jnp.cos(goal) + WIND * jnp.cos(wind), jnp.sin(goal) + WIND * jnp.sin(wind)
    return VonMises(jnp.arctan2(y, x), jnp.hypot(x, y) / TEMPERATURE)


def mean_reward(distribution, state):
    """Return the mean reward under `distribution`; the mean of cos(heading - a) is (1 - variance) cos(loc - a)."""
    return (1 - distribution.variance()) * reward(distribution.loc, state)


def objective(distribution, state):
    """Return the exact mean reward plus the entropy bonus, averaged over the states."""
    return jnp.mean(
        mean_reward(distribution, state) + TEMPERATURE * distribution.entropy()
    )


def gap(distribution, state):
    """Return how far `objective` is below its optimum; unlike a difference, the divergence has no cancellation."""
    return TEMPERATURE * jnp.mean(distribution.kl_divergence(best_distribution(state)))


def random_states(key, size):
    """Draw `size` states of two independent uniform directions."""
    return random.uniform(key, (size, 2), minval=-jnp.pi, maxval=jnp.pi)


def grid_states(side=32):
    """Return an even grid over all states; means over it are accurate integrals of smooth periodic functions."""
    direction = jnp.linspace(-jnp.pi, jnp.pi, side, endpoint=False)
    return jnp.stack(jnp.meshgrid(direction, direction), axis=-1).reshape(-1, 2)


# ------------------------------------------------------------------------------------------------
# the policy


def init(key):
    """Return random weights and zero biases of the network."""
    keys = random.split(key, len(SIZES) - 1)
    shapes = zip(keys, SIZES[:-1], SIZES[1:], strict=True)
    return [
        (random.normal(k, (m, n)) / np.float32(np.sqrt(m)), jnp.zeros(n))
        for k, m, n in shapes
    ]


def policy(params, state):
    """Return the distribution of the heading in one state."""
    hidden = jnp.concatenate([jnp.cos(state), jnp.sin(state)])
    for weight, bias in params[:-1]:
        hidden = jnp.tanh(hidden @ weight + bias)
    weight, bias = params[-1]
    x, y, z = hidden @ weight + bias
    # The network returns a vector because an angle would have to jump at pi.
    return VonMises(loc=jnp.arctan2(y, x), concentration=jnp.exp(z))


policies = jax.vmap(policy, in_axes=(None, 0))


# ------------------------------------------------------------------------------------------------
# the estimators

# The gradient of an estimator's result is an unbiased estimate of the gradient of the mean
# reward.


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


ESTIMATORS = {
    "pathwise": pathwise,
    "score function, baseline": score_baseline,
    "score function": score,
}
# Learning rates of Adam: the best of 0.003, 0.01 and 0.03 for each estimator, by the final gap.
RATES = {"pathwise": 0.01, "score function, baseline": 0.01, "score function": 0.003}


def loss(params, key, state, estimator):
    """Return the loss from one random angle per state and the exact entropy."""
    distribution = policies(params, state)
    return -jnp.mean(
        estimator(key, distribution, state) + TEMPERATURE * distribution.entropy()
    )


# ------------------------------------------------------------------------------------------------
# training


@functools.partial(jax.jit, static_argnames=("estimator", "steps", "every"))
def train(key, estimator, rate, steps=STEPS, every=EVERY):
    """Train with a learning rate that falls to 0; return the weights at the start and after every `every` steps."""
    key, init_key = random.split(key)
    params = init(init_key)
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def step(carry, key):
        params, state = carry
        states_key, angles_key = random.split(key)
        gradient = jax.grad(loss)(
            params, angles_key, random_states(states_key, BATCH), estimator
        )
        updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), None

    def stretch(carry, keys):
        return lax.scan(step, carry, keys)[0], carry[0]

    keys = random.split(key, (steps // every, every))
    (last, _), history = lax.scan(stretch, (params, optimizer.init(params)), keys)
    return jax.tree.map(
        lambda past, now: jnp.concatenate([past, now[None]]), history, last
    )


@jax.jit
def gaps(history):
    """Return the gap, averaged over all states, for each entry of a history of weights."""
    states = grid_states()
    return lax.map(lambda params: gap(policies(params, states), states), history)


# ------------------------------------------------------------------------------------------------
# the gradients


@jax.jit
def exact_gradient(params, state):
    """Return the gradient of the expected loss as one vector."""
    return ravel_pytree(
        jax.grad(lambda params: -objective(policies(params, state), state))(params)
    )[0]


@functools.partial(jax.jit, static_argnames=("estimator", "repeats"))
def gradients(key, params, state, estimator, repeats=4096):
    """Return gradients (repeats, weights) of the loss at fixed weights and states, from independent angles."""

    def one(key):
        return ravel_pytree(jax.grad(loss)(params, key, state, estimator))[0]

    return lax.map(one, random.split(key, repeats), batch_size=64)


def total_variance(gradients):
    """Return the variance of the gradient vector, summed over its components."""
    return float(np.var(np.asarray(gradients, np.float64), axis=0, ddof=1).sum())


def along_exact(gradients, exact):
    """Return the projection of the mean gradient on `exact`, as a multiple of `exact`, and its standard error."""
    exact = np.asarray(exact, np.float64)
    lengths = np.asarray(gradients, np.float64) @ exact / (exact @ exact)
    return lengths.mean(), lengths.std(ddof=1) / np.sqrt(lengths.size)


@functools.partial(jax.jit, static_argnames=("estimator", "size"))
def one_draw_derivatives(key, concentration, offset, estimator, size=2**17):
    """Return `size` single-draw estimates of the derivatives of the mean reward with respect to loc and concentration.

    Goal and wind are at angle 0; the loc of the policy is `offset`.
    """
    state = jnp.zeros((size, 2))

    def total(loc, concentration):
        return estimator(key, VonMises(loc, concentration), state).sum()

    return jax.grad(total, argnums=(0, 1))(
        jnp.full(size, offset), jnp.full(size, concentration)
    )


def variances(key, estimator, concentrations=CONCENTRATIONS):
    """Return the variances of the derivative with respect to `loc` as an array (offsets, concentrations)."""
    rows = []
    for offset in OFFSETS:
        draws = (
            one_draw_derivatives(key, jnp.float32(k), jnp.float32(offset), estimator)
            for k in concentrations
        )
        rows.append([float(jnp.var(in_loc)) for in_loc, _ in draws])
    return np.array(rows)


# ------------------------------------------------------------------------------------------------
# the report


def learn(key, seeds=SEEDS, steps=STEPS):
    """Train with each estimator from the same weights; return dicts of histories and of gaps (seeds, entries)."""
    keys = random.split(key, seeds)
    histories = {
        name: jax.vmap(
            functools.partial(train, estimator=estimator, rate=RATES[name], steps=steps)
        )(keys)
        for name, estimator in ESTIMATORS.items()
    }
    return histories, {
        name: np.asarray(jax.vmap(gaps)(history)) for name, history in histories.items()
    }


def learning_table(curves):
    """Return a Markdown table of the median final gap of each estimator."""
    states = grid_states()
    optimum = float(objective(best_distribution(states), states))
    lines = ["| trained with | objective | below the optimum |", "|---|---|---|"]
    for name, curve in curves.items():
        last = float(np.median(curve[:, -1]))
        lines.append(f"| {name} | {optimum - last:.5f} | {last:.1e} |")
    return "\n".join([*lines, f"| the optimum | {optimum:.5f} | |"])


def gradient_table(key, history, steps=STEPS):
    """Return a Markdown table of variances, relative to the pathwise one, and of projections on the exact gradient."""
    keys = random.split(key, len(ESTIMATORS) + 1)
    states = random_states(keys[-1], BATCH)
    lines = [
        f"| after step | {' | '.join(ESTIMATORS)} |",
        "|---" * (1 + len(ESTIMATORS)) + "|",
    ]
    for step in (step for step in LOOKED_AT if step <= steps):
        params = jax.tree.map(lambda past, entry=step // EVERY: past[entry], history)
        exact = exact_gradient(params, states)
        cells, unit = [], None
        for k, estimator in zip(keys, ESTIMATORS.values(), strict=False):
            samples = gradients(k, params, states, estimator)
            mean, error = along_exact(samples, exact)
            unit = unit or total_variance(samples)
            cells.append(
                f"{total_variance(samples) / unit:.3g}, {mean:.3f} ± {error:.3f}"
            )
        lines.append(f"| {step} | {' | '.join(cells)} |")
    return "\n".join(lines)


# Markers distinguish the lines in black and white.
STYLES = {
    "pathwise": {"color": COLORS[0], "marker": "o"},
    "score function, baseline": {"color": COLORS[1], "marker": "s"},
    "score function": {"color": COLORS[2], "marker": "^"},
}


def picture(curves, spreads):
    """Return the figure: gaps against steps on the left, variances against concentrations on the right."""
    from matplotlib import ticker
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(10, 4.4), facecolor="white", layout="constrained")
    learning, variance = figure.subplots(1, 2)
    for name, curve in curves.items():
        steps = np.arange(curve.shape[1]) * EVERY
        learning.fill_between(
            steps,
            curve.min(0),
            curve.max(0),
            color=STYLES[name]["color"],
            alpha=0.18,
            linewidth=0,
        )
        learning.plot(steps, np.median(curve, axis=0), **STYLES[name], markevery=10)
    learning.set_title(f"Objective below the optimum, {len(curve)} training runs")
    learning.set(yscale="log", xlabel=f"steps of {BATCH} angles")
    learning.xaxis.set_major_locator(ticker.MaxNLocator(4))

    for name, (off, on) in spreads.items():
        variance.plot(CONCENTRATIONS, off, **STYLES[name])
        variance.plot(
            CONCENTRATIONS,
            on,
            color=STYLES[name]["color"],
            linestyle=(0, (4, 2)),
            linewidth=1.2,
        )
    variance.set_title("Variance of one angle's derivative in loc")
    variance.set(xscale="log", yscale="log", xlabel="concentration")
    variance.xaxis.set_major_formatter(
        ticker.FuncFormatter(lambda value, _: f"{value:g}")
    )
    for axes in (learning, variance):
        axes.grid(visible=True)
        axes.minorticks_off()

    lines = [Line2D([], [], label=name, **STYLES[name]) for name in curves]
    lines.append(Line2D([], [], color="#555555", label=f"loc {OFFSETS[0]:g} rad off"))
    lines.append(
        Line2D(
            [],
            [],
            color="#555555",
            linestyle=(0, (4, 2)),
            linewidth=1.2,
            label="loc at the best",
        )
    )
    figure.legend(
        handles=lines, loc="outside lower center", ncols=len(lines), frameon=False
    )
    return figure


def main(arguments=None):
    """Print the tables and draw the picture."""
    options = parser(__doc__).parse_args(arguments)
    initialize_compilation_cache()  # later runs start faster
    seeds, steps = (2, 300) if options.quick else (SEEDS, STEPS)
    learn_key, gradient_key, variance_key = random.split(random.key(0), 3)
    histories, curves = learn(learn_key, seeds, steps)
    print(learning_table(curves), end="\n\nGradients during training\n\n")
    print(
        gradient_table(
            gradient_key,
            jax.tree.map(lambda past: past[0], histories["pathwise"]),
            steps,
        )
    )
    if options.out:
        with settings():
            write(
                picture(
                    curves,
                    {
                        name: variances(variance_key, e)
                        for name, e in ESTIMATORS.items()
                    },
                ),
                options.out,
            )


if __name__ == "__main__":
    main()
