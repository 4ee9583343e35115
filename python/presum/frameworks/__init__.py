# SPDX-License-Identifier: Apache-2.0
"""Integrations with training frameworks, and attaching without a change of the program."""
