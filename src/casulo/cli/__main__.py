# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""`python -m casulo.cli`, the same as `osb`."""

from casulo.cli.main import app

if __name__ == "__main__":
    app()
