"""Run the benchmark of directions with a few small cases."""

import json

import pytest

from benchmarks import sphere
from docs import results


@pytest.mark.slow
def test_a_run(tmp_path, capsys):
    cases = [
        sphere.Case("directions", 3, 128),
        sphere.Case("cosines", 3, 128, True),
        sphere.Case("gradient", 3, 128),
    ]
    path = tmp_path / "sphere.json"
    assert sphere.main(["--rounds", "3", "--json", str(path)], cases) == 0
    printed, result = capsys.readouterr().out, json.loads(path.read_text())
    assert [case["name"] for case in result["cases"]] == [case.name for case in cases]
    for case in result["cases"]:
        assert case["name"] in printed
        assert all(each["rate"] > 0 for each in case["results"].values())
    assert set(result["cases"][0]["results"]) >= {"jax_von_mises", "jax.random.normal", "SciPy"}
    assert "the draw alone" in result["cases"][2]["results"]
    assert results.summary_table(sphere, result).count("\n") == 4
