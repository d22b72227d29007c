"""What mkdocs does otherwise for these pages: the README is the first one, and the order is that of docs/README.md."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

_ROOT = Path(__file__).parents[2]
_START, _CHANGES, _CONTRIBUTING = "start.md", "changelog.md", "contributing.md"
_BESIDE = {"README.md": _START, "CHANGELOG.md": _CHANGES, "CONTRIBUTING.md": _CONTRIBUTING}
"""Pages that lie beside docs/, and what they are called here."""
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\[\]]*)\]\((?P<path>(?!https?:|#)[^()\s#]+)(?P<anchor>#[^()\s]*)?\)")
_FENCE = re.compile(r"^( *```\w+) .*$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Makes the navigation of the headings and lists of docs/README.md."""
    config.nav = [{"Start": [{"Penstock": _START}]}, *_sections(), {"Changes": [{"Changelog": _CHANGES}]}]
    config.nav[0]["Start"] += config.nav.pop(1)["Start"]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that lie beside docs/; docs/README.md is the navigation."""
    for name, page in _BESIDE.items():
        files.append(File.generated(config, page, content=_from_root((_ROOT / name).read_text())))
    files.remove(files.get_file_from_path("README.md"))
    # What is opened without a path is the first page. Browsers ask for an icon that isn't named.
    files.append(File.generated(config, "index.html", content=(
        '<link rel="icon" href="assets/images/favicon.png"><meta http-equiv="refresh" content="0; url=start/">')))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leaves of links to files that are no pages their text, and of fences the language.

    The sources aren't part of the site, and what tests do with a code block isn't for readers.
    """
    def linked(found: re.Match[str]) -> str:
        path = posixpath.normpath(found["path"])
        if path == "README.md":
            return f"[{found['text']}]({_START})"
        if path.startswith("../"):
            beside = _BESIDE.get(path[3:])
            return f"[{found['text']}]({beside}{found['anchor'] or ''})" if beside else found["text"]
        return found[0]

    return _FENCE.sub(r"\1", _LINK.sub(linked, markdown))


def _from_root(text: str) -> str:
    """Returns a page from beside docs/ with its links as they are from within."""
    def moved(found: re.Match[str]) -> str:
        path = posixpath.relpath(found["path"], "docs")
        return f"{found['image']}[{found['text']}]({path}{found['anchor'] or ''})"

    return _LINK.sub(moved, text)


def _sections() -> Iterator[dict[str, list[dict[str, str]]]]:
    """Yields the pages below each heading of docs/README.md; a page stands where it is named first."""
    seen: set[str] = set()
    for section in (_ROOT / "docs" / "README.md").read_text().split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        pages = []
        for path in re.findall(r"^- \[[^\]]*\]\(([^)#]+)", body, re.MULTILINE):
            page = _BESIDE.get(path.removeprefix("../"), path) if path.startswith("../") else path
            if page not in seen and page != _START:
                seen.add(page)
                pages.append({_title(path): page})
        yield {title: pages}


def _title(path: str) -> str:
    return (_ROOT / "docs" / path).read_text().partition("\n")[0].removeprefix("# ")
