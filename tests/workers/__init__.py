# SPDX-License-Identifier: Apache-2.0
"""Programs that the end-to-end tests run as processes of their own."""
