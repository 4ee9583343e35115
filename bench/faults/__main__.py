# SPDX-License-Identifier: Apache-2.0
"""python -m faults."""

import sys

from faults.command import main
from presum.errors import UserError

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"faults: {error}", file=sys.stderr)
        sys.exit(2)
