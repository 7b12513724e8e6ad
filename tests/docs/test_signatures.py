"""Test that public functions have annotated parameters, and that docstrings describe these parameters."""

import inspect
import re

import pytest

import jax_von_mises
from jax_von_mises import runtime


def public():
    """Return the public functions, and the public methods of public classes, by name."""
    result = {}
    for module in (jax_von_mises, runtime):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value):
                methods = {key: getattr(each, "__func__", each) for key, each in vars(value).items() if key[0] != "_"}
                functions = {key: each.fget if isinstance(each, property) else each for key, each in methods.items()}
                result |= {f"{name}.{key}": each for key, each in functions.items() if inspect.isfunction(each)}
            elif callable(value) and not inspect.isclass(value):
                result[name] = value
    return result


FUNCTIONS = public()


def described(docstring):
    """Return the names in the Parameters section of a docstring, or None if there is no such section."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", inspect.cleandoc(docstring), re.M | re.S)
    if section is None:
        return None
    heads = re.findall(r"^([*\w][*\w, ]*?) *(?::.*)?$", section[1], re.M)
    return [name.strip("* ") for head in heads for name in head.split(",")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_annotated_and_described(name):
    signature = inspect.signature(FUNCTIONS[name])
    parameters = {key: each for key, each in signature.parameters.items() if key not in ("self", "cls")}
    assert signature.return_annotation is not signature.empty
    assert [key for key, each in parameters.items() if each.annotation is each.empty] == []
    names = described(FUNCTIONS[name].__doc__)
    if names is not None:
        assert sorted(names) == sorted(parameters)
    elif "." not in name and parameters:
        assert "see" in FUNCTIONS[name].__doc__.lower(), "the docstring does not describe the parameters"
