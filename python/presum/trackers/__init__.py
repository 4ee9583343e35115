# SPDX-License-Identifier: Apache-2.0
"""``attach(log_to=)``: logs the metrics and findings of a run to experiment trackers while it is
recorded, through their own libraries."""
