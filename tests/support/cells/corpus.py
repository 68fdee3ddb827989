# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""All cells by language."""

from __future__ import annotations

import re

from support.cells import javascript, others, python

CORPUS = {
    "python": python.CELLS,
    "javascript": javascript.CELLS,
    "typescript": javascript.TYPESCRIPT,
    "java": others.JAVA,
    "go": others.GO,
    "bash": others.BASH,
}
WITHOUT_IPYTHON = re.compile(r"^\s*(\w+ = )?[%!?]|IPython|cell_module|^taken", re.MULTILINE)
"""Cells that IPython, where it is, answers in its own words."""
