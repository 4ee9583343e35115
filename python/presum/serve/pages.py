# SPDX-License-Identifier: Apache-2.0
"""The pages beside the report's: the one that asks for the token, and the list of runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape

from presum.serve.runs import Overview

STYLE = """:root { color-scheme: light dark; --quiet: light-dark(#59636e, #a0abb8);
  --line: light-dark(#dfe4ea, #2b333d); --link: light-dark(#0b62a8, #63b3f2);
  --warning: light-dark(#a85400, #f2a03d); --critical: light-dark(#8c1d4f, #f58bb5); }
body { margin: 0 auto; max-width: 1240px; padding: 10px 20px 32px;
  font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif; }
a { color: var(--link); }
.quiet, thead { color: var(--quiet); }
.warning { color: var(--warning); }
.critical { color: var(--critical); }
h1 { font-size: 26px; margin: 8px 0; overflow-wrap: anywhere; }
div { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); }
th { font-weight: 500; }
td { vertical-align: top; overflow-wrap: anywhere; }
.short { white-space: nowrap; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
@media (max-width: 760px) {
  thead { display: none; }
  tr { display: block; border-bottom: 1px solid var(--line); padding: 6px 0; }
  td { display: inline; border: 0; }
  td:first-child, td:last-child { display: block; }
}"""

SCRIPT = """const said = document.getElementById('said');
const token = location.hash.slice(1);
if (!token) said.textContent = 'Open the link that presum serve printed: it holds the token.';
else fetch('login', {method: 'POST', body: token}).then((answer) => {
  if (answer.ok) location.replace('/');
  else said.textContent = 'presum serve has another token now: open the link that it printed.';
}, () => { said.textContent = 'presum serve does not answer.'; });"""

HIDE = "if (location.hash) history.replaceState(null, '', location.pathname);"  # the token


def _page(title: str, body: str, nonce: str, more: str = "") -> str:
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">{more}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><style nonce="{nonce}">{STYLE}</style></head>\n'
        f"<body>{body}</body></html>\n"
    )


def login(nonce: str) -> str:
    """Sends the fragment of the link, which browsers keep from servers, and holds no data."""
    script = f'<script nonce="{nonce}">{SCRIPT}</script>'
    return _page("presum", f'<p id="said">One moment.</p>{script}', nonce)


def listing(folder: str, runs: Sequence[Overview], older: int, nonce: str) -> str:
    head = f"<p><b>presum</b></p><h1>{escape(folder)}</h1>"
    rows = "".join(map(_row, runs))
    names = "<th>Run<th>Written<th>State<th class=number>Steps<th>Verdict"
    table = f"<div><table><thead><tr>{names}</thead><tbody>{rows}</tbody></table></div>"
    end = f'<p class="quiet">and {older} older ones</p>' if older else ""
    body = table if runs else '<p class="quiet">There is no run here yet.</p>'
    hide = f'<script nonce="{nonce}">{HIDE}</script>'
    again = '<meta http-equiv="refresh" content="5">'
    return _page(f"{folder} - presum", head + body + end + hide, nonce, again)


def _row(run: Overview) -> str:
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.written.seconds))
    cells = (
        ("", f'<a href="/runs/{run.link}/">{escape(run.name)}</a>'),
        ("quiet short", f"{written} ({_ago(time.time() - run.written.seconds)})"),
        ("quiet short", run.state),
        ("number", f"{run.steps:,}"),
        (run.severity, escape(run.verdict)),
    )
    return "<tr>" + "".join(f'<td class="{kind}">{text}' for kind, text in cells) + "\n"


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"
