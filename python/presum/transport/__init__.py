# SPDX-License-Identifier: Apache-2.0
"""Sends packets from every rank to the one that records: one background thread per process, without
collectives (see "Threads" in ARCHITECTURE.md)."""
