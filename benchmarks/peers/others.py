"""Define the peers that do not use JAX."""

import contextlib
import importlib.util
import itertools
import multiprocessing
from typing import ClassVar

import numpy as np

from benchmarks.cases import TASKS
from benchmarks.peers.common import NO_DERIVATIVE, SEED, Peer, Ready, Unavailable, lacks, rotating
from benchmarks.timing import Competitor

__all__ = ["MKL", "CuPy", "NumPy", "SciPy", "Torch"]

ONLY_DRAWS = lacks("only samples", *(task for task in TASKS if task != "sample"))


class NumPy(Peer):
    """NumPy's ``Generator.vonmises``: float64 rejection in C on one core."""

    name, label = "numpy", "NumPy"
    lacks: ClassVar = ONLY_DRAWS
    most: ClassVar = {"sample": 2**22}  # the rate does not depend on the number of draws

    def sample(self, case):
        """Prepare draws."""
        generator = np.random.default_rng(SEED)
        concentration = np.asarray(case.concentrations, np.float64)
        return Ready(Competitor(lambda _: generator.vonmises(0.0, concentration, case.count)))


class MKL(Peer):
    """``mkl_random``: float64 rejection with Intel's vector library on one core.

    The library runs in a separate process, since it disturbs NumPy's generator. A request and its reply take about 50
    microseconds.
    """

    name, label = "mkl", "mkl_random"
    lacks: ClassVar = ONLY_DRAWS
    most: ClassVar = {"sample": 2**22}

    def sample(self, case):
        """Prepare draws."""
        if importlib.util.find_spec("mkl_random") is None:
            raise Unavailable("not installed: pip install mkl_random")
        spawn = multiprocessing.get_context("spawn")
        here, there = spawn.Pipe()
        concentration = np.asarray(case.concentrations, np.float64)
        spawn.Process(target=draw_by_mkl, args=(there, concentration, case.count), daemon=True).start()
        there.close()
        calls = itertools.count()

        def draw(_):
            here.send(None)
            return next(calls)

        def read(call):
            here.send(call)
            return here.recv()

        return Ready(Competitor(draw, wait=lambda _: here.recv()), read)


def draw_by_mkl(connection, concentration, count):
    """Serve the requests of `MKL`.

    None requests new draws. A number requests the draws of that call, which must be one of the last two.
    """
    import mkl_random

    generator, calls, kept = mkl_random.MKLRandomState(SEED), itertools.count(), {}
    with contextlib.suppress(EOFError):
        while True:
            request = connection.recv()
            if request is None:
                call = next(calls)
                kept.pop(call - 2, None)
                kept[call] = generator.vonmises(0.0, concentration, count)
            connection.send(None if request is None else kept[request])


class SciPy(Peer):
    """``scipy.stats.vonmises``, in float64."""

    name, label = "scipy", "SciPy"
    lacks: ClassVar = {
        **lacks("samples with NumPy, which is timed", "sample"),
        **lacks("not implemented for this distribution", "truncated", "mixture"),
        **lacks(NO_DERIVATIVE, "gradient"),
    }
    # SciPy loops over fits and quantiles in Python, so their rate does not depend on the number of elements. A million
    # quantiles would take 15 minutes. The other limits are for runs on a GPU, which have larger cases.
    most: ClassVar = {"fit": 100, "cdf": 2**20, "log_prob": 2**20}
    most_ever: ClassVar = {"icdf": 256}

    def of_arrays(self, case, function):
        """Return ``function(x, concentration)`` as a competitor whose calls cycle through a few arrays."""
        concentration = np.float64(case.concentrations)

        def give(array):
            return np.asarray(array, np.float64)

        return Ready(Competitor(lambda x: function(x, concentration), rotating(case, give)), give=give)

    def icdf(self, case):
        """Prepare quantiles, by a root search for each point."""
        from scipy import stats

        return self.of_arrays(case, stats.vonmises.ppf)

    def cdf(self, case):
        """Prepare probabilities."""
        from scipy import stats

        return self.of_arrays(case, stats.vonmises.cdf)

    def log_prob(self, case):
        """Prepare log densities."""
        from scipy import stats

        return self.of_arrays(case, stats.vonmises.logpdf)

    def fit(self, case):
        """Prepare estimates, one data set at a time, since SciPy takes no batch."""
        from scipy import stats

        return self.of_arrays(case, lambda x, concentration: [stats.vonmises.fit(row, fscale=1) for row in x])


