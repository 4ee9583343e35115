# SPDX-License-Identifier: Apache-2.0
"""The steps of one model on one worker, and its recording from ``attach`` to its end."""
