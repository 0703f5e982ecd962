"""``python -m etlib``: the same as the command ``etlib``."""

from etlib.cli import app

app(prog_name="etlib")
