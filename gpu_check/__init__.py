# SPDX-License-Identifier: Apache-2.0
"""What a machine with a GPU can show of presum in a few minutes, and one without in part.

python3 -m gpu_check [--dry]: from the repository's root; needs a wheel in dist/ and a torch, no
network. docs/devices.md says what is done.
"""
