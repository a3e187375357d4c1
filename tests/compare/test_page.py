# SPDX-License-Identifier: Apache-2.0
"""The page of `b200opt compare`, opened in headless Chromium: nothing is asked of the network or said in the console, every plot is drawn
inside the page at the width of a telephone and of a desk, light and dark, texts stand out, and texts of logs stay texts."""
import html.parser
import json
import os
import pathlib
import re
import subprocess

import arms
import browser
import pytest

COMMAND = os.environ["B200_COMMAND"]
WIDTHS = (390, 1440)
PLOTS = 6  # loss, gap, step times on two clocks, blocked, hidden
LINES = 9  # two of the loss, one of the gap, two of either communication, the outline of either histogram
HOSTILE = "</title><script>alert(1)</script><img src=http://x.invalid/ onerror=alert(2)>'\"&amp;\u202e\x1b[31m"


def compare(tmp_path, baseline, candidate, *options, status=None):
    page, data = tmp_path / "page.html", tmp_path / "page.json"
    done = subprocess.run([COMMAND, "compare", baseline, candidate, "--html", page, "--json", data, *options], capture_output=True, text=True, check=False)
    assert status is None or done.returncode == status, done
    assert max(map(len, done.stdout.splitlines())) <= 100 and done.stdout.isascii()
    return page, json.loads(data.read_text()), done.stdout


