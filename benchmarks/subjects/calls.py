"""Make small calls: in a loop of a larger program, and outside any jitted function."""

from benchmarks.competitors import of_keys
from benchmarks.peers import NORMAL
from benchmarks.results import OURS
from benchmarks.runner import Case

__all__ = ["cases"]

STEPS = 1000


def looped(draw):
    """Return a function of the number of steps that draws in each step of a jitted loop."""
    import jax

    def make(steps):
        def program(key, k):
            def step(total, i):
                return total + draw(jax.random.fold_in(key, i), k + total * 0).sum(), None

            return jax.lax.scan(step, jax.numpy.zeros(()), jax.numpy.arange(steps))[0]

        return of_keys(program, 5.0)

    return make


def eager(draw):
    """Return a function that makes an eager competitor, whatever the number of calls."""
    return lambda count: of_keys(draw, 5.0, jit=False)


def cases():
    """Return the cases."""
    import jax

    import jax_von_mises as jvm

    def draws(n):
        return {
            OURS: lambda key, k: jvm.sample_von_mises(key, 0.0, k, (n,)),
            NORMAL: lambda key, k: jax.random.normal(key, (n,)),
        }

    def gradient(n):
        def ours(key, k):
            return jax.grad(lambda k: jvm.sample_von_mises(key, 0.0, k, (n,)).sum())(k)

        def normal(key, k):
            return jax.grad(lambda k: (jax.random.normal(key, (n,)) * k).sum())(k)

        return {OURS: ours, NORMAL: normal}

    x = jax.numpy.linspace(-3.0, 3.0, 1000)
    log_prob = {
        OURS: lambda key, k: jvm.log_prob(x, 0.0, k),
        "jax.scipy": lambda key, k: jax.scipy.stats.vonmises.logpdf(x, k),
    }

    def of(make, functions):
        return {peer: make(function) for peer, function in functions.items()}

    return [
        *(Case(f"{n:,} in a step of a jitted loop", STEPS, of(looped, draws(n)), "steps") for n in (1, 1000)),
        *(Case(f"eager call of {n:,}", 1, of(eager, draws(n)), "calls") for n in (1, 1000)),
        Case("eager gradient of 1,000", 1, of(eager, gradient(1000)), "calls"),
        Case("eager `log_prob` of 1,000", 1, of(eager, log_prob), "calls"),
    ]
