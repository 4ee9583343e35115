# SPDX-License-Identifier: Apache-2.0
"""Data-parallel reductions: presum observes, audits or computes those of DistributedDataParallel,
FSDP2 and manual loops."""
