# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

collect_ignore = []
if not torch.cuda.is_available():
    collect_ignore.append("test_gradient_pass_on_gpu.py")
