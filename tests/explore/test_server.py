"""The server answers one reader on this machine, and refuses or survives all else."""

import gzip
import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from similitude import TverskyProjection

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from similitude.explore.content import content
from similitude.explore.server import LARGEST, RemoteRefused, check_host, server
from similitude.explore.session import Session
from similitude.interpret.edit import load_state
from similitude.models.data_domain import DataDomain

TOKEN = "the-token"


def network():
    torch.manual_seed(0)
    head = TverskyProjection(16, 3, 5, bias=True, parametrization="plain", init="unit")
    return DataDomain(nn.Flatten(), head, (1, 4, 4)).eval()


@pytest.fixture
def session(tmp_path):
    net, x = network(), torch.rand(20, 1, 4, 4)
    y = torch.arange(20) % 3
    return Session(lambda: content(net, x, y), net, edited=net, inputs=x, labels=y, names_file=tmp_path / "names.json")


@pytest.fixture
def port(session):
    running = server(session, TOKEN)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not running.started:
            time.sleep(0.01)
        yield listening.getsockname()[1]
        running.should_exit = True
        thread.join(10)


def ask(port, path, question=None, token=TOKEN, method=None, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if token is not None:
        headers["X-Token"] = token
    if question is not None:
        body = json.dumps(question)
    try:
        connection.request(method or ("GET" if body is None else "POST"), path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


def test_data_needs_the_token(port):
    for path in ("/api/about", "/api/array/measures", "/api/sprite/examples"):
        assert ask(port, path)[0] == 200
        for token in (None, "", "wrong", TOKEN + "x", TOKEN[:-1], "é"):
            assert ask(port, path, token=token and token.encode())[0] == 403
    for what in ("name", "preview", "apply", "undo", "save"):
        assert ask(port, f"/api/{what}", {}, token="wrong")[0] == 403


def test_another_host_is_refused(port):
    """A page elsewhere whose name leads here, by DNS rebinding, says so in Host."""
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
        assert ask(port, "/api/about", Host=host)[0] == 400
        assert ask(port, "/", Host=host)[0] == 400
    assert ask(port, "/", Host=f"localhost:{port}")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/page/..%2f..%2fserver.py",
        "/page/../server.py",
        "/page/%2e%2e/server.py",
        "/page//etc/passwd",
        "/page/main.js%00.css",
        "/page/server.py",
        "/api/array/..%2f..%2fnames.json",
        "/api/sprite/../../x",
        "/names.json",
        "/page/",
        "/api/__init__",
    ],
)
def test_no_path_leads_out_of_the_page(port, path):
    status, body, _ = ask(port, path)
    assert status in (404, 405)
    assert b"import" not in body


def test_answers_forbid_all_that_the_page_does_not_need(port):
    for path in ("/", "/page/main.js", "/api/about", "/api/nothing"):
        headers = ask(port, path)[2]
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers
    page = ask(port, "/")[1].decode()
    assert "<script>" not in page
    assert "style=" not in page


def test_reading_changes_nothing(port):
    for what in ("name", "apply", "undo", "save"):
        assert ask(port, f"/api/{what}")[0] in (404, 405)


@pytest.mark.parametrize("body", ["", "[1]", "{", "null", "[" * 100_000, '"text"'])
def test_what_is_no_question_is_one_sentence(port, body):
    status, said, _ = ask(port, "/api/name", body=body)
    assert status == 400
    assert said.count(b".") >= 1
    assert b"Traceback" not in said


