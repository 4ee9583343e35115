# SPDX-License-Identifier: Apache-2.0
"""Experiments that show what presum finds, and the code that starts their ranks."""
