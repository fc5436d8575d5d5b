"""Prints what the package depends on, with the extras named: `requirements.py [EXTRA...]`.

For images: their layer of packages is made anew when pyproject.toml changes, not with the code.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
wanted = list(project["dependencies"])
for extra in sys.argv[1:]:
    wanted += project["optional-dependencies"][extra]
sys.stdout.write("\n".join(wanted) + "\n")
