"""Prints how the documentation reads, and which of its examples are run: `python -m programs.documentation [PAGE ...]`.

Per page: sentences, their words on average, the share of those of more than 25 words, and how many code blocks are run,
compared with what stands there, run by a test of their own, and not run; the worst page first, and all together last.
`--long` prints the long sentences as well, `--not-run` the blocks that aren't run, with the reason. Code, tables and
headings are no sentences.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from kits.basics.places import ROOT
from kits.pages.examples import Example, examples
from kits.pages.pages import LONG, PAGES, Reading, reading, sentences, words

_KINDS = ("run", "compared", "by a test", "not run")


def kind_of(example: Example) -> str:
    """Returns what happens to a code block."""
    if example.option in ("run-by", "no-run"):
        return "by a test" if example.option == "run-by" else "not run"
    return "compared" if example.language == "text" else "run"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m programs.documentation", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", default=PAGES)
    parser.add_argument("--long", action="store_true", help=f"print the sentences of more than {LONG} words, too")
    parser.add_argument("--not-run", action="store_true", help="print the blocks that are not run, too")
    options = parser.parse_args()
    texts = {path.resolve().relative_to(ROOT): path.read_text("utf-8") for path in options.pages}
    found = {path: reading(text) for path, text in texts.items()}
    counts = {path: Counter(map(kind_of, examples(text))) for path, text in texts.items()}
    heads = ["page", "sentences", "words each", "long ones", "%", *_KINDS]
    sys.stdout.write(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|\n")
    for path, figures in sorted(found.items(), key=lambda each: -each[1].share):
        sys.stdout.write(_row(str(path), figures, counts[path]))
    sys.stdout.write(_row("all", sum(found.values(), Reading(0, 0, 0)), sum(counts.values(), Counter())))
    for path, text in texts.items():
        if options.long:
            for sentence in sentences(text):
                if words(sentence) > LONG:
                    sys.stdout.write(f"{path}, {words(sentence)} words: {sentence}\n")
        if options.not_run:
            for example in examples(text):
                if example.option == "no-run":
                    sys.stdout.write(f"{path}:{example.block.line}: {example.language}, {example.value}\n")
    return 0


def _row(name: str, figures: Reading, counts: Counter[str]) -> str:
    cells = [name, str(figures.sentences), f"{figures.mean:.1f}", str(figures.long), f"{100 * figures.share:.1f}",
             *(str(counts[kind]) for kind in _KINDS)]
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    sys.exit(main())
