# SPDX-License-Identifier: Apache-2.0
"""presum report, seen by a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_browser

import presum
import report_runs
from programs_started import presum_command
from report_runs import HOSTILE, Scene

PLANTED = Scene(steps=120, layers=12, deviates=lambda rank, step: rank == 5 and step >= 60)
SCENES = {
    "fine": Scene(),
    "planted": PLANTED,
    "missing": Scene(missing=lambda r, s: r == 7 or (r == 5 and 12 <= s < 20) or 33 <= s < 35),
    "nonfinite": Scene(nonfinite=lambda rank, step: (rank, step) == (3, 17)),
    "mixed": Scene(mixed=True),
    "no-loss": Scene(losses=False),
    "workers-64": Scene(workers=64, sketch=256, deviates=lambda rank, step: rank == 41),
    "one-worker": Scene(workers=1),
    "empty": Scene(steps=0),
}
# The verdict's words, and the check and ranks of the worst finding.
VERDICTS: dict[str, tuple[str, str | None, list[int]]] = {
    "fine": ("Consistent", None, []),
    "planted": ("Inconsistent", "rank-outlier", [5]),
    "missing": ("Inconsistent", "missing-rank", [7]),
    "nonfinite": ("Inconsistent", "nonfinite-gradient", [3]),
    "mixed": ("Inconsistent", "environment-mismatch", [7]),
    "no-loss": ("Consistent", None, []),
    "workers-64": ("Inconsistent", "rank-outlier", [41]),
    "one-worker": ("Insufficient evidence: one rank: there is nothing to compare", None, []),
    "empty": ("Insufficient evidence: no step was recorded", None, []),
}
HOSTILE_SCENE = Scene(text=HOSTILE, nonfinite=lambda rank, step: (rank, step) == (3, 1))
DEVICES = {"desktop": (1280, 900), "phone": (400, 844)}
LOOKS = (("desktop", "light"), ("phone", "dark"))
DASH, MINUS = "\u2013", "\u2212"
HEAT = "document.querySelector('#workers .heat canvas')"


report = partial(presum_command, "report")


def page_data(page: Path) -> Any:
    found = re.search(r'id="presum-data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found
    return json.loads(found[1])


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    made = {name: report_runs.make(folder / name, scene) for name, scene in SCENES.items()}
    made["s1"] = folder / "s1"
    report_runs.s1(made["s1"])
    return made


@pytest.fixture(scope="session")
def pages(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name, run in runs.items():
        made[name] = folder / f"{name}.html"
        inputs = sorted(run.glob("*-S1-*")) if name == "s1" else [run]
        done = report(*inputs, "-o", made[name])
        assert done.returncode == 0, done.stderr
        assert str(made[name]) in done.stdout
    return made


class Screen(report_browser.Browser):
    """Shows the pages of the runs, or others."""

    def __init__(self, command: str, pages: dict[str, Path]) -> None:
        super().__init__(command)
        self.pages = pages

    def show(self, page: str | Path, device: str = "desktop", scheme: str = "light") -> float:
        """Returns the seconds until it was drawn."""
        self.size(*DEVICES[device], touch=device == "phone")
        self.prefer(scheme)
        self.shown = self.pages[page] if isinstance(page, str) else page
        seconds = self.open(self.shown)
        self.check()
        return seconds

    def edited(self, page: str | Path, name: str, change: Callable[[Any], object]) -> Path:
        """The page of a run, with something else in its data."""
        page = self.pages[page] if isinstance(page, str) else page
        data = page_data(page)
        change(data["runs"][0])
        head, found, rest = page.read_text().partition('id="presum-data">')
        out = page.with_name(f"{name}.html")
        out.write_text(head + found + json.dumps(data) + rest[rest.index("</script>") :])
        return out

    def check(self) -> None:
        """Nothing went wrong, nothing was loaded, nothing sticks out."""
        assert self.errors == []
        assert self.requests == [self.shown.resolve().as_uri()]
        assert self.evaluate("document.documentElement.scrollWidth <= innerWidth")

    def text(self, selector: str) -> str:
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")

    def count(self, selector: str) -> int:
        return self.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")

    def click_on(self, element: str, x: float = 0.5, y: float = 0.5) -> None:
        """At a place within the element that a JavaScript expression yields."""
        self.evaluate(f"{element}.scrollIntoView({{block: 'center'}})")
        box = self.evaluate(
            f"(b => [b.x, b.y, b.width, b.height])({element}.getBoundingClientRect())"
        )
        self.click(box[0] + x * box[2], box[1] + y * box[3])

    def table(self, label: str) -> list[list[str]]:
        return self.evaluate(
            f"[...document.querySelectorAll('[aria-label={label}] tbody tr')]"
            ".map(r => [...r.cells].map(c => c.textContent))"
        )

    def legend(self, selector: str) -> list[str]:
        return self.evaluate(
            f"[...document.querySelectorAll('{selector} .legend > span')].map(s => s.textContent)"
        )

    def chart(self, page: Path) -> str:
        self.show(page)
        return self.evaluate("document.querySelector('#metrics canvas').toDataURL()")


@pytest.fixture(scope="session")
def screen(pages: dict[str, Path]) -> Iterator[Screen]:
    command = report_browser.find()
    if command is None:
        pytest.skip("Chromium is not installed (Debian package chromium)")
    with Screen(command, pages) as started:
        yield started


WITHOUT = {"findings": [], "verdict": "consistent"}


def page_text(screen: Screen, page: str | Path) -> str:
    screen.show(page)
    return screen.text("#report")


def parse(shown: str) -> float:
    return float("nan") if shown == DASH else float(shown.replace(MINUS, "-").replace(",", ""))


def same_digits(shown: str, value: float) -> bool:
    return bool(np.isclose(parse(shown), value, rtol=6e-4, atol=1e-9, equal_nan=True))


@pytest.mark.parametrize("name", [*SCENES, "s1"])
def test_every_page_in_every_look(screen: Screen, name: str, tmp_path: Path) -> None:
    for device, scheme in LOOKS:
        screen.show(name, device, scheme)
        assert screen.evaluate("document.documentElement.dataset.theme") == scheme
    if name in VERDICTS:
        assert screen.text(".verdict")[1:].startswith(VERDICTS[name][0])
    screen.size(*DEVICES["desktop"])
    screen.pdf(tmp_path / "print.pdf")
    screen.check()
    assert screen.evaluate("document.documentElement.dataset.theme") == "dark"


def findings(run: Path) -> Any:
    return json.loads(presum_command("findings", run, "--format", "json").stdout)


@pytest.mark.parametrize("name", VERDICTS)
def test_the_page_shows_the_findings_of_the_run(
    screen: Screen, runs: dict[str, Path], name: str
) -> None:
    found = findings(runs[name])
    judgment = page_data(screen.pages[name])["runs"][0]["judgment"]
    assert {key: found[key] for key in ("verdict", "findings", "checks")} == {
        key: judgment[key] for key in ("verdict", "findings", "checks")
    }
    _, check, ranks = VERDICTS[name]
    worst = [f for f in found["findings"] if f["severity"] != "info"]
    assert ([f["check"] for f in worst[:1]], [f["ranks"] for f in worst[:1]]) == (
        ([check], [ranks]) if check else ([], [])
    )
    screen.show(name)
    cards = screen.evaluate(
        "[...document.querySelectorAll('.finding')].map(f => [f.dataset.check, f.textContent])"
    )
    assert [card[0] for card in cards] == [f["check"] for f in found["findings"]]
    for (_, text), finding in zip(cards, found["findings"], strict=True):
        for said in ("severity", "title", "remedy", "resembles"):
            assert finding[said].replace("`", "") in text
    rows = screen.count("#checks tr")
    assert rows == len(found["checks"])


def test_a_click_on_a_finding_shows_its_steps_and_its_rank(screen: Screen) -> None:
    finding = page_data(screen.pages["planted"])["runs"][0]["judgment"]["findings"][0]
    assert finding["ranks"] == [5]
    zoomed = "[...document.querySelectorAll('.zoom input')].map(i => Number(i.value))"
    for part in (".finding button", ".lane button"):
        screen.show("planted")
        assert screen.evaluate(zoomed) == [0, 119]
        screen.click_on(f"document.querySelector({json.dumps(part)})")
        first, last = screen.evaluate(zoomed)
        assert 0 < first <= finding["first_step"]
        assert finding["last_step"] <= last <= 119
        assert "Rank 5 against the others" in screen.text("#workers .panel")
        screen.check()


@pytest.mark.parametrize("first", [0, 60])
def test_findings_are_marked_in_the_charts(screen: Screen, first: int) -> None:
    """The charts of the same run differ where a finding is taken out of its data, also where that
    holds in all steps."""
    marked = screen.edited(
        "planted",
        f"since-{first}",
        lambda run: run["judgment"]["findings"][0].update(first_step=first, last_step=119),
    )
    bare = screen.edited(marked, "bare", lambda run: run["judgment"].update(WITHOUT))
    assert screen.chart(marked) != screen.chart(bare)
    assert screen.count(".lane") == 0


def test_the_ranks_that_findings_name_are_drawn_from_the_start(screen: Screen) -> None:
    screen.show("planted")
    assert "Rank 5 against the others" in screen.text("#workers .panel")
    assert screen.legend("#workers .panel").count("rank 5") == 4
    assert "rank 5" in screen.legend("#story")
    assert screen.evaluate("scrollY") == 0
    screen.show("fine")
    assert screen.evaluate("document.querySelector('#workers .panel').hidden")
    assert len(screen.legend("#story")) == 2


def test_the_cosines_open_at_the_step_of_the_worst_finding(screen: Screen) -> None:
    finding = page_data(screen.pages["planted"])["runs"][0]["judgment"]["findings"][0]
    step = finding["first_step"]
    screen.show("planted")
    assert screen.text(".matrix-label") == f"Step {step}, where rank-outlier begins"
    screen.show("fine")
    assert screen.text(".matrix-label") == "Step 39"

    def add(run: Any) -> None:
        run["judgment"]["findings"].append(finding | {"first_step": 100, "check": "loss-event"})

    screen.show(screen.edited("planted", "two-findings", add))
    screen.click_on("document.querySelectorAll('.finding button')[1]")
    shown = screen.text(".matrix-label")
    matrices = page_data(screen.pages["planted"])["runs"][0]["parts"][0]["matrices"]
    assert shown.split(",")[0] == f"Step {min(m['step'] for m in matrices if m['step'] >= 100)}"


def test_code_in_texts_is_shown_as_code(screen: Screen) -> None:
    texts = {
        "remedy": "Call `model.train()` on every rank.",
        "evidence_text": 60 * "`abc` is not `abd`, ",
        "title": "Not `eval()`",
    }
    page = screen.edited(
        "planted", "code", lambda run: run["judgment"]["findings"][0].update(texts)
    )
    for scheme in ("light", "dark"):
        screen.show(page, "desktop", scheme)
        assert "`" not in screen.text("#report")
        assert screen.evaluate("!document.querySelector('#report').innerHTML.includes('`')")
    codes = screen.evaluate("[...document.querySelectorAll('.finding code')].map(c => c.innerText)")
    assert "model.train()" in codes
    lone = report_browser.with_page_functions("prose('a ` b').textContent")
    assert screen.evaluate(lone) == "a ` b"


HINTS = """[...document.querySelectorAll('.scroll')].filter(box => box.clientWidth > 0).map(box => [
    box.scrollWidth > box.clientWidth + 1, box.scrollHeight > box.clientHeight + 1,
    box.previousElementSibling.textContent])"""


@pytest.mark.parametrize("name", ["planted", "workers-64", "s1"])
def test_a_table_that_is_cut_says_that_it_scrolls(screen: Screen, name: str) -> None:
    for device in DEVICES:
        screen.show(name, device)
        hints = screen.evaluate(HINTS)
        assert len(hints) > 3
        for right, down, said in hints:
            assert ("→" in said, "↓" in said) == (right, down)
        assert any(right for right, _, _ in hints) == (device == "phone")
    screen.evaluate("document.querySelector('[aria-label=Workers]').scrollLeft = 1e4")
    screen.settle()
    assert not screen.evaluate(
        "document.querySelector('[aria-label=Workers]').classList.contains('more-right')"
    )


def test_a_finding_of_two_ranks_shows_both(screen: Screen) -> None:
    page = screen.edited(
        "planted",
        "two-ranks",
        lambda run: run["judgment"]["findings"][0].update(ranks=[2, 5]),
    )
    screen.show(page)
    assert screen.text(".finding button").endswith(" and ranks 2, 5")
    screen.click_on("document.querySelector('.finding button')")
    panel = screen.text("#workers .panel")
    assert "Ranks 2, 5 against the others" in panel
    assert panel.count("othersrank 2rank 5") == 4
    screen.check()


def test_long_evidence_is_folded_and_can_be_read(screen: Screen) -> None:
    groups = ", ".join(f"layers.{i}.weight" for i in range(40))
    page = screen.edited(
        "planted",
        "long-evidence",
        lambda run: run["judgment"]["findings"][0].update(evidence_text=groups),
    )
    for device in DEVICES:
        screen.show(page, device)
        height = "document.querySelector('.long').offsetHeight"
        folded = screen.evaluate(height)
        screen.click_on("document.querySelector('.long summary')", x=0.01, y=0.2)
        assert screen.evaluate(height) > folded
        assert screen.text(".long").endswith(groups)
        assert screen.evaluate("document.querySelector('.long').innerText").endswith(groups)
        screen.check()


def test_the_page_says_how_the_run_ended(screen: Screen) -> None:
    assert "preflight" not in page_text(screen, "fine")
    page = screen.edited(
        "fine",
        "ended",
        lambda run: run["segments"][0].update(closed=False, preflight_exit_code=1),
    )
    text = page_text(screen, page)
    assert "preflight: ended with exit code 1 (inconsistent)" in text
    assert "not closed (still running, or died): judged on the steps written" in text


def test_a_sampler_that_names_its_rank_is_no_difference(screen: Screen) -> None:
    def facts(seeds: list[int]) -> Callable[[Any], None]:
        values = [
            {"value": f"S(seed={seed}, rank={rank})", "ranks": [rank]}
            for rank, seed in enumerate(seeds)
        ]
        return lambda run: run["facts"].append({"segment": 1, "key": "sampler", "values": values})

    alike = screen.edited("fine", "samplers", facts([1, 1]))
    assert "Every setting that should be the same on all ranks is" in page_text(screen, alike)
    other = screen.edited("fine", "other-samplers", facts([1, 2]))
    assert "rank 1: S(seed=2, rank=1)" in page_text(screen, other)
    assert len(screen.evaluate("[...document.querySelectorAll('.facts .odd')].map(e => 1)")) == 1


def test_the_tables_say_what_the_run_log_says(screen: Screen, runs: dict[str, Path]) -> None:
    screen.show("missing")
    log = presum.load(runs["missing"])
    means = log.workers.groupby("rank")[["loss", "grad_norm", "cosine_to_others"]].mean()
    rows = screen.table("Workers")
    assert rows[7][0] == "replica 7 (never seen)"
    for rank, mean in means.iterrows():
        loss, norm, cosine = (rows[int(str(rank))][i] for i in (3, 5, 7))
        assert same_digits(loss, mean.loss)
        assert same_digits(norm, mean.grad_norm)
        assert same_digits(cosine, mean.cosine_to_others)
    layers = screen.table("Layers")
    norms = log.groups.groupby(["step", "group"]).grad_norm.mean().groupby("group").mean()
    assert [row[0] for row in layers] == list(norms.index)
    for row, norm in zip(layers, norms, strict=True):
        assert same_digits(row[2], norm)


def test_several_runs_agree_with_their_logs(screen: Screen, runs: dict[str, Path]) -> None:
    screen.show("s1")
    rows = screen.table("Runs")
    assert len(rows) == 6
    for row in rows:
        steps = presum.load(runs["s1"] / row[0]).steps
        columns = ("loss_std", "loss_range", "grad_norm_std", "grad_norm_cv", "cosine_mean")
        for shown, column in zip(row[4:9], columns, strict=True):
            assert same_digits(shown, steps[column].mean()), (row[0], column)
        found = findings(runs["s1"] / row[0])
        worst = [f["check"] for f in found["findings"] if f["severity"] != "info"]
        assert row[2].split(" ", 1)[1] == (worst[0] if worst else found["verdict"])
    sentence = screen.text("#overview .verdict")
    assert "Sharded data hides the seeds" in sentence
    assert "the ranks do the work of one" in sentence


RANGES = """[...document.querySelectorAll('.tile')].map(tile => [tile.dataset.run,
    Math.max(...[...tile.querySelectorAll('.dygraph-axis-label-y')].map(l => +l.textContent)),
    tile.querySelector('.beyond').textContent])"""


def test_one_run_does_not_flatten_the_others(screen: Screen, tmp_path: Path) -> None:
    common = Scene(workers=2, steps=20, layers=2, sketch=64)
    runs = [
        report_runs.make(tmp_path / f"run-{i:02}", replace(common, scale=60 if i == 13 else 1))
        for i in range(21)
    ]
    page = tmp_path / "page.html"
    assert report(*runs, "-o", page).returncode == 0
    for device, scheme in LOOKS:
        screen.show(page, device, scheme)
    ranges = screen.evaluate(RANGES)
    assert {largest for _, largest, _ in ranges} == {6}
    beyond = {name: said for name, _, said in ranges if said}
    assert list(beyond) == ["run-13"]
    assert re.fullmatch(r"▲ up to 3[\d.]+, beyond this scale. See it whole", beyond["run-13"])
    note = screen.text("#overview .note")
    assert note.endswith("chosen for most of them: one run leaves it, marked ▲ or ▼.")
    screen.click_on("document.querySelector('.beyond button')")
    assert screen.text(".run-name") == "run-13"


def test_runs_beside_an_experiment_come_first_and_are_opened(
    screen: Screen, runs: dict[str, Path], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    first = [runs["fine"], runs["planted"]]
    experiment = sorted(runs["s1"].glob("*-S1-*"))
    assert report(*first, *experiment, "-o", page).returncode == 0
    screen.show(page)
    tiles = screen.evaluate("[...document.querySelectorAll('.tile')].map(t => t.dataset.run)")
    assert tiles[:2] == ["fine", "planted"] and sorted(tiles[2:]) == [r.name for r in experiment]
    assert "Sharded data hides the seeds" in screen.text("#overview .verdict")
    assert screen.text(".run-name") == "planted"


def test_few_runs_and_runs_that_are_near_share_one_scale(screen: Screen) -> None:
    screen.show("s1")
    for shown in ("loss", "loss_std", "grad_norm_std", "cosine"):
        screen.click_on(f"document.querySelector('[data-shown={shown}]')")
        assert {said for _, _, said in screen.evaluate(RANGES)} == {""}
    for extents, said in {
        "[[0, 1], [0, 1], [0, 99]]": [0, 99],
        "[[0, 1], [0, 1], [0, 1.5], [0, 99]]": [0, 1.5],
        "[[0, 1], [0, 1], [0, 1], [-99, 1]]": [0, 1],
        "[[0, 1], [1, 2], [2, 3], [3, 4]]": [0, 4],
        "[[1, 1], [1, 1], [1, 1], [2, 2]]": [1, 2],
    }.items():
        common = report_browser.with_page_functions(f"commonExtent({extents})")
        assert screen.evaluate(common) == said


def test_a_click_in_the_heat_map_opens_that_workers_lines(screen: Screen) -> None:
    screen.show("planted")
    screen.click_on(HEAT, 0.8, 0.63)
    assert "Rank 5 against the others" in screen.text("#workers .panel")
    assert screen.count("#workers .panel figure") == 4
    screen.click_on("document.querySelector('#workers .panel-head button')")
    assert screen.evaluate("document.querySelector('#workers .panel').hidden")
    assert screen.errors == []


def test_the_heat_map_works_from_the_keyboard(screen: Screen) -> None:
    screen.show("planted")
    screen.evaluate(f"{HEAT}.focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
        screen.key(key)
    assert re.search(r"^Rank 2: .*\(step 1\)$", screen.text("#workers .heat .readout"))
    screen.key("Enter")
    assert "Rank 2 against the others" in screen.text("#workers .panel")


def with_times(screen: Screen, name: str, every: int = 1) -> Path:
    """The page of a run whose rank 2 is slow; it waits for nobody, and the others for it."""

    def change(run: Any) -> None:
        time = run["parts"][0]["time"]
        for rank, worker in enumerate(time["workers"]):
            own, waits = (0.03, 0) if rank == 2 else (0.02, 0.01)
            phases = {"forward": own / 2, "backward": own / 2, "reduction": waits}
            worker["mean"] |= {"data": 0, "optimizer": 0, "rest": 0} | phases
        time.update(waited=39 * 7 * 0.01, total=39 * 8 * 0.03)
        run["facts"].append(
            {"segment": 1, "key": "every", "values": [{"value": str(every), "ranks": [0]}]}
        )

    return screen.edited("fine", name, change)


def test_times_show_what_waiting_costs(screen: Screen) -> None:
    screen.show("missing")  # these workers reduce nothing, so nothing is said of waiting
    assert screen.count("#time .time-bar") == 7
    assert screen.evaluate("document.querySelector('#waiting')") is None
    for device in DEVICES:
        screen.show(with_times(screen, "times"), device)
        said = screen.text("#waiting p")
        assert said == "Waiting for others cost 2.73 rank-seconds, 29.2% of all time recorded."
        bar = screen.evaluate(
            "(b => [b.title, b.lastChild.textContent])(document.querySelectorAll('.time-bar')[2])"
        )
        assert bar == [
            "rank 2: data 0 ms, forward 15.0 ms, backward 15.0 ms, optimizer 0 ms, rest 0 ms, "
            "waiting for others 0 ms",
            "30.0 ms of 30.0 ms",
        ]
    screen.show(with_times(screen, "sparse", every=10))
    said = screen.text("#waiting p")
    assert said.endswith("29.2% of all time of the recorded steps, which are one in 10.")


def stall(*, harmless: bool, end: str, text: str = "evaluate()") -> dict[str, object]:
    places = [
        {"ranks": [2], "awaited": True, "where": f"is in {text}", "site": text, "stack": text},
        {"ranks": [0, 1], "awaited": False, "where": "waits", "site": "", "stack": ""},
    ]
    return {
        "segment": 1,
        "step": 7,
        "seconds": 150.0,
        "end": end,
        "harmless": harmless,
        "sentence": f"Rank 2 is in {text} while ranks 0-1 wait",
        "places": places,
        "ranks_left": 0,
    }


def with_stalls(screen: Screen, name: str, *stalls: dict[str, object]) -> Path:
    listed = {"list": stalls, "count": len(stalls) + 3}
    return screen.edited("fine", name, lambda run: run.update(stalls=listed))


def test_stalls_say_where_each_rank_stood(screen: Screen) -> None:
    screen.show("fine")
    assert screen.evaluate("document.querySelector('#stalls')") is None
    grave = stall(harmless=False, end="open", text=HOSTILE.replace("</", "<\\/"))
    page = with_stalls(screen, "stalls", grave, stall(harmless=True, end="went-on"))
    for device in DEVICES:
        screen.show(page, device)
        screen.evaluate("document.querySelectorAll('#stalls details').forEach(d => d.open = true)")
        screen.settle()
        screen.check()
    assert screen.evaluate("document.title") != "owned"
    assert screen.evaluate("document.images.length") == 0
    said = screen.text("#stalls .finding")
    assert said.startswith(str(grave["sentence"]))
    assert "Step 7: 2.50 min, and it had not gone on when this was written" in said
    assert said.count("keeps the others waiting") == 1
    assert "Stack of rank 2" in said
    assert "onerror=alert(1)" in screen.text("#stalls pre")
    harmless = screen.text("#stalls .stall.note")
    assert harmless.startswith("Harmless, at step 7: 2.50 min, then it continued. Rank 2 is in")
    assert "keeps the others waiting" not in harmless
    assert "and 3 more in the run" in screen.text("#stalls")


def test_grave_stalls_come_before_the_charts_and_harmless_ones_after(screen: Screen) -> None:
    follows = (
        "Boolean(document.querySelector('#story').compareDocumentPosition("
        "document.querySelector('#stalls')) & Node.DOCUMENT_POSITION_FOLLOWING)"
    )
    for harmless in (False, True):
        one = stall(harmless=harmless, end="open")
        screen.show(with_stalls(screen, f"stall-{harmless}", one))
        assert "it had not gone on" in screen.text("#stalls")
        assert screen.evaluate(follows) == harmless


def test_the_slider_shows_another_steps_cosines(screen: Screen, runs: dict[str, Path]) -> None:
    screen.show("fine")
    picture = "document.querySelector('#matrix canvas').toDataURL()"
    before = screen.evaluate(picture)
    screen.evaluate(
        "(s => { s.value = 3; s.dispatchEvent(new Event('input')); })"
        "(document.querySelector('.matrix-step'))"
    )
    assert screen.text(".matrix-label") == "Step 3"
    assert screen.evaluate(picture) != before
    cosines = presum.load(runs["fine"]).cosines(3)
    least = cosines[np.triu_indices(8, 1)].min()
    shown = re.search(r"Least alike: ranks (\d) and (\d) \((.*?)\)", screen.text("#matrix"))
    assert shown
    assert abs(parse(shown[3]) - least) < 1e-3
    assert abs(cosines[int(shown[1]), int(shown[2])] - least) < 1e-3


def test_the_theme_toggle(screen: Screen) -> None:
    screen.show("fine")
    paper = "getComputedStyle(document.body).backgroundColor"
    light, chart = screen.evaluate(paper), "document.querySelector('#story canvas').toDataURL()"
    drawn = screen.evaluate(chart)
    screen.click_on("document.getElementById('theme-toggle')")
    assert screen.evaluate(paper) != light
    assert screen.evaluate(chart) != drawn
    screen.click_on("document.getElementById('theme-toggle')")
    assert screen.evaluate(paper) == light


def test_the_run_picker_and_the_small_charts(screen: Screen) -> None:
    screen.show("s1")
    assert screen.count(".tile canvas") == 12
    screen.click_on("document.querySelectorAll('[role=tab]')[4]")
    assert screen.text(".run-name") == "sharded-S1-2"
    assert screen.evaluate("document.querySelector('[aria-selected=true]').textContent") == (
        "sharded-S1-2"
    )
    screen.click_on("document.querySelector('.tile[data-run=replicated-S1-3] button')")
    assert screen.text(".run-name") == "replicated-S1-3"
    before = screen.evaluate("document.querySelector('.tile canvas').toDataURL()")
    screen.click_on("document.querySelector('[data-shown=cosine]')")
    assert screen.evaluate("document.querySelector('.tile canvas').toDataURL()") != before
    assert screen.errors == []


def test_zooming_by_numbers_moves_every_chart(screen: Screen) -> None:
    screen.show("planted")
    canvases = "['#story', '#metrics', '#workers .heat'].map("
    canvases += "s => document.querySelector(s + ' canvas').toDataURL())"
    before = screen.evaluate(canvases)
    screen.evaluate(
        "(i => { i.value = 50; i.dispatchEvent(new Event('change')); })"
        "(document.querySelector('.zoom input'))"
    )
    screen.settle()
    after = screen.evaluate(canvases)
    assert all(a != b for a, b in zip(after, before, strict=True))


def test_the_worker_table_sorts(screen: Screen) -> None:
    screen.show("workers-64")
    screen.click_on("document.querySelectorAll('[aria-label=Workers] th button')[6]")
    rows = screen.table("Workers")
    assert rows[0][0] == "rank 41"
    screen.click_on("document.querySelector('[aria-label=Workers] td button')")
    assert "Rank 41 against the others" in screen.text("#workers .panel")


def test_no_string_of_a_run_is_run(screen: Screen, tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "\\")
    runs = [
        report_runs.make(tmp_path / f"{i}{name}", replace(HOSTILE_SCENE, steps=4 + i))
        for i in range(2)
    ]
    for number, chosen in enumerate((runs[:1], runs)):
        page = tmp_path / f"{number}.html"
        assert report(*chosen, "-o", page).returncode == 0
        screen.show(page)
        assert screen.evaluate("document.title") != "owned"
        assert screen.evaluate("document.images.length") == 0
        assert HOSTILE in screen.text("[aria-label=Layers]")
        assert HOSTILE in screen.text(".finding")
        screen.click_on("document.querySelector('#groups .heat canvas')", 0.6, 0.2)
        assert HOSTILE in screen.text("#groups .panel")
        screen.check()


def test_bad_input_leaves_no_file(runs: dict[str, Path], tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    whole = (runs["fine"] / "presum.db").read_bytes()
    (damaged / "presum.db").write_bytes(whole[:8192] + b"\x5a" * (len(whole) - 8192))
    page = tmp_path / "page.html"
    for bad in (damaged, tmp_path / "none", tmp_path):
        done = report(runs["fine"], bad, "-o", page)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith("presum report: ")
        assert done.stderr.count("\n") == 1
        assert not page.exists()


def test_a_file_that_is_no_page_is_left_alone(runs: dict[str, Path], tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    done = report(runs["empty"], "-o", notes)
    assert done.returncode == 2
    assert "it exists and holds something else" in done.stderr
    assert notes.read_text() == "mine"


def test_the_file_is_replaced_whole_and_a_folder_is_not(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    done = report(runs["empty"], "-o", folder)
    assert done.returncode == 2
    assert "folder" in done.stderr
    page = tmp_path / "page.html"
    page.write_text("<!DOCTYPE html>old")
    assert report(runs["empty"], "-o", page).returncode == 0
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert not page.read_text().endswith("old")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "page.html"]
    assert report(runs["empty"], "-o", tmp_path / "no" / "page.html").returncode == 2


@pytest.mark.deep
@pytest.mark.parametrize(
    ("scene", "times"),
    [
        (replace(PLANTED, steps=1000, layers=2, sketch=64), 1000),
        (Scene(workers=1024, steps=20, layers=2, sketch=64), 100),
    ],
    ids=["a million steps", "1,024 ranks"],
)
def test_the_page_of_a_long_run_is_small(
    screen: Screen, scene: Scene, times: int, tmp_path: Path
) -> None:
    run = report_runs.repeat(report_runs.make(tmp_path / "long", scene), times)
    page = tmp_path / "long.html"
    assert report(run, "-o", page).returncode == 0
    assert page.stat().st_size < 5_000_000
    print(f"painted in {screen.show(page):.2f} s")
    assert f"{scene.steps * times:,} steps" in screen.text(".coverage")
