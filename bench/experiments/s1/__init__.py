# SPDX-License-Identifier: Apache-2.0
"""The S1 experiment: what do the workers' seeds do to the three consistency metrics?

Start with ``settings.py`` (what is compared), then ``worker.py`` (one worker's training loop);
``command.py`` is the command line.
"""
