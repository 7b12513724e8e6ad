"""Run the benchmark of arbitrary densities on the circle with two small cases."""

import json

import pytest

from benchmarks import circular
from docs import results


@pytest.mark.slow
def test_a_run(tmp_path, capsys):
    cases = [circular.Case("von Mises", 0), circular.Case("three modes", 128)]
    path = tmp_path / "circular.json"
    assert circular.main(["--rounds", "3", "--json", str(path)], cases) == 0
    printed, result = capsys.readouterr().out, json.loads(path.read_text())
    assert [case["name"] for case in result["cases"]] == [case.name for case in cases]
    for case in result["cases"]:
        assert case["name"] in printed
        assert all(each["seconds"] > 0 for each in case["results"].values())
    assert set(result["cases"][1]["results"]) == {"jax_von_mises", "sample_von_mises"}
    assert results.summary_table(circular, result).count("\n") == 3
