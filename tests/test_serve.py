# SPDX-License-Identifier: Apache-2.0
"""``presum serve``: what a real browser shows of a run that is recorded, who gets in, and what
thousands of connections change."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import report_browser

import report_runs
from programs_started import TESTS, presum_command, start
from report_runs import HOSTILE, Scene

SCENE = Scene(steps=40, layers=6, sketch=256)
Answer = tuple[int, str, Mapping[str, str]]


@dataclass
class Served:
    process: subprocess.Popen[str]
    link: str

    @property
    def host(self) -> str:
        return urlsplit(self.link).netloc

    @property
    def token(self) -> str:
        return urlsplit(self.link).fragment

    def ask(
        self, path: str, method: str = "GET", body: str | None = None, **headers: str
    ) -> Answer:
        """Without a token, unless a header has one."""
        connection = http.client.HTTPConnection(self.host)
        connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        data = answer.read()
        if answer.headers.get("Content-Encoding") == "gzip":
            data = zlib.decompress(data, wbits=31)
        return answer.status, data.decode("utf-8"), answer.headers

    def read(self, path: str) -> Answer:
        cookie = f"other=1; presum-{self.host.rpartition(':')[2]}={self.token}"
        return self.ask(path, Cookie=cookie)

    def steps(self, name: str) -> int:
        (part,) = json.loads(self.read(f"/runs/{name}/data")[1])["runs"][0]["parts"]
        return int(part["coverage"]["steps"])


@contextlib.contextmanager
def serving(path: Path, *arguments: str) -> Iterator[Served]:
    command = [sys.executable, "-m", "presum", "serve", str(path), "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            (link,) = re.findall(r"http://\S+", process.stdout.readline())
            yield Served(process, link)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    report_runs.make(folder / "older", SCENE)
    report_runs.make(folder / "sweep" / "newer", replace(SCENE, steps=20, replicated=range(8)))
    return folder


@pytest.fixture(scope="module")
def served(runs: Path) -> Iterator[Served]:
    with serving(runs) as one:
        yield one


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Path]:
    """A run that gets ten steps a second until the test is over."""
    over = threading.Event()
    scene = replace(SCENE, steps=10_000, deviates=lambda rank, step: rank == 5 and step >= 60)

    def record() -> None:
        with contextlib.suppress(InterruptedError):
            report_runs.make(tmp_path / "runs" / "live", scene, after_step)

    def after_step() -> None:
        if over.wait(0.1):
            raise InterruptedError

    thread = threading.Thread(target=record)
    thread.start()
    yield tmp_path / "runs"
    over.set()
    thread.join()


@pytest.fixture
def browser() -> Iterator[report_browser.Browser]:
    command = report_browser.find()
    if command is None:
        pytest.skip("Chromium is not installed (Debian package chromium)")
    with report_browser.Browser(command) as one:
        one.size(1280, 900)
        yield one


def wait_for(condition: Callable[[], Any]) -> None:
    """As long as pytest lets a test take."""
    while not condition():
        time.sleep(0.1)


def shows(browser: report_browser.Browser, expression: str) -> bool:
    """False also while another page is loaded."""
    with contextlib.suppress(AssertionError):
        return bool(browser.evaluate(expression))
    return False


REFUSED = "document.body.textContent.includes('that it printed')"
OPEN = "(link => link && (link.click(), true))(document.querySelector('td a'))"
STEP = "Number(/step (\\d+)/.exec(document.getElementById('live')?.textContent)?.[1] ?? -1)"
CHOSEN = """({
    zoom: [...document.querySelectorAll('.zoom input')].map(i => i.value),
    metric: document.querySelector('#workers .choices [aria-pressed=true]').dataset.metric,
    rank: document.querySelector('#workers .panel h3').textContent,
    layer: document.querySelector('#groups .panel h3').textContent,
    sorted: [...document.querySelectorAll('th')].map(t => t.getAttribute('aria-sort')),
    checks: document.querySelector('#checks').open,
    focused: document.activeElement === document.querySelector('#groups .panel'),
    top: Math.round(document.querySelector('#groups').getBoundingClientRect().top),
})"""
CHOOSE = """
    const set = (input, value, kind) => {
        input.value = value;
        input.dispatchEvent(new Event(kind));
    };
    const [from, to] = document.querySelectorAll('.zoom input');
    set(from, 1, 'change');
    set(to, 3, 'change');
    document.querySelector('[data-metric=cosine]').click();
    document.querySelectorAll('[aria-label=Workers] th button')[4].click();
    document.querySelectorAll('[aria-label=Workers] td button')[2].click();
    document.querySelector('#checks').open = true;
    document.querySelectorAll('[aria-label=Layers] td button')[1].click();
    document.querySelector('#groups').scrollIntoView();
