"""Chromium without a window, and pages in it that must say nothing to the console and ask for nothing elsewhere."""

import os
import shutil
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from shown import TOKEN

# The browser of this name is Debian's.
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium: apt-get install chromium, or give its path as CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        # The sandbox of Chromium does not start where tests run as root.
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def visit(browser):
    """A context with a page at an address, whose console and requests are checked at its end."""

    @contextmanager
    def visit(address, width=1280, height=800, scheme="light", own=("file:", "blob:", "data:"), quiet=True, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **options)
        page, said, asked = context.new_page(), [], []
        page.set_default_timeout(10_000)
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("request", lambda request: asked.append(request.url))
        try:
            page.goto(address)
            page.wait_for_selector("html[data-ready]")
            yield page
            assert not quiet or not said
            assert [url for url in asked if not url.startswith(own)] == []
        finally:
            context.close()

    return visit


@pytest.fixture
def serve():
    """A context with a server of a session; its value is the address, without the token."""

    @contextmanager
    def serve(session):
        from similitude.explore.server import server

        running = server(session, TOKEN)
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
            thread.start()
            while not running.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
            running.should_exit = True
            thread.join(10)

    return serve
