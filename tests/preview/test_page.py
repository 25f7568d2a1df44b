"""The page of `feedline preview --out` in a real browser: images load, data is text, nothing is requested, and the colours
of the light and the dark scheme are readable. `SCREENSHOTS=FOLDER` keeps pictures of the page."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&amp; 'quoted'"


def browser_path() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="the page needs the Python package playwright")
    path = browser_path()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("install Chromium: make setup NEEDED=chromium")
        pytest.skip("the page needs Chromium: make setup NEEDED=chromium")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Pages of images after `normalize`, and of text with hostile contents."""
    folder = tmp_path_factory.mktemp("preview")
    binary = os.environ.get("FEEDLINE_BINARY", str(ROOT / "target/debug/feedline"))
    shared = Path(os.environ.get("FEEDLINE_SHARED_DATA", ROOT / "../shared/data")) / "images"
    source = ["--from", str(shared)] if shared.is_dir() else ["--rows", "12"]
    call = lambda *arguments: subprocess.run([binary, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    call("make-data", "images", "images", "--format", "tfrecord", "--shards", "1", *source)
    (folder / "images.yaml").write_text(
        """name: photographs
source: { url: images/, format: tfrecord, features: { image: image/encoded, label: image/class/label } }
operators:
  - random_resized_crop: { column: image, size: [224, 224] }
  - normalize: { column: image, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], layout: chw }
  - batch: { size: 64 }
"""
    )
    rows = [{"text": HOSTILE, "id": 1}] + [{"text": "word " * (20 * number), "id": number} for number in range(2, 6)]
    (folder / "text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    vocabulary = {"[UNK]": 0, "word": 1, "<b>": 2}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "text.yaml").write_text(
        """name: texts
source: { url: text.jsonl, format: jsonl }
operators:
  - tokenize: { column: text, tokenizer: tokenizer.json, output: tokens }
  - truncate: { column: tokens, length: 64 }
  - batch: { size: 64 }
"""
    )
    for name in ("images", "text"):
        call("preview", f"{name}.yaml", "--rows", "6", "--out", f"{name}.html")
    return folder


def open_page(browser, path: Path, scheme: str):
    requests = []
    page = browser.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 900})
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    external = [url for url in requests if not url.startswith(("data:", path.as_uri()))]
    assert external == []
    if pictures := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(pictures) / f"{path.stem}-{scheme}.png", full_page=True)
    return page


def luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(page, selector: str, background: str) -> float:
    read = "([selector, property]) => getComputedStyle(document.querySelector(selector))[property]"
    pair = [page.evaluate(read, [selector, "color"]), page.evaluate(read, [background, "backgroundColor"])]
    dark, light = sorted(luminance(colour) for colour in pair)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_images_load_and_text_is_readable(browser, folder, scheme):
    page = open_page(browser, folder / "images.html", scheme)
    sizes = page.evaluate("[...document.images].map(image => [image.naturalWidth, image.naturalHeight])")
    assert sizes == [[224, 224]] * 6
    assert "shown without normalize" in page.inner_text("article")
    for selector, background in [("h1", "body"), ("dt", "article"), ("dt span", "article"), ("td", "table")]:
        assert contrast(page, selector, background) >= 4.5, (scheme, selector)
    width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width == 0, "the page scrolls sideways"
    page.set_viewport_size({"width": 360, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, "the page fits a phone"


def test_data_is_text_and_lengths_are_shown(browser, folder):
    page = open_page(browser, folder / "text.html", "light")
    assert page.title() == "texts: 5 rows"
    assert page.inner_text("article:first-of-type .text").strip() == HOSTILE
    assert page.evaluate("document.scripts.length + document.images.length") == 0
    tokens = page.locator("article:nth-of-type(2) .tokens span").all_inner_texts()
    assert tokens == ["word"] * 40
    bars = page.evaluate("[...document.querySelectorAll('.bar i')].map(bar => bar.style.width)")
    assert bars[-1] == "100%" and len(bars) == 10
