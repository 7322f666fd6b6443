"""What can go wrong before and while Millpond runs on one machine; every message says what to do."""


class EmbeddedError(Exception):
    """A reason why this machine cannot run Millpond as asked, in words for the person who started it."""


class StartError(EmbeddedError):
    """A process did not become ready. ``log`` names the file that holds what it said."""

    def __init__(self, message: str, *, log: str = "") -> None:
        super().__init__(message)
        self.log = log
