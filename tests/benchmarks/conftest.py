"""Set and restore the environment variable that the benchmark programs would set in this process."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_preallocation():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        yield
