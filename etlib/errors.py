"""Errors that a user can correct: one line each, in the terminal and in a notebook."""


class UserError(ValueError):
    """Something asked for that cannot be done; the message says what, and what to do instead."""

    def _render_traceback_(self) -> list[str]:
        # IPython calls this hook. A traceback through this package would bury the one line
        # that a reader of a notebook needs.
        return [f"{type(self).__name__}: {self}"]


class ParameterError(UserError):
    """A parameter whose name, type or value a chapter does not take."""


class DeviceError(UserError):
    """An accelerator, or a number of devices, that JAX does not have."""


class ResultError(UserError):
    """A recorded result that breaks the schema, or would overwrite another."""


class RunError(UserError):
    """A run that cannot start: wrong chapter, notebook or output folder."""


class ChapterFailed(UserError):
    """A chapter stopped before its end; the message names chapter, cell and last error line."""


class DataError(UserError):
    """A data set that is missing, unreadable, or laid out in another way than expected."""
