# SPDX-License-Identifier: Apache-2.0
"""Tensors where they lie, in host memory or on a device: which may be looked into, and the gradient
pass over those outside host memory."""