@pytest.fixture(scope="session")
def chromium():
    path = browser.find()
    if not path:
        pytest.skip("no Chromium (tools/setup --tests installs one)")
    with browser.started(path) as started:
        yield started


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A comparison with everything that a page can have."""
    folder = tmp_path_factory.mktemp("whole")
    a = arms.write(folder / "bf16", arms.losses(700, 1), config={"B200OPT_LOG_DIR": "/a (environment)"})
    b = arms.write(folder / "mxfp8", arms.losses(700, 2, 0.03), step_ms=1.6, plan="mxfp8", reason="converted", config={"B200OPT_PRECISION": "mxfp8 (environment)"},
                   versions={"cudart": 13020, "nccl": 23010})
    return compare(folder, a, b, "--price-per-hour", "98.32", status=0)


BOXES = """[...document.querySelectorAll('figure svg path')].map(p => {
  const b = p.getBoundingClientRect(), f = p.closest('svg').getBoundingClientRect();
  return {d: p.getAttribute('d'), class: p.getAttribute('class'), left: b.left, right: b.right, width: b.width, height: b.height,
          frame_left: f.left, frame_right: f.right, frame_width: f.width, frame_height: f.height};
})"""
# Of every text its colour, and of the first thing behind it that has one, that colour.
TEXTS = """[...document.querySelectorAll('body *')].filter(e => !e.closest('svg') && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())
  && e.getClientRects().length).map(e => {
    let behind = e;
    while (behind && getComputedStyle(behind).backgroundColor.endsWith(', 0)')) behind = behind.parentElement;
    return [e.textContent.trim().slice(0, 40), getComputedStyle(e).color, getComputedStyle(behind || document.body).backgroundColor,
            parseFloat(getComputedStyle(e).fontSize)];
  })"""


def luminance(colour):
    channels = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear))


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def opened(chromium, path, width, dark=False):
    page = browser.Page(chromium, width, dark)
    page.open(path)
    assert page.complaints == [] and page.dialogs == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in page.requests if url.startswith("file:")]) == 1
    return page


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", (False, True), ids=("light", "dark"))
def test_the_page_is_drawn_and_silent(chromium, whole, width, dark):
    page = opened(chromium, whole[0], width, dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page is wider than the window"
    frames = page.evaluate("[...document.querySelectorAll('figure svg')].map(s => [s.querySelectorAll('path').length, s.querySelector('title').textContent])")
    assert len(frames) == PLOTS and all(paths >= 3 and title for paths, title in frames), frames
    for box in page.evaluate(BOXES):
        assert re.match(r"M-?[\d.]+ -?[\d.]+", box["d"]) and "nan" not in box["d"] and "inf" not in box["d"], box
        assert box["frame_width"] > 0.6 * min(width, 1080) and box["frame_height"] >= 100, box
        assert 0 <= box["frame_left"] and box["frame_right"] <= width, box
        assert box["left"] >= box["frame_left"] - 3 and box["right"] <= box["frame_right"] + 3, box
    lines = [box for box in page.evaluate(BOXES) if box["class"] in ("candidate line", "baseline under")]
    assert len(lines) == LINES and all(box["width"] > 0.9 * box["frame_width"] for box in lines), "a curve does not span its plot"


@pytest.mark.parametrize("dark", (False, True), ids=("light", "dark"))
def test_texts_can_be_read(chromium, whole, dark):
    page = opened(chromium, whole[0], 390, dark)
    texts = page.evaluate(TEXTS)
    assert len(texts) > 100
    pale = [(text, a, b) for text, a, b, _ in texts if contrast(a, b) < 4.5]
    assert pale == []
    assert min(size for *_, size in texts) >= 11.5
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(background) < 0.1) == dark


def test_tables_open_and_stay_inside(chromium, whole):
    page = opened(chromium, whole[0], 390)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    rows = page.evaluate("[...document.querySelectorAll('figure')].map(f => f.querySelectorAll('details tbody tr').length)")
    assert all(count >= 2 for count in rows) and max(rows) >= 600, rows


class Shape(html.parser.HTMLParser):
    """Elements and attribute names of a page, and its words."""

    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.elements, self.words, self.open = [], "", []
        self.feed(pathlib.Path(path).read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        assert not any(name.startswith("on") or name in ("src", "srcset", "action") for name, _ in attrs), (tag, attrs)
        assert all(value.startswith(("#", "data:")) for name, value in attrs if name == "href"), (tag, attrs)

    def handle_data(self, data):
        self.words += data


def hostile_arms(folder, text):
    name = text.replace("/", "\u2215").replace("\x1b", "")
    a = arms.write(folder / f"a{name}", arms.losses(300, 1), name=text, owner=text, reason=text, config={text: text, "B200OPT_PRECISION": text}, versions={text: 1})
    b = arms.write(folder / f"b{name}", arms.losses(300, 2), name=text + "b", owner=text, reason=text + "b", config={text: text + "b"}, versions={text: 2})
    return a, b


def test_a_hostile_name_changes_nothing(chromium, tmp_path):
    calm, _, _ = compare(tmp_path, *hostile_arms(tmp_path, "name"))
    expected = Shape(calm).elements
    hostile, _, text = compare(tmp_path, *hostile_arms(tmp_path, HOSTILE))
    shape = Shape(hostile)
    assert shape.elements == expected
    assert "<script>alert(1)</script>" in shape.words and "\u202e" not in shape.words and "\x1b" not in shape.words
    assert "\x1b" not in text
    page = opened(chromium, hostile, 390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.querySelectorAll('script, img, iframe, object, form').length") == 0


def test_nothing_but_inline_is_allowed(whole):
    text = whole[0].read_text()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text).group(1)
    assert policy.startswith("default-src 'none';") and "http" not in policy and "script-src" not in policy
    assert not re.search(r"https?://|url\(|@import|<script|<link(?! rel=\"icon\" href=\"data:)", text)


def test_the_policy_holds(chromium, whole, tmp_path):
    """A page in which escaping had failed would still do nothing."""
    broken = tmp_path / "broken.html"
    broken.write_text(whole[0].read_text().replace("</main>", "<img src='http://x.invalid/a.png' onerror='alert(1)'><script>alert(2)</script></main>"))
    page = browser.Page(chromium, 390, False)
    page.open(broken)
    assert page.dialogs == [] and page.complaints != []


def test_a_diverged_arm_leaves_a_page(chromium, tmp_path):
    curve = arms.losses(300, 2)
    a = arms.write(tmp_path / "a", arms.losses(300, 1))
    b = arms.write(tmp_path / "b", curve[:120] + [float("nan")] * 180)
    page, data, text = compare(tmp_path, a, b, status=4)
    assert data["verdict"]["name"] == "DIVERGED" and text.startswith("DIVERGED")
    opened(chromium, page, 1440)


def test_long_curves_are_thinned_and_say_so(chromium, tmp_path):
    a = arms.write(tmp_path / "a", arms.losses(3000, 1), ranks=1)
    b = arms.write(tmp_path / "b", arms.losses(3000, 2), ranks=1)
    page, data, _ = compare(tmp_path, a, b)
    curve = data["loss"]["pairs"][0]["curve"]
    assert curve["points"] == 3000 and curve["thinned"] and len(curve["rows"]) == 600
    values = arms.losses(3000, 1)
    for i, row in enumerate(curve["rows"]):  # five steps each, and four neighbours on either side
        near = values[max(5 * i - 4, 0) : 5 * i + 9]
        assert row[1:3] == pytest.approx([min(near), max(near)], rel=1e-8), row
    assert page.stat().st_size < 2_000_000
    shown = opened(chromium, page, 1440)
    assert "thinned for drawing to 600 columns" in shown.evaluate("document.body.innerText")


def test_several_pairs(chromium, tmp_path):
    for arm, seed in (("a", 10), ("b", 20)):
        for run in (1, 2, 3):
            arms.write(tmp_path / arm / f"run-{run}", arms.losses(400, seed + run, data=run), ranks=1)
    page, data, text = compare(tmp_path, tmp_path / "a", tmp_path / "b")
    assert len(data["loss"]["pairs"]) == 3 and data["loss"]["recipe"] and "this speaks of the recipe" in text
    shown = opened(chromium, page, 390)
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390
