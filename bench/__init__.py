# SPDX-License-Identifier: Apache-2.0
"""The benchmark suite: cases, timing, rivals, records and the report made from them. See README.md beside this file."""
