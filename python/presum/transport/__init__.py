# SPDX-License-Identifier: Apache-2.0
"""How packets get from every rank to the one that records: one background thread per process, no
collective (docs: ARCHITECTURE.md, "Threads, and who waits for whom")."""
