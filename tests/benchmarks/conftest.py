"""Restore the environment variable that the benchmark programs set in their process."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_preallocation():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        yield
