# SPDX-License-Identifier: Apache-2.0
"""Fingerprints: what is compared between ranks besides gradients (include/presum/fingerprint.h).

Nothing here draws from a random generator, changes a bit, synchronizes with a device, or calls the
user's dataset. A failure ends only its own family of fingerprints.
"""

from presum.fingerprints.families import Families, chosen
from presum.fingerprints.step import StepFingerprints, TakenFingerprints

__all__ = ["Families", "StepFingerprints", "TakenFingerprints", "chosen"]
