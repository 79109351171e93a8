"""The errors a caller may catch. The command line turns each into one sentence and an exit code."""


class PacelineError(Exception):
    """Base of every error that paceline raises on purpose; its text is one sentence for the user."""


class InputError(PacelineError):
    """The input is refused (exit code 2): the text names what was found, what is allowed and what to do next."""


class CapacityError(InputError):
    """The tokens asked for do not fit in the KV cache; raised before any graph is called."""


class CancelledError(PacelineError):
    """A generation was cancelled before it wrote a token; the rows of its prompt that were computed are kept."""


class RollbackError(PacelineError):
    """A rollback to rows that the KV cache no longer holds; never a quiet no-op."""
