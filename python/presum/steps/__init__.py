# SPDX-License-Identifier: Apache-2.0
"""The steps of one model on one rank, and its recording from ``attach`` to its end."""
