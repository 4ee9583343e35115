# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from presum import _core

collect_ignore = []
if not torch.cuda.is_available():
    collect_ignore.append("test_gradient_pass_on_gpu.py")
if not _core.has_cuda:
    collect_ignore.append("test_gradient_pass_kernel.py")
