"""The committed constants are what their generator makes."""

from tools import make_tables


def test_tables_are_current():
    assert make_tables.outline(make_tables.TARGET.read_text()) == make_tables.outline(make_tables.render())


def test_outline_sees_a_changed_error_name_and_shape():
    text = make_tables.TARGET.read_text()
    outline = make_tables.outline(text)
    assert outline.count("n,") > 200
    for old, new in (("error 5.3e-09", "error 5.4e-09"), ("SINE = ", "SIN = "), ("SINE = (", "SINE = (1.0, ")):
        assert old in text
        assert make_tables.outline(text.replace(old, new, 1)) != outline
