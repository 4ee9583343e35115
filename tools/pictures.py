# SPDX-License-Identifier: Apache-2.0
"""Takes the pictures of the documents again: ``make pictures``, with Chromium, from a demo's runs.

A picture is 520 pixels wide, so that it can be read at 400.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from pathlib import Path

from report_browser import Browser, find

WIDTH = 520
# The parts of the page that are in the picture; all others are hidden.
BROKEN = [
    *("#story h3", "#story .legend", "#story .plot"),
    *("#workers h2", "#workers .choices", "#workers .heat", "#workers .keys"),
]
EXPERIMENT = ["#overview .tile-row h2", '#overview .tile:not([data-run$="S1-2"])']
SHOW_ONLY = """((shown) => {
  const kept = shown.flatMap((name) => {
    const found = [...document.querySelectorAll(name)];
    if (found.length === 0) throw new Error(`the page has no ${name}`);
    return found;
  });
  for (const element of document.body.querySelectorAll('*')) {
    const near = kept.some((k) => k.contains(element) || element.contains(k));
    if (!near) element.style.display = 'none';
  }
  const box = document.body.getBoundingClientRect();
  return Math.ceil(Math.max(...kept.map((k) => k.getBoundingClientRect().bottom)) - box.top) + 16;
})"""


def main(demo: Path, docs: Path) -> int:
    command = find()
    if command is None:
        print("presum: this needs Chromium (apt install chromium)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, Browser(command) as browser:
        page = Path(folder) / "report.html"
        report(page, [demo / "rank-5-breaks"])
        take(browser, page, BROKEN, docs / "rank.png")
        report(page, sorted(demo.glob("*-S1-*")))
        take(browser, page, EXPERIMENT, docs / "experiment.png")
    return 0


def report(page: Path, runs: list[Path]) -> None:
    command = [sys.executable, "-m", "presum", "report", *map(str, runs), "-o", str(page)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def take(browser: Browser, page: Path, shown: list[str], picture: Path) -> None:
    browser.size(WIDTH, 1000)
    browser.open(page)
    height = browser.evaluate(f"{SHOW_ONLY}({shown})")
    browser.size(WIDTH, height)
    browser.evaluate("scrollTo(0, 0)")
    browser.settle()
    answer = browser.command("Page.captureScreenshot")
    picture.write_bytes(base64.b64decode(answer["data"]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
