"""Profile time and memory on this machine, and write a report with tables, pictures and a few findings.

``python -m benchmarks.profile_gpu --quick`` writes ``profile/report.html``. `sections` lists the measurements and how
to show them; `calls`, `programs`, `roofline` and `accuracy` measure and return plain data; `findings`, `pictures` and
`report` show the data.
"""
