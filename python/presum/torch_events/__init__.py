# SPDX-License-Identifier: Apache-2.0
"""What torch does becomes calls: hooks, functions of torch that
are replaced, losses in what a model returns."""
