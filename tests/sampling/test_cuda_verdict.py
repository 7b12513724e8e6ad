"""Where the kernels are used by default: on what the machine has found out about them, and never in a file."""

import numpy as np

import jax_von_mises
from jax_von_mises.sampling import cuda, cuda_launch
from tests import host_kernels
from tests.host_kernels import on_host  # noqa: F401


def test_files_are_drawn_by_the_plain_path(on_host, tmp_path, key):  # noqa: F811
    """So that a run can go on where there are no kernels; batches of the same stream come from them."""
    names = []

    def launch(name, *given):
        names.append(name)
        return host_kernels.callback(name, *given)

    on_host.setattr(cuda_launch, "launch", launch)
    given = key, 1.0, 4.0, 3000
    jax_von_mises.write_samples(tmp_path / "angles.npy", *given, block_rows=1000)
    assert not names
    next(jax_von_mises.sample_batches(*given, batch_size=3000))
    assert names
    on_host.setenv(cuda.VARIABLE, "0")
    (plain,) = jax_von_mises.sample_batches(*given, batch_size=3000)
    np.testing.assert_array_equal(np.load(tmp_path / "angles.npy"), plain)
