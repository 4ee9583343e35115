# SPDX-License-Identifier: Apache-2.0
"""Turns events of torch into calls: hooks, replaced functions of torch, losses in a model's
output."""
