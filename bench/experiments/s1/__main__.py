# SPDX-License-Identifier: Apache-2.0
"""Under torchrun every process is a rank; otherwise this process starts them."""

import os
import sys

from experiments.s1.command import main
from presum.errors import UserError

try:
    sys.exit(main(sys.argv[1:]))
except UserError as error:
    if os.environ.get("RANK", "0") == "0":
        print(f"presum: {error}", file=sys.stderr)
    sys.exit(2)
