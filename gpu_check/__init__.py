# SPDX-License-Identifier: Apache-2.0
"""Checks presum on a machine with a GPU in a few minutes, or part of it on a machine without one.

python3 -m gpu_check [--dry]: run it from the repository's root. It needs a wheel in dist/ and
torch, and no network. docs/devices.md describes the checks.
"""
