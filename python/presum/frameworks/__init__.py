# SPDX-License-Identifier: Apache-2.0
"""Training frameworks, and attaching without a line of code."""
