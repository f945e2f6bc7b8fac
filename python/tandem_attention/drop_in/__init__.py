# SPDX-License-Identifier: MIT OR Apache-2.0
"""Functions with the signatures of other attention libraries, computed by Tandem.

Each module stands for one library; docs/guide/migrating.md says what it does differently.
"""
