"""Takes a picture of every screen of a page of the explorer: ``python docs/explore/screens.py OUT PAGE [PAGE …]``.

PAGE is a file that ``similitude explore --out`` wrote, or the address that ``similitude explore`` printed, as
``name=page``. Pictures are taken on a desk and on a phone, light and dark, whole: look at them after a change of the
page's style. ``--guide`` takes the one picture of the guide instead, from the page of this folder.
"""

import sys
from io import BytesIO
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIZES = {"desk": (1280, 800), "phone": (390, 844)}
SCREENS = {
    "overview": "",
    "features": "features",
    "feature": "feature/12",
    "prototypes": "prototypes",
    "prototype": "prototype/7",
    "examples": "why",
    "why": "why/0",
    "over": "why/0/7/9",
    "pair": "pair",
    "sets": "sets",
    "expression": "sets/EXPRESSION",
    "search": "search",
    "edit": "edit/prototype/7",
    "compare": "compare",
}
HEIGHT = "document.documentElement.scrollHeight"
EXPRESSION = "[...document.querySelectorAll('#content .row button')].at(-1)?.textContent ?? ''"


def taken(page, address: str, out: Path, name: str) -> None:
    """Pictures of all screens of one page in an open tab."""
    page.goto(address)
    page.wait_for_selector("html[data-ready=yes]")
    show(page, "sets")
    expression = page.evaluate(EXPRESSION)
    for screen, place in SCREENS.items():
        show(page, place.replace("EXPRESSION", expression))
        # As tall as the page is, so that what sticks to the window and what is drawn when it is seen are whole.
        width, height = page.viewport_size["width"], page.viewport_size["height"]
        page.set_viewport_size({"width": width, "height": min(4000, page.evaluate(HEIGHT))})
        page.wait_for_timeout(100)
        page.screenshot(path=out / f"{name}-{screen}.png")
        page.set_viewport_size({"width": width, "height": height})


def show(page, screen: str) -> None:
    page.evaluate("screen => { location.hash = '#/' + screen; }", screen)
    page.wait_for_timeout(500)


def opened(browser, size: str, scheme: str):
    width, height = SIZES[size]
    return browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)


def main(arguments: list[str]) -> None:
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        if arguments == ["--guide"]:
            page = opened(browser, "desk", "light")
            page.goto((HERE / "digits.html").as_uri())
            show(page, "why/0")
            # In 64 colours it is a third as large.
            picture = Image.open(BytesIO(page.screenshot())).convert("RGB").quantize(64)
            picture.save(HERE.parent / "figures" / "explorer.png", optimize=True)
            return
        out, pages = Path(arguments[0]), [page.split("=", 1) for page in arguments[1:]]
        out.mkdir(parents=True, exist_ok=True)
        for name, place in pages:
            address = place if "://" in place else Path(place).resolve().as_uri()
            for size in SIZES:
                for scheme in ("light", "dark"):
                    taken(opened(browser, size, scheme), address, out, f"{name}-{size}-{scheme}")


if __name__ == "__main__":
    main(sys.argv[1:])
