"""Use von Mises-Fisher distributions in 768 dimensions as the noise of a generative model.

``python -m docs.examples.direction_noise --out picture.svg`` prints the tables and draws
the picture of docs/direction-noise.md.
"""

import functools

import jax
import jax.numpy as jnp

from docs.examples.drawing import COLORS, draw, parser, table
from jax_von_mises import VonMisesFisher

DIMENSION = 768
# A code of `TOKENS` directions: its loss is the cross entropy plus `PRICE` times the KL
# divergence in nats, and `RATE` is the first step size of Adam.
TOKENS, PRICE, RATE = 256, 0.1, 0.6
CONCENTRATIONS = (0.1, 1.0, 10.0, 100.0, 1_000.0, 10_000.0)


def overlap(x):
    """Return the square of the cosine of the angle to a fixed direction, which is 60 degrees from the first axis."""
    return (0.5 * x[..., 0] + 0.75**0.5 * x[..., 1]) ** 2


@functools.partial(jax.jit, static_argnums=2)
def estimates(key, concentration, count):
    """Return one-draw estimates of two derivatives of the mean of `overlap`, by parameter and estimator.

    They are those with respect to the concentration, and to a turn of the mean direction
    towards the second axis. The baseline of the score function is the mean of all values.
    """
    first, second = jnp.eye(2, DIMENSION)

    def by_draw(key):
        def value(natural):
            x = VonMisesFisher.from_natural(natural).sample(key)
            return overlap(x), x

        return jax.grad(value, has_aux=True)(concentration * first)

    def score(x):
        def log_prob(angle, concentration):
            mean = jnp.cos(angle) * first + jnp.sin(angle) * second
            return VonMisesFisher(mean, concentration).log_prob(x)

        return jnp.stack(jax.grad(log_prob, (0, 1))(0.0, concentration))

    slopes, draws = jax.vmap(by_draw)(jax.random.split(key, count))
    values = overlap(draws)
    scores = jax.vmap(score)(draws) * (values - jnp.mean(values))[:, None]
    return {
        "concentration, draws": slopes[:, 0],
        "concentration, score": scores[:, 1],
        "direction, draws": concentration * slopes[:, 1],
        "direction, score": scores[:, 0],
    }


def derivatives(concentration):
    """Return the derivatives that `estimates` estimates, by a continued fraction in float64."""
    d, rest = DIMENSION, 0.0
    for n in range(d + 2 * int(20 + concentration), d, -2):
        rest = concentration**2 / (n + rest)
    # `ratio` is the mean cosine divided by the concentration. The mean square of the cosine
    # is 1 - (d - 1) ratio.
    ratio = 1 / (d + rest)
    slope = (rest * ratio - (concentration * ratio) ** 2) / concentration
    return {"concentration": (1 - d / 4) * slope, "direction": 0.75**0.5 * rest * ratio}


def loss(natural, key):
    """Return the loss of a code, the natural parameter of each token, with its parts, from one draw for each token."""
    code = VonMisesFisher.from_natural(natural)
    x = code.sample(key)
    log_norm = code.concentration - code.log_prob(code.mode())
    log_posterior = jax.nn.log_softmax(x @ natural.T - log_norm[None, :])
    right = jnp.argmax(log_posterior, 1) == jnp.arange(TOKENS)
    entropy = -jnp.mean(jnp.diagonal(log_posterior))
    kl, length = jnp.mean(code.kl_to_uniform()), jnp.mean(code.mean_resultant_length())
    parts = {"cross entropy": entropy, "KL": kl, "mean cosine": length}
    return entropy + PRICE * kl, parts | {"decoded right": jnp.mean(right)}


@functools.partial(jax.jit, static_argnums=1)
def train(key, steps):
    """Return the loss with its parts at each step, by Adam from the uniform distribution for all tokens."""

    def step(state, given):
        natural, first, second = state
        i, key = given
        (value, parts), slope = jax.value_and_grad(loss, has_aux=True)(natural, key)
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope**2
        mean, square = first / (1 - 0.9 ** (i + 1)), second / (1 - 0.99 ** (i + 1))
        rate = RATE * (1 - i / steps)
        natural = natural - rate * mean / (jnp.sqrt(square) + 1e-8)
        return (natural, first, second), parts | {"loss": value}

    start = (jnp.zeros((TOKENS, DIMENSION)),) * 3
    given = jnp.arange(steps, dtype=jnp.float32), jax.random.split(key, steps)
    return jax.lax.scan(step, start, given)[1]


def spreads(key, count):
    """Return standard deviations of the estimates divided by the derivative, by concentration."""
    found = {}
    for kappa in CONCENTRATIONS:
        exact = derivatives(kappa)
        for name, values in estimates(key, jnp.float32(kappa), count).items():
            scale = abs(exact[name.split(",")[0]])
            found.setdefault(name, []).append(float(jnp.std(values)) / scale)
    return found


def picture(spread, history):
    """Return the figure: standard deviations of derivatives, and the training."""
    from matplotlib.figure import Figure

    left, right = Figure(figsize=(10, 4), layout="constrained").subplots(1, 2)
    for (name, values), colour in zip(spread.items(), COLORS, strict=False):
        left.loglog(CONCENTRATIONS, values, "o-", color=colour, label=name)
    left.set(xlabel="concentration", title="Spread of a derivative")
    for name, colour in zip(("loss", "cross entropy", "KL"), COLORS, strict=False):
        right.plot(history[name], color=colour, label=name)
    right.set(xlabel="step", title=f"A code of {TOKENS} directions, nats")
    left.legend()
    right.legend()
    return left.figure


def main(arguments=None):
    """Print the spreads of gradients and the result of the training, and draw the picture."""
    options = parser(__doc__).parse_args(arguments)
    count, steps = (500, 30) if options.quick else (4_000, 300)
    spread = spreads(jax.random.key(1), count)
    columns = [[f"{value:.2g}" for value in values] for values in spread.values()]
    rows = zip(map("{:,g}".format, CONCENTRATIONS), *columns, strict=True)
    print(table(["concentration", *spread], rows), end="\n\n")
    history = train(jax.random.key(0), steps)
    print(f"loss at the start: {history['loss'][0]:.2f}")
    # At the end, steps are short: average the noise of the draws over a tenth of them.
    for name, values in history.items():
        print(f"{name} after {steps} steps: {jnp.mean(values[-steps // 10 :]):.3g}")
    draw(options.out, picture, spread, history)


if __name__ == "__main__":
    main()
