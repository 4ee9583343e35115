# SPDX-License-Identifier: Apache-2.0
"""Tensors in host memory and on devices: which can be read, and the gradient pass over those
outside host memory."""
