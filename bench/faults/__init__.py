# SPDX-License-Identifier: Apache-2.0
"""The fault benchmark: real ranks and real training, one fault at a time, and a clean twin of each.

Start with ``catalog.ini`` (what is injected and what must be found), then ``training.py`` (a run
without a fault) and ``injectors/`` (the one method that each fault changes in it).
"""
