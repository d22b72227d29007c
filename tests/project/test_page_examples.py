"""What the documentation shows is so: its code blocks are run, and print what stands there."""

from __future__ import annotations

from pathlib import Path

import pytest
from kits.pages import examples as kit
from kits.pages.examples import ExampleError, examples, files, missing_tests, play
from kits.pages.pages import PAGES

#: How many code blocks of all pages are not run, each with its reason; `python -m programs.documentation` lists them.
NOT_RUN = 35


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_examples_of_a_page_work(path: Path, tmp_path: Path) -> None:
    """They run in their order, and print what the page says; those that don't say why, or who runs them."""
    play(path, tmp_path)


def test_those_not_run_are_few() -> None:
    """Whoever adds one that can't be run, raises the number."""
    found = [f"{path.name}:{example.block.line}: {example.value}" for path in PAGES
             for example in examples(path.read_text("utf-8")) if example.option == "no-run"]
    assert len(found) <= NOT_RUN, found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_tests_that_run_blocks_are_there(path: Path) -> None:
    """What a page says is run by a test of its own names one that exists."""
    assert list(missing_tests(path.read_text("utf-8"))) == []


# --- the player itself -----------------------------------------------------------------------------------------------

PAGE = """\
<!-- python
start = 40
-->

```python
print("a")
print(start + 2)
```

prints

```text
a
42
```

- in a list

  ```bash
  cat names/of.txt
  ```

```text no-run: a drawing
-->
```
"""


def played(tmp_path: Path, page: str) -> str:
    """Plays a page and returns it as it is afterwards."""
    path, folder = tmp_path / "page.md", tmp_path / "folder"
    path.write_text(page)
    folder.mkdir()
    play(path, folder)
    return path.read_text()


def test_blocks_run_in_their_order_hidden_ones_too(tmp_path: Path) -> None:
    """Names stay, files are there, and what isn't run isn't."""
    page = "```text file: names/of.txt\nhere\n```\n\n" + PAGE + "\n```python no-run: why\nraise SystemExit\n```\n"
    assert played(tmp_path, page) == page
    (tmp_path / "page.md").write_text(page)
    assert files(tmp_path / "page.md") == {"names/of.txt": "here\n"}


@pytest.mark.parametrize(("page", "complaint"), [
    (PAGE, "No such file"),
    (PAGE.replace("42", "43"), "page.md:12: printed was\na\n42"),
    ("```sql\nSELECT nope\n```\n", "page.md:1: "),
    ("```bash\nfalse\n```\n", "ended with 1"),
    ("```text\nit\n```\n", "nothing was run"),
    ("```python no-run: why\nx\n```\n```text\nit\n```\n", "nothing was run"),
    ("```json\n{\n```\n", "JSONDecodeError"),
    ("```toml\nnope = 1\n```\n", "nope"),
    ("```cobol\nit\n```\n", "nobody runs cobol"),
    ("```\nit\n```\n", "line 1: '' isn't"),
    ("```sql no-run\nit\n```\n", "line 1: 'sql no-run' isn't"),
    ("one\n\n    it\n", "line 3: '' isn't"),
])
def test_what_is_not_so_is_told(page: str, complaint: str, tmp_path: Path) -> None:
    """With the page's line: other output, code that fails, output of nothing, and blocks without a language."""
    with pytest.raises(ExampleError) as told:
        played(tmp_path, page)
    assert complaint in str(told.value)


def test_an_excerpt_has_lines_left_out_in_their_order(tmp_path: Path) -> None:
    """Lines may be missing, none may be other ones."""
    page = "```python\nprint(1, 2, 3, sep='\\n')\n```\n```text excerpt\n1\n3\n```\n"
    played(tmp_path, page)
    (tmp_path / "page.md").write_text(page.replace("1\n3\n", "3\n1\n"))
    with pytest.raises(ExampleError, match="printed was"):
        play(tmp_path / "page.md", tmp_path / "folder")


def test_a_page_is_given_what_came_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each output, wherever it stands, also in a list; all else stays."""
    monkeypatch.setattr(kit, "UPDATE", True)
    page = "```python\nprint('a\\nb')\n```\n```text\nx\n```\n\n- item\n\n  ```python\n  print('c')\n  ```\n\n" \
           "  ```text\n  y\n  z\n  ```\nend\n"
    assert played(tmp_path, page) == page.replace("x\n", "a\nb\n").replace("  y\n  z\n", "  c\n")


def test_a_result_is_shown_as_a_table_and_a_plan_as_lines(tmp_path: Path) -> None:
    """Of several statements the last one's; of those without rows nothing."""
    table = "┌───┐\n│ x │\n├───┤\n│ 2 │\n└───┘\n"
    played(tmp_path, f"```sql\nSELECT 1 y; SELECT 2 x;\n```\n```text\n{table}```\n```sql\nCREATE DATABASE d;\n```\n"
           "```text\n```\n```sql\nSELECT 'a' x;\n```\n```text\na\n```\n")


def test_tests_that_are_missing_are_found() -> None:
    """By their file and their name."""
    here = "tests/project/test_page_examples.py"
    page = "".join(f"```sql run-by: {name}\nx\n```\n" for name in (
        f"{here}::test_tests_that_are_missing_are_found", f"{here}::test_nope", "tests/nope.py::test_nope"))
    assert list(missing_tests(page)) == [f"{here}::test_nope", "tests/nope.py::test_nope"]
