"""The run-time checker of annotations and array shapes; an int is a fine float (PEP 484)."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
