# SPDX-License-Identifier: Apache-2.0
"""``presum serve``: runs in a browser, while they are recorded."""
