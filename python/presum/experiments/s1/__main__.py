# SPDX-License-Identifier: Apache-2.0
"""``torchrun --nproc-per-node 8 -m presum.experiments.s1 ...``: every process is one worker."""

import os
import sys

from presum.errors import UserError
from presum.experiments.s1.command import main

try:
    sys.exit(main(sys.argv[1:]))
except UserError as error:
    if os.environ.get("RANK", "0") == "0":
        print(f"presum: {error}", file=sys.stderr)
    sys.exit(2)