class Torch(Peer):
    """PyTorch's ``VonMises``: float64 rejection in a loop over the complete array, on the GPU if JAX uses one."""

    name, label = "torch", "PyTorch"
    lacks: ClassVar = {
        **lacks("not implemented for this distribution", "truncated", "icdf", "cdf"),
        **lacks("only the density of a single distribution is timed", "mixture"),
        **lacks("does not fit this distribution", "fit"),
        **lacks(NO_DERIVATIVE, "gradient"),
    }
    # The loop runs over arrays larger than the cache until the last element is accepted. Fewer draws are in PyTorch's
    # favour, since the measured rate halves each time their number grows fourfold.
    most: ClassVar = {"sample": 2**21}
    most_ever: ClassVar = {"sample": 2**24}  # each draw needs 94 to 121 bytes of memory

    def start(self, case):
        """Return the library, its device and the parameters."""
        try:
            import torch
        except ImportError as error:
            raise Unavailable("not installed: pip install torch") from error
        import jax

        device = "cuda" if jax.default_backend() == "gpu" and torch.cuda.is_available() else "cpu"
        dtype = getattr(torch, case.dtype)
        concentration = torch.as_tensor(case.concentrations).to(device, dtype)
        return torch, device, (torch.zeros((), dtype=dtype, device=device), concentration)

    def ready(self, torch, device, draw, **more):
        """Return `draw` as a competitor on `device`."""
        return Ready(
            Competitor(draw, wait=lambda _: torch.cuda.synchronize() if device == "cuda" else None, **more),
            read=lambda result: result.cpu().numpy(),
            give=lambda array: torch.as_tensor(array).to(device),
            device="gpu" if device == "cuda" else "cpu",
        )

    def sample(self, case):
        """Prepare draws; `torch.compile` would not change their loop, which is TorchScript."""
        torch, device, parameters = self.start(case)
        distribution = torch.distributions.VonMises(*parameters, validate_args=False)
        torch.manual_seed(SEED)
        shape = () if case.per_draw else (case.count,)
        return self.ready(torch, device, lambda _: distribution.sample(shape))

    def log_prob(self, case):
        """Prepare log densities, computed by a compiled program."""
        torch, device, parameters = self.start(case)

        def density(x, loc, concentration):
            return torch.distributions.VonMises(loc, concentration, validate_args=False).log_prob(x)

        # `torch.compile` silently stops compiling after eight programs of one function.
        torch.compiler.reset()
        compiled = torch.compile(density, dynamic=False)
        fresh = rotating(case, lambda array: torch.as_tensor(array).to(device))
        return self.ready(torch, device, lambda x: compiled(x, *parameters), fresh=fresh)


class CuPy(Peer):
    """CuPy's ``random.vonmises``: rejection in float64, one GPU thread per draw."""

    name, label = "cupy", "CuPy"
    lacks: ClassVar = ONLY_DRAWS

    def sample(self, case):
        """Prepare draws."""
        try:
            import cupy
        except ImportError as error:
            raise Unavailable("not installed: pip install cupy-cuda13x") from error
        try:
            cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise Unavailable(f"finds no GPU: {error}") from error
        cupy.random.seed(SEED)
        concentration = cupy.asarray(case.concentrations)
        competitor = Competitor(
            draw=lambda _: cupy.random.vonmises(0.0, concentration, case.count, dtype=np.dtype(case.dtype)),
            wait=lambda _: cupy.cuda.get_current_stream().synchronize(),
        )
        return Ready(competitor, cupy.asnumpy, device="gpu")
