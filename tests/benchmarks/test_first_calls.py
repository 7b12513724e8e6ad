"""Test the program that times first calls."""

import pytest

from benchmarks import first_calls
from benchmarks.subjects import classes


def test_each_method_is_compared_with_normal(monkeypatch, tmp_path, capsys):
    """Every method of the named classes has a row with the medians of the rounds, the slowest first."""
    seconds = iter([3.0, 5.0, 4.0, 0.5, 0.5, 0.7])

    def elsewhere(name, method=None):
        return (
            {classes.BASE: 0.5, "cdf": 1.0, "fit": 1.0}
            if method is None
            else {classes.BASE: 0.5, method: next(seconds)}
        )

    monkeypatch.setattr(classes, "elsewhere", elsewhere)
    assert first_calls.main(["Cardioid", "--rounds", "3", "--out", str(tmp_path / "a.csv")]) == 0
    assert capsys.readouterr().out == "Cardioid.cdf: 4 s, 8.0 x normal\nCardioid.fit: 0.5 s, 1.0 x normal\n"
    head, rows = first_calls.read(tmp_path / "a.csv")
    assert head["rounds"] == "3"
    assert rows == [["Cardioid", "cdf", "4", "8.0"], ["Cardioid", "fit", "0.5", "1.0"]]
    with pytest.raises(SystemExit):
        first_calls.main(["cardioid"])
    assert "there is no class cardioid; choose from Bingham, " in capsys.readouterr().err


@pytest.mark.slow
def test_a_new_process_measures():
    found = classes.elsewhere("Cardioid", "entropy")
    assert set(found) == {classes.BASE, "entropy"}
    assert min(found.values()) > 0
