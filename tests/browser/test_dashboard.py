"""The dashboard as a person uses it."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

TOY, CELLS = "watched-volumes", 9
PATIENCE = 240_000


def crunode(*words):
    return subprocess.run([sys.executable, "-m", "crunode", *map(str, words)], capture_output=True, text=True).stdout


def picture(page, name, height=800):
    folder = os.environ.get("CRUNODE_SCREENSHOTS")
    if folder:
        wide = page.viewport_size["width"]
        page.screenshot(
            path=Path(folder) / f"dashboard-{name}.png", clip={"x": 0, "y": 0, "width": wide, "height": height}
        )


def test_a_toy_recipe_from_start_to_comparison(page, root):
    page.goto("/recipes")
    for seed in (0, 1):
        page.goto("/recipes")
        card = page.get_by_role("article", name=TOY)
        card.get_by_label("Seed").fill(str(seed))
        button = card.get_by_role("button", name=f"Start {TOY} at toy size")
        button.focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/running")
    expect(page.get_by_role("row", name=re.compile(TOY))).to_have_count(2)

    # Progress comes by itself: the page is never reloaded.
    page.evaluate("window.stays = true")
    bar = page.get_by_role("progressbar").first
    expect(bar).to_be_visible(timeout=PATIENCE)
    expect(page.get_by_text(re.compile(rf"[3-8] of {CELLS} cells")).first).to_be_visible(timeout=PATIENCE)
    assert 3 <= page.evaluate("Math.max(...[...document.querySelectorAll('progress')].map((e) => e.value))") <= CELLS
    said = page.locator("[aria-live]").text_content()
    assert re.search(rf"\d of {CELLS} cells", said), said
    picture(page, "running", 440)
    results = page.get_by_role("link", name=f"Results of {TOY}, seed")
    expect(results).to_have_count(2, timeout=PATIENCE)
    assert page.evaluate("window.stays")
    expect(page.get_by_text("complete", exact=True)).to_have_count(2)

    # The same command on the same folder prints the same numbers.
    page.get_by_role("link", name=f"Results of {TOY}, seed 0").click()
    name = page.get_by_role("heading", level=1).text_content()
    assert name.startswith(f"dashboard/{TOY}-")
    said = json.loads(crunode("recipe", "run", TOY, "--size", "toy", "--store", root / name, "--json"))
    table = page.get_by_role("region", name="Against the paper").get_by_role("table")
    heads = table.get_by_role("columnheader").all_text_contents()
    assert len(said["rows"]) == 18
    for row in said["rows"]:
        shown = table.get_by_role("row").filter(has=page.get_by_role("rowheader", name=row["name"], exact=True))
        cells = shown.locator("th, td").all_text_contents()
        assert cells[heads.index("our value")] == f"{row['ours']:.4g}"
        assert cells[heads.index("verdict")] == row["verdict"]

    page.get_by_role("link", name="Compare with others").click()
    page.get_by_role("row", name=re.compile(TOY)).filter(has_not_text=name).get_by_role("checkbox").check()
    page.get_by_role("button", name="Compare the marked runs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("2 runs side by side")
    first = said["rows"][0]
    results = page.get_by_role("region", name="Results side by side")
    expect(results.get_by_role("row", name=re.compile(re.escape(first["name"]))).first).to_contain_text(
        f"{first['ours']:.6g}"
    )
    expect(page.get_by_role("region", name="Settings that differ")).to_contain_text("seed")
    page.goto("/?ok=yes")
    expect(page.get_by_role("link", name="crossing/seed0")).to_be_visible()
    picture(page, "runs", 720)


def test_a_recipe_can_be_stopped(page):
    page.goto("/recipes")
    page.get_by_role("button", name="Start endless-volumes at toy size").click()
    page.get_by_role("button", name="Stop endless-volumes, seed 0").click()
    row = page.get_by_role("row", name=re.compile("endless-volumes"))
    expect(row).to_contain_text("stopped", timeout=30_000)


def test_estimates_read_as_on_the_command_line(page, root):
    page.goto("/")
    page.get_by_role("link", name="crossing/seed0").click()
    said = crunode("show", root / "crossing" / "seed0")
    number = re.search(r"^estimate +llc (.*?) \|", said, re.MULTILINE)[1]
    assert re.fullmatch(r"[\d.]+ ± [\d.]+ mc ± [\d.]+ sys", number)
    expect(page.locator(".answer strong")).to_have_text(f"llc = {number}")
    page.set_viewport_size({"width": 900, "height": 800})
    picture(page, "run", 600)
    page.set_viewport_size({"width": 1200, "height": 800})
    page.goto("/")
    for seed in (0, 1):
        page.get_by_role("checkbox", name=f"Compare crossing/seed{seed}").check()
    page.get_by_role("button", name="Compare the marked runs").click()
    expect(page.get_by_text(number).first).to_be_visible()
    picture(page, "compare")


def test_exact_values_read_as_on_the_command_line(page):
    page.goto("/exact")
    page.get_by_label("Family").select_option("reduced_rank_regression")
    page.get_by_role("button", name="Choose").click()
    for name, value in {"in dim": 6, "hidden": 4, "out dim": 6, "rank": 2}.items():
        page.get_by_label(name, exact=True).fill(str(value))
    page.get_by_role("button", name="Compute").click()
    expect(page.get_by_role("status")).to_have_text(
        crunode("exact", "reduced-rank", 6, 4, 6, "--rank", 2).split("\n")[0]
    )
    picture(page, "exact")
    page.get_by_label("rank", exact=True).fill("9")
    page.get_by_role("button", name="Compute").click()
    expect(page.get_by_role("alert")).to_contain_text("expected")


def test_filters_tags_and_order(page):
    page.goto("/")
    page.get_by_role("link", name="crossing/seed1").click()
    page.get_by_label("New tags").fill("best")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Remove the tag best")).to_be_visible()
    page.goto("/")
    page.get_by_text("Filter", exact=True).click()
    page.get_by_label("Tags").fill("best")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("1 run that meet the filter")).to_be_visible()
    page.get_by_role("link", name="Clear").click()
    page.get_by_role("link", name="name", exact=True).click()
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("name")


PAGES = ("/", "/running", "/recipes", "/exact", "RUN", "COMPARE", "/nowhere")
NAMELESS = """() => [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, progress")]
  .filter((e) => e.checkVisibility() && !e.closest(".skip"))
  .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || (e.labels && e.labels.length)))
  .map((e) => e.outerHTML)"""
HEADINGS = "() => [...document.querySelectorAll('h1, h2, h3, h4')].map((e) => Number(e.tagName[1]))"
TWICE = "() => [...document.querySelectorAll('[id]')].map((e) => e.id).filter((id, k, all) => all.indexOf(id) !== k)"
SCOPELESS = "() => [...document.querySelectorAll('th:not([scope])')].length"


def opened(page, path):
    """Go to a page; by its links, where its address has a key."""
    page.goto(path if path.startswith("/") else "/")
    if path == "RUN":
        page.get_by_role("link", name="crossing/seed0").click()
    if path == "COMPARE":
        for seed in (0, 1):
            page.get_by_role("checkbox", name=f"Compare crossing/seed{seed}").check()
        page.get_by_role("button", name="Compare the marked runs").click()


@pytest.mark.parametrize("path", [p for p in PAGES if p != "/nowhere"])
def test_screen_readers_and_keyboards(page, path):
    opened(page, path)
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate(TWICE) == []
    assert page.evaluate(SCOPELESS) == 0
    levels = page.evaluate(HEADINGS)
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    assert page.locator("html").get_attribute("lang") == "en"
    expect(page.locator("main")).to_have_count(1)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    ring = "() => getComputedStyle(document.activeElement).outlineStyle !== 'none'"
    assert page.evaluate(ring)
    assert page.evaluate("() => document.querySelector('main').contains(document.activeElement)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", [p for p in PAGES if p != "/nowhere"])
def test_a_phone_shows_pages_whole(page, path, scheme):
    page.set_viewport_size({"width": 390, "height": 800})
    page.emulate_media(color_scheme=scheme)
    opened(page, path)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    if path == "RUN":
        picture(page, f"phone-{scheme}")


CONTRAST = """() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[0-9.]+/g).map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const found = getComputedStyle(e).backgroundColor;
      if (found !== "rgba(0, 0, 0, 0)") return found;
    }
    return "rgb(255, 255, 255)";
  };
  const poor = [];
  for (const e of document.querySelectorAll("main *, header *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.closest("svg, .hidden, .skip, :disabled")) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${e.outerHTML.slice(0, 100)}`);
  }
  return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", "/recipes", "/exact", "RUN"])
def test_words_stand_out_from_their_ground(page, path, scheme):
    page.emulate_media(color_scheme=scheme)
    opened(page, path)
    assert page.evaluate(CONTRAST) == []


def test_hostile_names_do_nothing(page):
    page.goto("/")
    page.get_by_role("link", name="<script>alert(1)</script>").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("<script>alert(1)</script>")
    page.wait_for_timeout(300)


def test_without_scripts_pages_still_show(browser, address):
    context = browser.new_context(java_script_enabled=False, base_url=address)
    page = context.new_page()
    for path in ("/", "/running", "/recipes", "/exact", "RUN", "COMPARE"):
        opened(page, path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator("figure svg").first).to_be_visible()
    context.close()


def test_the_token_lets_in_and_nothing_else_does(browser, root, serve):
    token = "the token of this test"
    with serve(root, "--host", "0.0.0.0", "--token", token) as found:
        base, _, given = found.partition("?token=")
        assert given == quote(token)
        context = browser.new_context(base_url=base)
        page = context.new_page()
        assert page.goto("/").status == 401
        page.get_by_label("Token").fill("something else of length")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_have_text("That is not the token.")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
        (cookie,) = context.cookies()
        assert cookie["httpOnly"]
        assert cookie["sameSite"] == "Strict"
        context.close()
        context = browser.new_context()
        page = context.new_page()
        page.goto(found)
        expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
        assert "token" not in page.url
        context.close()
