# SPDX-License-Identifier: Apache-2.0
"""How data-parallel workers reduce: DistributedDataParallel, FSDP2 and loops by hand are watched,
audited, or summed by presum."""
