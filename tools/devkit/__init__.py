# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""What `./dev` does: set the machine up, check, test, measure and build.

Standard library only, because it runs before anything is installed.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
