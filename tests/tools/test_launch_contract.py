"""Test that the check of how XLA launches the CUDA kernels detects launches that a kernel does not expect."""

import pytest

from jax_von_mises.sampling import cuda_launch
from tools import launch_contract
from tools.launch_contract import Argument

CASES = launch_contract.cases()
SIZES = {"key": 8, "start": 8, "sizes": 20, "kappa": 4000, "table": 8192, "loc": 4000, "out": 4000}


def launch(spec):
    """Return a correct launch of one draw, with separate memory for each argument."""
    taken = launch_contract.parameters_of(spec.route)
    sizes = SIZES | ({"loc": 4, "out": 2000 if spec.dtype == "bfloat16" else 4000} if spec.route == "table" else {})
    arguments = [Argument(name, place, 0, sizes[name], True, name == "out") for place, name in enumerate(taken)]
    text = cuda_launch.kernel_text(spec.name)
    return launch_contract.Launch(spec.name, text, tuple(arguments), tuple(range(6)), (1, 1, 1), (256, 1, 1), 0)


@pytest.mark.parametrize("cipher", ["threefry2x32", "threefry4x32", "philox2x32", "philox4x32"])
def test_the_shipped_text_fits(cipher):
    """The parameters, launch bounds and shared memory of the shipped kernels fit their launches."""
    for name in ("arrays", "table", "bfloat16"):
        case = CASES[name]._replace(spec=CASES[name].spec._replace(cipher=cipher))
        assert list(launch_contract.faults(launch(case.spec), case)) == []


def changed(original, name, **fields):
    """Return a copy of the launch with changed fields of the argument `name`."""
    return original._replace(arguments=tuple(x._replace(**fields) if x.name == name else x for x in original.arguments))


def test_each_fault_is_found():
    """The message names each fault; adjacent memory is no fault."""
    case = CASES["table"]
    good = launch(case.spec)
    key, start, sizes, table, loc, out = good.arguments
    faults = {
        "argument 0 is start": good._replace(arguments=(start, key, sizes, table, loc, out)),
        "argument 4 is out": good._replace(arguments=(key, start, sizes, table, out, loc)),
        "XLA passes 5 arguments": good._replace(arguments=good.arguments[:5], order=tuple(range(5))),
        "in the order (0, 1, 2, 4, 3, 5)": good._replace(order=(0, 1, 2, 4, 3, 5)),
        "out has 2000 bytes": changed(good, "out", size=2000),
        "table is not in row-major": changed(good, "table", row_major=False),
        "table is not aligned": changed(good, "table", offset=8),
        "out is not aligned": changed(good, "out", offset=4),
        "written over loc": changed(changed(good, "out", allocation=9), "loc", allocation=9, offset=3996),
        "the grid is (2, 1, 1)": good._replace(grid=(2, 1, 1)),
        "512 threads, but the kernel allows 256": good._replace(block=(512, 1, 1)),
        "XLA adds 64": good._replace(shared=64),
        "the kernel is other": good._replace(name="other"),
        "its text differs": good._replace(text=good.text[:-2]),
        "field 4 of the thunk": good._replace(unknown=("4 of the thunk",)),
    }
    for words, wrong in faults.items():
        assert words in "; ".join(launch_contract.faults(wrong, case)), words
    adjacent = changed(changed(good, "out", allocation=9), "loc", allocation=9, offset=4000)
    assert list(launch_contract.faults(adjacent, case)) == []


def test_executables_are_read():
    """Snappy literals and copies, and nested records, are read; other compression methods are refused."""
    assert launch_contract.decompress(b"\x0a\x04ab\x11\x02") == b"ababababab"
    with pytest.raises(ValueError, match="Snappy"):
        launch_contract.decompress(b"\x0b\x04ab\x11\x02")

    def file(*values, compressed=b"\0"):
        chunk = compressed + bytes([len(values), *map(len, values)]) + b"".join(values)
        header = bytes(8) + len(chunk).to_bytes(8, "little") + bytes(8) + b"r" + bytes(15)
        return launch_contract.RIEGELI + bytes(16) + header + chunk

    data = b"before" + file(b"one", file(b"two")) + b"after"
    assert list(launch_contract.records(data)) == [b"one", b"two"]
    with pytest.raises(ValueError, match="compressed by b'z'"):
        list(launch_contract.records(file(b"one", compressed=b"z")))
    assert launch_contract.get(b"\x12\x03\x08\x96\x0a", 2, 1) == 1302
