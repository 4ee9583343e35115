# SPDX-License-Identifier: Apache-2.0
"""The S1 experiment: how do the ranks' seeds affect the three consistency metrics?

Start with ``settings.py`` (what is compared), then ``worker.py`` (one rank's training loop);
``command.py`` is the command line.
"""
