"""Test that 512-bit vectors give the same angles, and that draws inside other programs do not use them."""

import jax
import numpy as np
import pytest

from jax_von_mises import environment, sample_batches, sample_block, sample_von_mises
from jax_von_mises.sampling import sampler, wide_vectors

KEY = jax.random.key(11)
COUNT = wide_vectors.SMALLEST
wide = pytest.mark.skipif(not wide_vectors.supported(), reason="needs a processor with 512-bit vectors")


@pytest.fixture
def draws(monkeypatch):
    """Record whether each draw runs the wide or the plain programs."""
    recorded, choose = [], sampler.programs_for

    def recording(request):
        recorded.append("wide" if choose(request) is sampler.WIDE else "plain")
        return choose(request)

    monkeypatch.setattr(sampler, "programs_for", recording)
    return recorded


@wide
@pytest.mark.parametrize("impl", ["threefry2x32", "philox4x32", "rbg"])
def test_same_angles(impl, draws):
    """The angles are the same for every concentration, even if the last chunk of a program's work is shorter."""
    key, shape = jax.random.key(7, impl=impl), (COUNT + 3,)
    in_program = jax.jit(lambda k: sample_von_mises(key, 0.3, k, shape))
    for k in np.float32([0, 1e-30, 1e-3, 0.3, 2, 40, 900, 1e5, 1e9, np.inf, np.nan]):
        np.testing.assert_array_equal(sample_von_mises(key, 0.3, k, shape), in_program(k))
    assert sorted(set(draws)) == ["plain", "wide"]
    assert draws.count("wide") == 11


@wide
@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_same_short_floats(dtype, draws):
    draw = lambda: sample_von_mises(KEY, 0.3, 40.0, (3, COUNT), dtype)  # noqa: E731
    np.testing.assert_array_equal(np.asarray(draw()), np.asarray(jax.jit(draw)()))
    assert draws == ["wide", "plain"]


@wide
def test_blocks_and_batches(draws):
    full = sample_von_mises(KEY, 0.5, 4.0, (2 * COUNT,))
    np.testing.assert_array_equal(sample_block(KEY, 0.5, 4.0, COUNT, COUNT), full[COUNT:])
    batches = [np.array(x) for x in sample_batches(KEY, 0.5, 4.0, 2 * COUNT, COUNT, donate=True)]
    np.testing.assert_array_equal(np.concatenate(batches), full)
    assert set(draws) == {"wide"}


def test_other_draws_keep_their_programs(draws):
    sample_von_mises(KEY, 0.0, np.full(COUNT, 4.0, np.float32))
    sample_von_mises(KEY, 0.0, 4.0, COUNT - 1)
    with jax.enable_x64(True):
        sample_von_mises(KEY, 0.0, 4.0, COUNT, "float64")
    assert set(draws) == {"plain"}


@pytest.mark.parametrize(
    "transform",
    [
        lambda draw: jax.jit(draw)(),
        lambda draw: jax.eval_shape(draw),
        lambda draw: jax.lax.cond(True, draw, draw),
        lambda draw: jax.grad(lambda k: draw(k).sum())(4.0),
        lambda draw: jax.vmap(draw)(np.ones(2, np.float32)),
    ],
    ids=["jit", "eval_shape", "cond", "grad", "vmap"],
)
def test_inside_of_other_programs(transform, draws):
    transform(lambda k=4.0: sample_von_mises(KEY, 0.0, k, (COUNT,)))
    assert set(draws) == {"plain"}


def test_unsupported(monkeypatch):
    supported = wide_vectors.supported.__wrapped__
    monkeypatch.setattr(environment, "processor", lambda field: "sse avx avx512f")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=true")
    assert supported()
    monkeypatch.setattr(wide_vectors, "OPTIONS", {"xla_cpu_no_such_option": 512})
    assert not supported()
    monkeypatch.undo()
    monkeypatch.setenv("XLA_FLAGS", f"--{wide_vectors.FLAG}=256")
    assert not supported()
    monkeypatch.undo()
    monkeypatch.setattr(environment, "PROC_CPU", environment.Path("/no/such/file"))
    assert environment.processor("flags") == ""
    assert not supported()
