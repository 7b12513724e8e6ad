"""Run the benchmark of pairs of angles with a few small cases."""

import json

import jax
import pytest

from benchmarks import torus
from docs import results


@pytest.mark.slow
def test_a_run(tmp_path, capsys):
    cases = [
        torus.Case("pairs", "sine", 128),
        torus.Case("pairs", "cosine", 128, each=True),
        torus.Case("gradient", "sine", 128),
        torus.Case("log_prob", "sine", 10, each=True),
    ]
    path = tmp_path / "torus.json"
    # NumPyro's class relies on implicit broadcasting and promotion.
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        assert torus.main(["--rounds", "3", "--json", str(path)], cases) == 0
    printed, result = capsys.readouterr().out, json.loads(path.read_text())
    assert [case["name"] for case in result["cases"]] == [case.name for case in cases]
    for case in result["cases"]:
        assert case["name"] in printed
        assert all(each["rate"] > 0 for each in case["results"].values())
    assert set(result["cases"][0]["results"]) == {"jax_von_mises", "sample_von_mises", "NumPyro"}
    assert set(result["cases"][3]["results"]) == {"jax_von_mises", "NumPyro"}
    assert "the draw alone" in result["cases"][2]["results"]
    assert results.summary_table(torus, result).count("\n") == 5
