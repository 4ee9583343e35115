# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can fix."""


class UserError(ValueError):
    """Bad input: the message is one line that says what, where and what to do."""


class StallError(BaseException):
    """The job stands still, and ``Record(on_stall="raise")`` asked to end it then. No Exception, so
    that what catches those, to try again, does not catch it."""

    delivered = False  # to the training thread
    why = ""  # the sentence that says who is where

    def __init__(self, *args: object) -> None:
        super().__init__(*(args or (StallError.why,)))
        StallError.delivered = True


_EXTRAS = {"torch": "torch", "transformers": "transformers", "lightning": "lightning"}


def missing(what: str, error: ModuleNotFoundError) -> ImportError:
    """What to say where ``what`` needs a package that is not installed."""
    package = (error.name or "").partition(".")[0]
    if package == "presum":
        return error
    extra = _EXTRAS.get(package)
    name = package if extra is None else f"'presum[{extra}]'"
    return ImportError(f"{what} needs {package}: pip install {name}", name=error.name)
