"""One kind of table for all benchmarks."""

import jax
from rich.console import Console
from rich.table import Table


def show(title, columns, rows):
    """Print a table with the device in its title."""
    device = jax.devices()[0]
    table = Table(title=f"{title}, on {device.device_kind} ({device.platform})")
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        table.add_row(*row)
    Console(width=110).print(table)
