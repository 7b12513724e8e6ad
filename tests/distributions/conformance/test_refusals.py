"""Test that invalid arguments of every method, and of every class, raise errors that name them."""

import inspect
import re

import jax
import numpy as np
import pytest

from jax_von_mises.engine.base import of_one_angle
from tests.distributions.conformance.cases import PLAIN, marked
from tests.distributions.conformance.examples import EXAMPLES
from tests.distributions.conformance.test_transformations import methods
from tests.refusals import BAD, stands_for_default

# The kinds of the arguments of methods, and valid values for those that have no default.
KINDS = {"key": "key", "seed": "key", "sample_shape": "shape", "method": "choice", "out_sharding": "sharding"}
KINDS |= dict.fromkeys(("value", "q", "mass", "size", "phi"), "numbers")
KINDS |= {"start": "numbers", "order": "count", "other": "distribution"}
GOOD = {"key": jax.random.key(0), "size": 10.0, "order": 1, "mass": 0.5, "q": 0.5, "phi": 0.5}
# Methods may call another one, whose names stand in the message.
CALLED = {"prob": ["log_prob"], "quantile": ["icdf"], "survival_function": ["sf"], "log_cdf": ["cdf"], "log_sf": ["sf"]}
CALLED |= {"log_survival_function": ["sf", "log_sf"], "sample_and_log_prob": ["sample"]}
CALLED |= {"cross_entropy": ["kl_divergence"]}
SAME = {"seed": ("key",), "value": ("q", "x"), "mass": ("q",)}
# Largest number of characters in a message, however long the value is.
LONGEST = 700


def calls(one):
    """Yield the method, the other arguments, and the name and the kind of each argument of every method."""
    for name in methods(one):
        accepted = inspect.signature(getattr(one, name)).parameters
        good = {k: v for k, v in ({"value": np.full(one.event_shape, 0.5, one.dtype)} | GOOD).items() if k in accepted}
        if "other" in accepted:
            good["other"] = one
        for argument in accepted:
            kind = "start" if (name, argument) == ("sample", "start") else KINDS[argument]
            # `CircularDistribution` compiles its table, which takes seconds, before it checks the start.
            if kind != "start" or type(one).__name__ != "CircularDistribution":
                yield name, {k: v for k, v in good.items() if (k, argument) != ("key", "seed")}, argument, kind


def named(text, *names):
    """Return whether one of the names is a word of the text."""
    return any(re.search(rf"\b{name}\b", text) for name in names)


@pytest.mark.parametrize("name", marked(PLAIN))
def test_arguments_of_methods(name):
    """Each invalid one raises an error that names the method and the argument."""
    one = EXAMPLES[name].make(**EXAMPLES[name].one())
    for method, good, argument, kind in calls(one):
        for value in BAD[kind]:
            if value is None and stands_for_default(getattr(one, method), argument):
                continue
            with pytest.raises((TypeError, ValueError)) as raised:
                getattr(one, method)(**good | {argument: value})
            text = str(raised.value)
            assert len(text) <= LONGEST
            assert named(text, method, *CALLED.get(method, ())), (method, argument, text)
            assert named(text, argument, *SAME.get(argument, ())), (method, argument, text)


@pytest.mark.parametrize("name", marked(PLAIN))
def test_names_of_arguments(name):
    one = EXAMPLES[name].make(**EXAMPLES[name].one())
    with pytest.raises(TypeError, match="sample_shape"):
        one.sample(jax.random.key(0), size=3)
    if one.event_shape:
        with pytest.raises(ValueError, match="log_prob"):
            one.log_prob(np.ones(one.event_shape[0] + 1, np.float32))


OF_CLASSES = {name for name, each in EXAMPLES.items() if isinstance(each.make, type) or name.endswith("from_natural")}


@pytest.mark.parametrize("name", sorted(OF_CLASSES))
def test_parameters(name):
    """If they are checked, invalid ones raise an error that names them."""
    example = EXAMPLES[name]
    for parameter in example.rules:
        wrong = [example.one() | {parameter: value} for value in BAD["vector"]]
        for given in [*wrong, *(given for name, given in example.invalid() if name == parameter)]:
            with pytest.raises((TypeError, ValueError), match=parameter) as raised:
                example.make(**given, validate_args=True)
            assert len(str(raised.value)) <= LONGEST


@pytest.mark.parametrize("name", marked(PLAIN))
def test_methods_without_a_meaning(name):
    """Only distributions of one angle have probabilities below a value."""
    one = EXAMPLES[name].make(**EXAMPLES[name].one())
    for method in ("cdf", "log_sf", "icdf", "quantile", "stddev"):
        assert hasattr(one, method) == of_one_angle(one)
    assert hasattr(one, "interval") <= of_one_angle(one)
