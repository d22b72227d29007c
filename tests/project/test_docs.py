"""The documentation names things that exist: functions, links, commands, libraries."""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from kits.basics.places import ROOT
from kits.pages.examples import shown_in

from penstock.common import connection, errors
from penstock.mnode.admin.sandbox import Sandbox
from penstock.shell.commands.command_options import add_generate_options
from penstock.shell.terminal.error_text import ScriptPlace, error_text
from penstock.shell.terminal.help_text import COMMANDS
from penstock.tasks.protocol import task_status

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def named_in_code(text: str) -> list[str]:
    """Returns dotted names such as `wal.writer.WalWriter.append` in back-quotes whose first part is one of ours."""
    parts = "common|sql|planner|wal|vnode|tasks|mnode|shell"
    return re.findall(rf"`((?:{parts})\.[a-z_]+(?:\.\w+)*)(?:\(\))?`", text)


def resolve(name: str) -> object:
    """Returns the module, class, function or method that a dotted name means; fails if there is none."""
    words = name.split(".")
    for length in range(len(words), 0, -1):
        try:
            found: object = importlib.import_module("penstock." + ".".join(words[:length]))
        except ModuleNotFoundError:
            continue
        for word in words[length:]:
            found = getattr(found, word)
        return found
    raise AssertionError(f"nothing is called {name}")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_names_in_code_font_exist(path: Path) -> None:
    """Where a page names a module or function of ours, it can be imported."""
    for name in named_in_code(path.read_text("utf-8")):
        try:
            resolve(name)
        except (AttributeError, AssertionError) as error:
            raise AssertionError(f"{path.name} names {name}, which doesn't exist") from error


@pytest.mark.parametrize("path", [path for path in PAGES if path.name != "CHANGELOG.md"], ids=lambda path: path.name)
def test_paths_in_code_font_exist(path: Path) -> None:
    """Where a page names a file or a folder of ours, it is there."""
    parts = "common|sql|planner|wal|vnode|tasks|mnode|shell|tests|scripts|bench|examples|docs|conf|deploy"
    for name in re.findall(rf"`((?:{parts})/[a-z_][\w./]*)`", path.read_text("utf-8")):
        assert (ROOT / name).exists(), f"{path.name} names {name}, which doesn't exist"


def test_every_page_is_in_the_index() -> None:
    """docs/README.md leads to each page."""
    linked = set(re.findall(r"\]\((\w+\.md)", page("docs/README.md")))
    assert linked == {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}


@pytest.mark.parametrize(("name", "least"), [("life_of_a_row", 10), ("life_of_a_stream", 9)])
def test_lives_name_a_function_at_each_step(name: str, least: int) -> None:
    """Each numbered step says where it happens, from the user's text to the end."""
    steps = re.split(r"^\d+\. ", page(f"docs/{name}.md"), flags=re.MULTILINE)[1:]
    assert len(steps) >= least
    for step in steps:
        assert named_in_code(step), f"no function is named in: {step[:60]}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    """Links between pages and to files of the repository aren't broken."""
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", path.read_text("utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_dependencies_page_lists_what_pyproject_lists() -> None:
    """Each library is explained, and none that isn't used."""
    project = tomllib.loads(page("pyproject.toml"))["project"]
    wanted = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.match(r"[\w.-]+", requirement)[0] for group in wanted for requirement in group}  # type: ignore[index]
    listed = set(re.findall(r"^\| ([\w-]+) \|", page("docs/dependencies.md"), flags=re.MULTILINE)) - {"library"}
    assert {name.replace("_", "-").lower() for name in names} == {name.replace("_", "-").lower() for name in listed}


def test_dependencies_are_bounded_and_locked() -> None:
    """Each has an upper bound; the lock names an exact version and hashes of each, and no place to fetch from."""
    project = tomllib.loads(page("pyproject.toml"))
    extras = project["project"]["optional-dependencies"]
    direct = [*project["project"]["dependencies"], *extras["dev"], *extras["demo"]]
    for requirement in (*project["build-system"]["requires"], *direct, *extras["backup"], *extras["connections"]):
        assert "<" in requirement or "==" in requirement, requirement
    entries = re.split(r"^(?=\S)", page("requirements.lock"), flags=re.MULTILINE)[1:]
    for entry in entries:
        assert re.fullmatch(r"[\w.-]+==\S+( ; [^\n]+?)? \\\n( +--hash=sha256:[0-9a-f]{64}( \\)?\n)+", entry), entry[:90]
    locked = {entry.partition("==")[0].lower().replace("_", "-") for entry in entries}
    assert {re.split(r"[^\w-]", requirement)[0].lower().replace("_", "-") for requirement in direct} <= locked


def test_operations_page_explains_every_task_state() -> None:
    """The states of tasks on the page are those of the code."""
    states = set(task_status.TaskState.__args__)  # type: ignore[attr-defined]
    section = page("docs/operations.md").partition("## States of a task")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| ([A-Z_]+) \|", section, flags=re.MULTILINE)) == states


