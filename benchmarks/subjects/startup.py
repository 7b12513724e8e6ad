"""Make first calls in new processes; imports, and the making of keys and data, are not counted.

A process runs the setup of a task, waits for all data, and then times the call. Compiled programs come from JAX's
compilation cache only in the cases that say so. The first calls of each class are in the group ``classes``.
"""

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.competitors import Unavailable
from benchmarks.peers import NORMAL, NUMPYRO, TFP
from benchmarks.results import OURS
from benchmarks.runner import Case
from benchmarks.timing import Competitor

__all__ = ["cases"]

PROGRAM = """
import time, warnings
warnings.simplefilter("ignore")
import jax, jax.numpy as jnp, numpy as np
{imports}
r = np.random.default_rng(0)
key = jax.random.key(0)
few, many = 5.0, jnp.asarray(np.exp(r.uniform(-2, 6, 1000)), jnp.float32)
x = jnp.asarray(r.vonmises(0, 4, 1000), jnp.float32)
q = jnp.asarray(r.random(1000), jnp.float32)
two = jnp.asarray(r.vonmises([0, 1], [4, 9], (1000, 2)), jnp.float32)
apart = jnp.asarray(r.vonmises(np.array([-2.0, 0, 2])[r.integers(0, 3, 1000)], 8), jnp.float32)
torn = jnp.asarray(r.vonmises(np.array([[-2.0, 1], [1, -1]])[r.integers(0, 2, 1000)], 8), jnp.float32)
pole = jnp.asarray([1, 0, 0], jnp.float32)
jax.block_until_ready((key, many, x, q, two, apart, torn, pole))
{setup}
begin = time.perf_counter()
jax.block_until_ready({call})
print(time.perf_counter() - begin)
"""

IMPORTS = {
    OURS: "import jax_von_mises as jvm, jax_von_mises.public",
    NORMAL: "",
    NUMPYRO: "import numpyro.distributions as dist",
    TFP: "from tensorflow_probability.substrates.jax import distributions as tfd",
}

# The call of each library for each task.
CALLS = {
    "draw of 1": {OURS: "jvm.sample_von_mises(key, 0.0, few)", NORMAL: "jax.random.normal(key)"},
    "draws, 1,000": {
        OURS: "jvm.sample_von_mises(key, 0.0, few, (1000,))",
        NORMAL: "jax.random.normal(key, (1000,))",
        NUMPYRO: "dist.VonMises(0.0, few).sample(key, (1000,))",
        TFP: "tfd.VonMises(0.0, few).sample(1000, seed=jax.random.PRNGKey(0))",
    },
    "draws, $2^{20}$": {
        OURS: "jvm.sample_von_mises(key, 0.0, few, (2**20,))",
        NORMAL: "jax.random.normal(key, (2**20,))",
    },
    "draws, a concentration each, 1,000": {
        OURS: "jvm.sample_von_mises(key, 0.0, many)",
        NORMAL: "jax.random.normal(key, (1000,))",
        NUMPYRO: "dist.VonMises(0.0, many).sample(key)",
        TFP: "tfd.VonMises(0.0, many).sample(seed=jax.random.PRNGKey(0))",
    },
    "gradient of draws, 1,000": {
        OURS: "jax.grad(lambda k: jvm.sample_von_mises(key, 0.0, k, (1000,)).sum())(few)",
        TFP: "jax.grad(lambda k: tfd.VonMises(0.0, k).sample(1000, seed=jax.random.PRNGKey(0)).sum())(few)",
    },
    "`log_prob`": {
        OURS: "jvm.log_prob(x, 0.0, few)",
        NUMPYRO: "dist.VonMises(0.0, few).log_prob(x)",
        TFP: "tfd.VonMises(0.0, few).log_prob(x)",
    },
    "gradient of `log_prob`": {
        OURS: "jax.grad(lambda k: jvm.log_prob(x, 0.0, k).sum())(few)",
        NUMPYRO: "jax.grad(lambda k: dist.VonMises(0.0, k).log_prob(x).sum())(few)",
        TFP: "jax.grad(lambda k: tfd.VonMises(0.0, k).log_prob(x).sum())(few)",
    },
    "`cdf`": {OURS: "jvm.cdf(x, 0.0, few)", TFP: "tfd.VonMises(0.0, few).cdf(x)"},
    "`icdf`": {OURS: "jvm.icdf(q, 0.0, few)"},
    "`fit`": {OURS: "jvm.fit(x)"},
    "`sample_truncated`": {
        OURS: "jvm.sample_truncated(key, 0.0, few, -1.0, 2.0, (1000,))",
        "jax.random.truncated_normal": "jax.random.truncated_normal(key, -1.0, 2.0, (1000,))",
    },
    "`VonMisesFisher`, draws, d = 3": {
        OURS: "jvm.VonMisesFisher(pole, few).sample(key, (1000,))",
        NORMAL: "jax.random.normal(key, (1000, 3))",
        TFP: "tfd.VonMisesFisher(pole, few).sample(1000, seed=jax.random.PRNGKey(0))",
    },
    "`SineBivariateVonMises`, draws": {
        OURS: "jvm.SineBivariateVonMises(0.0, 1.0, 4.0, 9.0, 3.0).sample(key, (1000,))",
        NUMPYRO: "dist.SineBivariateVonMises(0.0, 1.0, 4.0, 9.0, 3.0).sample(key, (1000,))",
    },
    "`SineBivariateVonMises`, `log_prob`": {
        OURS: "jvm.SineBivariateVonMises(0.0, 1.0, 4.0, 9.0, 3.0).log_prob(two)",
        NUMPYRO: "dist.SineBivariateVonMises(0.0, 1.0, 4.0, 9.0, 3.0).log_prob(two)",
    },
    "`SineBivariateVonMises.fit`": {OURS: "jvm.SineBivariateVonMises.fit(two)"},
    "`Mixture.fit`, three von Mises": {OURS: "jvm.Mixture.fit(apart, jvm.VonMises, number=3)"},
    "`Mixture.fit`, two pairs": {OURS: "jvm.Mixture.fit(torn, jvm.SineBivariateVonMises, number=2)"},
}

