# SPDX-License-Identifier: Apache-2.0
"""What workers are compared by besides their gradients (include/presum/fingerprint.h).

Nothing here draws from a random generator, changes a bit, waits for a device, or calls the user's
data set. Each family of fingerprints fails alone.
"""

from presum.fingerprints.families import Families, chosen
from presum.fingerprints.step import StepFingerprints, TakenFingerprints

__all__ = ["Families", "StepFingerprints", "TakenFingerprints", "chosen"]
