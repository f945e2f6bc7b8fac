# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs the attention tests of other libraries through our drop-ins: scripts/peer-suites.

Here is only what connects them: which tests (``table``), our functions under the names that they
import (``stand_ins``, ``flash_attn_4``), what runs them (``plugin``, ``runner``), and what their
failures are (``kinds``, ``summary``). The tests are fetched from their own repositories.
"""