def test_a_large_upload_is_refused_before_it_is_read(port):
    """100 MB are announced; the server answers after what it takes at most."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(
            f"POST /api/preview HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Token: {TOKEN}\r\n"
            "Content-Length: 100000000\r\n\r\n".encode()
        )
        sent = 0
        try:
            for _ in range(100_000_000 // 2**16):
                client.sendall(b"0" * 2**16)
                sent += 2**16
        except OSError:
            pass
        assert sent < 10 * LARGEST
    assert ask(port, "/api/about")[0] == 200


def test_compressed_questions_are_refused(port):
    bomb = gzip.compress(b"0" * 10**7)
    status, said, _ = ask(port, "/api/name", body=bomb, Content_Encoding="gzip")
    assert status == 400
    assert b"without compression" in said


def test_a_client_that_hangs_and_fifty_at_once_are_served(port):
    hanging = []
    for head in (
        b"",
        b"GET /api/about HTTP/1.1\r\n",
        b"POST /api/name HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Token: the-token\r\nContent-Length: 9\r\n\r\n{",
    ):
        hanging.append(socket.create_connection(("127.0.0.1", port)))
        hanging[-1].sendall(head)
    try:
        with ThreadPoolExecutor(50) as pool:
            found = list(pool.map(lambda _: ask(port, "/api/about")[0], range(50)))
        assert found == [200] * 50
    finally:
        for client in hanging:
            client.close()


EVIL = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "javascript:alert(1)",
    "{{constructor}}",
    "${alert(1)}",
    "<!--",
    "]]>",
    "\u2028alert(1)\u2029",
    "&lt;b&gt;\\u003cb\\u003e",
]


@pytest.mark.parametrize("name", EVIL)
def test_names_are_text(port, session, name):
    status, said, _ = ask(port, "/api/name", {"feature": 2, "name": name})
    assert status == 200
    assert json.loads(said)["features"]["2"] == name.strip()
    assert json.loads(session.names_file.read_text())["2"] == name.strip()


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ({"feature": 5, "name": "x"}, "from 0 to 4"),
        ({"feature": -1, "name": "x"}, "from 0 to 4"),
        ({"feature": True, "name": "x"}, "from 0 to 4"),
        ({"feature": "2", "name": "x"}, "from 0 to 4"),
        ({"feature": 2, "name": "x" * 81}, "80 characters"),
        ({"feature": 2, "name": None}, "80 characters"),
        ({"feature": 2, "name": "\ud800"}, "half of one"),
    ],
)
def test_names_that_cannot_be_are_refused(port, question, sentence):
    status, said, _ = ask(port, "/api/name", question)
    assert status == 400
    assert sentence in said.decode()


def test_names_are_kept_for_the_next_server(port, session):
    ask(port, "/api/name", {"feature": 2, "name": "stroke"})
    again = Session(session.make, session.model, names_file=session.names_file)
    assert again.about()["features"] == {"2": "stroke"}
    assert ask(port, "/api/name", {"feature": 3, "name": "stroke"})[0] == 400
    ask(port, "/api/name", {"feature": 2, "name": ""})
    assert json.loads(session.names_file.read_text()) == {}


def test_an_edit_previews_applies_undoes_and_loads_bit_equal(port, session, tmp_path):
    before = {name: t.clone() for name, t in session.model.state_dict().items()}
    image = torch.rand(16, generator=torch.Generator().manual_seed(1)).tolist()
    change = {"prototypes": {"1": image}, "added": [image]}
    status, said, _ = ask(port, "/api/preview", change)
    assert status == 200
    assert len(json.loads(said)["classes"]) == 3
    assert all(torch.equal(before[n], t) for n, t in session.model.state_dict().items())
    assert ask(port, "/api/apply", change)[0] == 200
    status, saved, _ = ask(port, "/api/save", {})
    path = tmp_path / "edited.safetensors"
    path.write_bytes(saved)
    from safetensors.torch import load_file

    other = load_state(network(), load_file(path))
    assert len(other.features) == 6
    assert other.prototypes[1].flatten().tolist() == image
    for name, tensor in session.model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name
    assert json.loads(ask(port, "/api/undo", {})[1])["layer"]["num_features"] == 5
    assert all(torch.equal(before[n], t) for n, t in session.model.state_dict().items())
    assert ask(port, "/api/undo", {})[1] == b"there is nothing to undo."


@pytest.mark.parametrize(
    "change",
    [
        {"prototypes": {"9": [0.0] * 16}},
        {"prototypes": {"x": [0.0] * 16}},
        {"added": [[0.0] * 15]},
        {"added": "x"},
        {"added": [["x"] * 16]},
        {"removed": [0]},
        {"added": [[]]},
        {"features": {"7": [0.0] * 16}},
        {"added": [[float("nan")] * 16]},
        {"added": [[10**400] * 16]},
        {"prototypes": 3},
    ],
)
def test_edits_that_cannot_be_are_refused(port, session, change):
    before = session.model.prototypes.clone()
    status, said, _ = ask(port, "/api/apply", change)
    assert status == 400, said
    assert torch.equal(before, session.model.prototypes)


def test_an_address_for_others_is_asked_for_twice():
    for host in ("0.0.0.0", "192.168.1.2", "::", "example.com", "localhost.evil.example"):
        with pytest.raises(RemoteRefused, match="--allow-remote"):
            check_host(host, False)
        check_host(host, True)
    for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        check_host(host, False)
