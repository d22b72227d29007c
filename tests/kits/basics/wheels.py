"""Builds the wheel and the source distribution, and environments that have the wheel alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kits.basics.places import ROOT

UV = Path(sys.executable).with_name("uv")
_NOT_BUILT_FROM = shutil.ignore_patterns(
    ".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info", "build", "dist", "tests", "docs", "bench")
#: Imports each module of the package in `sys.argv[1:]`, and says where the package lies.
IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for found in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    print(package.__path__[0])
"""
#: Imports what each extra of the installed package names, but for those in `sys.argv[1:]`; prints the modules.
IMPORT_EXTRAS = """
import importlib, re, sys
from importlib import metadata
def plain(name): return re.match(r"[\\w.-]+", name)[0].lower().replace("_", "-")
wanted = {plain(needed) for needed in metadata.requires("penstock")
          if (extra := re.search("extra == .(\\w+)", needed)) and extra[1] not in sys.argv[1:]}
found = {plain(name): module for module, names in metadata.packages_distributions().items() for name in names
         if not module.startswith("_")}
for name in sorted(wanted):
    importlib.import_module(found[name])
print(*sorted(wanted))
"""


def build(target: Path, scratch: Path) -> tuple[Path, Path]:
    """Builds what `make dist` does, from a copy of the sources in `scratch`; returns wheel and source archive."""
    copy = scratch / "sources"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=_NOT_BUILT_FROM)
    subprocess.run([str(UV), "build", "--offline", "--quiet", "--no-build-isolation", "--python", sys.executable,
                    "--out-dir", str(target), str(copy)], check=True)
    [wheel], [archive] = target.glob("*.whl"), target.glob("*.tar.gz")
    return wheel, archive


class Installed:
    """A new virtual environment, whose programs run in an empty folder without anything of this repository."""

    def __init__(self, place: Path) -> None:
        self.folder = place / "work"
        self._home = place / "home"
        self._bin = place / "environment" / "bin"
        self.folder.mkdir(parents=True)
        self._home.mkdir()
        subprocess.run([sys.executable, "-m", "venv", str(self._bin.parent)], check=True)

    @property
    def environment(self) -> dict[str, str]:
        """What programs find in their environment: nothing of Python's or Penstock's."""
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("PENSTOCK_", "PYTHON", "SPARK_", "XDG_", "VIRTUAL_ENV"))}
        return {**kept, "HOME": str(self._home), "PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}"}

    def install(self, *requirements: str) -> None:
        """Installs packages from where pip is configured to look, as users do."""
        self._checked("pip", "install", "--quiet", "--disable-pip-version-check", *requirements, home=Path.home())

    def run(self, *words: str, stdin: str = "") -> str:
        """Runs a program of the environment and returns its output. Raises AssertionError if it fails."""
        return self._checked(*words, stdin=stdin, home=self._home)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Starts a program of the environment; its output can be read."""
        return subprocess.Popen([str(self._bin / words[0]), *words[1:]], cwd=self.folder, env=self.environment,
                                stdout=subprocess.PIPE, text=True)

    def _checked(self, *words: str, home: Path, stdin: str = "") -> str:
        answer = subprocess.run(
            [str(self._bin / words[0]), *words[1:]], cwd=self.folder, env={**self.environment, "HOME": str(home)},
            input=stdin, capture_output=True, text=True, check=False, timeout=900)
        assert answer.returncode == 0, f"{' '.join(words)}: {answer.stdout}{answer.stderr}"
        return answer.stdout


def sources_of_package() -> Sequence[str]:
    """Returns the paths of all modules of the package, as the wheel has them."""
    package = ROOT / "src" / "penstock"
    folders = [package, *(path for path in package.iterdir() if path.is_symlink())]
    return sorted({str(Path("penstock", path.relative_to(package) if folder is package else
                            Path(folder.name, path.relative_to(folder))))
                   for folder in folders for path in folder.rglob("*.py")})
