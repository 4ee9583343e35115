# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can fix."""


class UserError(ValueError):
    """Invalid input. The message is one line: what is wrong, where, and what to do."""


class StallError(BaseException):
    """Raised in the training thread when the job stalls and ``Record(on_stall="raise")`` is set. It
    derives from BaseException, so that code that catches Exception and retries does not catch
    it."""

    delivered = False  # whether it has been raised in the training thread
    why = ""  # the sentence that says where every rank is

    def __init__(self, *args: object) -> None:
        super().__init__(*(args or (StallError.why,)))
        StallError.delivered = True


_EXTRAS = {
    "torch": "torch",
    "transformers": "transformers",
    "lightning": "lightning",
    "matplotlib": "plot",
}
_DISTRIBUTIONS = {"opentelemetry": "opentelemetry-exporter-otlp-proto-http"}


def missing(what: str, error: ModuleNotFoundError) -> ImportError:
    """The error to raise if ``what`` needs a package that is not installed."""
    package = (error.name or "").partition(".")[0]
    if package == "presum":
        return error
    extra = _EXTRAS.get(package)
    name = _DISTRIBUTIONS.get(package, package) if extra is None else f"'presum[{extra}]'"
    return ImportError(f"{what} needs {package}: pip install {name}", name=error.name)
