# SPDX-License-Identifier: Apache-2.0
"""Experiments that show what presum finds; they need the extra ``presum[experiments]``."""
