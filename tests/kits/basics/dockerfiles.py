"""Dockerfiles as lists of instructions, and hadolint's main rules about them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: A rule that a comment above an instruction leaves out.
_IGNORED = re.compile(r"#\s*hadolint ignore=([\w, ]+)")


@dataclass(frozen=True)
class Instruction:
    """One instruction: its name in capitals, what follows on one line, the line where it begins, rules left out."""

    name: str
    rest: str
    line: int
    ignored: frozenset[str] = frozenset()

    @property
    def words(self) -> list[str]:
        """The list of a form in JSON; else what blanks keep apart, options left out."""
        if self.rest.startswith("["):
            return [str(word) for word in json.loads(self.rest)]
        return [word for word in self.rest.split() if not word.startswith("--")]

    @property
    def options(self) -> dict[str, str]:
        """The options in front, such as `--from=build`."""
        found = re.match(r"((?:--\S+\s+)*)", self.rest)
        return dict(word[2:].partition("=")[::2] for word in (found[1] if found else "").split())  # type: ignore[misc]


def read(path: Path) -> list[Instruction]:
    """Returns the instructions of a Dockerfile. Lines that end with a backslash go on."""
    found: list[Instruction] = []
    ignored: frozenset[str] = frozenset()
    lines = iter(enumerate(path.read_text("utf-8").splitlines(), 1))
    for number, line in lines:
        comment = _IGNORED.match(line)
        if comment is not None:
            ignored = frozenset(re.split(r"[, ]+", comment[1]))
        if not line.strip() or line.startswith("#"):
            continue
        text = line
        while text.endswith("\\"):
            text = text[:-1] + next(lines)[1].strip()
        name, _, rest = text.partition(" ")
        found.append(Instruction(name.upper(), rest.strip(), number, ignored))
        ignored = frozenset()
    return found


def stages(instructions: list[Instruction]) -> list[list[Instruction]]:
    """Returns the instructions of each stage, which FROM begins."""
    found: list[list[Instruction]] = []
    for instruction in instructions:
        if instruction.name == "FROM":
            found.append([])
        found[-1].append(instruction)
    return found


def wrong(instructions: list[Instruction]) -> list[str]:
    """Returns what breaks a rule that isn't left out, as `line: rule`."""
    return [f"{instruction.line}: {rule}" for instruction, rule in _broken(instructions)
            if rule.split()[0] not in instruction.ignored]


def _broken(instructions: list[Instruction]) -> Iterator[tuple[Instruction, str]]:
    names = [words[2] for words in (each.words for each in instructions if each.name == "FROM") if len(words) > 2]
    for instruction in instructions:
        match instruction.name:
            case "FROM":
                yield from _of_image(instruction, names)
            case "RUN":
                yield from _of_commands(instruction)
            case "MAINTAINER":
                yield instruction, "DL4000 MAINTAINER is deprecated"
            case "ADD":
                yield instruction, "DL3020 use COPY"
            case "CMD" | "ENTRYPOINT" if not instruction.rest.startswith("["):
                yield instruction, "DL3025 use the form in JSON"
            case "WORKDIR" if not instruction.rest.startswith("/"):
                yield instruction, "DL3000 name an absolute path"
            case "COPY" if instruction.options.get("from", names[:1]) not in ([], *names, names[:1]):
                yield instruction, "DL3022 name a stage"
            case "EXPOSE" if any(not 0 < int(port.partition("/")[0]) < 65536 for port in instruction.words):
                yield instruction, "DL3011 a port has a number"
    for stage in stages(instructions):
        for name in ("CMD", "ENTRYPOINT", "HEALTHCHECK"):
            several = [each for each in stage if each.name == name]
            yield from ((each, f"DL4003 one {name}") for each in several[1:])
    last = stages(instructions)[-1]
    users = [each for each in last if each.name == "USER"]
    if not users or users[-1].rest.partition(":")[0] in ("root", "0"):
        yield (users or last)[-1], "DL3002 the last user isn't root"
    if not any(each.name == "HEALTHCHECK" for each in last):
        yield last[0], "DL3057 say how health is checked"


def _of_image(instruction: Instruction, names: list[str]) -> Iterator[tuple[Instruction, str]]:
    image = instruction.words[0]
    tag = image.rpartition("/")[2].partition(":")[2]
    if image not in names and not tag:
        yield instruction, "DL3006 pin the image by a tag"
    if tag == "latest":
        yield instruction, "DL3007 another tag than latest"


def _of_commands(instruction: Instruction) -> Iterator[tuple[Instruction, str]]:
    commands = [command.split() for command in re.split(r"&&|\|\||;|\|", instruction.rest)]
    if re.search(r"[^|]\|[^|]", instruction.rest):
        yield instruction, "DL4006 a pipe hides what fails"
    for words in commands:
        match words:
            case ["sudo", *_]:
                yield instruction, "DL3004 no sudo"
            case ["cd", *_]:
                yield instruction, "DL3003 use WORKDIR"
            case ["apt", *_]:
                yield instruction, "DL3027 use apt-get"
            case ["apt-get", "install", *rest]:
                if not {"-y", "--yes", "-qq"} & set(rest):
                    yield instruction, "DL3014 nobody answers: --yes"
                if "--no-install-recommends" not in rest:
                    yield instruction, "DL3015 --no-install-recommends"
                if any("=" not in word for word in rest if not word.startswith("-")):
                    yield instruction, "DL3008 pin versions"
                if "rm -rf /var/lib/apt/lists/*" not in instruction.rest:
                    yield instruction, "DL3009 remove apt's lists"
            case [program, "install", *rest] if program.rpartition("/")[2] in ("pip", "pip3"):
                if "--no-cache-dir" not in rest:
                    yield instruction, "DL3042 --no-cache-dir"
                if "--require-hashes" not in rest and not all(
                        word.endswith(".whl") or "==" in word for word in rest if not word.startswith("-")):
                    yield instruction, "DL3013 pin versions"
