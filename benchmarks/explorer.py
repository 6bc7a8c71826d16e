"""python -m benchmarks.explorer: how long the explorer takes to start and to answer, in Chromium without a window.

50,257 words of 8,192 features are served; a layer with 8,192 features, 10 prototypes and 10,000 examples is one file.
Numbers are made up. The start is in seconds of the processor on one thread; the rest in milliseconds from the click to
the second frame after the answer is drawn, the median and the worst of some. Exit code 1 if a median is above
its limit.
"""

import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from similitude import FeatureBank, TverskyProjection
from similitude.explore import explore
from similitude.explore.content import content_of_words
from similitude.explore.server import server
from similitude.explore.session import Session
from similitude.interpret.sets import Universe

WORDS, FEATURES, WIDTH, EXAMPLES = 50_257, 8_192, 768, 10_000
TOKEN = "benchmark"
# Milliseconds at most.
LIMITS = {"first screen": 1000, "explain": 100, "a feature off": 100, "a set": 300}
# Goes to a screen, and waits until it shows what is asked for.
GO = """async ([hash, selector]) => {
  const frame = () => new Promise(requestAnimationFrame), start = performance.now();
  const old = document.querySelector(selector);
  location.hash = hash;
  while (!document.querySelector(selector) || document.querySelector(selector) === old) await frame();
  await frame();
  await frame();
  return performance.now() - start;
}"""
SWITCH = """async (n) => {
  const frame = () => new Promise(requestAnimationFrame), start = performance.now();
  const button = document.querySelectorAll("button[aria-label$=' off']")[n];
  button.click();
  while (button.isConnected) await frame();
  await frame();
  await frame();
  return performance.now() - start;
}"""
FIRST = """async () => {
  while (document.documentElement.dataset.ready !== "yes") await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return performance.now();
}"""


def words() -> tuple[Session, float]:
    """A session on made-up words, and the seconds of processor time that it took."""
    bank = FeatureBank(FEATURES, WIDTH, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        bank.weight.normal_(std=WIDTH**-0.5)
    vectors, names = torch.randn(WORDS, WIDTH), [f"word{i}" for i in range(WORDS)]
    start = time.process_time()
    u = Universe(bank, names, vectors)
    session = Session(lambda: content_of_words(u, "Words", exact=2**24, rounded=2**25), universe=u)
    return session, time.process_time() - start


def page(folder: Path) -> Path:
    """The file of a made-up layer."""
    layer = TverskyProjection(64, 10, FEATURES, presence=0.1).eval()
    explore(layer, torch.randn(EXAMPLES, 64), torch.arange(EXAMPLES) % 10, out=folder / "page.html")
    return folder / "page.html"


def opened(browser, address: str) -> list[float]:
    """Milliseconds from five visits to the first screen."""
    found = []
    for _ in range(5):
        tab = browser.new_page()
        tab.goto(address, wait_until="commit")
        found.append(tab.evaluate(FIRST))
        tab.close()
    return found


def served(browser, session: Session) -> dict[str, list[float]]:
    running = server(session, TOKEN)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not running.started:
            time.sleep(0.01)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/#token={TOKEN}"
        found = {"first screen": opened(browser, address)}
        tab = browser.new_page()
        tab.goto(address)
        tab.evaluate(FIRST)
        found["a set"] = [
            tab.evaluate(GO, [f"#/sets/word{i}%20%26%20word{i + 40_000}%20-%20word3", "#size"]) for i in range(1, 10)
        ]
        running.should_exit = True
        thread.join(10)
    return found


def of_file(browser, path: Path) -> dict[str, list[float]]:
    found = {"first screen": opened(browser, path.as_uri())}
    tab = browser.new_page()
    tab.goto(path.as_uri())
    tab.evaluate(FIRST)
    found["explain"] = [tab.evaluate(GO, [f"#/why/{i}", "#similarity"]) for i in range(1, 10)]
    found["a feature off"] = [tab.evaluate(SWITCH, n) for n in range(9)]
    found["a set"] = [tab.evaluate(GO, [f"#/sets/%23{i}%20%26%20%23{i + 40}", "#size"]) for i in range(1, 10)]
    return found


def main() -> int:
    from playwright.sync_api import sync_playwright

    torch.manual_seed(0)
    torch.set_num_threads(1)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors, PyTorch {torch.__version__}")
    session, seconds = words()
    print(f"start over {WORDS:,} words of {FEATURES:,} features, {WIDTH} wide: {seconds:.1f} s of the processor")
    slow = False
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for where, found in (
            (f"{WORDS:,} words, served", served(browser, session)),
            (f"{EXAMPLES:,} examples as a file", of_file(browser, page(Path(folder)))),
        ):
            for what, times in found.items():
                median, limit = sorted(times)[len(times) // 2], LIMITS[what]
                late = median > limit
                slow |= late
                told = f"{median:.0f} ms, the worst of {len(times)} {max(times):.0f}; at most {limit}"
                print(f"{where}, {what}: {told}{', too slow' * late}")
        browser.close()
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