# Tasks that are repeated with a full compilation cache.
CACHED = ("draws, 1,000", "draws, a concentration each, 1,000", "`SineBivariateVonMises`, draws")

# A complete run of a sampler, with the class of either library.
NUTS = """
import numpyro
from numpyro.infer import MCMC, NUTS
import {module} as chosen
def model(x):
    weights = numpyro.sample("weights", numpyro.distributions.Dirichlet(jnp.ones(2)))
    loc = numpyro.sample("loc", numpyro.distributions.Normal(jnp.array([-1.0, 1.0]), 1.0).to_event(1))
    scale = numpyro.sample("k", numpyro.distributions.LogNormal(jnp.ones(2), 1.0).to_event(1))
    mixing = numpyro.distributions.Categorical(probs=weights)
    numpyro.sample("x", numpyro.distributions.MixtureSameFamily(mixing, chosen.VonMises(loc, scale)), obs=x)
def run():
    mcmc = MCMC(NUTS(model), num_warmup=300, num_samples=500, progress_bar=False)
    mcmc.run(key, x[:300])
    return mcmc.get_samples()
"""


def seconds(program):
    """Run a program in a new process and return what it prints; hide the user's own compilation cache."""
    variables = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, env=variables)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        if any("ModuleNotFoundError" in line for line in last):
            raise ModuleNotFoundError(name=last[0].split("'")[1])
        raise Unavailable(f"fails: {' '.join(last)[:100]}")
    return float(done.stdout.splitlines()[-1])


def fresh(peer, call, setup="", cached=False):
    """Return a function that makes a competitor of new processes."""
    program = functools.partial(PROGRAM.format, imports=IMPORTS.get(peer, ""), call=call)

    def make(count):
        if not cached:
            return Competitor(lambda i: seconds(program(setup=setup)), measures=True)
        folder = tempfile.TemporaryDirectory(prefix="jax_von_mises-")  # removed with the competitor

        def call_from_cache(i):
            return seconds(
                program(setup=f"import jax_von_mises\njax_von_mises.initialize_compilation_cache({folder.name!r})")
            )

        return Competitor(call_from_cache, measures=True)

    return make


def cases():
    """Return the cases."""
    found = [
        Case(task, 1, {peer: fresh(peer, call) for peer, call in calls.items()}, "s") for task, calls in CALLS.items()
    ]
    for task in CACHED:
        peers = {peer: fresh(peer, call, cached=True) for peer, call in CALLS[task].items()}
        found.append(Case(f"{task}, from the cache", 1, peers, "s"))
    modules = {OURS: "jax_von_mises.numpyro", NUMPYRO: "numpyro.distributions"}
    peers = {peer: fresh(peer, "run()", NUTS.format(module=module)) for peer, module in modules.items()}
    return [*found, Case("NUTS for a mixture of two, 300 points, whole run", 1, peers, "s")]