def test_operations_page_names_every_error_class() -> None:
    """Each class of error says who must act, and does so on the page."""
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.PenstockError) and kind is not errors.PenstockError:
            assert name in page("docs/operations.md"), name


def test_readme_names_targets_that_exist() -> None:
    """`make ...` in the README are targets of the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", page("Makefile"), flags=re.MULTILINE))
    code = " ; ".join(re.findall(r"`[^`]+`|^make.*$", page("README.md"), flags=re.MULTILINE))
    for command in re.findall(r"\bmake ((?:[a-z]+ ?)+)", code):
        assert set(command.split()) <= targets, command


def test_ci_runs_what_the_readme_names() -> None:
    """The command of continuous integration is the README's test command."""
    command = re.search(r"^exec (make .*)$", page(".ci/run"), flags=re.MULTILINE)
    assert command is not None
    assert f"`{command[1]}`" in page("README.md")


def test_changelog_keeps_its_form() -> None:
    """Versions as headings, newest first, only known kinds of changes below them."""
    text = page("CHANGELOG.md")
    headings = re.findall(r"^## \[(.+?)\]", text, flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    kinds = set(re.findall(r"^### (\w+)", text, flags=re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_shell_commands_on_pages_exist() -> None:
    """Dot commands that pages mention are commands of the shell."""
    for path in PAGES:
        for name in re.findall(r"`\.([a-z]+)[ `]", path.read_text("utf-8")):
            assert name in COMMANDS, f"{path.name}: .{name}"


def test_generated_parts_are_current() -> None:
    """The tables of keys and functions are what `make docs` would write."""
    answer = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "write_docs.py"), "--check"],
        capture_output=True, text=True, check=False, timeout=60,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_installed_command_works() -> None:
    """`python -m penstock --version` answers without starting anything."""
    answer = subprocess.run(
        [sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.startswith("penstock ")


def test_readme_shows_the_example_script() -> None:
    """The script in the README is the file that it names."""
    script = page("examples/minutes.py").split('"""\n\n', 1)[1]
    assert shown_in(ROOT / "README.md", "python") == [script]


@pytest.mark.slow
def test_readme_output_is_real(tmp_path: Path) -> None:
    """What the README says the script prints, it prints."""
    answer = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "minutes.py")],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )
    [output, _] = shown_in(ROOT / "README.md", "text")
    assert answer.stdout == output, answer.stderr


def test_shell_page_shows_an_error_of_a_file() -> None:
    """It looks as it is shown, for a query whose first line is the tenth of the file."""
    query = "SELECT *\nFROM p.meters\nWHERE amp > 1"
    with Sandbox() as bed:
        bed.execute("CREATE DATABASE p")
        bed.execute("CREATE TABLE p.meters (ts TIMESTAMP, amps DOUBLE)")
        with pytest.raises(errors.NotFoundError) as caught:
            bed.execute(query)
    text = error_text(caught.value, query, at=ScriptPlace("setup.sql", 10)) + "\n"
    assert shown_in(ROOT / "docs" / "shell.md", "text")[1] == text


def test_operations_page_statements_run(con: Any) -> None:
    """The statements that the page tells operators to look at exist."""
    section = page("docs/operations.md").partition("## What to look at")[2].partition("\n## ")[0]
    statements = re.findall(r"`((?:SHOW|SELECT) [^`]*?)(?:;|\\G)`", section)
    assert len(statements) >= 4
    for statement in statements:
        con.execute(statement)


def test_moving_data_page_lists_the_options_of_generate() -> None:
    """Each option of the command but those of all commands is in the table, with its default."""
    parser = argparse.ArgumentParser(add_help=False)
    add_generate_options(parser)
    section = page("docs/moving_data.md").partition("## Generate")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`-.*?) \| (.*?) \|", section, flags=re.MULTILINE)
    listed = {name for names, _ in rows for name in re.findall(r"`(--?[a-zA-Z-]+)`", names)}
    wanted = {name for action in parser._actions for name in action.option_strings}
    assert listed == wanted - {"-y", "--answer-yes", "--progress", "--no-progress"}
    defaults = {name: action.default for action in parser._actions for name in action.option_strings}
    for names, values in rows:
        longs = re.findall(r"`(--[a-z-]+)`", names)
        given = [str(defaults[name]) for name in longs if defaults[name] is not None]
        assert not given or given == values.split("; "), names


def test_connections_page_lists_the_options() -> None:
    """Each type has the options that the engine knows, in their order, secrets with a star."""
    section = page("docs/connections.md").partition("## Types and options")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (\w+) \| (.*) \|$", section, flags=re.MULTILINE))
    del rows["type"]
    assert rows.keys() == connection.RULES.keys()
    for kind, rules in connection.RULES.items():
        named = re.findall(r"`([a-z_]+)`(\*?)(?=[ ,;]|$)", re.sub(r" \(.*?\)", "", rows[kind]))
        assert {(name, bool(star)) for name, star in named} == {(name, rule.secret) for name, rule in rules.items()}
