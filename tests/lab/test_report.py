"""The report in a real browser: nothing from the network, no errors, pictures decoded, links that
lead somewhere, both themes, wide and narrow.
"""

import dataclasses
import re
import subprocess
import sys

import numpy as np
import pytest
from browser import CHROMIUM, Browser

from pullback_lab import papers
from pullback_lab.papers import Budget, Claim, Measured, Role, Verdict, at_most
from pullback_lab.report import Report
from pullback_lab.report.html import page
from pullback_lab.report.perform import perform
from pullback_lab.report.result import save
from pullback_lab.report.stamp import versions


def draw(data):
    """A wide picture of a line that goes up."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3))
    figure.subplots().plot(data["x"], data["x"])
    return figure


def measure(budget, key):
    rows = [
        at_most(
            "a rather long description of what was measured, with symbols: |Jδ - Π(M⁻¹c)| ≤ ε & "
            "<more>",
            1e-12,
            1e-9,
        )
    ]
    rows += [
        at_most("as meant", 0.0, 1e-9, Role.CORRECTED),
        at_most("sane", 0.0, 1.0, Role.CONTROL),
    ]
    return Measured(tuple(rows), {"x": np.arange(3.0)})


def fail(budget, key):
    raise ValueError("<boom>")


SOURCES = ("invariance", "abstract", "depth", "lecture", "ours")
CLAIMS = [
    Claim(
        name=f"a-claim-with-a-long-name-{i}",
        source=SOURCES[i % 5],
        place=f"Section {i}",
        statement=f"Statement {i} & <more>.",
        quotation=f"Words {i} & <more>.",
        remark=f"Remark {i} & <more>, like `a-claim`.",
        keys=20 - i % 2,
        verdict=Verdict.HOLDS,
        run=measure,
        draw=draw,
    )
    for i in range(10)
] + [
    Claim(
        name="broken",
        source="ours",
        place="nowhere",
        statement="It raises.",
        verdict=Verdict.HOLDS,
        run=fail,
        correction="It should not.",
    )
]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    results = tuple(
        save(result, folder, pictures)
        for result, pictures in (perform(claim, Budget()) for claim in CLAIMS)
    )
    names = tuple(claim.name for claim in CLAIMS)
    return page(
        Report(results, names, ("never-run",), Budget(), "2026-01-01 00:00 UTC", versions()), folder
    )


def test_the_page_is_escaped_and_asks_the_network_for_nothing(text):
    assert (
        "Statement 1 &amp; &lt;more&gt;." in text
        and "<q>Words 1 &amp; &lt;more&gt;.</q>" in text
        and "Remark 1 &amp; &lt;more&gt;, like <code>a-claim</code>." in text
        and text.count("19 of 20 give this verdict at quick size.") == 5
        and "&lt;boom&gt;" in text
        and "It should not." in text
    )
    without_pictures = re.sub(r'src="data:image/png;base64,[^"]*"', "", text)
    assert not re.search(r"https?:|//[a-z]|<script|@import|url\(|src=", without_pictures)
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text
    assert text.count('alt="A wide picture of a line that goes up."') == 10
    assert text.count("<figcaption>A wide picture of a line that goes up.</figcaption>") == 10
    assert "Reduced sizes." in text and text.count("What is behind it") == 11
    assert "<h2>Errata</h2>" in text and '<a href="#broken">nowhere</a>: It should not.' in text


def test_the_code_of_a_claim_is_on_its_page(tmp_path):
    code = papers.REGISTRY["peak"].run.__module__
    result = dataclasses.replace(perform(CLAIMS[0], Budget())[0], code=code)
    report = Report((result,), (result.name,), (), Budget(), "2026-01-01 00:00 UTC", versions())
    text = page(report, tmp_path)
    assert "Code: <code>pullback_lab.papers.ours.peak</code>" in text
    assert "def run(budget: Budget, key: PRNGKeyArray) -&gt; Measured:" in text


def test_the_page_says_what_was_run_and_how_to_run_it_again(text):
    assert "pullback reproduce a-claim-with-a-long-name-3 --budget quick --seeds 1" in text
    assert all(
        words in text
        for words in (
            "budget quick, 1 seed",
            "2026-01-01",
            "jax ",
            "Not run: never-run.",
            "10 of 11 verdicts",
        )
    )
    assert "<b>10</b>holds" in text and "<b>1</b>no verdict" in text


def test_the_files_are_made_without_rich():
    code = "import sys; sys.modules['rich'] = None; import pullback_lab.report.publish"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt install chromium")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def test_the_page_in_a_browser(browser, text, tmp_path):
    path = tmp_path / "index.html"
    path.write_text(text, encoding="utf-8")
    browser.open(path.as_uri())
    assert (
        browser.ask(
            "Promise.all([...document.images].map(image => image.decode())).then(() => "
            "document.images.length)"
        )
        == 10
    )
    assert browser.ask("[...document.images].every(image => image.naturalWidth > 0 && image.alt)")
    links = "[...document.querySelectorAll('nav a')]"
    assert browser.ask(f"{links}.length") == len(CLAIMS)
    assert browser.ask(f"{links}.every(a => document.querySelectorAll(a.hash).length === 1)")
    for dark in (False, True):
        for width in (1280, 360):
            browser.show(width, 800, dark)
            assert browser.ask("document.documentElement.scrollWidth") <= width, (
                "the page is wider than the screen"
            )
            light = browser.ask(
                "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
            )
            assert (light < 60) == dark
    browser.ask(f"{links}[7].click()")
    name = browser.ask("decodeURIComponent(location.hash.slice(1))")
    assert name == browser.ask(f"{links}[7].textContent")
    assert (
        abs(browser.ask("document.querySelector(location.hash).getBoundingClientRect().top")) < 60
    )

    asked = {
        event["params"]["request"]["url"]
        for event in browser.events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    trouble = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
    assert [event for event in browser.events if event["method"] in trouble] == []
