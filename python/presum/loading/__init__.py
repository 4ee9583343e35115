# SPDX-License-Identifier: Apache-2.0
"""``presum.load``: a run log as pandas frames or NumPy columns, and as figures."""

from presum.loading.run import Run, load

__all__ = ["Run", "load"]