"""


def follow(browser: report_browser.Browser, recording: Path, seconds: float) -> None:
    with serving(recording) as served:
        wait_for(lambda: (recording / "live" / "presum.db").exists())
        browser.open(served.link)
        wait_for(lambda: shows(browser, OPEN))
        wait_for(lambda: shows(browser, "Boolean(document.getElementById('checks'))"))
        wait_for(lambda: shows(browser, f"{STEP} > 5"))
        browser.evaluate(f"(() => {{{CHOOSE}}})()")
        chosen, first = browser.evaluate(CHOSEN), browser.evaluate(STEP)
        assert chosen["zoom"] == ["1", "3"] and chosen["metric"] == "cosine"
        ends, seen = time.monotonic() + seconds, {first}
        while time.monotonic() < ends or len(seen) < 4:
            assert browser.evaluate(CHOSEN) == chosen
            seen.add(browser.evaluate(STEP))
            time.sleep(0.2)
        assert browser.evaluate("document.getElementById('report').style.minHeight") == ""
        assert served.token not in browser.evaluate("location.href")
        origin = served.link.partition("#")[0]
        assert {url for url in browser.requests if not url.startswith(origin)} == set()
        assert browser.errors == []


def test_the_page_follows_a_run_and_keeps_what_was_chosen(
    browser: report_browser.Browser, recording: Path
) -> None:
    follow(browser, recording, 2)


@pytest.mark.deep
def test_the_page_follows_for_a_minute(browser: report_browser.Browser, recording: Path) -> None:
    follow(browser, recording, 60)


def test_nothing_is_redrawn_under_a_pointer(
    browser: report_browser.Browser, recording: Path
) -> None:
    with serving(recording) as served:
        wait_for(lambda: (recording / "live" / "presum.db").exists())
        browser.open(served.link)
        wait_for(lambda: shows(browser, OPEN))
        wait_for(lambda: shows(browser, f"{STEP} > 5"))
        browser.evaluate("document.querySelector('#story .zoom button').focus()")
        press = {"x": 400, "y": 450, "button": "left", "clickCount": 1}
        browser.command("Input.dispatchMouseEvent", type="mousePressed", **press)
        shown, written = browser.evaluate(STEP), served.steps("live")
        wait_for(lambda: served.steps("live") > written + 20)
        assert browser.evaluate(STEP) == shown
        browser.command("Input.dispatchMouseEvent", type="mouseReleased", **press)
        wait_for(lambda: browser.evaluate(STEP) > shown)


def test_a_link_without_the_token_shows_nothing(
    browser: report_browser.Browser, served: Served
) -> None:
    for link in (served.link.partition("#")[0], served.link[:-1]):
        browser.open("about:blank")
        browser.open(link)
        wait_for(lambda: shows(browser, REFUSED))
        assert "newer" not in browser.evaluate("document.documentElement.outerHTML")


def test_runs_are_listed_newest_first(served: Served) -> None:
    status, page, headers = served.read("/")
    assert status == 200 and "'unsafe-inline'" not in headers["Content-Security-Policy"]
    links = re.findall(r'<a href="/runs/(.*?)/">', page)
    assert links == ["sweep%2Fnewer", "older"]
    assert 'class="critical">inconsistent' in page
    assert served.steps("older") == 40 and served.steps("sweep%2Fnewer") == 20


def test_data_is_sent_again_only_if_there_is_more(runs: Path, served: Served) -> None:
    tag = served.read("/runs/older/data")[2]["Presum-Tag"]
    assert served.read(f"/runs/older/data?have={tag}")[:2] == (204, "")
    os.utime(runs / "older" / "presum.db")
    answers = (served.read(f"/runs/older/data?have={tag}") for _ in iter(int, 1))
    headers = next(headers for status, _, headers in answers if status == 200)
    assert headers["Presum-Tag"] != tag


@pytest.mark.parametrize(
    "path", ["/", "/runs/older/", "/runs/older/data", "/runs/nothing/data", "/favicon.ico"]
)
def test_without_the_token_nothing_is_read(served: Served, path: str) -> None:
    for cookie in ("", "presum-1=x", f"presum={served.token}", "presum-é=\x80"):
        status, page, _ = served.ask(path, Cookie=cookie)
        assert status == (200 if path == "/" else 403)
        assert not re.search("older|newer|nothing", page) and served.token not in page


def test_only_the_token_is_taken(served: Served) -> None:
    assert served.ask("/login", "POST", served.token[:-1])[0] == 403
    for length in ("1000", "-1", "9" * 5000, "x", "²"):
        assert served.ask("/login", "POST", "", Content_Length=length)[0] == 413
    assert served.ask("/", "POST", served.token)[0] == 404
    assert served.ask("/login", "POST", served.token, Origin="http://evil.example")[0] == 403
    status, _, headers = served.ask("/login", "POST", served.token)
    assert status == 204
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/" in cookie


def test_foreign_names_are_refused(served: Served) -> None:
    port = served.host.rpartition(":")[2]
    cookie = f"presum-{port}={served.token}"
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "",
        "[",
        "127.0.0.1.evil.example",
        "a:b:c",
    ):
        assert served.ask("/", Host=host, Cookie=cookie)[0] == 403, host
    assert served.ask("/", Host="", Cookie=cookie, Origin="")[0] == 403
    assert served.ask("/runs/older/data", Cookie=cookie, Sec_Fetch_Site="same-site")[0] == 403
    for host in ("localhost:1", f"LOCALHOST:{port}", "127.0.0.1", "[::1]:80"):
        assert served.ask("/", Host=host, Cookie=cookie)[0] == 200, host


def test_another_name_can_be_allowed(runs: Path) -> None:
    with serving(runs, "--allow-host", "Presum.example") as served:
        assert served.ask("/", Host="presum.example:443")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/runs/..%2F..%2Fetc%2Fpasswd/data",
        "/runs/../older/data",
        "/runs//etc/passwd/data",
        "/runs/older/presum.db",
        "/runs/%00/data",
        "/runs/%ff/data",
        "//evil.example/runs/older/data/",
        "/older/presum.db",
        "/runs/older/data/",
    ],
)
def test_paths_lead_only_to_runs(served: Served, path: str) -> None:
    assert served.read(path)[0] == 404


def test_only_get_and_the_one_post_are_answered(served: Served) -> None:
    for method in ("HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert served.ask("/", method)[0] == 501
    for said in (
        b"GET http://[ HTTP/1.1\r\n\r\n",
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x00" * 99,
    ):
        with socket.create_connection(urlsplit(served.link).netloc.split(":")) as connection:
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            assert b"older" not in b"".join(iter(lambda: connection.recv(4096), b""))
    assert served.read("/")[0] == 200


def test_names_of_runs_are_only_text(tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "\\")
    report_runs.make(tmp_path / name, replace(SCENE, steps=4))
    for steps, alike in enumerate((b"a\xff", b"a\xfe", b"a  b", b"a b"), start=1):
        report_runs.make(tmp_path / os.fsdecode(alike), replace(SCENE, steps=steps))
    with serving(tmp_path) as served:
        _, page, _ = served.read("/")
        assert page.count("<script") == 1 and page.count("<img") == 0
        links = re.findall(r'<a href="/runs/(.*?)/">', page)
        assert [served.read(f"/runs/{link}/")[0] for link in links] == [200] * 5
        assert sorted(map(served.steps, links)) == [1, 2, 3, 4, 4]


def test_a_run_that_cannot_be_read_says_why(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "older", tmp_path / "busy")
    shutil.copytree(runs / "older", tmp_path / "damaged")
    whole = (tmp_path / "damaged" / "presum.db").read_bytes()
    (tmp_path / "damaged" / "presum.db").write_bytes(whole[:4096] + b"\x5a" * 9000)
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "busy" / "presum.db")) as db,
        serving(tmp_path) as served,
    ):
        db.execute("PRAGMA journal_mode=DELETE")
        db.execute("BEGIN EXCLUSIVE")  # as on a network file system
        status, said, _ = served.read("/runs/busy/data")
        assert status == 503 and "can be read when it has ended" in said
        assert "is damaged" in served.read("/runs/damaged/data")[1]
        page = served.read("/")[1]
        assert "can be read when it has ended" in page and "is damaged" in page
        db.rollback()
        wait_for(lambda: served.read("/runs/busy/data")[0] == 200)
        assert served.steps("busy") == 40
        shutil.rmtree(tmp_path / "busy")
        assert served.read("/runs/busy/data")[0] == 503
        assert "busy" not in served.read("/")[1]


def test_a_folder_without_a_run_shows_the_first_one(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        assert "no run here yet" in served.read("/")[1]
        report_runs.make(tmp_path / "first", replace(SCENE, steps=4))
        wait_for(lambda: "/runs/first/" in served.read("/")[1])


def test_a_folder_that_becomes_a_run_is_shown_as_one(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        assert "no run here yet" in served.read("/")[1]
        report_runs.make(tmp_path, replace(SCENE, steps=4))
        wait_for(lambda: served.read("/")[0] == 302)
        assert served.steps(tmp_path.name) == 4


def test_runs_behind_links_are_found_once(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(runs / "older")
    (tmp_path / "loop").symlink_to(tmp_path)
    with serving(tmp_path) as served:
        assert re.findall(r'<a href="/runs/(.*?)/">', served.read("/")[1]) == ["link"]
        assert served.steps("link") == 40


def test_tags_of_another_server_are_others(runs: Path) -> None:
    tags = []
    for _ in range(2):
        with serving(runs) as served:
            tags.append(served.read("/runs/older/data")[2]["Presum-Tag"])
    assert tags[0] != tags[1]


def test_a_run_that_ends_while_it_is_read_is_one_file(tmp_path: Path) -> None:
    """A reader takes as long as a page of a long run does."""
    readers: list[sqlite3.Connection] = []

    def read_slowly() -> None:
        db = sqlite3.connect(tmp_path / "presum.db", check_same_thread=False)
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM step").fetchone()
        readers.append(db)
        threading.Timer(0.3, db.close).start()

    steps = iter(range(4))

    def after_step() -> None:
        if next(steps) == 3:
            read_slowly()

    report_runs.make(tmp_path, replace(SCENE, steps=4), after_step)
    assert readers and [file.name for file in tmp_path.iterdir()] == ["presum.db"]


def test_one_run_is_shown_at_once_and_left_as_it_was(runs: Path) -> None:
    before = sorted(file.name for file in (runs / "older").iterdir())
    for path in (runs / "older", runs / "older" / "presum.db"):
        with serving(path) as served:
            for link in ("/", "/runs/older"):
                status, _, headers = served.read(link)
                assert status == 302 and headers["Location"] == "/runs/older/"
            assert served.steps("older") == 40
            served.process.send_signal(signal.SIGINT)
            assert served.process.wait() == 0
    assert sorted(file.name for file in (runs / "older").iterdir()) == before


def test_bad_use_is_one_line(runs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, said in (
            ([runs / "none"], "no such folder"),
            ([runs, "--port", port], f"cannot listen on 127.0.0.1 port {port}"),
            ([runs, "--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
            ([runs, "--host", "a..é"], "cannot listen on a..é"),
            ([runs, "--allow-host", "http://a/"], "'http://a/' is not a name of a host"),
            ([runs, "--allow-host", "a:80"], "'a:80' is not a name of a host"),
            ([""], "no such folder"),
            ([runs / "older" / "x"], "no such folder"),
            ([Path(__file__)], "neither a run nor a folder"),
            ([runs, "--port", "70000"], "'70000' is not a port"),
        ):
            done = presum_command("serve", *arguments)
            assert done.returncode == 2 and done.stdout == ""
            assert said in done.stderr.splitlines()[-1]


def hold(served: Served, number: int, said: bytes) -> list[socket.socket]:
    """Connections that send this and then wait."""
    address = urlsplit(served.link).netloc.split(":")
    held = []
    for _ in range(number):
        connection = socket.create_connection((address[0], int(address[1])))
        with contextlib.suppress(OSError):  # refused
            connection.sendall(said)
        held.append(connection)
    return held


def test_slow_connections_end_and_others_are_served(served: Served) -> None:
    held = hold(served, 100, b"GET / HTTP/1.1\r\nHost: loc")
    try:
        with contextlib.suppress(OSError, http.client.HTTPException):
            served.read("/")  # the others may have taken all places

        def feed() -> bool:
            """One byte to each. Whether all have been closed."""
            open_ones = 0
            for connection in held:
                with contextlib.suppress(OSError):
                    connection.sendall(b"a")
                    open_ones += 1
            return open_ones == 0

        wait_for(feed)
        wait_for(lambda: answers(served))
    finally:
        for connection in held:
            connection.close()


def answers(served: Served) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return served.read("/")[0] == 200
    return False


@pytest.mark.deep
def test_a_thousand_connections_leave_training_alone(tmp_path: Path) -> None:
    worker = TESTS / "workers" / "tracked.py"

    def bits(folder: Path) -> list[str]:
        folder.mkdir()
        ends = start([worker, folder, "none"])
        assert [end.returncode for end in ends] == [0, 0], ends[0].stderr
        return [line for end in ends for line in end.stdout.splitlines() if "bits" in line]

    alone = bits(tmp_path / "alone")
    over = threading.Event()
    opened = read = 0

    def attack(served: Served) -> None:
        nonlocal opened
        while not over.is_set():
            held = [*hold(served, 100, b"GET / HTTP/1.1\r\n"), *hold(served, 100, b"")]
            opened += len(held)
            over.wait(0.1)
            for connection in held:
                connection.close()

    def poll(served: Served) -> None:
        nonlocal read
        while not over.wait(0.2):
            read += answers(served)

    with serving(tmp_path) as served:
        threads = [threading.Thread(target=do, args=(served,)) for do in (attack, poll)]
        for thread in threads:
            thread.start()
        trainings = 0
        while opened < 1000 or not trainings:
            trainings += 1
            assert bits(tmp_path / f"served-{trainings}") == alone
        over.set()
        for thread in threads:
            thread.join()
        wait_for(lambda: answers(served))
        assert served.steps("served-1%2Frun") == 40
