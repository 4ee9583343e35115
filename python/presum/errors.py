# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can mend."""


class UserError(ValueError):
    """Bad input: the message is one line that says what, where and what to do."""
